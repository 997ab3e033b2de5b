//! TLS with OpenSSL's own client, and with keys and certificates that its tools made.

use std::process::{Output, Stdio};

use portcullis::fault::CloseReason;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{Gate, Store};

/// Runs a tool in the store's directory.
fn tool(store: &Store, command: &str) {
    let output = std::process::Command::new("openssl")
        .args(command.split_whitespace())
        .current_dir(store.path())
        .output()
        .expect("openssl is installed");
    assert!(
        output.status.success(),
        "openssl {command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A self-signed certificate for the key that lies there as `name.key`.
fn certify(store: &mut Store, name: &str) {
    let subject = format!("-subj /CN={name} -addext subjectAltName=DNS:gw.test,DNS:*.wild.test -days 30");
    tool(store, &format!("req -x509 -key {name}.key -out {name}.pem {subject}"));
    store.add(name);
}

fn with_key(generate: &str) -> Store {
    let mut store = Store::new();
    for command in generate.split(';') {
        tool(&store, command);
    }
    certify(&mut store, "gw");
    store
}

fn p256() -> Store {
    with_key("ecparam -name prime256v1 -genkey -noout -out gw.key")
}

/// Connects and stays until the node has said a line and closed.
async fn s_client(gate: &mut Gate, arguments: &str) -> (Output, Result<String, CloseReason>) {
    let mut child = Command::new("openssl")
        .args(["s_client", "-connect", &gate.address.to_string()])
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("openssl is installed");
    let stdin = child.stdin.take();
    let agreed = match gate.outcome().await {
        Ok(secured) => {
            let facts = secured.tls().to_string();
            let (mut io, ..) = secured.into_parts();
            io.write_all(b"served\n").await.unwrap();
            io.shutdown().await.unwrap();
            Ok(facts)
        }
        Err(reason) => Err(reason),
    };
    let output = child.wait_with_output().await.unwrap();
    drop(stdin);
    (output, agreed)
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test]
async fn every_form_of_key_is_served() {
    for generate in [
        "ecparam -name prime256v1 -genkey -out gw.key",
        "ecparam -name prime256v1 -genkey -noout -out gw.key",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out gw.key",
        "ecparam -name secp384r1 -genkey -noout -out gw.key",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out gw.key",
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out gw.key",
        "genrsa -traditional -out gw.key 2048",
        "genpkey -algorithm ED25519 -out gw.key",
    ] {
        let store = with_key(generate);
        let mut gate = Gate::open(
            store
                .load(&["gw"])
                .unwrap_or_else(|faults| panic!("{generate}: {faults:?}")),
        );
        let trust = format!(
            "-CAfile {} -verify_return_error -verify_hostname gw.test",
            store.chain("gw").display()
        );
        let (output, agreed) = s_client(&mut gate, &format!("-servername gw.test {trust}")).await;
        let text = text(&output);
        assert!(
            agreed.is_ok() && text.contains("served") && text.contains("Verification: OK"),
            "{generate}: {text}"
        );
    }
}

#[tokio::test]
async fn keys_that_cannot_be_served_are_named() {
    for (generate, words) in [
        ("ecparam -name secp256k1 -genkey -noout -out gw.key", "P-256"),
        (
            "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out gw.key",
            "2048",
        ),
        (
            "genrsa -aes256 -passout pass:x -out gw.key 2048; req -x509 -passin pass:x -key gw.key -out gw.pem -subj /CN=x",
            "decrypt",
        ),
        (
            "genrsa -traditional -aes256 -passout pass:x -out gw.key 2048; req -x509 -passin pass:x -key gw.key -out gw.pem -subj /CN=x",
            "decrypt",
        ),
    ] {
        let mut store = Store::new();
        for command in generate.split(';') {
            tool(&store, command);
        }
        if !store.chain("gw").exists() {
            certify(&mut store, "gw");
        }
        store.add("gw");
        let faults = store.load(&["gw"]).unwrap_err();
        assert!(
            matches!(&faults[..], [one] if one.to_string().contains(words)),
            "{generate}: {faults:?}"
        );
    }
}

#[tokio::test]
async fn old_versions_and_unauthenticated_encryption_are_refused() {
    let mut gate = Gate::open(p256().load(&["gw"]).unwrap());
    for (arguments, alert) in [
        ("-tls1 -cipher DEFAULT@SECLEVEL=0", "alert handshake failure"),
        ("-tls1_1 -cipher DEFAULT@SECLEVEL=0", "alert handshake failure"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES256-SHA384", "alert handshake failure"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA", "alert handshake failure"),
        ("-tls1_2 -cipher AES256-GCM-SHA384", "alert handshake failure"),
        ("-tls1_2 -cipher DHE-RSA-AES256-GCM-SHA384", "alert handshake failure"),
    ] {
        let (output, agreed) = s_client(&mut gate, arguments).await;
        assert_eq!(agreed, Err(CloseReason::TlsFailed), "{arguments}");
        assert!(text(&output).contains(alert), "{arguments}: {}", text(&output));
    }
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_agreed() {
    let mut gate = Gate::open(p256().load(&["gw"]).unwrap());
    for (arguments, facts) in [
        ("-tls1_2", "TLSv1_2 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 X25519"),
        (
            "-tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLSv1_2 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 X25519",
        ),
        ("-tls1_3", "TLSv1_3 TLS13_AES_256_GCM_SHA384 X25519"),
        (
            "-tls1_3 -curves P-256 -ciphersuites TLS_CHACHA20_POLY1305_SHA256",
            "TLSv1_3 TLS13_CHACHA20_POLY1305_SHA256 secp256r1",
        ),
    ] {
        let (output, agreed) = s_client(&mut gate, arguments).await;
        assert_eq!(agreed.as_deref(), Ok(facts), "{}", text(&output));
    }
}

#[tokio::test]
async fn application_protocols_are_agreed_or_refused_by_alert_120() {
    let mut gate = Gate::open(p256().load(&["gw"]).unwrap());
    for (arguments, said) in [
        ("-alpn http/1.1", "ALPN protocol: http/1.1"),
        ("-alpn h2,http/1.1", "ALPN protocol: h2"),
        ("-alpn http/1.1,h2", "ALPN protocol: h2"),
        ("", "No ALPN negotiated"),
        ("-alpn foo", "SSL alert number 120"),
        ("-alpn http/1.0", "SSL alert number 120"),
    ] {
        let (output, agreed) = s_client(&mut gate, arguments).await;
        assert_eq!(agreed.is_err(), said.contains("alert"), "{arguments}");
        assert!(text(&output).contains(said), "{arguments}: {}", text(&output));
    }
}

#[tokio::test]
async fn a_probe_that_names_an_address_gets_the_default_certificate() {
    let mut gate = Gate::open(p256().load(&["gw"]).unwrap());
    for arguments in [
        "-servername 127.0.0.1",
        "-servername ::1",
        "-noservername",
        "-servername 127.0.0.1 -tls1_2",
    ] {
        let (output, agreed) = s_client(&mut gate, arguments).await;
        assert!(
            agreed.is_ok() && text(&output).contains("CN = gw"),
            "{arguments}: {}",
            text(&output)
        );
    }
}

#[tokio::test]
async fn names_find_their_certificate_and_unknown_ones_the_default() {
    let mut store = Store::new().with("first", &["first.test"]);
    tool(&store, "ecparam -name prime256v1 -genkey -noout -out wild.key");
    certify(&mut store, "wild");
    let mut gate = Gate::open(store.load(&["first", "wild"]).unwrap());
    for (name, subject) in [
        ("first.test", "CN = first.test"),
        ("gw.test", "CN = wild"),
        ("A.Wild.Test", "CN = wild"),
        ("a.b.wild.test", "CN = first.test"),
        ("wild.test", "CN = first.test"),
        ("gw.test.", "CN = wild"),
        ("unknown.test", "CN = first.test"),
    ] {
        let (output, agreed) = s_client(&mut gate, &format!("-servername {name}")).await;
        assert!(
            agreed.is_ok() && text(&output).contains(subject),
            "{name}: {}",
            text(&output)
        );
    }
}

#[tokio::test]
async fn rsa_is_served_only_to_clients_without_ecdsa() {
    let mut store = Store::new();
    tool(
        &store,
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.key",
    );
    certify(&mut store, "rsa");
    tool(&store, "ecparam -name prime256v1 -genkey -noout -out ec.key");
    certify(&mut store, "ec");
    let mut gate = Gate::open(store.load(&["rsa", "ec"]).unwrap());
    for (arguments, subject) in [
        ("-servername gw.test", "CN = ec"),
        ("-noservername", "CN = ec"),
        ("-servername gw.test -sigalgs rsa_pss_rsae_sha256", "CN = rsa"),
        ("-noservername -tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256", "CN = rsa"),
        (
            "-servername x.wild.test -tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256",
            "CN = ec",
        ),
    ] {
        let (output, agreed) = s_client(&mut gate, arguments).await;
        assert!(
            agreed.is_ok() && text(&output).contains(subject),
            "{arguments}: {}",
            text(&output)
        );
    }
}

#[tokio::test]
async fn one_ticket_is_given() {
    let mut gate = Gate::open(p256().load(&["gw"]).unwrap());
    let (output, _) = s_client(&mut gate, "-tls1_3").await;
    assert_eq!(
        text(&output)
            .matches("Post-Handshake New Session Ticket arrived")
            .count(),
        1
    );
}
