//! TLS with a client of the same library, and with none.

use std::sync::Arc;

use portcullis::fault::{CloseReason, WebFault};
use portcullis::inspect::guard::misdirected;
use portcullis::secure::{LoadFault, Problem};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, CipherSuite, NamedGroup, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Gate, Store, agree, client};

#[tokio::test]
async fn the_best_is_agreed_with_a_client_that_knows_it() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let mut tls = client(&store);
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let agreed = agree(&Arc::new(tls), gate.connect().await, "GW.test").await.unwrap();
    assert_eq!(agreed.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let secured = gate.outcome().await.unwrap();
    let facts = secured.tls();
    assert_eq!(facts.version, ProtocolVersion::TLSv1_3);
    assert_eq!(facts.suite, CipherSuite::TLS13_AES_256_GCM_SHA384);
    assert_eq!(facts.group, Some(NamedGroup::X25519MLKEM768));
    assert_eq!(facts.sni.as_deref(), Some("gw.test"));
    assert!(facts.alpn && facts.h2 && !facts.resumed);
    assert_eq!(facts.to_string(), "TLSv1_3 TLS13_AES_256_GCM_SHA384 X25519MLKEM768");
}

#[tokio::test]
async fn an_unknown_application_protocol_is_refused_by_name_and_none_is_fine() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let mut tls = client(&store);
    tls.alpn_protocols = vec![b"h2c".to_vec()];
    let refused = agree(&Arc::new(tls.clone()), gate.connect().await, "gw.test")
        .await
        .unwrap_err();
    let alert = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    assert_eq!(refused.get_ref().unwrap().downcast_ref(), Some(&alert));
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::TlsFailed);

    tls.alpn_protocols.clear();
    let _agreed = agree(&Arc::new(tls), gate.connect().await, "gw.test").await.unwrap();
    assert!(!gate.outcome().await.unwrap().tls().alpn);
}

#[tokio::test]
async fn each_name_gets_its_certificate() {
    let store = Store::new()
        .with("first", &["gw.test", "127.0.0.1"])
        .with("other", &["Other.test"])
        .with("wild", &["*.wild.test", "special.wild.test"])
        .with("special", &["special.wild.test", "a.b.wild.test"]);
    let mut gate = Gate::open(store.load(&["first", "other", "wild", "special"]).unwrap());
    let tls = Arc::new(client(&store));
    for (asked, served) in [
        ("gw.test", "first"),
        ("OTHER.test", "other"),
        ("a.wild.test", "wild"),
        ("special.wild.test", "wild"),
        ("a.b.wild.test", "special"),
        ("127.0.0.1", "first"),
    ] {
        let agreed = agree(&tls, gate.connect().await, asked).await.unwrap();
        let expected = CertificateDer::from_pem_file(store.chain(served)).unwrap();
        assert_eq!(agreed.get_ref().1.peer_certificates(), Some(&[expected][..]), "{asked}");
        let secured = gate.outcome().await.unwrap();
        assert_eq!(secured.tls().sni.is_some(), asked.parse::<std::net::IpAddr>().is_err());
    }
    let warned: Vec<_> = store
        .load(&["wild", "special"])
        .unwrap()
        .warnings()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        matches!(&warned[..], [one] if one.contains("special.wild.test")),
        "{warned:?}"
    );
}

#[test]
fn a_host_belongs_to_a_connection_whose_certificate_speaks_for_it() {
    let store = Store::new()
        .with("gw", &["gw.test", "*.gw.test"])
        .with("shop", &["shop.test", "gw.test", "192.0.2.1"])
        .with("deep", &["a.b.shop.test"]);
    let certificates = store.load(&["gw", "shop", "deep"]).unwrap();
    for (sni, host, belongs) in [
        (Some("gw.test"), "gw.test", true),
        (Some("gw.test"), "any.gw.test", true),
        (Some("gw.test"), "shop.test", false),
        (Some("any.gw.test"), "shop.test", false),
        // Both speak for it, whichever is served to those who ask for it.
        (Some("shop.test"), "gw.test", true),
        (Some("shop.test"), "any.gw.test", false),
        (Some("shop.test"), "a.b.shop.test", false),
        // Nothing speaks for these: another connection would be shown the same certificate, or the default.
        (Some("shop.test"), "b.shop.test", true),
        (Some("shop.test"), "unknown.test", true),
        (Some("shop.test"), "192.0.2.9", true),
        // The default is served to them.
        (Some("unknown.test"), "gw.test", true),
        (Some("unknown.test"), "shop.test", false),
        (None, "shop.test", true),
    ] {
        let verdict = misdirected(&certificates, sni, host);
        assert_eq!(verdict.is_ok(), belongs, "{sni:?} {host}");
        assert!(belongs || verdict == Err(WebFault::Misdirected));
    }
}

#[tokio::test]
async fn a_reload_serves_the_next_handshake_and_leaves_open_connections() {
    let mut store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let before = Arc::new(client(&store));
    let mut open = agree(&before, gate.connect().await, "gw.test").await.unwrap();
    let (mut served, _facts, _tls, _permit) = gate.outcome().await.unwrap().into_parts();

    store.renew("gw", &["gw.test"]);
    gate.serve(store.load(&["gw"]).unwrap());
    let _next = agree(&Arc::new(client(&store)), gate.connect().await, "gw.test")
        .await
        .unwrap();
    gate.outcome().await.unwrap();

    open.write_all(b"ping").await.unwrap();
    served.read_exact(&mut [0; 4]).await.unwrap();
    served.write_all(b"pong").await.unwrap();
    served.flush().await.unwrap();
    open.read_exact(&mut [0; 4]).await.unwrap();
}

#[tokio::test]
async fn a_ticket_outlives_a_reload() {
    let mut store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let mut tls = client(&store);
    let versions: [&[&rustls::SupportedProtocolVersion]; 2] = [&[&rustls::version::TLS13], &[&rustls::version::TLS12]];
    for versions in versions {
        let once = rustls::ClientConfig::builder_with_provider(Arc::clone(tls.crypto_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates({
                let mut roots = rustls::RootCertStore::empty();
                roots
                    .add(CertificateDer::from_pem_file(store.chain("gw")).unwrap())
                    .unwrap();
                roots
            })
            .with_no_client_auth();
        tls = once;
        let tls = Arc::new(tls.clone());
        let mut agreed = agree(&tls, gate.connect().await, "gw.test").await.unwrap();
        let (mut served, ..) = gate.outcome().await.unwrap().into_parts();
        served.write_all(b"x").await.unwrap();
        served.flush().await.unwrap();
        agreed.read_exact(&mut [0]).await.unwrap();

        store.renew("gw", &["gw.test"]);
        gate.serve(store.load(&["gw"]).unwrap());
        let _again = agree(&tls, gate.connect().await, "gw.test").await.unwrap();
        assert!(gate.outcome().await.unwrap().tls().resumed, "{versions:?}");
    }
}

#[tokio::test]
async fn a_set_with_a_fault_is_refused_with_all_its_faults_and_the_old_one_stays() {
    let mut store = Store::new()
        .with("gw", &["gw.test"])
        .with("second", &["second.test"])
        .with("third", &["third.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let old = Arc::new(client(&store));
    let key = std::fs::read(store.key("gw")).unwrap();
    store.renew("gw", &["gw.test"]);
    std::fs::write(store.key("gw"), key).unwrap();
    std::fs::write(store.chain("second"), "garbage").unwrap();
    std::fs::remove_file(store.key("third")).unwrap();

    let faults = store.load(&["gw", "second", "third", "fourth"]).unwrap_err();
    let of: Vec<_> = faults
        .iter()
        .map(|LoadFault { certificate, .. }| certificate.as_str())
        .collect();
    assert_eq!(of, ["gw", "second", "third", "fourth"]);
    assert_eq!(faults[0].problem, Problem::Mismatch { key: store.key("gw") });

    let _served = agree(&old, gate.connect().await, "gw.test").await.unwrap();
    assert!(gate.outcome().await.is_ok());
}

#[tokio::test]
async fn plain_http_is_told_to_use_https() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let mut io = gate.connect().await;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: gw.test\r\nCookie: {}\r\n\r\n",
        "x".repeat(8000)
    );
    io.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 400 ") && head.contains("Connection: close"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    assert!(body.contains("https://"));
    assert!(
        gate.outcomes.is_empty(),
        "the node waits for the client to close, so that the answer is not lost"
    );
    drop(io);
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::Malformed);
}

#[tokio::test]
async fn bytes_that_are_no_tls_end_the_connection() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    for bytes in [
        &b"\x00\x00\x00\x00\x00"[..],
        b"\x80\x2e\x01\x03\x01",
        b"\x16\x03\x01\xff\xff",
        b"\x17\x03\x03\x00\x01\x00",
    ] {
        let mut io = gate.connect().await;
        io.write_all(bytes).await.unwrap();
        assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::TlsFailed, "{bytes:?}");
        let mut rest = Vec::new();
        io.read_to_end(&mut rest).await.ok();
        assert!(
            rest.is_empty() || rest.starts_with(b"\x15"),
            "an alert or nothing: {rest:?}"
        );
    }
}

#[tokio::test]
async fn an_endless_client_hello_is_cut_off() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::open(store.load(&["gw"]).unwrap());
    let mut io = gate.connect().await;
    // A ClientHello that announces 16 MiB, in records of 16 KiB.
    let mut record = vec![0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0xff, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    let mut sent = 0;
    while io.write_all(&record).await.is_ok() {
        sent += record.len();
        record[5..9].fill(0);
        assert!(sent < 64 << 20, "endless");
    }
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::TlsFailed);
}
