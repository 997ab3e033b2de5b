//! Which rule a request belongs to: listener, host, priority; and what is left to the session gateway.

use std::io::Write as _;
use std::net::TcpStream;

use crate::rig::{Ask, Http, Http2, Origin, Shop, access_line_of, browser, read, second_address, send};
use crate::smuggling::is_refused;
use crate::support::authority::Authority;
use crate::support::raw;

#[test]
fn a_host_is_the_same_with_port_in_any_case_and_with_a_dot_at_its_end() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for host in [
            "shop.test",
            "SHOP.Test",
            "shop.test:8443",
            "shop.test.",
            "Shop.test.:443",
        ] {
            let answer = browser.ask(&Ask::get(host, "/"));
            assert_eq!((answer.status, answer.text()), (200, "shop"), "{http:?} {host}");
            let original = origin.last();
            assert!(
                original.field("x-original-host").eq_ignore_ascii_case(host),
                "{}",
                original.head
            );
        }
    }
}

#[test]
fn what_is_published_under_no_rule_is_404() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).plain().start();
    let mut stream = browser::plain(second_address(&gateway));
    stream.write_all(&Ask::get("other.test", "/nobody").bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.status, 404);
    assert_eq!(access_line_of(&gateway, "/nobody")["error_info"], "no_rule");
    // The connection is as good as before.
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "shop");
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("other.test", "/nobody-either"));
        assert_eq!(answer.status, 404, "{http:?}");
    }
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_star_spans_labels_and_a_question_mark_is_one_character() {
    let origin = Origin::named("wild");
    let gateway = Shop::of(&origin)
        .hosts("hosts = [\"*.contoso.test\", \"shop?.test\"]\npriority = 10")
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (host, is_ours) in [
            ("a.contoso.test", true),
            ("a.b.contoso.test", true),
            ("A.B.CONTOSO.test", true),
            ("contoso.test", false),
            ("acontoso.test", false),
            ("shop1.test", true),
            ("shop.test", false),
            ("shop12.test", false),
        ] {
            let answer = browser.ask(&Ask::get(host, "/no-such-page"));
            assert_eq!(answer.status == 200, is_ours, "{http:?} {host}");
        }
    }
}

#[test]
fn the_priority_decides_and_not_how_exact_a_host_is() {
    let (wild, exact, any) = (Origin::named("wild"), Origin::named("exact"), Origin::named("any"));
    let tables = |wild_priority: u16| {
        format!(
            "[pool.exact]\ntargets = [{}]\n[rule.exact]\nhosts = [\"shop.contoso.test\"]\npriority = 20\npool = \"exact\"\n\
             [pool.any]\ntargets = [{}]\n[rule.any]\npriority = 20000\npool = \"any\"\n\
             [pool.wild]\ntargets = [{}]\n[rule.wild]\nhosts = [\"*.contoso.test\"]\npriority = {wild_priority}\npool = \"wild\"\n",
            exact.quoted(),
            any.quoted(),
            wild.quoted()
        )
    };
    let shop = Shop::of(&Origin::named("shop"));
    let gateway = shop.clone().table(&tables(15)).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let mut asked = |host: &str| browser.ask(&Ask::get(host, "/x")).text().to_owned();
        assert_eq!(asked("shop.contoso.test"), "wild", "it came first");
        assert_eq!(asked("other.contoso.test"), "wild");
        assert_eq!(asked("elsewhere.test"), "any");
    }
    shop.table(&tables(30)).apply(&gateway);
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let mut asked = |host: &str| browser.ask(&Ask::get(host, "/x")).text().to_owned();
        assert_eq!(asked("shop.contoso.test"), "exact");
        assert_eq!(asked("other.contoso.test"), "wild");
    }
}

#[test]
fn a_rule_holds_on_its_listeners_only() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).rule("listeners = [\"web\"]").plain().start();
    let mut stream = browser::plain(second_address(&gateway));
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "shop");
    for http in Http::BOTH {
        assert_eq!(
            http.connect(&gateway).ask(&Ask::get("shop.test", "/page")).status,
            404,
            "{http:?}"
        );
    }
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_host_that_is_none_or_more_than_one_is_refused() {
    let origin = Origin::named("any");
    let gateway = Shop::of(&origin).hosts("priority = 10").start();
    for lines in [
        "",
        "Host: shop.test\r\nHost: shop.test\r\n",
        "Host: shop.test\r\nHost: other.test\r\n",
        "Host: a.test, b.test\r\n",
        "Host: a b\r\n",
        "Host: a:b:c\r\n",
        "Host: shop.test:99999\r\n",
        "Host: shop.test:80x\r\n",
        "Host: user@shop.test\r\n",
        "Host: shop.test/x\r\n",
        "Host: [::1\r\n",
        "Host: ::1\r\n",
        "Host: [::1]x\r\n",
        "Host: [fe80::1%25eth0]\r\n",
        "Host: [zz::1]\r\n",
        "Host: a..b\r\n",
    ] {
        let answer = send(&gateway, format!("GET /page HTTP/1.1\r\n{lines}\r\n"));
        assert_eq!(answer.status, 400, "{lines:?}");
    }
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn over_http_2_a_host_that_is_none_or_more_than_one_is_refused() {
    let origin = Origin::named("any");
    let gateway = Shop::of(&origin).hosts("priority = 10").start();
    let get = [(":method", "GET"), (":scheme", "https"), (":path", "/page")];
    for hosts in [
        &[][..],
        &[(":authority", "")],
        &[(":authority", "a.test, b.test")],
        &[(":authority", "a b")],
        &[(":authority", "a:b:c")],
        &[(":authority", "shop.test:99999")],
        &[(":authority", "shop.test:80x")],
        &[(":authority", "user@shop.test")],
        &[(":authority", "shop.test/x")],
        &[(":authority", "[::1")],
        &[(":authority", "::1")],
        &[(":authority", "[fe80::1%25eth0]")],
        &[(":authority", "a..b")],
        &[("host", "a..b")],
        &[("host", "shop.test"), ("host", "shop.test")],
        &[("host", "shop.test"), ("host", "other.test")],
    ] {
        let (before, behind): (Vec<_>, Vec<_>) = hosts.iter().partition(|(name, _)| name.starts_with(':'));
        let fields: Vec<_> = get.into_iter().chain(before).chain(behind).collect();
        assert!(is_refused(&gateway, &fields), "{hosts:?}");
    }
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
    // A host that stands in the field alone is one (RFC 9113 section 8.3.1).
    let fields: Vec<_> = get.into_iter().chain([("host", "shop.test")]).collect();
    assert!(!is_refused(&gateway, &fields));
    assert_eq!(origin.only().field("x-original-host"), "shop.test");
}

#[test]
fn an_address_of_ipv6_is_a_host_as_a_whole() {
    let origin = Origin::named("any");
    let gateway = Shop::of(&origin).hosts("priority = 10").start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (place, host) in ["[2001:db8::1]", "[::1]:8443", "[::1]", "[::ffff:192.0.2.1]:80"]
            .into_iter()
            .enumerate()
        {
            let target = format!("/{http:?}-{place}");
            let answer = browser.ask(&Ask::get(host, &target));
            assert_eq!((answer.status, answer.text()), (200, "any"), "{http:?} {host}");
            assert_eq!(origin.last().field("x-original-host"), host);
            let line = access_line_of(&gateway, &target);
            let literal = host.split_inclusive(']').next().unwrap();
            assert!(line["original_host"].as_str().unwrap().starts_with(literal), "{line}");
        }
    }
}

#[test]
fn a_rule_may_name_an_address() {
    let (six, four) = (Origin::named("six"), Origin::named("four"));
    let gateway = Shop::of(&six)
        .setup(|setup| setup.listener("session_gateway = false\n"))
        .hosts("hosts = [\"[2001:DB8:0::1]\"]\npriority = 10")
        .table(&format!(
            "[pool.four]\ntargets = [{}]\n[rule.four]\nhosts = [\"192.0.2.1\"]\npriority = 20\npool = \"four\"",
            four.quoted()
        ))
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (host, expected) in [
            ("[2001:db8::1]", Some("six")),
            ("[2001:db8:0:0::1]:8443", Some("six")),
            ("192.0.2.1:443", Some("four")),
            ("[2001:db8::2]", None),
        ] {
            let answer = browser.ask(&Ask::get(host, "/"));
            match expected {
                Some(name) => assert_eq!((answer.status, answer.text()), (200, name), "{http:?} {host}"),
                None => assert_eq!(answer.status, 404, "{http:?} {host}"),
            }
        }
    }
}

#[test]
fn the_authority_of_the_request_line_is_the_host() {
    let (a, b) = (Origin::named("a"), Origin::named("b"));
    let gateway = Shop::of(&a)
        .hosts("hosts = [\"a.test\"]\npriority = 10")
        .table(&format!(
            "[pool.b]\ntargets = [{}]\n[rule.b]\nhosts = [\"b.test\"]\npriority = 20\npool = \"b\"",
            b.quoted()
        ))
        .start();
    let answer = send(&gateway, "GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((answer.status, answer.text()), (200, "a"));
    let seen = a.only();
    assert_eq!((seen.target(), seen.field("host")), ("/x?y", "a.test"));
    // Two hosts: whoever looked at the other one was fooled.
    let answer = send(&gateway, "GET http://a.test/x HTTP/1.1\r\nHost: b.test\r\n\r\n");
    assert_eq!(answer.status, 400);
    assert_eq!((a.seen().len(), b.seen().len()), (1, 0));
}

#[test]
fn a_client_of_http_1_0_needs_no_host() {
    let origin = Origin::named("any");
    let gateway = Shop::of(&origin).hosts("priority = 10").start();
    let answer = send(&gateway, "GET /old HTTP/1.0\r\n\r\n");
    assert_eq!((answer.status, answer.text()), (200, "any"));
}

#[test]
fn a_host_that_another_certificate_is_for_is_misdirected() {
    let authority = Authority::default();
    let (own, other) = (Origin::named("own"), Origin::named("other"));
    let gateway = Shop::of(&own)
        .hosts("hosts = [\"gw.test\"]\npriority = 10")
        .table(&format!(
            "[listener.second]\nbind = [\"127.0.0.2:0\"]\ncertificates = [\"own\", \"other\"]\n{}\
             [pool.other]\ntargets = [{}]\n[rule.other]\nhosts = [\"other.test\"]\npriority = 20\npool = \"other\"",
            authority.table("other", "other.test"),
            other.quoted()
        ))
        .start();
    let second = second_address(&gateway);
    // The handshake was for localhost: its certificate is for gw.test too, and not for other.test.
    let mut stream = raw::tls_over(TcpStream::connect(second).unwrap(), &gateway.chain());
    stream.write_all(&Ask::get("gw.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "own");
    stream
        .write_all(&Ask::get("other.test", "/misdirected").bytes())
        .unwrap();
    assert_eq!(read(&mut stream).status, 421);
    assert_eq!(access_line_of(&gateway, "/misdirected")["error_info"], "misdirected");
    // Browsers ask so over HTTP/2, where one connection serves them for all hosts of an address.
    let mut connection = Http2::connect_to(&gateway, second);
    let refused = connection.ask(&Ask::get("other.test", "/coalesced")).unwrap();
    assert_eq!(refused.status, 421);
    assert_eq!(access_line_of(&gateway, "/coalesced")["error_info"], "misdirected");
    assert_eq!(connection.ask(&Ask::get("gw.test", "/")).unwrap().text(), "own");
    assert!(other.seen().is_empty());
    // Where that certificate is not served, nothing tells the two apart.
    assert_eq!(send(&gateway, Ask::get("other.test", "/").bytes()).text(), "other");
}

#[test]
fn a_rule_for_a_host_takes_all_of_its_paths_and_a_rule_for_any_host_leaves_the_session_gateways() {
    let origin = Origin::named("site");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for path in [
            "/favicon.ico",
            "/portal",
            "/broker/xml",
            "/r/token",
            "/d/desk",
            "/ice/tunnel",
            "/",
        ] {
            let answer = browser.ask(&Ask::get("shop.test", path));
            assert_eq!((answer.status, answer.text()), (200, "site"), "{http:?} {path}");
        }
        let health = browser.ask(&Ask::get("localhost", "/favicon.ico"));
        assert_eq!(
            (health.status, health.field("content-type")),
            (200, "image/x-icon"),
            "{http:?}"
        );
    }
    shop.hosts("priority = 10").apply(&gateway);
    let before = origin.seen().len();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let health = browser.ask(&Ask::get("shop.test", "/favicon.ico"));
        assert_eq!(
            (health.status, health.field("content-type")),
            (200, "image/x-icon"),
            "{http:?}"
        );
        for path in ["/portal", "/broker/xml", "/r/token", "/d/desk"] {
            // Some of these end their connection.
            let answer = http.connect(&gateway).ask(&Ask::get("shop.test", path));
            assert_ne!(answer.body, b"site", "{http:?} {path}");
        }
        for path in ["/", "/page", "/broker", "/favicon.ico/x", "/robots.txt"] {
            assert_eq!(
                browser.ask(&Ask::get("shop.test", path)).text(),
                "site",
                "{http:?} {path}"
            );
        }
    }
    let reached: Vec<_> = origin.seen()[before..]
        .iter()
        .map(|seen| seen.target().to_owned())
        .collect();
    assert_eq!(
        reached,
        ["/", "/page", "/broker", "/favicon.ico/x", "/robots.txt"].repeat(2)
    );
}

#[test]
fn signing_in_goes_on_where_an_application_has_any_host() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin).hosts("priority = 10").start();
    let user = raw::sign_in(&gateway, "ann");
    let (_stream, answer) = raw::open_tunnel(&gateway, &user.token);
    assert_eq!(answer.status, 200);
    assert!(origin.seen().is_empty());
}
