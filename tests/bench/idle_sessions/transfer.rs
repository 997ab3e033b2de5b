//! Octets through one tunnel: in bulk both ways, and to and fro.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use portcullis::client::{Channel, ChannelSender, Session, Tunnel};
use portcullis::clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use crate::node::{Node, Terms};
use crate::peer::HaProxy;
use crate::process::Process;
use crate::{crowd, target, tell};

/// Measures and prints.
pub(crate) fn measure(runtime: &Runtime, quick: bool) -> anyhow::Result<()> {
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    runtime.block_on(compare(&effort))
}

struct Effort {
    rounds: usize,
    octets: usize,
    trips: usize,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 5,
        octets: 256 << 20,
        trips: 10_000,
    };
    const QUICK: Self = Self {
        rounds: 2,
        octets: 64 << 20,
        trips: 2_000,
    };
}

/// Places of the targets.
const SOURCE: usize = 0;
const SINK: usize = 1;
const ECHO: usize = 2;

async fn compare(effort: &Effort) -> anyhow::Result<()> {
    let tasks = TaskTracker::new();
    let targets = [
        target::source(effort.octets, &tasks).await?,
        target::sink(effort.octets, &tasks).await?,
        target::echo(&tasks).await?,
    ];
    let names: Vec<_> = ["source", "sink", "echo"].into_iter().zip(targets).collect();
    let node = Node::start(1, &Terms::DEFAULT, &names)?;
    let peer = HaProxy::start(&node.chain(), &node.key(), &targets)?;
    let mut session = crowd::sign_in(node.address.to_string().parse()?, crowd::settings(&node, &tasks)?, 0).await?;
    let tunnel = crowd::open_tunnel(&mut session).await?;

    let mut ways = vec![Way::Tunnel(&node, &mut session, &tunnel)];
    ways.extend(peer.as_ref().map(Way::HaProxy));
    let mut columns: Vec<_> = ways.iter().map(|_| Column::default()).collect();
    for _ in 0..effort.rounds {
        for (way, column) in ways.iter_mut().zip(&mut columns) {
            way.round(effort, column).await?;
        }
    }
    print(&columns, effort)
}

/// How octets get to a target.
enum Way<'a> {
    Tunnel(&'a Node, &'a mut Session, &'a Tunnel),
    HaProxy(&'a HaProxy),
}

impl Way<'_> {
    async fn round(&mut self, effort: &Effort, column: &mut Column) -> anyhow::Result<()> {
        let down = self.timed(SOURCE, async |pipe| pipe.fetch(effort.octets).await).await?;
        column.bulk(["down: MiB/s", "down: CPU ms/Gbit"], &down, effort.octets);
        let up = self.timed(SINK, async |pipe| pipe.deliver(effort.octets).await).await?;
        column.bulk(["up: MiB/s", "up: CPU ms/Gbit"], &up, effort.octets);
        let mut trips = Vec::new();
        let echo = self
            .timed(ECHO, async |pipe| {
                trips = pipe.go_to_and_fro(effort.trips).await?;
                Ok(())
            })
            .await?;
        trips.sort_unstable();
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        column.add("ping-pong 128 B: CPU µs", microseconds(echo.cpu) / trips.len() as f64);
        column.add("ping-pong 128 B: p50 µs", microseconds(trips[trips.len() / 2]));
        column.add("ping-pong 128 B: p99 µs", microseconds(trips[trips.len() * 99 / 100]));
        Ok(())
    }

    /// Opens a pipe to a target and charges what is done with it to the proxy.
    async fn timed(
        &mut self,
        place: usize,
        work: impl AsyncFnOnce(&mut Pipe) -> anyhow::Result<()>,
    ) -> anyhow::Result<Spent> {
        let mut pipe = self.open(place).await?;
        let (began, before) = (clock::now(), self.process().cpu()?);
        timeout(PATIENCE, work(&mut pipe))
            .await
            .context("it takes too long")??;
        let (took, cpu) = (clock::now() - began, self.process().cpu()?.since(before).total());
        pipe.close().await?;
        Ok(Spent { took, cpu })
    }

    async fn open(&mut self, place: usize) -> anyhow::Result<Pipe> {
        Ok(match self {
            Self::Tunnel(_, session, tunnel) => {
                let id = ["source", "sink", "echo"][place];
                let desktop = session.desktops().iter().find(|desktop| desktop.id == id).cloned();
                let launched = session.launch(&desktop.context("no such desktop")?, None).await?;
                let channel = tunnel.raise(launched.port).await?;
                Pipe::Channel(channel.sender(), channel)
            }
            Self::HaProxy(peer) => Pipe::Stream(Box::new(peer.connect(place).await?)),
        })
    }

    fn process(&self) -> &Process {
        match self {
            Self::Tunnel(node, ..) => node.process(),
            Self::HaProxy(peer) => peer.process(),
        }
    }
}

struct Spent {
    took: Duration,
    cpu: Duration,
}

/// An open connection to a target.
enum Pipe {
    Channel(ChannelSender, Channel),
    Stream(Box<TlsStream<TcpStream>>),
}

impl Pipe {
    async fn fetch(&mut self, octets: usize) -> anyhow::Result<()> {
        self.send(Bytes::from_static(b".")).await?;
        self.receive(octets).await
    }

    async fn deliver(&mut self, octets: usize) -> anyhow::Result<()> {
        let piece = Bytes::from(vec![0x5a; PIECE]);
        let mut left = octets;
        while left > 0 {
            let length = left.min(PIECE);
            self.send(piece.slice(..length)).await?;
            left -= length;
        }
        self.receive(1).await
    }

    async fn go_to_and_fro(&mut self, trips: usize) -> anyhow::Result<Vec<Duration>> {
        let ball = Bytes::from(vec![0x5a; 128]);
        let mut took = Vec::with_capacity(trips);
        for _ in 0..trips {
            let began = clock::now();
            self.send(ball.clone()).await?;
            self.receive(ball.len()).await?;
            took.push(clock::now() - began);
        }
        Ok(took)
    }

    async fn send(&mut self, octets: Bytes) -> anyhow::Result<()> {
        match self {
            Self::Channel(sender, _) => sender.send(octets).await?,
            Self::Stream(io) => {
                io.write_all(&octets).await?;
                io.flush().await?;
            }
        }
        Ok(())
    }

    /// Takes exactly that many octets.
    async fn receive(&mut self, octets: usize) -> anyhow::Result<()> {
        let mut received = 0;
        let mut buffer = vec![0; if octets > PIECE { PIECE } else { octets }];
        while received < octets {
            received += match self {
                Self::Channel(_, channel) => channel.receive().await.context("the channel ended early")?.len(),
                Self::Stream(io) => match io.read(&mut buffer).await? {
                    0 => bail!("the stream ended early"),
                    length => length,
                },
            };
        }
        ensure!(received == octets, "{received} octets came, not {octets}");
        Ok(())
    }

    async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Channel(_, channel) => channel.close().await,
            Self::Stream(mut io) => io.shutdown().await?,
        }
        Ok(())
    }
}

/// Values of one way by measure, one a round.
#[derive(Default)]
struct Column(Vec<(&'static str, Vec<f64>)>);

impl Column {
    fn bulk(&mut self, [rate, cost]: [&'static str; 2], spent: &Spent, octets: usize) {
        self.add(rate, octets as f64 / f64::from(1 << 20) / spent.took.as_secs_f64());
        self.add(cost, spent.cpu.as_secs_f64() * 1e3 / (octets as f64 * 8e-9));
    }

    fn add(&mut self, name: &'static str, value: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => self.0.push((name, vec![value])),
        }
    }
}

/// Medians over the rounds, and how far apart those of the tunnel were.
fn print(columns: &[Column], effort: &Effort) -> anyhow::Result<()> {
    tell(&format!(
        "# one tunnel, {} MiB each way, {} round trips, {} rounds",
        effort.octets >> 20,
        effort.trips,
        effort.rounds
    ))?;
    tell(&format!(
        "{:<28} {:>10} {:>16} {:>10} {:>7}",
        "", "portcullis", "", "haproxy", "ratio"
    ))?;
    let Some((ours, peers)) = columns.split_first() else {
        return Ok(());
    };
    for (name, values) in &ours.0 {
        let (low, middle, high) = spread(values);
        let mut line = format!("{name:<28} {middle:>10.1} {:>16}", format!("{low:.1}–{high:.1}"));
        for peer in peers {
            let theirs = peer.0.iter().find(|(known, _)| known == name);
            let (_, theirs, _) = spread(theirs.map_or(&[], |(_, values)| values));
            line.push_str(&format!(" {theirs:>10.1} {:>7.2}", middle / theirs));
        }
        tell(&line)?;
    }
    Ok(())
}

/// Least, median and greatest.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    (at(0), at(values.len() / 2), at(values.len().saturating_sub(1)))
}

const PIECE: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(120);
