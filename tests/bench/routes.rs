//! What it costs to find the rule and the path rule of a web request, by the size of the configuration.
//!
//! `cargo bench --bench routes` prints a table. Without `--bench` (as `cargo test --all-targets` calls it) it only shows
//! that it works. What is counted is all that routing does for a request: its host read, its path brought into its one
//! spelling, the rule found by listener and host, and the path rule.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark"
)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use http::{Request, Uri};
use portcullis::config::web::{Action, Forward, Guard, HeaderPolicy, PathRule, Rule, UnusualFields};
use portcullis::config::{Listener, ListenerProtocol};
use portcullis::route::host::host_of;
use portcullis::route::path::Normal;
use portcullis::route::web::{Owner, Table};

fn main() {
    let measure = std::env::args().any(|argument| argument == "--bench");
    let rounds = if measure { 2_000_000 } else { 2_000 };
    println!("nanoseconds each:                           host  path  rule  path rule  request");
    println!("listeners  rules  path rules  compiled in");
    for (listeners, rules, paths, shape) in [
        (1, 1, 1, Shape::OwnListener),
        (10, 10, 10, Shape::OwnListener),
        (100, 100, 100, Shape::OwnListener),
        (1_000, 1_000, 1_000, Shape::OwnListener),
        (1_000, 1_000, 10_000, Shape::OwnListener),
        (1_000, 1_000, 10_000, Shape::EveryListener),
        (1_000, 1_000, 10_000, Shape::Wildcards),
        (1, 1, 10_000, Shape::OwnListener),
    ] {
        let case = Case::new(listeners, rules, paths, shape);
        println!("{}", case.measure(rounds));
    }
}

/// How rules are laid out over listeners and hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Each rule for a host on a listener of its own.
    OwnListener,
    /// Each rule for a host on all listeners.
    EveryListener,
    /// Each rule for `*.host` on all listeners.
    Wildcards,
}

struct Case {
    listeners: BTreeMap<String, Listener>,
    rules: BTreeMap<String, Rule>,
    path_rules: usize,
    shape: Shape,
    requests: Vec<(String, Request<()>)>,
}

impl Case {
    fn new(listeners: usize, rules: usize, path_rules: usize, shape: Shape) -> Self {
        let names: Vec<String> = (0..listeners).map(|n| format!("listener-{n}")).collect();
        let paths_each = path_rules / rules;
        let made = (0..rules).map(|n| {
            let on = match shape {
                Shape::OwnListener => vec![names[n % listeners].clone()],
                Shape::EveryListener | Shape::Wildcards => names.clone(),
            };
            let host = if shape == Shape::Wildcards {
                format!("*.{}", domain(n))
            } else {
                format!("www.{}", domain(n))
            };
            (format!("rule-{n}"), rule(n, on, &host, paths_each))
        });
        let made: BTreeMap<_, _> = made.collect();
        let mut dice = Dice(1);
        let requests = (0..4_096).map(|_| {
            let n = dice.below(rules);
            let listener = match shape {
                Shape::OwnListener => names[n % listeners].clone(),
                Shape::EveryListener | Shape::Wildcards => names[dice.below(listeners)].clone(),
            };
            let path = format!("{}/item?id=42&view=full", folder(dice.below(paths_each)));
            let request = Request::get(path).header("host", format!("www.{}", domain(n)));
            (listener, request.body(()).expect("a request"))
        });
        Self {
            requests: requests.collect(),
            listeners: names.iter().map(|name| (name.clone(), listener())).collect(),
            rules: made,
            path_rules,
            shape,
        }
    }

    fn measure(&self, rounds: usize) -> String {
        let start = Instant::now();
        let table = Table::compile(&self.listeners, &self.rules);
        let compiled = start.elapsed();
        let hosts: Vec<_> = self
            .requests
            .iter()
            .map(|(_, request)| host_of(request).expect("a host"))
            .collect();
        let paths: Vec<_> = self.requests.iter().map(|(_, request)| normal(request.uri())).collect();
        let find = |n: usize, host: &str| {
            let (listener, request) = &self.requests[n];
            match table.owner(listener, host, request.uri().path()) {
                Owner::Site(site) => site,
                Owner::SessionGateway | Owner::Nobody => unreachable!("every request has its rule"),
            }
        };
        let sites: Vec<_> = hosts.iter().enumerate().map(|(n, host)| find(n, &host.host)).collect();
        assert!(
            sites
                .iter()
                .zip(&paths)
                .all(|(site, path)| site.act(path.path()).path.is_some())
        );

        let each = |work: &dyn Fn(usize)| self.each(rounds, work);
        let host = each(&|n| spend(host_of(&self.requests[n].1)));
        let path = each(&|n| spend(normal(self.requests[n].1.uri())));
        let rule = each(&|n| spend(find(n, &hosts[n].host)));
        let path_rule = each(&|n| spend(sites[n].act(paths[n].path())));
        let request = each(&|n| {
            let request = &self.requests[n].1;
            let host = host_of(request).expect("a host");
            let path = normal(request.uri());
            spend(find(n, &host.host).act(path.path()));
        });
        format!(
            "{:>9}  {:>5}  {:>10}  {compiled:>11.1?}  {host:>4.0}  {path:>4.0}  {rule:>4.0}  {path_rule:>9.0}  {request:>7.0}  {:?}",
            self.listeners.len(),
            self.rules.len(),
            self.path_rules,
            self.shape,
        )
    }

    /// The nanoseconds that some work takes for one request, over all of them in turn.
    fn each(&self, rounds: usize, work: &dyn Fn(usize)) -> f64 {
        let start = Instant::now();
        for round in 0..rounds {
            work(round % self.requests.len());
        }
        start.elapsed().as_secs_f64() * 1e9 / rounds as f64
    }
}

/// Takes what came of some work, so that it is done.
fn spend<T>(result: T) {
    black_box(result);
}

fn normal(uri: &Uri) -> Normal {
    Normal::of(uri.path_and_query().expect("a path")).expect("a safe one")
}

fn domain(n: usize) -> String {
    format!("tenant-{n}.apps.example.com")
}

fn folder(n: usize) -> String {
    format!("/api/v1/service-{n}/resources")
}

fn listener() -> Listener {
    Listener {
        protocol: ListenerProtocol::Https,
        session_gateway: false,
        bind: Vec::new(),
        balancers: Vec::new(),
        certificates: Vec::new(),
        udp: false,
        host_redirects: BTreeMap::new(),
        external_port: None,
        error_pages: BTreeMap::new(),
    }
}

fn rule(n: usize, listeners: Vec<String>, host: &str, paths: usize) -> Rule {
    let action = |pool: String| {
        Action::Forward(Forward {
            pool,
            backend: None,
            rewrite: None,
        })
    };
    let path = |path: usize| PathRule {
        patterns: vec![format!("{}/*", folder(path)).parse().expect("a pattern")],
        action: action(format!("pool-{n}-{path}")),
    };
    Rule {
        listeners,
        hosts: vec![host.parse().expect("a host")],
        priority: u16::try_from(n + 1).expect("a priority"),
        action: action(format!("pool-{n}")),
        paths: (0..paths).map(path).collect(),
        guard: Guard::default(),
        error_pages: BTreeMap::new(),
        request_headers: HeaderPolicy::default(),
        response_headers: HeaderPolicy::default(),
        max_body: None,
        compress: false,
        unusual_fields: UnusualFields::default(),
    }
}

/// SplitMix64: the same figures' conditions each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}
