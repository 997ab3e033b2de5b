//! How targets are asked whether they are well, and what follows from it.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::rig::{Ask, Http, Origin, Shop, access_line_of, counts, patiently, send};
use crate::support::{self, Gateway, raw};

const QUICK: &str = "path = \"/probe\"\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 2\n";

fn status(gateway: &Gateway) -> u16 {
    send(gateway, Ask::get("shop.test", "/").bytes()).status
}

#[test]
fn a_probe_asks_for_its_path_under_its_host() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.clone().probe(&format!("{QUICK}host = \"health.test\"")).start();
    let probe = origin.wait_for_probes(1).pop().unwrap();
    assert_eq!(
        (probe.method(), probe.target(), probe.field("host")),
        ("GET", "/probe", "health.test")
    );
    assert!(
        !probe.has("cookie") && !probe.has("authorization") && probe.body.is_empty(),
        "{}",
        probe.head
    );
    // Without a host of its own: the backend's, or that of the rule, or else the target's address.
    shop.clone().backend("host = \"inside.test\"").apply(&gateway);
    patiently("the backend's host", || {
        origin.probes().last().unwrap().field("host") == "inside.test"
    });
    shop.apply(&gateway);
    patiently("the rule's host", || {
        origin.probes().last().unwrap().field("host") == "shop.test"
    });
    shop.backend("host = \"target\"").apply(&gateway);
    let own = origin.address.to_string();
    patiently("the target's address", || {
        origin.probes().last().unwrap().field("host") == own
    });
    assert_eq!(status(&gateway), 200);
}

/// What the operator's socket says of the only pool.
pub(crate) fn told(gateway: &Gateway) -> Value {
    told_of_all(gateway)["pools"][0].take()
}

/// What the operator's socket says of pools and of names.
pub(crate) fn told_of_all(gateway: &Gateway) -> Value {
    let mut socket = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    socket
        .write_all(b"GET /api/v1/pools HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer = raw::read_answer(&mut socket);
    serde_json::from_str(answer.text()).unwrap()
}

#[test]
fn the_operator_is_told_how_targets_stand_and_why() {
    let (well, sick) = (Origin::named("well"), Origin::named("sick"));
    sick.answer_probes_with(503);
    let gateway = Shop::of_all(&[&well, &sick]).start();
    let condition = |number: usize| told(&gateway)["targets"][number]["condition"].clone();
    patiently("both are known", || {
        condition(0) == "healthy" && condition(1) == "unhealthy"
    });
    let pool = told(&gateway);
    assert_eq!((&pool["pool"], &pool["backend"]), (&"shop".into(), &"shop".into()));
    let (first, second) = (&pool["targets"][0]["results"][0], &pool["targets"][1]["results"][0]);
    assert_eq!((&first["status"], &first["reason"]), (&200.into(), &Value::Null));
    assert_eq!(second["reason"], "status_mismatch");
    assert_eq!(second["address"], sick.address.to_string());
    assert!(second["words"].as_str().unwrap().contains("503"), "{second}");
}

#[test]
fn each_reason_has_its_word() {
    let probed = |answer: &'static str, is_held: bool| {
        let origin = Origin::named("any");
        origin.answer_probes(move |exchange| {
            exchange.send(answer);
            if is_held {
                exchange.wait_until_closed();
            }
            exchange.close();
        });
        origin
    };
    let refusing = format!("\"{}\"", support::refusing());
    let origins = [
        ("", probed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready", false)),
        (
            "body_mismatch",
            probed("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nelse", false),
        ),
        (
            "status_mismatch",
            probed("HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nready", false),
        ),
        ("malformed", probed("220 mail.inside.test\r\n\r\n", false)),
        ("closed", probed("", false)),
        ("timeout", probed("", true)),
    ];
    let mut targets: Vec<_> = origins.iter().map(|(_, origin)| origin.quoted()).collect();
    targets.push(refusing.clone());
    let gateway = Shop::with_targets(&targets)
        .probe(&format!("{QUICK}body = \"ready\""))
        .start();
    let expected = origins.iter().map(|(reason, origin)| (*reason, origin.quoted()));
    for (place, (reason, address)) in expected.chain([("refused", refusing)]).enumerate() {
        let mut result = Value::Null;
        patiently("two results", || {
            result = told(&gateway)["targets"][place].take();
            result["results"].as_array().is_some_and(|results| results.len() > 1)
        });
        let last = &result["results"][0];
        assert_eq!(last["reason"].as_str().unwrap_or_default(), reason, "{result}");
        assert_eq!(last["address"], address.trim_matches('"'), "{result}");
        assert!(
            last["milliseconds"].as_u64().is_some_and(|taken| taken < 20_000),
            "{result}"
        );
        // The newest first.
        assert!(last["at"].as_str() >= result["results"][1]["at"].as_str(), "{result}");
        assert_eq!(last["words"].is_null(), reason.is_empty(), "{result}");
    }
}

#[test]
fn what_no_rule_uses_is_not_probed() {
    let (used, idle) = (Origin::named("used"), Origin::named("idle"));
    let shop = Shop::of(&used).backend("drain = \"1 s\"");
    let idle_pool = format!("[pool.idle]\ntargets = [{}]\n", idle.quoted());
    let gateway = shop.clone().table(&idle_pool).start();
    used.wait_for_probes(3);
    assert!(idle.probes().is_empty());
    // And no more once no rule uses it.
    let with_rule = "[rule.idle]\nhosts = [\"idle.test\"]\npriority = 20\npool = \"idle\"\nbackend = \"shop\"\n";
    shop.clone().table(&idle_pool).table(with_rule).apply(&gateway);
    idle.wait_for_probes(1);
    shop.table(&idle_pool).apply(&gateway);
    patiently("its drain is over", || {
        let before = idle.probes().len();
        used.wait_for_probes(3);
        idle.probes().len() == before
    });
}

#[test]
fn the_default_probe_asks_for_the_root() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .path(&["/default"], "pool = \"shop\"")
        .probe("path = \"/other\"\ninterval = \"24 h\"\ntimeout = \"1 s\"\n")
        .start();
    patiently("a default probe", || {
        origin.probes().iter().any(|probe| probe.target() == "/")
    });
    drop(gateway);
}

#[test]
fn statuses_and_text_of_a_healthy_target_are_as_configured() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    for (lines, answer, is_well) in [
        ("", "HTTP/1.1 399 Any\r\nContent-Length: 0\r\n\r\n", true),
        ("", "HTTP/1.1 400 Any\r\nContent-Length: 0\r\n\r\n", false),
        (
            "status = [\"200\", \"300-303\"]",
            "HTTP/1.1 302 Any\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        (
            "status = [\"200\"]",
            "HTTP/1.1 302 Any\r\nLocation: /well\r\nContent-Length: 0\r\n\r\n",
            false,
        ),
        (
            "status = [\"401\"]",
            "HTTP/1.1 401 Any\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        (
            "body = \"all is we\"",
            "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nall is well",
            true,
        ),
        (
            "body = \"All is we\"",
            "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nall is well",
            false,
        ),
        (
            "body = \"well\"",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nwe\r\n2\r\nll\r\n0\r\n\r\n",
            true,
        ),
        ("", "nonsense\r\n\r\n", false),
    ] {
        origin.answer_probes(move |exchange| {
            exchange.send(answer);
            exchange.close();
        });
        shop.clone().probe(&format!("{QUICK}{lines}")).apply(&gateway);
        origin.wait_for_probes(1);
        let expected = if is_well { 200 } else { 502 };
        patiently(&format!("{lines:?} {answer:?}"), || status(&gateway) == expected);
        // And it stays so.
        origin.wait_for_probes(1);
        assert_eq!(status(&gateway), expected, "{lines:?} {answer:?}");
    }
    assert!(
        origin.probes().iter().all(|probe| probe.target() == "/probe"),
        "redirects are not followed"
    );
}

#[test]
fn failures_in_a_row_make_a_target_unhealthy_and_one_success_makes_it_healthy() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .probe("path = \"/probe\"\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 3\n")
        .start();
    origin.wait_for_probes(1);
    assert_eq!(status(&gateway), 200);
    origin.answer_probes_with(500);
    origin.wait_for_probes(1);
    assert_eq!(status(&gateway), 200, "one failure is none");
    origin.wait_for_probes(1);
    assert_eq!(status(&gateway), 200, "two neither");
    patiently("three are", || status(&gateway) == 502);
    let failures = origin.probes().len();
    origin.answer_probes_with(200);
    patiently("one success is enough", || status(&gateway) == 200);
    assert!(
        origin.probes().len() <= failures + 2,
        "{} probes for it",
        origin.probes().len() - failures
    );
}

#[test]
fn another_port_may_say_how_the_target_is() {
    let (origin, health) = (Origin::named("shop"), Origin::named("health"));
    let gateway = Shop::of(&origin)
        .probe(&format!("{QUICK}port = {}", health.address.port()))
        .start();
    health.wait_for_probes(1);
    assert_eq!(status(&gateway), 200);
    assert!(origin.probes().is_empty());
    health.answer_probes_with(500);
    patiently("its word counts", || status(&gateway) == 502);
}

#[test]
fn a_target_is_probed_once_however_many_rules_use_it() {
    let origin = Origin::named("shop");
    let more: String = (0..20)
        .map(|number| {
            format!(
                "[rule.r{number}]\nhosts = [\"r{number}.test\"]\npriority = {}\npool = \"shop\"\nbackend = \"shop\"\n",
                number + 100
            )
        })
        .collect();
    let gateway = Shop::of(&origin).table(&more).start();
    origin.wait_for_probes(1);
    let (before, begun) = (origin.probes().len(), portcullis::clock::now());
    origin.wait_for_probes(3);
    let (probes, seconds) = (origin.probes().len() - before, begun.elapsed().as_secs_f64());
    assert!(probes as f64 <= seconds + 2.0, "{probes} probes in {seconds} s");
    drop(gateway);
}

#[test]
fn a_new_target_gets_nothing_before_it_has_proved_well() {
    let (old, new) = (Origin::named("old"), Origin::named("new"));
    let gateway = Shop::of(&old).start();
    old.wait_for_probes(1);
    assert_eq!(status(&gateway), 200);
    new.answer_probes_with(503);
    Shop::of_all(&[&old, &new]).apply(&gateway);
    new.wait_for_probes(1);
    for _ in 0..10 {
        assert_eq!(status(&gateway), 200);
    }
    assert!(new.seen().is_empty());
    new.answer_probes_with(200);
    patiently("it serves", || {
        status(&gateway);
        !new.seen().is_empty()
    });
}

#[test]
fn where_nobody_is_known_all_are_tried() {
    // Probes that hang: for some time nothing is known of anybody.
    let origin = Origin::named("shop");
    origin.answer_probes(|exchange| exchange.wait_until_closed());
    let gateway = Shop::of(&origin)
        .probe("path = \"/probe\"\ninterval = \"1 h\"\ntimeout = \"1 min\"\nthreshold = 2\n")
        .start();
    assert_eq!(status(&gateway), 200);
}

#[test]
fn all_unhealthy_is_502_and_not_all_healthy() {
    let (a, b) = (Origin::named("a"), Origin::named("b"));
    a.answer_probes_with(500);
    b.answer_probes_with(500);
    let gateway = Shop::of_all(&[&a, &b]).start();
    patiently("both are out", || status(&gateway) == 502);
    let before = counts(&[&a, &b]);
    for http in Http::BOTH {
        let target = format!("/{http:?}");
        assert_eq!(http.connect(&gateway).ask(&Ask::get("shop.test", &target)).status, 502);
        assert_eq!(access_line_of(&gateway, &target)["error_info"], "no_healthy_target");
    }
    assert_eq!(counts(&[&a, &b]), before);
    b.answer_probes_with(200);
    patiently("one is back", || status(&gateway) == 200);
    assert_eq!(a.seen().len(), before[0]);
}

#[test]
fn probes_that_come_late_take_nobody_out_whose_users_are_served() {
    let (a, b) = (Origin::named("a"), Origin::named("b"));
    let gateway = Shop::of_all(&[&a, &b]).start();
    crate::rig::until_all_serve(&gateway, &[&a, &b]);
    for origin in [&a, &b] {
        // Later than the probe waits, as under load.
        origin.answer_probes(|exchange| {
            std::thread::sleep(Duration::from_millis(1500));
            exchange.reply("late");
        });
    }
    let (mut asked, before) = (0, a.probes().len());
    let mut browser = Http::One.connect(&gateway);
    patiently("many probes have been late", || {
        asked += 1;
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 200, "request {asked}");
        a.probes().len() >= before + 5
    });
}
