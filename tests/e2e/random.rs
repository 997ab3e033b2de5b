//! Octets that no compression or repetition can hide a fault in.

/// So many, always the same for a seed.
pub(super) fn octets(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut octets = Vec::with_capacity(length + 8);
    while octets.len() < length {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        octets.extend_from_slice(&state.to_le_bytes());
    }
    octets.truncate(length);
    octets
}

/// Octets arrived as they were sent.
pub(super) fn assert_same(arrived: &[u8], sent: &[u8]) {
    let first = arrived.iter().zip(sent).position(|(one, other)| one != other);
    assert_eq!(first, None, "the first octet that differs");
    assert_eq!(arrived.len(), sent.len(), "how many octets arrived");
}

/// The same with letters alone, for what changes other characters on its way.
pub(super) fn letters(seed: u64, length: usize) -> Vec<u8> {
    octets(seed, length).iter().map(|octet| b'a' + octet % 26).collect()
}
