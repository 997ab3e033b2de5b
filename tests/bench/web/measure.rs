//! The measurements.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portcullis::clock;
use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::task::TaskTracker;

use crate::client::{Offer, Stream};
use crate::proxy::{Identity, Kind, Proxy};
use crate::table::Table;
use crate::{target, tools};

/// How much is measured.
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    handshakes: usize,
    pub(crate) load: Duration,
    bodies: usize,
    idle: usize,
    changes: usize,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        handshakes: 3200,
        load: Duration::from_secs(5),
        bodies: 12,
        idle: 3000,
        changes: 100,
    };
    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        handshakes: 800,
        load: Duration::from_secs(2),
        bodies: 3,
        idle: 500,
        changes: 10,
    };
}

/// Everything of one proxy in one round, or that part of it.
pub(crate) async fn one(
    kind: Kind,
    target: SocketAddr,
    effort: &Effort,
    wanted: Option<&str>,
    tasks: &TaskTracker,
    table: &mut Table,
) -> anyhow::Result<()> {
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    // Memory first, of a fresh process.
    if is_wanted("memory") && kind != Kind::Direct {
        memory(kind, target, effort, table).await.with_context(|| kind.name())?;
    }
    if is_wanted("handshakes") && kind != Kind::Direct {
        handshakes(kind, target, effort, tasks, table)
            .await
            .with_context(|| kind.name())?;
    }
    if is_wanted("small") {
        small(kind, target, effort, table).await.with_context(|| kind.name())?;
    }
    if is_wanted("bodies") {
        bodies(kind, target, effort, tasks, table)
            .await
            .with_context(|| kind.name())?;
    }
    if is_wanted("changes") && kind != Kind::Direct {
        changes(kind, target, effort, tasks, table)
            .await
            .with_context(|| kind.name())?;
    }
    Ok(())
}

async fn handshakes(
    kind: Kind,
    target: SocketAddr,
    effort: &Effort,
    tasks: &TaskTracker,
    table: &mut Table,
) -> anyhow::Result<()> {
    for identity in [Identity::P256, Identity::Rsa2048] {
        let proxy = Arc::new(Proxy::start(kind, identity, target).await?);
        for version in [&TLS13, &TLS12] {
            let name = match (identity, std::ptr::eq(version, &TLS13)) {
                (Identity::P256, true) => "full handshake TLS 1.3 P-256, CPU us",
                (Identity::P256, false) => "full handshake TLS 1.2 P-256, CPU us",
                (Identity::Rsa2048, true) => "full handshake TLS 1.3 RSA-2048, CPU us",
                (Identity::Rsa2048, false) => "full handshake TLS 1.2 RSA-2048, CPU us",
            };
            let (cpu, _) = connects(&proxy, Offer { version, ..FULL }, effort.handshakes, tasks).await?;
            table.add(kind, name, cpu);
        }
        if identity == Identity::P256 {
            let hybrid = Offer { hybrid: true, ..FULL };
            let (cpu, _) = connects(&proxy, hybrid, effort.handshakes, tasks).await?;
            table.add(kind, "the same, X25519MLKEM768 offered too, CPU us", cpu);
            let (cpu, resumed) = connects(&proxy, RESUMED, effort.handshakes, tasks).await?;
            ensure!(resumed >= 0.95, "only {resumed} of the handshakes were resumed");
            table.add(kind, "resumed TLS 1.3 and one request, CPU us", cpu);
        }
    }
    Ok(())
}

/// So many connections by 16 clients: CPU microseconds each, and the share that was resumed. Those that resume ask for
/// something too, because the ticket comes with the answer.
async fn connects(proxy: &Arc<Proxy>, offer: Offer, count: usize, tasks: &TaskTracker) -> anyhow::Result<(f64, f64)> {
    let cpu = proxy.cpu()?;
    let running: Vec<_> = (0..16)
        .map(|_| {
            let proxy = proxy.clone();
            tasks.spawn(async move {
                let tls = proxy.tls(offer)?;
                let (mut resumed, mut buffer) = (0, vec![0; 16 * 1024]);
                for _ in 0..count / 16 {
                    let mut stream = Stream::connect(proxy.address, tls.as_ref()).await?;
                    resumed += usize::from(stream.was_resumed());
                    if offer.resumes {
                        stream.get(target::SMALL, &mut buffer).await?;
                    }
                    stream.shutdown().await?;
                    // The proxy's end of it, whatever it says.
                    let _ = stream.read(&mut buffer).await;
                }
                anyhow::Ok(resumed)
            })
        })
        .collect();
    let mut resumed = 0;
    for task in running {
        resumed += task.await??;
    }
    let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / count as f64;
    Ok((cpu, resumed as f64 / count as f64))
}

async fn small(kind: Kind, target: SocketAddr, effort: &Effort, table: &mut Table) -> anyhow::Result<()> {
    let proxy = Proxy::start(kind, Identity::P256, target).await?;
    // Connections to the target and pages of memory are made once.
    tools::wrk(&proxy, target::SMALL, Duration::from_secs(1)).await?;
    let cpu = proxy.cpu()?;
    let load = tools::wrk(&proxy, target::SMALL, effort.load).await?;
    let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / load.requests;
    if kind != Kind::Direct {
        table.add(kind, "HTTP/1.1 128 B, 64 connections, CPU us", cpu);
    }
    // It does the same whoever answers: what it costs more in one round than in others, the machine was slower.
    table.add(kind, "wrk itself for each of them, CPU us", load.cpu);
    table.add(kind, "HTTP/1.1, requests/s", load.per_second);
    table.add(kind, "HTTP/1.1, p99 ms", load.p99.unwrap_or(f64::NAN));
    if kind == Kind::Direct {
        return Ok(());
    }
    let cpu = proxy.cpu()?;
    let load = tools::h2load(&proxy, target::SMALL, effort.load).await?;
    let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / load.requests;
    table.add(kind, "HTTP/2 128 B, 8 connections of 16, CPU us", cpu);
    table.add(kind, "h2load itself for each of them, CPU us", load.cpu);
    table.add(kind, "HTTP/2, requests/s", load.per_second);
    Ok(())
}

async fn bodies(
    kind: Kind,
    target: SocketAddr,
    effort: &Effort,
    tasks: &TaskTracker,
    table: &mut Table,
) -> anyhow::Result<()> {
    let proxy = Arc::new(Proxy::start(kind, Identity::P256, target).await?);
    for (is_down, name, rate) in [
        (true, "10 MiB down, 8 connections, CPU ms", "10 MiB down, Gbit/s"),
        (false, "10 MiB up, 8 connections, CPU ms", "10 MiB up, Gbit/s"),
    ] {
        let (cpu, begun) = (proxy.cpu()?, clock::now());
        let each = effort.bodies;
        let running: Vec<_> = (0..8)
            .map(|_| {
                let proxy = proxy.clone();
                tasks.spawn(async move {
                    let tls = proxy.tls(FULL)?;
                    let mut stream = Stream::connect(proxy.address, tls.as_ref()).await?;
                    let mut buffer = vec![7; 256 * 1024];
                    for _ in 0..each {
                        if is_down {
                            let length = stream.get(target::LARGE, &mut buffer).await?;
                            ensure!(length == target::LARGE_BYTES, "{length} bytes");
                        } else {
                            stream.post(target::UP, target::LARGE_BYTES, &mut buffer).await?;
                        }
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for task in running {
            task.await??;
        }
        let (seconds, count) = (begun.elapsed().as_secs_f64(), (8 * each) as f64);
        let cpu = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e3 / count;
        if kind != Kind::Direct {
            table.add(kind, name, cpu);
        }
        table.add(kind, rate, count * (target::LARGE_BYTES * 8) as f64 / 1e9 / seconds);
    }
    Ok(())
}

async fn memory(kind: Kind, target: SocketAddr, effort: &Effort, table: &mut Table) -> anyhow::Result<()> {
    let proxy = Proxy::start(kind, Identity::P256, target).await?;
    let tls = proxy.tls(FULL)?;
    let mut buffer = vec![0; 16 * 1024];
    let mut connect = async || {
        let mut stream = Stream::connect(proxy.address, tls.as_ref()).await?;
        stream.get(target::SMALL, &mut buffer).await?;
        anyhow::Ok(stream)
    };
    drop(connect().await?);
    tokio::time::sleep(SETTLE).await;
    let before = proxy.memory()?;
    let mut streams = Vec::new();
    for _ in 0..effort.idle {
        streams.push(connect().await?);
    }
    tokio::time::sleep(SETTLE).await;
    let open = proxy.memory()?;
    drop(streams);
    tokio::time::sleep(SETTLE * 5).await;
    let after = proxy.memory()?;
    table.add(
        kind,
        "idle connection that has asked once, PSS kB",
        open.saturating_sub(before) as f64 / effort.idle as f64,
    );
    table.add(
        kind,
        "after their close, PSS by that of the start",
        after as f64 / before.max(1) as f64,
    );
    Ok(())
}

/// Changes under load. The peers are changed a tenth as often: each change of theirs starts processes that stay for a while.
async fn changes(
    kind: Kind,
    target: SocketAddr,
    effort: &Effort,
    tasks: &TaskTracker,
    table: &mut Table,
) -> anyhow::Result<()> {
    let proxy = Arc::new(Proxy::start(kind, Identity::P256, target).await?);
    let stop = Arc::new(AtomicBool::new(false));
    let (failed, served) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let running: Vec<_> = (0..32)
        .map(|_| {
            let (proxy, stop, failed, served) = (proxy.clone(), stop.clone(), failed.clone(), served.clone());
            tasks.spawn(async move {
                let tls = proxy.tls(RESUMED)?;
                let mut buffer = vec![0; 16 * 1024];
                let mut times = Vec::new();
                'connection: while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = Stream::connect(proxy.address, tls.as_ref()).await else {
                        failed.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    while !stop.load(Ordering::Relaxed) {
                        let asked = clock::now();
                        if stream.get(target::SMALL, &mut buffer).await.is_err() {
                            failed.fetch_add(1, Ordering::Relaxed);
                            continue 'connection;
                        }
                        times.push(asked.elapsed());
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    tokio::time::sleep(SETTLE).await;
    let count = if kind == Kind::Ours {
        effort.changes
    } else {
        effort.changes.div_ceil(10)
    };
    let mut slowest = Duration::ZERO;
    for change in 0..count {
        let more = format!(
            "[rule.change]\nhosts = [\"change-{change}.example.com\"]\npriority = {}\npool = \"target\"\n",
            change + 1
        );
        slowest = slowest.max(proxy.change(&more).await?);
        tokio::time::sleep(BETWEEN_CHANGES).await;
    }
    tokio::time::sleep(SETTLE).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in running {
        times.extend(task.await??);
    }
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    ensure!(served.load(Ordering::Relaxed) > 1000, "hardly anything was served");
    table.add(
        kind,
        "failed requests for each 100 changes under load",
        failed.load(Ordering::Relaxed) as f64 * 100.0 / count as f64,
    );
    table.add(kind, "p99 meanwhile, ms", p99.as_secs_f64() * 1e3);
    if kind == Kind::Ours {
        table.add(kind, "the slowest change, ms", slowest.as_secs_f64() * 1e3);
    }
    Ok(())
}

const FULL: Offer = Offer {
    version: &TLS13,
    resumes: false,
    hybrid: false,
};

const RESUMED: Offer = Offer { resumes: true, ..FULL };

const SETTLE: Duration = Duration::from_secs(1);

const BETWEEN_CHANGES: Duration = Duration::from_millis(100);
