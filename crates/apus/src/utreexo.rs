//! `apus utreexo`: makes, inspects and checks proofs, and measures the savings of a verifier that remembers some
//! leaves.

mod args;

pub(crate) use args::{UtreexoArgs, UtreexoCommand};

use crate::args::{BlocksArg, ConnectArgs, EngineArg};
use crate::extra_engine::BridgeJob;
use crate::failure::Failure;
use crate::files::expect_writable;
use crate::machine::watch_signals;
use crate::print;
use crate::render::{Renderer, RunDisplay};
use crate::report::{bytes, grouped, write_report};
use crate::status::RunFacts;
use crate::sync::{JobSource, RunJob, run};
use apus_proofs::{
    CachesFound, CachesRequest, ProofsTotals, SurveyedFiles, proofs_files, replay_caches,
    survey_proofs,
};
use apus_storage::DirStorage;
use apus_sync::{Stop, UseIndex, parent};
use apus_utreexo::{CacheCost, CachePolicy, CacheRule};
use args::{CachesArgs, ProveArgs};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Runs `apus utreexo`.
pub(crate) fn command(args: &UtreexoArgs) -> Result<(), Failure> {
    match &args.command {
        UtreexoCommand::Prove(args) => prove(args),
        UtreexoCommand::Info(args) => info(&args.path),
        UtreexoCommand::Check(args) => check(&args.folder),
        UtreexoCommand::Caches(args) => measure_caches(args),
    }
}

fn prove(args: &ProveArgs) -> Result<(), Failure> {
    let connect = ConnectArgs { assume: args.assume, witnesses: None, prevout_threads: 0 };
    if args.peers.follow || args.peers.blocks == BlocksArg::Keep {
        return Err(Failure::usage(
            "`apus utreexo prove` ends at the tip and keeps no blocks: leave out --follow and --blocks keep. To keep \
             them, download the blocks first (`apus sync --out datadir:DIR`), and prove them with --blocksdir",
        ));
    }
    let source = match &args.blocksdir {
        Some(folder) => {
            JobSource::Files { blocksdir: folder.into(), use_index: UseIndex::IfPresent }
        }
        None => JobSource::Peers(&args.peers),
    };
    let report = run(&RunJob {
        engine: Some(EngineArg::Mergesync),
        connect: Some(&connect),
        stop: args.stopatheight.map_or(Stop::AtTip, Stop::At),
        bridge: Some(BridgeJob { folder: &args.out, every: args.every }),
        ..RunJob::new(args.chain, source, &args.run)
    })?;
    print::result(report)
}

/// Surveys a folder's files, or one file.
fn survey(path: &Path) -> Result<SurveyedFiles, Failure> {
    if path.is_dir() {
        let storage = DirStorage::new(path);
        let names: Vec<String> =
            proofs_files(&storage)?.into_iter().map(|(_, name)| name).collect();
        return Ok(survey_proofs(&storage, &names)?);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage(format!("{} is not a file", path.display())))?;
    Ok(survey_proofs(&DirStorage::new(parent(path)), &[name.to_owned()])?)
}

fn info(path: &Path) -> Result<(), Failure> {
    let SurveyedFiles { network, heights, last, leaves_before, after, totals } = survey(path)?;
    let ProofsTotals { files, blocks, targets, hashes, .. } = totals;
    let each = |total: u64| format!("{:.1} a block", total as f64 / blocks.max(1) as f64);
    let of = |total: u64| format!("{} ({}, {})", grouped(total), bytes(total), each(total));
    let leaves = after.leaves();
    print::facts([
        ("files", grouped(files)),
        ("chain", network.map_or_else(|| "unknown".to_owned(), |it| it.to_string())),
        ("blocks", format!("{}: {} to {}", grouped(blocks), heights.start, heights.end - 1)),
        ("last block", last.to_string()),
        ("leaves", format!("{}, {} of these before", grouped(leaves), grouped(leaves_before))),
        ("coins spent", format!("{}, {}", grouped(targets), each(targets))),
        ("hashes", format!("{}, {}", grouped(hashes), each(hashes))),
        ("bytes of proofs", of(totals.proof_bytes)),
        ("of leaf data", of(totals.leaf_bytes)),
        ("longest entry", bytes(totals.entry_bytes_max)),
        ("of all files", format!("{} ({})", grouped(totals.file_bytes), bytes(totals.file_bytes))),
    ])?;
    let names = ["roots at the end"].into_iter().chain(std::iter::repeat(""));
    print::facts(names.zip(after.hashes()))
}

fn check(folder: &Path) -> Result<(), Failure> {
    if !folder.is_dir() {
        return Err(Failure::usage(format!("{} is not a folder", folder.display())));
    }
    let SurveyedFiles { heights, totals, .. } = survey(folder)?;
    if heights.start != 1 {
        return Err(Failure::wrong(format!(
            "{}: the first file begins with block {}, and no file begins with block 1",
            folder.display(),
            heights.start
        )));
    }
    print::result(format_args!(
        "{} files are intact and contiguous, from block 1 to {}: {} proofs of {} coins. Apus did not check the \
         proofs against the roots before their blocks: a verifier of the blocks does that.",
        grouped(totals.files),
        heights.end - 1,
        grouped(totals.blocks),
        grouped(totals.targets)
    ))
}

/// Version of the JSON form.
const VERSION: u32 = 1;

/// Runs `apus utreexo caches`.
fn measure_caches(args: &CachesArgs) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        return Err(Failure::usage(format!("{} is not a folder", args.folder.display())));
    }
    if let Some(report) = &args.report {
        expect_writable(report, |_| false)?;
    }
    let interrupt = watch_signals()?;
    let about = RunFacts { command: "utreexo caches", chain: "", threads: 1, on_servers: false };
    let renderer = Renderer::new(RunDisplay::plain(args.progress, about, Vec::new()), None);
    let found = replay_caches(&CachesRequest {
        storage: &DirStorage::new(&args.folder),
        rules: &rules(args),
        observer: &renderer,
        interrupt: &interrupt,
    });
    drop(renderer.into_record());
    let found = found?;
    if let Some(report) = &args.report {
        write_report(report, &CachesReport::new(args, &found))?;
    }
    tell(&found)
}

/// Returns the rules to measure: no cache, then each size with each policy.
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

/// Prints the results as a table.
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

/// The report of `apus utreexo caches` (`docs/utreexo.md`).
#[derive(Serialize)]
struct CachesReport {
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

impl CachesReport {
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
