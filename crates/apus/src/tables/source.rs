//! [`SetSource`]: a set of coins on disk, which commands read once from start to end: a snapshot in any form that Apus
//! unpacks, also from a pipe, or a node's chainstate.

use crate::args::SetArgs;
use crate::failure::Failure;
use crate::files::Content;
use crate::node::{is_folder_of, of_datadir};
use crate::print;
use crate::report::grouped;
use crate::unpack::InputFile;
use apus_chain::{BlockHash, Height, Network, OutPoint};
use apus_datadir::chainstate::{
    ChainstateDbError, SNAPSHOT_CHAINSTATE, node_best_block, read_node,
};
use apus_datadir::snapshot::SnapshotReader;
use apus_datadir::{chain_folder, network_of, read_index};
use apus_sync::parent;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between progress messages.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Number of coins between two looks at the clock and at signals.
const LOOK_EVERY: u64 = 1 << 14;

/// What is known about a set before its first coin.
#[derive(Debug, Clone, Copy)]
pub(super) struct SetHead {
    pub(super) network: Network,
    pub(super) block: BlockHash,
    /// The block's height in the node's index.
    pub(super) height: Option<Height>,
    /// Whether the set is a file that anyone may have made, not the coins of the user's node.
    pub(super) is_snapshot: bool,
}

/// Receives a set.
pub(super) trait SetVisitor {
    /// Receives a coin in its stored form. Coins come in the order of a snapshot.
    fn coin(&mut self, outpoint: OutPoint, stored: &[u8]) -> Result<(), Failure>;
}

/// A set of coins on disk.
pub(super) enum SetSource<'a> {
    Snapshot(&'a InputFile, Option<Network>),
    Chainstate(PathBuf, Network),
}

impl<'a> SetSource<'a> {
    /// Finds the set that the arguments name.
    pub(super) fn of(args: &'a SetArgs) -> Result<Self, Failure> {
        let path = args.set.named();
        match path.is_dir() {
            true => of_folder(path, args.chain),
            false => Ok(Self::Snapshot(&args.set, args.chain)),
        }
    }

    /// Reads the whole set. `begin` learns what is known about it, and returns what receives its coins.
    pub(super) fn read<V: SetVisitor>(
        &self,
        interrupt: &AtomicBool,
        what: &'static str,
        begin: impl FnOnce(SetHead) -> Result<V, Failure>,
    ) -> Result<V, Failure> {
        let progress = ReadProgress { what, interrupt, coins: 0, reported_at: Instant::now() };
        match self {
            Self::Chainstate(folder, network) => read_chainstate(folder, *network, progress, begin),
            Self::Snapshot(input, network) if input.is_plain()? => {
                let path = input.named();
                let file =
                    File::open(input.path()).map_err(|error| Failure::opening(path, &error))?;
                let file = BufReader::with_capacity(1 << 20, file);
                read_snapshot(file, path, *network, progress, begin)
            }
            Self::Snapshot(input, network) => input.stream(interrupt, |reader| {
                read_snapshot(reader, input.named(), *network, progress, begin)
            }),
        }
    }
}

/// Finds the chainstate in a folder that is one, or in a node's data directory, or in a chain's folder in it.
fn of_folder(named: &Path, chain: Option<Network>) -> Result<SetSource<'static>, Failure> {
    if has_coins(named) {
        // A path such as `.` has no parent.
        let folder = match named.file_name() {
            Some(_) => parent(named).to_owned(),
            None => named.join(".."),
        };
        return Ok(SetSource::Chainstate(named.to_owned(), expect_chain(named, &folder, chain)?));
    }
    let found = chain.or_else(|| of_datadir(named));
    let of_chain = found.map(|network| chain_folder(named, network));
    let folders: Vec<PathBuf> = of_chain.into_iter().chain([named.to_owned()]).collect();
    let Some(folder) = folders.iter().find(|folder| has_coins(&folder.join("chainstate"))) else {
        return Err(Failure::usage(format!(
            "{} is neither a chainstate nor a data directory with one: give the folder with the file CURRENT",
            named.display()
        )));
    };
    let network = expect_chain(named, folder, found)?;
    // Each chain has its own folder; only that of main may have any name.
    let by_name = Network::ALL.into_iter().find(|chain| is_folder_of(folder, *chain));
    let is_own = by_name.map_or(*folder == chain_folder(named, network), |chain| chain == network);
    if !is_own && chain_of_blocks(folder) != Some(network) {
        let chainstate = folder.join("chainstate");
        return Err(Failure::usage(format!(
            "{} has no coins of {network}, and nothing shows that those in {} are: give that folder itself if they are",
            named.display(),
            chainstate.display()
        )));
    }
    let second = folder.join(SNAPSHOT_CHAINSTATE);
    if second.is_dir() {
        return Err(Failure::usage(format!(
            "the node has two sets of coins: give {} or {}",
            folder.join("chainstate").display(),
            second.display()
        )));
    }
    Ok(SetSource::Chainstate(folder.join("chainstate"), network))
}

fn has_coins(chainstate: &Path) -> bool {
    chainstate.join("CURRENT").exists()
}

/// The chain of the blocks beside the coins in a chain's folder, which coins do not name themselves.
fn chain_of_blocks(folder: &Path) -> Option<Network> {
    network_of(&folder.join("blocks")).ok().flatten()
}

/// Returns the chain of the coins in a chain's folder. `given` is the user's or the node's word.
fn expect_chain(named: &Path, folder: &Path, given: Option<Network>) -> Result<Network, Failure> {
    match (given, chain_of_blocks(folder)) {
        (Some(given), Some(of_blocks)) if given != of_blocks => Err(Failure::usage(format!(
            "{}: the blocks beside these coins are of {of_blocks}, not of {given}: use --chain {of_blocks}, or another \
             folder",
            named.display()
        ))),
        (Some(network), _) | (None, Some(network)) => Ok(network),
        (None, None) => {
            let what = "a chainstate does not say which chain it belongs to";
            Err(Failure::usage(format!("{}: {what}: add --chain", named.display())))
        }
    }
}

fn read_snapshot<V: SetVisitor>(
    mut input: BufReader<impl Read>,
    path: &Path,
    network: Option<Network>,
    mut progress: ReadProgress<'_>,
    begin: impl FnOnce(SetHead) -> Result<V, Failure>,
) -> Result<V, Failure> {
    let about = |error| Failure::of_snapshot(path, &error);
    let first = input.fill_buf().map_err(|error| Failure::io(path, error))?;
    if let Content::Hints(_) = Content::of_bytes(first) {
        let what = "is a hintsfile, not a UTXO snapshot: see `apus hints info`";
        return Err(Failure::usage(format!("{} {what}", path.display())));
    }
    let mut reader = SnapshotReader::new(input, network).map_err(about)?;
    let header = *reader.header();
    let head = SetHead {
        network: header.network,
        block: header.base_hash,
        height: None,
        is_snapshot: true,
    };
    let mut visitor = begin(head)?;
    while let Some((outpoint, stored)) = reader.next_stored().map_err(about)? {
        visitor.coin(outpoint, stored)?;
        progress.step(Some(header.coins))?;
    }
    Ok(visitor)
}

fn read_chainstate<V: SetVisitor>(
    folder: &Path,
    network: Network,
    mut progress: ReadProgress<'_>,
    begin: impl FnOnce(SetHead) -> Result<V, Failure>,
) -> Result<V, Failure> {
    let block = node_best_block(folder)?
        .ok_or_else(|| ChainstateDbError::NoBestBlock { path: folder.to_owned(), coins: false })?;
    let height = height_in_index(folder, block);
    let head = SetHead { network, block, height, is_snapshot: false };
    let mut visitor = begin(head)?;
    let read = read_node(folder, &mut |outpoint, stored| {
        visitor.coin(outpoint, stored).and_then(|()| progress.step(None))
    })?;
    if read.best != block {
        return Err(Failure::wrong(format!(
            "{}: the node moved to another block meanwhile: stop it, then rerun the command",
            folder.display()
        )));
    }
    Ok(visitor)
}

/// Looks up a block's height in the index next to a node's chainstate; `None` if it is not there.
fn height_in_index(chainstate: &Path, block: BlockHash) -> Option<Height> {
    let (blocks, mut height) = (chainstate.parent()?.join("blocks"), None);
    let _ = read_index(&blocks, &mut |entry| {
        if entry.hash != block {
            return ControlFlow::Continue(());
        }
        height = Some(entry.height);
        ControlFlow::Break(())
    });
    height
}

/// Prints progress, and stops when the user interrupts it.
struct ReadProgress<'a> {
    what: &'static str,
    interrupt: &'a AtomicBool,
    coins: u64,
    reported_at: Instant,
}

impl ReadProgress<'_> {
    #[inline]
    fn step(&mut self, total: Option<u64>) -> Result<(), Failure> {
        self.coins += 1;
        if self.coins.is_multiple_of(LOOK_EVERY) { self.look(total) } else { Ok(()) }
    }

    fn look(&mut self, total: Option<u64>) -> Result<(), Failure> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Failure::interrupted());
        }
        if self.reported_at.elapsed() >= REPORT_EVERY {
            self.reported_at = Instant::now();
            let of = total.map(|total| format!(" of {}", grouped(total))).unwrap_or_default();
            print::aside(format_args!("{}{of} coins {}", grouped(self.coins), self.what));
        }
        Ok(())
    }
}
