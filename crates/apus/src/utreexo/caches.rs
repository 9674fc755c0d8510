//! `apus utreexo caches`: what a verifier saves that remembers some leaves.

use crate::args::CachesArgs;
use crate::failure::Failure;
use crate::files::expect_writable;
use crate::interrupt::watch_signals;
use crate::print;
use crate::render::{Renderer, Watch};
use crate::report::{bytes, grouped, write_report};
use crate::watched::About;
use apus_storage::DirStorage;
use apus_sync::{CachesFound, CachesRequest, replay_caches};
use apus_utreexo::{CacheCost, CachePolicy, CacheRule};
use serde::Serialize;
use std::collections::BTreeSet;

/// Version of the JSON form.
const VERSION: u32 = 1;

/// Runs `apus utreexo caches`.
pub(super) fn command(args: &CachesArgs) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        return Err(Failure::usage(format!("{} is no folder", args.folder.display())));
    }
    if let Some(report) = &args.report {
        expect_writable(report, |_| false)?;
    }
    let interrupt = watch_signals()?;
    let about = About { command: "utreexo caches", chain: "", threads: 1, on_servers: false };
    let renderer = Renderer::new(Watch::plain(args.progress, about, Vec::new()), None);
    let found = replay_caches(&CachesRequest {
        storage: &DirStorage::new(&args.folder),
        rules: &rules(args),
        observer: &renderer,
        interrupt: &interrupt,
    });
    drop(renderer.into_record());
    let found = found?;
    if let Some(report) = &args.report {
        write_report(report, &Report::new(args, &found))?;
    }
    tell(&found)
}

/// No cache, then each size by each rule.
fn rules(args: &CachesArgs) -> Vec<CacheRule> {
    let sizes: BTreeSet<usize> = args.leaves.iter().map(|leaves| *leaves as usize).collect();
    let blocks: BTreeSet<u32> = args.look_ahead.iter().copied().collect();
    let look_ahead = blocks.into_iter().map(CachePolicy::LookAhead);
    let policies: Vec<CachePolicy> =
        std::iter::once(CachePolicy::Clairvoyant).chain(look_ahead).collect();
    let without = CacheRule { policy: CachePolicy::Clairvoyant, leaves: 0 };
    let sizes = sizes.into_iter().filter(|leaves| *leaves > 0);
    let of_size = |leaves| policies.iter().map(move |&policy| CacheRule { policy, leaves });
    std::iter::once(without).chain(sizes.flat_map(of_size)).collect()
}

fn name(rule: CacheRule) -> String {
    match rule {
        CacheRule { leaves: 0, .. } => "none".to_owned(),
        CacheRule { policy: CachePolicy::Clairvoyant, leaves } => {
            format!("{} clairvoyant", grouped(leaves as u64))
        }
        CacheRule { policy: CachePolicy::LookAhead(blocks), leaves } => {
            format!("{} look-ahead {}", grouped(leaves as u64), grouped(blocks.into()))
        }
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Tells it as a table.
fn tell(found: &CachesFound) -> Result<(), Failure> {
    let CachesFound { heights, leaves, costs } = found;
    let blocks = u64::from(heights.count());
    let without = costs.first().map(|(_, cost)| *cost).unwrap_or_default();
    print::result(format_args!(
        "blocks {} to {}: {} leaves added, {} of them spent",
        heights.start,
        heights.end - 1,
        grouped(*leaves),
        grouped(without.coins)
    ))?;
    let heads = ["cache", "held", "remembered", "hashes"].map(str::to_owned).to_vec();
    let of_bytes = |what: &str| [what.to_owned(), "a block".to_owned(), "share".to_owned()];
    let heads = [heads, of_bytes("proofs").to_vec(), of_bytes("leaf data").to_vec()].concat();
    print::result(line(&heads))?;
    for (rule, cost) in costs {
        let of_bytes = |part: u64, whole: u64| {
            [bytes(part), bytes(part / blocks.max(1)), share(part, whole)].to_vec()
        };
        let cells = vec![
            name(*rule),
            grouped(cost.held_max as u64),
            share(cost.remembered, cost.coins),
            grouped(cost.hashes),
        ];
        let proofs = of_bytes(cost.proof_bytes, without.proof_bytes);
        let data = of_bytes(cost.leaf_bytes, without.leaf_bytes);
        print::result(line(&[cells, proofs, data].concat()))?;
    }
    Ok(())
}

fn line(cells: &[String]) -> String {
    let widths = [28, 9, 10, 13, 9, 9, 7, 9, 9, 7];
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match index {
            0 => line.push_str(&format!("{cell:<width$}")),
            _ => line.push_str(&format!("  {cell:>width$}")),
        }
    }
    line
}

/// The report of `apus utreexo caches` (`docs/formats/caches.md`).
#[derive(Serialize)]
struct Report {
    version: u32,
    folder: String,
    blocks: u32,
    stop_height: u32,
    leaves: u64,
    coins: u64,
    caches: Vec<CacheReport>,
}

#[derive(Serialize)]
struct CacheReport {
    policy: &'static str,
    look_ahead_blocks: Option<u32>,
    leaves_max: usize,
    held_max: usize,
    remembered: u64,
    hashes: u64,
    proof_bytes: u64,
    leaf_data_bytes: u64,
}

impl Report {
    fn new(args: &CachesArgs, found: &CachesFound) -> Self {
        Self {
            version: VERSION,
            folder: args.folder.display().to_string(),
            blocks: found.heights.count(),
            stop_height: found.heights.end - 1,
            leaves: found.leaves,
            coins: found.costs.first().map_or(0, |(_, cost)| cost.coins),
            caches: found.costs.iter().map(|(rule, cost)| CacheReport::new(*rule, cost)).collect(),
        }
    }
}

impl CacheReport {
    fn new(rule: CacheRule, cost: &CacheCost) -> Self {
        let (policy, look_ahead_blocks) = match rule.policy {
            _ if rule.leaves == 0 => ("none", None),
            CachePolicy::Clairvoyant => ("clairvoyant", None),
            CachePolicy::LookAhead(blocks) => ("look-ahead", Some(blocks)),
        };
        Self {
            policy,
            look_ahead_blocks,
            leaves_max: rule.leaves,
            held_max: cost.held_max,
            remembered: cost.remembered,
            hashes: cost.hashes,
            proof_bytes: cost.proof_bytes,
            leaf_data_bytes: cost.leaf_bytes,
        }
    }
}
