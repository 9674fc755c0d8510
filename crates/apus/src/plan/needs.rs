//! [`Needs`]: how much disk a run takes, and where; and whether that is free.

use super::is_main;
use super::sample::{BlocksSample, BlocksSize};
use crate::args::{HintsArg, PlanWay, SinkArg};
use crate::failure::Failure;
use crate::files::nearest;
use crate::report::bytes;
use apus_chain::Network;
use apus_datadir::free_bytes;
use apus_datadir::snapshot::SnapshotHeader;
use apus_sync::engines::swiftsync::hints::{HintsFile, HintsOptions};
use apus_sync::{MemoryParts, Warning, mergesync_disk_bytes};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a coin in a chainstate: its key and value, the table around them, and the filter.
const CHAINSTATE_COIN: u64 = 65;
/// In the runs of a work folder; and at most, with its place, in the runs of segments, and in the
/// longer ones that these are merged into where memory is little.
const RUN_COIN: u64 = 35;
const RUN_COIN_MOST: u64 = 120;

/// Of a coin that is made or spent, in what is joined.
const JOINED_COIN: u64 = 28;

/// In the store of the engine `utxo`; and at most, while its tables are merged into others and both are there.
const STORE_COIN: u64 = 75;
const STORE_COIN_MOST: u64 = 200;
/// On servers of either kind: PostgreSQL takes so much of a disk, a Redis Cluster half of it of its memory.
const SERVERS_COIN: u64 = 200;
/// In the memory of the engine `utxo`.
const CACHE_COIN: u64 = 120;

/// Bits of a hintsfile for each coin: on the main chain (BIP-456), and on any that tests make, where most blocks keep
/// more of theirs.
const HINTS_BITS_MAIN: f64 = 5.8;
const HINTS_BITS: f64 = 3.5;

/// How large the set is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SetSize {
    pub(crate) coins: u64,
}

impl SetSize {
    /// As the hints say, or all blocks where they were looked at, or a chainstate that is there, or what is usual of so
    /// many blocks.
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
        // One that is broken may be small, and one that was just written to may have much twice.
        let is_credible = !sample.is_whole() && (coins / 2..=2 * coins).contains(&there);
        Ok(Self { coins: if is_credible { there } else { coins } })
    }

    /// As a chainstate of so many bytes has it.
    pub(crate) fn of_chainstate(bytes: u64) -> Self {
        Self { coins: bytes / CHAINSTATE_COIN }
    }

    /// As a hintsfile says that is gone through; none where it is none, or cannot be read.
    fn counted(hints: &HintsArg) -> Option<Self> {
        let HintsArg::File(input) = hints else { return None };
        let file = HintsFile::open_path(input.path(), &HintsOptions::default()).ok()?;
        Some(Self { coins: file.info().coins })
    }

    /// As the hints say, where they say it, or their size.
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
                // What it claims may be wrong; no coin has less than three bytes.
                header.coins.min(length / 3)
            }
        };
        Ok(Self { coins })
    }

    /// Bytes as a chainstate.
    pub(crate) fn chainstate(self) -> u64 {
        self.coins.saturating_mul(CHAINSTATE_COIN)
    }

    /// Bytes on servers.
    pub(crate) fn on_servers(self) -> u64 {
        self.coins.saturating_mul(SERVERS_COIN)
    }
}

/// What a run takes disk for.
pub(crate) struct Needs<'a> {
    pub(crate) blocks: BlocksSize,
    pub(crate) way: PlanWay,
    pub(crate) set: SetSize,
    pub(crate) outputs: &'a [SinkArg],
    pub(crate) prune: bool,
    pub(crate) workdir: &'a Path,
    /// `--dbcache`, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
}

/// A disk that a run writes to.
#[derive(Debug)]
pub(crate) struct DiskNeeds {
    /// A folder on it.
    pub(crate) folder: PathBuf,
    pub(crate) parts: Vec<DiskPart>,
    /// Bytes that are free.
    pub(crate) free: u64,
}

/// What is written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskPart {
    pub(crate) what: &'static str,
    /// About how many bytes it takes.
    pub(crate) bytes: u64,
    /// How many have to be free: a run does not begin with less, or is not sure to end.
    asked: u64,
}

const PROGRESS: &str = "progress, which goes again";

impl DiskNeeds {
    pub(crate) fn needed(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// How much has to be free.
    pub(crate) fn asked(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.asked))
    }

    fn has_progress(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().any(|part| part.what == PROGRESS)
    }

    /// What it has too little of, and what would do; none where it has enough.
    pub(super) fn lacking(&self) -> Option<String> {
        (self.free < self.asked()).then(|| {
            let (at, free, asked) = (self.folder.display(), bytes(self.free), bytes(self.asked()));
            let elsewhere = match self.has_progress() {
                true => ", and progress can be on another disk, by --workdir",
                false => "",
            };
            format!("disk at {at}, {free} free where {asked} would do{elsewhere}")
        })
    }
}

impl Needs<'_> {
    /// Of the coins that the engine `utxo` spends, the share that it looks up in its store: as much as it has no
    /// memory for. Coins are spent soon, so it is less where a chain is long.
    pub(super) fn share_looked_up(&self) -> f64 {
        let memory = MemoryParts::with_files(self.memory_bytes, self.threads).coins_bytes;
        let whole = self.set.coins.max(1).saturating_mul(CACHE_COIN);
        1.0 - (memory as f64 / whole as f64).min(1.0)
    }

    /// Each disk once, with what comes onto it.
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

    /// What is written where. Sizes are those that runs were seen to take; a run that may take more asks for more.
    fn parts(&self) -> Vec<(&Path, DiskPart)> {
        let part = |what, bytes| DiskPart { what, bytes, asked: bytes };
        let mut parts = vec![(self.workdir, self.progress())];
        let set = self.set;
        parts.extend(self.outputs.iter().filter_map(|sink| {
            Some(match sink {
                SinkArg::File(form, path) => {
                    (&**path, part(form.planned, set.coins.saturating_mul(form.coin_bytes)))
                }
                SinkArg::Chainstate(path) => (&**path, part("the chainstate", set.chainstate())),
                SinkArg::Datadir(path) => {
                    let kept = if self.prune { self.blocks.last_bytes } else { self.blocks.bytes };
                    let blocks = kept.saturating_add(self.blocks.undo_of(kept));
                    (&**path, part("the data directory", blocks.saturating_add(set.chainstate())))
                }
                SinkArg::Utreexo(_) | SinkArg::Null => return None,
            })
        }));
        parts
    }

    /// What lies in the work folder.
    fn progress(&self) -> DiskPart {
        let Self { set, blocks, memory_bytes, threads, .. } = self;
        let (bytes, asked) = match self.way {
            PlanWay::Hints => {
                let most = set.coins.saturating_mul(RUN_COIN_MOST);
                (set.coins.saturating_mul(RUN_COIN), most)
            }
            PlanWay::Joins => {
                let most = mergesync_disk_bytes(blocks.bytes, *memory_bytes, *threads);
                let bytes = blocks.made.saturating_add(blocks.spent).saturating_mul(JOINED_COIN);
                // Where memory does not hold them, what is joined lies beside what comes of it.
                let is_held = bytes <= *memory_bytes;
                let bytes = if is_held { bytes } else { bytes.saturating_mul(7) / 4 };
                (if bytes > 0 { bytes.min(most) } else { most }, most)
            }
            PlanWay::InOrder => {
                let undo = blocks.undo_of(blocks.recent_bytes);
                let of = |coin| set.coins.saturating_mul(coin).saturating_add(undo);
                // Tables are merged where memory is too little for the set.
                let merged = (2.0 * self.share_looked_up()).min(1.0);
                (of(STORE_COIN + (STORE_COIN as f64 * merged) as u64), of(STORE_COIN_MOST))
            }
            PlanWay::InOrderOnServers => (0, 0),
        };
        DiskPart { what: PROGRESS, bytes, asked }
    }
}

/// The disks that have less free than a run may take, to be told before it begins.
pub(crate) fn tell_little_room(
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
    fn each_disk_is_told_once_with_all_that_comes_onto_it() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        let outputs = [
            SinkArg::File(&SNAPSHOT, path("utxo.dat")),
            SinkArg::Datadir(path("new/er/node")),
            SinkArg::Null,
        ];
        let needs = |way, prune| {
            let needs = Needs {
                blocks: BlocksSize::of_size(100_000_000_000),
                way,
                set: SetSize { coins: 1_000_000 },
                outputs: &outputs,
                prune,
                workdir: &path("work"),
                memory_bytes: 450 << 20,
                threads: 2,
            };
            let disks = needs.disks().unwrap();
            assert_eq!(disks.len(), 1);
            assert_eq!(disks[0].folder, desk.path());
            assert!(disks[0].has_progress() && disks[0].free > 0);
            disks[0].asked()
        };
        let set = 1_000_000 * (SNAPSHOT.coin_bytes + CHAINSTATE_COIN);
        let all = set + 115_000_000_000;
        assert_eq!(needs(PlanWay::Hints, false), all + 1_000_000 * RUN_COIN_MOST);
        assert_eq!(needs(PlanWay::Joins, false), all + 90_000_000_000);
        let last = 288 * 4_600_000;
        assert_eq!(needs(PlanWay::Hints, true), set + 1_000_000 * RUN_COIN_MOST + last);
        let undo = 1008 * 600_000;
        assert_eq!(needs(PlanWay::InOrder, false), all + 1_000_000 * STORE_COIN_MOST + undo);
        assert_eq!(needs(PlanWay::InOrderOnServers, false), all);
    }

    #[test]
    fn hints_say_how_many_coins_there_are() {
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
    fn coins_that_memory_has_no_place_for_are_looked_up() {
        let share = |coins, mib: u64| {
            let needs = Needs {
                blocks: BlocksSize::of_size(1),
                way: PlanWay::InOrder,
                set: SetSize { coins },
                outputs: &[],
                prune: false,
                workdir: Path::new("."),
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
    fn what_is_too_little_is_told() {
        let (mut told, needs) = (Vec::new(), |coins| Needs {
            blocks: BlocksSize::of_size(1),
            way: PlanWay::Hints,
            set: SetSize { coins },
            outputs: &[],
            prune: false,
            workdir: Path::new("."),
            memory_bytes: 450 << 20,
            threads: 2,
        });
        tell_little_room(&needs(1), &mut |warning| told.push(warning)).unwrap();
        assert_eq!(told, []);
        tell_little_room(&needs(u64::MAX), &mut |warning| told.push(warning)).unwrap();
        assert!(matches!(&told[..], [Warning::LittleRoomForRun { .. }]), "{told:?}");
    }
}
