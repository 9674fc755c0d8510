//! `apus snapshot`: inspects and verifies snapshots.

use crate::args::{
    AssumeArgs, ConnectArgs, HintsArg, SnapshotArgs, SnapshotCommand, SnapshotInfoArgs,
    SnapshotVerifyArgs,
};
use crate::failure::Failure;
use crate::files::Content;
use crate::machine::watch_signals;
use crate::print;
use crate::report::{bitcoins, bytes, display_hash, grouped};
use crate::sync::{NOT_ASKED, RunJob, prove, work_path};
use crate::unpack::InputFile;
use apus_chain::{Network, Params};
use apus_datadir::snapshot::{SnapshotInfo, SnapshotReader, snapshot_info};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Runs `apus snapshot`.
pub(crate) fn command(args: &SnapshotArgs) -> Result<(), Failure> {
    match &args.command {
        SnapshotCommand::Info(args) => info(args),
        SnapshotCommand::Verify(args) => verify(args),
        #[cfg(feature = "tables")]
        SnapshotCommand::Export(args) => crate::tables::export(args),
        #[cfg(feature = "tables")]
        SnapshotCommand::Find(args) => crate::tables::find(args),
    }
}

/// Reads a snapshot completely.
fn read(
    input: &InputFile,
    network: Option<Network>,
    muhash: bool,
) -> Result<SnapshotInfo, Failure> {
    let path = input.named();
    if input.is_plain()? {
        let file = File::open(input.path()).map_err(|error| Failure::opening(path, &error))?;
        return read_from(BufReader::with_capacity(1 << 20, file), path, network, muhash);
    }
    let interrupt = watch_signals()?;
    input.stream(&interrupt, |reader| read_from(reader, path, network, muhash))
}

fn read_from(
    mut reader: BufReader<impl Read>,
    path: &Path,
    network: Option<Network>,
    muhash: bool,
) -> Result<SnapshotInfo, Failure> {
    let first = reader.fill_buf().map_err(|error| Failure::io(path, error))?;
    if let Content::Hints(_) = Content::of_bytes(first) {
        return Err(Failure::usage(format!(
            "{} is a hintsfile, not a UTXO snapshot: see `apus hints info`",
            path.display()
        )));
    }
    SnapshotReader::new(reader, network)
        .and_then(|reader| snapshot_info(reader, muhash))
        .map_err(|error| Failure::of_snapshot(path, &error))
}

fn info(args: &SnapshotInfoArgs) -> Result<(), Failure> {
    let info = read(&args.file, None, args.muhash)?;
    let known =
        Params::of(info.network).assumeutxo.iter().find(|known| known.block_hash == info.base_hash);
    let verdict = match known {
        Some(known) if known.hash_serialized == info.hash_serialized_3.0 => {
            format!("the set that Bitcoin Core knows for height {}", known.height)
        }
        Some(known) => format!(
            "NOT the set that Bitcoin Core knows for height {} ({})",
            known.height,
            display_hash(&known.hash_serialized)
        ),
        None => "a set that Bitcoin Core does not know; `apus snapshot verify` checks it against \
                 blocks"
            .to_owned(),
    };
    let muhash = info
        .muhash
        .map_or_else(|| "not computed: add --muhash".to_owned(), |muhash| display_hash(&muhash.0));
    print::facts([
        ("file", args.file.named().display().to_string()),
        ("chain", info.network.to_string()),
        ("base block", info.base_hash.to_string()),
        ("highest coin", format!("height {}", info.height_max)),
        ("coins", grouped(info.stats.coins)),
        ("transactions", grouped(info.stats.transactions)),
        ("total amount", format!("{} BTC", bitcoins(info.stats.total_amount as u64))),
        ("bogosize", grouped(info.stats.bogosize)),
        ("hash_serialized_3", display_hash(&info.hash_serialized_3.0)),
        ("muhash", muhash),
        ("bytes", format!("{} ({})", grouped(info.bytes), bytes(info.bytes))),
        ("this is", verdict),
    ])
}

/// Uses the snapshot as hints: if exactly the outpoints that it lists stay unspent in the chain's blocks, Apus computes
/// their coins from the blocks alone, and the set's hash must match the snapshot's.
fn verify(args: &SnapshotVerifyArgs) -> Result<(), Failure> {
    let hints = HintsArg::Snapshot(args.file.clone());
    let proof = RunJob::proof(&args.source, &hints, None, args.proof.aggregate, &args.run);
    let interrupt = watch_signals()?;
    args.file.make_plain(&work_path(&proof), &interrupt)?;
    let claimed = read(&args.file, Some(args.source.chain), false)?;
    let connect = args.assume.assumevalid.map(|assumed| ConnectArgs {
        assume: AssumeArgs::of(assumed),
        witnesses: None,
        prevout_threads: 0,
    });
    let report = prove(&RunJob { connect: connect.as_ref(), ..proof })?;
    print::result(&report)?;
    print::result("")?;
    let hash = display_hash(&claimed.hash_serialized_3.0);
    let of_blocks = report.hash_serialized_3.as_deref().unwrap_or_default();
    if hash != of_blocks {
        return Err(Failure::wrong(format!(
            "{}: the snapshot has the right outpoints but not the right contents: its hash_serialized_3 is \
             {hash}, the blocks produce {of_blocks}",
            args.file.named().display()
        )));
    }
    print::result(format_args!(
        "{} holds the coins that the blocks up to {} ({}) leave. {}",
        args.file.named().display(),
        report.stop_height,
        report.stop_hash,
        if connect.is_some() { "These blocks obey the requested rules." } else { NOT_ASKED }
    ))
}
