//! Random numbers that are no secrets.

/// 64 random bits.
pub(super) fn seed() -> u64 {
    let mut octets = [0; 8];
    // Without randomness there is no TLS either; here it would only spread reconnects less.
    let _ = aws_lc_rs::rand::fill(&mut octets);
    u64::from_le_bytes(octets)
}
