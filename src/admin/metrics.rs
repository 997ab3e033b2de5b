//! `GET /metrics`: the counts and levels of the node, for Prometheus.

use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::gateway::Gateway;
use crate::observe::exposition::Exposition;
use crate::observe::{Cause, Counters, Kind};

/// The whole document.
pub(super) fn exposition(gateway: &Gateway) -> String {
    let mut out = Exposition::default();
    levels(gateway, &mut out);
    let counters = gateway.grants().watch().counters();
    secondaries(counters, &mut out);
    sessions(counters, &mut out);
    connections(gateway, counters, &mut out);
    findings(gateway, &mut out);
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
            gateway.caps().counts().open,
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
