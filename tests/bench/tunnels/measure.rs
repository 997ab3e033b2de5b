//! The measurements, and their table.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use portcullis::clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::task::TaskTracker;

use crate::client::Stream;
use crate::proxy::{Kind, Proxy};
use crate::{target, tell};

/// How much is measured.
pub(crate) struct Effort {
    rounds: usize,
    bytes: usize,
    trips: usize,
    idle: usize,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        bytes: 96 << 20,
        trips: 3000,
        idle: 3000,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        bytes: 32 << 20,
        trips: 1000,
        idle: 500,
    };
}

/// What one proxy did in one round, in the units of [`MEASURES`].
pub(crate) type Figures = [f64; MEASURES.len()];

const MEASURES: [&str; 9] = [
    "down, 4 connections, CPU ms per Gbit",
    "down, Gbit/s",
    "up, 4 connections, CPU ms per Gbit",
    "up, Gbit/s",
    "128 B to and fro, 8 connections, CPU us",
    "same, p50 us",
    "same, p99 us",
    "idle tunnel, PSS kB",
    "after their close, PSS by that of the start",
];

/// The rounds, in each of which the proxies take turns.
pub(crate) async fn rounds(kinds: &[Kind], effort: &Effort) -> anyhow::Result<Vec<Vec<Figures>>> {
    let tasks = TaskTracker::new();
    let target = target::start(&tasks).await?;
    let mut rounds = Vec::new();
    for round in 0..effort.rounds {
        let mut figures = Vec::new();
        for place in 0..kinds.len() {
            // Each is the first now and then.
            let kind = kinds[(place + round) % kinds.len()];
            let measured = one(kind, target, effort, &tasks).await;
            figures.push((kind, measured.with_context(|| kind.name())?));
        }
        let of = |kind: &Kind| figures.iter().find(|(of, _)| of == kind).map(|(_, figures)| *figures);
        rounds.push(kinds.iter().filter_map(of).collect());
        tell(&format!("# round {} of {}", round + 1, effort.rounds))?;
    }
    Ok(rounds)
}

async fn one(
    kind: Kind,
    target: std::net::SocketAddr,
    effort: &Effort,
    tasks: &TaskTracker,
) -> anyhow::Result<Figures> {
    // Memory first, of a fresh process.
    let proxy = Proxy::start(kind, target).await?;
    let (idle, after) = memory(&proxy, effort.idle).await?;
    drop(proxy);
    let proxy = Proxy::start(kind, target).await?;
    let (down, down_rate) = bulk(&proxy, target::DOWN, effort.bytes, tasks).await?;
    let (up, up_rate) = bulk(&proxy, target::UP, effort.bytes, tasks).await?;
    let (trip, p50, p99) = trips(&proxy, effort.trips, tasks).await?;
    Ok([down, down_rate, up, up_rate, trip, p50, p99, idle, after])
}

async fn memory(proxy: &Proxy, count: usize) -> anyhow::Result<(f64, f64)> {
    drop(proxy.connect(&format!("{}0", target::ECHO)).await?);
    tokio::time::sleep(SETTLE).await;
    let before = proxy.memory()?;
    let mut streams = Vec::new();
    let mut half = before;
    // Of the second half, because the first one uses up what the start has left behind: password hashes take much.
    for place in 0..count {
        if place == count / 2 {
            tokio::time::sleep(SETTLE).await;
            half = proxy.memory()?;
        }
        streams.push(proxy.connect(&format!("{}0", target::ECHO)).await?);
    }
    tokio::time::sleep(SETTLE).await;
    let open = proxy.memory()?;
    drop(streams);
    tokio::time::sleep(SETTLE * 5).await;
    let after = proxy.memory()?;
    Ok((
        open.saturating_sub(half) as f64 / (count - count / 2) as f64,
        after as f64 / before.max(1) as f64,
    ))
}

/// CPU milliseconds per Gbit, and Gbit a second, over four connections.
async fn bulk(proxy: &Proxy, purpose: &str, bytes: usize, tasks: &TaskTracker) -> anyhow::Result<(f64, f64)> {
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(proxy.connect(&format!("{purpose}{bytes}")).await?);
    }
    let (cpu, started) = (proxy.cpu()?, clock::now());
    let is_down = purpose == target::DOWN;
    let running: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            tasks.spawn(async move {
                if is_down {
                    take(stream, bytes).await
                } else {
                    give(stream, bytes).await
                }
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    let seconds = started.elapsed().as_secs_f64();
    let gbit = (4 * bytes * 8) as f64 / 1e9;
    let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e3;
    Ok((cpu / gbit, gbit / seconds))
}

async fn take(mut stream: Stream, bytes: usize) -> anyhow::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    let mut left = bytes;
    while left > 0 {
        let length = stream.read(&mut buffer).await?;
        anyhow::ensure!(length > 0, "ended with {left} bytes to come");
        left -= length.min(left);
    }
    Ok(())
}

async fn give(mut stream: Stream, bytes: usize) -> anyhow::Result<()> {
    let buffer = vec![0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(buffer.len());
        stream.write_all(&buffer[..length]).await?;
        left -= length;
    }
    stream.flush().await?;
    stream.read_u8().await.context("no receipt")?;
    Ok(())
}

/// CPU microseconds a round trip, and its p50 and p99, over eight connections.
async fn trips(proxy: &Proxy, count: usize, tasks: &TaskTracker) -> anyhow::Result<(f64, f64, f64)> {
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(proxy.connect(&format!("{}0", target::ECHO)).await?);
    }
    let cpu = proxy.cpu()?;
    let running: Vec<_> = streams
        .into_iter()
        .map(|stream| tasks.spawn(to_and_fro(stream, count)))
        .collect();
    let mut times = Vec::new();
    for task in running {
        times.extend(task.await??);
    }
    let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / times.len() as f64;
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    Ok((cpu, at(0.5), at(0.99)))
}

async fn to_and_fro(mut stream: Stream, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    let mut message = [7; 128];
    message[..2].copy_from_slice(&[0x82, 126]);
    message[2..4].copy_from_slice(&124_u16.to_be_bytes());
    for _ in 0..count {
        let sent = clock::now();
        stream.write_all(&message).await?;
        stream.flush().await?;
        stream.read_exact(&mut message).await?;
        times.push(sent.elapsed());
    }
    Ok(times)
}

/// Medians, and ours by the better peer, round by round.
pub(crate) fn table(kinds: &[Kind], rounds: &[Vec<Figures>]) -> String {
    let mut text = String::from("| measure |");
    for kind in kinds {
        let _ = write!(text, " {} |", kind.name());
    }
    text.push_str(" ours by the best peer |\n|---|");
    text.push_str(&"---|".repeat(kinds.len() + 1));
    text.push('\n');
    for (place, name) in MEASURES.iter().enumerate() {
        let _ = write!(text, "| {name} |");
        for kind in 0..kinds.len() {
            let all = rounds.iter().map(|round| round[kind][place]);
            let _ = write!(text, " {} |", shown(all));
        }
        let of = |wanted: Kind| kinds.iter().position(|kind| *kind == wanted);
        let peers: Vec<_> = [of(Kind::Nginx), of(Kind::HaProxy)].into_iter().flatten().collect();
        let more_is_better = name.ends_with("Gbit/s");
        let ratios = of(Kind::Ours).filter(|_| !peers.is_empty()).map(|ours| {
            rounds.iter().map(move |round| (ours, round)).map(|(ours, round)| {
                let of_peers = peers.iter().map(|peer| round[*peer][place]);
                let best = if more_is_better {
                    of_peers.fold(0.0, f64::max)
                } else {
                    of_peers.fold(f64::MAX, f64::min)
                };
                round[ours][place] / best
            })
        });
        let _ = writeln!(text, " {} |", ratios.map(shown).unwrap_or_default());
    }
    text
}

/// The median, and the range around it.
fn shown(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let digits = |value: f64| {
        if value.abs() < 10.0 {
            format!("{value:.2}")
        } else {
            format!("{value:.0}")
        }
    };
    match values.as_slice() {
        [] => String::new(),
        [first, .., last] => format!(
            "{} ({}–{})",
            digits(values[values.len() / 2]),
            digits(*first),
            digits(*last)
        ),
        [only] => digits(*only),
    }
}

/// For what has begun to end, and memory to be given back.
const SETTLE: Duration = Duration::from_secs(2);
