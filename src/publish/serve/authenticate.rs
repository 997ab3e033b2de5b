//! Forward authentication of a request, before it goes on.

use http::Response;

use super::{Came, One, Stopped};
use crate::clock;
use crate::fault::WebFault;
use crate::publish::authentication::{self, Verdict};
use crate::publish::forward;
use crate::publish::headers::Hop;
use crate::publish::record::Record;
use crate::route::path::Normal;
use crate::upstream::Outcome;
use crate::wire::{NoBody, Sink};

impl One<'_> {
    /// Asks the rule's service whether the request may go on. Its answer, if it says no, is the client's.
    pub(super) async fn authenticate<A: Sink>(
        &self,
        head: &mut http::request::Parts,
        normal: &Normal,
        sink: &mut A,
        record: &mut Record,
    ) -> Result<Option<Came>, Stopped> {
        let (Some(service), Some(lane)) = (&self.site.rule.guard.authentication, &self.grounds.service) else {
            return Ok(None);
        };
        authentication::strip(service, &mut head.headers);
        if self.grounds.guard.is_exempt(normal.path()) {
            return Ok(None);
        }
        let question = authentication::request(
            service,
            &authentication::Asked {
                method: &head.method,
                target: normal.as_str(),
                host: record.host(),
                is_tls: self.arrival.tls.is_some(),
                client: record.client,
                fields: &head.headers,
            },
        );
        let unavailable = |_: WebFault| Stopped::from(WebFault::AuthenticationUnavailable);
        let pool = self.pool(lane).map_err(unavailable)?;
        let now = clock::now();
        let lease = pool.pick(None, now).map_err(unavailable)?;
        let mut question = question;
        let asked_host = self.host_for(lane, &lease, question.headers_mut(), Some(record.host()));
        let leased = self
            .reach(lane, &lease, asked_host.as_ref(), false, now)
            .await
            .map_err(unavailable)?;
        let (mut nothing, mut lent) = (NoBody, self.arrival.timers.lend());
        let asked = forward::ask(leased, &question, &mut nothing, sink, lane.limits, &mut lent.timer).await;
        let mut answer = match asked {
            Ok(answer) => answer,
            Err(unforwarded) => {
                lease.report(Outcome::Failed(unforwarded.fault), clock::now());
                return Err(unavailable(unforwarded.fault));
            }
        };
        lease.report(Outcome::Answered(answer.head.status()), clock::now());
        match authentication::judge(answer.head.status()) {
            Verdict::Admit => {
                authentication::admit(service, answer.head.headers(), &mut head.headers);
                answer.discard().await;
                Ok(None)
            }
            Verdict::Answer if answer.head.status().is_server_error() => {
                Err(WebFault::AuthenticationUnavailable.into())
            }
            Verdict::Answer => {
                let mut shown = std::mem::replace(&mut answer.head, Response::new(()));
                Hop::take(shown.headers_mut());
                record.status = shown.status();
                record.fault = Some(WebFault::Unauthenticated);
                record.answered = Some(clock::now());
                Ok(Some(Came::Relayed(answer.relay(shown, sink).await)))
            }
        }
    }
}
