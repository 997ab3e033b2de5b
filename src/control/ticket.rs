//! The tickets that a launch hands out (protocol sheet 3.6).

use std::fmt::Write as _;

use aws_lc_rs::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use crate::grant::{Randomness as _, SystemRandomness};

/// The ticket of a Blast connection: a credential for the agent, the route token, and the thumbprints of the certificate
/// that the client will be shown; the port for datagrams only if there is one.
pub(super) fn blast(token: &str, certificate: &CertificateDer<'_>, datagrams: Option<u16>) -> String {
    let credential = credential();
    let mut ticket = serde_json::json!({
        "a": *credential,
        "r": token,
        "thumbprint": thumbprint(&SHA1_FOR_LEGACY_USE_ONLY, certificate),
        "thumbprint256": thumbprint(&SHA256, certificate),
    });
    if let Some(port) = datagrams {
        ticket["udpport"] = port.into();
    }
    ticket.to_string()
}

/// 40 letters and digits at random.
fn credential() -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(CREDENTIAL));
    let mut drawn = Zeroizing::new([0; 64]);
    while text.len() < CREDENTIAL {
        SystemRandomness.fill(&mut *drawn);
        // Six bits each; the two values beyond the alphabet are left out, so that each character is as likely.
        let chosen = drawn.iter().filter_map(|byte| ALPHABET.get(usize::from(byte & 63)));
        let missing = CREDENTIAL - text.len();
        text.extend(chosen.take(missing).map(|byte| char::from(*byte)));
    }
    text
}

/// Pairs of hex digits in upper case, with spaces.
fn thumbprint(algorithm: &'static Algorithm, certificate: &CertificateDer<'_>) -> String {
    let mut text = String::new();
    for (place, octet) in digest(algorithm, certificate).as_ref().iter().enumerate() {
        let space = if place == 0 { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{space}{octet:02X}");
    }
    text
}

const CREDENTIAL: usize = 40;
const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blast_ticket_is_what_clients_read() {
        let certificate = CertificateDer::from(b"abc".to_vec());
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let (one, two) = (
            blast("gw-1.T", &certificate, None),
            blast("gw-1.T", &certificate, Some(8443)),
        );
        assert_ne!(read(&one)["a"], read(&two)["a"]);
        let ticket = read(&one);
        let credential = ticket["a"].as_str().unwrap();
        assert!(credential.len() == 40 && credential.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(ticket["r"], "gw-1.T");
        assert_eq!(
            (&ticket["udpport"], &read(&two)["udpport"]),
            (&serde_json::Value::Null, &8443.into())
        );
        assert_eq!(
            ticket["thumbprint"],
            "A9 99 3E 36 47 06 81 6A BA 3E 25 71 78 50 C2 6C 9C D0 D8 9D"
        );
        let sha256 = ticket["thumbprint256"].as_str().unwrap();
        assert!(sha256.starts_with("BA 78 16 BF 8F 01 CF EA") && sha256.len() == 32 * 3 - 1);
    }
}
