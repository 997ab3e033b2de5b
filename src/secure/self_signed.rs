//! A certificate for trying things out.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, date_time_ymd,
};

use crate::types::Secret;

/// A certificate that nobody vouches for, with its key.
#[derive(Debug)]
pub struct SelfSigned {
    /// The certificate, PEM.
    pub chain: String,
    /// The key, PKCS#8 PEM.
    pub key: Secret,
}

/// Makes a P-256 certificate for these DNS names and IP addresses, good from yesterday for 90 days.
///
/// # Errors
/// If a name cannot stand in a certificate.
pub fn self_signed(names: &[String], now: Timestamp) -> Result<SelfSigned, rcgen::Error> {
    self_signed_for(names, 90, now)
}

/// The same, good for so many days.
///
/// # Errors
/// If a name cannot stand in a certificate.
pub fn self_signed_for(names: &[String], days: i64, now: Timestamp) -> Result<SelfSigned, rcgen::Error> {
    let day = |at: Timestamp| {
        let date = TimeZone::UTC.to_datetime(at).date();
        date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, names.first().map_or("portcullis", String::as_str));
    params.not_before = day(now - SignedDuration::from_hours(24));
    params.not_after = day(now + SignedDuration::from_hours(24 * days));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let chain = params.self_signed(&key)?.pem();
    Ok(SelfSigned {
        chain,
        key: Secret::new(key.serialize_pem()),
    })
}
