//! The answer of a target on its way to the client.

use std::time::Duration;

use http::header::{ALT_SVC, CONNECTION, CONTENT_TYPE, UPGRADE};
use http::{HeaderValue, Response, StatusCode};

use super::{Came, Directed, One, Stopped};
use crate::fault::WebFault;
use crate::publish::affinity::Affinity;
use crate::publish::compress::{self, Compressed};
use crate::publish::forward::{Answer, Relayed};
use crate::publish::headers::{self, Hop, Prepared};
use crate::publish::location::{Inside, Outside, hide, may_tell};
use crate::publish::record::Record;
use crate::upstream::{Lease, TargetId};
use crate::wire::{Sink, Source};

impl One<'_> {
    /// Makes the answer's head fit for the client.
    pub(super) fn answer<'b, B: Source>(
        &self,
        mut answer: Answer<'b, B>,
        directed: Directed<'_>,
        prepared: &Prepared,
        (lease, cookies): (&Lease, Option<&Affinity<TargetId>>),
        record: &mut Record,
    ) -> Prompt<'b, B> {
        let lane = directed.lane;
        let settings = lane.way.settings();
        lane.exchanges.first_byte(answer.first_byte);
        let https = self.arrival.tls.is_some();
        let mut head = std::mem::replace(&mut answer.head, Response::new(()));
        let status = head.status();
        let fields = head.headers_mut();
        Hop::take(fields);
        for (set, kept) in directed.kept {
            set.answer(kept, status, fields);
        }
        if settings.hide_inside && may_tell(fields) {
            let address = lease.address().ip().to_string();
            let asked = record.asked_host.as_ref().and_then(|host| host.to_str().ok());
            let inside = Inside {
                tls: settings.tls.is_some(),
                port: lease.address().port(),
                names: &[lease.host(), &address],
                asked: asked.unwrap_or_default(),
                path: directed.literal.zip(settings.path_override.as_deref()),
            };
            hide(
                fields,
                &inside,
                &Outside {
                    https,
                    host: record.host(),
                },
            );
        }
        if let Some(affinity) = cookies {
            affinity.put(fields, self.published.cookies.value(lease.target()), https);
        }
        // The target's own would name ports of the inside.
        if let Some(service) = self.arrival.http3 {
            fields.insert(ALT_SVC, service.clone());
        }
        headers::apply(&self.site.rule.response_headers, fields);
        let compresses = self.site.rule.compress && compress::begin(status, fields, prepared.takes_gzip);
        record.status = status;
        record.content_type = fields.get(CONTENT_TYPE).cloned();
        record.answered = Some(answer.since());
        Prompt {
            head,
            answer,
            wants_upgrade: prepared.hop.websocket,
            compresses,
            idle: settings.idle_timeout,
        }
    }
}

/// An answer that is ready for the client.
pub(super) struct Prompt<'b, B> {
    head: Response<()>,
    answer: Answer<'b, B>,
    wants_upgrade: bool,
    compresses: bool,
    idle: Duration,
}

impl<B: Source> Prompt<'_, B> {
    pub(super) async fn relay<A: Sink>(mut self, sink: &mut A, lease: Lease) -> Result<Came, Stopped> {
        if self.head.status() == StatusCode::SWITCHING_PROTOCOLS {
            if !self.wants_upgrade {
                return Err(WebFault::UpstreamInvalid.into());
            }
            let upgraded = self.answer.upgrade().ok_or(WebFault::UpstreamInvalid)?;
            let fields = self.head.headers_mut();
            fields.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
            return Ok(Came::Upgraded(Box::new((self.head, upgraded, self.idle, lease))));
        }
        let cut = lease.cut();
        if self.compresses {
            let mut packed = Compressed::new(sink);
            let mut relayed = tokio::select! {
                biased;
                relayed = self.answer.relay(self.head, &mut packed) => relayed,
                () = cut.cancelled() => CUT,
            };
            relayed.sent = packed.sent();
            return Ok(Came::Relayed(relayed));
        }
        tokio::select! {
            biased;
            relayed = self.answer.relay(self.head, sink) => Ok(Came::Relayed(relayed)),
            () = cut.cancelled() => Ok(Came::Relayed(CUT)),
        }
    }
}

/// The target was taken away, and its time to drain is over.
const CUT: Relayed = Relayed {
    received: 0,
    sent: 0,
    fault: Some(WebFault::UpstreamClosed),
};
