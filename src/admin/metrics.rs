//! `GET /metrics`: the counts and levels of the node, for Prometheus.

use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::gateway::Gateway;
use crate::observe::exposition::Exposition;
use crate::observe::{Aside, Cause, Counters, Kind};
use crate::publish::PassagesView;

/// The whole document.
pub(super) fn exposition(gateway: &Gateway) -> String {
    let mut out = Exposition::default();
    levels(gateway, &mut out);
    let counters = gateway.grants().watch().counters();
    secondaries(counters, &mut out);
    sessions(counters, &mut out);
    connections(gateway, counters, &mut out);
    datagrams(counters, &mut out);
    passages(&gateway.publisher().passages().view(), &mut out);
    findings(gateway, &mut out);
    requests(gateway, &mut out);
    targets(gateway, &mut out);
    out.finish()
}

fn levels(gateway: &Gateway, out: &mut Exposition) {
    let name = gateway.plan().config.node.name.to_string();
    out.gauge("portcullis_node_info", "The node's name and version; always 1.");
    out.sample(&[("name", &name), ("version", env!("CARGO_PKG_VERSION"))], 1);
    out.gauge(
        "portcullis_in_service",
        "Whether the node is in service (1); or starts, is quiesced or drains (0).",
    );
    out.sample(&[], gateway.lifecycle().is_in_service().into());
    for (name, help, level) in [
        ("portcullis_sessions", "Live sessions.", gateway.grants().len()),
        ("portcullis_tunnels", "Open HTTPS tunnels.", gateway.tunnels().len()),
        (
            "portcullis_pending_logins",
            "Sign-ins in the middle.",
            gateway.control_channel().pending(),
        ),
        (
            "portcullis_connections",
            "Open client connections.",
            gateway.caps().of_the_node(),
        ),
    ] {
        out.gauge(name, help);
        out.sample(&[], level as u64);
    }
}

fn secondaries(counters: &Counters, out: &mut Exposition) {
    out.counter(
        "portcullis_secondaries_admitted_total",
        "Secondary connections that were let in.",
    );
    for kind in Kind::ALL {
        out.sample(&[("secondary", kind.code())], counters.admissions(kind));
    }
    out.counter(
        "portcullis_secondaries_carried_total",
        "Secondary connections that a balancer brought here and that were carried to their own node.",
    );
    for kind in Kind::ALL {
        out.sample(&[("secondary", kind.code())], counters.carries(kind));
    }
    out.counter(
        "portcullis_refusals_total",
        "Secondary connections that were turned away, by reason.",
    );
    for kind in Kind::ALL {
        for reason in Refusal::ALL {
            let labels = [("secondary", kind.code()), ("reason", reason.code())];
            out.sample(&labels, counters.refusals(kind, reason));
        }
    }
}

fn sessions(counters: &Counters, out: &mut Exposition) {
    out.counter("portcullis_sessions_begun_total", "Sessions that began.");
    out.sample(&[], counters.sessions_begun());
    out.counter("portcullis_sessions_ended_total", "Sessions that ended, by reason.");
    for (reason, count) in counters.sessions_ended() {
        out.sample(&[("reason", reason)], count);
    }
}

fn connections(gateway: &Gateway, counters: &Counters, out: &mut Exposition) {
    let counts = gateway.caps().counts();
    out.counter(
        "portcullis_connections_closed_total",
        "Client connections that ended, by reason.",
    );
    for (reason, count) in counters.closes() {
        // Over the limit a connection is closed before anything is known of it: that is counted where it happens.
        let at_the_door = if reason == CloseReason::ConnectionLimit.code() {
            counts.refused_total
        } else {
            0
        };
        out.sample(&[("reason", reason)], count + at_the_door);
    }
    out.counter(
        "portcullis_accept_faults_total",
        "Times that accepting failed for want of descriptors or memory.",
    );
    out.sample(&[], counts.accept_faults);
}

fn datagrams(counters: &Counters, out: &mut Exposition) {
    out.counter(
        "portcullis_quic_datagrams_dropped_total",
        "Datagrams of QUIC sessions that the node dropped, because the way on took them more slowly than they came.",
    );
    for (towards, aside) in [("client", Aside::ToClient), ("desktop", Aside::ToDesktop)] {
        out.sample(&[("towards", towards)], counters.datagrams(aside));
    }
    out.counter(
        "portcullis_quic_datagrams_in_stream_total",
        "Datagrams that went to their client within a stream, because the path took none of their size at that moment.",
    );
    out.sample(&[], counters.datagrams(Aside::InStream));
}

/// The passages, by the names that the configuration gives.
fn passages(views: &[PassagesView], out: &mut Exposition) {
    let sample = |out: &mut Exposition, value: fn(&PassagesView) -> u64| {
        for view in views {
            let course = &view.course;
            let labels = [
                ("listener", &*course.listener),
                ("pool", &*course.pool),
                ("backend", &*course.backend),
            ];
            out.sample(&labels, value(view));
        }
    };
    out.gauge("portcullis_passages", "Open connections of TCP and TLS listeners.");
    sample(out, |view| view.open);
    out.counter(
        "portcullis_passages_opened_total",
        "Connections of TCP and TLS listeners that were led to a pool.",
    );
    sample(out, |view| view.opened);
    out.counter(
        "portcullis_passages_received_bytes_total",
        "Bytes of their clients that targets took.",
    );
    sample(out, |view| view.received);
    out.counter(
        "portcullis_passages_sent_bytes_total",
        "Bytes of their targets that clients took.",
    );
    sample(out, |view| view.sent);
    out.counter(
        "portcullis_passages_milliseconds_total",
        "How long those lasted that have ended.",
    );
    sample(out, |view| view.milliseconds);
}

fn findings(gateway: &Gateway, out: &mut Exposition) {
    let found = gateway.grants().watch().findings(clock::now());
    out.gauge(
        "portcullis_findings",
        "Faults found around the node that hold, by cause.",
    );
    for cause in Cause::ALL {
        let holding = found.iter().filter(|finding| finding.holds && finding.cause == cause);
        out.sample(&[("cause", cause.code())], holding.count() as u64);
    }
}

/// Requests of the web. A rule is there from its first request on: most of thousands may never be asked.
fn requests(gateway: &Gateway, out: &mut Exposition) {
    let publisher = gateway.publisher();
    let rules = publisher.traffic().rules();
    out.counter(
        "portcullis_web_requests_total",
        "Requests of the web that have ended, by rule and class of the status.",
    );
    for (rule, requests) in &rules {
        for (class, count) in requests.by_class() {
            out.sample(&[("rule", &**rule), ("class", class)], count);
        }
    }
    out.histogram(
        "portcullis_web_request_seconds",
        "From the head of a request to the last byte of its answer.",
    );
    for (rule, requests) in &rules {
        out.times(("rule", &**rule), &requests.taken());
    }
    out.counter("portcullis_web_received_bytes_total", "Bytes of requests' bodies.");
    for (rule, requests) in &rules {
        out.sample(&[("rule", &**rule)], requests.bytes().0);
    }
    out.counter("portcullis_web_sent_bytes_total", "Bytes of answers' bodies.");
    for (rule, requests) in &rules {
        out.sample(&[("rule", &**rule)], requests.bytes().1);
    }
    out.counter(
        "portcullis_web_errors_total",
        "Requests of the web that were not answered by a target, or not wholly, by reason.",
    );
    for (fault, count) in publisher.traffic().faults() {
        out.sample(&[("error", fault.code())], count);
    }
    out.counter(
        "portcullis_access_log_dropped_total",
        "Lines of the access log that nobody will read.",
    );
    out.sample(&[], publisher.access_log().dropped());
}

/// Targets of the web, and how they answer.
fn targets(gateway: &Gateway, out: &mut Exposition) {
    let publisher = gateway.publisher();
    let pools = publisher.traffic().pools();
    out.histogram(
        "portcullis_pool_connect_seconds",
        "Connecting to targets, with TLS; connections that are used again are not counted.",
    );
    for (pool, exchanges) in &pools {
        out.times(("pool", &**pool), &exchanges.connect_times());
    }
    out.histogram(
        "portcullis_pool_first_byte_seconds",
        "From the request to the head of the target's answer.",
    );
    for (pool, exchanges) in &pools {
        out.times(("pool", &**pool), &exchanges.answer_times());
    }
    out.counter(
        "portcullis_pool_unreached_total",
        "Connections to targets that did not come about.",
    );
    for (pool, exchanges) in &pools {
        out.sample(&[("pool", &**pool)], exchanges.failures());
    }
    let census = publisher.census(clock::now());
    out.gauge("portcullis_pool_targets", "Targets by what their probes say.");
    for of_pool in &census {
        let backend = of_pool.backend.as_deref().unwrap_or_default();
        for (condition, count) in of_pool.by_condition {
            let labels = [
                ("pool", &*of_pool.pool),
                ("backend", backend),
                ("condition", condition.code()),
            ];
            out.sample(&labels, count);
        }
    }
    out.gauge(
        "portcullis_pool_ejected",
        "Targets that are left out for their answers to users.",
    );
    for of_pool in &census {
        let backend = of_pool.backend.as_deref().unwrap_or_default();
        out.sample(&[("pool", &*of_pool.pool), ("backend", backend)], of_pool.ejected);
    }
}
