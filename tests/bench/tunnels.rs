//! What a tunnel costs a node, beside nginx and HAProxy where they are installed.
//!
//! - `cargo bench --bench tunnels`: CPU for a Gbit down and up, CPU and latency of 128 B to and fro, memory of 3,000 idle
//!   tunnels; five rounds in which the proxies take turns, some five minutes. `-- --quick`: a glance.
//! - `-- --only ours`: one of `ours`, `nginx`, `haproxy`, `direct`, for a profiler.
//!
//! All carry the same: TLS from the client, plain TCP to the target, a WebSocket handshake first. Ours signs its clients in,
//! launches a desktop over Blast and admits each connection; nginx (`stream`) and HAProxy (`mode tcp`) know nothing of
//! that. The proxies are processes of their own with two workers; clients and target are in this process, on the same cores.
//! Trust the CPU and the memory, and the times only on a machine that does nothing else.

#[path = "tunnels/client.rs"]
mod client;
#[path = "tunnels/measure.rs"]
mod measure;
#[path = "tunnels/ours.rs"]
mod ours;
#[path = "tunnels/peers.rs"]
mod peers;
#[path = "idle_sessions/process.rs"]
#[allow(dead_code, reason = "another benchmark uses the rest")]
mod process;
#[path = "tunnels/proxy.rs"]
mod proxy;
#[path = "tunnels/target.rs"]
mod target;

use std::io::Write as _;

use tokio::runtime::Builder;

use measure::Effort;
use proxy::Kind;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(()); // `cargo test --all-targets` starts benchmarks too
    }
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = arguments.iter().skip_while(|argument| *argument != "--only").nth(1);
    process::raise_file_limit()?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    tell(&format!(
        "# kernel {}, {} cores, load {}",
        process::kernel()?,
        std::thread::available_parallelism()?,
        process::load_average()?
    ))?;
    let kinds: Vec<_> = Kind::ALL
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only == kind.name()) && kind.is_installed())
        .collect();
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let rounds = runtime.block_on(measure::rounds(&kinds, &effort))?;
    tell(&measure::table(&kinds, &rounds))?;
    tell(&format!("# load {}", process::load_average()?))
}

/// Prints a line at once.
fn tell(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
