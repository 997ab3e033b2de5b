//! One line a request, and what stands in it.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use crate::rig::{Ask, Http, Origin, Shop, access_line_of, access_lines, patiently, read, send};
use crate::support::{Gateway, raw};

#[test]
fn a_line_tells_the_whole_of_a_request() {
    let origin = Origin::saying("HTTP/1.1 201 Made\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
    let gateway = Shop::of(&origin)
        .backend("host = \"inside.test\"\npath_override = \"/v2/\"")
        .start();
    for http in Http::BOTH {
        let target = format!("/{http:?}?a=b");
        let ask = Ask::post("Shop.test:8443", &target, "body").with("user-agent", "a \"b\" \\ c");
        http.connect(&gateway).ask(&ask);
        let (line, seen) = (access_line_of(&gateway, &target), origin.last());
        for (field, expected) in [
            ("instance_id", "gw-1"),
            ("listener_name", "public"),
            ("rule_name", "shop"),
            ("backend_pool_name", "shop"),
            ("backend_setting_name", "shop"),
            ("client_ip", "127.0.0.1"),
            ("http_method", "POST"),
            ("request_uri", &format!("/v2/{http:?}")),
            ("request_query", "a=b"),
            ("user_agent", "a \"b\" \\ c"),
            ("http_version", http.name()),
            ("transaction_id", seen.field("x-appgw-trace-id")),
            ("ssl_enabled", "on"),
            ("ssl_protocol", "TLSv1.3"),
            ("server_routed", &origin.address.to_string()),
            ("original_host", "Shop.test:8443"),
            ("host", "inside.test"),
            ("content_type", "text/plain"),
        ] {
            let value = line[field].as_str().unwrap_or_else(|| panic!("{field} in {line}"));
            assert!(value.eq_ignore_ascii_case(expected), "{field}: {line}");
        }
        for (field, expected) in [
            ("http_status", 201),
            ("server_status", 201),
            ("received_bytes", 4),
            ("sent_bytes", 5),
            ("retries", 0),
            ("upstream_source_port", seen.peer.unwrap().port().into()),
        ] {
            assert_eq!(line[field], expected, "{field}: {line}");
        }
        let seconds = |field: &str| line[field].as_f64().unwrap_or_else(|| panic!("{field} in {line}"));
        assert!(
            seconds("server_response_latency") > 0.0 && seconds("server_response_latency") <= seconds("time_taken")
        );
        assert!(seconds("client_response_time") <= seconds("time_taken"));
        assert!(line["ssl_cipher"].as_str().unwrap().starts_with("TLS13_"), "{line}");
        assert!(
            line["time_stamp"].as_str().unwrap().ends_with('Z') && line.get("error_info").is_none(),
            "{line}"
        );
    }
}

#[test]
fn fields_are_chosen_and_of_what_goes_well_a_share() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop
        .access_log("fields = [\"http_status\", \"original_request_uri_with_args\"]\nsample_percent = 0")
        .path(&["/none"], "pool = \"none\"")
        .table("[pool.none]\ntargets = []")
        .start();
    for target in ["/well", "/none"] {
        send(&gateway, Ask::get("shop.test", target).bytes());
    }
    let line = access_line_of(&gateway, "/none");
    assert_eq!(
        line,
        serde_json::json!({"http_status": 502, "original_request_uri_with_args": "/none"})
    );
    assert_eq!(access_lines(&gateway).len(), 1, "what went well is not told");
}

#[test]
fn a_file_that_was_moved_away_is_opened_again_at_a_reload() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    send(&gateway, Ask::get("shop.test", "/before").bytes());
    access_line_of(&gateway, "/before");
    let (file, moved) = (
        gateway.folder().join("access.log"),
        gateway.folder().join("access.log.1"),
    );
    fs::rename(&file, &moved).unwrap();
    shop.apply(&gateway);
    send(&gateway, Ask::get("shop.test", "/after").bytes());
    access_line_of(&gateway, "/after");
    assert!(!fs::read_to_string(&moved).unwrap().contains("/after"));
    assert!(!fs::read_to_string(&file).unwrap().contains("/before"));
}

#[test]
fn whatever_a_client_writes_it_stays_one_line() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(
            b"GET /odd?\"}{%0a HTTP/1.1\r\nHost: shop.test\r\nUser-Agent: \",\"http_status\":\"0 \xff\xfe\tx\r\n\r\n",
        )
        .unwrap();
    let status = read(&mut stream).status;
    patiently("its line", || access_lines(&gateway).len() == 1);
    let text = fs::read_to_string(gateway.folder().join("access.log")).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let line = &access_lines(&gateway)[0];
    assert_eq!(line["http_status"], status);
    if status == 200 {
        assert!(
            line["user_agent"]
                .as_str()
                .unwrap()
                .starts_with("\",\"http_status\":\"0 "),
            "{line}"
        );
    }
}

#[test]
fn what_waits_at_the_end_of_the_node_is_written() {
    let origin = Origin::named("shop");
    let mut gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    for number in 0..50 {
        stream
            .write_all(&Ask::get("shop.test", &format!("/{number}")).bytes())
            .unwrap();
        read(&mut stream);
    }
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert_eq!(access_lines(&gateway).len(), 50);
}

#[test]
fn requests_for_the_session_gateway_are_not_of_this_log() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    raw::sign_in(&gateway, "ann");
    send(&gateway, Ask::get("localhost", "/favicon.ico").bytes());
    send(&gateway, Ask::get("shop.test", "/published").bytes());
    access_line_of(&gateway, "/published");
    assert_eq!(access_lines(&gateway).len(), 1);
    let text = fs::read_to_string(gateway.folder().join("access.log")).unwrap();
    assert!(!text.contains("broker") && !text.contains("JSESSIONID"), "{text}");
}

#[test]
fn a_log_that_cannot_be_written_keeps_nobody_waiting_and_is_told_of() {
    let origin = Origin::named("shop");
    // A disk without room.
    let full = |text: &str| text.replace("to = \"access.log\"", "to = \"/dev/full\"");
    let gateway = Gateway::start(&Shop::of(&origin).to_setup().with(full));
    let begun = portcullis::clock::now();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for _ in 0..100 {
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "shop", "{http:?}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let told = gateway.wait_for("lines are missing", |line| {
        line["message"]
            .as_str()
            .is_some_and(|words| words.contains("access log"))
    });
    assert_eq!(told["level"], "WARN", "{told}");
    assert!(told["dropped"].as_u64().is_some_and(|dropped| dropped > 0), "{told}");
}
