//! One sign-in: which screen is due, and what follows from an answer.
//!
//! Pure: the chain says what is to be asked or checked; whoever drives it checks, and tells it the verdict.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Authenticated, Method};
use crate::config;
use crate::types::{Secret, UserName};

/// The sign-in of one client.
///
/// The order: the disclaimer if there is one, the password, a new password if that is due. An answer to another screen
/// than the one that is due changes nothing: the due one is asked again (protocol sheet 3.3).
#[derive(Debug)]
pub struct Chain {
    policy: Policy,
    client: IpAddr,
    stage: Stage,
    /// Wrong answers so far.
    failures: u32,
}

/// What of the configuration a sign-in follows; fixed when it begins.
#[derive(Clone, Debug)]
struct Policy {
    disclaimer: Option<Arc<str>>,
    domains: Arc<[String]>,
    attempts: u32,
}

/// Where a sign-in stands.
#[derive(Debug)]
enum Stage {
    Disclaimer,
    Password {
        error: Option<&'static str>,
        /// As typed the last time.
        user: Option<String>,
    },
    NewPassword {
        user: UserName,
        error: Option<String>,
    },
}

/// The screen that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A text to be accepted.
    Disclaimer {
        /// The text.
        text: Arc<str>,
    },
    /// Name, password and domain.
    Password {
        /// The domains to choose from.
        domains: Arc<[String]>,
        /// The name as it was typed the last time.
        user: Option<String>,
        /// Why it is asked again.
        error: Option<&'static str>,
    },
    /// The old password and a new one.
    NewPassword {
        /// Whose.
        user: UserName,
        /// Why it is asked again.
        error: Option<String>,
    },
}

/// What the client answered.
#[derive(Debug)]
pub enum Answer {
    /// To the disclaimer.
    Disclaimer {
        /// Whether it was accepted.
        accept: bool,
    },
    /// To the password screen.
    Password {
        /// The name as typed, maybe with a domain before a backslash.
        user: String,
        /// The password as typed.
        password: Secret,
        /// The domain as chosen.
        domain: String,
    },
    /// To the new password screen.
    NewPassword {
        /// The old password.
        old: Secret,
        /// The new one.
        new: Secret,
        /// The new one, typed again.
        repeated: Secret,
    },
    /// To a screen that no sign-in here has.
    Other,
}

/// What follows from an answer.
#[derive(Debug)]
pub enum Decision {
    /// Ask what is [`due`](Chain::due).
    Ask,
    /// Check a password, then tell [`Chain::judged`].
    Check(Check),
    /// Change a password, then tell [`Chain::changed`].
    Change(Replacement),
    /// The user is who they say.
    Done(Authenticated),
    /// The sign-in has failed for good, and is at its start again.
    Failed(Failed),
}

/// A password to be checked. Only an answer to the screen that was due makes one, and a verdict uses it up: nobody is
/// signed in who was not asked.
#[derive(Debug)]
pub struct Check {
    user: UserName,
    password: Secret,
    known_domain: bool,
}

impl Check {
    /// Whose.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// The password.
    pub fn password(&self) -> &Secret {
        &self.password
    }

    /// Whether the domain is one of ours; if not, the verdict is "wrong" after the same work.
    pub fn knows_domain(&self) -> bool {
        self.known_domain
    }
}

/// A password to be changed; made and used up like a [`Check`].
#[derive(Debug)]
pub struct Replacement {
    user: UserName,
    old: Secret,
    wanted: Secret,
}

impl Replacement {
    /// Whose.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// The old password.
    pub fn old(&self) -> &Secret {
        &self.old
    }

    /// The new one.
    pub fn wanted(&self) -> &Secret {
        &self.wanted
    }
}

/// Why a sign-in failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The disclaimer was not accepted.
    Declined,
    /// There are no attempts left.
    NoAttemptsLeft,
}

/// What the check of a password found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is right.
    Right,
    /// It is right, and must be changed before anything else.
    MustChange,
    /// It is wrong, or was not looked at because there were too many wrong ones before.
    Wrong,
    /// It could not be looked at at this moment; this was no attempt.
    Busy,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The new password is in force.
    Done,
    /// The old password was wrong.
    Wrong,
    /// The new one will not do, in words for the user.
    Unfit(String),
    /// It could not be done at this moment, in words for the user; this was no attempt.
    NotNow(&'static str),
}

/// How far a sign-in has come, as data for another process of this node. No password is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainSnapshot {
    client: IpAddr,
    failures: u32,
    due: DueSnapshot,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DueSnapshot {
    Disclaimer,
    Password { user: Option<String> },
    NewPassword { user: String },
}

impl Chain {
    /// As data; the words of the last fault are not kept.
    pub fn snapshot(&self) -> ChainSnapshot {
        let due = match &self.stage {
            Stage::Disclaimer => DueSnapshot::Disclaimer,
            Stage::Password { user, .. } => DueSnapshot::Password { user: user.clone() },
            Stage::NewPassword { user, .. } => DueSnapshot::NewPassword { user: user.to_string() },
        };
        ChainSnapshot {
            client: self.client,
            failures: self.failures,
            due,
        }
    }

    /// Goes on where another process was, by the configuration of this one.
    pub fn restored(snapshot: ChainSnapshot, authentication: &config::Authentication) -> Self {
        let mut chain = Self::new(authentication, snapshot.client);
        chain.failures = snapshot.failures;
        match snapshot.due {
            // A disclaimer that is gone is not asked, one that is there not passed over.
            DueSnapshot::Disclaimer => {}
            DueSnapshot::Password { user } => chain.stage = Stage::Password { error: None, user },
            DueSnapshot::NewPassword { user } => {
                chain.stage = Stage::NewPassword {
                    user: UserName::new(&user),
                    error: None,
                };
            }
        }
        chain
    }

    /// From where the user comes.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// A sign-in at its start, for a client at this address.
    pub fn new(authentication: &config::Authentication, client: IpAddr) -> Self {
        let policy = Policy {
            disclaimer: authentication.disclaimer.as_deref().map(Arc::from),
            domains: authentication.domains.clone().into(),
            attempts: authentication.attempts,
        };
        let stage = first_stage(&policy);
        Self {
            policy,
            client,
            stage,
            failures: 0,
        }
    }

    /// The screen that is due.
    pub fn due(&self) -> Due {
        match &self.stage {
            Stage::Disclaimer => Due::Disclaimer {
                text: self.policy.disclaimer.clone().unwrap_or_default(),
            },
            Stage::Password { error, user } => Due::Password {
                domains: self.policy.domains.clone(),
                user: user.clone(),
                error: *error,
            },
            Stage::NewPassword { user, error } => Due::NewPassword {
                user: user.clone(),
                error: error.clone(),
            },
        }
    }

    /// Takes an answer.
    pub fn answer(&mut self, answer: Answer) -> Decision {
        match (&self.stage, answer) {
            (Stage::Disclaimer, Answer::Disclaimer { accept: true }) => {
                self.stage = Stage::Password {
                    error: None,
                    user: None,
                };
                Decision::Ask
            }
            (Stage::Disclaimer, Answer::Disclaimer { accept: false }) => self.fail(Failed::Declined),
            (Stage::Password { .. }, Answer::Password { user, password, domain }) => {
                self.check(&user, password, &domain)
            }
            (Stage::NewPassword { user, .. }, Answer::NewPassword { old, new, repeated }) => {
                let user = user.clone();
                if new == repeated {
                    Decision::Change(Replacement { user, old, wanted: new })
                } else {
                    self.ask_new_password(user, "The two new passwords differ.".to_owned())
                }
            }
            _ => Decision::Ask,
        }
    }

    /// Takes the verdict on a password.
    pub fn judged(&mut self, check: Check, verdict: Verdict, now: Instant) -> Decision {
        let Check { user, .. } = check;
        match verdict {
            Verdict::Right => self.done(user, now),
            Verdict::MustChange => {
                self.stage = Stage::NewPassword { user, error: None };
                Decision::Ask
            }
            Verdict::Wrong => self.wrong(Some(user.to_string())),
            Verdict::Busy => {
                self.stage = Stage::Password {
                    error: Some(BUSY),
                    user: Some(user.to_string()),
                };
                Decision::Ask
            }
        }
    }

    /// Takes the outcome of a change.
    pub fn changed(&mut self, replacement: Replacement, change: Change, now: Instant) -> Decision {
        let Replacement { user, .. } = replacement;
        match change {
            Change::Done => self.done(user, now),
            Change::Unfit(words) => self.ask_new_password(user, words),
            Change::NotNow(words) => self.ask_new_password(user, words.to_owned()),
            Change::Wrong => {
                self.failures += 1;
                if self.failures >= self.policy.attempts {
                    return self.fail(Failed::NoAttemptsLeft);
                }
                self.ask_new_password(user, "The old password is wrong.".to_owned())
            }
        }
    }

    fn check(&mut self, typed: &str, password: Secret, chosen: &str) -> Decision {
        // `DOMAIN\name` says more than the list beside it.
        let (domain, name) = typed.split_once('\\').unwrap_or((chosen, typed));
        let known_domain = domain.is_empty()
            || domain == DEFAULT_DOMAIN
            || self
                .policy
                .domains
                .iter()
                .any(|known| known.eq_ignore_ascii_case(domain));
        let user = UserName::new(name);
        if user.as_str().is_empty() || user.as_str().len() > LONGEST_NAME {
            return self.wrong(None);
        }
        Decision::Check(Check {
            user,
            password,
            known_domain,
        })
    }

    fn wrong(&mut self, user: Option<String>) -> Decision {
        self.failures += 1;
        if self.failures >= self.policy.attempts {
            return self.fail(Failed::NoAttemptsLeft);
        }
        self.stage = Stage::Password {
            error: Some(WRONG),
            user,
        };
        Decision::Ask
    }

    fn ask_new_password(&mut self, user: UserName, error: String) -> Decision {
        self.stage = Stage::NewPassword {
            user,
            error: Some(error),
        };
        Decision::Ask
    }

    fn fail(&mut self, failed: Failed) -> Decision {
        self.failures = 0;
        self.stage = first_stage(&self.policy);
        Decision::Failed(failed)
    }

    fn done(&mut self, user: UserName, now: Instant) -> Decision {
        self.failures = 0;
        self.stage = first_stage(&self.policy);
        Decision::Done(Authenticated {
            user,
            methods: vec![Method::Password],
            client: self.client,
            at: now,
        })
    }
}

fn first_stage(policy: &Policy) -> Stage {
    match policy.disclaimer {
        Some(_) => Stage::Disclaimer,
        None => Stage::Password {
            error: None,
            user: None,
        },
    }
}

/// Sent by clients from which the list of domains is hidden.
const DEFAULT_DOMAIN: &str = "*DefaultDomain*";

/// No directory has longer names; in bytes.
const LONGEST_NAME: usize = 256;

const WRONG: &str = "Unknown user name or wrong password.";
const BUSY: &str = "The gateway is busy. Try again in a moment.";

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;
    use crate::config::{Authentication, Throttle};

    fn chain(disclaimer: Option<&str>) -> Chain {
        let throttle = Throttle {
            per_user: 5,
            per_source: 50,
            window: Duration::from_secs(300),
        };
        let authentication = Authentication {
            disclaimer: disclaimer.map(str::to_owned),
            domains: vec!["LAB".to_owned()],
            attempts: 3,
            throttle,
        };
        Chain::new(&authentication, IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn typed(user: &str) -> Answer {
        Answer::Password {
            user: user.to_owned(),
            password: Secret::new("pw"),
            domain: "LAB".to_owned(),
        }
    }

    fn check_of(chain: &mut Chain, answer: Answer) -> Check {
        match chain.answer(answer) {
            Decision::Check(check) => check,
            other @ (Decision::Ask | Decision::Change(_) | Decision::Done(_) | Decision::Failed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    /// Answers the password screen, and has this verdict given.
    fn judge(chain: &mut Chain, verdict: Verdict) -> Decision {
        let check = check_of(chain, typed("ann"));
        chain.judged(check, verdict, crate::clock::now())
    }

    fn new_password(old: &str, new: &str, repeated: &str) -> Answer {
        Answer::NewPassword {
            old: Secret::new(old),
            new: Secret::new(new),
            repeated: Secret::new(repeated),
        }
    }

    #[test]
    fn the_screens_come_in_order_and_end_in_the_proof() {
        let (mut chain, now) = (chain(Some("Be good.")), crate::clock::now());
        assert!(matches!(chain.due(), Due::Disclaimer { .. }));
        assert!(matches!(
            chain.answer(Answer::Disclaimer { accept: true }),
            Decision::Ask
        ));
        let check = check_of(&mut chain, typed("Ann"));
        assert_eq!((check.user(), check.knows_domain()), (&UserName::new("ann"), true));
        assert!(matches!(chain.judged(check, Verdict::MustChange, now), Decision::Ask));
        assert!(matches!(chain.due(), Due::NewPassword { .. }));
        let Decision::Change(replacement) = chain.answer(new_password("pw", "new password", "new password")) else {
            panic!("no change")
        };
        let Decision::Done(proof) = chain.changed(replacement, Change::Done, now) else {
            panic!("not done")
        };
        assert_eq!(proof.user(), &UserName::new("ann"));
    }

    #[test]
    fn an_answer_to_another_screen_gets_the_due_one_again() {
        let mut chain = chain(Some("Be good."));
        assert!(matches!(chain.answer(typed("ann")), Decision::Ask));
        assert!(matches!(chain.due(), Due::Disclaimer { .. }));
        assert!(matches!(chain.answer(Answer::Other), Decision::Ask));
        chain.answer(Answer::Disclaimer { accept: true });
        let early = chain.answer(new_password("x", "another one", "another one"));
        assert!(
            matches!(early, Decision::Ask),
            "no password is changed without a sign-in"
        );
        assert!(matches!(chain.due(), Due::Password { error: None, .. }));
    }

    #[test]
    fn the_last_wrong_password_ends_the_sign_in_and_begins_another() {
        let mut chain = chain(Some("Be good."));
        chain.answer(Answer::Disclaimer { accept: true });
        for _ in 0..2 {
            assert!(matches!(judge(&mut chain, Verdict::Wrong), Decision::Ask));
            assert!(matches!(chain.due(), Due::Password { error: Some(WRONG), .. }));
        }
        let last = judge(&mut chain, Verdict::Wrong);
        assert!(matches!(last, Decision::Failed(Failed::NoAttemptsLeft)));
        assert!(matches!(chain.due(), Due::Disclaimer { .. }));
    }

    #[test]
    fn a_busy_node_costs_no_attempt() {
        let mut chain = chain(None);
        for _ in 0..10 {
            assert!(matches!(judge(&mut chain, Verdict::Busy), Decision::Ask));
        }
        assert!(matches!(judge(&mut chain, Verdict::Right), Decision::Done(_)));
    }

    #[test]
    fn the_domain_may_stand_before_the_name_and_must_be_ours() {
        for (user, domain, known) in [
            ("ann", "lab", true),
            ("LAB\\ann", "OTHER", true),
            ("OTHER\\ann", "LAB", false),
            ("ann", "OTHER", false),
            ("ann", "", true),
            ("ann", DEFAULT_DOMAIN, true),
        ] {
            let answer = Answer::Password {
                user: user.into(),
                password: Secret::new("pw"),
                domain: domain.into(),
            };
            let check = check_of(&mut chain(None), answer);
            assert_eq!(
                (check.user().as_str(), check.knows_domain()),
                ("ann", known),
                "{domain}"
            );
        }
    }

    #[test]
    fn a_name_that_cannot_be_one_costs_an_attempt_and_no_check() {
        let mut chain = chain(None);
        assert!(matches!(chain.answer(typed("")), Decision::Ask));
        assert!(matches!(chain.answer(typed(&"x".repeat(300))), Decision::Ask));
        assert!(matches!(chain.answer(typed(" ")), Decision::Failed(_)));
    }

    #[test]
    fn two_new_passwords_that_differ_are_asked_again() {
        let mut chain = chain(None);
        judge(&mut chain, Verdict::MustChange);
        assert!(matches!(
            chain.answer(new_password("pw", "one one one", "two")),
            Decision::Ask
        ));
        assert!(matches!(chain.due(), Due::NewPassword { error: Some(_), .. }));
    }
}
