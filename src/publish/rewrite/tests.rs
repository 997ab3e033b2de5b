use http::{Method, Version};
use proptest::prelude::*;
use rustls::{CipherSuite, ProtocolVersion};

use super::*;
use crate::publish::heads::{head, lines};
use crate::secure::TlsFacts;

const URL: Url<'_> = Url {
    path: "/article/123/fabrikam",
    query: Some("a=b"),
};

fn condition(variable: &str, pattern: &str) -> Condition {
    Condition {
        variable: variable.parse().unwrap(),
        pattern: Some(Pattern::new(pattern, true).unwrap()),
        negate: false,
    }
}

fn unless(variable: &str, pattern: Option<&str>) -> Condition {
    Condition {
        variable: variable.parse().unwrap(),
        pattern: pattern.map(|text| Pattern::new(text, false).unwrap()),
        negate: true,
    }
}

fn sets(fields: &[(&str, &str)]) -> Vec<(HeaderName, Template)> {
    let field = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
    fields.iter().map(field).collect()
}

fn set(rules: impl IntoIterator<Item = RewriteRule>) -> Set {
    let rules: Vec<_> = rules.into_iter().collect();
    for rule in &rules {
        assert_eq!(rule.faults(), []);
    }
    Set::new(&Rewrite { rules })
}

fn on_requests(conditions: Vec<Condition>, fields: &[(&str, &str)]) -> RewriteRule {
    RewriteRule {
        conditions,
        request_headers: sets(fields),
        ..RewriteRule::default()
    }
}

fn on_answers(conditions: Vec<Condition>, fields: &[(&str, &str)]) -> RewriteRule {
    RewriteRule {
        conditions,
        response_headers: sets(fields),
        ..RewriteRule::default()
    }
}

fn with_facts<R>(do_this: impl FnOnce(&Facts<'_>) -> R) -> R {
    let tls = TlsFacts {
        version: ProtocolVersion::TLSv1_3,
        suite: CipherSuite::TLS13_AES_128_GCM_SHA256,
        group: None,
        sni: None,
        alpn: true,
        h2: false,
        resumed: false,
        offered: [0x1301, 0x0a0a].into_iter().collect(),
    };
    do_this(&Facts {
        client: "2001:db8::7".parse().unwrap(),
        client_port: Some(50123),
        forwarded_for: &HeaderValue::from_static("203.0.113.9, [2001:db8::7]:50123"),
        host: "contoso.com",
        method: &Method::GET,
        version: Version::HTTP_2,
        uri: "/article.aspx?id=123&title=fabrikam",
        port: 8080,
        https: true,
        tls: Some(&tls),
        certificate: None,
        round_trip: &|| Some(std::time::Duration::from_millis(3)),
        received: 512,
    })
}

fn request(set: &Set, headers: &mut HeaderMap) -> Rewritten {
    with_facts(|facts| set.request(headers, URL, facts))
}

/// The answer with `fields` after the set, for a request without fields.
fn answer(set: &Set, fields: &[(&str, &str)]) -> HeaderMap {
    let kept = request(set, &mut HeaderMap::new()).kept;
    let mut headers = head(fields);
    set.answer(kept, StatusCode::OK, &mut headers);
    headers
}

#[test]
fn the_port_is_taken_out_of_the_chain_of_addresses() {
    let set = set([on_requests(
        vec![],
        &[("x-forwarded-for", "{var_add_x_forwarded_for_proxy}")],
    )]);
    let mut headers = head(&[("x-forwarded-for", "203.0.113.9, [2001:db8::7]:50123")]);
    request(&set, &mut headers);
    assert_eq!(headers, head(&[("x-forwarded-for", "203.0.113.9, 2001:db8::7")]));
}

#[test]
fn a_path_becomes_a_query() {
    let set = set([RewriteRule {
        conditions: vec![condition("var_uri_path", "^/ARTICLE/([^/]+)/(.+)$")],
        path: Some("/article.aspx".parse().unwrap()),
        query: Some(
            "id={var_uri_path_1}&title={var_uri_path_2}&{var_query_string}"
                .parse()
                .unwrap(),
        ),
        reevaluate: true,
        ..RewriteRule::default()
    }]);
    let rewritten = request(&set, &mut HeaderMap::new());
    assert!(rewritten.reevaluate);
    let url = rewritten.url(URL).unwrap();
    assert_eq!(url, "/article.aspx?id=123&title=fabrikam&a=b");
}

#[test]
fn a_path_that_stays_is_not_looked_up_again() {
    let set = set([RewriteRule {
        path: Some("{var_uri_path}".parse().unwrap()),
        query: Some("".parse().unwrap()),
        reevaluate: true,
        ..RewriteRule::default()
    }]);
    let rewritten = request(&set, &mut HeaderMap::new());
    assert!(!rewritten.reevaluate);
    assert_eq!(rewritten.url(URL).unwrap(), URL.path);
}

#[test]
fn a_path_in_a_circle_ends() {
    let to = |path: &str| RewriteRule {
        path: Some(path.parse().unwrap()),
        reevaluate: true,
        ..RewriteRule::default()
    };
    let sets = [set([to("/b")]), set([to("/a")])];
    let mut rounds = Rounds::default();
    let mut path = "/a".to_owned();
    let mut turns = 0;
    let end = loop {
        turns += 1;
        let url = Url {
            path: &path,
            query: None,
        };
        let set = if path == "/a" { &sets[0] } else { &sets[1] };
        let rewritten = with_facts(|facts| set.request(&mut HeaderMap::new(), url, facts));
        assert!(rewritten.reevaluate);
        path = rewritten.path.unwrap();
        if let Err(fault) = rounds.take() {
            break fault;
        }
    };
    assert_eq!((end, turns), (WebFault::RewriteLoop, 6));
}

#[test]
fn what_cannot_stand_in_a_url_is_encoded() {
    let set = set([RewriteRule {
        path: Some("{http_req_a}/%41".parse().unwrap()),
        query: Some("q={http_req_a}".parse().unwrap()),
        ..RewriteRule::default()
    }]);
    let mut headers = HeaderMap::new();
    headers.insert("a", HeaderValue::from_bytes(b"x y?#\"\xe4").unwrap());
    let rewritten = request(&set, &mut headers);
    assert_eq!(rewritten.url(URL).unwrap(), "/x%20y%3F%23%22%E4/%41?q=x%20y?%23%22%E4");
}

#[test]
fn a_rule_sees_what_those_before_it_made_and_nothing_of_its_own() {
    let set = set([
        on_requests(vec![], &[("x-a", "1{http_req_x-b}"), ("x-b", "2{http_req_x-a}")]),
        on_requests(
            vec![condition("http_req_x-a", "^(1.)$")],
            &[("x-c", "{http_req_X-A_1}{http_req_x-b}")],
        ),
    ]);
    let mut headers = head(&[("x-a", "A"), ("x-b", "B")]);
    request(&set, &mut headers);
    assert_eq!(headers, head(&[("x-a", "1B"), ("x-b", "2A"), ("x-c", "1B2A")]));
}

#[test]
fn an_empty_value_takes_a_field_away_but_never_host() {
    let set = set([on_requests(
        vec![],
        &[("x-a", ""), ("x-b", "{http_req_none}"), ("host", "{http_req_none}")],
    )]);
    let mut headers = head(&[("host", "contoso.com"), ("x-a", "1"), ("x-a", "2"), ("x-b", "3")]);
    request(&set, &mut headers);
    assert_eq!(headers, head(&[("host", "contoso.com")]));
}

#[test]
fn all_conditions_must_hold() {
    let holds = |conditions: Vec<Condition>| {
        let set = set([on_requests(conditions, &[("x-done", "1")])]);
        let mut headers = head(&[("x-a", "One"), ("cookie", "Id=7; b=8")]);
        request(&set, &mut headers);
        headers.contains_key("x-done")
    };
    let is_there = |variable: &str| Condition {
        negate: false,
        ..unless(variable, None)
    };
    assert!(holds(vec![]));
    assert!(holds(vec![
        condition("http_req_X-A", "one"),
        condition("var_cookie_Id", "^7$")
    ]));
    assert!(!holds(vec![
        condition("http_req_X-A", "one"),
        condition("var_cookie_id", "^7$")
    ]));
    assert!(holds(vec![
        is_there("http_req_x-a"),
        unless("http_req_x-b", None),
        unless("http_req_x-a", Some("one"))
    ]));
    assert!(!holds(vec![is_there("http_req_x-b")]));
    assert!(!holds(vec![is_there("var_client_user")]));
    // What is not there is empty.
    assert!(holds(vec![
        condition("http_req_x-b", "^$"),
        unless("http_req_x-b", Some("."))
    ]));
}

#[test]
fn fields_of_a_connection_are_not_rewritten() {
    let rule = on_requests(vec![], &[("connection", "x"), ("content-length", "9"), ("x-a", "1")]);
    let set = Set::new(&Rewrite { rules: vec![rule] });
    let mut headers = HeaderMap::new();
    request(&set, &mut headers);
    assert_eq!(headers, head(&[("x-a", "1")]));
}

#[test]
fn a_location_is_rewritten_by_its_groups() {
    let set = set([on_answers(
        vec![condition("http_resp_Location", r"(https?)://.*\.inside\.example(.*)$")],
        &[
            ("location", "{http_resp_Location_1}://{var_host}{http_resp_location_2}"),
            ("x-from", "{http_resp_location}"),
        ],
    )]);
    let made = answer(&set, &[("location", "https://shop.inside.example/a?b")]);
    let expected = head(&[
        ("location", "https://contoso.com/a?b"),
        ("x-from", "https://shop.inside.example/a?b"),
    ]);
    assert_eq!(made, expected);
    let foreign = [("location", "https://other.example/")];
    assert_eq!(answer(&set, &foreign), head(&foreign));
}

#[test]
fn what_is_said_of_the_request_is_settled_when_it_passes() {
    let rule = RewriteRule {
        conditions: vec![
            condition("http_req_origin", "^https://([a-z]+)\\.example$"),
            condition("var_http_status", "^2"),
        ],
        response_headers: sets(&[
            ("access-control-allow-origin", "{http_req_origin}"),
            ("x-site", "{http_req_origin_1}{var_uri_path}{var_http_status}"),
        ]),
        ..RewriteRule::default()
    };
    let remove = on_requests(vec![], &[("origin", "")]);
    let set = set([rule, remove]);
    let allowed = |origin: &'static str, status: StatusCode| {
        let mut headers = head(&[("origin", origin)]);
        let kept = request(&set, &mut headers).kept;
        assert!(headers.is_empty());
        let mut headers = HeaderMap::new();
        set.answer(kept, status, &mut headers);
        headers
    };
    let expected = head(&[
        ("access-control-allow-origin", "https://shop.example"),
        ("x-site", "shop/article/123/fabrikam200"),
    ]);
    assert_eq!(allowed("https://shop.example", StatusCode::OK), expected);
    assert!(allowed("https://shop.example", StatusCode::NOT_FOUND).is_empty());
    assert!(allowed("https://evil.test", StatusCode::OK).is_empty());
}

#[test]
fn one_of_several_cookies_is_rewritten_and_its_siblings_stay() {
    let cookies = [
        ("set-cookie", "a=1; Path=/"),
        ("set-cookie", "id=7; Path=/"),
        ("set-cookie", "id=8"),
    ];
    let by_condition = set([on_answers(
        vec![condition("http_resp_Set-Cookie", "^id=([^;]*)")],
        &[
            ("set-cookie", "id={http_resp_Set-Cookie_1}; Secure"),
            ("x-id", "{http_resp_set-cookie_1}"),
        ],
    )]);
    let made = answer(&by_condition, &cookies);
    assert_eq!(
        lines(&made, "set-cookie"),
        ["a=1; Path=/", "id=7; Secure", "id=8; Secure"]
    );
    assert_eq!(lines(&made, "x-id"), ["7"]);

    let by_value = set([on_answers(vec![], &[("set-cookie", "{http_resp_Set-Cookie}; Secure")])]);
    let made = answer(&by_value, &cookies);
    assert_eq!(
        lines(&made, "set-cookie"),
        ["a=1; Path=/; Secure", "id=7; Path=/; Secure", "id=8; Secure"]
    );
    assert!(answer(&by_value, &[]).is_empty());

    let added = set([on_answers(vec![], &[("set-cookie", "b=2")])]);
    assert_eq!(lines(&answer(&added, &cookies), "set-cookie").len(), 4);

    let removed = set([on_answers(
        vec![condition("http_resp_set-cookie", "^id=")],
        &[("set-cookie", "")],
    )]);
    assert_eq!(lines(&answer(&removed, &cookies), "set-cookie"), ["a=1; Path=/"]);

    let where_none = set([on_answers(
        vec![unless("http_resp_set-cookie", None)],
        &[("set-cookie", "c=3")],
    )]);
    assert_eq!(lines(&answer(&where_none, &[]), "set-cookie"), ["c=3"]);
    assert_eq!(answer(&where_none, &cookies), head(&cookies));
}

#[test]
fn another_field_of_several_lines_is_one_value() {
    let set = set([on_answers(vec![], &[("vary", "{http_resp_vary}, Origin")])]);
    let made = answer(&set, &[("vary", "Accept"), ("vary", "Cookie")]);
    assert_eq!(lines(&made, "vary"), ["Accept, Cookie, Origin"]);
}

#[test]
fn every_server_variable_has_its_value() {
    let value = |variable: ServerVariable, certificate: Option<Shown<'_>>| {
        let headers = head(&[("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")]);
        let value = with_facts(|facts| {
            let facts = Facts { certificate, ..*facts };
            facts
                .value(&Variable::Server(variable), URL, &headers)
                .map(Cow::into_owned)
        });
        value.map(|value| String::from_utf8(value).unwrap())
    };
    use ServerVariable as V;
    for (variable, expected) in [
        (V::AddXForwardedForProxy, Some("203.0.113.9, 2001:db8::7")),
        (V::CiphersSupported, Some("TLS_AES_128_GCM_SHA256:0x0a0a")),
        (V::CiphersUsed, Some("TLS_AES_128_GCM_SHA256")),
        (V::ClientIp, Some("2001:db8::7")),
        (V::ClientPort, Some("50123")),
        (V::ClientTcpRtt, Some("3000")),
        (V::ClientUser, Some("Aladdin")),
        (V::Host, Some("contoso.com")),
        (V::HttpMethod, Some("GET")),
        (V::HttpStatus, None),
        (V::HttpVersion, Some("HTTP/2.0")),
        (V::QueryString, Some("a=b")),
        (V::ReceivedBytes, Some("512")),
        (V::RequestQuery, Some("a=b")),
        (V::RequestScheme, Some("https")),
        (V::RequestUri, Some("/article.aspx?id=123&title=fabrikam")),
        (V::SentBytes, Some("0")),
        (V::ServerPort, Some("8080")),
        (V::SslConnectionProtocol, Some("TLSv1.3")),
        (V::SslEnabled, Some("On")),
        (V::UriPath, Some("/article/123/fabrikam")),
        (V::ClientCertificate, None),
        (V::ClientCertificateVerification, Some("NONE")),
    ] {
        assert_eq!(value(variable, None).as_deref(), expected, "{variable:?}");
    }

    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "ann");
    params.serial_number = Some(rcgen::SerialNumber::from(vec![0x01, 0xab]));
    params.not_before = rcgen::date_time_ymd(2026, 8, 1);
    params.not_after = rcgen::date_time_ymd(2027, 8, 10);
    let der = params
        .self_signed(&rcgen::KeyPair::generate().unwrap())
        .unwrap()
        .der()
        .to_vec();
    let shown = |variable| {
        value(
            variable,
            Some(Shown {
                der: &der,
                failure: None,
            }),
        )
        .unwrap()
    };
    assert_eq!(shown(V::ClientCertificateSubject), "CN=ann");
    assert_eq!(shown(V::ClientCertificateIssuer), "CN=ann");
    assert_eq!(shown(V::ClientCertificateSerial), "01AB");
    assert_eq!(shown(V::ClientCertificateStartDate), "Aug  1 00:00:00 2026 GMT");
    assert_eq!(shown(V::ClientCertificateEndDate), "Aug 10 00:00:00 2027 GMT");
    assert_eq!(shown(V::ClientCertificateFingerprint).len(), 40);
    assert_eq!(shown(V::ClientCertificateVerification), "SUCCESS");
    let pem = shown(V::ClientCertificate);
    assert!(pem.starts_with("-----BEGIN%20CERTIFICATE-----%0A") && !pem.contains(['\n', ' ']));
    let failed = Some(Shown {
        der: &der,
        failure: Some("expired"),
    });
    assert_eq!(
        value(V::ClientCertificateVerification, failed).unwrap(),
        "FAILED:expired"
    );
}

fn line() -> impl Strategy<Value = (String, String)> {
    ("x-[ab]|host|set-cookie|location|cookie", "[ -~]{0,12}|(a|b)=[0-9];?")
}

fn template() -> impl Strategy<Value = Template> {
    const NAMES: &[&str] = &[
        "http_req_x-a",
        "http_resp_x-b",
        "http_resp_set-cookie",
        "var_uri_path",
        "http_resp_x-a_1",
        "var_host_1",
    ];
    let piece = prop_oneof![
        "[a-z =;]{0,4}",
        proptest::sample::select(NAMES).prop_map(|name| format!("{{{name}}}"))
    ];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat().parse().unwrap())
}

proptest! {
    /// Whatever a set is made of, it does not fail, keeps `Host`, and makes of every path and query such a one.
    #[test]
    fn a_set_makes_sound_requests(
        fields in proptest::collection::vec(line(), 0..6),
        values in proptest::collection::vec(template(), 4),
        negate in any::<bool>(),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut headers = head(&fields);
        let had_host = headers.contains_key(HOST);
        let rule = RewriteRule {
            conditions: vec![Condition { negate, ..condition("var_host", "(o+)") }],
            request_headers: vec![(HOST, values[0].clone()), ("x-a".parse().unwrap(), values[1].clone())],
            path: Some(values[2].clone()),
            query: Some(values[3].clone()),
            ..RewriteRule::default()
        };
        let set = Set::new(&Rewrite { rules: vec![rule] });
        let rewritten = request(&set, &mut headers);
        prop_assert!(!had_host || headers.contains_key(HOST));
        if let Some(url) = rewritten.url(URL) {
            let parsed = url.parse::<http::uri::PathAndQuery>().unwrap();
            prop_assert_eq!(parsed.as_str(), &url);
            prop_assert!(url.starts_with('/') && !url.contains('#'));
        }
    }

    /// A rule that does not hold for a cookie leaves it where it is.
    #[test]
    fn cookies_keep_their_siblings(cookies in proptest::collection::vec("(a|b)=[0-9]{1,2}", 0..6), value in template()) {
        let lines_before: Vec<_> = cookies.iter().map(|line| ("set-cookie", line.as_str())).collect();
        let rule = on_answers(vec![condition("http_resp_set-cookie", "^a=")], &[]);
        let rule = RewriteRule { response_headers: vec![(SET_COOKIE, value)], ..rule };
        let set = Set::new(&Rewrite { rules: vec![rule] });
        let made = answer(&set, &lines_before);
        let of_b = |lines: Vec<&str>| lines.into_iter().filter(|line| line.starts_with("b=")).map(str::to_owned).collect::<Vec<_>>();
        let before = of_b(cookies.iter().map(String::as_str).collect());
        let after = of_b(lines(&made, "set-cookie"));
        prop_assert!(before.iter().all(|line| after.contains(line)));
        prop_assert!(lines(&made, "set-cookie").len() <= cookies.len());
    }
}
