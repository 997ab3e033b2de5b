//! Who may ask, and how often.

use std::io::Write as _;

use crate::rig::{Ask, Http, Origin, Shop, access_line, access_line_of, read};
use crate::support::{Gateway, raw};

fn status_from(gateway: &Gateway, source: [u8; 4], host: &str, target: &str) -> u16 {
    let mut stream = raw::tls_over(raw::connect_from(source, gateway.address), &gateway.chain());
    stream.write_all(&Ask::get(host, target).bytes()).unwrap();
    read(&mut stream).status
}

#[test]
fn addresses_are_admitted_by_their_lists_and_a_denied_one_never() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .rule("allow = [\"127.0.0.0/29\", \"::1\"]\ndeny = [\"127.0.0.3\"]")
        .start();
    assert_eq!(status_from(&gateway, [127, 0, 0, 2], "shop.test", "/"), 200);
    for (denied, target) in [([127, 0, 0, 3], "/listed"), ([127, 0, 0, 9], "/beside")] {
        assert_eq!(status_from(&gateway, denied, "shop.test", target), 403);
    }
    assert_eq!(origin.seen().len(), 1);
    let line = access_line_of(&gateway, "/listed");
    assert_eq!(
        (&line["error_info"], &line["client_ip"]),
        (&"address_denied".into(), &"127.0.0.3".into())
    );
}

#[test]
fn lists_are_of_one_rule() {
    let (shop, free) = (Origin::named("shop"), Origin::named("free"));
    let gateway = Shop::of(&shop)
        .rule("allow = [\"192.0.2.0/24\"]")
        .table(&format!(
            "[pool.free]\ntargets = [{}]\n[rule.free]\nhosts = [\"free.test\"]\npriority = 20\npool = \"free\"",
            free.quoted()
        ))
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 403, "{http:?}");
        assert_eq!(browser.ask(&Ask::get("free.test", "/")).text(), "free");
    }
    assert!(shop.seen().is_empty());
}

#[test]
fn whoever_asks_too_often_waits_and_nobody_else_does() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).rule("rate = { per_second = 1, burst = 3 }").start();
    for http in Http::BOTH {
        // Each version from an address of its own would need a connection from there: the first uses the burst up.
        let mut browser = http.connect(&gateway);
        let answers: Vec<_> = (0..8).map(|_| browser.ask(&Ask::get("shop.test", "/often"))).collect();
        let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
        assert!(
            refused.len() >= 3,
            "{http:?}: {:?}",
            answers.iter().map(|answer| answer.status).collect::<Vec<_>>()
        );
        for answer in refused {
            assert!(answer.field("retry-after").parse::<u64>().unwrap() >= 1);
        }
    }
    assert_eq!(status_from(&gateway, [127, 0, 0, 7], "shop.test", "/other"), 200);
    let line = access_line(&gateway, |line| line["http_status"] == 429);
    assert_eq!(line["error_info"], "rate_limited");
}
