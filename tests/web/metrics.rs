//! What monitoring reads of published applications.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;

use crate::rig::{Ask, Http, Origin, PATIENCE, Shop, patiently, read, until_all_serve};
use crate::support::{self, Gateway, raw};

/// The value of a sample; `None` if it is not there.
fn sample(gateway: &Gateway, name: &str) -> Option<f64> {
    let mut socket = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    socket
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = raw::read_answer(&mut socket);
    let line = answer
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// Waits until a sample has that value: a request is counted when it has ended, which is after its client has the answer.
fn becomes(gateway: &Gateway, name: &str, value: f64) {
    patiently(&format!("{name} {value}"), || sample(gateway, name) == Some(value));
}

#[test]
fn requests_are_counted_by_rule_and_class_with_their_times_and_bytes() {
    let origin = Origin::new(|exchange| {
        let target = exchange.target();
        let status = target.trim_start_matches('/').parse().unwrap();
        exchange.reply_with(status, "", "four");
    });
    let gateway = Shop::of(&origin).plain().start();
    let requests =
        |rule: &str, class: &str| format!("portcullis_web_requests_total{{rule=\"{rule}\",class=\"{class}\"}}");
    assert_eq!(
        sample(&gateway, &requests("shop", "2xx")),
        None,
        "it appears with its first request"
    );
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for status in [200, 201, 302, 404, 500] {
            let answer = browser.ask(&Ask::post("shop.test", &format!("/{status}"), "seven--"));
            assert_eq!(answer.status, status);
        }
    }
    for (class, count) in [("1xx", 0.0), ("2xx", 4.0), ("3xx", 2.0), ("4xx", 2.0), ("5xx", 2.0)] {
        becomes(&gateway, &requests("shop", class), count);
    }
    for (name, value) in [
        ("portcullis_web_received_bytes_total{rule=\"shop\"}", 70.0),
        ("portcullis_web_sent_bytes_total{rule=\"shop\"}", 40.0),
        ("portcullis_web_request_seconds_count{rule=\"shop\"}", 10.0),
        ("portcullis_web_request_seconds_bucket{rule=\"shop\",le=\"+Inf\"}", 10.0),
        ("portcullis_pool_first_byte_seconds_count{pool=\"shop\"}", 10.0),
        ("portcullis_web_errors_total{error=\"no_rule\"}", 0.0),
        ("portcullis_access_log_dropped_total", 0.0),
    ] {
        assert_eq!(sample(&gateway, name), Some(value), "{name}");
    }
    let sum = sample(&gateway, "portcullis_web_request_seconds_sum{rule=\"shop\"}").unwrap();
    assert!(sum > 0.0 && sum < 10.0 * PATIENCE.as_secs_f64(), "{sum}");
    let connected = sample(&gateway, "portcullis_pool_connect_seconds_count{pool=\"shop\"}").unwrap();
    assert!(
        (1.0..10.0).contains(&connected),
        "connections are used again: {connected}"
    );
    // What no rule is for is counted under none.
    let mut stream = crate::rig::browser::plain(crate::rig::second_address(&gateway));
    stream.write_all(&Ask::get("unknown.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).status, 404);
    becomes(&gateway, &requests("", "4xx"), 1.0);
    becomes(&gateway, "portcullis_web_errors_total{error=\"no_rule\"}", 1.0);
}

#[test]
fn a_request_counts_when_it_has_ended_and_its_time_is_the_whole_of_it() {
    let (go, wait) = sync_channel::<()>(1);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
        wait.lock().recv_timeout(PATIENCE).unwrap();
        exchange.send("half");
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    becomes(&gateway, "portcullis_pool_first_byte_seconds_count{pool=\"shop\"}", 1.0);
    assert_eq!(
        sample(&gateway, "portcullis_web_request_seconds_count{rule=\"shop\"}"),
        None
    );
    let begun = portcullis::clock::now();
    std::thread::sleep(std::time::Duration::from_millis(300));
    go.send(()).unwrap();
    assert_eq!(read(&mut stream).text(), "halfhalf");
    let most = begun.elapsed().as_secs_f64() + PATIENCE.as_secs_f64();
    becomes(&gateway, "portcullis_web_request_seconds_count{rule=\"shop\"}", 1.0);
    let sum = sample(&gateway, "portcullis_web_request_seconds_sum{rule=\"shop\"}").unwrap();
    assert!(sum >= 0.3 && sum < most, "{sum}");
    let quick = sample(
        &gateway,
        "portcullis_web_request_seconds_bucket{rule=\"shop\",le=\"0.25\"}",
    );
    assert_eq!(quick, Some(0.0));
}

#[test]
fn counts_go_on_over_a_change_of_the_configuration_and_go_with_their_rule() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let other = "[rule.other]\nhosts = [\"other.test\"]\npriority = 20\npool = \"shop\"\nbackend = \"shop\"";
    let gateway = shop.clone().table(other).start();
    let requests = |rule: &str| format!("portcullis_web_requests_total{{rule=\"{rule}\",class=\"2xx\"}}");
    let ask = |host: &str| assert_eq!(Http::One.connect(&gateway).ask(&Ask::get(host, "/")).status, 200);
    ask("shop.test");
    ask("other.test");
    becomes(&gateway, &requests("other"), 1.0);
    shop.apply(&gateway);
    ask("shop.test");
    becomes(&gateway, &requests("shop"), 2.0);
    // It goes with a change, once no connection follows the configuration that had it.
    patiently("the rule that is gone is not told of", || {
        shop.apply(&gateway);
        sample(&gateway, &requests("other")).is_none()
    });
    assert_eq!(sample(&gateway, &requests("shop")), Some(2.0));
}

#[test]
fn targets_are_counted_by_what_their_probes_say() {
    let (well, sick) = (Origin::named("well"), Origin::named("sick"));
    let gateway = Shop::of_all(&[&well, &sick]).start();
    let targets = |condition: &str| {
        format!("portcullis_pool_targets{{pool=\"shop\",backend=\"shop\",condition=\"{condition}\"}}")
    };
    until_all_serve(&gateway, &[&well, &sick]);
    becomes(&gateway, &targets("healthy"), 2.0);
    sick.answer_probes_with(500);
    becomes(&gateway, &targets("unhealthy"), 1.0);
    assert_eq!(sample(&gateway, &targets("healthy")), Some(1.0));
    assert_eq!(sample(&gateway, &targets("unknown")), Some(0.0));
    assert_eq!(
        sample(&gateway, "portcullis_pool_ejected{pool=\"shop\",backend=\"shop\"}"),
        Some(0.0)
    );
}

#[test]
fn connections_that_do_not_come_about_are_counted_with_the_error() {
    let refusing = format!("\"{}\"", support::refusing());
    let gateway = Shop::with_targets(&[refusing])
        .probe("path = \"/probe\"\ninterval = \"1 h\"\ntimeout = \"1 s\"\nthreshold = 20\n")
        .backend("retries = { max = 0 }")
        .start();
    for http in Http::BOTH {
        assert_eq!(http.connect(&gateway).ask(&Ask::get("shop.test", "/")).status, 502);
    }
    becomes(&gateway, "portcullis_pool_unreached_total{pool=\"shop\"}", 2.0);
    becomes(&gateway, "portcullis_web_errors_total{error=\"connect_failed\"}", 2.0);
    becomes(
        &gateway,
        "portcullis_web_requests_total{rule=\"shop\",class=\"5xx\"}",
        2.0,
    );
}
