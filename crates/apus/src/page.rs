//! `--web`: the page about a job, which is up from before the job's start until some time after its end.
//!
//! `apus_web` has the server. The page shows the [`RunStatus`], as JSON and in Prometheus' text format (`docs/web.md`).
//! The program has at most one page.
//!
//! Metrics follow Prometheus' conventions for names and units: base units, and `_total` for counters. Metrics of the
//! process have their names from Prometheus' client libraries.

use crate::args::{PageArgs, PageLifetime};
use crate::estimate::{PhaseStep, StepRate, StepState};
use crate::failure::{Failure, INTERRUPTED, IO};
use crate::machine;
use crate::machine::{Machine, cpu_seconds, rss_bytes, rss_peak_bytes};
use crate::peers;
use crate::print;
use crate::status::{RunEnd, RunStatus, Stall, StatusLock, worker_json};
use apus_web::{Board, PageServer, ServerOptions, Token, WebError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for an open page to fetch the final state.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// Interval between checks whether the page must close.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The page, if there is one.
static PAGE: Mutex<Option<RunPage>> = Mutex::new(None);

struct RunPage {
    server: PageServer,
    shared: StatusLock,
    stay: PageLifetime,
}

/// Starts the page, if the user wants one.
pub(crate) fn begin(args: &PageArgs, shared: &StatusLock) -> Result<(), Failure> {
    let Some(address) = args.web else { return Ok(()) };
    let token = match &args.web_token {
        Some(text) => Some(Token::new(text).map_err(|error| {
            Failure::usage(format!(
                "--web-token: {error}; leave out --web-token to get a random one"
            ))
        })?),
        None if address.ip().is_loopback() => None,
        None => {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes)
                .map_err(|error| Failure::new(IO, format!("cannot get random numbers: {error}")))?;
            Some(Token::of_random(bytes))
        }
    };
    let board = Arc::new(PageShown { shared: Arc::clone(shared), machine: Machine::here() });
    let server = PageServer::start(ServerOptions { address, token: token.clone() }, board);
    let server = server.map_err(failure)?;
    let url = url(server.address(), token.as_ref());
    if !print::speaks_json() {
        print::aside(format_args!("watch the progress at {url}"));
    }
    print::event_if_json(json!({"event": "page", "url": url}));
    let page = RunPage { server, shared: Arc::clone(shared), stay: args.web_stay };
    *PAGE.lock() = Some(page);
    Ok(())
}

fn failure(error: WebError) -> Failure {
    match error {
        WebError::Listen { .. } => Failure::usage(format!("{error}: use another --web")),
        WebError::Open(_) => Failure::usage(error),
        WebError::Thread(_) => Failure::new(IO, error.to_string()),
    }
}

/// Returns the URL to open in a browser. Writes THIS-MACHINE for an unspecified address such as 0.0.0.0.
fn url(address: SocketAddr, token: Option<&Token>) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "THIS-MACHINE".to_owned(),
        _ if address.is_ipv6() => format!("[{}]", address.ip()),
        ip => ip.to_string(),
    };
    let query = token.map(|token| format!("?token={}", token.as_str())).unwrap_or_default();
    format!("http://{host}:{}/{query}", address.port())
}

/// Shows how the program ended, and keeps the page up as long as the user wants.
pub(crate) fn end(result: &Result<(), Failure>) {
    let Some(page) = PAGE.lock().take() else { return };
    let code = result.as_ref().map_or_else(|failure| failure.code, |()| 0);
    let text = result.as_ref().err().map(|failure| failure.message.clone()).unwrap_or_default();
    page.shared.lock().ended = Some(RunEnd { code, text });
    page.server.wait_for_pages(LAST_LOOK);
    let stays = page.stay != PageLifetime::For(Duration::ZERO);
    if !stays || code == INTERRUPTED {
        return;
    }
    let until = match page.stay {
        PageLifetime::Forever => "until Ctrl-C".to_owned(),
        PageLifetime::For(time) => format!("for {} seconds, or until Ctrl-C", time.as_secs()),
    };
    if !print::speaks_json() {
        print::aside(format_args!("ended: the page stays up {until}"));
    }
    let began = Instant::now();
    let over = || match page.stay {
        PageLifetime::Forever => false,
        PageLifetime::For(time) => began.elapsed() >= time,
    };
    while !over() && !machine::was_interrupted() {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The page's content, for the server.
struct PageShown {
    shared: StatusLock,
    machine: Machine,
}

impl Board for PageShown {
    fn state(&self) -> String {
        state(&self.shared.lock(), &self.machine).to_string()
    }

    fn metrics(&self) -> String {
        text(&self.shared.lock())
    }

    fn tick(&self) {
        self.shared.lock().tick();
    }
}

fn state(watched: &RunStatus, machine: &Machine) -> Value {
    let StepRate { blocks, bytes } =
        watched.estimate.running().map(PhaseStep::rate).unwrap_or_default();
    let succeeded = watched.ended.as_ref().is_some_and(|ended| ended.code == 0);
    let fraction = if succeeded { 1.0 } else { watched.estimate.fraction() };
    let map = &watched.estimate.map;
    let segments = (map.count() > 0).then(|| {
        json!({
            "cells": map.cells(), "done": map.done(), "begun": map.begun(), "of": map.count()
        })
    });
    let workers = watched.workers.as_ref();
    let workers = workers.map(|it| it.all.iter().map(worker_json).collect::<Vec<_>>());
    json!({
        "version": machine::version(), "platform": machine.platform, "sha256": machine.sha256,
        "command": watched.about.command, "chain": watched.about.chain,
        "began": watched.began(), "seconds": watched.ended_seconds(),
        "state": watched.word(), "fraction": fraction, "left_seconds": watched.estimate.left_seconds(),
        "limited_by": watched.limited_by(),
        "quiet_seconds": watched.quiet_seconds(), "stalled": watched.stall().map(Stall::to_json),
        "rate": {"blocks": blocks, "bytes": bytes},
        "coins": watched.coins,
        "chain_found": watched.chain_found.map(|(height, tip)| {
            json!({"height": height, "tip": tip.to_string()})
        }),
        "tip_height": watched.tip,
        "memory_bytes": rss_bytes(), "cpu_cores": watched.cores_used(),
        "cores": machine.cores,
        "phases": watched.estimate.steps().iter().map(phase).collect::<Vec<_>>(),
        "history": history(watched),
        "segments": segments,
        "peers": peers(watched),
        "workers": workers,
        "events": watched.notes.iter().map(|note| {
            json!({"time": note.time, "kind": note.kind, "text": note.text})
        }).collect::<Vec<_>>(),
        "ended": watched.ended.as_ref().map(|ended| {
            json!({"code": ended.code, "text": ended.text})
        }),
        "report": watched.report,
    })
}

fn phase(step: &PhaseStep) -> Value {
    let rate = step.rate();
    let bytes = if step.state == StepState::Done { step.bytes } else { step.progress.bytes };
    json!({
        "phase": step.phase.name(), "state": step.state.name(), "fraction": step.fraction(),
        "seconds": step.seconds, "left_seconds": step.left_seconds(),
        "rate_blocks": rate.blocks, "rate_bytes": rate.bytes,
        "blocks": step.progress.blocks, "blocks_total": step.progress.blocks_total,
        "bytes": bytes, "bytes_total": step.progress.bytes_total
    })
}

fn history(watched: &RunStatus) -> Value {
    let of = |get: fn(&crate::status::StatusPoint) -> Value| {
        watched.points.iter().map(get).collect::<Vec<_>>()
    };
    json!({
        "seconds": of(|point| point.seconds.into()),
        "bytes_rate": of(|point| point.rate.bytes.into()),
        "memory_bytes": of(|point| point.memory_bytes.into())
    })
}

fn peers(watched: &RunStatus) -> Option<Vec<Value>> {
    let status = watched.peers.as_ref()?;
    let total = status.rate.max(1) as f64;
    let mut peers: Vec<_> = status.peers.iter().collect();
    peers.sort_by(|a, b| b.rate.cmp(&a.rate).then_with(|| a.address.cmp(&b.address)));
    let peers = peers.into_iter().map(|peer| {
        let mut of = peers::json(peer);
        of["share"] = (peer.rate as f64 / total).min(1.0).into();
        of
    });
    Some(peers.collect())
}

/// Collects the text of all metrics.
#[derive(Default)]
struct Metrics(String);

impl Metrics {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to memory cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// Adds a metric with one value; skips it if the value is unknown.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.head(name, kind, help);
            self.sample(name, &[], value);
        }
    }
}

/// Escapes the value of a label, which a peer may have chosen.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Formats all metrics.
pub(crate) fn text(watched: &RunStatus) -> String {
    let mut metrics = Metrics::default();
    process(&mut metrics, watched);
    run(&mut metrics, watched);
    phases(&mut metrics, watched);
    segments(&mut metrics, watched);
    peers_metrics(&mut metrics, watched);
    metrics.0
}

fn process(metrics: &mut Metrics, watched: &RunStatus) {
    let name = "apus_build_info";
    metrics.head(name, "gauge", "Version of the program; always 1.");
    metrics.sample(name, &[("version", machine::version())], 1);
    metrics.one(
        "process_cpu_seconds_total",
        "counter",
        "Processor time, user and system, in seconds.",
        Some(cpu_seconds()),
    );
    metrics.one("process_resident_memory_bytes", "gauge", "Memory in use, in bytes.", rss_bytes());
    metrics.one(
        "apus_resident_memory_peak_bytes",
        "gauge",
        "Peak memory in use so far, in bytes.",
        rss_peak_bytes(),
    );
    metrics.one(
        "process_start_time_seconds",
        "gauge",
        "Start time of the run, in seconds since 1970.",
        Some(format!("{:.3}", watched.began())),
    );
}

fn run(metrics: &mut Metrics, watched: &RunStatus) {
    let name = "apus_run_state";
    metrics.head(name, "gauge", "1 for the current state of the run, else 0.");
    let (now, chain) = (watched.word(), watched.about.chain);
    for state in ["running", "stalled", "waiting", "done", "failed", "stopped"] {
        let labels = [("state", state), ("chain", chain)];
        metrics.sample(name, &labels, u8::from(state == now));
    }
    let fraction = if now == "done" { 1.0 } else { watched.estimate.fraction() };
    metrics.one(
        "apus_run_progress_ratio",
        "gauge",
        "Fraction of the whole run that is done, weighted by time, from 0 to 1.",
        Some(fraction),
    );
    metrics.one(
        "apus_run_remaining_seconds",
        "gauge",
        "Estimated time left for the whole run, in seconds; absent if unknown.",
        watched.estimate.left_seconds(),
    );
    metrics.one(
        "apus_run_quiet_seconds",
        "gauge",
        "Time since the last progress, in seconds; absent at the tip and after the end.",
        watched.quiet_seconds(),
    );
    let name = "apus_run_stalled";
    metrics.head(
        name,
        "gauge",
        "1 if the job made no progress for 15 seconds, labelled with what it waits for, else 0.",
    );
    match watched.stall() {
        Some(stall) => metrics.sample(name, &[("waits_for", stall.waits_for)], 1),
        None => metrics.sample(name, &[("waits_for", "")], 0),
    }
    metrics.one(
        "apus_blocks_processed_total",
        "counter",
        "Blocks processed since this start, over all phases.",
        Some(watched.taken.blocks),
    );
    metrics.one(
        "apus_block_bytes_processed_total",
        "counter",
        "Bytes of blocks processed since this start, over all phases.",
        Some(watched.taken.bytes),
    );
    metrics.one("apus_coins", "gauge", "Coins known so far to stay unspent.", Some(watched.coins));
    metrics.one(
        "apus_chain_height",
        "gauge",
        "Height of the best chain found.",
        watched.chain_found.map(|(height, _)| height),
    );
    metrics.one(
        "apus_warnings_total",
        "counter",
        "Warnings so far; none of them stopped the run.",
        Some(watched.warnings),
    );
    metrics.one("apus_threads", "gauge", "Worker threads.", Some(watched.about.threads));
    let name = "apus_run_limited_by";
    metrics.head(name, "gauge", "1 for the current bottleneck of the run, else 0.");
    let limited = watched.limited_by();
    for by in ["processor", "one processor core", "disk", "other programs", "download", "peers"] {
        metrics.sample(name, &[("by", by)], u8::from(limited == Some(by)));
    }
}

fn phases(metrics: &mut Metrics, watched: &RunStatus) {
    /// Reads a value of a phase; `None` if unknown.
    type Get = fn(&PhaseStep) -> Option<f64>;
    let all: [(&str, &str, Get); 8] = [
        (
            "apus_phase_progress_ratio",
            "Fraction of the phase that is done, from 0 to 1.",
            PhaseStep::fraction,
        ),
        ("apus_phase_active", "1 for the running phase, else 0.", |step| {
            Some(f64::from(u8::from(step.state == StepState::Running)))
        }),
        ("apus_phase_duration_seconds", "Duration of the phase so far, in seconds.", |step| {
            Some(step.seconds)
        }),
        ("apus_phase_blocks", "Blocks done, including earlier starts.", |step| {
            Some(step.progress.blocks as f64)
        }),
        ("apus_phase_blocks_expected", "Total blocks of the phase; 0 if unknown.", |step| {
            Some(step.progress.blocks_total as f64)
        }),
        ("apus_phase_bytes", "Bytes done, including earlier starts.", |step| {
            Some(step.progress.bytes as f64)
        }),
        ("apus_phase_expected_bytes", "Total bytes of the phase; 0 if unknown.", |step| {
            Some(step.progress.bytes_total as f64)
        }),
        (
            "apus_phase_remaining_seconds",
            "Estimated time left for the phase at the rate of the last minute, in seconds.",
            PhaseStep::left_seconds,
        ),
    ];
    for (name, help, get) in all {
        metrics.head(name, "gauge", help);
        for step in watched.estimate.steps() {
            if let Some(value) = get(step) {
                metrics.sample(name, &[("phase", step.phase.name())], value);
            }
        }
    }
}

fn segments(metrics: &mut Metrics, watched: &RunStatus) {
    let map = &watched.estimate.map;
    let name = "apus_segments";
    metrics.head(name, "gauge", "Segments of the chain, by state.");
    let waiting = map.count() - (map.done() + map.begun()).min(map.count());
    for (state, count) in [("waiting", waiting), ("begun", map.begun()), ("done", map.done())] {
        metrics.sample(name, &[("state", state)], count);
    }
}

fn peers_metrics(metrics: &mut Metrics, watched: &RunStatus) {
    let Some(status) = &watched.peers else { return };
    let name = "apus_peers";
    metrics.head(name, "gauge", "Connected peers.");
    for (direction, inbound) in [("inbound", true), ("outbound", false)] {
        let count = status.peers.iter().filter(|peer| peer.inbound == inbound).count();
        metrics.sample(name, &[("direction", direction)], count);
    }
    metrics.one(
        "apus_download_bytes_total",
        "counter",
        "Bytes of requested blocks received from peers.",
        Some(status.totals.bytes),
    );
    metrics.one(
        "apus_peers_dropped_total",
        "counter",
        "Peers disconnected for misbehaving.",
        Some(status.totals.dropped),
    );
    let name = "apus_peer_block_bytes_total";
    metrics.head(name, "counter", "Bytes of blocks received from the peer.");
    for peer in &status.peers {
        metrics.sample(name, &[("address", &peer.address)], peer.bytes);
    }
    let name = "apus_peer_requested_blocks";
    metrics.head(name, "gauge", "Blocks requested from the peer and not received yet.");
    for peer in &status.peers {
        metrics.sample(name, &[("address", &peer.address)], peer.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_opens_the_page() {
        let token = Token::of_random([1; 16]);
        for (address, token, expected) in [
            ("127.0.0.1:80", None, "http://127.0.0.1:80/".to_owned()),
            ("[::1]:81", None, "http://[::1]:81/".to_owned()),
            (
                "0.0.0.0:82",
                Some(&token),
                format!("http://THIS-MACHINE:82/?token={}", "01".repeat(16)),
            ),
        ] {
            assert_eq!(url(address.parse().expect("an address"), token), expected);
        }
    }

    #[test]
    fn a_label_cannot_inject_metrics() {
        let mut metrics = Metrics::default();
        metrics.sample("name", &[("label", "a\"} 1\nother 2 \\")], 1);
        assert_eq!(metrics.0, "name{label=\"a\\\"} 1\\nother 2 \\\\\"} 1\n");
    }
}
