//! The first request of a session that asks for the balancer's name is sent on to this node's own name, so that everything
//! after it comes here.

use std::collections::BTreeMap;

use http::header::COOKIE;
use http::{HeaderValue, Request, Uri};

use super::Gateway;
use super::conversation::Conversation;
use crate::inspect;
use crate::route;
use crate::types::Authority;

impl Gateway {
    /// Where a request is to be made again; `None` if it is answered here.
    ///
    /// A node that is full sends nobody on: it turns them away under the balancer's name, where another node may take them.
    pub(super) fn sent_on<B>(&self, request: &Request<B>, conversation: &Conversation) -> Option<String> {
        let plan = self.plan.load();
        let redirects = &plan.config.listeners.get(&*conversation.facts.listener)?.host_redirects;
        if redirects.is_empty()
            || conversation.facts.relayed_by.is_some()
            || !route::is_entrance(request.method(), request.uri())
        {
            return None;
        }
        // What is wrong with `Host` is told by whoever answers the request.
        let asked: Authority = inspect::authority(request).ok()??.as_str().parse().ok()?;
        let target = target(redirects, asked)?;
        let cookies: Vec<HeaderValue> = request.headers().get_all(COOKIE).iter().cloned().collect();
        if self.control.has_session(&cookies) || self.control.is_full() {
            return None;
        }
        tracing::debug!(client = %conversation.facts.client, %target, step = "route", "sent on to this node's own name");
        Some(location(target, request.uri()))
    }
}

/// The target of the key that covers what was asked for; one with that port stands before one with any.
fn target(redirects: &BTreeMap<Authority, Authority>, asked: Authority) -> Option<&Authority> {
    let asked = Authority {
        port: asked.port.or(Some(HTTPS)),
        ..asked
    };
    let covering = redirects.iter().filter(|(key, _)| key.covers(&asked));
    covering
        .max_by_key(|(key, _)| key.port.is_some())
        .map(|(_, target)| target)
}

fn location(target: &Authority, uri: &Uri) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("https://{target}{path}")
}

/// The port of a name without one.
const HTTPS: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_with_the_port_stands_before_the_one_with_any() {
        let redirects: BTreeMap<Authority, Authority> = [
            ("desk.example.com", "gw-1.example.com"),
            ("desk.example.com:8443", "gw-1.example.com:8443"),
            ("web.example.com:443", "[2001:db8::1]"),
        ]
        .map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()))
        .into();
        let sent = |asked: &str| {
            let target = target(&redirects, asked.parse().unwrap())?;
            Some(location(target, &Uri::from_static("/broker/xml?x=1")))
        };
        for (asked, expected) in [
            ("DESK.example.com", Some("https://gw-1.example.com/broker/xml?x=1")),
            ("desk.example.com.:9", Some("https://gw-1.example.com/broker/xml?x=1")),
            (
                "desk.example.com:8443",
                Some("https://gw-1.example.com:8443/broker/xml?x=1"),
            ),
            ("web.example.com", Some("https://[2001:db8::1]/broker/xml?x=1")),
            ("web.example.com:8443", None),
            ("gw-1.example.com", None),
        ] {
            assert_eq!(sent(asked).as_deref(), expected, "{asked}");
        }
    }
}
