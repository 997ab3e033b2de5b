//! Rewrite sets: conditions, captures, variables, and what becomes of paths, queries and fields.

use std::io::Write as _;
use std::net::TcpStream;

use crate::rig::{Ask, Exchange, Http, Origin, Shop, access_line_of, read};
use crate::support::raw;

/// A shop whose requests and answers go through these rules.
fn with(origin: &Origin, rules: &str) -> Shop {
    Shop::of(origin).rule("rewrite = \"set\"").table(rules)
}

#[test]
fn fields_are_set_from_what_is_known_and_an_empty_one_goes() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nX-Inside: 10.0.0.7\r\nX-Name: shop\r\nContent-Length: 0\r\n\r\n");
    let gateway = with(
        &origin,
        r#"
        [[rewrite.set.rule]]
        request_headers = { X-Copy = "{http_req_User-Agent}", X-Client = "{var_client_ip}", X-Was = "{var_http_method} {var_request_uri}", X-Gone = "", X-Text = "{{plain}}" }
        response_headers = { X-Inside = "", X-Echo = "{http_resp_X-Name}/{http_req_User-Agent}", X-Status = "{var_http_status}" }
        "#,
    )
    .start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/a?b=c")
            .with("user-agent", "probe/1")
            .with("x-gone", "1")
            .with("x-copy", "old");
        let answer = http.connect(&gateway).ask(&ask);
        let seen = origin.last();
        assert_eq!(
            (seen.field("x-copy"), seen.field("x-client")),
            ("probe/1", "127.0.0.1"),
            "{http:?}"
        );
        assert_eq!((seen.field("x-was"), seen.field("x-text")), ("GET /a?b=c", "{plain}"));
        assert!(!seen.has("x-gone"));
        assert!(!answer.has("x-inside"));
        assert_eq!(
            (answer.field("x-echo"), answer.field("x-status")),
            ("shop/probe/1", "200")
        );
    }
}

#[test]
fn conditions_choose_and_their_groups_are_used() {
    let origin = Origin::named("shop");
    let gateway = with(
        &origin,
        r#"
        [[rewrite.set.rule]]
        name = "articles"
        when = [{ variable = "var_uri_path", matches = "^/Articles/([0-9]+)/([a-z-]+)$", ignore_case = true }]
        path = "/article.php"
        query = "id={var_uri_path_1}&title={var_uri_path_2}"
        [[rewrite.set.rule]]
        name = "mobile"
        when = [{ variable = "http_req_User-Agent", matches = "mobile", ignore_case = true }, { variable = "http_req_X-Desktop", negate = true }]
        request_headers = { X-Device = "mobile" }
        [[rewrite.set.rule]]
        name = "language"
        when = [{ variable = "var_cookie_lang", matches = "^(de|fr)$" }]
        request_headers = { Accept-Language = "{var_cookie_lang_1}" }
        "#,
    )
    .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let mut asked = |ask: Ask| {
            assert_eq!(browser.ask(&ask).status, 200);
            origin.last()
        };
        let seen = asked(Ask::get("shop.test", "/articles/42/hello-world?old=1"));
        assert_eq!(seen.target(), "/article.php?id=42&title=hello-world", "{http:?}");
        assert_eq!(seen.field("x-original-url"), "/articles/42/hello-world?old=1");
        let seen = asked(Ask::get("shop.test", "/articles/x/y?old=1"));
        assert_eq!(seen.target(), "/articles/x/y?old=1");
        let mobile = |ask: Ask| ask.with("user-agent", "A Mobile B");
        assert_eq!(asked(mobile(Ask::get("shop.test", "/"))).field("x-device"), "mobile");
        assert!(!asked(mobile(Ask::get("shop.test", "/")).with("x-desktop", "1")).has("x-device"));
        assert!(!asked(Ask::get("shop.test", "/")).has("x-device"));
        let seen = asked(Ask::get("shop.test", "/").with("cookie", "a=b; lang=de"));
        assert_eq!(seen.field("accept-language"), "de");
        assert!(!asked(Ask::get("shop.test", "/").with("cookie", "lang=en")).has("accept-language"));
    }
}

#[test]
fn every_server_variable_is_known() {
    let origin = Origin::named("shop");
    let names = [
        "add_x_forwarded_for_proxy",
        "ciphers_supported",
        "ciphers_used",
        "client_ip",
        "client_port",
        "client_tcp_rtt",
        "client_user",
        "host",
        "cookie_lang",
        "http_method",
        "http_version",
        "query_string",
        "received_bytes",
        "request_query",
        "request_scheme",
        "request_uri",
        "server_port",
        "ssl_connection_protocol",
        "ssl_enabled",
        "uri_path",
        "client_certificate_verification",
        "sent_bytes",
    ];
    let fields: Vec<_> = names
        .iter()
        .map(|name| format!("X-{} = \"<{{var_{name}}}>\"", name.replace('_', "-")))
        .collect();
    let gateway = with(
        &origin,
        &format!("[[rewrite.set.rule]]\nrequest_headers = {{ {} }}\n", fields.join(", ")),
    )
    .start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/a/b?c=d&e")
            .with("cookie", "lang=de")
            .with("authorization", "Basic YW5uOnNlY3JldA==")
            .with("x-forwarded-for", "203.0.113.9");
        assert_eq!(http.connect(&gateway).ask(&ask).status, 200);
        let seen = origin.last();
        let value = |name: &str| {
            let field = seen.field(&format!("x-{}", name.replace('_', "-")));
            field.trim_matches(['<', '>']).to_owned()
        };
        assert_eq!(value("client_ip"), "127.0.0.1", "{http:?}");
        assert_eq!(
            value("add_x_forwarded_for_proxy"),
            "203.0.113.9, 127.0.0.1",
            "no ports here"
        );
        assert!(
            seen.field("x-forwarded-for")
                .ends_with(&format!("127.0.0.1:{}", value("client_port")))
        );
        assert_eq!(value("host"), "shop.test");
        assert_eq!(value("cookie_lang"), "de");
        assert_eq!(value("http_method"), "GET");
        assert!(
            value("http_version").starts_with(http.name()),
            "{}",
            value("http_version")
        );
        assert_eq!(
            (value("query_string"), value("request_query")),
            ("c=d&e".to_owned(), "c=d&e".to_owned())
        );
        assert_eq!(value("request_scheme"), "https");
        assert_eq!(value("request_uri"), "/a/b?c=d&e");
        assert_eq!(value("server_port"), gateway.address.port().to_string());
        assert_eq!(
            (value("ssl_connection_protocol"), value("ssl_enabled")),
            ("TLSv1.3".to_owned(), "On".to_owned())
        );
        assert_eq!(value("uri_path"), "/a/b");
        assert_eq!(value("client_certificate_verification"), "NONE");
        let (used, offered) = (value("ciphers_used"), value("ciphers_supported"));
        assert!(offered.split(':').any(|offered| offered == used), "{used} of {offered}");
        assert_eq!(value("client_user"), "ann");
        assert_eq!(value("sent_bytes"), "0", "a request comes before its answer");
        // Over loopback, on a machine that may be busy.
        let micros: u32 = value("client_tcp_rtt").parse().unwrap();
        assert!((1..5_000_000).contains(&micros), "{micros}");
        if http == Http::One {
            assert_eq!(value("received_bytes"), ask.bytes().len().to_string());
        }
    }
}

#[test]
fn the_size_of_a_request_is_that_of_its_head_and_of_the_body_that_it_announces() {
    let origin = Origin::mirror();
    let rule = "[[rewrite.set.rule]]\nrequest_headers = { X-Size = \"{var_received_bytes}\" }\n";
    let gateway = with(&origin, rule).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let mut size = |ask: &Ask| -> usize {
            assert_eq!(browser.ask(ask).status, 200, "{http:?}");
            origin.last().field("x-size").parse().unwrap()
        };
        let head = size(&Ask::get("shop.test", "/"));
        let longer = size(&Ask::get("shop.test", "/").with("x-more", "123"));
        assert_eq!(longer - head, "x-more: 123\r\n".len(), "{http:?}");
        let post = |body: usize| Ask::post("shop.test", "/", vec![b'x'; body]).with("x-pad", "1");
        let (less, more) = (size(&post(10)), size(&post(90)));
        match http {
            // The length is in the head.
            Http::One => assert_eq!(more, post(90).bytes().len()),
            Http::Two => assert!([0, 80].contains(&(more - less)), "{less} {more}"),
        }
    }
}

#[test]
fn the_round_trip_is_that_of_whoever_connected_and_can_be_looked_at() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .rule("rewrite = \"set\"")
        .table(
            r#"
            [[rewrite.set.rule]]
            when = [{ variable = "var_client_tcp_rtt", matches = "^[0-9]{1,7}$" }]
            request_headers = { X-Near = "{var_client_tcp_rtt}" }
            response_headers = { X-Round-Trip = "{var_client_tcp_rtt}" }
            "#,
        )
        .setup(|setup| setup.listener("balancers = [\"127.0.0.1\"]\n"))
        .start();
    let mut tcp = TcpStream::connect(gateway.address).unwrap();
    // The client is far away, its balancer is not.
    tcp.write_all(b"PROXY TCP4 203.0.113.77 192.0.2.1 40000 443\r\n")
        .unwrap();
    let mut stream = raw::tls_over(tcp, &gateway.chain());
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    let answer = read(&mut stream);
    let near = origin.only().field("x-near").to_owned();
    assert!(near.parse::<u32>().is_ok_and(|micros| micros > 0), "{near:?}");
    assert_eq!(answer.field("x-round-trip"), near, "it is asked for once a request");
}

#[test]
fn host_can_be_changed_and_the_framing_cannot() {
    let origin = Origin::named("shop");
    let gateway = with(
        &origin,
        r#"
        [[rewrite.set.rule]]
        request_headers = { Host = "{var_cookie_tenant}.inside.test" }
        "#,
    )
    .start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/").with("cookie", "tenant=acme");
        http.connect(&gateway).ask(&ask);
        let seen = origin.last();
        assert_eq!(
            (seen.field("host"), seen.field("x-original-host")),
            ("acme.inside.test", "shop.test"),
            "{http:?}"
        );
    }
    for field in ["Connection", "Upgrade", "Content-Length", "Transfer-Encoding"] {
        let refused = with(
            &origin,
            &format!("[[rewrite.set.rule]]\nrequest_headers = {{ {field} = \"x\" }}\n"),
        );
        let told = gateway.reload(&refused.to_setup());
        assert!(
            told["message"].as_str().unwrap().starts_with("configuration refused"),
            "{field}"
        );
    }
    let refused = with(&origin, "[[rewrite.set.rule]]\nrequest_headers = { Host = \"\" }\n");
    let told = gateway.reload(&refused.to_setup());
    assert!(
        told["message"].as_str().unwrap().starts_with("configuration refused"),
        "{told}"
    );
}

#[test]
fn rewriting_one_cookie_leaves_its_siblings() {
    let origin = Origin::saying(
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: session=s; Path=/\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = with(
        &origin,
        r#"
        [[rewrite.set.rule]]
        when = [{ variable = "http_resp_Set-Cookie", matches = "^(session=[^;]*)(.*)$" }]
        response_headers = { Set-Cookie = "{http_resp_Set-Cookie_1}{http_resp_Set-Cookie_2}; Secure" }
        "#,
    )
    .start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        let cookies = answer.fields("set-cookie");
        assert_eq!(cookies, ["a=1; Path=/", "session=s; Path=/; Secure", "b=2"], "{http:?}");
    }
}

#[test]
fn a_new_path_may_choose_again() {
    let (site, images) = (Origin::named("site"), Origin::named("images"));
    let rules = |reevaluate: bool| {
        format!(
            "[pool.images]\ntargets = [{}]\n[[rewrite.set.rule]]\n\
             when = [{{ variable = \"var_uri_path\", matches = \"^/pictures/(.*)$\" }}]\n\
             path = \"/images/{{var_uri_path_1}}\"\nreevaluate = {reevaluate}\n",
            images.quoted()
        )
    };
    let shop = |reevaluate| with(&site, &rules(reevaluate)).path(&["/images/*"], "pool = \"images\"");
    let gateway = shop(true).start();
    for http in Http::BOTH {
        let answer = http
            .connect(&gateway)
            .ask(&Ask::get("shop.test", "/pictures/a.png?q=1"));
        assert_eq!(answer.text(), "images", "{http:?}");
        assert_eq!(images.last().target(), "/images/a.png?q=1");
    }
    shop(false).apply(&gateway);
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/pictures/a.png"));
        assert_eq!(
            (answer.text(), site.last().target()),
            ("site", "/images/a.png"),
            "{http:?}"
        );
    }
}

#[test]
fn a_circle_of_paths_is_500_and_not_for_ever() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin)
        .path(&["/a/*"], "pool = \"shop\"\nrewrite = \"to-b\"")
        .path(&["/b/*"], "pool = \"shop\"\nrewrite = \"to-a\"")
        .table(
            r#"
            [[rewrite.to-b.rule]]
            when = [{ variable = "var_uri_path", matches = "^/a/(.*)$" }]
            path = "/b/{var_uri_path_1}"
            reevaluate = true
            [[rewrite.to-a.rule]]
            when = [{ variable = "var_uri_path", matches = "^/b/(.*)$" }]
            path = "/a/{var_uri_path_1}"
            reevaluate = true
            "#,
        )
        .start();
    for http in Http::BOTH {
        let target = format!("/a/{http:?}");
        assert_eq!(http.connect(&gateway).ask(&Ask::get("shop.test", &target)).status, 500);
        assert_eq!(access_line_of(&gateway, &target)["error_info"], "rewrite_loop");
    }
    assert!(origin.seen().is_empty());
}

#[test]
fn what_a_rewrite_makes_of_clients_words_cannot_break_out() {
    let origin = Origin::new(|exchange: &mut Exchange<'_>| {
        exchange.reply_with(200, "X-Word: fine\r\n", "");
    });
    let gateway = with(
        &origin,
        r#"
        [[rewrite.set.rule]]
        when = [{ variable = "var_query_string", matches = "^to=(.*)$" }]
        path = "/go/{var_query_string_1}"
        query = ""
        request_headers = { X-To = "{var_query_string_1}" }
        response_headers = { X-To = "{var_query_string_1}" }
        "#,
    )
    .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for query in [
            "to=../../admin",
            "to=%2e%2e/admin",
            "to=a%0d%0aX-Evil:%201",
            "to=//b",
            "to=a?b=c",
            "to=..%2fadmin",
        ] {
            let before = origin.seen().len();
            let answer = browser.ask(&Ask::get("shop.test", &format!("/x?{query}")));
            assert!(!answer.has("x-evil"), "{query}");
            for seen in &origin.seen()[before..] {
                let path = seen.target().split('?').next().unwrap();
                assert!(!seen.has("x-evil"), "{query}: {}", seen.head);
                assert!(
                    !path.contains("..") && !path.contains("//") && !path.to_lowercase().contains("%2e"),
                    "{query}: {path}"
                );
            }
        }
    }
}

#[test]
fn redirects_and_errors_of_the_gateway_are_not_rewritten() {
    let gateway = Shop::with_targets(&[])
        .rule("rewrite = \"set\"")
        .path(
            &["/old"],
            "redirect = { url = \"https://new.example/\", path = false, query = false }",
        )
        .table("[[rewrite.set.rule]]\nresponse_headers = { X-Set = \"1\", Location = \"https://evil.example/\" }\n")
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let redirect = browser.ask(&Ask::get("shop.test", "/old"));
        assert_eq!(
            (redirect.field("location"), redirect.has("x-set")),
            ("https://new.example/", false),
            "{http:?}"
        );
        let error = browser.ask(&Ask::get("shop.test", "/"));
        assert_eq!((error.status, error.has("x-set")), (502, false));
    }
}
