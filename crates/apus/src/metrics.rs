//! The numbers of a run in Prometheus' text format (`docs/formats/metrics.md`).
//!
//! Names and units are as Prometheus' conventions have them: base units, `_total` for what only grows. What describes
//! the process has the names that Prometheus' own client libraries give.

use crate::course::{Step, StepState};
use crate::machine::{cpu_seconds, rss_bytes, rss_peak_bytes};
use crate::version;
use crate::watched::Watched;
use std::fmt::{Display, Write};

/// Text that grows, a metric after the other.
#[derive(Default)]
struct Metrics(String);

impl Metrics {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to memory does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A metric with one value; none where it is not known.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.head(name, kind, help);
            self.sample(name, &[], value);
        }
    }
}

/// A value of a label, which may be what a peer says.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All metrics.
pub(crate) fn text(watched: &Watched) -> String {
    let mut metrics = Metrics::default();
    process(&mut metrics, watched);
    run(&mut metrics, watched);
    phases(&mut metrics, watched);
    segments(&mut metrics, watched);
    peers(&mut metrics, watched);
    metrics.0
}

fn process(metrics: &mut Metrics, watched: &Watched) {
    let name = "apus_build_info";
    metrics.head(name, "gauge", "Which program this is; always 1.");
    metrics.sample(name, &[("version", version::short())], 1);
    metrics.one(
        "process_cpu_seconds_total",
        "counter",
        "Processor time in user and system mode, in seconds.",
        Some(cpu_seconds()),
    );
    metrics.one("process_resident_memory_bytes", "gauge", "Memory in use, in bytes.", rss_bytes());
    metrics.one(
        "apus_resident_memory_peak_bytes",
        "gauge",
        "Greatest memory in use so far, in bytes.",
        rss_peak_bytes(),
    );
    metrics.one(
        "process_start_time_seconds",
        "gauge",
        "When the run began, in seconds since 1970.",
        Some(format!("{:.3}", watched.began())),
    );
}

fn run(metrics: &mut Metrics, watched: &Watched) {
    let name = "apus_run_state";
    metrics.head(name, "gauge", "1 for the state that the run is in.");
    let (now, chain) = (watched.word(), watched.about.chain);
    for state in ["running", "stalled", "waiting", "done", "failed", "stopped"] {
        let labels = [("state", state), ("chain", chain)];
        metrics.sample(name, &labels, u8::from(state == now));
    }
    let fraction = if now == "done" { 1.0 } else { watched.course.fraction() };
    metrics.one(
        "apus_run_progress_ratio",
        "gauge",
        "How much of the whole run is done, weighed by time, from 0 to 1.",
        Some(fraction),
    );
    metrics.one(
        "apus_run_remaining_seconds",
        "gauge",
        "How long the whole run takes yet, as estimated, in seconds; absent where that cannot be told.",
        watched.course.left_seconds(),
    );
    metrics.one(
        "apus_run_quiet_seconds",
        "gauge",
        "How long ago the run last made progress, in seconds; absent where there is none to make.",
        watched.quiet_seconds(),
    );
    let name = "apus_run_stalled";
    metrics.head(
        name,
        "gauge",
        "1, with what the run waits for, where it makes no progress for 15 seconds.",
    );
    match watched.stall() {
        Some(stall) => metrics.sample(name, &[("waits_for", stall.waits_for)], 1),
        None => metrics.sample(name, &[("waits_for", "")], 0),
    }
    metrics.one(
        "apus_blocks_processed_total",
        "counter",
        "Blocks that this start processed, over all phases.",
        Some(watched.taken.blocks),
    );
    metrics.one(
        "apus_block_bytes_processed_total",
        "counter",
        "Bytes of blocks that this start processed, over all phases.",
        Some(watched.taken.bytes),
    );
    metrics.one("apus_coins", "gauge", "Coins that are known to stay so far.", Some(watched.coins));
    metrics.one(
        "apus_chain_height",
        "gauge",
        "Height of the best chain that was found.",
        watched.chain_found.map(|(height, _)| height),
    );
    metrics.one(
        "apus_warnings_total",
        "counter",
        "Warnings that stopped nothing.",
        Some(watched.warnings),
    );
    metrics.one("apus_threads", "gauge", "Worker threads.", Some(watched.about.threads));
    let name = "apus_run_limited_by";
    metrics.head(name, "gauge", "1 for what the run would be faster with more of.");
    let limited = watched.limited_by();
    for by in ["processor", "one processor core", "disk", "other programs", "download", "peers"] {
        metrics.sample(name, &[("by", by)], u8::from(limited == Some(by)));
    }
}

fn phases(metrics: &mut Metrics, watched: &Watched) {
    /// What a phase says of itself; nothing where that is not known.
    type Get = fn(&Step) -> Option<f64>;
    let all: [(&str, &str, Get); 8] = [
        ("apus_phase_progress_ratio", "How much of a phase is done, from 0 to 1.", Step::fraction),
        ("apus_phase_active", "1 for the phase that runs.", |step| {
            Some(f64::from(u8::from(step.state == StepState::Running)))
        }),
        ("apus_phase_duration_seconds", "How long a phase took so far, in seconds.", |step| {
            Some(step.seconds)
        }),
        ("apus_phase_blocks", "Blocks done, those of earlier starts included.", |step| {
            Some(step.progress.blocks as f64)
        }),
        (
            "apus_phase_blocks_expected",
            "Blocks that a phase has in all; 0 where unknown.",
            |step| Some(step.progress.blocks_total as f64),
        ),
        ("apus_phase_bytes", "Bytes done, those of earlier starts included.", |step| {
            Some(step.progress.bytes as f64)
        }),
        ("apus_phase_expected_bytes", "Bytes that a phase has in all; 0 where unknown.", |step| {
            Some(step.progress.bytes_total as f64)
        }),
        (
            "apus_phase_remaining_seconds",
            "How long a phase takes yet by the rate of the last minute, in seconds.",
            Step::left_seconds,
        ),
    ];
    for (name, help, get) in all {
        metrics.head(name, "gauge", help);
        for step in watched.course.steps() {
            if let Some(value) = get(step) {
                metrics.sample(name, &[("phase", step.phase.name())], value);
            }
        }
    }
}

fn segments(metrics: &mut Metrics, watched: &Watched) {
    let map = &watched.course.map;
    let name = "apus_segments";
    metrics.head(name, "gauge", "Segments of the chain by how far they are.");
    let waiting = map.count() - (map.done() + map.begun()).min(map.count());
    for (state, count) in [("waiting", waiting), ("begun", map.begun()), ("done", map.done())] {
        metrics.sample(name, &[("state", state)], count);
    }
}

fn peers(metrics: &mut Metrics, watched: &Watched) {
    let Some(status) = &watched.peers else { return };
    let name = "apus_peers";
    metrics.head(name, "gauge", "Peers that are connected.");
    for (direction, inbound) in [("inbound", true), ("outbound", false)] {
        let count = status.peers.iter().filter(|peer| peer.inbound == inbound).count();
        metrics.sample(name, &[("direction", direction)], count);
    }
    metrics.one(
        "apus_download_bytes_total",
        "counter",
        "Bytes of blocks from peers that were of use.",
        Some(status.totals.bytes),
    );
    metrics.one(
        "apus_peers_dropped_total",
        "counter",
        "Peers that were parted with for what they did.",
        Some(status.totals.dropped),
    );
    let name = "apus_peer_block_bytes_total";
    metrics.head(name, "counter", "Bytes of blocks that came from a peer.");
    for peer in &status.peers {
        metrics.sample(name, &[("address", &peer.address)], peer.bytes);
    }
    let name = "apus_peer_requested_blocks";
    metrics.head(name, "gauge", "Blocks that a peer was asked for and that have not come.");
    for peer in &status.peers {
        metrics.sample(name, &[("address", &peer.address)], peer.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out() {
        let mut metrics = Metrics::default();
        metrics.sample("name", &[("label", "a\"} 1\nother 2 \\")], 1);
        assert_eq!(metrics.0, "name{label=\"a\\\"} 1\\nother 2 \\\\\"} 1\n");
    }
}
