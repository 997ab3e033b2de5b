//! The six fields that the target gets, and who is believed to be the client.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{IpAddr, TcpStream};

use crate::rig::{Ask, Http, Origin, Seen, Shop, access_line, access_line_of, browser, read, second_address, send};
use crate::support::{Gateway, raw};

/// Asks from an address of loopback, by TLS; the port that it was asked from.
fn ask_from(gateway: &Gateway, source: [u8; 4], fields: &str) -> u16 {
    let tcp = raw::connect_from(source, gateway.address);
    let port = tcp.local_addr().unwrap().port();
    let mut stream = raw::tls_over(tcp, &gateway.chain());
    write!(stream, "GET /x HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n").unwrap();
    assert_eq!(read(&mut stream).status, 200);
    port
}

#[test]
fn the_target_is_told_what_the_gateway_knows() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).plain().start();
    for http in Http::BOTH {
        let target = format!("/Test/{http:?}?a=b%2fc&d");
        let ask = Ask::get("Shop.test:8443", &target);
        assert_eq!(http.connect(&gateway).ask(&ask).status, 200);
        let seen = origin.last();
        let (address, port) = seen.field("x-forwarded-for").rsplit_once(':').unwrap();
        assert_eq!(address, "127.0.0.1");
        assert!(port.parse::<u16>().unwrap() > 1023);
        assert_eq!(seen.field("x-forwarded-port"), gateway.address.port().to_string());
        assert_eq!(seen.field("x-forwarded-proto"), "https");
        assert_eq!(seen.field("x-original-host"), "Shop.test:8443");
        assert_eq!(seen.field("x-original-url"), target);
        let trace = seen.field("x-appgw-trace-id");
        assert!(
            trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{trace}"
        );
        let line = access_line_of(&gateway, &target);
        assert_eq!(line["transaction_id"], trace);
        assert_eq!(
            (&line["client_ip"], line["client_port"].to_string()),
            (&"127.0.0.1".into(), port.to_owned())
        );
    }
    let mut stream = browser::plain(second_address(&gateway));
    stream.write_all(&Ask::get("shop.test", "/plain").bytes()).unwrap();
    read(&mut stream);
    let seen = origin.last();
    assert_eq!(seen.field("x-forwarded-proto"), "http");
    assert_eq!(
        seen.field("x-forwarded-port"),
        second_address(&gateway).port().to_string()
    );
    let traces: HashSet<_> = origin
        .seen()
        .iter()
        .map(|seen| seen.field("x-appgw-trace-id").to_owned())
        .collect();
    assert_eq!(traces.len(), 3, "one of its own for each request");
}

#[test]
fn what_the_client_says_of_itself_is_continued_and_the_rest_is_not_believed() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let port = ask_from(
        &gateway,
        [127, 0, 0, 1],
        "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 198.51.100.7:1234\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Port: 1\r\n\
         X-Original-Host: evil.test\r\nX-Original-URL: /admin\r\nX-AppGW-Trace-Id: 00\r\n",
    );
    let seen = origin.only();
    let for_ = seen.fields("x-forwarded-for").join(", ");
    assert_eq!(for_, format!("203.0.113.9, 198.51.100.7:1234, 127.0.0.1:{port}"));
    assert_eq!(seen.field("x-forwarded-proto"), "https");
    assert_eq!(seen.field("x-forwarded-port"), gateway.address.port().to_string());
    assert_eq!(seen.field("x-original-host"), "shop.test");
    assert_eq!(seen.field("x-original-url"), "/x");
    assert_eq!(seen.field("x-appgw-trace-id").len(), 32);
}

#[test]
fn over_http_2_too_the_list_is_continued_or_replaced_and_the_rest_is_not_believed() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    let ask = Ask::get("shop.test", "/x")
        .with("x-forwarded-for", "203.0.113.9")
        .with("x-forwarded-for", "198.51.100.7:1234")
        .with("x-forwarded-proto", "http")
        .with("x-forwarded-port", "1")
        .with("x-original-host", "evil.test")
        .with("x-original-url", "/admin")
        .with("x-appgw-trace-id", "00");
    let seen = |lines: &str| {
        shop.clone().table(&format!("[forwarded]\n{lines}")).apply(&gateway);
        assert_eq!(Http::Two.connect(&gateway).ask(&ask).status, 200);
        origin.last()
    };
    let seen_by_default = seen("");
    for (name, expected) in [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", &gateway.address.port().to_string()),
        ("x-original-host", "shop.test"),
        ("x-original-url", "/x"),
    ] {
        assert_eq!(seen_by_default.field(name), expected, "{name}");
    }
    assert_eq!(seen_by_default.field("x-appgw-trace-id").len(), 32);
    let list = |seen: &Seen| seen.fields("x-forwarded-for").join(", ");
    let (before, own) = ("203.0.113.9, 198.51.100.7:1234, ", "127.0.0.1");
    let appended = list(&seen_by_default);
    let port = appended.strip_prefix(&format!("{before}{own}:"));
    assert!(port.is_some_and(|port| port.parse::<u16>().is_ok()), "{appended}");
    assert_eq!(list(&seen("port = false")), format!("{before}{own}"));
    assert_eq!(list(&seen("mode = \"replace\"\nport = false")), own);
    // The peer is a proxy, and so the one before it is whom it brings.
    seen("trusted = [\"127.0.0.1\"]");
    let line = access_line(&gateway, |line| line["client_ip"] == "198.51.100.7");
    assert_eq!(line["http_version"], "HTTP/2.0");
}

#[test]
fn a_client_of_ipv6_stands_in_brackets() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).setup(|setup| setup.bind(&["[::1]:0"])).start();
    let tcp = TcpStream::connect(gateway.address).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let mut stream = raw::tls_over(tcp, &gateway.chain());
    stream.write_all(&Ask::get("shop.test", "/six").bytes()).unwrap();
    read(&mut stream);
    assert_eq!(origin.only().field("x-forwarded-for"), format!("[::1]:{port}"));
    assert_eq!(access_line_of(&gateway, "/six")["client_ip"], "::1");
}

#[test]
fn the_port_can_be_left_out_and_the_former_list_too() {
    let origin = Origin::named("shop");
    let shop = Shop::of(&origin);
    let gateway = shop.clone().table("[forwarded]\nport = false").start();
    ask_from(&gateway, [127, 0, 0, 1], "X-Forwarded-For: 203.0.113.9\r\n");
    assert_eq!(
        origin.last().fields("x-forwarded-for").join(", "),
        "203.0.113.9, 127.0.0.1"
    );
    shop.table("[forwarded]\nmode = \"replace\"").apply(&gateway);
    let port = ask_from(&gateway, [127, 0, 0, 1], "X-Forwarded-For: 203.0.113.9\r\n");
    assert_eq!(origin.last().field("x-forwarded-for"), format!("127.0.0.1:{port}"));
}

#[test]
fn the_client_is_the_rightmost_address_that_is_no_proxy() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .rule("deny = [\"198.51.100.7\"]")
        .table("[forwarded]\ntrusted = [\"127.0.0.2\", \"10.0.0.0/8\"]")
        .start();
    let client_of = |source: [u8; 4], fields: &str| -> Option<IpAddr> {
        let before = origin.seen().len();
        let target = format!("/{}", origin.seen().len() + 1);
        let mut stream = raw::tls_over(raw::connect_from(source, gateway.address), &gateway.chain());
        write!(
            stream,
            "GET {target}?{} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n",
            fields.len()
        )
        .unwrap();
        let status = read(&mut stream).status;
        if status == 403 {
            assert_eq!(origin.seen().len(), before);
            return None;
        }
        let line = access_line_of(&gateway, &format!("{target}?{}", fields.len()));
        Some(line["client_ip"].as_str().unwrap().parse().unwrap())
    };
    let ip = |text: &str| Some(text.parse().unwrap());
    // A proxy says whose request it brings.
    assert_eq!(
        client_of([127, 0, 0, 2], "X-Forwarded-For: 203.0.113.5\r\n"),
        ip("203.0.113.5")
    );
    assert_eq!(
        client_of([127, 0, 0, 2], "X-Forwarded-For: 203.0.113.6:4711\r\n"),
        ip("203.0.113.6")
    );
    assert_eq!(
        client_of([127, 0, 0, 2], "X-Forwarded-For: [2001:db8::5]:4711\r\n"),
        ip("2001:db8::5")
    );
    // What stands to the left of it was said by nobody whom we know.
    let fields = "X-Forwarded-For: 9.9.9.9, 127.0.0.2, 203.0.113.7, 10.1.2.3\r\n";
    assert_eq!(client_of([127, 0, 0, 2], fields), ip("203.0.113.7"));
    assert_eq!(
        client_of([127, 0, 0, 2], "X-Forwarded-For: 9.9.9.9, 127.0.0.2, 198.51.100.7\r\n"),
        None
    );
    let lines = "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 203.0.113.8\r\n";
    assert_eq!(client_of([127, 0, 0, 2], lines), ip("203.0.113.8"));
    // Nobody else is believed, whatever they write: not to get in, and not to get somebody else out.
    assert_eq!(
        client_of([127, 0, 0, 3], "X-Forwarded-For: 198.51.100.7\r\n"),
        ip("127.0.0.3")
    );
    let of_stranger = origin.last();
    assert!(
        of_stranger.field("x-forwarded-for").starts_with("127.0.0.3:"),
        "{}",
        of_stranger.head
    );
    // A proxy that says nothing is the client.
    assert_eq!(client_of([127, 0, 0, 2], ""), ip("127.0.0.2"));
    assert_eq!(
        client_of([127, 0, 0, 2], "X-Forwarded-For: nonsense\r\n"),
        ip("127.0.0.2")
    );
}

#[test]
fn behind_a_balancer_the_client_is_whom_the_proxy_header_names() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .setup(|setup| setup.listener("balancers = [\"127.0.0.1\"]\n"))
        .start();
    let mut tcp = TcpStream::connect(gateway.address).unwrap();
    tcp.write_all(b"PROXY TCP4 203.0.113.77 192.0.2.1 40000 443\r\n")
        .unwrap();
    let mut stream = raw::tls_over(tcp, &gateway.chain());
    stream.write_all(&Ask::get("shop.test", "/balanced").bytes()).unwrap();
    read(&mut stream);
    assert_eq!(origin.only().field("x-forwarded-for"), "203.0.113.77:40000");
    assert_eq!(access_line_of(&gateway, "/balanced")["client_ip"], "203.0.113.77");
}

#[test]
fn naming_a_field_in_connection_takes_none_of_the_gateways_away() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .rule("request_headers = { set = { X-Auth-User = \"ann\" } }")
        .start();
    let answer = send(
        &gateway,
        "GET / HTTP/1.1\r\nHost: shop.test\r\nConnection: close, X-Forwarded-For, X-Auth-User, X-Forwarded-Proto\r\n\
         Connection: X-Appgw-Trace-Id, X-Custom\r\nX-Custom: 1\r\nX-Auth-User: root\r\n\r\n",
    );
    assert_eq!(answer.status, 200);
    let seen = origin.only();
    assert!(seen.field("x-forwarded-for").starts_with("127.0.0.1:"));
    assert_eq!(
        (seen.field("x-auth-user"), seen.field("x-forwarded-proto")),
        ("ann", "https")
    );
    assert_eq!(seen.field("x-appgw-trace-id").len(), 32);
    assert!(!seen.has("x-custom"), "it was for one hop: {}", seen.head);
}
