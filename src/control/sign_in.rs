//! The sign-in over the control channel: screens out, answers in, and a grant at the end.

use std::sync::Arc;

use super::operation::{Body, Configuration, ErrorCode, Failure, Outcome, SignedIn};
use super::screen::{Ask, Screen, Submission, UserField, WindowsPassword};
use super::service::{Turn, session_cookie};
use super::sessions::State;
use crate::authenticate::{
    Answer, Authenticated, Change, Check, Decision, Due, Failed, Replacement, Throttled, Verdict,
};
use crate::broker::{self, Changed};
use crate::clock;
use crate::grant::{Grant, MintRefusal};
use crate::types::UserName;

impl Turn<'_> {
    /// `get-configuration`: the screen that is due, whichever it is by now.
    pub(super) fn configuration(&self) -> Outcome {
        match &*self.state {
            State::SigningIn { chain } => Outcome::Ok(Body::Configuration(Configuration {
                screen: Some(screen_of(chain.due())),
                broker_guid: Some(self.guid()),
                client_configuration: Vec::new(),
            })),
            State::SignedIn { .. } => Outcome::Failed(Failure::new(ErrorCode::AlreadyAuthenticated)),
        }
    }

    /// `do-submit-authentication`: an answer to a screen.
    pub(super) async fn sign_in(&mut self, submission: Submission) -> Outcome {
        let mut decision = match &mut *self.state {
            State::SigningIn { chain } => chain.answer(answer_of(submission)),
            State::SignedIn { .. } => return Outcome::Failed(Failure::new(ErrorCode::AlreadyAuthenticated)),
        };
        loop {
            decision = match decision {
                Decision::Check(check) => self.check(check).await,
                Decision::Change(replacement) => self.change(replacement).await,
                Decision::Ask => return self.ask(),
                Decision::Failed(failed) => return self.failed(failed),
                Decision::Done(proof) => return self.signed_in(proof),
            };
        }
    }

    /// The screen that is due; what follows in the envelope and needs a sign-in is not executed.
    fn ask(&mut self) -> Outcome {
        self.sign_in_failed = true;
        match &*self.state {
            State::SigningIn { chain } => Outcome::Partial(screen_of(chain.due())),
            State::SignedIn { .. } => Outcome::Failed(Failure::new(ErrorCode::AlreadyAuthenticated)),
        }
    }

    fn failed(&mut self, failed: Failed) -> Outcome {
        self.sign_in_failed = true;
        let words = match failed {
            Failed::Declined => "The terms were not accepted.",
            Failed::NoAttemptsLeft => "The sign-in has failed too often. Start again.",
        };
        Outcome::Failed(Failure::new(ErrorCode::AuthenticationFailed).with_user_message(words))
    }

    /// Checks a password, unless there were too many wrong ones: then nothing is computed and the answer is the same.
    async fn check(&mut self, check: Check) -> Decision {
        if self.is_throttled(check.user()) {
            return self.chain_after(|chain| chain.judged(check, Verdict::Wrong, clock::now()));
        }
        let directory = self.control.directory.load_full();
        let verdict = match directory.verify(check.user(), check.password()).await {
            broker::Verdict::Busy => Verdict::Busy,
            broker::Verdict::Wrong => Verdict::Wrong,
            _ if !check.knows_domain() => Verdict::Wrong,
            broker::Verdict::Welcome => Verdict::Right,
            broker::Verdict::MustChange => Verdict::MustChange,
        };
        self.count(check.user(), verdict);
        self.chain_after(|chain| chain.judged(check, verdict, clock::now()))
    }

    /// Changes a password; the old one is checked under the same throttle.
    async fn change(&mut self, replacement: Replacement) -> Decision {
        if self.is_throttled(replacement.user()) {
            return self.chain_after(|chain| chain.changed(replacement, Change::Wrong, clock::now()));
        }
        let directory = self.control.directory.load_full();
        let change = match directory
            .change_password(replacement.user(), replacement.old(), replacement.wanted())
            .await
        {
            Changed::Done => Change::Done,
            Changed::Wrong => Change::Wrong,
            Changed::Refused(refused) => Change::Unfit(refused.to_string()),
            Changed::Busy => Change::NotNow("The gateway is busy. Try again in a moment."),
            Changed::NotKept => Change::NotNow("The new password could not be stored. Try again later."),
        };
        let verdict = match change {
            Change::Done => Verdict::Right,
            Change::Wrong => Verdict::Wrong,
            Change::Unfit(_) | Change::NotNow(_) => Verdict::Busy,
        };
        self.count(replacement.user(), verdict);
        self.chain_after(|chain| chain.changed(replacement, change, clock::now()))
    }

    /// Asks the throttle, and tells the log if it says no. What it refuses counts for nothing.
    fn is_throttled(&self, user: &UserName) -> bool {
        let client = self.exchange.client;
        let throttled = self.control.throttle.lock().attempt(user, client, clock::now());
        let by = match throttled {
            Ok(()) => return false,
            Err(Throttled::User) => "user",
            Err(Throttled::Source) => "source",
        };
        tracing::warn!(%client, by, step = "authenticate", "sign-in throttled after too many failures");
        true
    }

    fn count(&self, user: &UserName, verdict: Verdict) {
        let client = self.exchange.client;
        let mut throttle = self.control.throttle.lock();
        match verdict {
            Verdict::Right | Verdict::MustChange => throttle.succeeded(user),
            Verdict::Busy => throttle.withdrawn(user),
            Verdict::Wrong => {
                throttle.failed(client, clock::now());
                drop(throttle);
                // Who mistypes may have typed a password where a name belongs: names of the unknown stay out of the log.
                tracing::info!(%client, step = "authenticate", "sign-in refused");
            }
        }
    }

    fn chain_after(&mut self, verdict: impl FnOnce(&mut crate::authenticate::Chain) -> Decision) -> Decision {
        match &mut *self.state {
            State::SigningIn { chain } => verdict(chain),
            State::SignedIn { .. } => Decision::Ask,
        }
    }

    /// Step 6: the proof becomes a grant, and the cookie a new one.
    fn signed_in(&mut self, proof: Authenticated) -> Outcome {
        let grant = match self.control.grants.mint(proof, clock::now()) {
            Ok(grant) => grant,
            Err(refusal) => return self.not_minted(refusal),
        };
        tracing::info!(
            session = %grant.id(),
            user = %grant.user(),
            client = %self.exchange.client,
            step = "grant",
            "session opened"
        );
        let (client, local) = (self.exchange.client, self.exchange.local);
        self.control
            .grants
            .watch()
            .signed_in(grant.user(), client, local, clock::now());
        let cookie = self.control.sessions.signed_in(self.session, &grant);
        // Whoever keeps the grant keeps the cookie with it.
        grant.note_change();
        self.cookies.retain(|earlier| !earlier.starts_with("JSESSIONID="));
        self.cookies.push(session_cookie(&cookie));
        self.cookies.push(location_cookie());
        let answer = self.signed_in_answer(&grant);
        *self.state = State::SignedIn { grant };
        Outcome::Ok(Body::SignedIn(answer))
    }

    fn not_minted(&mut self, refusal: MintRefusal) -> Outcome {
        self.sign_in_failed = true;
        self.start_again();
        tracing::warn!(client = %self.exchange.client, step = "grant", "no session: {refusal}");
        let words = match refusal {
            MintRefusal::NodeFull => "The gateway has as many sessions as it can take. Try again later.",
            MintRefusal::UserFull => "You have as many sessions as you may have. Log out of one and try again.",
        };
        Outcome::Failed(Failure::new(ErrorCode::Busy).with_user_message(words))
    }

    fn signed_in_answer(&self, grant: &Arc<Grant>) -> SignedIn {
        let session = &self.control.settings.load().session;
        let seconds = |span: std::time::Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        SignedIn {
            user_sid: Some(grant.user().to_string()),
            offline_sso_disabled: Some(true),
            offline_sso_cache_timeout: Some(0),
            logout_on_host_suspend: Some(false),
            logout_on_cert_removal: Some(false),
            user_activity_interval: Some(seconds(session.heartbeat)),
            idle_timeout: Some(session.idle.map_or(-1, seconds)),
            max_broker_session_time: Some(seconds(session.lifetime)),
            csrf_token: None,
        }
    }
}

fn screen_of(due: Due) -> Screen {
    let user = |name: String, readonly| UserField { name, readonly };
    Screen::from(match due {
        Due::Disclaimer { text } => Ask::Disclaimer { text: text.to_string() },
        Due::Password {
            domains,
            user: typed,
            error,
        } => Ask::WindowsPassword(WindowsPassword {
            user: typed.map(|name| user(name, false)),
            domains: domains.to_vec(),
            error: error.map(str::to_owned),
            credential_cache_timeout: None,
        }),
        Due::NewPassword { user: whose, error } => Ask::WindowsPasswordExpired {
            user: Some(user(whose.to_string(), true)),
            error,
        },
    })
}

fn answer_of(submission: Submission) -> Answer {
    match submission {
        Submission::Disclaimer { accept } => Answer::Disclaimer { accept },
        Submission::WindowsPassword { user, password, domain } => Answer::Password { user, password, domain },
        Submission::WindowsPasswordExpired { old, new, repeated } => Answer::NewPassword { old, new, repeated },
        Submission::SecuridPasscode { .. }
        | Submission::SecuridNextTokencode { .. }
        | Submission::SecuridPinChange { .. }
        | Submission::CertAuth { .. }
        | Submission::Unknown { .. } => Answer::Other,
    }
}

/// Two known clients take this cookie's presence for the sign of a good sign-in (protocol sheet 1.3).
fn location_cookie() -> zeroize::Zeroizing<String> {
    let guid = uuid::Uuid::new_v4();
    zeroize::Zeroizing::new(format!(
        "com.vmware.vdi.broker.location.id={guid}; Path=/; Secure; HttpOnly; SameSite=Lax"
    ))
}
