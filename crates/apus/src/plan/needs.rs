//! [`Needs`]: compares the space that a sync needs on each disk with the free space.

use super::is_main;
use super::sample::{BlocksSample, BlocksSize};
use crate::args::{HintsArg, SinkArg, SyncMethod};
use crate::failure::Failure;
use crate::files::{bytes_in, nearest};
use crate::index::numbers_bytes;
use crate::report::bytes;
use apus_chain::Network;
use apus_datadir::free_bytes;
use apus_datadir::snapshot::SnapshotHeader;
use apus_indexes::{IndexForm, IndexesDisk};
use apus_storage::parent;
use apus_sync::engines::swiftsync::hints::{HintsFile, HintsOptions};
use apus_sync::{MERGESYNC_RECORDS_PERCENT, MemoryParts, Warning, draft_of};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a coin in a chainstate: its key and value, the table around them, and the filter.
const CHAINSTATE_COIN: u64 = 65;
/// Bytes of a coin in the runs of a work folder. The upper bound covers the runs of segments, which also hold the
/// coin's position, and the longer runs that these are merged into if memory is short.
const RUN_COIN: u64 = 35;
const RUN_COIN_MOST: u64 = 120;

/// Bytes of blocks for each byte of signature hints: at least 1,100 in blocks full of signatures.
const SIGHINTS_PART: u64 = 1000;

/// Bytes of a created or spent coin in the input of the join.
const JOINED_COIN: u64 = 28;
/// Bytes of a coin in the set below a batch.
const BASE_COIN: u64 = 64;
/// Bytes of records that make a batch worthwhile.
const BATCH_LEAST: u64 = 2_000_000_000;

/// Bytes that temporary files take by default, at most: more saves little.
const SCRATCH_MOST: u64 = 100_000_000_000;
/// Bytes that stay free for others, unless the disk is small.
const SPARE_MOST: u64 = 10_000_000_000;

/// Percent of the blocks' bytes that a chainstate takes if nothing is known about the set: the main chain's, with room
/// to grow.
const SET_PERCENT: u64 = 2;

/// Bytes of a coin in the store of the engine `utxo`, and an upper bound during a merge, which keeps old and new
/// tables.
const STORE_COIN: u64 = 75;
const STORE_COIN_MOST: u64 = 200;
/// Bytes of a coin on servers. PostgreSQL takes this much disk; a Redis Cluster takes half as much memory.
const SERVERS_COIN: u64 = 200;
/// Bytes of a coin in the memory of the engine `utxo`.
const CACHE_COIN: u64 = 120;

/// Bits per coin in a hintsfile: on the main chain (BIP-456), and on test chains, where most blocks keep more of their
/// coins.
const HINTS_BITS_MAIN: f64 = 5.8;
const HINTS_BITS: f64 = 3.5;

/// The size of the set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SetSize {
    pub(crate) coins: u64,
}

impl SetSize {
    /// Takes the size from the hints if given, from the blocks if all were read, from an existing chainstate if that is
    /// plausible, or else extrapolates from the sample.
    pub(super) fn of(
        hints: Option<&HintsArg>,
        chainstate_bytes: Option<u64>,
        blocks: BlocksSize,
        chain: Network,
        sample: &BlocksSample,
    ) -> Result<Self, Failure> {
        if let Some(hints) = hints {
            return Self::counted(hints).map_or_else(|| Self::of_hints(hints, chain), Ok);
        }
        let coins = sample.coins(blocks.bytes);
        let there = Self::of_chainstate(chainstate_bytes.unwrap_or_default()).coins;
        // A broken chainstate may be too small, and one that was just written may hold many coins twice.
        let is_credible = !sample.is_whole() && (coins / 2..=2 * coins).contains(&there);
        Ok(Self { coins: if is_credible { there } else { coins } })
    }

    /// Estimates the size from the bytes of a chainstate.
    pub(crate) fn of_chainstate(bytes: u64) -> Self {
        Self { coins: bytes / CHAINSTATE_COIN }
    }

    /// Counts the coins by reading a hintsfile; `None` if the hints are not a hintsfile, or it cannot be read.
    fn counted(hints: &HintsArg) -> Option<Self> {
        let HintsArg::File(input) = hints else { return None };
        let file = HintsFile::open_path(input.path(), &HintsOptions::default()).ok()?;
        Some(Self { coins: file.info().coins })
    }

    /// Takes the size from a snapshot's header, or estimates it from a hintsfile's length.
    pub(crate) fn of_hints(hints: &HintsArg, chain: Network) -> Result<Self, Failure> {
        let path = hints.named();
        let mut head = [0; SnapshotHeader::SIZE];
        let file = File::open(hints.input().path());
        let mut file = file.map_err(|error| Failure::opening(path, &error))?;
        let length = file.metadata().map_err(|error| Failure::io(path, error))?.len();
        let coins = match hints {
            HintsArg::File(_) => {
                let bits = if is_main(chain) { HINTS_BITS_MAIN } else { HINTS_BITS };
                (length as f64 * 8.0 / bits) as u64
            }
            HintsArg::Snapshot(_) => {
                file.read_exact(&mut head).map_err(|error| Failure::io(path, error))?;
                let header = SnapshotHeader::from_bytes(&head)
                    .map_err(|error| Failure::wrong(format!("{}: {error}", path.display())))?;
                // The header is not trusted; a coin has at least three bytes.
                header.coins.min(length / 3)
            }
        };
        Ok(Self { coins })
    }

    /// The size, or a cautious one for these blocks if it is unknown.
    fn or_cautious(self, blocks: BlocksSize) -> Self {
        match self.coins {
            0 => Self::of_chainstate(blocks.bytes / 100 * SET_PERCENT),
            _ => self,
        }
    }

    /// Bytes of the set as a chainstate.
    pub(crate) fn chainstate(self) -> u64 {
        self.coins.saturating_mul(CHAINSTATE_COIN)
    }

    /// Bytes of the set on servers.
    pub(crate) fn on_servers(self) -> u64 {
        self.coins.saturating_mul(SERVERS_COIN)
    }
}

/// What determines the disk space that a sync needs.
#[derive(Clone, Copy)]
pub(crate) struct Needs<'a> {
    pub(crate) blocks: BlocksSize,
    pub(crate) method: SyncMethod,
    pub(crate) set: SetSize,
    pub(crate) outputs: &'a [SinkArg],
    pub(crate) prune: bool,
    /// Indexes of the node whose coins are written.
    pub(crate) indexes: &'a [IndexForm],
    pub(crate) workdir: &'a Path,
    /// `--scratch`, in bytes.
    pub(crate) scratch: Option<u64>,
    /// `--dbcache`, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
}

/// A disk that a sync writes to.
#[derive(Debug)]
pub(crate) struct DiskNeeds {
    /// A folder on the disk.
    pub(crate) folder: PathBuf,
    pub(crate) parts: Vec<DiskPart>,
    /// The disk's free bytes.
    pub(crate) free: u64,
}

/// One use of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskPart {
    pub(crate) what: &'static str,
    /// Expected bytes.
    pub(crate) bytes: u64,
    /// Bytes that must be free: with less, a sync does not start, or may not finish. What an earlier start wrote of a
    /// data directory is there already.
    asked: u64,
}

impl DiskPart {
    /// Describes the use, in words that follow its size.
    pub(super) fn words(&self) -> String {
        match self.what {
            PROGRESS => format!("of {PROGRESS}, deleted at the end"),
            what => format!("for {what}"),
        }
    }
}

const PROGRESS: &str = "temporary files";

impl DiskNeeds {
    pub(crate) fn needed(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Bytes that must be free on the disk.
    pub(crate) fn asked(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.asked))
    }

    fn has_progress(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().any(|part| part.what == PROGRESS)
    }

    /// Why the disk is too small, with a remedy; `None` if it is large enough.
    pub(super) fn lacking(&self) -> Option<String> {
        (self.free < self.asked()).then(|| {
            let (at, free, asked) = (self.folder.display(), bytes(self.free), bytes(self.asked()));
            let other = match self.has_progress() {
                true => "put the temporary files on another disk with --workdir DIR",
                false => "use another disk",
            };
            format!(
                "not enough disk: {at} needs {asked} and has {free}. Choose one: free some space, or {other}"
            )
        })
    }
}

impl Needs<'_> {
    /// Upper bound on the share of spent coins that the engine `utxo` looks up in its store: the part of the set that
    /// does not fit in its memory. On a long chain the true share is lower, since most coins are spent soon.
    pub(super) fn share_looked_up(&self) -> f64 {
        let memory = MemoryParts::with_files(self.memory_bytes, self.threads).coins_bytes;
        let whole = self.set.coins.max(1).saturating_mul(CACHE_COIN);
        1.0 - (memory as f64 / whole as f64).min(1.0)
    }

    /// Lists each disk once, with all its uses.
    pub(crate) fn disks(&self) -> Result<Vec<DiskNeeds>, Failure> {
        let mut disks: Vec<(u64, DiskNeeds)> = Vec::new();
        for (path, part) in self.parts() {
            let folder = nearest(path);
            let failed = |error| Failure::io(&folder, error);
            let device = folder.metadata().map_err(failed)?.dev();
            match disks.iter_mut().find(|(known, _)| *known == device) {
                Some((_, disk)) => disk.parts.push(part),
                None => {
                    let free = free_bytes(&folder).map_err(failed)?;
                    disks.push((device, DiskNeeds { folder, parts: vec![part], free }));
                }
            }
        }
        Ok(disks.into_iter().map(|(_, disk)| disk).collect())
    }

    /// Lists the folders and what a sync writes there. Sizes are from real syncs; `asked` is larger if a sync may need
    /// more.
    fn parts(&self) -> Vec<(&Path, DiskPart)> {
        let part = |what, bytes| DiskPart { what, bytes, asked: bytes };
        let mut parts = vec![(self.workdir, self.progress())];
        let (set, numbers) = (self.set, numbers_bytes(self.blocks.bytes));
        parts.extend(self.outputs.iter().filter_map(|sink| {
            Some(match sink {
                SinkArg::File(form, path) => {
                    (&**path, part(form.planned, set.coins.saturating_mul(form.coin_bytes)))
                }
                SinkArg::Chainstate(path) => (&**path, part("the chainstate", set.chainstate())),
                SinkArg::Datadir(path) => {
                    let kept = if self.prune { self.blocks.last_bytes } else { self.blocks.bytes };
                    let blocks = kept.saturating_add(self.blocks.undo_of(kept));
                    let bytes = blocks.saturating_add(set.chainstate());
                    let asked = bytes.saturating_sub(bytes_in(&draft_of(path)));
                    (&**path, DiskPart { what: "the data directory", bytes, asked })
                }
                SinkArg::SignatureHints(path) => {
                    (&**path, part("signature hints", self.blocks.bytes / SIGHINTS_PART))
                }
                SinkArg::Stats(path) => (&**path, part("the chain in numbers", numbers)),
                SinkArg::Utreexo(_) | SinkArg::Coins(_) | SinkArg::Null => return None,
            })
        }));
        parts.extend(self.node_folder().filter(|_| !self.indexes.is_empty()).map(|folder| {
            let IndexesDisk { indexes, scratch } = IndexesDisk::of(self.indexes, self.blocks.bytes);
            let asked = indexes.saturating_add(scratch);
            (folder, DiskPart { what: "the indexes", bytes: indexes, asked })
        }));
        parts
    }

    /// The folder of the node whose coins are written.
    fn node_folder(&self) -> Option<&Path> {
        self.outputs.iter().find_map(|sink| match sink {
            SinkArg::Datadir(path) => Some(&**path),
            SinkArg::Chainstate(path) => Some(parent(path)),
            _ => None,
        })
    }

    /// Describes the use of the work folder.
    fn progress(&self) -> DiskPart {
        let Self { set, blocks, .. } = self;
        let (bytes, asked) = match self.method {
            SyncMethod::Hints => {
                let most = set.coins.saturating_mul(RUN_COIN_MOST);
                (set.coins.saturating_mul(RUN_COIN), most)
            }
            SyncMethod::Joins => self.joined(),
            SyncMethod::InOrder => {
                let undo = blocks.undo_of(blocks.recent_bytes);
                let of = |coin| set.coins.saturating_mul(coin).saturating_add(undo);
                // If the set does not fit in memory, the store merges tables.
                let merged = (2.0 * self.share_looked_up()).min(1.0);
                (of(STORE_COIN + (STORE_COIN as f64 * merged) as u64), of(STORE_COIN_MOST))
            }
            SyncMethod::InOrderOnServers => (0, 0),
        };
        DiskPart { what: PROGRESS, bytes, asked }
    }
}

impl Needs<'_> {
    /// Bytes of temporary files of a sync that joins spends with coins, and the fewest with which it works.
    pub(crate) fn joined(&self) -> (u64, u64) {
        let Self { set, blocks, memory_bytes, .. } = self;
        let most = blocks.bytes / 100 * MERGESYNC_RECORDS_PERCENT;
        let whole = blocks.made.saturating_add(blocks.spent).saturating_mul(JOINED_COIN);
        // If memory does not hold them, the join's input and output are on disk at the same time.
        let is_held = whole <= *memory_bytes;
        let whole = if is_held { whole } else { whole.saturating_mul(7) / 4 };
        let whole = if whole > 0 { whole.min(most) } else { most };
        let base = set.or_cautious(*blocks).coins.saturating_mul(BASE_COIN);
        let least = base.saturating_mul(2).saturating_add(BATCH_LEAST).min(whole);
        (whole.min(self.scratch.unwrap_or(SCRATCH_MOST)).max(least), least)
    }

    /// Bytes that temporary files may take: what the user allows, or what the disk has, less the outputs and a spare.
    /// If the disk cannot be asked, the most.
    pub(crate) fn scratch(&self) -> u64 {
        if let Some(scratch) = self.scratch {
            return scratch;
        }
        let set = self.set.or_cautious(self.blocks);
        let disks = Needs { set, ..*self }.disks().unwrap_or_default();
        let is_of = |disk: &&DiskNeeds| disk.parts.iter().any(|part| part.what == PROGRESS);
        let Some(disk) = disks.iter().find(is_of) else { return SCRATCH_MOST };
        let others = disk.parts.iter().filter(|part| part.what != PROGRESS);
        let outputs = others.fold(0_u64, |sum, part| sum.saturating_add(part.asked));
        // An earlier start's files are part of the scratch.
        let free = disk.free.saturating_add(bytes_in(self.workdir)).saturating_sub(outputs);
        (free - (free / 10).min(SPARE_MOST)).min(SCRATCH_MOST)
    }
}

/// Warns, before a sync starts, of disks with less free space than it may need.
pub(crate) fn warn_of_low_space(
    needs: &Needs<'_>,
    tell: &mut dyn FnMut(Warning),
) -> Result<(), Failure> {
    for disk in needs.disks()? {
        let (needed, free) = (disk.asked(), disk.free);
        if free < needed {
            tell(Warning::LittleRoomForRun {
                folder: disk.folder.display().to_string(),
                needed,
                free,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SNAPSHOT;

    #[test]
    fn each_disk_is_listed_once_with_all_its_uses() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        let outputs = [
            SinkArg::File(&SNAPSHOT, path("utxo.dat")),
            SinkArg::Datadir(path("new/er/node")),
            SinkArg::Null,
        ];
        let disk = |method, prune, indexes: &[IndexForm]| {
            let needs = Needs {
                blocks: BlocksSize::of_size(100_000_000_000),
                method,
                set: SetSize { coins: 1_000_000 },
                outputs: &outputs,
                prune,
                indexes,
                workdir: &path("work"),
                scratch: None,
                memory_bytes: 450 << 20,
                threads: 2,
            };
            let disks = needs.disks().unwrap();
            assert_eq!(disks.len(), 1);
            assert_eq!(disks[0].folder, sandbox.path());
            assert!(disks[0].has_progress() && disks[0].free > 0);
            (disks[0].needed(), disks[0].asked())
        };
        let needs = |method, prune| disk(method, prune, &[]).1;
        let set = 1_000_000 * (SNAPSHOT.coin_bytes + CHAINSTATE_COIN);
        let all = set + 115_000_000_000;
        assert_eq!(needs(SyncMethod::Hints, false), all + 1_000_000 * RUN_COIN_MOST);
        let base = 1_000_000 * BASE_COIN;
        assert_eq!(needs(SyncMethod::Joins, false), all + 2 * base + BATCH_LEAST);
        let last = 288 * 4_600_000;
        assert_eq!(needs(SyncMethod::Hints, true), set + 1_000_000 * RUN_COIN_MOST + last);
        let undo = 1008 * 600_000;
        assert_eq!(needs(SyncMethod::InOrder, false), all + 1_000_000 * STORE_COIN_MOST + undo);
        assert_eq!(needs(SyncMethod::InOrderOnServers, false), all);
        let forms = [IndexForm::TxIndex, IndexForm::BlockFilter];
        let room = IndexesDisk::of(&forms, 100_000_000_000);
        assert_eq!(
            disk(SyncMethod::InOrderOnServers, false, &forms),
            (all + room.indexes, all + room.indexes + room.scratch)
        );
    }

    #[test]
    fn blocks_that_an_earlier_start_wrote_need_no_more_room() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("node");
        let outputs = [SinkArg::Datadir(path.clone())];
        let asked = || {
            let needs = Needs {
                blocks: BlocksSize::of_size(4 << 40),
                method: SyncMethod::InOrderOnServers,
                set: SetSize { coins: 1 },
                outputs: &outputs,
                prune: false,
                indexes: &[],
                workdir: &sandbox.path().join("work"),
                scratch: None,
                memory_bytes: 450 << 20,
                threads: 2,
            };
            needs.disks().unwrap()[0].asked()
        };
        let whole = asked();
        std::fs::create_dir(draft_of(&path)).unwrap();
        let file = File::create(draft_of(&path).join("blk00000.dat")).unwrap();
        // A hole takes no room.
        for (written, missing) in [(1 << 40, whole - (1 << 40)), (8 << 40, 0)] {
            file.set_len(written).unwrap();
            assert_eq!(asked(), missing);
        }
    }

    #[test]
    fn hints_give_the_number_of_coins() {
        let fixtures =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315"));
        let of_hints = |hints: &HintsArg| SetSize::of_hints(hints, Network::Regtest);
        let snapshot = HintsArg::Snapshot(fixtures.join("utxo.dat").into());
        assert_eq!(of_hints(&snapshot).unwrap(), SetSize { coins: 20_326 });
        let file = HintsArg::File(fixtures.join("utxo.bip456.hints").into());
        let main = SetSize::of_hints(&file, Network::Main).unwrap();
        assert!(of_hints(&file).unwrap().coins > main.coins);
        assert_eq!(of_hints(&HintsArg::File("nowhere".into())).unwrap_err().code, 3);
        let other = HintsArg::Snapshot(fixtures.join("utxo.bip456.hints").into());
        assert_eq!(of_hints(&other).unwrap_err().code, 4);
    }

    #[test]
    fn coins_that_do_not_fit_in_memory_are_looked_up() {
        let share = |coins, mib: u64| {
            let needs = Needs {
                blocks: BlocksSize::of_size(1),
                method: SyncMethod::InOrder,
                set: SetSize { coins },
                outputs: &[],
                prune: false,
                indexes: &[],
                workdir: Path::new("."),
                scratch: None,
                memory_bytes: mib << 20,
                threads: 2,
            };
            needs.share_looked_up()
        };
        assert_eq!(share(0, 450), 0.0);
        assert_eq!(share(1_000_000, 450), 0.0);
        let most = share(160_000_000, 450);
        assert!((0.95..1.0).contains(&most), "{most}");
        assert!(share(160_000_000, 8_000) < most);
        assert!((0.8..1.0).contains(&share(1_000_000, 16)));
    }

    #[test]
    fn a_disk_that_is_too_small_gets_a_warning() {
        let (mut warnings, needs) = (Vec::new(), |coins| Needs {
            blocks: BlocksSize::of_size(1),
            method: SyncMethod::Hints,
            set: SetSize { coins },
            outputs: &[],
            prune: false,
            indexes: &[],
            workdir: Path::new("."),
            scratch: None,
            memory_bytes: 450 << 20,
            threads: 2,
        });
        warn_of_low_space(&needs(1), &mut |warning| warnings.push(warning)).unwrap();
        assert_eq!(warnings, []);
        warn_of_low_space(&needs(u64::MAX), &mut |warning| warnings.push(warning)).unwrap();
        assert!(matches!(&warnings[..], [Warning::LittleRoomForRun { .. }]), "{warnings:?}");
    }
}
