//! Step 5: the user proves who they are.
//!
//! [`Authenticated`] is the proof: only this module can make one, and a grant is minted from nothing else.

use std::net::IpAddr;
use std::time::Instant;

use crate::types::UserName;

mod chain;
mod throttle;

pub use chain::{Answer, Chain, ChainSnapshot, Change, Check, Decision, Due, Failed, Replacement, Verdict};
pub use throttle::{Throttle, ThrottleSnapshot, Throttled};

/// Proof that a user has signed in.
#[derive(Debug)]
pub struct Authenticated {
    user: UserName,
    methods: Vec<Method>,
    client: IpAddr,
    at: Instant,
}

impl Authenticated {
    /// Who signed in.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// How, in the order of the chain.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// From where, after the PROXY header.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// When the last screen was answered.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Consumes the proof: what follows is for its user.
    pub fn into_user(self) -> UserName {
        self.user
    }

    /// A proof out of thin air, for the tests of the modules below.
    #[cfg(test)]
    pub(crate) fn for_test(user: &str, client: IpAddr, at: Instant) -> Self {
        Self {
            user: UserName::new(user),
            methods: vec![Method::Password],
            client,
            at,
        }
    }
}

/// A way to prove who one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// A password, checked against the directory.
    Password,
}

impl Method {
    /// The method of that code; `None` for one that this version does not know.
    pub fn from_code(code: &str) -> Option<Self> {
        (code == Self::Password.code()).then_some(Self::Password)
    }

    /// The code in logs and in the admin API.
    pub fn code(self) -> &'static str {
        match self {
            Self::Password => "password",
        }
    }
}
