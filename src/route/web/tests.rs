//! Tables against trying every rule in turn.

use proptest::prelude::*;

use super::*;
use crate::config::ListenerProtocol;
use crate::config::web::{Forward, Guard, HeaderPolicy, PathRule, UnusualFields};

fn listener(session_gateway: bool) -> Listener {
    Listener {
        protocol: ListenerProtocol::Https,
        session_gateway,
        bind: Vec::new(),
        balancers: Vec::new(),
        certificates: Vec::new(),
        udp: false,
        host_redirects: BTreeMap::new(),
        external_port: None,
        error_pages: BTreeMap::new(),
    }
}

fn action(pool: &str) -> Action {
    Action::Forward(Forward {
        pool: pool.to_owned(),
        backend: None,
        rewrite: None,
    })
}

fn rule(priority: u16, listeners: &[&str], hosts: &[&str], paths: &[&[&str]]) -> Rule {
    let path_rule = |(number, patterns): (usize, &&[&str])| PathRule {
        patterns: patterns.iter().map(|text| text.parse().unwrap()).collect(),
        action: action(&format!("path {number}")),
    };
    Rule {
        listeners: listeners.iter().map(|name| (*name).to_owned()).collect(),
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        priority,
        action: action("default"),
        paths: paths.iter().enumerate().map(path_rule).collect(),
        guard: Guard::default(),
        error_pages: BTreeMap::new(),
        request_headers: HeaderPolicy::default(),
        response_headers: HeaderPolicy::default(),
        max_body: None,
        compress: false,
        unusual_fields: UnusualFields::default(),
    }
}

fn named(rules: Vec<Rule>) -> BTreeMap<String, Rule> {
    let rules = rules.into_iter();
    rules.map(|rule| (format!("rule-{}", rule.priority), rule)).collect()
}

fn table(rules: Vec<Rule>) -> Table {
    let listeners = [("main", false), ("gate", true), ("bare", false)];
    let listeners = listeners.map(|(name, session)| (name.to_owned(), listener(session)));
    Table::compile(&listeners.into(), &named(rules))
}

fn name_of<'a>(table: &'a Table, listener: &str, host: &str) -> Option<&'a str> {
    table.site(listener, host).map(|site| site.name.as_str())
}

fn owner(table: &Table, host: &str, path: &str) -> String {
    match table.owner("gate", host, path) {
        Owner::Site(site) => site.name.clone(),
        Owner::SessionGateway => "session gateway".to_owned(),
        Owner::Nobody => "nobody".to_owned(),
    }
}

#[test]
fn the_lowest_number_holds_not_the_most_exact_host() {
    let table = table(vec![
        rule(10, &["main"], &["*.contoso.com"], &[]),
        rule(20, &["main"], &["shop.contoso.com", "contoso.com"], &[]),
        rule(30, &["main"], &["shop?.fabrikam.com", "*.a*.x"], &[]),
        rule(40, &["main"], &["shop1.fabrikam.com"], &[]),
        rule(50, &["bare"], &[], &[]),
        rule(60, &["bare"], &["never.contoso.com"], &[]),
        rule(70, &["main"], &["*shop.test"], &[]),
    ]);
    for (listener, host, found) in [
        ("main", "shop.contoso.com", Some("rule-10")),
        ("main", "a.b.contoso.com", Some("rule-10")),
        ("main", "contoso.com", Some("rule-20")),
        ("main", "xcontoso.com", None),
        ("main", "shop1.fabrikam.com", Some("rule-30")),
        ("main", "shop12.fabrikam.com", None),
        ("main", "b.ab.x", Some("rule-30")),
        ("main", "shop.test", Some("rule-70")),
        ("main", "my-shop.test", Some("rule-70")),
        ("main", "2001:db8::1", None),
        ("bare", "never.contoso.com", Some("rule-50")),
        ("bare", "2001:db8::1", Some("rule-50")),
        ("bare", "", Some("rule-50")),
        ("gate", "contoso.com", None),
        ("unknown", "contoso.com", None),
    ] {
        assert_eq!(name_of(&table, listener, host), found, "{listener} {host}");
    }
    assert_eq!(name_of(&table, "main", &"a".repeat(300)), None);
    assert!(table.sites().iter().enumerate().all(|(at, site)| site.index == at));
    assert_eq!(table.sites()[2].name, "rule-30");
}

#[test]
fn the_first_path_that_is_listed_holds_in_either_case() {
    let paths: &[&[&str]] = &[&["/images/*", "/img*"], &["/images/big/*"], &["/exact/"], &["/{id}"]];
    let table = table(vec![rule(1, &["main"], &[], paths)]);
    let site = table.site("main", "any").unwrap();
    for (path, pool, literal, number) in [
        ("/Images/big/a.png", "path 0", "/images/", Some(0)),
        ("/IMG", "path 0", "/img", Some(0)),
        ("/images", "default", "", None),
        ("/Exact/", "path 2", "/exact/", Some(2)),
        ("/exact/more", "default", "", None),
        ("/%7Bid%7D", "path 3", "/%7Bid%7D", Some(3)),
        ("/", "default", "", None),
    ] {
        let expected = Matched {
            action: &action(pool),
            literal,
            path: number,
        };
        assert_eq!(site.act(path), expected, "{path}");
    }
}

#[test]
fn the_session_gateway_keeps_its_paths_from_rules_that_do_not_name_the_host() {
    let with_any = table(vec![
        rule(1, &["gate"], &["shop.test"], &[]),
        rule(2, &["gate"], &["*.apps.test"], &[]),
        rule(3, &["gate"], &[], &[]),
    ]);
    for path in [
        "/favicon.ico",
        "/broker/xml",
        "/ice/tunnel",
        "/r/t/d/x",
        "/d/x/",
        "/portal",
        "/.well-known/portcullis/mark",
    ] {
        assert_eq!(owner(&with_any, "shop.test", path), "rule-1", "{path}");
        assert_eq!(owner(&with_any, "a.apps.test", path), "session gateway", "{path}");
        assert_eq!(owner(&with_any, "other.test", path), "session gateway", "{path}");
    }
    for path in [
        "/",
        "/index.html",
        "/ice",
        "/Broker/xml",
        "/broker//xml",
        "/portals",
        "//",
    ] {
        assert_eq!(owner(&with_any, "a.apps.test", path), "rule-2", "{path}");
        assert_eq!(owner(&with_any, "other.test", path), "rule-3", "{path}");
    }
    let without = table(vec![rule(1, &["gate"], &["shop.test"], &[])]);
    assert_eq!(owner(&without, "other.test", "/anything"), "session gateway");
    assert!(matches!(without.owner("main", "shop.test", "/"), Owner::Nobody));
    let shadowed = table(vec![
        rule(1, &["gate"], &[], &[]),
        rule(2, &["gate"], &["shop.test"], &[]),
    ]);
    assert_eq!(owner(&shadowed, "shop.test", "/portal"), "session gateway");
}

#[test]
fn a_rule_on_many_listeners_is_compiled_once() {
    let listeners: BTreeMap<_, _> = (0..100).map(|n| (format!("l{n}"), listener(false))).collect();
    let names: Vec<&str> = listeners.keys().map(String::as_str).collect();
    let mut rules: Vec<_> = (0..50)
        .map(|n| rule(n + 101, &names, &[&format!("h{n}.test")], &[]))
        .collect();
    rules.extend((0..100).map(|n| rule(n + 1, &[&format!("l{n}")], &["h7.test"], &[])));
    let table = Table::compile(&listeners, &named(rules));
    assert_eq!(name_of(&table, "l41", "h7.test"), Some("rule-42"));
    assert_eq!(name_of(&table, "l41", "h8.test"), Some("rule-109"));
    let halls: std::collections::HashSet<_> = table
        .entrances
        .values()
        .flat_map(|entrance| &entrance.halls)
        .map(Arc::as_ptr)
        .collect();
    assert_eq!(halls.len(), 101);
}

/// The definition: every rule in the order of priorities.
fn naive<'a>(rules: &'a BTreeMap<String, Rule>, listener: &str, host: &str) -> Option<(&'a str, &'a Rule)> {
    let holds = |rule: &Rule| {
        let for_host = rule.hosts.is_empty() || rule.hosts.iter().any(|pattern| pattern.matches(host));
        for_host && rule.listeners.iter().any(|name| name == listener)
    };
    let for_it = rules.iter().filter(|(_, rule)| holds(rule));
    for_it
        .min_by_key(|(_, rule)| rule.priority)
        .map(|(name, rule)| (name.as_str(), rule))
}

fn naive_path(rule: &Rule, path: &str) -> Option<usize> {
    let matches = |path_rule: &PathRule| path_rule.patterns.iter().any(|pattern| pattern.matches(path));
    rule.paths.iter().position(matches)
}

prop_compose! {
    fn any_rule()(
        few in proptest::collection::vec(0..12_usize, 1..4),
        is_everywhere in any::<bool>(),
        hosts in proptest::collection::vec(any_host(), 0..3),
        paths in proptest::collection::vec(proptest::collection::vec("/[aAb/]{0,3}[*]?", 1..3), 0..5),
    ) -> Rule {
        let listeners: Vec<String> = if is_everywhere {
            (0..12).filter(|n| !few[1..].contains(n)).map(|n| format!("l{n}")).collect()
        } else {
            few.iter().map(|n| format!("l{n}")).collect()
        };
        let paths: Vec<Vec<&str>> = paths.iter().map(|path| path.iter().map(String::as_str).collect()).collect();
        let paths: Vec<&[&str]> = paths.iter().map(Vec::as_slice).collect();
        let mut made = rule(1, &[], &[], &paths);
        made.listeners = listeners;
        made.hosts = hosts;
        made
    }
}

fn any_host() -> impl Strategy<Value = HostPattern> {
    let texts = prop_oneof![
        "(a|b|ab)\\.(a|b)(\\.t)?",
        "[*]\\.(a|b)(\\.t)?",
        "[*](a|b)",
        "(a|b)?[?]b?\\.(a|b)",
        "a[*]\\.(a|b)",
        "[*]\\.a[*]\\.t",
        "[*]",
    ];
    texts.prop_filter_map("a pattern", |text| text.parse().ok())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_finds_what_trying_all_rules_finds(
        mut rules in proptest::collection::vec(any_rule(), 0..24),
        asked in proptest::collection::vec((0..13_usize, "[ab]{1,2}(\\.[ab]{1,2}){0,2}(\\.t)?", "/[aAb/]{0,5}"), 24),
    ) {
        for (rule, priority) in rules.iter_mut().zip(1..) {
            rule.priority = priority * 7 % 25;
        }
        let listeners: BTreeMap<_, _> = (0..12).map(|n| (format!("l{n}"), listener(n % 2 == 0))).collect();
        let rules = named(rules);
        let table = Table::compile(&listeners, &rules);
        for (listener, host, path) in &asked {
            let listener = format!("l{listener}");
            let expected = naive(&rules, &listener, host);
            let found = table.site(&listener, host);
            prop_assert_eq!(found.map(|site| site.name.as_str()), expected.map(|(name, _)| name), "{} {}", listener, host);
            let (Some(site), Some((_, rule))) = (found, expected) else { continue };
            let matched = site.act(path);
            prop_assert_eq!(matched.path, naive_path(rule, path), "{}", path);
            prop_assert!(path.to_ascii_lowercase().starts_with(&matched.literal.to_ascii_lowercase()));
            let is_named = rule.hosts.iter().any(|pattern| pattern.is_exact() && pattern.as_str() == host);
            let has_session_gateway = listeners.get(&listener).is_some_and(|listener| listener.session_gateway);
            let kept = matches!(table.owner(&listener, host, "/portal"), Owner::SessionGateway);
            prop_assert_eq!(kept, has_session_gateway && !is_named);
        }
    }
}
