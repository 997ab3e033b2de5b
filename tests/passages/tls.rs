//! TLS to the targets, and TLS that passes to them.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::rig::{Sql, closed, connect, echoes, ends, name_of};
use crate::support::authority::Authority;
use crate::support::{Target, raw, read_all};

/// A target that speaks TLS under the certificate in these files, behind a PROXY header of so many bytes: it says its name
/// and sends back what comes.
fn secret((chain, key): &(PathBuf, PathBuf), header: usize) -> Target {
    let chain: Vec<_> = CertificateDer::pem_file_iter(chain)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    let config = Arc::new(config);
    Target::new(move |mut socket| {
        let mut before = vec![0; header];
        if socket.read_exact(&mut before).is_err() {
            return;
        }
        let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket);
        // Probes end after the handshake.
        if stream.write_all(b"s").and_then(|()| stream.flush()).is_err() {
            return;
        }
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&bytes[..length]).is_err() {
                return;
            }
        }
        stream.conn.send_close_notify();
        let _ = stream.flush();
    })
}

fn ca(authority: &Authority) -> String {
    format!("ca = {:?}", authority.certificate().display().to_string())
}

#[test]
fn a_target_has_to_prove_that_it_is_the_one() {
    let (authority, other) = (Authority::default(), Authority::default());
    let target = secret(&authority.issue("db.test"), 0);
    let tls = |tls: &str| Sql::of(&[target.address]).backend_as("tls", &format!("tls = {{ {tls} }}"));
    let good = format!("{}, name = \"db.test\"", ca(&authority));
    let gateway = tls(&good).start();
    let mut stream = connect(&gateway);
    assert_eq!(name_of(&mut stream), Some('s'));
    assert!(echoes(&mut stream), "in clear here, with TLS behind");
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut stream), b"");
    closed(&gateway, "completed");
    for wrong in [
        format!("{}, name = \"x.test\"", ca(&authority)),
        format!("{}, name = \"db.test\"", ca(&other)),
        // Without a name: for its address.
        ca(&authority),
    ] {
        let gateway = tls(&wrong).start();
        assert!(ends(&mut connect(&gateway)), "{wrong}");
        assert_eq!(closed(&gateway, "no_target")["fault"], "upstream_tls", "{wrong}");
    }
}

#[test]
fn a_target_is_who_its_address_says_unless_a_name_is_given() {
    let authority = Authority::default();
    let target = secret(&authority.issue("127.0.0.1"), 0);
    let gateway = Sql::of(&[target.address])
        .backend_as("tls", &format!("tls = {{ {} }}", ca(&authority)))
        .start();
    assert_eq!(name_of(&mut connect(&gateway)), Some('s'));
}

#[test]
fn a_probe_takes_the_same_way_with_tls_and_a_header_before_it() {
    let authority = Authority::default();
    let (well, gone) = (
        secret(&authority.issue("db.test"), 28),
        secret(&authority.issue("x.test"), 28),
    );
    let probed = Target::new(|_| {});
    let sql = |target: &Target| {
        let tls = format!(
            "tls = {{ {}, name = \"db.test\" }}\nproxy_protocol = true",
            ca(&authority)
        );
        Sql::of(&[target.address]).backend_as("tls", &tls)
    };
    let gateway = sql(&well).start();
    let mut stream = connect(&gateway);
    assert_eq!(name_of(&mut stream), Some('s'), "the header comes before TLS");
    assert!(echoes(&mut stream));
    // Sixteen bytes name nobody: that is the header of a probe.
    let asked = secret(&authority.issue("db.test"), 16);
    for (target, word) in [(&asked, "healthy"), (&gone, "unhealthy"), (&probed, "unhealthy")] {
        let gateway = sql(target)
            .probe("interval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 1")
            .start();
        crate::rig::patiently(word, || {
            crate::rig::asked(&gateway, "/api/v1/pools").contains(&format!("\"condition\":\"{word}\""))
        });
    }
}

#[test]
fn tls_may_pass_to_the_target_that_its_name_chooses() {
    let authority = Authority::default();
    let identity = authority.issue("db.test");
    let target = secret(&identity, 0);
    let gateway = Sql::of(&[target.address])
        .passthrough()
        .rule("hosts = [\"db.test\"]")
        .start();
    // The client sees the target's own certificate, and no other would do.
    let named = |name: &str| raw::tls_named(connect(&gateway), &identity.0, name);
    let mut stream = named("db.test");
    assert_eq!(name_of(&mut stream), Some('s'));
    assert!(echoes(&mut stream));
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(read_all(&mut stream), b"");
    drop(stream);
    let line = closed(&gateway, "completed");
    assert_eq!(
        (&line["sni"], &line["tls"]),
        (&"db.test".into(), &serde_json::Value::Null)
    );
    let dialled = target.dialled();
    assert_eq!(name_of(&mut named("other.test")), None);
    assert_eq!(closed(&gateway, "no_rule")["sni"], "other.test");
    assert_eq!(target.dialled(), dialled);
}
