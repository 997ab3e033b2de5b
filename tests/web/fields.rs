//! Fields of heads: what is for one hop only, what is passed as it is, and what a rule makes of them.

use std::io::Write as _;

use crate::rig::{Ask, Frames, Http, Origin, Shop, access_line_of, read, send};
use crate::support::raw;

#[test]
fn what_is_for_one_hop_stays_there() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send(
            "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\
             Proxy-Connection: x\r\nX-End: 2\r\nContent-Length: 0\r\n\r\n",
        );
    });
    let gateway = Shop::of(&origin).start();
    let answer = send(
        &gateway,
        "GET / HTTP/1.1\r\nHost: shop.test\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTE: gzip, trailers\r\n\
         Proxy-Authorization: Basic eDp5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nX-End: 2\r\n\r\n",
    );
    assert_eq!(answer.status, 200);
    for gone in ["x-hop", "keep-alive", "proxy-authenticate", "proxy-connection"] {
        assert!(!answer.has(gone), "{gone}: {answer:?}");
    }
    assert_eq!(answer.field("x-end"), "2");
    let seen = origin.only();
    for gone in [
        "x-hop",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "upgrade",
    ] {
        assert!(!seen.has(gone), "{gone}: {}", seen.head);
    }
    assert!(
        ["", "trailers"].contains(&seen.fields("te").join(",").as_str()),
        "{}",
        seen.head
    );
    assert_eq!(seen.field("x-end"), "2");
    let answer = Http::Two
        .connect(&gateway)
        .ask(&Ask::get("shop.test", "/").with("te", "trailers"));
    for gone in [
        "connection",
        "x-hop",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "transfer-encoding",
    ] {
        assert!(!answer.has(gone), "{gone}: {answer:?}");
    }
}

#[test]
fn fields_pass_in_their_order_and_line_by_line() {
    let origin = Origin::saying(
        "HTTP/1.1 200 OK\r\nX-A: 1\r\nSet-Cookie: a=1; Path=/\r\nX-A: 2\r\nSet-Cookie: b=2\r\nServer: Origin/1\r\n\
         Date: Mon, 30 Nov 2026 00:00:00 GMT\r\nX-Empty:\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/")
            .with("x-a", "1")
            .with("accept", "text/html, */*;q=0.8")
            .with("x-a", "2")
            .with("x-empty", "")
            .with("x-utf8", "caf\u{e9}");
        let answer = http.connect(&gateway).ask(&ask);
        assert_eq!(answer.fields("x-a"), ["1", "2"], "{http:?}");
        assert_eq!(answer.fields("set-cookie"), ["a=1; Path=/", "b=2"]);
        assert_eq!(
            answer.field("date"),
            "Mon, 30 Nov 2026 00:00:00 GMT",
            "the target's date is the answer's"
        );
        assert_eq!(answer.field("x-empty"), "");
        let seen = origin.last();
        assert_eq!(seen.fields("x-a"), ["1", "2"], "{}", seen.head);
        assert_eq!(
            (seen.field("accept"), seen.field("x-empty")),
            ("text/html, */*;q=0.8", "")
        );
        assert_eq!(seen.field("x-utf8"), "caf\u{e9}");
    }
}

#[test]
fn underscores_and_periods_pass_and_what_an_application_would_misread_does_not() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/")
            .with("x_under_score", "1")
            .with("x.period", "2")
            .with("x-fine", "3")
            .with("x!odd", "4")
            .with("x~odd'", "5");
        assert_eq!(http.connect(&gateway).ask(&ask).status, 200, "{http:?}");
        let seen = origin.last();
        assert_eq!(
            (
                seen.field("x_under_score"),
                seen.field("x.period"),
                seen.field("x-fine")
            ),
            ("1", "2", "3")
        );
        assert!(!seen.has("x!odd") && !seen.has("x~odd'"), "{}", seen.head);
    }
}

#[test]
fn what_becomes_of_odd_names_is_chosen_and_told() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    for (lines, is_refused, is_passed) in [
        ("", false, false),
        ("unusual_fields = \"drop\"", false, false),
        ("unusual_fields = \"refuse\"", true, false),
        ("unusual_fields = \"pass\"", false, true),
    ] {
        shop.clone().rule(lines).apply(&gateway);
        for http in Http::BOTH {
            let before = origin.seen().len();
            let target = format!("/{http:?}?{}", lines.replace([' ', '"'], ""));
            let ask = Ask::get("shop.test", &target)
                .with("x!odd", "1")
                .with("x~odd'", "2")
                .with("x_forwarded_for", "6.6.6.6")
                .with("x!original~host", "6");
            let status = http.connect(&gateway).ask(&ask).status;
            assert_eq!(status, if is_refused { 400 } else { 200 }, "{http:?} {lines}");
            let line = access_line_of(&gateway, &target);
            assert_eq!(line["dropped_fields"], if is_passed { 2 } else { 4 }, "{line}");
            let Some(seen) = origin.seen().get(before).cloned() else {
                assert!(is_refused && line["error_info"] == "invalid_request", "{line}");
                continue;
            };
            assert_eq!(
                (seen.has("x!odd"), seen.has("x~odd'")),
                (is_passed, is_passed),
                "{}",
                seen.head
            );
            assert!(
                !seen.has("x_forwarded_for") && !seen.has("x!original~host"),
                "{}",
                seen.head
            );
        }
    }
    let plain = send(&gateway, Ask::get("shop.test", "/plain").bytes());
    assert_eq!(plain.status, 200);
    assert!(access_line_of(&gateway, "/plain").get("dropped_fields").is_none());
}

#[test]
fn two_proofs_are_one_too_many() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let ask = |target: &str| Ask::get("shop.test", target).with("authorization", "Basic YW5uOnNlY3JldA==");
        let twice = format!("/{http:?}-twice");
        let answer = browser.ask(&ask(&twice).with("authorization", "Bearer another"));
        assert_eq!(answer.status, 400, "{http:?}");
        assert_eq!(access_line_of(&gateway, &twice)["error_info"], "invalid_request");
        // The connection is as good as before.
        assert_eq!(browser.ask(&ask("/once")).status, 200, "{http:?}");
        assert_eq!(origin.last().field("authorization"), "Basic YW5uOnNlY3JldA==");
    }
    assert!(origin.seen().iter().all(|seen| seen.target() == "/once"));
}

#[test]
fn crumbs_of_a_cookie_become_one_field() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let mut frames = Frames::connect(&gateway);
    let base = Frames::get("shop.test", "/");
    let crumbs = [
        ("cookie", "a=1"),
        ("x-between", "1"),
        ("cookie", "b=2; c=3"),
        ("cookie", "d=\"4\""),
    ];
    let fields: Vec<_> = base.iter().copied().chain(crumbs).collect();
    let end = Frames::END_STREAM | Frames::END_HEADERS;
    frames.write(Frames::HEADERS, end, 1, &Frames::block(&fields)).unwrap();
    assert!(frames.read_until(Frames::HEADERS).is_some());
    assert_eq!(origin.only().field("cookie"), "a=1; b=2; c=3; d=\"4\"");
}

#[test]
fn large_cookies_pass_whole_or_in_crumbs() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let cookie = |count: usize| -> Vec<String> {
        (0..count)
            .map(|number| format!("c{number}={}", "x".repeat(62)))
            .collect()
    };
    let joined = cookie(120).join("; ");
    let answer = send(&gateway, Ask::get("shop.test", "/").with("cookie", &joined).bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(origin.last().field("cookie"), joined);
    let mut browser = Http::Two.connect(&gateway);
    let crumbed = |count| {
        cookie(count)
            .iter()
            .fold(Ask::get("shop.test", "/"), |ask, crumb| ask.with("cookie", crumb))
    };
    assert_eq!(browser.ask(&crumbed(120)).status, 200);
    assert_eq!(origin.last().field("cookie"), joined);
    // 16 KiB pass too.
    let large = cookie(240).join("; ");
    assert_eq!(
        send(&gateway, Ask::get("shop.test", "/").with("cookie", &large).bytes()).status,
        200
    );
    // More than a head may have is refused, and the connection is as good as before.
    let too_large = cookie(1100).join("; ");
    let refused = browser.try_ask(&Ask::get("shop.test", "/").with("cookie", &too_large));
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.status == 431));
    assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "shop");
}

#[test]
fn a_rule_sets_adds_and_takes_fields_in_either_direction() {
    let origin = Origin::saying(
        "HTTP/1.1 200 OK\r\nX-Set: old\r\nX-Set: older\r\nX-Default: kept\r\nX-Powered-By: age\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = Shop::of(&origin)
        .rule(
            "request_headers = { set = { X-Set = \"new\" }, default = { X-Default = \"given\", X-Other = \"given\" }, remove = [\"X-Gone\"] }\n\
             response_headers = { set = { X-Set = \"new\" }, default = { X-Default = \"given\", X-Other = \"given\" }, remove = [\"X-Powered-By\"] }",
        )
        .start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/")
            .with("x-set", "old")
            .with("x-set", "older")
            .with("x-default", "kept")
            .with("x-gone", "1");
        let answer = http.connect(&gateway).ask(&ask);
        let seen = origin.last();
        for (set, default, other) in [
            (
                answer.field("x-set"),
                answer.field("x-default"),
                answer.field("x-other"),
            ),
            (seen.field("x-set"), seen.field("x-default"), seen.field("x-other")),
        ] {
            assert_eq!((set, default, other), ("new", "kept", "given"), "{http:?}");
        }
        assert!(!answer.has("x-powered-by") && !seen.has("x-gone"));
    }
}

#[test]
fn answers_are_made_careful_by_choice_where_they_are_not_by_themselves() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nX-Frame-Options: DENY\r\nContent-Length: 0\r\n\r\n");
    let gateway = Shop::of(&origin).rule("response_headers = { secure = true }").start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        assert!(
            answer.field("strict-transport-security").starts_with("max-age="),
            "{http:?}"
        );
        assert_eq!(answer.field("x-content-type-options"), "nosniff");
        assert_eq!(
            answer.field("x-frame-options"),
            "DENY",
            "the application's own word stays"
        );
        assert!(answer.has("referrer-policy"));
    }
}

#[test]
fn nothing_is_compressed_that_was_not() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let answer = http
            .connect(&gateway)
            .ask(&Ask::get("shop.test", "/").with("accept-encoding", "gzip, br"));
        assert!(!answer.has("content-encoding") && answer.text() == "hello", "{http:?}");
    }
}

#[test]
fn the_field_names_of_an_answer_keep_to_one_way_of_writing() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nx-lower-case: 1\r\nContent-Length: 0\r\n\r\n");
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    // Any case is right: what counts is that no field is there twice in two cases.
    let answer = read(&mut stream);
    assert_eq!(answer.fields("x-lower-case").len(), 1);
    assert_eq!(answer.fields("content-length").len(), 1);
    assert_eq!(
        answer.fields("date").len(),
        1,
        "a date is added once where the target has none"
    );
}
