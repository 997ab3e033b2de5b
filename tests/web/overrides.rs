//! What the target is asked for: host and path of its own.

use crate::rig::{Ask, Http, Origin, Shop, access_line_of};

#[test]
fn the_host_is_the_clients_the_targets_or_a_name() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    let own = origin.address.to_string();
    for (number, (line, expected)) in [
        ("host = \"client\"", "Shop.test:8443"),
        ("host = \"target\"", own.as_str()),
        ("host = \"inside.example\"", "inside.example"),
        ("host = \"inside.example:8080\"", "inside.example:8080"),
    ]
    .into_iter()
    .enumerate()
    {
        shop.clone().backend(line).apply(&gateway);
        for http in Http::BOTH {
            let target = format!("/{number}-{http:?}");
            http.connect(&gateway).ask(&Ask::get("Shop.test:8443", &target));
            let seen = origin.last();
            // A name has no case; a port that is not the scheme's own belongs to it.
            assert!(
                seen.field("host").eq_ignore_ascii_case(expected),
                "{line}: {}",
                seen.head
            );
            assert_eq!(seen.field("x-original-host"), "Shop.test:8443", "{line}");
            let logged = access_line_of(&gateway, &target);
            assert!(
                logged["host"].as_str().unwrap().eq_ignore_ascii_case(expected),
                "{logged}"
            );
        }
    }
}

/// The table of the behaviour sheet, section 2.
#[test]
fn a_path_of_its_own_stands_in_for_what_the_rule_matched() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .hosts("hosts = [\"basic.test\"]\npriority = 10")
        .backend("path_override = \"/override/\"")
        .table(
            "[rule.paths]\nhosts = [\"paths.test\"]\npriority = 20\npool = \"shop\"\nbackend = \"shop\"\n\
             [[rule.paths.path]]\npaths = [\"/pathrule/home*\"]\npool = \"shop\"\nbackend = \"shop\"\n\
             [[rule.paths.path]]\npaths = [\"/pathrule/\"]\npool = \"shop\"\nbackend = \"shop\"\n\
             [[rule.paths.path]]\npaths = [\"/pathrule*\"]\npool = \"shop\"\nbackend = \"shop\"\n",
        )
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (host, path, expected) in [
            ("basic.test", "/home/", "/override/home/"),
            ("basic.test", "/home/secondhome/", "/override/home/secondhome/"),
            ("basic.test", "/", "/override/"),
            ("basic.test", "/home?x=/y", "/override/home?x=/y"),
            ("paths.test", "/pathrule/", "/override/"),
            ("paths.test", "/pathrule/home/secondhome/", "/override/secondhome/"),
            ("paths.test", "/PathRule/HOME/x", "/override/x"),
            ("paths.test", "/pathrule/other/", "/override/other/"),
            ("paths.test", "/home/", "/override/home/"),
            ("paths.test", "/elsewhere?q", "/override/elsewhere?q"),
        ] {
            assert_eq!(browser.ask(&Ask::get(host, path)).status, 200, "{http:?} {path}");
            let seen = origin.last();
            assert_eq!(seen.target(), expected, "{http:?} {host}{path}");
            assert_eq!(seen.field("x-original-url"), path);
        }
    }
}
