//! What was probably meant by a name that does not exist.

/// The one of `known` that `written` is most like, if it is like any.
pub(super) fn nearest(written: &str, known: &[impl AsRef<str>]) -> Option<String> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let written = plain(written);
    let length = written.chars().count();
    if length == 0 || length > 64 {
        return None;
    }
    known
        .iter()
        .map(|candidate| (distance(&written, &plain(candidate.as_ref())), candidate.as_ref()))
        .filter(|(distance, _)| *distance <= (length / 3).clamp(1, 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// Typing errors between the two; an abbreviation counts as one.
fn distance(written: &str, known: &str) -> usize {
    let abbreviates = written.len() >= 3 && (known.starts_with(written) || known.ends_with(written));
    let errors = strsim::damerau_levenshtein(written, known);
    if abbreviates { errors.min(1) } else { errors }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_seen_through() {
        let known = ["bind", "balancers", "certificates", "password_hash"];
        assert_eq!(nearest("bnid", &known).as_deref(), Some("bind"));
        assert_eq!(nearest("certificate", &known).as_deref(), Some("certificates"));
        assert_eq!(nearest("password", &known).as_deref(), Some("password_hash"));
        assert_eq!(nearest("Password-Hash", &known).as_deref(), Some("password_hash"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), &known), None);
    }
}
