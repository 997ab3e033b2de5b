//! How requests are spread over the targets of a pool.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::rig::{Ask, Http, Origin, PATIENCE, Shop, access_line_of, counts, patiently, until_all_serve};
use crate::support::Gateway;

/// What so many requests on one connection added to each.
fn added(gateway: &Gateway, http: Http, origins: &[&Origin], requests: usize) -> Vec<usize> {
    let before = counts(origins);
    let mut browser = http.connect(gateway);
    for _ in 0..requests {
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 200);
    }
    counts(origins)
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

#[test]
fn targets_take_turns() {
    let origins = [Origin::named("a"), Origin::named("b"), Origin::named("c")];
    let all: Vec<_> = origins.iter().collect();
    let gateway = Shop::of_all(&all).start();
    until_all_serve(&gateway, &all);
    for http in Http::BOTH {
        assert_eq!(added(&gateway, http, &all, 30), [10, 10, 10], "{http:?}");
    }
}

#[test]
fn each_has_its_share_by_weight_and_none_of_nothing() {
    let origins = [Origin::named("a"), Origin::named("b"), Origin::named("c")];
    let weighted = |weights: [u16; 3]| -> Vec<String> {
        let pairs = origins.iter().zip(weights);
        pairs
            .map(|(origin, weight)| format!("{{ address = {}, weight = {weight} }}", origin.quoted()))
            .collect()
    };
    let all: Vec<_> = origins.iter().collect();
    let gateway = Shop::with_targets(&weighted([3, 1, 1])).start();
    until_all_serve(&gateway, &all);
    for http in Http::BOTH {
        assert_eq!(added(&gateway, http, &all, 50), [30, 10, 10], "{http:?}");
    }
    Shop::with_targets(&weighted([1, 0, 1])).apply(&gateway);
    let after = added(&gateway, Http::One, &all, 20);
    assert_eq!(after, [10, 0, 10]);
}

#[test]
fn a_target_that_is_busy_gets_less_by_choice() {
    let (free, hold) = sync_channel::<()>(0);
    let hold = parking_lot::Mutex::new(hold);
    let slow = Origin::new(move |exchange| {
        if exchange.target() == "/held" {
            let _ = hold.lock().recv_timeout(PATIENCE);
        }
        exchange.reply("slow");
    });
    let quick = Origin::named("quick");
    let gateway = Shop::of_all(&[&slow, &quick])
        .pool("balance = \"least_requests\"")
        .start();
    until_all_serve(&gateway, &[&slow, &quick]);
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = crate::support::raw::tls(&gateway);
            std::io::Write::write_all(&mut stream, &Ask::get("shop.test", "/held").bytes()).unwrap();
            stream
        })
        .collect();
    patiently("the held requests have arrived", || {
        let held = |origin: &Origin| origin.seen().iter().filter(|seen| seen.target() == "/held").count();
        held(&slow) + held(&quick) == 8
    });
    let after = added(&gateway, Http::One, &[&slow, &quick], 40);
    assert!(after[1] > after[0], "{after:?}");
    drop(free);
    drop(waiting);
}

#[test]
fn a_target_that_became_healthy_gets_its_share_little_by_little() {
    const RISE: Duration = Duration::from_secs(6);
    let (old, back) = (Origin::named("old"), Origin::named("back"));
    back.answer_probes_with(500);
    let gateway = Shop::of_all(&[&old, &back]).pool("slow_start = \"6 s\"").start();
    let started = portcullis::clock::now();
    let mut browser = Http::One.connect(&gateway);
    patiently("one is unhealthy, and the other has its whole share", || {
        let before = back.seen().len();
        (0..4).for_each(|_| drop(browser.ask(&Ask::get("shop.test", "/"))));
        back.seen().len() == before && started.elapsed() > RISE + Duration::from_secs(1)
    });
    let known_well = portcullis::clock::now();
    let seen = back.seen().len();
    back.answer_probes_with(200);
    patiently("it is back", || {
        browser.ask(&Ask::get("shop.test", "/"));
        back.seen().len() > seen
    });
    let share = added(&gateway, Http::Two, &[&old, &back], 40);
    // It is back for no longer than that: its part is a tenth at first, and then what has gone of the time.
    let most = (known_well.elapsed().as_secs_f64() / RISE.as_secs_f64()).clamp(0.1, 1.0);
    let most = 40.0 * most / (1.0 + most) + 3.0;
    assert!(share[1] as f64 <= most, "{share:?}, at most {most}");
    patiently("it has its whole share", || {
        added(&gateway, Http::One, &[&old, &back], 20) == [10, 10]
    });
    assert!(known_well.elapsed() >= RISE / 2, "{:?}", known_well.elapsed());
}

#[test]
fn a_target_has_no_more_at_one_time_than_it_may() {
    let (free, hold) = sync_channel::<()>(0);
    let hold = parking_lot::Mutex::new(hold);
    let origin = Origin::new(move |exchange| {
        if exchange.target() == "/held" {
            let _ = hold.lock().recv_timeout(PATIENCE);
        }
        exchange.reply("shop");
    });
    let capped = format!("{{ address = {}, max_requests = 1 }}", origin.quoted());
    let gateway = Shop::with_targets(&[capped]).start();
    for http in Http::BOTH {
        let before = origin.seen().len();
        let mut stream = crate::support::raw::tls(&gateway);
        std::io::Write::write_all(&mut stream, &Ask::get("shop.test", "/held").bytes()).unwrap();
        origin.wait_for(before + 1);
        let target = format!("/{http:?}");
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", &target));
        assert_eq!(answer.status, 503, "{http:?}");
        assert!(answer.has("retry-after"));
        assert_eq!(access_line_of(&gateway, &target)["error_info"], "saturated");
        free.send(()).unwrap();
        assert_eq!(crate::rig::read(&mut stream).text(), "shop");
        patiently("there is room again", || {
            http.connect(&gateway).ask(&Ask::get("shop.test", "/after")).status == 200
        });
    }
}

#[test]
fn a_target_that_fails_its_users_is_left_out_for_a_while() {
    let bad = Origin::new(|exchange| {
        let status = if exchange.target() == "/good" { 200 } else { 500 };
        exchange.reply_with(status, "", "bad");
    });
    let good = Origin::named("good");
    let gateway = Shop::of_all(&[&bad, &good])
        .pool("ejection = { failures = 3, base = \"2 s\", max_percent = 50 }")
        .start();
    let mut browser = Http::One.connect(&gateway);
    patiently("it has failed three times", || {
        browser.ask(&Ask::get("shop.test", "/"));
        bad.seen().len() == 3
    });
    // Its probes say that it is well: its users say otherwise.
    let before = bad.seen().len();
    for _ in 0..10 {
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "good");
    }
    assert_eq!(bad.seen().len(), before);
    let told = gateway.wait_for("word of it", |line| line["pool"] == "shop" && line["seconds"] == 2);
    assert_eq!(told["target"], format!("{}/shop", bad.address), "{told}");
    patiently("it gets another chance", || {
        browser.ask(&Ask::get("shop.test", "/good"));
        bad.seen().len() > before
    });
}

#[test]
fn no_more_than_their_share_is_left_out() {
    let bad = |name: &'static str| Origin::new(move |exchange| exchange.reply_with(500, "", name));
    let (a, b) = (bad("a"), bad("b"));
    let gateway = Shop::of_all(&[&a, &b])
        .pool("ejection = { failures = 1, base = \"1 h\", max_percent = 50 }")
        .start();
    let mut browser = Http::One.connect(&gateway);
    for _ in 0..20 {
        let answer = browser.ask(&Ask::get("shop.test", "/"));
        assert_eq!(answer.status, 500, "one is always asked: {answer:?}");
    }
    let counts = counts(&[&a, &b]);
    assert!(counts.iter().min().unwrap() <= &2, "one of them is out: {counts:?}");
}

#[test]
fn below_a_share_all_are_taken_to_be_healthy_by_choice() {
    let (a, b) = (Origin::named("a"), Origin::named("b"));
    for origin in [&a, &b] {
        origin.answer_probes_with(500);
    }
    let shop = Shop::of_all(&[&a, &b]);
    let gateway = shop.start();
    let mut browser = Http::One.connect(&gateway);
    patiently("both are unhealthy", || {
        browser.ask(&Ask::get("shop.test", "/")).status == 502
    });
    shop.pool("panic = 50").apply(&gateway);
    for _ in 0..6 {
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 200);
    }
}
