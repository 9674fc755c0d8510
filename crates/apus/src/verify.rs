//! `apus verify`: audits a node's data directory.

mod indexes;

use crate::args::{AssumeArgs, AssumeValidArg, SNAPSHOT, SinkArg, SyncMethod, VerifyArgs};
use crate::args::{expect_interpreter, finish_sighints, verifier};
use crate::estimate::{RunMethod, Writes, expected};
use crate::failure::{Failure, IO};
use crate::files::bytes_in;
use crate::files::{expect_apart, expect_not_in, expect_writable};
use crate::machine::{Machine, clock, cpu_seconds, rss_peak_bytes, threads, watch_signals};
use crate::node::{NodeFolders, expect_folders};
use crate::plan::{BlocksSize, Needs, SetSize};
use crate::print;
use crate::render::{Renderer, RunDisplay, RunRecord};
use crate::report::{
    FailedReport, PhaseReport, SignaturesReport, bytes, display_hash, grouped, is_failed_report,
    leave_failed, write_report,
};
use crate::status::RunFacts;
use crate::workdir::WorkFolder;
use apus_chain::Params;
use apus_datadir::{BlockFiles, read_index_flags};
use apus_engine::script::Signatures;
use apus_storage::DirStorage;
use apus_sync::{
    DiskUse, Event, Finding, FindingKind, FoundFault, Observer, ProvenBy, RunEnv, ScratchLimits,
    SyncError, Verify, VerifyOutcome, discard_verify, foreign_to_verify, has_verify_progress,
};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Version of the JSON form.
const VERSION: u32 = 1;

/// Minimum free space in bytes: a disk allocates whole pages even for the smallest files.
const ROOM_LEAST: u64 = 1 << 20;

/// Runs `apus verify`.
pub(crate) fn command(args: &VerifyArgs) -> Result<(), Failure> {
    let params = Params::of(args.node.chain);
    let now = clock(params)?;
    let node = args.node.folders()?;
    expect_folders(&node)?;
    let NodeFolders { folder, blocks, .. } = node;
    expect_not_reindexing(&blocks.home)?;
    let assume = AssumeArgs::of(args.assume.assumevalid.unwrap_or(AssumeValidArg::NOTHING));
    let (scripts, assume_valid) = (assume.nothing(), assume.block(params));
    if assume_valid.is_none() {
        expect_interpreter()?;
    }
    let verifier = verifier(params)?;
    let out = args.out.as_deref();
    args.run.signatures.expect_hints_wanted(out)?;
    let work = args
        .run
        .workdir
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("apus-{}-verify.work", args.node.chain)));
    let mut written: Vec<&Path> = vec![&work];
    written.extend(args.run.report.as_deref());
    written.extend(out);
    if let Some(out) = out {
        expect_apart(&[out, &work])?;
        expect_writable(out, |_| false)?;
    }
    expect_not_in(&folder, &written)?;
    expect_not_in(&blocks.files, &written)?;
    if let Some(report) = &args.run.report {
        expect_apart(&[report, &work])?;
        expect_writable(report, is_failed_report)?;
    }
    let threads = threads(args.run.par);
    let about =
        RunFacts { command: "verify", chain: args.node.chain.name(), threads, on_servers: false };
    let watch =
        RunDisplay::of(&args.run, about, expected(RunMethod::Node, scripts, true, Writes::Files))?;
    let interrupt = watch_signals()?;
    // Check twice: before the lock, so as to create no file in a folder of another kind; and under the lock.
    expect_work_folder(&work)?;
    let begun = has_verify_progress(&work);
    let (room, scratch) = expect_room(args, (&folder, &blocks.files), &work, threads, begun)?;
    let locked = WorkFolder::open(&work)?;
    let own = expect_work_folder(&work).and_then(|()| locked.expect_own_content());
    own.inspect_err(|_| locked.leave())?;
    let signatures = args.run.signatures.learning(args.node.chain, out)?;
    let renderer = Renderer::new(watch, None);
    room.into_iter().for_each(|event| renderer.event(event));
    let storage = DirStorage::private(&work);
    let env = RunEnv {
        threads,
        memory_bytes: args.run.dbcache << 20,
        segment_bytes: args.run.segment_bytes,
        scratch: Some(ScratchLimits { bytes: scratch, segments: None }),
        checkpoint_interval: Duration::from_secs(args.run.checkpoint_seconds.into()),
        now,
        signatures: &signatures,
        verifier: verifier.as_deref(),
        ..RunEnv::new(params, &storage, &renderer, &interrupt)
    };
    let block_files = blocks.files;
    let request = Verify { env, folder, block_files, assume_valid, work: work.clone() };
    let verified = renderer.beside(|| audit(&request));
    let mut record = renderer.into_record();
    let (verified, indexes) = verified.map_err(|error| {
        let mut failure = Failure::from(error);
        locked.leave();
        if work.exists() {
            let kept = format!(
                "\napus: progress is kept in {}. Rerun the command to resume",
                work.display()
            );
            failure.message.push_str(&kept);
        }
        record.note("failed", &failure.message);
        let report = FailedReport::new(args.node.chain.name(), &failure, record.history.clone());
        leave_failed(args.run.report.as_deref(), &report);
        record.shared.lock().report = serde_json::to_value(report).ok();
        failure
    })?;
    verified.tip.map_or(Ok(()), |tip| finish_sighints(&signatures, tip))?;
    record.note("done", &format!("{} problems found", verified.findings.len()));
    let shared = Arc::clone(&record.shared);
    let run = (threads, &*signatures);
    let report = VerifyReport::new(args, scripts, (&verified, &indexes), record, run);
    shared.lock().report = serde_json::to_value(&report).ok();
    if let Some(path) = &args.run.report {
        write_report(path, &report)?;
    }
    discard_verify(&work)?;
    locked.discard()?;
    tell(args, scripts, &verified, &indexes)
}

/// An index that was compared.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
struct CheckedIndex {
    /// The name of Core's option.
    index: &'static str,
    /// Its folder below `indexes`: one for each form of coinstatsindex.
    folder: &'static str,
    /// The last block that was compared.
    height: u32,
}

/// Audits the node, then its optional indexes.
fn audit(request: &Verify<'_>) -> Result<(VerifyOutcome, Vec<CheckedIndex>), SyncError> {
    let mut verified = apus_sync::verify(request)?;
    let checked = indexes::check(request, &mut verified)?;
    Ok((verified, checked))
}

/// Refuses a folder of another kind, before Apus writes or removes anything in it.
fn expect_work_folder(work: &Path) -> Result<(), Failure> {
    if !work.is_dir() {
        return Ok(());
    }
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let names: Result<Vec<String>, _> = fs::read_dir(work).and_then(|all| all.map(name).collect());
    let names = names.map_err(|error| Failure::io(work, error))?;
    match foreign_to_verify(&names) {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "{} holds {other}, which is not a file of `apus verify`: use another --workdir. Apus creates the \
             folder if it is missing",
            work.display(),
        ))),
    }
}

/// Fails without disk space for a copy of the coins and for the proof's progress, unless an earlier start began. Returns
/// the events to report, and how much space temporary files may take if the verification finds a problem: a second pass
/// over the blocks then locates it.
fn expect_room(
    args: &VerifyArgs,
    (folder, blocksdir): (&Path, &Path),
    work: &Path,
    threads: usize,
    begun: bool,
) -> Result<(Vec<Event>, u64), Failure> {
    let files = BlockFiles::open(blocksdir, args.node.chain.magic());
    // The verification itself reports errors in the files.
    let block_bytes = files.map_or(0, |files| files.bytes_total());
    let copy = [SinkArg::File(&SNAPSHOT, work.join("coins.dat"))];
    let needs = Needs {
        blocks: BlocksSize::of_size(block_bytes),
        method: SyncMethod::Hints,
        set: SetSize::of_chainstate(bytes_in(&folder.join("chainstate"))),
        outputs: &copy,
        prune: false,
        indexes: &[],
        workdir: work,
        scratch: args.run.scratch,
        memory_bytes: args.run.dbcache << 20,
        threads,
    };
    Ok((if begun { Vec::new() } else { room_for(&needs)? }, needs.scratch()))
}

fn room_for(needs: &Needs<'_>) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    for disk in needs.disks()? {
        let (needed, free) = (disk.asked().max(ROOM_LEAST), disk.free);
        if free < needed {
            return Err(Failure::new(
                IO,
                format!(
                    "not enough disk: {} needs up to {} and has {}, for a copy of the node's coins and other \
                     temporary files, deleted at the end. Choose one: free some space, or add --workdir DIR on \
                     another disk",
                    disk.folder.display(),
                    bytes(needed),
                    bytes(free)
                ),
            ));
        }
        events.push(Event::DiskNeeded { what: DiskUse::Progress, bytes: needed, free });
    }
    Ok(events)
}

fn expect_not_reindexing(blocksdir: &Path) -> Result<(), Failure> {
    // A finding reports unreadable files.
    if read_index_flags(blocksdir).is_ok_and(|flags| flags.reindexing) {
        return Err(Failure::usage(
            "the node was stopped in the middle of -reindex, so its block index is incomplete: start the node, and \
             let it finish -reindex first",
        ));
    }
    Ok(())
}

/// Prints the findings, and the overall result last. `scripts` is true if every script had to run.
fn tell(
    args: &VerifyArgs,
    scripts: bool,
    verified: &VerifyOutcome,
    indexes: &[CheckedIndex],
) -> Result<(), Failure> {
    if let Some(proof) = &verified.proof {
        print::result(proven(proof))?;
    }
    for CheckedIndex { index, folder, height } in indexes {
        let has_two = |it: &CheckedIndex| it.index == *index && it.folder != *folder;
        let place = match indexes.iter().any(has_two) {
            true => format!(" in indexes/{folder}"),
            false => String::new(),
        };
        print::result(format_args!("{index}{place} was compared up to block {height}."))?;
    }
    if verified.coins_of_earlier {
        print::result("Apus used the copy of the node's coins that an earlier start made.")?;
    }
    if let Some(why) = &verified.unproven {
        print::result(format_args!("Not proven: {why}."))?;
    }
    if verified.looked_at > 0 {
        print::result(format_args!(
            "{} blocks were checked one by one.",
            grouped(verified.looked_at)
        ))?;
    }
    for finding in &verified.findings {
        print::result(format_args!("\n{}", line(finding)))?;
        print::result_behind("  ", finding.remedy())?;
    }
    if verified.findings.is_empty() {
        let proof = verified.proof.as_ref().filter(|_| verified.unproven.is_none());
        let what = match (proof, scripts) {
            (None, _) => "No problem found in the files that the node has",
            (Some(_), true) => "The node's data are valid",
            (Some(_), false) => "The node's data are valid, if the skipped scripts are valid",
        };
        return print::result(format_args!("\n{what}."));
    }
    let kinds = match verified.findings.len() {
        1 => "1 problem found".to_owned(),
        kinds => format!("{kinds} problems found"),
    };
    let folder = args.node.datadir.display();
    let message = format!("{folder}: {kinds}");
    let invalid = verified.findings.iter().any(|finding| finding.kind == FindingKind::BlockInvalid);
    Err(if invalid { Failure::invalid(message) } else { Failure::wrong(message) })
}

fn proven(proof: &ProvenBy) -> String {
    let ProvenBy { at, scripts, .. } = proof;
    let left_out = match scripts.assumed {
        0 => "every script included".to_owned(),
        assumed => format!("except for the assumed scripts of {} blocks", grouped(assumed)),
    };
    format!(
        "The blocks up to {} ({}) obey every rule, {left_out}.\nThey leave {} coins, hash_serialized_3 {}.",
        at.height,
        at.hash,
        grouped(proof.coins.coins),
        display_hash(&proof.hash_serialized_3)
    )
}

/// Formats a finding in one line.
pub(crate) fn line(finding: &Finding) -> String {
    let FoundFault { height, hash, file, offset, outpoint, what } = &finding.first;
    let mut text = finding.kind.name().to_owned();
    if finding.count > 1 {
        text.push_str(&format!(" (first of {})", grouped(finding.count)));
    }
    text.push(':');
    let mut part = |part: String| {
        text.push(' ');
        text.push_str(&part);
    };
    if let Some(outpoint) = outpoint {
        part(format!("coin {outpoint}"));
        height.iter().for_each(|height| part(format!("of height {height}")));
    } else {
        match (height, hash) {
            (Some(height), Some(hash)) => part(format!("block {height} ({hash})")),
            (None, Some(hash)) => part(format!("block {hash}")),
            _ => {}
        }
    }
    file.iter().for_each(|file| part(format!("in {file}")));
    offset.iter().for_each(|offset| part(format!("at byte {offset}")));
    format!("{text}: {what}")
}

/// The report for programs (`docs/formats/verify.md`).
#[derive(Serialize)]
struct VerifyReport {
    version: u32,
    chain: &'static str,
    datadir: String,
    validation: &'static str,
    /// True if there are no findings, and all blocks up to the node's coins are proven.
    proven: bool,
    findings: Vec<FindingReport>,
    /// Why there is no proof; null if there is one.
    unproven: Option<String>,
    proof: Option<ProofReport>,
    tip_height: Option<u32>,
    tip_hash: Option<String>,
    looked_at: u64,
    indexes: Vec<CheckedIndex>,
    coins_of_earlier: bool,
    stored_from: Option<u32>,
    wall_seconds: f64,
    cpu_seconds: f64,
    rss_peak_bytes: Option<u64>,
    threads: usize,
    dbcache_mib: u64,
    phases: Vec<PhaseReport>,
    warnings: Vec<String>,
    machine: Machine,
}

#[derive(Serialize)]
struct FindingReport {
    kind: &'static str,
    count: u64,
    height: Option<u32>,
    hash: Option<String>,
    file: Option<String>,
    offset: Option<u64>,
    outpoint: Option<String>,
    what: String,
    remedy: String,
}

/// The blocks that are proven, and the coins after them.
#[derive(Serialize)]
struct ProofReport {
    stop_height: u32,
    stop_hash: String,
    /// Whether one pass with the node's coins and undo data proved the blocks; otherwise the proof used neither.
    by_hints: bool,
    transactions: u64,
    inputs: u64,
    outputs: u64,
    bytes: u64,
    coins: u64,
    total_amount_sat: u64,
    muhash: String,
    hash_serialized_3: String,
    script_blocks: u64,
    assumed_script_blocks: u64,
    signatures: SignaturesReport,
}

impl VerifyReport {
    fn new(
        args: &VerifyArgs,
        scripts: bool,
        (verified, indexes): (&VerifyOutcome, &[CheckedIndex]),
        record: RunRecord,
        (threads, signatures): (usize, &Signatures),
    ) -> Self {
        let findings = verified.findings.iter().map(FindingReport::new).collect();
        let proof = verified.proof.as_ref().map(|proof| ProofReport {
            stop_height: proof.at.height,
            stop_hash: proof.at.hash.to_string(),
            by_hints: proof.by_hints,
            transactions: proof.counts.transactions,
            inputs: proof.counts.inputs,
            outputs: proof.counts.outputs,
            bytes: proof.counts.bytes,
            coins: proof.coins.coins,
            // Fits: the amount is at most the sum of all subsidies.
            total_amount_sat: u64::try_from(proof.coins.amount).unwrap_or(u64::MAX),
            muhash: display_hash(&proof.muhash),
            hash_serialized_3: display_hash(&proof.hash_serialized_3),
            script_blocks: proof.scripts.run,
            assumed_script_blocks: proof.scripts.assumed,
            signatures: SignaturesReport::of(signatures),
        });
        Self {
            version: VERSION,
            chain: args.node.chain.name(),
            datadir: args.node.datadir.display().to_string(),
            validation: if scripts { "full" } else { "assumevalid" },
            proven: verified.findings.is_empty() && proof.is_some() && verified.unproven.is_none(),
            findings,
            unproven: verified.unproven.clone(),
            proof,
            tip_height: verified.tip.map(|tip| tip.height),
            tip_hash: verified.tip.map(|tip| tip.hash.to_string()),
            looked_at: verified.looked_at,
            indexes: indexes.to_vec(),
            coins_of_earlier: verified.coins_of_earlier,
            stored_from: verified.pruned_below,
            wall_seconds: record.history.wall_seconds,
            cpu_seconds: cpu_seconds(),
            rss_peak_bytes: rss_peak_bytes(),
            threads,
            dbcache_mib: args.run.dbcache,
            phases: record.history.phases,
            warnings: record.history.warnings,
            machine: Machine::here(),
        }
    }
}

impl FindingReport {
    fn new(finding: &Finding) -> Self {
        let FoundFault { height, hash, file, offset, outpoint, what } = &finding.first;
        Self {
            kind: finding.kind.name(),
            count: finding.count,
            height: *height,
            hash: hash.map(|hash| hash.to_string()),
            file: file.clone(),
            offset: *offset,
            outpoint: outpoint.map(|outpoint| outpoint.to_string()),
            what: what.clone(),
            remedy: finding.remedy(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_reported_before_anything_is_written() {
        let sandbox = tempfile::tempdir().unwrap();
        let workdir = sandbox.path().join("new");
        let copy = [SinkArg::File(&SNAPSHOT, workdir.join("coins.dat"))];
        let needs = |coins, block_bytes| Needs {
            blocks: BlocksSize::of_size(block_bytes),
            method: SyncMethod::Hints,
            set: SetSize { coins },
            outputs: &copy,
            prune: false,
            indexes: &[],
            workdir: &workdir,
            scratch: None,
            memory_bytes: 450 << 20,
            threads: 2,
        };
        assert!(matches!(room_for(&needs(1, 1)).unwrap()[..], [Event::DiskNeeded { .. }]));
        let failure = room_for(&needs(u64::MAX / 400, 1)).unwrap_err();
        assert_eq!(failure.code, IO);
        assert!(failure.message.contains("--workdir"), "{}", failure.message);
        assert!(!workdir.exists());
    }
}
