//! `apus utreexo`: prove, info, check, caches.

mod caches;

use crate::args::{AggregateArg, ConnectArgs, ProveArgs, UtreexoArgs, UtreexoCommand};
use crate::failure::Failure;
use crate::print;
use crate::report::{bytes, grouped};
use crate::sync::{BridgeJob, Job, JobSource, run};
use apus_storage::DirStorage;
use apus_sync::{
    DatadirBlocks, ProofsTotals, Stop, Surveyed, UseIndex, parent, proofs_files, survey_proofs,
};
use std::path::Path;

/// Runs `apus utreexo`.
pub(crate) fn command(args: &UtreexoArgs) -> Result<(), Failure> {
    match &args.command {
        UtreexoCommand::Prove(args) => prove(args),
        UtreexoCommand::Info(args) => info(&args.path),
        UtreexoCommand::Check(args) => check(&args.folder),
        UtreexoCommand::Caches(args) => caches::command(args),
    }
}

fn prove(args: &ProveArgs) -> Result<(), Failure> {
    let connect = ConnectArgs { assume: args.assume, witnesses: None, prevout_threads: 0 };
    let report = run(&Job {
        chain: args.source.chain,
        source: JobSource::Files {
            blocksdir: (&args.source.blocksdir).into(),
            use_index: UseIndex::IfPresent,
        },
        hints: None,
        engine: Some(apus_sync::Engine::MergeSync),
        hints_order: None,
        aggregate: AggregateArg::Sha256,
        run: &args.run,
        connect: Some(&connect),
        coins: None,
        outputs: &[],
        replace: false,
        muhash: false,
        kept: DatadirBlocks::All,
        stop: args.stopatheight.map_or(Stop::AtTip, Stop::At),
        proofs: None,
        bridge: Some(BridgeJob { folder: &args.out, every: args.every }),
        queue: None,
    })?;
    print::result(report)
}

/// Goes through a folder's files, or one file.
fn survey(path: &Path) -> Result<Surveyed, Failure> {
    if path.is_dir() {
        let storage = DirStorage::new(path);
        let names: Vec<String> =
            proofs_files(&storage)?.into_iter().map(|(_, name)| name).collect();
        return Ok(survey_proofs(&storage, &names)?);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::usage(format!("{} is no file", path.display())))?;
    Ok(survey_proofs(&DirStorage::new(parent(path)), &[name.to_owned()])?)
}

fn info(path: &Path) -> Result<(), Failure> {
    let Surveyed { network, heights, last, leaves_before, after, totals } = survey(path)?;
    let ProofsTotals { files, blocks, targets, hashes, .. } = totals;
    let each = |total: u64| format!("{:.1} a block", total as f64 / blocks.max(1) as f64);
    let of = |total: u64| format!("{} ({}, {})", grouped(total), bytes(total), each(total));
    let leaves = after.leaves();
    for (name, value) in [
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
    ] {
        print::result(format_args!("{name:<18} {value}"))?;
    }
    let names = ["roots at the end"].into_iter().chain(std::iter::repeat(""));
    for (name, root) in names.zip(after.hashes()) {
        print::result(format_args!("{name:<18} {root}"))?;
    }
    Ok(())
}

fn check(folder: &Path) -> Result<(), Failure> {
    if !folder.is_dir() {
        return Err(Failure::usage(format!("{} is no folder", folder.display())));
    }
    let Surveyed { heights, totals, .. } = survey(folder)?;
    if heights.start != 1 {
        return Err(Failure::wrong(format!(
            "{}: the first file begins with block {}, and there is none from block 1 on",
            folder.display(),
            heights.start
        )));
    }
    print::result(format_args!(
        "{} files are whole and follow one another, from block 1 to {}: {} proofs of {} coins. Whether a \
         proof holds with the roots before its block was not asked: a verifier of the blocks finds that.",
        grouped(totals.files),
        heights.end - 1,
        grouped(totals.blocks),
        grouped(totals.targets)
    ))
}
