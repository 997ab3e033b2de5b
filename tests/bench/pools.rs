//! What it costs to choose a target, by the number of targets and the way of choosing, alone and on two threads; and to
//! put a configuration of so many in force.
//!
//! `cargo bench --bench pools` prints the figures. Without `--bench` (as `cargo test --all-targets` calls it) it only shows
//! that it works.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark"
)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::any::Any;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use portcullis::config::web::{
    self, Action, Balance, Forward, Guard, HeaderPolicy, PoolTarget, Rule, UnusualFields, Web,
};
use portcullis::upstream::probe::{Reach, Reached, Unreached, Way};
use portcullis::upstream::{Derive, Fittings, Home, Outcome, Pool, Pools, TargetId};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

fn main() {
    let measure = std::env::args().any(|argument| argument == "--bench");
    let samples = if measure { 2_000_000 } else { 1_000 };
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let home = Home {
        runtime: runtime.handle().clone(),
        tasks: TaskTracker::new(),
        stopping: CancellationToken::new(),
    };
    let pools = Pools::new(home, 1);
    for count in [1, 5, 500, 5_000] {
        for (name, pool) in kinds(count) {
            let config = publish(pool);
            let before = Instant::now();
            pools.apply(&config, &fittings(), before);
            pools.retire(before);
            let applied = before.elapsed();
            let pool = pools.find("pool", Some("backend")).expect("the rule uses it");
            let alone = exchanges(&pool, samples);
            let beside = std::thread::scope(|scope| {
                let other = scope.spawn(|| exchanges(&pool, samples));
                exchanges(&pool, samples).max(other.join().expect("no panic"))
            });
            println!(
                "{count:>5} targets, {name:<28} {:>5.0} ns a request, {:>5.0} ns on each of two threads; applied in {applied:.1?}",
                alone, beside
            );
        }
    }
}

/// Choosing a target, reporting a good answer and letting go of it: nanoseconds each.
fn exchanges(pool: &Arc<Pool>, samples: u32) -> f64 {
    let now = Instant::now();
    for _ in 0..samples {
        let lease = pool.pick(None, now).expect("a target");
        black_box(&lease).report(Outcome::Answered(StatusCode::OK), now);
    }
    now.elapsed().as_secs_f64() * 1e9 / f64::from(samples)
}

fn kinds(count: usize) -> Vec<(&'static str, web::Pool)> {
    let pool = |weight: fn(usize) -> u16, max_requests| web::Pool {
        targets: (0..count)
            .map(|place| target(place, weight(place), max_requests))
            .collect(),
        ..web::Pool::default()
    };
    let least = |pool: web::Pool| web::Pool {
        balance: Balance::LeastRequests,
        ..pool
    };
    vec![
        ("in turn", pool(|_| 1, None)),
        ("in turn, with caps", pool(|_| 1, Some(100))),
        ("in turn, weights 1 to 4", pool(|place| place as u16 % 4 + 1, None)),
        (
            "in turn, one of weight 256",
            pool(|place| if place == 0 { 256 } else { 1 }, None),
        ),
        ("least requests", least(pool(|_| 1, None))),
        (
            "least requests, weights 1 to 4",
            least(pool(|place| place as u16 % 4 + 1, None)),
        ),
    ]
}

fn target(place: usize, weight: u16, max_requests: Option<u32>) -> PoolTarget {
    PoolTarget {
        host: format!("127.1.{}.{}", place / 250, place % 250 + 1),
        port: Some(9),
        weight,
        max_requests,
    }
}

/// A configuration with one rule, which sends everything to `pool`. Its targets refuse connections, and are asked so seldom
/// that nothing is known of them.
fn publish(pool: web::Pool) -> Web {
    let mut config = Web::default();
    config.pools.insert("pool".into(), pool);
    let seldom = web::Probe {
        interval: Duration::from_secs(24 * 3600),
        ..web::Probe::default()
    };
    config.probes.insert("seldom".into(), seldom);
    let backend = web::Backend {
        probe: Some("seldom".into()),
        ..web::Backend::default()
    };
    config.backends.insert("backend".into(), backend);
    let action = Action::Forward(Forward {
        pool: "pool".into(),
        backend: Some("backend".into()),
        rewrite: None,
    });
    let rule = Rule {
        listeners: vec!["main".into()],
        hosts: Vec::new(),
        priority: 1,
        action,
        paths: Vec::new(),
        guard: Guard::default(),
        error_pages: std::collections::BTreeMap::new(),
        request_headers: HeaderPolicy::default(),
        response_headers: HeaderPolicy::default(),
        max_body: None,
        compress: false,
        unusual_fields: UnusualFields::default(),
    };
    config.rules.insert("rule".into(), rule);
    config
}

fn fittings() -> Fittings {
    Fittings {
        reach: Arc::new(Nothing),
        derive: Arc::new(Nothing),
    }
}

/// Probes that hear nothing, and clients that stay with nobody.
#[derive(Debug)]
struct Nothing;

impl Reach for Nothing {
    fn reach<'a>(&'a self, _way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>> {
        Box::pin(std::future::pending())
    }
}

impl Derive for Nothing {
    fn derive(
        &self,
        _pool: &str,
        _backend: Option<&str>,
        _targets: &mut dyn Iterator<Item = &TargetId>,
    ) -> Box<dyn Any + Send + Sync> {
        Box::new(())
    }
}
