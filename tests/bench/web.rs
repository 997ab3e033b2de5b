//! What a published application costs a node, beside nginx and HAProxy where they are installed.
//!
//! - `cargo bench --bench web`: handshakes, small requests over HTTP/1.1 and HTTP/2, bodies of 10 MiB both ways, memory of
//!   3,000 idle connections, changes of the configuration under load; five rounds in which the proxies take turns, some
//!   fifteen minutes. `-- --quick`: a glance.
//! - `-- --only ours`: one of `ours`, `nginx`, `haproxy`, `direct`, for a profiler. `-- --measure small`: one of
//!   `handshakes`, `small`, `bodies`, `memory`, `changes`, `scale`.
//!
//! All carry the same: TLS from the client, plain HTTP/1.1 to the target on kept connections, the six forwarded fields, a field
//! set in either direction. Ours routes by host and path and writes its access log; the peers do without a log. The proxies are
//! processes of their own with two workers; target and clients of ours are in this process, `wrk` and `h2load` beside it, all
//! on the same cores. Trust the CPU and the memory, and the times only on a machine that does nothing else.

#[path = "web/client.rs"]
mod client;
#[path = "web/configuration.rs"]
mod configuration;
#[path = "web/measure.rs"]
mod measure;
#[path = "idle_sessions/process.rs"]
#[allow(dead_code, reason = "another benchmark uses the rest")]
mod process;
#[path = "web/proxy.rs"]
mod proxy;
#[path = "web/scale.rs"]
mod scale;
#[path = "web/table.rs"]
mod table;
#[path = "web/target.rs"]
mod target;
#[path = "web/tools.rs"]
mod tools;

use std::io::Write as _;

use tokio::runtime::Builder;
use tokio_util::task::TaskTracker;

use measure::Effort;
use proxy::Kind;
use table::Table;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let value = |name: &str| arguments.iter().skip_while(|argument| *argument != name).nth(1);
    if !has("--bench") {
        return Ok(()); // `cargo test --all-targets` starts benchmarks too
    }
    process::raise_file_limit()?;
    tell(&format!(
        "# kernel {}, {} cores, load {}, {}",
        process::kernel()?,
        std::thread::available_parallelism()?,
        process::load_average()?,
        tools::versions().join(", ")
    ))?;
    let only = value("--only");
    let kinds: Vec<_> = Kind::ALL
        .into_iter()
        .filter(|kind| only.is_none_or(|only| only == kind.name()) && kind.is_installed())
        .collect();
    let effort = if has("--quick") { Effort::QUICK } else { Effort::FULL };
    let wanted = value("--measure").map(String::as_str);
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(&kinds, &effort, wanted))?;
    tell(&format!("# load {}", process::load_average()?))
}

async fn run(kinds: &[Kind], effort: &Effort, wanted: Option<&str>) -> anyhow::Result<()> {
    let tasks = TaskTracker::new();
    let target = target::start(&tasks).await?;
    let mut table = Table::default();
    for round in 0..effort.rounds {
        for place in 0..kinds.len() {
            // Each is the first now and then.
            let kind = kinds[(place + round) % kinds.len()];
            measure::one(kind, target, effort, wanted, &tasks, &mut table).await?;
        }
        tell(&format!("# round {} of {}", round + 1, effort.rounds))?;
    }
    tell(&table.text(kinds))?;
    if kinds.contains(&Kind::Ours) && wanted.is_none_or(|wanted| wanted == "scale") {
        tell(&scale::compared(target, effort).await?)?;
    }
    Ok(())
}

/// Prints a line at once.
fn tell(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
