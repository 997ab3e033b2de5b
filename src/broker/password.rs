//! What a new password must be.

use crate::types::{Secret, UserName};

/// Why a new password is not acceptable, in words for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordRefused {
    /// Too few characters.
    #[error("The new password is too short. Use at least 8 characters.")]
    TooShort,
    /// Too many bytes.
    #[error("The new password is too long. Use at most 256 characters.")]
    TooLong,
    /// A character that cannot be typed everywhere.
    #[error("The new password contains a control character, such as a tab or a line break. Leave it out.")]
    ControlCharacter,
    /// The old password.
    #[error("The new password is the same as the old one. Choose another.")]
    SameAsOld,
    /// The user's own name.
    #[error("The new password is the user name. Choose another.")]
    SameAsName,
}

/// Judges a new password by itself: whether the user exists, and whether the old password is right, has no part in it.
pub(super) fn judge(user: &UserName, old: &Secret, new: &Secret) -> Result<(), PasswordRefused> {
    let text = new.expose();
    let characters = text.chars().take(LONGEST + 1).count();
    if characters < SHORTEST {
        Err(PasswordRefused::TooShort)
    } else if characters > LONGEST || is_absurd(new) {
        Err(PasswordRefused::TooLong)
    } else if text.chars().any(char::is_control) {
        Err(PasswordRefused::ControlCharacter)
    } else if new == old {
        Err(PasswordRefused::SameAsOld)
    } else if UserName::new(text) == *user {
        Err(PasswordRefused::SameAsName)
    } else {
        Ok(())
    }
}

/// Whether a typed password is longer than any that could ever have been set: it is wrong without a hash, for every name
/// alike, so that its length tells nothing.
pub(super) fn is_absurd(password: &Secret) -> bool {
    password.expose().len() > ABSURD
}

/// Characters of the shortest new password.
const SHORTEST: usize = 8;
/// Characters of the longest new password.
const LONGEST: usize = 256;
/// Bytes beyond which nothing is a password: the longest new one in the widest characters.
const ABSURD: usize = 4 * LONGEST;

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(new: &str) -> Result<(), PasswordRefused> {
        judge(
            &UserName::new("marianne"),
            &Secret::new("plum-harbor-41"),
            &Secret::new(new),
        )
    }

    #[test]
    fn each_rule_has_its_words() {
        assert_eq!(judged("quince-harbor-42"), Ok(()));
        assert_eq!(judged("1234567"), Err(PasswordRefused::TooShort));
        assert_eq!(judged("ÄÖÜäöüß"), Err(PasswordRefused::TooShort));
        assert_eq!(judged("ÄÖÜäöüßẞ"), Ok(()));
        assert_eq!(judged("plum\tharbor"), Err(PasswordRefused::ControlCharacter));
        assert_eq!(judged("plum-harbor-41"), Err(PasswordRefused::SameAsOld));
        assert_eq!(judged("MariAnne"), Err(PasswordRefused::SameAsName));
    }

    #[test]
    fn whatever_may_be_set_may_be_typed() {
        let widest = "𝕡".repeat(LONGEST);
        assert_eq!(judged(&widest), Ok(()));
        assert!(!is_absurd(&Secret::new(widest.clone())));
        assert!(is_absurd(&Secret::new(widest + "a")));
        assert_eq!(judged(&"a".repeat(LONGEST + 1)), Err(PasswordRefused::TooLong));
    }
}
