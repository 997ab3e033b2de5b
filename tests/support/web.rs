//! What is published behind a gateway, and who asks for it.
//!
//! [`Shop`] is the configuration of an application; [`Origin`] is the application; a [`Browser`] asks over HTTP/1.1 or HTTP/2.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test uses its part of this"
)]

#[path = "web/browser.rs"]
pub mod browser;
#[path = "web/http2.rs"]
pub mod http2;
#[path = "web/inside_http2.rs"]
pub mod inside_http2;
#[path = "web/names.rs"]
pub mod names;
#[path = "web/origin.rs"]
pub mod origin;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;

pub use browser::{Answer, Ask, Browser, Http, read, read_head, send, try_read};
pub use http2::{Frames, Http2};
pub use origin::{Exchange, Origin, Seen};

pub use crate::support::PATIENCE;
use crate::support::{Gateway, Setup};

/// An application under `shop.test`, as it is configured: the tables `pool.shop`, `backend.shop`, `rule.shop`, a probe
/// that is quick, and an access log.
#[derive(Clone, Debug)]
pub struct Shop {
    setup: Setup,
    targets: Vec<String>,
    pool: String,
    rule: String,
    backend: String,
    probe: String,
    paths: String,
    tables: String,
    access_log: String,
    has_plain_listener: bool,
}

impl Shop {
    /// With that target.
    pub fn of(origin: &Origin) -> Self {
        Self::with_targets(&[origin.quoted()])
    }

    /// With these targets, in this order.
    pub fn of_all(origins: &[&Origin]) -> Self {
        Self::with_targets(&origins.iter().map(|origin| origin.quoted()).collect::<Vec<_>>())
    }

    /// With targets as they are written in the configuration, quoted.
    pub fn with_targets(targets: &[String]) -> Self {
        Self {
            setup: Setup::default(),
            targets: targets.to_vec(),
            pool: String::new(),
            rule: "hosts = [\"shop.test\"]\npriority = 10\n".to_owned(),
            backend: String::new(),
            probe: "path = \"/probe\"\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 2\n".to_owned(),
            paths: String::new(),
            tables: String::new(),
            access_log: "to = \"access.log\"\n".to_owned(),
            has_plain_listener: false,
        }
    }

    /// Other targets, with the rest as it is.
    pub fn targets(mut self, targets: &[String]) -> Self {
        self.targets = targets.to_vec();
        self
    }

    /// Adds lines to `[pool.shop]`.
    pub fn pool(mut self, lines: &str) -> Self {
        push(&mut self.pool, lines);
        self
    }

    /// Adds lines to `[rule.shop]`.
    pub fn rule(mut self, lines: &str) -> Self {
        push(&mut self.rule, lines);
        self
    }

    /// Replaces hosts and priority of `[rule.shop]`.
    pub fn hosts(mut self, lines: &str) -> Self {
        self.rule = lines.to_owned();
        self.rule.push('\n');
        self
    }

    /// Adds lines to `[backend.shop]`.
    pub fn backend(mut self, lines: &str) -> Self {
        push(&mut self.backend, lines);
        self
    }

    /// Replaces the lines of `[probe.quick]`.
    pub fn probe(mut self, lines: &str) -> Self {
        self.probe = lines.to_owned();
        self
    }

    /// Adds a `[[rule.shop.path]]` with these paths and lines for what becomes of them.
    pub fn path(mut self, paths: &[&str], lines: &str) -> Self {
        push(
            &mut self.paths,
            &format!("[[rule.shop.path]]\npaths = {paths:?}\n{lines}"),
        );
        self
    }

    /// Adds whole tables.
    pub fn table(mut self, text: &str) -> Self {
        push(&mut self.tables, text);
        self
    }

    /// Adds lines to `[access_log]`.
    pub fn access_log(mut self, lines: &str) -> Self {
        push(&mut self.access_log, lines);
        self
    }

    /// Changes the gateway's own part.
    pub fn setup(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.setup = change(self.setup);
        self
    }

    /// Adds a listener `web` without TLS, whose address is [`second_address`].
    pub fn plain(mut self) -> Self {
        self.has_plain_listener = true;
        self
    }

    /// The whole.
    pub fn to_setup(&self) -> Setup {
        let plain = if self.has_plain_listener {
            "[listener.web]\nprotocol = \"http\"\nbind = [\"127.0.0.2:0\"]\n"
        } else {
            ""
        };
        self.setup.clone().section(&format!(
            "{plain}[access_log]\n{}\n[probe.quick]\n{}\n[pool.shop]\ntargets = [{}]\n{}\n[backend.shop]\nprobe = \
             \"quick\"\n{}\n[rule.shop]\n{}pool = \"shop\"\nbackend = \"shop\"\n{}\n{}\n",
            self.access_log,
            self.probe,
            self.targets.join(", "),
            self.pool,
            self.backend,
            self.rule,
            self.paths,
            self.tables,
        ))
    }

    /// Starts a gateway in front of it.
    pub fn start(&self) -> Gateway {
        Gateway::start(&self.to_setup())
    }

    /// Puts it in force at a gateway that runs; it must be taken.
    pub fn apply(&self, gateway: &Gateway) {
        let told = gateway.reload(&self.to_setup());
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("configuration applied"), "{told}");
    }
}

fn push(to: &mut String, lines: &str) {
    to.push_str(lines);
    if !lines.ends_with('\n') {
        to.push('\n');
    }
}

/// The address of the second listener.
pub fn second_address(gateway: &Gateway) -> SocketAddr {
    let second = gateway
        .addresses()
        .into_iter()
        .find(|address| address.ip() == Ipv4Addr::new(127, 0, 0, 2));
    second.expect("a second listener")
}

/// The lines of the access log so far.
pub fn access_lines(gateway: &Gateway) -> Vec<Value> {
    let text = fs::read_to_string(gateway.folder().join("access.log")).unwrap_or_default();
    // The last line may be half there.
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Waits for a line of the access log.
pub fn access_line(gateway: &Gateway, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut found = None;
    patiently("a line in the access log", || {
        found = access_lines(gateway).into_iter().find(|line| is_it(line));
        found.is_some()
    });
    found.unwrap()
}

/// Waits for the line of the access log that is of the only request for that path.
pub fn access_line_of(gateway: &Gateway, target: &str) -> Value {
    access_line(gateway, |line| line["original_request_uri_with_args"] == target)
}

/// Waits until something is so.
pub fn patiently(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = portcullis::clock::now() + PATIENCE;
    while !is_so() {
        assert!(portcullis::clock::now() < deadline, "never so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The values of a field in a head of HTTP/1.1.
fn fields_of<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let of_name = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    of_name.map(|(_, value)| value.trim()).collect()
}

/// Asks the shop until each of these has answered: all of them are known to be healthy.
pub fn until_all_serve(gateway: &Gateway, origins: &[&Origin]) {
    // Before the first probes have ended all are taken in turn, and then for a moment those whose probe came first. Who is
    // probed again has passed its first.
    patiently("every target is probed", || {
        origins.iter().all(|origin| origin.probes().len() > 1)
    });
    let mut browser = Http::One.connect(gateway);
    let before: Vec<_> = origins.iter().map(|origin| origin.seen().len()).collect();
    patiently("every target serves", || {
        browser.try_ask(&Ask::get("shop.test", "/warm-up")).ok();
        origins
            .iter()
            .zip(&before)
            .all(|(origin, before)| origin.seen().len() > *before)
    });
}

/// How many requests each of them has had.
pub fn counts(origins: &[&Origin]) -> Vec<usize> {
    origins.iter().map(|origin| origin.seen().len()).collect()
}
