//! What is published for clients of the web: what it takes, and what is found wrong with it.

use std::fmt::Write as _;
use std::time::Duration;

use super::*;
use crate::config::ListenerProtocol;
use crate::config::web::{self, Action, BackendHost, Forward, RedirectTo};

/// A node without session gateway, with listeners with and without TLS, a pool, and no rule.
const NODE: &str = r#"
[node]
name = "gw-1"
[listener.public]
bind = ["0.0.0.0:443"]
certificates = ["main"]
session_gateway = false
[listener.plain]
protocol = "http"
bind = ["0.0.0.0:80"]
[certificate.main]
chain = "/etc/portcullis/main.crt"
key = "/etc/portcullis/main.key"
[pool.shop]
targets = ["10.0.0.5:8080"]
"#;

fn with(rest: &str) -> String {
    format!("{NODE}{rest}")
}

fn web_of(rest: &str) -> web::Web {
    checked(&with(rest)).unwrap_or_else(|faults| panic!("{faults}")).0.web
}

#[test]
fn every_fault_of_what_is_published_is_named_at_once() {
    let world = World::of_reference().file("/etc/portcullis/long.html", vec![b'x'; 1_000_001], 0o644);
    let text = include_str!("published.toml");
    let faults = parse(text, Path::new("gw.toml"), &world).unwrap_err();
    golden("published.txt", &faults);
}

#[test]
fn ten_lines_publish_an_application() {
    let text = format!(
        "{SMALL}{}",
        r#"
        [pool.shop]
        targets = ["10.0.0.5:8080", { address = "Shop-2.inside.example", weight = 2, max_requests = 100 }, "[fd00::5]:80"]
        [rule.shop]
        hosts = ["Shop.example.com."]
        priority = 10
        pool = "shop"
        "#
    );
    let (config, _) = checked(&text).unwrap_or_else(|faults| panic!("{faults}"));
    let rule = &config.web.rules["shop"];
    assert_eq!(rule.listeners, ["public"]);
    assert_eq!(rule.hosts, ["shop.example.com".parse().unwrap()]);
    let forward = Forward {
        pool: "shop".to_owned(),
        backend: None,
        rewrite: None,
    };
    assert_eq!(rule.action, Action::Forward(forward));
    let targets = &config.web.pools["shop"].targets;
    let hosts: Vec<_> = targets
        .iter()
        .map(|target| (target.host.as_str(), target.port))
        .collect();
    assert_eq!(
        hosts,
        [
            ("10.0.0.5", Some(8080)),
            ("shop-2.inside.example", None),
            ("fd00::5", Some(80))
        ]
    );
    assert_eq!((targets[1].weight, targets[1].max_requests), (2, Some(100)));
}

#[test]
fn everything_comes_through_as_it_is_written() {
    let web = web_of(
        r#"
        [rule.shop]
        listeners = ["public"]
        hosts = ["*.example.com"]
        priority = 1
        pool = "shop"
        backend = "shop"
        rewrite = "shop"
        deny = ["10.0.0.0/8"]
        rate = { per_second = 5 }
        authentication = { pool = "shop", path = "/verify?x", copy = ["X-User"], exempt = ["/public/*"] }
        max_body = 10
        [rule.shop.response_headers]
        secure = true
        set = { X-Frame-Options = "DENY" }
        remove = ["Referrer-Policy"]
        [rule.shop.error_pages]
        502 = "502.html"
        [[rule.shop.path]]
        paths = ["/old/*"]
        redirect = { url = "https://www.example.org/archive", status = 308, query = false }
        [rule.plain]
        listeners = ["plain"]
        priority = 2
        redirect = { listener = "public" }
        [backend.shop]
        protocol = "https"
        version = "2"
        host = "shop.inside.example:8443"
        path_override = "/v2/"
        affinity = {}
        probe = "shop"
        tls = { name = "shop.inside.example", accept_any_certificate = true }
        [probe.shop]
        interval = "5 s"
        status = ["200", "300-399"]
        [[rewrite.shop.rule]]
        when = [{ variable = "var_uri_path", matches = "^/(.*)$", ignore_case = true }]
        query = "path={var_uri_path_1}"
        response_headers = { Server = "" }
        [forwarded]
        mode = "replace"
        port = false
        trusted = ["10.0.0.1"]
        [access_log]
        to = "access.log"
        fields = ["client_ip"]
        [affinity]
        key = { file = "/etc/portcullis/affinity.key" }
        [resolver]
        servers = ["10.0.0.53"]
        "#
        .replace("502.html", "/etc/portcullis/502.html")
        .as_str(),
    );
    let rule = &web.rules["shop"];
    assert_eq!(
        rule.guard.rate,
        Some(web::Rate {
            per_second: 5,
            burst: 5
        })
    );
    let service = rule.guard.authentication.as_ref().unwrap();
    assert_eq!(
        (service.path.as_str(), service.copy[0].as_str()),
        ("/verify?x", "x-user")
    );
    assert_eq!(rule.max_body, Some(10));
    let fields: Vec<_> = rule
        .response_headers
        .default
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(fields, ["strict-transport-security", "x-content-type-options"]);
    assert_eq!(rule.error_pages.len(), 1);
    let Action::Redirect(redirect) = &rule.paths[0].action else {
        panic!("{rule:?}");
    };
    assert_eq!(redirect.status, 308);
    assert!(redirect.keep_path && !redirect.keep_query);
    let plain = Action::Redirect(web::Redirect {
        status: http::StatusCode::MOVED_PERMANENTLY,
        to: RedirectTo::Listener("public".to_owned()),
        keep_path: true,
        keep_query: true,
    });
    assert_eq!(web.rules["plain"].action, plain);
    let backend = &web.backends["shop"];
    assert_eq!((backend.port, backend.version), (443, web::BackendVersion::Http2));
    assert_eq!(backend.host, BackendHost::Name("shop.inside.example:8443".to_owned()));
    let tls = backend.tls.as_ref().unwrap();
    assert!(tls.verify_name && !tls.verify_chain);
    assert_eq!(backend.affinity.as_ref().unwrap().same_site, web::SameSite::Lax);
    let probe = &web.probes["shop"];
    assert_eq!(
        (probe.timeout, probe.status.as_slice()),
        (Duration::from_secs(5), [200..=200, 300..=399].as_slice())
    );
    let rewriting = &web.rewrites["shop"].rules[0];
    assert_eq!((rewriting.name.as_str(), rewriting.conditions.len()), ("1", 1));
    assert_eq!(web.forwarded.mode, web::ForwardedMode::Replace);
    assert_eq!(web.access_log.to, Some(web::AccessLogTo::File("access.log".into())));
    assert_eq!(web.access_log.fields, ["client_ip"]);
    assert!(web.affinity_key.is_some());
    assert_eq!(web.resolvers, ["10.0.0.53:53".parse().unwrap()]);
}

#[test]
fn a_listener_without_tls_is_for_what_is_published_only() {
    let (config, warnings) = checked(&with("[rule.a]\npriority = 1\npool = \"shop\"\n")).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let plain = &config.listeners["plain"];
    assert_eq!((plain.protocol, plain.session_gateway), (ListenerProtocol::Http, false));
    assert!(config.listeners["public"].protocol == ListenerProtocol::Https);
    let without_tls = NODE
        .split("[certificate.main]")
        .next()
        .unwrap()
        .replace("certificates = [\"main\"]\n", "");
    let without_tls = without_tls.replace("session_gateway = false", "protocol = \"http\"");
    let (config, warnings) = checked(&format!(
        "{without_tls}[rule.a]\npriority = 1\nredirect = {{ url = \"https://a\" }}\n"
    ))
    .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(config.certificates.is_empty() && warnings.is_empty(), "{warnings}");
}

#[test]
fn listeners_without_http_have_rules_of_their_own() {
    let (config, warnings) = checked(&with(
        r#"
        [rule.web]
        priority = 1
        pool = "shop"
        [listener.sql]
        protocol = "tcp"
        bind = ["0.0.0.0:5432"]
        [rule.sql]
        listeners = ["sql"]
        priority = 2
        pool = "sql"
        [pool.sql]
        targets = ["10.0.0.8:5432"]
        [listener.mail]
        protocol = "tls"
        certificates = ["main"]
        bind = ["0.0.0.0:993"]
        [listener.pass]
        protocol = "tls"
        tls = "passthrough"
        bind = ["0.0.0.0:994"]
        [rule.mail]
        listeners = ["mail", "pass"]
        hosts = ["mail.example.com"]
        priority = 3
        pool = "mail"
        backend = "mail"
        rate = { per_second = 5 }
        [pool.mail]
        targets = ["10.0.0.9"]
        [backend.mail]
        protocol = "tls"
        port = 993
        probe = "mail"
        proxy_protocol = true
        [probe.mail]
        interval = "5 s"
        "#,
    ))
    .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
    let protocols = ["sql", "mail", "pass"].map(|name| config.listeners[name].protocol);
    assert_eq!(
        protocols,
        [
            ListenerProtocol::Tcp,
            ListenerProtocol::Tls,
            ListenerProtocol::Passthrough
        ]
    );
    assert!(!config.listeners["mail"].session_gateway);
    let web = &config.web;
    assert_eq!(web.rules["web"].listeners, ["plain", "public"], "all of those of HTTP");
    let Action::Forward(forward) = &web.rules["sql"].action else {
        panic!("{:?}", web.rules["sql"]);
    };
    let usual = &web.backends[forward.backend.as_deref().unwrap()];
    assert_eq!(*usual, web::Backend::bytes());
    let mail = &web.backends["mail"];
    assert_eq!((mail.port, mail.idle_timeout), (993, Duration::from_secs(3600)));
    assert!(mail.tls.is_some() && mail.proxy_protocol && mail.version == web::BackendVersion::Bytes);
    assert_eq!(web.rules["mail"].guard.rate.map(|rate| rate.burst), Some(5));
}

#[test]
fn without_a_listener_of_http_a_rule_says_which_one_it_means() {
    let text = NODE
        .split("[certificate.main]")
        .next()
        .unwrap()
        .replace("certificates = [\"main\"]\n", "")
        .replace("session_gateway = false", "protocol = \"tcp\"");
    let text = text.replace("protocol = \"http\"", "protocol = \"tcp\"");
    let told = faults_of(&format!(
        "{text}[rule.a]\npriority = 1\npool = \"a\"\n[pool.a]\ntargets = [\"10.0.0.5:1\"]\n"
    ));
    assert_eq!(
        told,
        ["rule.a.listeners: is missing. Write listeners = [\"NAME\"]: without, a rule is for those of HTTP."]
    );
}

#[test]
fn a_rule_that_never_holds_is_told_of() {
    let rules = |one: &str, other: &str| {
        faults_of(&with(&format!(
            "[rule.one]\npriority = 1\npool = \"shop\"\n{one}[rule.other]\npriority = 2\npool = \"shop\"\n{other}"
        )))
    };
    assert_eq!(
        rules(
            "hosts = [\"*.example.com\"]\n",
            "hosts = [\"a.example.com\", \"?.b.example.com\"]\n"
        ),
        [
            "rule.other: never holds: rule.one comes first for each of its hosts, wherever it listens. \
          Give it a lower number than those, or remove it."
        ]
    );
    assert_eq!(
        rules("hosts = [\"*.example.com\"]\n", "hosts = [\"example.com\"]\n"),
        [""; 0]
    );
    assert_eq!(rules("listeners = [\"plain\"]\n", ""), [""; 0]);
    assert_eq!(rules("", "listeners = [\"plain\"]\n").len(), 1);
}

#[test]
fn rules_and_the_session_gateway_share_a_port_only_knowingly() {
    let text = |hosts: &str| {
        format!(
            "{}[pool.shop]\ntargets = [\"a\"]\n[rule.shop]\npriority = 1\npool = \"shop\"\n{hosts}\
             [tunnel]\nexternal_url = \"https://GW-1.example.com:8443\"\n[blast]\nexternal_url = \"https://10.0.0.1\"\n",
            with_ann("")
        )
    };
    let told = |hosts: &str| {
        let faults = faults_of(&text(hosts));
        faults
            .into_iter()
            .filter(|words| words.starts_with("rule."))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told("hosts = [\"gw-1.example.com\", \"10.0.0.1\"]\n"),
        [
            "rule.shop.hosts[0]: takes \"gw-1.example.com\" from the session gateway, to which tunnel.external_url sends its \
             clients. Use another host, or another listener, or set session_gateway = false in the listener.",
            "rule.shop.hosts[1]: takes \"10.0.0.1\" from the session gateway, to which blast.external_url sends its \
             clients. Use another host, or another listener, or set session_gateway = false in the listener.",
        ]
    );
    let stays = "rule.shop: gets no request for /favicon.ico, /broker/xml, /ice/*, /r/*, /d/* and /portal on listener.public: \
                 those are the session gateway's there. Name its hosts, or set session_gateway = false in the listener, if it is to \
                 have them.";
    assert_eq!(told(""), [stays]);
    assert_eq!(told("hosts = [\"*.example.com\"]\n"), [stays]);
    assert_eq!(told("hosts = [\"shop.example.com\"]\n"), [""; 0]);
}

/// The first circle that is found, or nothing.
fn circle(rules: &str) -> String {
    let faults = faults_of(&with(rules));
    let told = faults.into_iter().filter(|words| words.contains("without end"));
    told.map(|words| words.split(':').next().unwrap().to_owned() + " " + words.split('"').nth(1).unwrap())
        .collect::<Vec<_>>()
        .join(", ")
}

#[test]
fn redirects_that_come_back_are_found() {
    let on_both = "[rule.a]\npriority = 1\nredirect = { listener = \"public\" }\n";
    assert_eq!(circle(on_both), "rule.a.redirect https://any-host.example/");
    let on_plain = "[rule.a]\nlisteners = [\"plain\"]\npriority = 1\nredirect = { listener = \"public\" }\n";
    assert_eq!(circle(on_plain), "");
    let elsewhere = "[rule.a]\npriority = 1\nredirect = { url = \"https://www.example.com/a\", path = false }\n";
    assert_eq!(circle(elsewhere), "");
    let and_back = format!(
        "{}[rule.b]\nhosts = [\"a.b\"]\npriority = 2\nredirect = {{ url = \"http://a.b\" }}\n",
        on_plain.replace("priority", "hosts = [\"a.b\"]\npriority")
    );
    assert_eq!(
        circle(&and_back),
        "rule.a.redirect http://a.b/, rule.b.redirect https://a.b/"
    );
    let root = "[rule.a]\nhosts = [\"a.b\"]\npriority = 1\nredirect = { url = \"https://a.b/home\", path = false }\n";
    assert_eq!(circle(root), "rule.a.redirect https://a.b/home");
    let home = format!("{root}[[rule.a.path]]\npaths = [\"/home\"]\npool = \"shop\"\n");
    assert_eq!(circle(&home), "");
    let grows = "[rule.a]\nhosts = [\"a.b\"]\npriority = 1\nredirect = { url = \"https://a.b/x\" }\n";
    assert_eq!(circle(grows), "rule.a.redirect https://a.b/x/");
    let deep = format!("{grows}[[rule.a.path]]\npaths = [\"/x/x/x/*\"]\npool = \"shop\"\n");
    assert_eq!(circle(&deep), "");
    let path = "[rule.a]\nhosts = [\"x\"]\npriority = 1\npool = \"shop\"\n[[rule.a.path]]\npaths = [\"/a/*\"]\nredirect = { url = \"https://x/a\" }\n";
    assert_eq!(circle(path), "rule.a.path[0].redirect https://x/a/a/");
}

#[test]
fn rewriting_that_comes_back_is_found() {
    let told = |paths: &str, rewriting: &str| {
        circle(&format!(
            "[rule.a]\nhosts = [\"a\"]\npriority = 1\npool = \"shop\"\n[[rule.a.path]]\npaths = [{paths}]\npool = \"shop\"\n\
             rewrite = \"a\"\n[[rewrite.a.rule]]\nreevaluate = true\n{rewriting}"
        ))
    };
    assert_eq!(told("\"/a/*\"", "path = \"/a/b\"\n"), "rule.a.path[0].rewrite /a/b");
    assert_eq!(
        told("\"/a/*\"", "path = \"/A/b{var_uri_path}\"\n"),
        "rule.a.path[0].rewrite /A/b"
    );
    assert_eq!(told("\"/a/*\"", "path = \"/b\"\n"), "");
    assert_eq!(told("\"/a/c\", \"/a/*\"", "path = \"/b{var_uri_path}\"\n"), "");
    assert_eq!(told("\"/a/b\"", "path = \"/a/b{var_uri_path}\"\n"), "");
    let sometimes = "path = \"/a/b\"\nwhen = [{ variable = \"var_uri_path\", matches = \"^/a/c\" }]\n";
    assert_eq!(told("\"/a/*\"", sometimes), "");
    let always = "path = \"/a/b\"\nwhen = [{ variable = \"var_uri_path\", matches = \".*\" }]\n";
    assert_eq!(told("\"/a/*\"", always), "rule.a.path[0].rewrite /a/b");
    let nowhere = "[rule.a]\nhosts = [\"a\"]\npriority = 1\npool = \"shop\"\nrewrite = \"a\"\n[[rewrite.a.rule]]\npath = \"/b\"\n\
                   reevaluate = true\n";
    assert!(
        faults_of(&with(nowhere)).iter().any(|words| {
            words.starts_with("rule.a.rewrite: chooses among the paths again, but this rule has none.")
        })
    );
}

#[test]
fn what_went_for_a_fault_causes_no_further_ones_here_either() {
    let text = with(
        r#"
        [rule.a]
        hosts = ["a"]
        priority = 1
        pool = 5
        [rule.b]
        hosts = ["b"]
        priority = 0
        pool = "b"
        redirect = { url = 5 }
        rewrite = "b"
        [[rule.b.path]]
        paths = [5]
        pool = "b"
        [pool.b]
        targets = [5]
        [backend.b]
        probe = 5
        [probe.b]
        path = 5
        [[rewrite.b.rule]]
        path = 5
        "#,
    );
    let codes: Vec<_> = checked(&text)
        .unwrap_err()
        .iter()
        .map(|fault| format!("{} {}", fault.path, fault.problem.code()))
        .collect();
    assert_eq!(
        codes,
        [
            "rule.a.pool wrong_type",
            "rule.b.priority out_of_range",
            "rule.b.pool not_with",
            "rule.b.redirect.url wrong_type",
            "rule.b.rewrite not_with",
            "rule.b.path[0].paths[0] wrong_type",
            "pool.b.targets[0] wrong_type",
            "backend.b.probe wrong_type",
            "probe.b.path wrong_type",
            "rewrite.b.rule[0].path wrong_type",
        ]
    );
}

#[test]
fn thousands_of_everything_are_checked() {
    let mut text = NODE.replace("targets = [\"10.0.0.5:8080\"]", "");
    let targets: Vec<_> = (0..5_000)
        .map(|n| format!("\"10.1.{}.{}:8080\"", n / 250, n % 250))
        .collect();
    writeln!(text, "targets = [{}]", targets.join(", ")).unwrap();
    for n in 0..1_000 {
        writeln!(
            text,
            "[listener.l{n}]\nprotocol = \"http\"\nbind = [\"10.2.0.1:{}\"]",
            1_000 + n
        )
        .unwrap();
        writeln!(
            text,
            "[rule.r{n}]\nhosts = [\"r{n}.example.com\"]\npriority = {}\npool = \"shop\"",
            n + 1
        )
        .unwrap();
    }
    text.push_str("[rule.paths]\npriority = 20000\npool = \"shop\"\n");
    for n in 0..10_000 {
        writeln!(text, "[[rule.paths.path]]\npaths = [\"/p{n}/*\"]\npool = \"shop\"").unwrap();
    }
    let (config, warnings) = checked(&text).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(config.web.rules["paths"].paths.len(), 10_000);
}
