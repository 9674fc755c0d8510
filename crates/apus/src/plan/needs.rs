//! [`Needs`]: how much disk a run takes, and where; and whether that is free.

use super::is_main;
use super::sample::Sample;
use crate::args::{HintsArg, SinkArg};
use crate::failure::Failure;
use apus_chain::Network;
use apus_datadir::free_bytes;
use apus_datadir::snapshot::SnapshotHeader;
use apus_engine::swiftsync::hints::{HintsFile, HintsOptions};
use apus_sync::{Memory, Warning, mergesync_disk_bytes};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a coin in a chainstate: its key and value, the table around them, and the filter.
const CHAINSTATE_COIN: u64 = 75;
/// In a snapshot, with a txid for each transaction: so many on a chain of the first years, whose scripts have keys.
const SNAPSHOT_COIN: u64 = 70;
/// In the runs of a work folder, with its place: in the runs of segments, and in the longer ones that these are merged
/// into where memory is little.
const RUN_COIN: u64 = 120;

/// In the store of the engine `utxo`, while its tables are merged into others and both are there.
const STORE_COIN: u64 = 200;
/// On servers of either kind: PostgreSQL takes so much of a disk, a Redis Cluster half of it of its memory.
const SERVERS_COIN: u64 = 200;
/// In the memory of the engine `utxo`.
const CACHE_COIN: u64 = 120;

/// The most recent blocks whose undo data the engine `utxo` keeps in its store: 1,008 of 4 MB at most.
const UNDO_BLOCKS_BYTES: u64 = 1008 * 4_000_000;

/// Bits of a hintsfile for each coin: on the main chain (BIP-456), and on any that tests make, where most blocks keep
/// more of theirs.
const HINTS_BITS_MAIN: f64 = 5.8;
const HINTS_BITS: f64 = 3.5;

/// Of a hundred outputs so many are coins at most: on the main chain, and on any that tests make.
const COINS_PERCENT_MAIN: u64 = 6;
const COINS_PERCENT: u64 = 40;

/// Undo data, in percent of the blocks.
const UNDO_PERCENT: u64 = 15;

/// The last blocks of a pruned data directory, with their undo data: 288 of 4 MB at most.
const LAST_BLOCKS_BYTES: u64 = 288 * 4_600_000;

/// How large the set is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) coins: u64,
}

impl Set {
    /// As the hints say, or all blocks where they were looked at, or a chainstate that is there, or what is usual of so
    /// many blocks.
    pub(super) fn of(
        hints: Option<&HintsArg>,
        chainstate_bytes: Option<u64>,
        block_bytes: u64,
        chain: Network,
        sample: &Sample,
    ) -> Result<Self, Failure> {
        if let Some(hints) = hints {
            return Self::counted(hints).map_or_else(|| Self::of_hints(hints, chain), Ok);
        }
        if let Some(coins) = sample.coins() {
            return Ok(Self { coins });
        }
        let there = Self::of_chainstate(chainstate_bytes.unwrap_or_default()).coins;
        let percent = if is_main(chain) { COINS_PERCENT_MAIN } else { COINS_PERCENT };
        let usual = sample.outputs(block_bytes) / 100 * percent;
        // One that is broken may be small.
        Ok(Self { coins: if there > usual / 2 { there } else { usual } })
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

/// How a run computes the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By hints, in any order. The surviving coins are on disk until they are merged.
    Hints,
    /// Without hints, in any order. What blocks make and spend is on disk until it is joined.
    Joins,
    /// In order, by the engine `utxo`. The set is on disk, and as much of it in memory as fits.
    InOrder,
    /// The same with the set on servers.
    InOrderOnServers,
}

/// What a run takes disk for.
pub(crate) struct Needs<'a> {
    pub(crate) block_bytes: u64,
    pub(crate) way: Way,
    pub(crate) set: Set,
    pub(crate) outputs: &'a [SinkArg],
    pub(crate) prune: bool,
    pub(crate) workdir: &'a Path,
    /// `--dbcache`, in bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
}

/// A disk that a run writes to.
#[derive(Debug)]
pub(crate) struct Disk {
    /// A folder on it.
    pub(crate) folder: PathBuf,
    /// What for, and bytes at most.
    pub(crate) parts: Vec<(&'static str, u64)>,
    /// Bytes that are free.
    pub(crate) free: u64,
}

const PROGRESS: &str = "progress, which goes again";

impl Disk {
    pub(crate) fn needed(&self) -> u64 {
        self.parts.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    pub(crate) fn has_progress(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().any(|(what, _)| *what == PROGRESS)
    }
}

impl Needs<'_> {
    /// Of the coins that the engine `utxo` spends, the share that it looks up in its store: as much as it has no
    /// memory for. Coins are spent soon, so it is less where a chain is long.
    pub(super) fn share_looked_up(&self) -> f64 {
        let memory = Memory::with_files(self.memory_bytes, self.threads).coins_bytes;
        let whole = self.set.coins.max(1).saturating_mul(CACHE_COIN);
        1.0 - (memory as f64 / whole as f64).min(1.0)
    }

    /// Each disk once, with what comes onto it.
    pub(crate) fn disks(&self) -> Result<Vec<Disk>, Failure> {
        let mut disks: Vec<(u64, Disk)> = Vec::new();
        for (path, what, bytes) in self.parts() {
            let folder = there(path);
            let failed = |error| Failure::io(&folder, error);
            let device = folder.metadata().map_err(failed)?.dev();
            match disks.iter_mut().find(|(known, _)| *known == device) {
                Some((_, disk)) => disk.parts.push((what, bytes)),
                None => {
                    let free = free_bytes(&folder).map_err(failed)?;
                    let parts = vec![(what, bytes)];
                    disks.push((device, Disk { folder, parts, free }));
                }
            }
        }
        Ok(disks.into_iter().map(|(_, disk)| disk).collect())
    }

    fn parts(&self) -> Vec<(&Path, &'static str, u64)> {
        let Self { set, block_bytes, .. } = self;
        let progress = match self.way {
            Way::Hints => set.coins.saturating_mul(RUN_COIN),
            Way::Joins => mergesync_disk_bytes(*block_bytes, self.memory_bytes, self.threads),
            Way::InOrder => {
                let undo = UNDO_BLOCKS_BYTES.min(*block_bytes) / 100 * UNDO_PERCENT;
                set.coins.saturating_mul(STORE_COIN).saturating_add(undo)
            }
            Way::InOrderOnServers => 0,
        };
        let mut parts = vec![(self.workdir, PROGRESS, progress)];
        parts.extend(self.outputs.iter().filter_map(|sink| {
            Some(match sink {
                SinkArg::Snapshot(path) => {
                    (&**path, "the snapshot", set.coins.saturating_mul(SNAPSHOT_COIN))
                }
                SinkArg::Hints(path) => (&**path, "hints", set.coins),
                SinkArg::Chainstate(path) => (&**path, "the chainstate", set.chainstate()),
                SinkArg::Datadir(path) => {
                    let blocks = match self.prune {
                        true => LAST_BLOCKS_BYTES.min(*block_bytes),
                        false => block_bytes / 100 * (100 + UNDO_PERCENT),
                    };
                    (&**path, "the data directory", blocks.saturating_add(set.chainstate()))
                }
                SinkArg::Utreexo(_) | SinkArg::Null => return None,
            })
        }));
        parts
    }
}

/// The nearest folder around a path that is there.
fn there(path: &Path) -> PathBuf {
    let around = path.ancestors().find(|folder| folder.is_dir());
    match around {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The disks that have less free than a run may take, to be told before it begins.
pub(crate) fn tell_little_room(
    needs: &Needs<'_>,
    tell: &mut dyn FnMut(Warning),
) -> Result<(), Failure> {
    for disk in needs.disks()? {
        let (needed, free) = (disk.needed(), disk.free);
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

    #[test]
    fn each_disk_is_told_once_with_all_that_comes_onto_it() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        let outputs = [
            SinkArg::Snapshot(path("utxo.dat")),
            SinkArg::Datadir(path("new/er/node")),
            SinkArg::Null,
        ];
        let needs = |way, prune| {
            let needs = Needs {
                block_bytes: 100_000_000_000,
                way,
                set: Set { coins: 1_000_000 },
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
            disks[0].needed()
        };
        let set = 1_000_000 * (SNAPSHOT_COIN + CHAINSTATE_COIN);
        let all = set + 115_000_000_000;
        assert_eq!(needs(Way::Hints, false), all + 1_000_000 * RUN_COIN);
        assert_eq!(needs(Way::Joins, false), all + 90_000_000_000);
        assert_eq!(needs(Way::Hints, true), set + 1_000_000 * RUN_COIN + LAST_BLOCKS_BYTES);
        let undo = UNDO_BLOCKS_BYTES / 100 * UNDO_PERCENT;
        assert_eq!(needs(Way::InOrder, false), all + 1_000_000 * STORE_COIN + undo);
        assert_eq!(needs(Way::InOrderOnServers, false), all);
    }

    #[test]
    fn hints_say_how_many_coins_there_are() {
        let fixtures =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315"));
        let of_hints = |hints: &HintsArg| Set::of_hints(hints, Network::Regtest);
        let snapshot = HintsArg::Snapshot(fixtures.join("utxo.dat").into());
        assert_eq!(of_hints(&snapshot).unwrap(), Set { coins: 20_326 });
        let file = HintsArg::File(fixtures.join("utxo.bip456.hints").into());
        let main = Set::of_hints(&file, Network::Main).unwrap();
        assert!(of_hints(&file).unwrap().coins > main.coins);
        assert_eq!(of_hints(&HintsArg::File("nowhere".into())).unwrap_err().code, 3);
        let other = HintsArg::Snapshot(fixtures.join("utxo.bip456.hints").into());
        assert_eq!(of_hints(&other).unwrap_err().code, 4);
    }

    #[test]
    fn coins_that_memory_has_no_place_for_are_looked_up() {
        let share = |coins, mib: u64| {
            let needs = Needs {
                block_bytes: 1,
                way: Way::InOrder,
                set: Set { coins },
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
            block_bytes: 1,
            way: Way::Hints,
            set: Set { coins },
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
