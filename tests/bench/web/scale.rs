//! Whether a large configuration costs its requests anything: ours by itself, small and large.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use portcullis::clock;

use crate::measure::Effort;
use crate::proxy::{Identity, Kind, Proxy};
use crate::{target, tools};

const RULES: usize = 1000;
const PATHS: usize = 10;
const TARGETS: usize = 5000;

/// How long it is looked whether a proxy rests.
const GLANCE: Duration = Duration::from_millis(500);

/// CPU of a small request and the time that a change takes, beside those of a configuration with a thousand rules (of hosts,
/// each as a listener of its own in the sheet's words), ten thousand paths and five thousand targets. What the change itself
/// costs, with the first probe of each target, is told apart.
pub(crate) async fn compared(target: SocketAddr, effort: &Effort) -> anyhow::Result<String> {
    let proxy = Proxy::start(Kind::Ours, Identity::P256, target).await?;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    let text = configuration(target.port());
    let (mut slowest, mut most) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..effort.rounds {
        proxy.change("").await?;
        rest(&proxy).await?;
        small.push(cpu(&proxy, effort).await?);
        let before = proxy.cpu()?;
        slowest = slowest.max(proxy.change(&text).await?);
        rest(&proxy).await?;
        most = most.max(proxy.cpu()?.saturating_sub(before));
        large.push(cpu(&proxy, effort).await?);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (small, large) = (median(&mut small), median(&mut large));
    Ok(format!(
        "| with | CPU us |\n|---|---|\n| one rule | {small:.1} |\n| {RULES} rules, {} paths, {TARGETS} targets | {large:.1} ({:.2}) |\n\
         # the large configuration was applied in {} ms at most; with a probe of each target, that cost {} ms of CPU",
        RULES * PATHS,
        large / small,
        slowest.as_millis(),
        most.as_millis()
    ))
}

async fn cpu(proxy: &Proxy, effort: &Effort) -> anyhow::Result<f64> {
    tools::wrk(proxy, target::SMALL, Duration::from_secs(1)).await?;
    let cpu = proxy.cpu()?;
    let load = tools::wrk(proxy, target::SMALL, effort.load).await?;
    Ok(proxy.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6 / load.requests)
}

/// Waits until a change is digested and every new target was probed once: until the proxy does next to nothing.
async fn rest(proxy: &Proxy) -> anyhow::Result<()> {
    let deadline = clock::now() + Duration::from_secs(30);
    loop {
        let before = proxy.cpu()?;
        tokio::time::sleep(GLANCE).await;
        if proxy.cpu()?.saturating_sub(before) < GLANCE / 100 {
            return Ok(());
        }
        ensure!(clock::now() < deadline, "it never rests");
    }
}

/// Rules with paths, and a pool of targets that all are the one target, at as many addresses of loopback. They are probed once
/// in an hour: it is not their probes that are measured.
fn configuration(port: u16) -> String {
    let mut text =
        String::from("[probe.rare]\ninterval = \"1 h\"\n[backend.many]\nprobe = \"rare\"\n[pool.many]\ntargets = [");
    for number in 0..TARGETS {
        let _ = write!(text, "\"127.1.{}.{}:{port}\",", number / 250, number % 250 + 1);
    }
    text.push_str("]\n");
    for rule in 0..RULES {
        let _ = write!(
            text,
            "[rule.r{rule}]\nhosts = [\"host-{rule}.example.com\", \"*.site-{rule}.example.com\"]\npriority = {}\npool = \
             \"many\"\nbackend = \"many\"\n",
            rule + 1
        );
        for path in 0..PATHS {
            let _ = write!(
                text,
                "[[rule.r{rule}.path]]\npaths = [\"/path-{path}/*\"]\npool = \"many\"\nbackend = \"many\"\n"
            );
        }
    }
    text
}
