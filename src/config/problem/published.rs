//! What can be wrong with rules, pools, and what else is published for clients of the web.

use crate::config::nearest::nearest;
use crate::config::path::{Quoted, SettingPath};
use crate::config::report::Severity;
use crate::types::{InvalidPattern, InvalidTemplate, RewriteFault, ServerVariable};

use super::remedy::did_you_mean;

/// One thing wrong with what is published for clients of the web.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unpublishable {
    // Rules.
    /// Two rules have one priority.
    #[error("{priority} is the priority of {other} too")]
    SamePriority {
        /// The priority.
        priority: u16,
        /// The other rule's.
        other: SettingPath,
        /// One that is free.
        free: u16,
    },
    /// A rule whose requests all go to others.
    #[error("never holds: {others} comes first for each of its hosts, wherever it listens")]
    ShadowedRule {
        /// The rules that hold instead.
        others: String,
    },
    /// A path that an earlier one of the same rule covers.
    #[error("never holds: {other} comes first")]
    ShadowedPath {
        /// The earlier one.
        other: SettingPath,
    },
    /// A rule takes the paths of the session gateway from the name under which clients find it.
    #[error("takes {} from the session gateway, to which {url} sends its clients", Quoted(.host))]
    TakesSessionGateway {
        /// The name.
        host: String,
        /// The setting that sends clients there.
        url: SettingPath,
    },
    /// A rule for any host does not get all of its requests.
    #[error("gets no request for {SESSION_GATEWAY} on {listener}: those are the session gateway's there")]
    StaysWithSessionGateway {
        /// The listener, or the first of several.
        listener: SettingPath,
    },
    /// A listener without anything.
    #[error("nothing is published here")]
    NothingPublished,

    // Bytes that pass as they are.
    /// A rule's listeners are of both kinds.
    #[error("are partly of HTTP, and partly of bytes that pass as they are")]
    MixedListeners,
    /// A rule of HTTP names a backend of bytes.
    #[error("passes bytes as they are, but the rule's listeners speak HTTP")]
    BackendOfBytes,
    /// A rule of bytes names a backend of HTTP.
    #[error("speaks HTTP, but the rule's listeners pass bytes as they are")]
    BackendOfHttp,
    /// A target of a rule of bytes has no port.
    #[error("has no port, and there is no usual one for what passes as it is")]
    NoPort,
    /// A redirect leads to a listener that cannot be asked anything.
    #[error("speaks no HTTP, so nobody can be sent there")]
    RedirectToBytes,

    // Redirects.
    /// A redirect has no target, or two.
    #[error("needs exactly one of listener and url")]
    RedirectTarget,
    /// A status that does not send anybody anywhere.
    #[error("{status} is no status of a redirect")]
    RedirectStatus {
        /// The status.
        status: u16,
    },
    /// A redirect comes back to itself.
    #[error("sends {} round in a circle: it comes back here without end", Quoted(.url))]
    RedirectCircle {
        /// A URL for which it does.
        url: String,
    },

    // Pools and backends.
    /// A pool without targets.
    #[error("has no target, so everything sent to it is answered 502")]
    NoTarget,
    /// A pool whose targets get nothing.
    #[error("every target has weight 0, so none of them gets anything new")]
    NoWeight,
    /// A target that stands twice in a pool.
    #[error("is the same target as {other}")]
    SameTarget {
        /// The other one.
        other: SettingPath,
    },
    /// Something that nothing refers to.
    #[error("{by} names it")]
    Unused {
        /// What could: `no rule`.
        by: &'static str,
    },
    /// Affinity with a key of the node's own.
    #[error("has no key: clients lose their target when this node restarts, and on every other node")]
    KeyDrawn,
    /// TLS that proves nothing.
    #[error("lets whoever is on the way pretend to be the target")]
    Unproven,
    /// Everyone's `X-Forwarded-For` is believed.
    #[error("every address is trusted, so any client can claim any address")]
    EveryoneTrusted,
    /// Compression, which tells of what it compresses.
    #[error(
        "the length of a compressed page tells of its secrets, where it shows what others wrote beside them (BREACH)"
    )]
    Compresses,

    // Fields.
    /// A field that the gateway makes itself.
    #[error("{name} is made by the gateway itself")]
    OwnField {
        /// Its name.
        name: String,
    },
    /// A field that stands twice.
    #[error("is the same field as {other}: names do not differ by case")]
    SameField {
        /// The other one.
        other: SettingPath,
    },

    // Rewriting.
    /// A rewrite rule whose parts do not fit.
    #[error("{}", rewrite_words(.0).0)]
    Rewrite(RewriteFault),
    /// A text that is no template.
    #[error("{}", template_words(.0).0)]
    Template(InvalidTemplate),
    /// A text that is no pattern.
    #[error("{0}")]
    Pattern(InvalidPattern),
    /// Paths are to be chosen again where there are none.
    #[error("chooses among the paths again, but this rule has none")]
    NothingToChoose,
    /// Rewriting comes back to itself.
    #[error("makes the path {}, which comes back here without end", Quoted(.path))]
    RewriteCircle {
        /// The path, or how it begins.
        path: String,
    },
}

/// The paths of the session gateway.
const SESSION_GATEWAY: &str = "/favicon.ico, /broker/xml, /ice/*, /r/*, /d/* and /portal";

impl Unpublishable {
    /// Whether a configuration is refused for it.
    pub fn severity(&self) -> Severity {
        let tolerable = matches!(
            self,
            Self::ShadowedRule { .. }
                | Self::ShadowedPath { .. }
                | Self::StaysWithSessionGateway { .. }
                | Self::NothingPublished
                | Self::NoTarget
                | Self::NoWeight
                | Self::Unused { .. }
                | Self::KeyDrawn
                | Self::Unproven
                | Self::EveryoneTrusted
                | Self::Compresses
        );
        if tolerable { Severity::Warning } else { Severity::Error }
    }

    /// The name of the problem in reports for programs; stable.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SamePriority { .. } => "same_priority",
            Self::ShadowedRule { .. } => "shadowed_rule",
            Self::ShadowedPath { .. } => "shadowed_path",
            Self::TakesSessionGateway { .. } => "takes_session_gateway",
            Self::StaysWithSessionGateway { .. } => "stays_with_session_gateway",
            Self::NothingPublished => "nothing_published",
            Self::MixedListeners => "mixed_listeners",
            Self::BackendOfBytes => "backend_of_bytes",
            Self::BackendOfHttp => "backend_of_http",
            Self::NoPort => "no_port",
            Self::RedirectToBytes => "redirect_to_bytes",
            Self::RedirectTarget => "redirect_target",
            Self::RedirectStatus { .. } => "redirect_status",
            Self::RedirectCircle { .. } => "redirect_circle",
            Self::NoTarget => "no_target",
            Self::NoWeight => "no_weight",
            Self::SameTarget { .. } => "same_target",
            Self::Unused { .. } => "unused",
            Self::KeyDrawn => "key_drawn",
            Self::Unproven => "unproven",
            Self::EveryoneTrusted => "everyone_trusted",
            Self::Compresses => "compresses",
            Self::OwnField { .. } => "own_field",
            Self::SameField { .. } => "same_field",
            Self::Rewrite(_) => "rewrite",
            Self::Template(_) => "template",
            Self::Pattern(_) => "pattern",
            Self::NothingToChoose => "nothing_to_choose",
            Self::RewriteCircle { .. } => "rewrite_circle",
        }
    }

    /// What to do, in one or two sentences.
    pub fn remedy(&self) -> String {
        match self {
            Self::SamePriority { free, .. } => return format!("Write another, such as {free}."),
            Self::ShadowedRule { .. } => "Give it a lower number than those, or remove it.",
            Self::ShadowedPath { .. } => "List it before that one, or remove it.",
            Self::TakesSessionGateway { .. } => {
                "Use another host, or another listener, or set session_gateway = false in the listener."
            }
            Self::StaysWithSessionGateway { .. } => {
                "Name its hosts, or set session_gateway = false in the listener, if it is to have them."
            }
            Self::NothingPublished => "Name it in the listeners of a rule, or remove it.",
            Self::MixedListeners => "Write a rule for each kind.",
            Self::BackendOfBytes => r#"Name a backend with protocol "http" or "https"."#,
            Self::BackendOfHttp => r#"Name a backend with protocol "tcp" or "tls"."#,
            Self::NoPort => r#"Write it behind the address, such as "10.0.0.5:5432", or give the backend a port."#,
            Self::RedirectToBytes => r#"Name a listener with protocol "https" or "http"."#,
            Self::RedirectTarget => r#"Write { listener = "public" } or { url = "https://www.example.com" }."#,
            Self::RedirectStatus { .. } => "Write 301, 302, 303, 307 or 308.",
            Self::RedirectCircle { .. } => {
                "Send clients to another listener or host, or take that listener out of this rule's listeners."
            }
            Self::NoTarget => r#"Write targets = ["10.0.0.5:8080"]."#,
            Self::NoWeight => "Give one of them a weight, or leave them out.",
            Self::SameTarget { .. } => "Remove one, and give the other its weight.",
            Self::Unused { .. } => "Name it there, or remove it.",
            Self::KeyDrawn => r#"Write [affinity] with key = { file = "/etc/portcullis/affinity.key" }."#,
            Self::Unproven => "Set ca and name instead, so that the target can prove itself.",
            Self::EveryoneTrusted => "Name the proxies' own addresses.",
            Self::Compresses => "Leave it to a rule whose pages show no secrets, or remove it.",
            Self::OwnField { .. } => "Remove it.",
            Self::SameField { .. } => "Merge the two.",
            Self::Rewrite(fault) => return rewrite_words(fault).1,
            Self::Template(fault) => return template_words(fault).1,
            Self::Pattern(_) => "Correct it.",
            Self::NothingToChoose => "Remove reevaluate in the set, or give this rule paths.",
            Self::RewriteCircle { .. } => {
                "Add a condition that does not hold for that path, or remove reevaluate in the set."
            }
        }
        .to_owned()
    }
}

/// What is wrong with a rewrite rule, and what to do. Where it is wrong, the setting's path says.
fn rewrite_words(fault: &RewriteFault) -> (String, String) {
    let (what, remedy) = match fault {
        RewriteFault::NoAction => (
            "does nothing",
            "Give it request_headers, response_headers, path or query.",
        ),
        RewriteFault::NothingToReevaluate => ("needs a path to choose by", "Add path, or remove reevaluate."),
        RewriteFault::Framing(_) => ("belongs to the connection and cannot be rewritten", "Remove it."),
        RewriteFault::HostDeleted => ("Host cannot be taken away", "Give it a value."),
        RewriteFault::RelativePath => ("is no path", "Begin it with /, or with a variable."),
        RewriteFault::TooEarly { variable, .. } => {
            let what = format!("{variable} is not known before the answer");
            return (what, "Use it in a rule with response_headers only.".to_owned());
        }
        RewriteFault::NoCapture { variable, group, .. } => {
            let what = format!("no condition captures {{{variable}_{group}}}");
            let remedy = format!(
                "Add a condition on {variable} to when, not negated, with {group} pairs of parentheses or more in matches."
            );
            return (what, remedy);
        }
        RewriteFault::NotOfUrl { character, .. } => {
            let what = format!("{character:?} cannot stand there");
            return (what, "Write it percent-encoded.".to_owned());
        }
    };
    (what.to_owned(), remedy.to_owned())
}

/// What is wrong with a template, and what to do.
fn template_words(fault: &InvalidTemplate) -> (String, String) {
    let braces = "Write {{ and }} for the characters themselves.";
    match fault {
        InvalidTemplate::Unclosed { at } => (
            format!("the {{ at byte {at} is not closed"),
            format!("Close it. {braces}"),
        ),
        InvalidTemplate::Unopened { at } => (format!("the }} at byte {at} closes nothing"), braces.to_owned()),
        InvalidTemplate::Unknown(name) => {
            let known = ServerVariable::ALL.map(|variable| format!("var_{}", variable.name()));
            let remedy = did_you_mean(nearest(name, &known).as_deref(), || {
                "Write http_req_NAME, http_resp_NAME, var_cookie_NAME or var_NAME with a server variable's name."
                    .to_owned()
            });
            (format!("{} is no variable", Quoted(name)), remedy)
        }
        InvalidTemplate::Group(name) => (
            format!("{} has no such group", Quoted(name)),
            "Groups are numbered from 1 to 99.".to_owned(),
        ),
        InvalidTemplate::Control { at } => (
            format!("there is a control character at byte {at}"),
            "Take it out.".to_owned(),
        ),
    }
}
