//! The users of a configuration, and the hash against which names without one are checked.

use std::collections::{BTreeMap, HashMap};

use crate::config;
use crate::config::password::{self, COST, Cost};
use crate::types::{Secret, UserName};

use super::state_file::Fingerprint;

/// The users who may sign in: a disabled one is not among them.
pub(super) struct Users {
    enabled: HashMap<UserName, User>,
    decoy: Secret,
}

/// A user who may sign in, as configured.
pub(super) struct User {
    pub(super) hash: Secret,
    pub(super) fingerprint: Fingerprint,
    pub(super) cost: Cost,
    pub(super) groups: Vec<String>,
    pub(super) must_change: bool,
}

impl Users {
    pub(super) fn new(configured: &BTreeMap<UserName, config::User>) -> Self {
        let enabled: HashMap<_, _> = configured
            .iter()
            .filter(|(_, user)| !user.disabled)
            .map(|(name, user)| (name.clone(), User::new(user)))
            .collect();
        let decoy = decoy(password::most_common(enabled.values().map(|user| user.cost)));
        Self { enabled, decoy }
    }

    pub(super) fn find(&self, name: &UserName) -> Option<&User> {
        self.enabled.get(name)
    }

    /// A hash that no password opens, as expensive as most others.
    pub(super) fn decoy(&self) -> Secret {
        self.decoy.clone()
    }
}

impl User {
    fn new(user: &config::User) -> Self {
        Self {
            fingerprint: Fingerprint::of(&user.password_hash),
            cost: password::judge(user.password_hash.expose()).unwrap_or(COST),
            hash: user.password_hash.clone(),
            groups: user.groups.clone(),
            must_change: user.must_change_password,
        }
    }
}

/// Its salt and output are no secret: whatever a password gives, the answer to a name without a hash is the same.
fn decoy(cost: Cost) -> Secret {
    let Cost { memory, passes, lanes } = cost;
    let salt = "A".repeat(22);
    let output = "A".repeat(43);
    Secret::new(format!(
        "$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${output}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(memory: u32, passes: u32) -> Cost {
        Cost {
            memory,
            passes,
            lanes: 1,
        }
    }

    #[test]
    fn the_decoy_costs_what_it_is_told_to() {
        for any in [COST, cost(65536, 3)] {
            assert_eq!(password::judge(decoy(any).expose()), Ok(any));
        }
    }
}
