//! Targets by name: all of its addresses, for as long as the name server says, and the last ones that were known after that.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::probes::told_of_all;
use crate::rig::names::{Names, Record};
use crate::rig::{Ask, Http, Origin, Shop, access_line_of, counts, patiently, until_all_serve};

const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);
const TWO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 22);

/// Two at one port, each at an address of its own.
fn pair() -> (Origin, Origin) {
    let named = |name: &'static str| move |exchange: &mut crate::rig::Exchange<'_>| exchange.reply(name);
    let one = Origin::at(SocketAddr::from((ONE, 0)), named("one"));
    let two = Origin::at(SocketAddr::from((TWO, one.address.port())), named("two"));
    (one, two)
}

fn shop(port: u16, names: &Names) -> Shop {
    Shop::with_targets(&[format!("\"app.inside.test:{port}\"")])
        .table(&format!("[resolver]\nservers = [\"{}\"]", names.address))
}

#[test]
fn a_name_stands_for_all_of_its_addresses_and_a_change_is_seen_when_its_time_is_over() {
    let ((one, two), names) = (pair(), Names::start());
    names.set("app.inside.test", Record::Addresses(vec![ONE, TWO], 1));
    let gateway = shop(one.address.port(), &names).start();
    until_all_serve(&gateway, &[&one, &two]);
    names.set("app.inside.test", Record::Addresses(vec![TWO], 1));
    let mut browser = Http::One.connect(&gateway);
    let mut before = counts(&[&one, &two]);
    patiently("the address that is gone gets nothing more", || {
        for _ in 0..4 {
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 200);
        }
        let after = counts(&[&one, &two]);
        let is_left = after[0] == before[0];
        before = after;
        is_left
    });
    names.set("app.inside.test", Record::Addresses(vec![ONE], 1));
    patiently("it is back", || {
        browser.ask(&Ask::get("shop.test", "/")).text() == "one"
    });
}

#[test]
fn what_was_last_known_is_kept_when_the_name_server_knows_nothing() {
    let ((one, _two), names) = (pair(), Names::start());
    names.set("app.inside.test", Record::Addresses(vec![ONE], 1));
    let gateway = shop(one.address.port(), &names).start();
    until_all_serve(&gateway, &[&one]);
    for record in [Record::NoSuchName, Record::Silence] {
        let lines = gateway.lines().len();
        names.set("app.inside.test", record.clone());
        let asked = names.asked();
        let mut browser = Http::One.connect(&gateway);
        patiently("it was asked again", || {
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "one", "{record:?}");
            names.asked() > asked + 2
        });
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "one", "{record:?}");
        if matches!(record, Record::NoSuchName) {
            gateway.wait_for_after(lines, "an alarm", |line| {
                line["level"] == "WARN" && line.to_string().contains("app.inside.test")
            });
        }
    }
}

#[test]
fn another_name_server_is_asked_as_soon_as_it_is_configured() {
    let ((one, two), first, second) = (pair(), Names::start(), Names::start());
    // For an hour, if nobody changes anything.
    first.set("app.inside.test", Record::Addresses(vec![ONE], 3600));
    second.set("app.inside.test", Record::Addresses(vec![TWO], 3600));
    let gateway = shop(one.address.port(), &first).start();
    until_all_serve(&gateway, &[&one]);
    shop(one.address.port(), &second).apply(&gateway);
    let mut browser = Http::One.connect(&gateway);
    patiently("the new one is believed", || {
        browser.ask(&Ask::get("shop.test", "/")).text() == "two"
    });
    assert!(!two.seen().is_empty());
}

#[test]
fn the_first_request_finds_names_that_take_a_moment() {
    let ((one, _two), names) = (pair(), Names::start());
    names.set("app.inside.test", Record::Late(ONE, Duration::from_millis(300)));
    let gateway = shop(one.address.port(), &names).start();
    let answer = Http::One.connect(&gateway).ask(&Ask::get("shop.test", "/"));
    assert_eq!((answer.status, answer.text()), (200, "one"));
}

#[test]
fn a_name_that_was_never_known_is_502_until_it_is() {
    let ((one, _two), names) = (pair(), Names::start());
    names.set("app.inside.test", Record::NoSuchName);
    let gateway = shop(one.address.port(), &names).start();
    let mut browser = Http::One.connect(&gateway);
    assert_eq!(browser.ask(&Ask::get("shop.test", "/none")).status, 502);
    assert_eq!(access_line_of(&gateway, "/none")["error_info"], "no_target");
    let told = || told_of_all(&gateway)["names"][0].take();
    assert_eq!(
        (&told()["name"], &told()["addresses"], &told()["fault"]),
        (
            &"app.inside.test".into(),
            &serde_json::json!([]),
            &"there is no such name".into()
        )
    );
    names.set("app.inside.test", Record::Addresses(vec![ONE], 1));
    patiently("it is known", || browser.ask(&Ask::get("shop.test", "/")).status == 200);
    assert_eq!(
        (&told()["addresses"], &told()["fault"]),
        (&serde_json::json!([ONE.to_string()]), &serde_json::Value::Null)
    );
}
