//! What the gateway answers by itself: the status, the page, and the word for it in the access log.

use std::fs;
use std::io::Write as _;

use crate::rig::{
    Ask, Http, Http2, Origin, Shop, access_line, access_line_of, patiently, read, read_head, send, try_read,
};
use crate::support::{self, Gateway, raw};

/// A target that refuses connections.
fn refusing() -> String {
    format!("\"{}\"", support::refusing())
}

#[test]
fn an_empty_pool_is_502_and_the_page_says_nothing_of_the_inside() {
    let gateway = Shop::with_targets(&[]).start();
    for http in Http::BOTH {
        let target = format!("/{http:?}");
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", &target));
        assert_eq!(answer.status, 502, "{http:?}");
        assert_eq!(answer.field("content-type"), "text/html; charset=utf-8");
        assert_eq!(answer.field("cache-control"), "no-store");
        let line = access_line_of(&gateway, &target);
        assert_eq!(
            (&line["error_info"], &line["http_status"]),
            (&"no_target".into(), &502.into()),
            "{line}"
        );
        let trace = line["transaction_id"].as_str().unwrap();
        assert!(
            answer.text().contains(trace),
            "the page names its reference: {}",
            answer.text()
        );
        assert!(
            !answer.text().contains("127.0.0.1") && !answer.text().contains("<script"),
            "{}",
            answer.text()
        );
    }
}

#[test]
fn a_target_that_cannot_be_reached_is_502() {
    let gateway = Shop::with_targets(&[refusing()]).start();
    let answer = send(&gateway, Ask::get("shop.test", "/first").bytes());
    assert_eq!(answer.status, 502);
    assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    let line = access_line_of(&gateway, "/first");
    let error = line["error_info"].as_str().unwrap();
    assert!(["connect_failed", "no_healthy_target"].contains(&error), "{line}");
    // Once the probes have said so, nobody tries.
    let mut count = 0;
    patiently("the only target is known to be unhealthy", || {
        count += 1;
        let target = format!("/later-{count}");
        assert_eq!(send(&gateway, Ask::get("shop.test", &target).bytes()).status, 502);
        access_line_of(&gateway, &target)["error_info"] == "no_healthy_target"
    });
}

#[test]
fn a_target_that_answers_no_http_or_nothing_is_502() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        match exchange.target().as_str() {
            "/nothing" => {}
            "/half" => exchange.send("HTTP/1.1 200 OK\r\nContent-"),
            "/garbage" => exchange.send("\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n"),
            "/no-number" => exchange.send("HTTP/1.1 OK fine\r\n\r\n"),
            "/two-lengths" => exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"),
            "/length-and-chunks" => exchange.send(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            ),
            "/folded" => exchange.send("HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 0\r\n\r\n"),
            "/nul" => exchange.send("HTTP/1.1 200 OK\r\nX-A: b\0c\r\nContent-Length: 0\r\n\r\n"),
            "/huge" => {
                exchange.send("HTTP/1.1 200 OK\r\n");
                for _ in 0..2000 {
                    exchange.send(format!("X-A: {}\r\n", "a".repeat(1000)));
                }
                exchange.send("\r\n");
            }
            "/switched" => {
                exchange.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
            }
            other => panic!("{other}"),
        }
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        for (path, expected) in [
            ("/nothing", "upstream_closed"),
            ("/half", "upstream_closed"),
            ("/garbage", "upstream_invalid"),
            ("/no-number", "upstream_invalid"),
            ("/two-lengths", "upstream_invalid"),
            ("/length-and-chunks", "upstream_invalid"),
            ("/folded", "upstream_invalid"),
            ("/nul", "upstream_invalid"),
            ("/huge", "upstream_invalid"),
            ("/switched", "upstream_invalid"),
        ] {
            let ask = Ask::post("shop.test", path, "body").with("x-run", http.name());
            let answer = http.connect(&gateway).ask(&ask);
            assert_eq!(answer.status, 502, "{http:?} {path}");
            let line = access_line(&gateway, |line| {
                line["original_request_uri_with_args"] == path && line["http_version"] == http.name()
            });
            assert_eq!(line["error_info"], expected, "{path}: {line}");
            assert_eq!(line["server_routed"], origin.address.to_string(), "{path}");
        }
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_made_to_look_whole() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        match exchange.target().as_str() {
            "/length" => exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"),
            "/chunks" => exchange.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n"),
            _ => {
                exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
                exchange.reset();
            }
        }
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        for path in ["/length", "/chunks", "/reset"] {
            let told = http.connect(&gateway).try_ask(&Ask::get("shop.test", path));
            assert!(told.is_err(), "{http:?} {path}: {told:?}");
            let line = access_line(&gateway, |line| {
                line["original_request_uri_with_args"] == path && line["http_version"] == http.name()
            });
            assert_eq!(
                (&line["http_status"], &line["error_info"]),
                (&200.into(), &"upstream_closed".into()),
                "{line}"
            );
        }
    }
}

#[test]
fn a_body_that_is_larger_than_the_rule_allows_is_413() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).rule("max_body = 1000").start();
    for http in Http::BOTH {
        let answer = http
            .connect(&gateway)
            .ask(&Ask::post("shop.test", "/fits", vec![b'x'; 1000]));
        assert_eq!(answer.status, 200, "{http:?}");
        let before = origin.seen().len();
        let answer = http
            .connect(&gateway)
            .ask(&Ask::post("shop.test", "/large", vec![b'x'; 1001]));
        assert_eq!(answer.status, 413, "{http:?}");
        assert_eq!(origin.seen().len(), before, "its length said enough");
        // One that does not say how long it is.
        let chunked = Ask::post("shop.test", "/chunked", vec![b'x'; 1001]).with_trailer("x-end", "1");
        let answer = http.connect(&gateway).ask(&chunked);
        assert_eq!(answer.status, 413, "{http:?}");
        assert!(origin.seen().iter().skip(before).all(|seen| !seen.is_whole), "{http:?}");
    }
    assert_eq!(access_line_of(&gateway, "/large")["error_info"], "body_too_large");
}

#[test]
fn a_head_that_is_too_large_is_431() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let long = "a".repeat(70_000);
    let answer = send(&gateway, Ask::get("shop.test", "/").with("x-long", &long).bytes());
    assert_eq!(answer.status, 431);
    let mut many = Ask::get("shop.test", "/");
    for number in 0..200 {
        many = many.with(&format!("x-{number}"), "a");
    }
    let answer = send(&gateway, many.bytes());
    assert!([400, 431].contains(&answer.status), "{answer:?}");
    assert_eq!(
        access_line(&gateway, |line| line["http_status"] == 431)["error_info"],
        "head_too_large"
    );
    let mut browser = Http::Two.connect(&gateway);
    let refused = browser.ask(&Ask::get("shop.test", "/").with("x-long", &long));
    assert_eq!(
        (refused.status, refused.field("content-type")),
        (431, "text/html; charset=utf-8")
    );
    let line = access_line(&gateway, |line| line["http_version"] == "HTTP/2.0");
    assert_eq!(
        (&line["http_status"], &line["error_info"]),
        (&431.into(), &"head_too_large".into())
    );
    // What nobody wants to read at all is refused on its stream.
    let huge = browser.try_ask(&Ask::get("shop.test", "/").with("x-long", &long.repeat(2)));
    assert!(huge.is_err() || huge.is_ok_and(|answer| answer.status == 431));
    assert!(origin.seen().is_empty());
    assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "shop");
}

#[test]
fn a_version_that_is_not_spoken_is_refused() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for (version, expected) in [
        ("HTTP/2.0", 505),
        ("HTTP/1.2", 505),
        ("HTTP/3.0", 505),
        ("HTTP/11.1", 400),
        ("http/1.1", 400),
    ] {
        let answer = send(&gateway, format!("GET / {version}\r\nHost: shop.test\r\n\r\n"));
        assert!([400, expected].contains(&answer.status), "{version}: {answer:?}");
    }
    // HTTP/0.9 has no version at all.
    let mut stream = raw::tls(&gateway);
    stream.write_all(b"GET /\r\n\r\n").unwrap();
    let answer = try_read(&mut stream, false);
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 400));
    assert!(origin.seen().is_empty());
}

#[test]
fn whoever_speaks_http_to_a_port_of_tls_is_told_so_on_a_page() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    let asked = |bytes: &[u8]| {
        let mut stream = crate::rig::browser::plain(gateway.address);
        stream.write_all(bytes).unwrap();
        let answer = read(&mut stream);
        assert!(raw::is_closed(&mut stream));
        answer
    };
    let mut stream = crate::rig::browser::plain(gateway.address);
    stream.write_all(&Ask::new("HEAD", "shop.test", "/").bytes()).unwrap();
    assert_eq!(read_head(&mut stream).status, 400);
    assert!(raw::is_closed(&mut stream), "no body comes behind it");
    for ask in [
        Ask::get("shop.test", "/get?x=1"),
        Ask::post("shop.test", "/post", "a body"),
        Ask::get("no.test", "/other"),
    ] {
        let answer = asked(&ask.bytes());
        assert_eq!((answer.status, answer.field("connection")), (400, "close"), "{ask:?}");
        assert!(answer.field("content-type").starts_with("text/html"), "{ask:?}");
        assert!(answer.text().contains("https://"), "{}", answer.text());
        let line = access_line_of(&gateway, &ask.target);
        assert_eq!(line["error_info"], "http_to_https_port", "{line}");
        assert_eq!(
            (&line["original_host"], &line["ssl_enabled"]),
            (&ask.host.as_str().into(), &"off".into())
        );
    }
    let answer = asked(b"hello there\r\n\r\n");
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("https://"), "{}", answer.text());
    // The page may be one's own.
    fs::write(gateway.folder().join("page"), "<p>own").unwrap();
    shop.table("[error_pages]\n400 = \"page\"").apply(&gateway);
    assert_eq!(asked(&Ask::get("shop.test", "/").bytes()).text(), "<p>own");
    assert!(origin.seen().is_empty());
}

#[test]
fn a_client_that_goes_away_is_told_to_nobody_and_leaves_nothing_running() {
    let (gone, closed) = std::sync::mpsc::sync_channel(1);
    let origin = Origin::new(move |exchange| {
        exchange.body();
        exchange.wait_until_closed();
        gone.send(()).unwrap();
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/gone").bytes()).unwrap();
    origin.wait_for(1);
    drop(stream);
    closed
        .recv_timeout(crate::rig::PATIENCE)
        .expect("the target's connection is closed too");
    let line = access_line_of(&gateway, "/gone");
    assert_eq!(
        (&line["http_status"], &line["error_info"]),
        (&499.into(), &"client_closed".into()),
        "{line}"
    );
}

/// The shop's pages: `all-CODE` for all rules, `shop-CODE` for its own.
fn write_pages(gateway_files: &Gateway) {
    for name in ["all-404", "all-502", "shop-502"] {
        fs::write(gateway_files.folder().join(name), format!("<p>{name}")).unwrap();
    }
}

#[test]
fn pages_of_ones_own_stand_in_for_errors_of_the_gateway_and_of_nobody_else() {
    let origin = Origin::saying("HTTP/1.1 502 Mine\r\nContent-Length: 10\r\nX-Mine: 1\r\n\r\nthe origin");
    let shop = Shop::of(&origin).plain();
    let gateway = shop.start();
    write_pages(&gateway);
    let with_pages = |shop: Shop| {
        shop.rule("error_pages = { 502 = \"shop-502\" }").table(&format!(
            "[error_pages]\n404 = \"all-404\"\n502 = \"all-502\"\n\
             [pool.none]\ntargets = []\n[rule.bare]\nhosts = [\"bare.test\"]\npriority = 30\npool = \"none\"\n\
             [pool.refusing]\ntargets = [{}]",
            refusing()
        ))
    };
    with_pages(shop.clone().path(&["/dead"], "pool = \"refusing\"")).apply(&gateway);
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let own = browser.ask(&Ask::get("shop.test", "/dead"));
        assert_eq!((own.status, own.text()), (502, "<p>shop-502"), "{http:?}");
        let general = browser.ask(&Ask::get("bare.test", "/"));
        assert_eq!((general.status, general.text()), (502, "<p>all-502"), "{http:?}");
        let passed = browser.ask(&Ask::get("shop.test", "/"));
        assert_eq!(
            (passed.status, passed.text(), passed.field("x-mine")),
            (502, "the origin", "1"),
            "{http:?}"
        );
        let head = browser.ask(&Ask::new("HEAD", "shop.test", "/dead"));
        assert_eq!(
            (head.status, head.field("content-length"), head.body.len()),
            (502, "11", 0),
            "{http:?}"
        );
    }
    let mut stream = crate::rig::browser::plain(crate::rig::second_address(&gateway));
    stream.write_all(&Ask::get("unknown.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "<p>all-404");
    // They are in memory: the files may go, and a reload reads them again.
    fs::remove_file(gateway.folder().join("all-502")).unwrap();
    assert_eq!(send(&gateway, Ask::get("bare.test", "/").bytes()).text(), "<p>all-502");
    fs::write(gateway.folder().join("all-502"), "<p>another").unwrap();
    with_pages(shop.path(&["/dead"], "pool = \"refusing\"")).apply(&gateway);
    assert_eq!(send(&gateway, Ask::get("bare.test", "/").bytes()).text(), "<p>another");
}

#[test]
fn pages_of_a_listener_stand_behind_those_of_a_rule_and_before_the_general_ones() {
    let shop = Shop::of(&Origin::named("shop")).plain();
    let gateway = shop.start();
    for name in ["all-404", "all-502", "all-400", "public-404", "public-502", "rule-502"] {
        fs::write(gateway.folder().join(name), format!("<p>{name}")).unwrap();
    }
    shop.setup(|setup| {
        setup.listener("session_gateway = false\nerror_pages = { 404 = \"public-404\", 502 = \"public-502\" }\n")
    })
    .table(
        "[error_pages]\n400 = \"all-400\"\n404 = \"all-404\"\n502 = \"all-502\"\n[pool.none]\ntargets = []\n\
             [rule.bare]\nhosts = [\"bare.test\"]\npriority = 30\npool = \"none\"\n\
             [rule.own]\nhosts = [\"own.test\"]\npriority = 40\npool = \"none\"\nerror_pages = { 502 = \"rule-502\" }",
    )
    .apply(&gateway);
    let unsafe_path = Ask::get("own.test", "/..%2f");
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (ask, expected) in [
            (Ask::get("unknown.test", "/"), "<p>public-404"),
            (Ask::get("bare.test", "/"), "<p>public-502"),
            (Ask::get("own.test", "/"), "<p>rule-502"),
            (unsafe_path.clone(), "<p>all-400"),
        ] {
            assert_eq!(browser.ask(&ask).text(), expected, "{http:?} {ask:?}");
        }
    }
    let mut stream = crate::rig::browser::plain(crate::rig::second_address(&gateway));
    for (host, expected) in [
        ("unknown.test", "<p>all-404"),
        ("bare.test", "<p>all-502"),
        ("own.test", "<p>rule-502"),
    ] {
        stream.write_all(&Ask::get(host, "/").bytes()).unwrap();
        assert_eq!(read(&mut stream).text(), expected, "{host}");
    }
}

#[test]
fn each_error_has_its_status_and_may_have_its_page() {
    let silent = Origin::new(|exchange| {
        exchange.body();
        exchange.wait_until_closed();
    });
    let shop = Shop::of(&silent).backend("request_timeout = \"1 s\"");
    let gateway = shop.start();
    let statuses = [400, 401, 403, 404, 405, 408, 413, 429, 500, 502, 503, 504];
    let mut pages = String::new();
    for status in statuses {
        fs::write(gateway.folder().join(format!("page-{status}")), format!("<p>{status}")).unwrap();
        pages.push_str(&format!("{status} = \"page-{status}\"\n"));
    }
    let circle = |name: &str, from: &str, to: &str| {
        format!(
            "[[rewrite.{name}.rule]]\nwhen = [{{ variable = \"var_uri_path\", matches = \"^{from}$\" }}]\npath = \"{to}\"\n\
             reevaluate = true\n"
        )
    };
    let rule = |name: &str, priority: u16, lines: &str| {
        format!(
            "[rule.{name}]\nhosts = [\"{name}.test\"]\npriority = {priority}\npool = \"shop\"\nbackend = \"shop\"\n{lines}\n"
        )
    };
    shop.setup(|setup| setup.listener("session_gateway = false\n"))
        .rule("max_body = 1000")
        .path(&["/round"], "pool = \"shop\"\nrewrite = \"there\"")
        .path(&["/again"], "pool = \"shop\"\nrewrite = \"back\"")
        .path(&["/none"], "pool = \"none\"")
        .table("[limits]\nbody_timeout = \"1 s\"\n[pool.none]\ntargets = []")
        .table(&(circle("there", "/round", "/again") + &circle("back", "/again", "/round")))
        .table(&rule("denied", 20, "deny = [\"127.0.0.0/8\"]"))
        .table("[rule.often]\nhosts = [\"often.test\"]\npriority = 30\npool = \"none\"\nrate = { per_second = 1, burst = 1 }")
        .table(&rule("asked", 40, "authentication = { pool = \"none\", path = \"/\" }"))
        .table(&format!("[error_pages]\n{pages}"))
        .apply(&gateway);
    let get = |host: &str, path: &str| Ask::get(host, path);
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (ask, status, word) in [
            (get("shop.test", "/..%2f"), 400, "unsafe_path"),
            (get("denied.test", "/"), 403, "address_denied"),
            (get("nobody.test", "/"), 404, "no_rule"),
            (Ask::new("TRACE", "shop.test", "/"), 405, "invalid_method"),
            (Ask::post("shop.test", "/", vec![b'x'; 1001]), 413, "body_too_large"),
            (get("shop.test", "/round"), 500, "rewrite_loop"),
            (get("shop.test", "/none"), 502, "no_target"),
            (get("asked.test", "/"), 503, "authentication_unavailable"),
            (get("shop.test", "/"), 504, "upstream_timeout"),
        ] {
            let answer = browser.ask(&ask);
            assert_eq!(
                (answer.status, answer.text()),
                (status, format!("<p>{status}").as_str()),
                "{http:?} {ask:?}"
            );
            assert!(answer.field("content-type").starts_with("text/html"), "{answer:?}");
            let line = access_line(&gateway, |line| {
                line["http_version"] == http.name() && line["http_status"] == status
            });
            assert_eq!(line["error_info"], word, "{line}");
        }
        let answers: Vec<_> = (0..3).map(|_| browser.try_ask(&get("often.test", "/"))).collect();
        let often = answers.iter().flatten().find(|answer| answer.status == 429);
        assert_eq!(often.map(|answer| answer.text()), Some("<p>429"), "{http:?}");
    }
    // A body that does not come: over either version it is not waited for.
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /half HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nhalf")
        .unwrap();
    let answer = read(&mut stream);
    assert_eq!((answer.status, answer.text()), (408, "<p>408"));
    let mut connection = Http2::connect(&gateway);
    let mut half = connection.begin(&Ask::new("POST", "shop.test", "/half"), false);
    half.send(b"half");
    let (answer, mut stream) = half.answered();
    assert_eq!((answer.status, stream.receive(6)), (408, b"<p>408".to_vec()));
    drop(stream);
    let line = access_line(&gateway, |line| {
        line["http_version"] == "HTTP/2.0" && line["http_status"] == 408
    });
    assert_eq!(line["error_info"], "client_timeout");
    assert_eq!(
        connection.ask(&get("shop.test", "/none")).unwrap().status,
        502,
        "the connection goes on"
    );
}

#[test]
fn over_http_2_too_a_client_that_goes_away_is_499() {
    let (gone, closed) = std::sync::mpsc::sync_channel(1);
    let origin = Origin::new(move |exchange| {
        exchange.wait_until_closed();
        gone.send(()).unwrap();
    });
    let gateway = Shop::of(&origin).start();
    let mut connection = Http2::connect(&gateway);
    drop(connection.begin(&Ask::get("shop.test", "/gone"), true));
    closed
        .recv_timeout(crate::rig::PATIENCE)
        .expect("the target's connection is closed");
    let line = access_line_of(&gateway, "/gone");
    assert_eq!(
        (&line["http_status"], &line["error_info"]),
        (&499.into(), &"client_closed".into()),
        "{line}"
    );
}

#[test]
fn an_error_leaves_the_connection_as_good_as_before() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .table("[pool.none]\ntargets = []\n[rule.bare]\nhosts = [\"bare.test\"]\npriority = 30\npool = \"none\"")
        .start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::new("HEAD", "bare.test", "/").bytes()).unwrap();
    assert_eq!(read_head(&mut stream).status, 502);
    stream
        .write_all(&Ask::post("bare.test", "/", "a body that nobody wants").bytes())
        .unwrap();
    assert_eq!(read(&mut stream).status, 502);
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "shop");
}
