//! What a datagram costs the proxy: ours (a PCoIP flow), nginx (stream) and socat side by side, one after another in each
//! round, all in one run.
//!
//! `cargo bench --bench udp`: datagrams of 1,200 octets from one client to one desktop, at 20,000 and 60,000 a second, one
//! by one and in bursts that the sending system cuts (GSO); CPU of the proxy's processes for each datagram that arrived,
//! and what was lost. Medians of the rounds. `-- --quick` takes one short round; a peer that is not installed is left out.
//!
//! Sender and sink run in this process on the same cores: trust the CPU and the ratios, and losses only on a machine that
//! does nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that cannot go on has failed"
)]

#[path = "udp/load.rs"]
mod load;
#[path = "udp/peers.rs"]
mod peers;
#[path = "../support/mod.rs"]
mod support;

use std::io::Write as _;
use std::time::Duration;

use load::{Load, Sink};
use peers::Proxy;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return; // `cargo test --all-targets` starts benchmarks too
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let (rounds, span) = if quick { (1, 1) } else { (5, 3) };
    say(&format!(
        "# kernel {}, load {}",
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").trim()
    ));
    let sink = Sink::open();
    let proxies = peers::all(&sink);
    for load in Load::ALL {
        let mut costs: Vec<Vec<Cost>> = proxies.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (proxy, costs) in proxies.iter().zip(&mut costs) {
                costs.push(measure(proxy.as_ref(), &sink, load, Duration::from_secs(span)));
            }
        }
        let medians: Vec<_> = costs.into_iter().map(Cost::median).collect();
        let nginx = proxies.iter().position(|proxy| proxy.name() == "nginx");
        let nginx = nginx.map_or(f64::NAN, |at| medians[at].micros);
        for (proxy, cost) in proxies.iter().zip(&medians) {
            say(&format!(
                "{load:<22} {:<8} {:>7.2} us/datagram  {:>5.1} % lost  {:>8.0} arrived/s  {:.3} of nginx",
                proxy.name(),
                cost.micros,
                cost.lost * 100.0,
                cost.rate,
                cost.micros / nginx,
            ));
        }
    }
}

/// What one proxy took in one round.
#[derive(Clone, Copy)]
struct Cost {
    micros: f64,
    lost: f64,
    rate: f64,
}

impl Cost {
    fn median(mut costs: Vec<Self>) -> Self {
        costs.sort_by(|one, other| one.micros.total_cmp(&other.micros));
        costs[costs.len() / 2]
    }
}

fn measure(proxy: &dyn Proxy, sink: &Sink, load: Load, span: Duration) -> Cost {
    let way = proxy.open();
    load.warm_up(&way.socket, sink);
    let (cpu, arrived) = (cpu_of(&way.pids), sink.arrived());
    let started = portcullis::clock::now();
    let sent = load.run(&way.socket, span);
    std::thread::sleep(Duration::from_millis(200));
    let elapsed = started.elapsed().as_secs_f64() - 0.2;
    let arrived = sink.arrived() - arrived;
    let cpu = cpu_of(&way.pids) - cpu;
    Cost {
        micros: cpu / arrived.max(1) as f64,
        lost: 1.0 - arrived as f64 / sent as f64,
        rate: arrived as f64 / elapsed,
    }
}

/// Microseconds on a CPU so far, of all threads of these processes.
fn cpu_of(pids: &[u32]) -> f64 {
    let of_thread = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split_whitespace()
            .next()
            .and_then(|nanos| nanos.parse::<f64>().ok())
    };
    let threads = pids
        .iter()
        .flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
    threads
        .flatten()
        .filter_map(|entry| of_thread(entry.path()))
        .sum::<f64>()
        / 1000.0
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
