//! Password hashes: how strong they must be, how expensive they may be, and how one is made.

use std::collections::BTreeMap;
use std::fmt;

use argon2::password_hash::PasswordHasher;
use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, Version};

use crate::types::Secret;

/// The cost of hashes that this program makes: memory in KiB, passes, lanes.
///
/// OWASP's recommendation for argon2id; about 20 ms on a server's core.
pub const COST: Cost = Cost {
    memory: 19 * 1024,
    passes: 2,
    lanes: 1,
};

/// What one hash costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Memory in KiB.
    pub memory: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Cost {
    /// Below this, memory is so small that graphics cards guess cheaply (OWASP's smallest recommendation).
    const MIN_MEMORY: u32 = 7 * 1024;
    /// Memory times passes of OWASP's smallest recommendation: 7 MiB, five passes.
    const MIN_WORK: u64 = 7 * 1024 * 5;
    /// Above this, a handful of sign-ins exhausts a node: 256 MiB.
    const MAX_MEMORY: u32 = 256 * 1024;
    /// Memory times passes above which one sign-in holds a core for seconds.
    const MAX_WORK: u64 = 2 * 1024 * 1024;
    /// More lanes than this are a mistake.
    const MAX_LANES: u32 = 16;

    fn work(self) -> u64 {
        u64::from(self.memory) * u64::from(self.passes)
    }

    /// Checks that guessing is expensive and checking is not.
    ///
    /// # Errors
    /// Says what is wrong with it.
    fn judge(self) -> Result<Self, Weakness> {
        if self.memory < Self::MIN_MEMORY || self.work() < Self::MIN_WORK {
            Err(Weakness::TooWeak(self))
        } else if self.memory > Self::MAX_MEMORY || self.work() > Self::MAX_WORK || self.lanes > Self::MAX_LANES {
            Err(Weakness::TooExpensive(self))
        } else {
            Ok(self)
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m={} KiB, t={}, p={}", self.memory, self.passes, self.lanes)
    }
}

/// Why a password hash cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Weakness {
    /// The text is not in PHC form.
    #[error("the password hash is not in PHC form ($argon2id$v=19$m=...,t=...,p=...$salt$hash)")]
    NotPhc,
    /// Another algorithm.
    #[error("the password hash is not made by argon2id of version 19")]
    NotArgon2id,
    /// No salt or hash, or a short one.
    #[error("the password hash lacks a salt of 8 bytes or an output of 16 bytes")]
    Incomplete,
    /// Guessing is cheap.
    #[error("the password hash is too weak ({0}): it can be guessed cheaply")]
    TooWeak(Cost),
    /// Checking is dear.
    #[error("the password hash is too expensive ({0}): a few sign-ins would exhaust this node")]
    TooExpensive(Cost),
}

/// Checks a password hash in PHC form and says what it costs.
///
/// # Errors
/// Says which rule the hash breaks, without a word of the hash itself.
pub fn judge(hash: &str) -> Result<Cost, Weakness> {
    let parsed = PasswordHash::new(hash).map_err(|_| Weakness::NotPhc)?;
    let version = parsed.version.unwrap_or_default();
    if parsed.algorithm.as_str() != Algorithm::Argon2id.as_str() || version != u32::from(Version::V0x13) {
        return Err(Weakness::NotArgon2id);
    }
    let complete = parsed.salt.is_some() && parsed.hash.as_ref().is_some_and(|hash| hash.len() >= 16);
    if !complete {
        return Err(Weakness::Incomplete);
    }
    let params = Params::try_from(&parsed).map_err(|_| Weakness::NotPhc)?;
    Cost {
        memory: params.m_cost(),
        passes: params.t_cost(),
        lanes: params.p_cost(),
    }
    .judge()
}

/// The cost that occurs most often, and of several the dearest: that of the answer to an unknown user. [`COST`] if there is
/// none.
pub fn most_common(costs: impl Iterator<Item = Cost>) -> Cost {
    let mut counts: BTreeMap<Cost, usize> = BTreeMap::new();
    for cost in costs {
        *counts.entry(cost).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(cost, count)| (*count, *cost));
    most.map_or(COST, |(cost, _)| cost)
}

/// Hashes a password with a fresh salt, at [`COST`]. Blocks for tens of milliseconds.
///
/// # Errors
/// When the system gives no random bytes or no memory.
pub fn hash(password: &Secret) -> Result<Secret, HashFailed> {
    let params = Params::new(COST.memory, COST.passes, COST.lanes, None).map_err(|_| HashFailed)?;
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash = hasher
        .hash_password(password.expose().as_bytes())
        .map_err(|_| HashFailed)?;
    Ok(Secret::new(hash.to_string()))
}

/// A password could not be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random bytes or no memory")]
pub struct HashFailed;

#[cfg(test)]
mod tests {
    use argon2::password_hash::PasswordVerifier;

    use super::*;

    const SALT_AND_HASH: &str = "c2FsdHNhbHRzYWx0c2FsdA$MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI";

    fn judged(head: &str) -> Result<Cost, Weakness> {
        judge(&format!("{head}${SALT_AND_HASH}"))
    }

    #[test]
    fn of_several_costs_the_most_common_counts_and_then_the_dearest() {
        let [usual, dear] = [(19456, 2), (65536, 3)].map(|(memory, passes)| Cost {
            memory,
            passes,
            lanes: 1,
        });
        assert_eq!(most_common([dear, usual, usual].into_iter()), usual);
        assert_eq!(most_common([usual, dear].into_iter()), dear);
        assert_eq!(most_common(std::iter::empty()), COST);
    }

    #[test]
    fn a_hash_that_was_made_here_passes_and_opens() {
        let hash = hash(&Secret::new("plum-harbor-41")).unwrap();
        assert_eq!(judge(hash.expose()), Ok(COST));
        let parsed = PasswordHash::new(hash.expose()).unwrap();
        assert!(Argon2::default().verify_password(b"plum-harbor-41", &parsed).is_ok());
        assert!(Argon2::default().verify_password(b"plum-harbor-42", &parsed).is_err());
    }

    #[test]
    fn each_weakness_has_its_name() {
        assert_eq!(judge("hunter2"), Err(Weakness::NotPhc));
        assert_eq!(judge(""), Err(Weakness::NotPhc));
        assert_eq!(judged("$argon2i$v=19$m=19456,t=2,p=1"), Err(Weakness::NotArgon2id));
        assert_eq!(judged("$argon2id$v=16$m=19456,t=2,p=1"), Err(Weakness::NotArgon2id));
        assert_eq!(judged("$argon2id$m=19456,t=2,p=1"), Err(Weakness::NotArgon2id));
        assert_eq!(judge("$argon2id$v=19$m=19456,t=2,p=1"), Err(Weakness::Incomplete));
        assert_eq!(
            judge("$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA"),
            Err(Weakness::Incomplete)
        );
        let cost = |memory, passes, lanes| Cost { memory, passes, lanes };
        assert_eq!(
            judged("$argon2id$v=19$m=8,t=1,p=1"),
            Err(Weakness::TooWeak(cost(8, 1, 1)))
        );
        assert_eq!(
            judged("$argon2id$v=19$m=19456,t=1,p=1"),
            Err(Weakness::TooWeak(cost(19456, 1, 1)))
        );
        assert_eq!(
            judged("$argon2id$v=19$m=4096,t=20,p=1"),
            Err(Weakness::TooWeak(cost(4096, 20, 1)))
        );
        assert_eq!(
            judged("$argon2id$v=19$m=19456,t=2,p=17"),
            Err(Weakness::TooExpensive(cost(19456, 2, 17)))
        );
        assert_eq!(
            judged("$argon2id$v=19$m=4194304,t=1,p=1"),
            Err(Weakness::TooExpensive(cost(4_194_304, 1, 1)))
        );
        assert_eq!(
            judged("$argon2id$v=19$m=19456,t=4000,p=1"),
            Err(Weakness::TooExpensive(cost(19456, 4000, 1)))
        );
    }

    #[test]
    fn every_recommended_cost_passes() {
        for (memory, passes) in [(47104, 1), (19456, 2), (12288, 3), (9216, 4), (7168, 5), (65536, 3)] {
            assert!(
                judged(&format!("$argon2id$v=19$m={memory},t={passes},p=1")).is_ok(),
                "{memory} {passes}"
            );
        }
    }
}
