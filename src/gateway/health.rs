//! What the balancer is told: by the health check, and by HAProxy's agent check.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, StatusCode};

use super::http1::{self, Next, Respond};
use super::lifecycle::State;
use super::{Gateway, answer, sent};
use crate::clock;
use crate::config::QuiesceAnswer;
use crate::listen::Incoming;
use crate::route::{self, Routed};
use crate::wire::{Sink, Source};

/// What the health check is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Send users here.
    InService,
    /// Send nobody new, and leave those here who are.
    NoNewUsers,
    /// Send nobody here.
    OutOfService,
}

impl Health {
    /// The status that says so.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InService => StatusCode::OK,
            Self::NoNewUsers => StatusCode::NOT_FOUND,
            Self::OutOfService => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A node on its way out of the balancer's service.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// How the balancer is told.
    answer: QuiesceAnswer,
    /// Since when.
    since: Instant,
    /// Sign-ins in the middle.
    pending: usize,
    /// How long a sign-in may take.
    login_timeout: Duration,
}

impl Leaving {
    /// What the health check is answered at `now`.
    fn health(&self, now: Instant) -> Health {
        match self.answer {
            QuiesceAnswer::Unavailable => Health::OutOfService,
            QuiesceAnswer::Agent => Health::InService,
            QuiesceAnswer::TwoStep(_) => match self.step_left(now) {
                Some(_) => Health::NoNewUsers,
                None => Health::OutOfService,
            },
        }
    }

    /// How long the first of two steps still lasts; `None` if it is over, or there is none. It lasts as long as it is set
    /// to, and then for as long as a sign-in is in the middle: but for no longer than those that had begun by then may take,
    /// or whoever begins sign-ins without end would keep the node in it.
    fn step_left(&self, now: Instant) -> Option<Duration> {
        let QuiesceAnswer::TwoStep(step) = self.answer else {
            return None;
        };
        let end = self.since + step;
        let end = if self.pending > 0 {
            end + self.login_timeout
        } else {
            end
        };
        Some(end.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

impl Gateway {
    /// What the health check is answered at this moment.
    pub fn health(&self) -> Health {
        match self.lifecycle.state() {
            State::Serving => Health::InService,
            State::Quiesced => self
                .leaving()
                .map_or(Health::InService, |leaving| leaving.health(clock::now())),
            State::Starting | State::Draining => Health::OutOfService,
        }
    }

    /// How long the health check will be answered 404 at the most; `None` if it is not.
    pub fn step_left(&self) -> Option<Duration> {
        self.leaving()?.step_left(clock::now())
    }

    /// Whether users may begin sessions here. A quiesced node serves those whom the balancer still sends, unless it is
    /// configured to refuse them; who is in the middle of a sign-in is let through either way.
    pub fn admits_sessions(&self) -> bool {
        match self.lifecycle.state() {
            State::Serving => true,
            State::Quiesced => !self.plan().config.quiesce.refuses_logins,
            State::Starting | State::Draining => false,
        }
    }

    /// Whether `peer` may ask the agent check.
    pub fn may_ask_agent(&self, peer: IpAddr) -> bool {
        let plan = self.plan();
        let from = &plan.config.quiesce.agent_from;
        from.is_empty() || from.iter().any(|network| network.contains(&peer))
    }

    /// The line that the agent check is answered: HAProxy's `agent-check`.
    ///
    /// In service the weight falls with the sessions. A node that is left drains: who sticks to it still comes. Once nobody
    /// is there any more it is in maintenance, or those who stick to it would sign in again and it would never be empty.
    pub fn agent_line(&self) -> String {
        let (sessions, pending) = (self.grants.len(), self.control.pending());
        match self.lifecycle.state() {
            State::Starting => "down\n".to_owned(),
            State::Serving => format!("up ready {}%\n", weight(sessions, self.plan().config.session.max)),
            State::Quiesced if sessions == 0 && pending == 0 => "up maint\n".to_owned(),
            State::Quiesced | State::Draining => "up drain\n".to_owned(),
        }
    }

    /// Answers the health check on a plain connection: nothing else is served there.
    pub async fn serve_health(self: Arc<Self>, incoming: Incoming) {
        let Ok(accepted) = incoming.accept(&[]).await else {
            return;
        };
        let (io, _facts, _permit) = accepted.into_parts();
        let head_timeout = self.plan().config.limits.head_timeout;
        http1::serve(io, head_timeout, HealthOnly(&self), self.kinship.leaving()).await;
    }

    fn leaving(&self) -> Option<Leaving> {
        let plan = self.plan();
        Some(Leaving {
            answer: plan.config.quiesce.answer,
            since: self.lifecycle.quiesced_since()?,
            pending: self.control.pending(),
            login_timeout: plan.config.session.login_timeout,
        })
    }
}

/// The share of the node that is free, in percent; 0 only if none is.
fn weight(sessions: usize, most: usize) -> usize {
    (most.saturating_sub(sessions) * 100).div_ceil(most.max(1))
}

/// Answers the health check and nothing else.
struct HealthOnly<'a>(&'a Gateway);

impl Respond for HealthOnly<'_> {
    async fn respond<B: Source, A: Sink>(&self, request: Request<()>, _body: B, mut answer: A) -> Next {
        let response = match route::route(request.method(), request.uri()) {
            Ok(Routed::Health) => answer::health(self.0.health(), request.method()),
            _ => answer::text(StatusCode::NOT_FOUND, "only the health check is answered here\n"),
        };
        sent(answer::send(&mut answer, response).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(30);
    const LOGIN: Duration = Duration::from_secs(300);
    const MOMENT: Duration = Duration::from_millis(1);

    fn leaving(answer: QuiesceAnswer, pending: usize) -> Leaving {
        Leaving {
            answer,
            since: clock::now(),
            pending,
            login_timeout: LOGIN,
        }
    }

    #[test]
    fn each_answer_has_its_status() {
        let now = clock::now();
        let status = |answer| leaving(answer, 0).health(now).status().as_u16();
        assert_eq!(status(QuiesceAnswer::Unavailable), 503);
        assert_eq!(status(QuiesceAnswer::Agent), 200);
        assert_eq!(status(QuiesceAnswer::TwoStep(STEP)), 404);
    }

    #[test]
    fn two_steps_are_404_and_then_503_on_the_second() {
        let leaving = leaving(QuiesceAnswer::TwoStep(STEP), 0);
        let since = leaving.since;
        assert_eq!(leaving.health(since), Health::NoNewUsers);
        assert_eq!(leaving.health(since + STEP - MOMENT), Health::NoNewUsers);
        assert_eq!(leaving.health(since + STEP), Health::OutOfService);
        assert_eq!(leaving.step_left(since + STEP / 2), Some(STEP / 2));
        assert_eq!(leaving.step_left(since + STEP), None);
    }

    #[test]
    fn sign_ins_in_the_middle_hold_the_second_step_up_but_not_for_ever() {
        let leaving = leaving(QuiesceAnswer::TwoStep(STEP), 1);
        let since = leaving.since;
        assert_eq!(leaving.health(since + STEP), Health::NoNewUsers);
        assert_eq!(leaving.health(since + STEP + LOGIN - MOMENT), Health::NoNewUsers);
        assert_eq!(leaving.health(since + STEP + LOGIN), Health::OutOfService);
    }

    #[test]
    fn the_weight_is_what_is_free_and_nothing_only_if_nothing_is() {
        assert_eq!(weight(0, 10_000), 100);
        assert_eq!(weight(2_500, 10_000), 75);
        assert_eq!(weight(9_999, 10_000), 1);
        assert_eq!(weight(10_000, 10_000), 0);
        assert_eq!(weight(12_000, 10_000), 0, "after a reload that lowers the limit");
    }
}
