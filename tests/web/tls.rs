//! TLS to the inside: whom a target has to be, what it is asked under, and what this node shows it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use crate::probes::told;
use crate::rig::inside_http2::{Inside, Said};
use crate::rig::names::{Names, Record};
use crate::rig::{Ask, Http, Origin, Shop, access_line_of, patiently, send};
use crate::support::authority::Authority;

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// TLS as a target speaks it, under the certificate in these files.
fn server((chain, key): &(impl AsRef<Path>, impl AsRef<Path>)) -> Arc<ServerConfig> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(chain)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

fn origin(identity: &(impl AsRef<Path>, impl AsRef<Path>)) -> Origin {
    Origin::tls(server(identity), |exchange| exchange.reply("secret"))
}

fn ca(authority: &Authority) -> String {
    format!("ca = {:?}", authority.certificate().display().to_string())
}

#[test]
fn a_target_that_proves_to_be_the_host_that_it_is_asked_under_is_believed() {
    let authority = Authority::default();
    let origin = origin(&authority.issue("shop.test"));
    let gateway = Shop::of(&origin)
        .backend(&format!("tls = {{ {} }}", ca(&authority)))
        .start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        assert_eq!((answer.status, answer.text()), (200, "secret"), "{http:?}");
        let seen = origin.last();
        assert_eq!((seen.sni.as_deref(), seen.has_certificate), (Some("shop.test"), false));
    }
    origin.wait_for_probes(1);
    assert_eq!(
        send(&gateway, Ask::get("shop.test", "/").bytes()).status,
        200,
        "the probe is content too"
    );
}

#[test]
fn the_name_that_is_asked_for_is_the_one_that_is_expected() {
    let authority = Authority::default();
    let origin = origin(&authority.issue("inside.test"));
    let ca = ca(&authority);
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    for lines in [
        format!("tls = {{ {ca}, name = \"inside.test\" }}"),
        format!("host = \"inside.test\"\ntls = {{ {ca} }}"),
        format!("host = \"inside.test:8443\"\ntls = {{ {ca} }}"),
    ] {
        shop.clone().backend(&lines).apply(&gateway);
        patiently(&lines, || {
            send(&gateway, Ask::get("shop.test", "/").bytes()).status == 200
        });
        assert_eq!(origin.last().sni.as_deref(), Some("inside.test"), "{lines}");
    }
}

#[test]
fn an_address_is_never_asked_for_as_a_name() {
    let authority = Authority::default();
    let origin = origin(&authority.issue("127.0.0.1"));
    let gateway = Shop::of(&origin)
        .backend(&format!("host = \"target\"\ntls = {{ {} }}", ca(&authority)))
        .start();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).status, 200);
    assert_eq!(origin.last().sni, None);
}

#[test]
fn who_does_not_prove_it_gets_nothing() {
    let (authority, other) = (Authority::default(), Authority::default());
    let folder = tempfile::tempdir().unwrap();
    let origins = [
        ("name", origin(&authority.issue("else.test"))),
        ("issuer", origin(&other.issue("shop.test"))),
        ("expired", origin(&expired(folder.path()))),
    ];
    for (what, origin) in &origins {
        let ca = if *what == "expired" {
            format!("ca = {:?}", folder.path().join("expired.crt").display().to_string())
        } else {
            ca(&authority)
        };
        let gateway = Shop::of(origin).backend(&format!("tls = {{ {ca} }}")).start();
        for http in Http::BOTH {
            let target = format!("/{what}-{http:?}");
            let answer = http.connect(&gateway).ask(&Ask::post("shop.test", &target, "a secret"));
            assert_eq!(answer.status, 502, "{what} {http:?}");
            let line = access_line_of(&gateway, &target);
            let error = line["error_info"].as_str().unwrap();
            assert!(["upstream_tls", "no_healthy_target"].contains(&error), "{line}");
        }
        assert!(
            origin.seen().is_empty() && origin.probes().is_empty(),
            "{what}: not a byte was sent"
        );
    }
}

/// A certificate for `shop.test` that is its own issuer and has expired.
fn expired(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    good_in(folder, "expired", [2020, 2021])
}

/// One that is good from the first to the second of these years.
fn good_in(folder: &Path, name: &str, [from, to]: [i32; 2]) -> (std::path::PathBuf, std::path::PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["shop.test".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    let (chain, key_file) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    fs::write(&chain, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    (chain, key_file)
}

/// A certificate for `shop.test` that is its own issuer, under a name that nobody trusts.
fn strange(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["shop.test".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "Strangers");
    let certificate = params.self_signed(&key).unwrap();
    let (chain, key_file) = (folder.join("strange.crt"), folder.join("strange.key"));
    fs::write(&chain, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    (chain, key_file)
}

#[test]
fn each_check_can_be_left_out_by_its_own_switch() {
    let (authority, other) = (Authority::default(), Authority::default());
    let folder = tempfile::tempdir().unwrap();
    let wrong_name = origin(&authority.issue("else.test"));
    let wrong_issuer = origin(&other.issue("shop.test"));
    let expired = origin(&expired(folder.path()));
    let ca = ca(&authority);
    for (origin, switches, expected) in [
        (&wrong_name, "accept_any_name = true", 200),
        (&wrong_name, "accept_any_certificate = true", 502),
        (&wrong_issuer, "accept_any_certificate = true", 200),
        (&wrong_issuer, "accept_any_name = true", 502),
        (&expired, "accept_any_certificate = true", 200),
        (
            &wrong_name,
            "accept_any_name = true, accept_any_certificate = true",
            200,
        ),
    ] {
        // Who believes anybody names no authority.
        let authorities = if switches.contains("certificate") {
            String::new()
        } else {
            format!("{ca}, ")
        };
        let shop = Shop::of(origin).backend(&format!("tls = {{ {authorities}{switches} }}"));
        let gateway = Http::One;
        let running = shop.start();
        let answer = gateway.connect(&running).ask(&Ask::get("shop.test", "/"));
        assert_eq!(answer.status, expected, "{switches}");
    }
}

#[test]
fn a_target_that_wants_a_certificate_is_shown_one() {
    let authority = Authority::default();
    let identity = authority.issue("shop.test");
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority.certificate()).unwrap())
        .unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .unwrap();
    let chain: Vec<_> = CertificateDer::pem_file_iter(&identity.0)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&identity.1).unwrap())
        .unwrap();
    let origin = Origin::tls(Arc::new(config), |exchange| exchange.reply("secret"));
    let tls = format!("tls = {{ {}, certificate = \"node\" }}", ca(&authority));
    let gateway = Shop::of(&origin)
        .backend(&tls)
        .table(&authority.table("node", "gw-1.test"))
        .start();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).text(), "secret");
    assert!(origin.last().has_certificate);
    // And without one it admits nobody.
    let without = Shop::of(&origin).backend(&format!("tls = {{ {} }}", ca(&authority)));
    without.apply(&gateway);
    patiently("it turns this node away", || {
        send(&gateway, Ask::get("shop.test", "/").bytes()).status == 502
    });
}

#[test]
fn the_operator_is_told_of_the_tls_of_a_target_and_of_what_is_wrong_with_it() {
    let (authority, other) = (Authority::default(), Authority::default());
    let folder = tempfile::tempdir().unwrap();
    let origins = [
        ("", origin(&authority.issue("shop.test"))),
        ("name_mismatch", origin(&authority.issue("else.test"))),
        ("unknown_authority", origin(&strange(folder.path()))),
        // Of an authority that has the same name, and another key.
        ("bad_certificate", origin(&other.issue("shop.test"))),
        ("certificate_expired", origin(&expired(folder.path()))),
        (
            "certificate_not_yet_valid",
            origin(&good_in(folder.path(), "early", [2090, 2091])),
        ),
    ];
    let own = ["expired.crt", "early.crt"].map(|file| folder.path().join(file));
    let both = [vec![authority.certificate()], own.to_vec()].concat();
    let both: Vec<_> = both.iter().map(|file| fs::read(file).unwrap()).collect();
    let bundle = folder.path().join("bundle.pem");
    fs::write(&bundle, both.concat()).unwrap();
    let all: Vec<_> = origins.iter().map(|(_, origin)| origin).collect();
    let gateway = Shop::of_all(&all)
        .backend(&format!("tls = {{ ca = {:?} }}", bundle.display().to_string()))
        .start();
    for (place, (reason, _)) in origins.iter().enumerate() {
        let mut last = serde_json::Value::Null;
        patiently("a result", || {
            let results = &told(&gateway)["targets"][place]["results"];
            last = results.get(0).cloned().unwrap_or_default();
            !last.is_null()
        });
        assert_eq!(last["reason"].as_str().unwrap_or_default(), *reason, "{last}");
        assert!(!last["words"].to_string().contains("secret"));
        let facts = (last["tls"].as_str(), last["certificate_expires"].as_str());
        if reason.is_empty() {
            assert!(facts.0.unwrap().starts_with("TLSv1_3 TLS13_AES"), "{last}");
            assert!(facts.1.unwrap().starts_with(char::is_numeric), "{last}");
        } else {
            assert_eq!(facts, (None, None), "{last}");
        }
    }
}

#[test]
fn the_last_twenty_probes_of_a_target_are_kept_with_all_that_was_seen() {
    let (authority, names) = (Authority::default(), Names::start());
    let origin = origin(&authority.issue("app.inside.test"));
    names.set("app.inside.test", Record::Addresses(vec![Ipv4Addr::LOCALHOST], 1));
    // Two that fail, and then none.
    origin.answer_probes_with(503);
    let gateway = Shop::with_targets(&[format!("\"app.inside.test:{}\"", origin.address.port())])
        .table(&format!("[resolver]\nservers = [\"{}\"]", names.address))
        .backend(&format!("host = \"target\"\ntls = {{ {} }}", ca(&authority)))
        .start();
    origin.wait_for_probes(2);
    origin.answer_probes_with(200);
    // Users' requests ask for the same name.
    patiently("it serves", || {
        send(&gateway, Ask::get("shop.test", "/").bytes()).status == 200
    });
    assert_eq!(origin.last().sni.as_deref(), Some("app.inside.test"));
    let results = || {
        told(&gateway)["targets"][0]["results"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let failed = |results: &[serde_json::Value]| results.iter().filter(|it| it["reason"] == "status_mismatch").count();
    let mut last = results();
    assert!(failed(&last) > 0, "{last:?}");
    while failed(&last) > 0 {
        origin.wait_for_probes(1);
        last = results();
        assert!(last.len() <= 20, "more than there may be");
    }
    assert_eq!(last.len(), 20, "the first went to make room");
    for (newer, older) in last.iter().zip(&last[1..]) {
        assert!(newer["at"].as_str() > older["at"].as_str(), "{newer} {older}");
    }
    for result in &last {
        assert_eq!(
            (&result["status"], &result["reason"]),
            (&200.into(), &serde_json::Value::Null)
        );
        assert_eq!(result["address"], origin.address.to_string(), "{result}");
        assert!(
            result["milliseconds"].as_u64().is_some_and(|taken| taken < 1000),
            "{result}"
        );
        assert!(
            result["tls"].as_str().unwrap().starts_with("TLSv1_3 TLS13_"),
            "{result}"
        );
        assert!(result["certificate_expires"].is_string(), "{result}");
    }
}

#[test]
fn http_2_is_agreed_in_the_handshake_with_a_target_that_has_it() {
    let authority = Authority::default();
    let config = Arc::unwrap_or_clone(server(&authority.issue("shop.test")));
    let inside = Inside::tls(config, |called| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Said {
            head: Response::new(()),
            body: vec![Bytes::from(called.body.clone())],
            trailers: Some(trailers),
        }
    });
    let backend = format!("version = \"2\"\ntls = {{ {} }}", ca(&authority));
    let gateway = Shop::with_targets(&[format!("\"{}\"", inside.address)])
        .backend(&backend)
        .start();
    for http in Http::BOTH {
        let ask = Ask::post("shop.test", "/shop.Service/Call", "hi").with("te", "trailers");
        let answer = http.connect(&gateway).ask(&ask);
        assert_eq!((answer.status, answer.text()), (200, "hi"), "{http:?}");
        assert_eq!(
            answer.trailers,
            [("grpc-status".to_owned(), "0".to_owned())],
            "{http:?}"
        );
        let called = inside.called().pop().unwrap();
        assert_eq!(called.head.uri().scheme_str(), Some("https"));
        assert_eq!(called.head.uri().authority().unwrap(), "shop.test");
    }
    // One that has not agreed to it is not spoken to in it.
    let one = origin(&authority.issue("shop.test"));
    let gateway = Shop::of(&one).backend(&backend).start();
    let answer = send(&gateway, Ask::get("shop.test", "/one").bytes());
    assert_eq!(answer.status, 502);
    let error = access_line_of(&gateway, "/one")["error_info"].clone();
    assert!(error == "upstream_tls" || error == "no_healthy_target", "{error}");
    assert!(one.seen().is_empty());
}

#[test]
fn a_target_that_speaks_no_more_than_tls_1_2_is_spoken_to_in_that() {
    let authority = Authority::default();
    let (chain, key) = authority.issue("shop.test");
    let chain = CertificateDer::pem_file_iter(chain)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    let origin = Origin::tls(Arc::new(config), |exchange| exchange.reply("old"));
    let gateway = Shop::of(&origin)
        .backend(&format!("tls = {{ {} }}", ca(&authority)))
        .start();
    for http in Http::BOTH {
        assert_eq!(
            http.connect(&gateway).ask(&Ask::get("shop.test", "/")).text(),
            "old",
            "{http:?}"
        );
    }
    patiently("a probe tells of it", || {
        let results = &told(&gateway)["targets"][0]["results"];
        results[0]["tls"]
            .as_str()
            .is_some_and(|tls| tls.starts_with("TLSv1_2 "))
    });
}

#[test]
fn a_target_that_speaks_no_tls_is_502() {
    let authority = Authority::default();
    let origin = Origin::named("plain");
    let gateway = Shop::of(&origin)
        .backend(&format!("tls = {{ {} }}", ca(&authority)))
        .start();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).status, 502);
    assert!(origin.seen().is_empty());
}
