//! TLS in front, before anybody has asked for anything: which certificate is shown, and what follows from it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::rig::{Ask, Origin, Shop, access_line_of, read, second_address};
use crate::support::authority::Authority;
use crate::support::raw;

#[test]
fn whoever_asks_for_an_unknown_name_or_for_none_is_shown_the_first_certificate() {
    let (authority, origin) = (Authority::default(), Origin::named("shop"));
    let gateway = Shop::of(&origin)
        .table(&format!(
            "[listener.second]\nbind = [\"127.0.0.2:0\"]\ncertificates = [\"own\", \"other\"]\n{}",
            authority.table("other", "other.test"),
        ))
        .start();
    let (own, other) = (
        gateway.chain(),
        authority.certificate().with_file_name("other.test.crt"),
    );
    // An address is no name: a client that connects by one asks for none.
    for (name, shown) in [
        ("other.test", &other),
        ("OTHER.test", &other),
        ("localhost", &own),
        ("nobody.test", &own),
        ("a.other.test", &own),
        ("127.0.0.2", &own),
    ] {
        let tcp = TcpStream::connect(second_address(&gateway)).unwrap();
        let mut stream = raw::tls_named(tcp, shown, name);
        // The host chooses the rule, whichever name was asked for in the handshake.
        let target = format!("/{name}");
        stream.write_all(&Ask::get("shop.test", &target).bytes()).unwrap();
        assert_eq!(read(&mut stream).text(), "shop", "{name}");
        assert_eq!(access_line_of(&gateway, &target)["listener_name"], "second");
    }
}

#[test]
fn a_client_of_tls_1_2_is_served_and_one_of_tls_1_1_is_not() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(gateway.chain()).unwrap())
        .unwrap();
    let settings = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(gateway.address).unwrap();
    let mut stream = raw::tls_with(Arc::new(settings), tcp);
    stream.write_all(&Ask::get("shop.test", "/old").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "shop");
    let line = access_line_of(&gateway, "/old");
    assert_eq!(line["ssl_protocol"], "TLSv1.2", "{line}");

    // RFC 4346 section 7.4.1.2: version 3.2, a random, no session, two suites, no compression.
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]);
    let length = u8::try_from(hello.len()).unwrap();
    let record = [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length], &hello[..]].concat();
    let mut tcp = TcpStream::connect(gateway.address).unwrap();
    tcp.write_all(&record).unwrap();
    let mut told = Vec::new();
    let _ = tcp.read_to_end(&mut told);
    assert_eq!(
        (told.first(), told.get(5)),
        (Some(&0x15), Some(&2)),
        "a fatal alert: {told:?}"
    );
    gateway.wait_for("no TLS", |line| line["reason"] == "tls_failed");
}
