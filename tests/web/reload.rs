//! Changes of the configuration while clients are served: nobody notices who is not meant.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use crate::rig::{Ask, Http, Origin, PATIENCE, Shop, patiently, read, send};
use crate::support::raw;

#[test]
fn a_hundred_changes_under_load_fail_no_request_and_close_no_connection() {
    let (origin, other) = (Origin::named("shop"), Origin::named("other"));
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (stop, served, gateway) = (&stop, &served, &gateway);
            let http = Http::BOTH[number % 2];
            scope.spawn(move || {
                // One connection for all of it: closing it would fail the next request.
                let mut browser = http.connect(gateway);
                while !stop.load(Ordering::SeqCst) {
                    let answer = browser.ask(&Ask::post("shop.test", "/", "body"));
                    assert_eq!((answer.status, answer.text()), (200, "shop"), "{http:?}");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for change in 0..100 {
            let more = format!(
                "[pool.other]\ntargets = [{}]\n[rule.other]\nhosts = [\"h{change}.test\"]\npriority = {}\npool = \"other\"",
                other.quoted(),
                100 + change
            );
            let rule = format!("response_headers = {{ set = {{ X-Change = \"{change}\" }} }}");
            shop.clone().rule(&rule).table(&more).apply(&gateway);
            let before = served.load(Ordering::SeqCst);
            patiently("requests go on", || served.load(Ordering::SeqCst) > before + 4);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let answer = send(&gateway, Ask::get("shop.test", "/").bytes());
    assert_eq!(answer.field("x-change"), "99");
}

#[test]
fn a_change_holds_for_the_next_request_of_an_open_connection() {
    let (old, new) = (Origin::named("old"), Origin::named("new"));
    let shop = Shop::of(&old);
    let gateway = shop.start();
    let mut browsers = Http::BOTH.map(|http| http.connect(&gateway));
    for browser in &mut browsers {
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "old");
    }
    shop.targets(&[new.quoted()]).apply(&gateway);
    for browser in &mut browsers {
        assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "new");
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    for wrong in [
        "[rule.other]\npriority = 10\npool = \"shop\"",
        "[rule.other]\npriority = 20\npool = \"shopp\"",
        "[rule.other]\nhosts = [\"**.test\"]\npriority = 20\npool = \"shop\"",
        "[rule.other]\nhosts = [\"x.test\"]\npriority = 20\npool = \"shop\"\n[[rule.other.path]]\npaths = [\"/a/*/b\"]\npool = \"shop\"",
        "[rule.other]\nhosts = [\"x.test\"]\npriority = 20\npool = \"shop\"\nerror_pages = { 502 = \"no-such-file\" }",
        "[rule.other]\nlisteners = [\"public\"]\nhosts = [\"x.test\"]\npriority = 20\nredirect = { listener = \"public\" }",
        "[rule.other]\nhosts = [\"x.test\"]\npriority = 20\npool = \"shop\"\nredirect = { listener = \"public\" }",
        "[rule.other]\nhosts = [\"x.test\"]\npriority = 20\npool = \"shop\"\nerror_pages = { 418 = \"gw.toml\" }",
        "[rule.other]\nhosts = [\"x.test\"]\npriority = 30000\npool = \"shop\"",
    ] {
        let told = gateway.reload(&shop.clone().table(wrong).to_setup());
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("configuration refused"), "{wrong}: {told}");
        assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).text(), "shop");
    }
}

#[test]
fn what_runs_goes_on_when_its_target_is_taken_away() {
    let (go, wait) = sync_channel::<()>(1);
    let wait = parking_lot::Mutex::new(wait);
    let old = Origin::new(move |exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
        wait.lock().recv_timeout(PATIENCE).unwrap();
        exchange.send("-last");
    });
    let new = Origin::named("new");
    let shop = Shop::of(&old);
    let gateway = shop.start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/long").bytes()).unwrap();
    crate::rig::browser::read_fields(&mut stream).unwrap();
    let mut first = [0; 5];
    stream.read_exact(&mut first).unwrap();
    shop.targets(&[new.quoted()]).apply(&gateway);
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).text(), "new");
    go.send(()).unwrap();
    let mut last = [0; 5];
    stream.read_exact(&mut last).unwrap();
    assert_eq!((&first, &last), (b"first", b"-last"));
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "new", "and its connection too");
}

#[test]
fn a_target_that_stays_keeps_its_connections_and_its_health() {
    let (sick, well) = (Origin::named("sick"), Origin::named("well"));
    sick.answer_probes_with(500);
    let shop = Shop::of_all(&[&sick, &well]);
    let gateway = shop.start();
    let mut browser = Http::One.connect(&gateway);
    patiently("the sick one is known", || {
        let before = sick.seen().len();
        for _ in 0..4 {
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).status, 200);
        }
        sick.seen().len() == before
    });
    let before = sick.seen().len();
    for change in 0..5 {
        shop.clone()
            .rule(&format!("max_body = {}", 1000 + change))
            .apply(&gateway);
        for _ in 0..4 {
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "well");
        }
    }
    assert_eq!(sick.seen().len(), before, "what was known of it was not forgotten");
}
