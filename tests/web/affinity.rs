//! Clients that stay with their target by a cookie.

use crate::rig::{Answer, Ask, Http, Origin, Shop, browser, counts, patiently, read, second_address, until_all_serve};
use std::io::Write as _;

const COOKIE: &str = "ApplicationGatewayAffinity";
const CORS: &str = "ApplicationGatewayAffinityCORS";

const KEY: &str = "[affinity]\nkey = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";

/// `name=value` of the first cookie.
fn pair(answer: &Answer) -> String {
    pair_of(answer, COOKIE)
}

fn pair_of(answer: &Answer, name: &str) -> String {
    let cookie = answer.cookie(name).unwrap_or_else(|| panic!("no {name} in {answer:?}"));
    cookie.split(';').next().unwrap().to_owned()
}

fn attributes(cookie: &str) -> Vec<String> {
    let parts = cookie.split(';').skip(1).map(|part| part.trim().to_ascii_lowercase());
    let mut attributes: Vec<_> = parts.collect();
    attributes.sort();
    attributes
}

#[test]
fn the_first_answer_sets_both_cookies_and_they_tell_nothing() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nSet-Cookie: own=1\r\nContent-Length: 0\r\n\r\n");
    let gateway = Shop::of(&origin).backend("affinity = {}").plain().start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let answer = browser.ask(&Ask::get("shop.test", "/deep/path"));
        assert_eq!(
            answer.fields("set-cookie").len(),
            3,
            "the application's own stays: {answer:?}"
        );
        let first = pair(&answer);
        let value = first.split_once('=').unwrap().1;
        assert!(
            value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{value}"
        );
        assert_eq!(pair_of(&answer, CORS).split_once('=').unwrap().1, value);
        let of_first = attributes(answer.cookie(COOKIE).unwrap());
        assert_eq!(of_first, ["httponly", "path=/", "samesite=lax", "secure"], "{http:?}");
        let of_second = attributes(answer.cookie(CORS).unwrap());
        assert_eq!(of_second, ["httponly", "path=/", "samesite=none", "secure"]);
        for name in [COOKIE, CORS] {
            let again = browser.ask(&Ask::get("shop.test", "/").with("cookie", &format!("x=y; {name}={value}")));
            assert_eq!(again.fields("set-cookie"), ["own=1"], "it is known: {again:?}");
        }
    }
    // Without TLS a cookie that is for TLS only would be lost.
    let mut stream = browser::plain(second_address(&gateway));
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    let answer = read(&mut stream);
    assert!(
        !attributes(answer.cookie(COOKIE).unwrap()).contains(&"secure".to_owned()),
        "{answer:?}"
    );
}

#[test]
fn whoever_brings_the_cookie_stays_with_the_target() {
    let origins = [Origin::named("a"), Origin::named("b"), Origin::named("c")];
    let all: Vec<_> = origins.iter().collect();
    let gateway = Shop::of_all(&all).backend("affinity = {}").start();
    until_all_serve(&gateway, &all);
    for http in Http::BOTH {
        for _ in 0..6 {
            let mut browser = http.connect(&gateway);
            let first = browser.ask(&Ask::get("shop.test", "/"));
            let cookie = pair(&first);
            for _ in 0..6 {
                let again = http
                    .connect(&gateway)
                    .ask(&Ask::get("shop.test", "/").with("cookie", &cookie));
                assert_eq!(again.text(), first.text(), "{http:?}");
            }
        }
    }
    assert!(
        counts(&all).into_iter().all(|count| count > 10),
        "new clients are spread: {:?}",
        counts(&all)
    );
}

#[test]
fn a_value_that_nobody_gave_is_no_value() {
    let origins = [Origin::named("a"), Origin::named("b")];
    let gateway = Shop::of_all(&[&origins[0], &origins[1]])
        .backend("affinity = {}")
        .start();
    let mut browsers = Http::BOTH.map(|http| http.connect(&gateway));
    let known = pair(&browsers[0].ask(&Ask::get("shop.test", "/")));
    let (name, value) = known.split_once('=').unwrap();
    let turned = value.chars().rev().collect::<String>();
    let empty = String::new();
    for forged in [
        &turned,
        &value[..31].to_owned(),
        &format!("{value}0"),
        &"0".repeat(32),
        &empty,
        &"../../x".to_owned(),
    ] {
        for browser in &mut browsers {
            let answer = browser.ask(&Ask::get("shop.test", "/").with("cookie", &format!("{name}={forged}")));
            assert_eq!(answer.status, 200, "{forged}");
            assert!(answer.cookie(COOKIE).is_some(), "{forged}");
        }
    }
    // A forged one beside the true one takes nothing away.
    let both = format!("{name}={turned}; {known}");
    for browser in &mut browsers {
        assert_eq!(
            browser.ask(&Ask::get("shop.test", "/").with("cookie", &both)).status,
            200
        );
    }
}

#[test]
fn name_and_same_site_are_chosen() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .backend("affinity = { cookie = \"stay\", same_site = \"strict\" }")
        .start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        assert!(
            attributes(answer.cookie("stay").unwrap()).contains(&"samesite=strict".to_owned()),
            "{http:?}"
        );
        assert!(answer.cookie("stayCORS").is_some() && answer.cookie(COOKIE).is_none());
    }
}

#[test]
fn when_the_target_is_gone_another_one_is_found_and_given() {
    let (a, b) = (Origin::named("a"), Origin::named("b"));
    let shop = Shop::of_all(&[&a, &b])
        .backend("affinity = {}\ndrain = \"1 s\"")
        .table(KEY);
    let gateway = shop.start();
    until_all_serve(&gateway, &[&a, &b]);
    let mut browser = Http::One.connect(&gateway);
    let of_a = std::iter::repeat_with(|| browser.ask(&Ask::get("shop.test", "/")))
        .find(|answer| answer.text() == "a")
        .map(|answer| pair(&answer))
        .unwrap();
    let mut with_cookie = || browser.ask(&Ask::get("shop.test", "/").with("cookie", &of_a));
    // Sick: others answer, and give their own cookie.
    a.answer_probes_with(500);
    patiently("the sick target is left", || {
        let answer = with_cookie();
        answer.text() == "b" && answer.cookie(COOKIE).is_some_and(|cookie| !cookie.starts_with(&of_a))
    });
    a.answer_probes_with(200);
    patiently("it is well again", || with_cookie().text() == "a");
    // It gets nothing new: whoever is there stays.
    let weighted = format!("{{ address = {}, weight = 0 }}", a.quoted());
    shop.clone().targets(&[weighted, b.quoted()]).apply(&gateway);
    let before = a.seen().len();
    for _ in 0..6 {
        assert_eq!(Http::One.connect(&gateway).ask(&Ask::get("shop.test", "/")).text(), "b");
    }
    assert_eq!(a.seen().len(), before);
    assert_eq!(with_cookie().text(), "a");
    // Taken away.
    shop.targets(&[b.quoted()]).apply(&gateway);
    patiently("its drain is over", || {
        let answer = with_cookie();
        answer.text() == "b" && answer.cookie(COOKIE).is_some()
    });
}

#[test]
fn every_node_with_the_key_finds_the_same_target() {
    let origins = [Origin::named("a"), Origin::named("b"), Origin::named("c")];
    let all: Vec<_> = origins.iter().collect();
    let shop = Shop::of_all(&all).backend("affinity = {}").table(KEY);
    let mut one = shop.start();
    // The order in which targets are written is no part of it.
    let turned: Vec<_> = origins.iter().rev().map(Origin::quoted).collect();
    let two = shop.targets(&turned).setup(|setup| setup.named("gw-2")).start();
    until_all_serve(&one, &all);
    until_all_serve(&two, &all);
    let ask = |gateway: &crate::support::Gateway, cookie: &str| {
        Http::One
            .connect(gateway)
            .ask(&Ask::get("shop.test", "/").with("cookie", cookie))
    };
    let given: Vec<_> = (0..6).map(|_| ask(&one, "x=y")).collect();
    for answer in &given {
        let elsewhere = ask(&two, &pair(answer));
        assert_eq!((elsewhere.text(), elsewhere.cookie(COOKIE)), (answer.text(), None));
    }
    one.restart();
    until_all_serve(&one, &all);
    for answer in &given {
        assert_eq!(ask(&one, &pair(answer)).text(), answer.text());
    }
}
