//! An application in front of which HTTP/3 is spoken: the same rules, targets and log as over the other versions.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::error::{Code, StreamError};
use http::{HeaderMap, Request};
use tokio::time::timeout;

use super::peer::{Peer, Stream, launch, sign_in};
use super::rig::{Answer, Ask, Http, Origin, Shop, access_line_of, access_lines, patiently, second_address};
use super::support::authority::Authority;
use super::support::{Gateway, PATIENCE, Target};

/// The shop on a listener with UDP.
fn shop(origin: &Origin) -> Shop {
    Shop::of(origin).setup(|setup| setup.listener("udp = true\n"))
}

fn request(ask: &Ask) -> Request<()> {
    let mut request = Request::builder()
        .method(ask.method.as_str())
        .uri(format!("https://{}{}", ask.host, ask.target));
    for (name, value) in &ask.fields {
        request = request.header(name, value);
    }
    request.body(()).unwrap()
}

fn map(fields: &[(String, String)]) -> HeaderMap {
    let fields = fields
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    fields.collect()
}

fn list(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
    fields
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

/// Sends a request whole.
async fn begin(peer: &Peer, ask: &Ask) -> Result<Stream, StreamError> {
    let mut stream = peer.requests.clone().send_request(request(ask)).await?;
    let rest = async {
        if let Some(body) = &ask.body {
            stream.send_data(Bytes::from(body.clone())).await?;
        }
        if !ask.trailers.is_empty() {
            stream.send_trailers(map(&ask.trailers)).await?;
        }
        stream.finish().await
    };
    match rest.await {
        // Whoever has answered already may want nothing more (RFC 9114 section 4.1).
        Err(StreamError::RemoteTerminate {
            code: Code::H3_NO_ERROR,
            ..
        }) => Ok(stream),
        Err(fault) => Err(fault),
        Ok(()) => Ok(stream),
    }
}

/// Reads an answer whole.
async fn end(stream: &mut Stream) -> Result<Answer, StreamError> {
    let mut answer = Answer::default();
    loop {
        let head = stream.recv_response().await?;
        if head.status().is_informational() {
            answer.informed.push((head.status().as_u16(), list(head.headers())));
            continue;
        }
        answer.status = head.status().as_u16();
        answer.head = list(head.headers());
        break;
    }
    while let Some(mut piece) = stream.recv_data().await? {
        answer.body.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
    }
    if let Some(trailers) = stream.recv_trailers().await? {
        answer.trailers = list(&trailers);
    }
    Ok(answer)
}

async fn try_ask(peer: &Peer, ask: &Ask) -> Result<Answer, StreamError> {
    let asked = async { end(&mut begin(peer, ask).await?).await };
    timeout(PATIENCE, asked).await.expect("an answer in time")
}

async fn ask(peer: &Peer, ask: &Ask) -> Answer {
    try_ask(peer, ask)
        .await
        .unwrap_or_else(|fault| panic!("{ask:?}: {fault}"))
}

/// The code with which the other side ended a stream.
fn code_of<T: std::fmt::Debug>(ended: Result<T, StreamError>) -> Code {
    match ended {
        Err(StreamError::RemoteTerminate { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_the_way_of_all_others() {
    let origin = Origin::mirror();
    let gateway = shop(&origin)
        .rule("response_headers = { set = { X-Shop = \"yes\" } }")
        .start();
    let peer = Peer::connect(&gateway).await;
    let answer = ask(
        &peer,
        &Ask::get("Shop.test:443", "/a/../b?c=d")
            .with("cookie", "a=1")
            .with("cookie", "b=2"),
    )
    .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.field("x-shop"), "yes");
    assert!(
        answer.has("date") && !answer.has("connection") && !answer.has("alt-svc"),
        "{answer:?}"
    );
    let seen = origin.only();
    assert_eq!((seen.method(), seen.target()), ("GET", "/b?c=d"));
    assert_eq!(
        (seen.field("host"), seen.field("cookie")),
        ("Shop.test:443", "a=1; b=2")
    );
    assert_eq!(seen.field("x-forwarded-proto"), "https");
    assert!(seen.field("x-forwarded-for").starts_with("127.0.0.1:"), "{}", seen.head);
    assert!(
        !seen.has("transfer-encoding") && !seen.has("content-length"),
        "no body: {}",
        seen.head
    );
    assert!(answer.text().starts_with(&seen.head), "{answer:?}");

    let line = access_line_of(&gateway, "/a/../b?c=d");
    for (field, expected) in [
        ("http_version", "HTTP/3.0"),
        ("rule_name", "shop"),
        ("ssl_protocol", "TLSv1.3"),
        ("client_ip", "127.0.0.1"),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    assert_eq!(line["http_status"], 200);

    let none = ask(&peer, &Ask::get("nobody.test", "/broker/none")).await;
    assert_eq!(none.status, 404);
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_round_trip_is_that_of_quic() {
    let origin = Origin::mirror();
    let gateway = shop(&origin)
        .rule("rewrite = \"set\"")
        .table("[[rewrite.set.rule]]\nrequest_headers = { X-Round-Trip = \"{var_client_tcp_rtt}\" }\n")
        .start();
    let peer = Peer::connect(&gateway).await;
    assert_eq!(ask(&peer, &Ask::get("shop.test", "/")).await.status, 200);
    let micros: u32 = origin.only().field("x-round-trip").parse().unwrap();
    assert!((1..5_000_000).contains(&micros), "{micros}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_trailers_pass_both_ways_and_head_has_a_length_only() {
    let origin = Origin::new(|exchange| {
        let body = exchange.body();
        if exchange.seen().method() == "HEAD" {
            return exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n");
        }
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        answer.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        answer.extend_from_slice(&body);
        answer.extend_from_slice(b"\r\n0\r\ngrpc-status: 0\r\n\r\n");
        exchange.send(answer);
    });
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    let body: Vec<u8> = (0..3 * 1024 * 1024_u32).map(|n| (n / 7) as u8).collect();
    let mut post = Ask::post("shop.test", "/whole", body.clone()).with("te", "trailers");
    post = post.with_trailer("x-sum", "42");
    let answer = ask(&peer, &post).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == body);
    assert_eq!(answer.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    let seen = origin.wait_until_read();
    assert!(seen.body == body && seen.has("transfer-encoding"));
    assert_eq!(seen.trailers, [("x-sum".to_owned(), "42".to_owned())]);

    // A length that is declared is passed on.
    ask(
        &peer,
        &Ask::post("shop.test", "/length", "abc").with("content-length", "3"),
    )
    .await;
    let seen = origin.last();
    assert_eq!((seen.field("content-length"), &seen.body[..]), ("3", &b"abc"[..]));
    assert!(!seen.has("transfer-encoding"));

    let answer = ask(&peer, &Ask::new("HEAD", "shop.test", "/head")).await;
    assert_eq!(
        (answer.status, answer.field("content-length"), answer.body.len()),
        (200, "7000", 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_asked_at_one_time_and_none_waits_for_another() {
    let (go, wait) = sync_channel::<()>(0);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        let target = exchange.target();
        if target == "/0" {
            let _ = wait.lock().recv_timeout(PATIENCE);
        }
        exchange.reply(&target);
    });
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    let mut streams = Vec::new();
    for number in 0..100 {
        let ask = Ask::get("shop.test", &format!("/{number}"));
        streams.push(begin(&peer, &ask).await.unwrap());
    }
    for number in (0..100).rev() {
        if number == 0 {
            go.send(()).unwrap();
        }
        let answer = timeout(PATIENCE, end(&mut streams[number])).await.unwrap().unwrap();
        assert_eq!((answer.status, answer.text()), (200, format!("/{number}").as_str()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_declares_it_is_held_to() {
    let origin = Origin::mirror();
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    for (length, body) in [("4", "abc"), ("2", "abc"), ("3", "")] {
        let target = format!("/{length}-{}", body.len());
        let ended = try_ask(
            &peer,
            &Ask::post("shop.test", &target, body).with("content-length", length),
        )
        .await;
        // Whether it has an answer or not: it is none of the application's.
        if let Ok(answer) = ended {
            assert_eq!(answer.status, 400, "{target}: {answer:?}");
        }
        let line = access_line_of(&gateway, &target);
        assert_eq!(line["error_info"], "invalid_request", "{line}");
    }
    patiently("no request was whole", || {
        origin.seen().iter().all(|seen| !seen.is_whole)
    });
    for (name, value) in [
        ("content-length", "+3"),
        ("content-length", "3, 3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("proxy-connection", "close"),
    ] {
        let before = origin.seen().len();
        let answer = ask(&peer, &Ask::post("shop.test", "/bad", "abc").with(name, value)).await;
        assert_eq!(answer.status, 400, "{name}: {value}");
        assert_eq!(origin.seen().len(), before, "{name}: {value}");
    }
    let twice = Ask::post("shop.test", "/bad", "abc")
        .with("content-length", "3")
        .with("content-length", "3");
    assert_eq!(ask(&peer, &twice).await.status, 400);
    let mut fields = Ask::get("shop.test", "/fields");
    for number in 0..200 {
        fields = fields.with(&format!("x-{number}"), "x");
    }
    assert_eq!(ask(&peer, &fields).await.status, 431);
    // One client's mistakes end its streams and nothing else.
    assert_eq!(ask(&peer, &Ask::get("shop.test", "/well")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_of_an_application_is_refused_on_its_stream() {
    let origin = Origin::mirror();
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    let refused = |ask: Ask| {
        let peer = &peer;
        async move { try_ask(peer, &ask).await.map(|answer| answer.status) }
    };
    assert_eq!(
        refused(Ask::get("shop.test", "/").with("host", "shop.test"))
            .await
            .unwrap(),
        200
    );
    assert_eq!(refused(Ask::new("TRACE", "shop.test", "/")).await.unwrap(), 405);
    let tunnel = refused(Ask::new("POST", "gw.test", "/ice/tunnel?token")).await;
    assert_eq!(
        code_of(tunnel),
        Code::H3_VERSION_FALLBACK,
        "a tunnel has a connection of its own"
    );
    // Larger than a head may be: it is refused; and larger than this node reads: the stream ends. The connection does not.
    let large = Ask::get("shop.test", "/large").with("x-long", &"x".repeat(66_000));
    assert_eq!(refused(large).await.unwrap(), 431);
    let unread = |size: usize| Ask::get("shop.test", "/").with("x-long", &"x".repeat(size));
    assert!(refused(unread(100_000)).await.is_err());
    patiently("a line for each", || {
        let lines = access_lines(&gateway);
        let too_large = lines.iter().filter(|line| line["error_info"] == "head_too_large");
        let of_http3 = too_large.filter(|line| line["http_version"] == "HTTP/3.0" && line["http_status"] == 431);
        of_http3.count() == 2
    });
    assert_eq!(refused(Ask::get("shop.test", "/well")).await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_wants_no_answer_any_more_ends_its_request_at_the_target() {
    let (gone, closed) = sync_channel(1);
    let origin = Origin::new(move |exchange| match exchange.target().as_str() {
        "/silent" => {
            exchange.wait_until_closed();
            gone.send(()).unwrap();
        }
        _ => exchange.reply("shop"),
    });
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    let mut stream = begin(&peer, &Ask::get("shop.test", "/silent")).await.unwrap();
    origin.wait_for(1);
    stream.stop_sending(Code::H3_REQUEST_CANCELLED);
    closed
        .recv_timeout(PATIENCE)
        .expect("the target's connection is closed");
    let line = access_line_of(&gateway, "/silent");
    assert_eq!(
        (&line["http_status"], &line["error_info"]),
        (&499.into(), &"client_closed".into()),
        "{line}"
    );

    // And one that breaks its request off.
    let ask_for_much = Ask::post("shop.test", "/broken", "").with("content-length", "10");
    let mut stream = peer
        .requests
        .clone()
        .send_request(request(&ask_for_much))
        .await
        .unwrap();
    stream.send_data(Bytes::from_static(b"abc")).await.unwrap();
    origin.wait_for(2);
    stream.stop_stream(Code::H3_REQUEST_CANCELLED);
    let line = access_line_of(&gateway, "/broken");
    assert_eq!(line["error_info"], "client_closed", "{line}");
    assert_eq!(ask(&peer, &Ask::get("shop.test", "/well")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_does_not_read_keeps_its_client_waiting() {
    let (go, wait) = sync_channel::<()>(0);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        let _ = wait.lock().recv_timeout(PATIENCE);
        exchange.reply("read");
    });
    let gateway = shop(&origin).start();
    let peer = Peer::connect(&gateway).await;
    const PIECE: usize = 256 * 1024;
    const PIECES: usize = 256;
    let ask_for_much = Ask::post("shop.test", "/slow", "").with("content-length", &(PIECES * PIECE).to_string());
    let mut stream = peer
        .requests
        .clone()
        .send_request(request(&ask_for_much))
        .await
        .unwrap();
    origin.wait_for(1);
    let mut sent = 0;
    // What the client's own library keeps, the windows of QUIC, and the buffers of the kernel.
    while sent < PIECES
        && let Ok(taken) = timeout(Duration::from_secs(2), stream.send_data(vec![7; PIECE].into())).await
    {
        taken.unwrap();
        sent += 1;
    }
    assert!(sent < PIECES / 2, "all of {sent} pieces were taken");
    go.send(()).unwrap();
    // The piece that was given up in the middle is lost with its stream; others go on.
    drop(stream);
    let line = access_line_of(&gateway, "/slow");
    assert_eq!(line["error_info"], "client_closed", "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn informational_answers_come_first_and_nobody_waits_for_who_waits() {
    let origin = Origin::new(|exchange| {
        if exchange.target() == "/hints" {
            exchange.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
        }
        exchange.reply("shop");
    });
    let gateway = shop(&origin)
        .path(&["/buffered"], "pool = \"shop\"\nbackend = \"buffered\"")
        .table("[backend.buffered]\nprobe = \"quick\"\nbuffer_requests = true")
        .start();
    let peer = Peer::connect(&gateway).await;
    let answer = ask(&peer, &Ask::get("shop.test", "/hints")).await;
    assert_eq!((answer.status, answer.informed.len()), (200, 1));
    assert_eq!(answer.informed[0].0, 103);
    assert!(
        answer.informed[0]
            .1
            .contains(&("link".to_owned(), "</a.css>".to_owned())),
        "{answer:?}"
    );

    for target in ["/waits", "/buffered"] {
        let expecting = Ask::post("shop.test", target, "")
            .with("content-length", "3")
            .with("expect", "100-continue");
        let mut stream = peer.requests.clone().send_request(request(&expecting)).await.unwrap();
        let told = timeout(PATIENCE, stream.recv_response()).await.unwrap().unwrap();
        assert_eq!(told.status(), 100, "{target}");
        stream.send_data(Bytes::from_static(b"abc")).await.unwrap();
        stream.finish().await.unwrap();
        let answer = timeout(PATIENCE, end(&mut stream)).await.unwrap().unwrap();
        assert_eq!((answer.status, answer.informed.len()), (200, 0), "{target}");
        assert_eq!(origin.last().body, b"abc");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_for_which_another_certificate_was_shown_is_misdirected() {
    let authority = Authority::default();
    let (own, other) = (Origin::named("own"), Origin::named("other"));
    let gateway = Shop::of(&own)
        .hosts("hosts = [\"gw.test\"]\npriority = 10")
        .table(&format!(
            "[listener.second]\nbind = [\"127.0.0.2:0\"]\ncertificates = [\"own\", \"other\"]\nudp = true\n{}\
             [pool.other]\ntargets = [{}]\n[rule.other]\nhosts = [\"other.test\"]\npriority = 20\npool = \"other\"",
            authority.table("other", "other.test"),
            other.quoted()
        ))
        .start();
    // The handshake was for localhost: its certificate is for gw.test too, and not for other.test.
    let peer = Peer::connect_to(second_address(&gateway), &gateway.chain()).await;
    assert_eq!(ask(&peer, &Ask::get("gw.test", "/")).await.text(), "own");
    assert_eq!(ask(&peer, &Ask::get("other.test", "/misdirected")).await.status, 421);
    assert_eq!(access_line_of(&gateway, "/misdirected")["error_info"], "misdirected");
    assert!(other.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_gateway_and_an_application_for_any_host_keep_what_is_theirs() {
    let origin = Origin::mirror();
    let target = Target::echo();
    let gateway = shop(&origin)
        .hosts("priority = 10")
        .setup(|setup| setup.desktop("shell", target.address, "ssh"))
        .start();
    let peer = Peer::connect(&gateway).await;
    assert_eq!(ask(&peer, &Ask::get("localhost", "/session")).await.status, 200);
    let with_token_of_its_own = Ask::get("localhost", "/session").with("authorization", "Bearer a.b.c");
    assert_eq!(ask(&peer, &with_token_of_its_own).await.status, 200);
    assert_eq!(origin.seen().len(), 2);
    assert_eq!(
        ask(&peer, &Ask::get("localhost", "/favicon.ico"))
            .await
            .field("content-type"),
        "image/x-icon"
    );
    assert_eq!(ask(&peer, &Ask::get("localhost", "/broker/xml")).await.status, 405);

    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let bearer = format!("Bearer {}", user.token);
    assert_eq!(peer.connect_stream(&place, Some(&bearer)).await.0, 200);
    let session = Request::get("https://localhost/session").header("authorization", &bearer);
    let (status, _open) = peer.ask(session.body(()).unwrap()).await;
    assert_eq!(status, 200);
    assert_eq!(origin.seen().len(), 2, "the session's stream is not the application's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_without_sessions_has_no_ways_to_desktops() {
    let origin = Origin::mirror();
    let gateway = shop(&origin)
        .setup(|setup| setup.listener("session_gateway = false\n"))
        .start();
    let peer = Peer::connect(&gateway).await;
    let (status, _) = peer.connect_stream("rdp-1:1", Some("Bearer gw-1.x.y")).await;
    assert_eq!(status, 405);
    assert_eq!(ask(&peer, &Ask::get("shop.test", "/session")).await.status, 200);
    assert_eq!(ask(&peer, &Ask::get("else.test", "/")).await.status, 404);
}

#[test]
fn answers_over_tcp_tell_of_http3_where_it_is_served_unless_the_rule_takes_it_out() {
    let origin = Origin::saying("HTTP/1.1 200 OK\r\nAlt-Svc: h2=\"inside:81\"\r\nContent-Length: 0\r\n\r\n");
    let shop_with_udp = shop(&origin);
    let gateway = shop_with_udp.start();
    let told = |gateway: &Gateway, http: Http, host: &str| {
        let answer = http.connect(gateway).ask(&Ask::get(host, "/"));
        answer
            .fields("alt-svc")
            .iter()
            .map(|field| (*field).to_owned())
            .collect::<Vec<_>>()
    };
    for http in Http::BOTH {
        assert_eq!(told(&gateway, http, "shop.test"), ["h3=\":443\"; ma=86400"], "{http:?}");
        assert_eq!(
            told(&gateway, http, "shop.test:8443"),
            ["h3=\":8443\"; ma=86400"],
            "{http:?}"
        );
    }
    shop_with_udp
        .rule("response_headers = { remove = [\"Alt-Svc\"] }")
        .apply(&gateway);
    assert!(told(&gateway, Http::One, "shop.test").is_empty());
    let without = Shop::of(&origin).start();
    assert_eq!(
        told(&without, Http::One, "shop.test"),
        ["h2=\"inside:81\""],
        "the application's own stays"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_told_and_closed() {
    let origin = Origin::named("shop");
    let gateway = shop(&origin)
        .setup(|setup| setup.section("[limits]\nhead_timeout = \"1 s\""))
        .start();
    let peer = Peer::connect(&gateway).await;
    assert_eq!(ask(&peer, &Ask::get("shop.test", "/")).await.status, 200);
    let ended = timeout(PATIENCE, peer.connection.closed()).await.unwrap();
    assert!(
        matches!(&ended, quinn::ConnectionError::ApplicationClosed(close) if close.error_code.into_inner() == 0x100),
        "{ended:?}"
    );
}
