//! Redirects: where clients are sent, and with how much of what they asked.

use std::io::Write as _;

use crate::rig::{Answer, Ask, Http, Origin, Shop, access_line_of, browser, read, read_head, second_address};
use crate::support::Gateway;
use crate::support::agent::free_port;

fn over_plain(gateway: &Gateway, ask: &Ask) -> Answer {
    let mut stream = browser::plain(second_address(gateway));
    stream.write_all(&ask.bytes()).unwrap();
    if ask.method == "HEAD" {
        read_head(&mut stream)
    } else {
        read(&mut stream)
    }
}

/// A rule `up` on the listener without TLS that does only that. The other listener has a port that is known beforehand.
fn up(redirect: &str) -> Shop {
    let public = format!("127.0.0.1:{}", free_port());
    Shop::of(&Origin::named("shop"))
        .setup(|setup| setup.bind(&[&public]))
        .rule("listeners = [\"public\"]")
        .table(&format!(
            "[rule.up]\nlisteners = [\"web\"]\npriority = 20\nredirect = {redirect}"
        ))
        .plain()
}

#[test]
fn to_a_listener_its_scheme_and_port_are_taken_and_the_host_stays() {
    let gateway = up("{ listener = \"public\" }").start();
    let port = gateway.address.port();
    for (host, expected) in [
        ("shop.test", "shop.test"),
        ("shop.test:80", "shop.test"),
        ("[2001:db8::1]:80", "[2001:db8::1]"),
    ] {
        let answer = over_plain(&gateway, &Ask::get(host, "/a/b?c=d&e"));
        assert_eq!(answer.status, 301);
        assert_eq!(answer.field("location"), format!("https://{expected}:{port}/a/b?c=d&e"));
    }
    let line = access_line_of(&gateway, "/a/b?c=d&e");
    assert_eq!((&line["http_status"], &line["rule_name"]), (&301.into(), &"up".into()));
    assert!(
        line.get("server_routed").is_none() && line.get("error_info").is_none(),
        "{line}"
    );
}

#[test]
fn where_ports_are_mapped_clients_are_sent_to_the_outer_one() {
    let shop = Shop::of(&Origin::named("shop"))
        .setup(|setup| setup.listener("external_port = 10443\n"))
        .rule("listeners = [\"public\"]")
        .table("[rule.up]\nlisteners = [\"web\"]\npriority = 20\nredirect = { listener = \"public\" }")
        .plain();
    let gateway = shop.start();
    let answer = over_plain(&gateway, &Ask::get("shop.test:8080", "/a"));
    assert_eq!(answer.field("location"), "https://shop.test:10443/a");
}

#[test]
fn path_and_query_go_with_it_by_choice() {
    let url = "url = \"https://www.example.com/base\"";
    for (redirect, expected) in [
        (format!("{{ {url} }}"), "https://www.example.com/base/a/b?c=d"),
        (
            format!("{{ {url}, query = false }}"),
            "https://www.example.com/base/a/b",
        ),
        (format!("{{ {url}, path = false }}"), "https://www.example.com/base?c=d"),
        (
            format!("{{ {url}, path = false, query = false }}"),
            "https://www.example.com/base",
        ),
        (
            "{ url = \"https://www.example.com\", path = false, query = false }".to_owned(),
            "https://www.example.com/",
        ),
        (
            "{ url = \"https://www.example.com\" }".to_owned(),
            "https://www.example.com/a/b?c=d",
        ),
    ] {
        let gateway = up(&redirect).start();
        let answer = over_plain(&gateway, &Ask::get("shop.test", "/a/b?c=d"));
        let location = answer.field("location");
        let is_expected = location == expected || location == expected.trim_end_matches('/');
        assert!(is_expected, "{redirect}: {location}");
    }
    let gateway = up("{ listener = \"public\", path = false, query = false }").start();
    let answer = over_plain(&gateway, &Ask::get("shop.test", "/a/b?c=d"));
    let port = gateway.address.port();
    assert_eq!(answer.field("location"), format!("https://shop.test:{port}/"));
}

#[test]
fn every_status_of_a_redirect_can_be_had() {
    for status in [301, 302, 303, 307, 308] {
        let gateway = up(&format!("{{ listener = \"public\", status = {status} }}")).start();
        for ask in [
            Ask::get("shop.test", "/"),
            Ask::post("shop.test", "/", "a body that nobody reads"),
            Ask::new("HEAD", "shop.test", "/"),
        ] {
            let answer = over_plain(&gateway, &ask);
            assert_eq!(answer.status, status, "{ask:?}");
            assert!(answer.has("location"));
        }
    }
}

#[test]
fn a_path_of_a_rule_may_send_elsewhere() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .path(
            &["/old/*"],
            "redirect = { url = \"https://new.example.com/\", status = 302, path = false }",
        )
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let answer = browser.ask(&Ask::get("shop.test", "/OLD/page?x=1"));
        assert_eq!(
            (answer.status, answer.field("location")),
            (302, "https://new.example.com/?x=1"),
            "{http:?}"
        );
        assert_eq!(browser.ask(&Ask::get("shop.test", "/old")).text(), "shop");
    }
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn over_either_version_a_redirect_has_its_status_and_as_much_of_the_url_as_it_is_to() {
    let origin = Origin::named("shop");
    let mut shop = Shop::of(&origin);
    let flags = [(true, true), (true, false), (false, true), (false, false), (true, true)];
    let statuses = [301, 302, 303, 307, 308];
    for (status, (path, query)) in statuses.into_iter().zip(flags) {
        let to = format!("url = \"https://www.example.com/base\", status = {status}, path = {path}, query = {query}");
        shop = shop.path(&[&format!("/{status}*")], &format!("redirect = {{ {to} }}"));
    }
    let gateway = shop.start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (status, (path, query)) in statuses.into_iter().zip(flags) {
            let target = format!("/{status}/a%2Fb?c=d&e");
            let expected = format!(
                "https://www.example.com/base{}{}",
                if path {
                    format!("/{status}/a%2Fb")
                } else {
                    String::new()
                },
                if query { "?c=d&e" } else { "" }
            );
            for ask in [
                Ask::get("shop.test", &target),
                Ask::post("shop.test", &target, "a body that nobody reads"),
                Ask::new("HEAD", "shop.test", &target),
            ] {
                let answer = browser.ask(&ask);
                assert_eq!(
                    (answer.status, answer.field("location")),
                    (status, expected.as_str()),
                    "{http:?} {ask:?}"
                );
                assert!(answer.body.is_empty());
            }
        }
    }
    assert!(origin.seen().is_empty());
}

#[test]
fn a_rule_that_sends_elsewhere_may_keep_some_of_its_paths() {
    let origin = Origin::named("shop");
    let gateway = Shop::with_targets(&[])
        .table(&format!(
            "[pool.kept]\ntargets = [{}]\n[rule.moved]\nhosts = [\"moved.test\"]\npriority = 20\n\
             redirect = {{ url = \"https://new.example.com\" }}\n\
             [[rule.moved.path]]\npaths = [\"/.well-known/*\"]\npool = \"kept\"",
            origin.quoted()
        ))
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let kept = browser.ask(&Ask::get("moved.test", "/.well-known/acme-challenge/x"));
        assert_eq!((kept.status, kept.text()), (200, "shop"), "{http:?}");
        let moved = browser.ask(&Ask::get("moved.test", "/a"));
        assert_eq!(
            (moved.status, moved.field("location")),
            (301, "https://new.example.com/a"),
            "{http:?}"
        );
    }
}

#[test]
fn nothing_that_a_client_writes_breaks_out_of_the_location() {
    let gateway = up("{ listener = \"public\" }").start();
    let port = gateway.address.port();
    let answer = over_plain(&gateway, &Ask::get("shop.test", "//evil.example/%2e%2e/x"));
    // What would be another host if it were taken for a reference by itself.
    assert_eq!(answer.field("location"), format!("https://shop.test:{port}/x"));
    for path in ["/a%0d%0aSet-Cookie:x", "/a\\b"] {
        let answer = over_plain(&gateway, &Ask::get("shop.test", path));
        assert_eq!(answer.status, 400, "{path}");
    }
}
