//! The protocol version in `<broker version="…">`.

use std::fmt;
use std::str::FromStr;

/// A version of the control protocol, compared as numbers: 4.5 is before 15.0.
///
/// Versions between the known ones are spoken as they are; a field appears from the version that is known to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u8,
    minor: u8,
}

impl Version {
    /// The first one.
    pub const V1_0: Self = Self { major: 1, minor: 0 };
    /// `set-locale`, the result `notexecuted`, `reset-desktop`.
    pub const V2_0: Self = Self { major: 2, minor: 0 };
    /// One between.
    pub const V3_0: Self = Self { major: 3, minor: 0 };
    /// One between.
    pub const V4_0: Self = Self { major: 4, minor: 0 };
    /// What the open client of 2010 speaks: protocols, environment, certificate sign-in.
    pub const V4_5: Self = Self { major: 4, minor: 5 };
    /// Launch items, tunnel bypass.
    pub const V9_0: Self = Self { major: 9, minor: 0 };
    /// Session times in the answer to a sign-in.
    pub const V14_0: Self = Self { major: 14, minor: 0 };
    /// Thumbprint algorithms, redirects, client configuration.
    pub const V15_0: Self = Self { major: 15, minor: 0 };

    /// The earliest that is spoken here.
    pub const OLDEST: Self = Self::V1_0;
    /// The latest that is spoken here; it stands in every reply, whatever the request's was.
    pub const NEWEST: Self = Self::V15_0;

    /// The next lower version to try after `UNSUPPORTED_VERSION`: 15.0, 9.0, 4.5, 4.0, 3.0, 2.0, 1.0.
    pub fn next_lower(self) -> Option<Self> {
        const LADDER: [Version; 7] = [
            Version::V15_0,
            Version::V9_0,
            Version::V4_5,
            Version::V4_0,
            Version::V3_0,
            Version::V2_0,
            Version::V1_0,
        ];
        LADDER.into_iter().find(|&version| version < self)
    }

    /// Whether it is spoken here.
    pub fn is_supported(self) -> bool {
        (Self::OLDEST..=Self::NEWEST).contains(&self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = InvalidVersion;

    /// Reads `major.minor`, each of one to three digits up to 255.
    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let number = |digits: &str| -> Result<u8, InvalidVersion> {
            if digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 3 {
                digits.parse().map_err(|_| InvalidVersion)
            } else {
                Err(InvalidVersion)
            }
        };
        let (major, minor) = text.split_once('.').ok_or(InvalidVersion)?;
        Ok(Self {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

/// A text that is not a [`Version`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a version is two numbers with a dot between them")]
pub struct InvalidVersion;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(Version::V4_5 < Version::V15_0);
        assert!("4.10".parse::<Version>().unwrap() > Version::V4_5);
    }

    #[test]
    fn what_is_not_two_numbers_is_no_version() {
        for bad in [
            "", "4", "4.", ".5", "4.5.0", "-1.0", "+1.0", "256.0", "0001.0", "4,5", " 4.5", "4.x", "٤.٥",
        ] {
            assert!(bad.parse::<Version>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_ladder_ends_at_the_first_version() {
        let steps = std::iter::successors(Some(Version::NEWEST), |version| version.next_lower());
        assert_eq!(steps.last(), Some(Version::OLDEST));
    }

    #[test]
    fn versions_beyond_both_ends_are_not_supported() {
        assert!(!"0.9".parse::<Version>().unwrap().is_supported());
        assert!(!"15.1".parse::<Version>().unwrap().is_supported());
        assert!("11.3".parse::<Version>().unwrap().is_supported());
    }
}
