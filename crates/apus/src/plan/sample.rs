//! [`BlocksSample`]: a sample of blocks from all over a folder, and how fast this machine reads and checks them.
//!
//! The sample finds blocks by the magic before them, wherever a stretch of a file begins. It uses only the time to
//! check them and some totals, and skips bytes that are not a block. In a small folder it reads every block.
//!
//! [`DiskReading`] measures the speed of the disk rather than of the page cache: it drops stretches of the files from
//! the cache and reads them. It counts only stretches that came from a disk according to the system's counters. If none
//! did, such as with files in memory, it has no measurement.

use crate::failure::Failure;
use crate::machine::disk_read_bytes;
use crate::plan::{GAIN, is_main};
use crate::report::bytes;
use apus_chain::{
    BlockChecker, BlockContext, BlockLayout, HEADER_SIZE, HeightRange, Network, Params,
    ScriptVerifier, is_unspendable,
};
use apus_datadir::{BlockFile, BlockFiles};
use apus_sync::{BlockReply, BlockSource, BlocksDir, ChainSource, SyncError};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Blocks at the end whose undo data the engine `utxo` keeps in its store.
const UNDO_BLOCKS: u64 = 1008;

/// Blocks at the end that a pruned data directory keeps.
const LAST_BLOCKS: u64 = apus_sync::LAST_BLOCKS as u64;

/// Upper bound on the size of a block, in bytes.
const LARGEST_BLOCK: u64 = 4_000_000;

/// Bytes of undo data in percent of the blocks' bytes, if nothing better is known.
const UNDO_PERCENT: u64 = 15;

/// Sizes of a chain's blocks, their undo data and their coins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BlocksSize {
    pub(crate) bytes: u64,
    /// Bytes of all undo data.
    pub(crate) undo_bytes: u64,
    /// Coins that the blocks create, and that they spend; 0 if unknown.
    pub(crate) made: u64,
    pub(crate) spent: u64,
    /// Bytes of the last blocks, which a pruned data directory keeps.
    pub(crate) last_bytes: u64,
    /// Bytes of the recent blocks, whose undo data is kept while blocks are connected.
    pub(crate) recent_bytes: u64,
}

impl BlocksSize {
    /// Creates the sizes from the blocks' total size alone.
    pub(crate) fn of_size(bytes: u64) -> Self {
        Self {
            bytes,
            undo_bytes: bytes / 100 * UNDO_PERCENT,
            made: 0,
            spent: 0,
            last_bytes: bytes.min(LAST_BLOCKS * LARGEST_BLOCK),
            recent_bytes: bytes.min(UNDO_BLOCKS * LARGEST_BLOCK),
        }
    }

    /// The sizes of blocks that peers will send: about the main chain's, and unknown for other chains.
    pub(crate) fn of_peers(chain: Network) -> Self {
        const MAIN_BYTES: u64 = 800_000_000_000;
        Self::of_size(if is_main(chain) { MAIN_BYTES } else { 0 })
    }

    /// Bytes of undo data for `bytes` of the blocks.
    pub(super) fn undo_of(self, bytes: u64) -> u64 {
        let undo = u128::from(self.undo_bytes) * u128::from(bytes) / u128::from(self.bytes.max(1));
        undo.try_into().unwrap_or(u64::MAX)
    }
}

/// Number of stretches to sample, unless time runs out.
const STRETCHES: u64 = 24;

/// Bytes of a stretch: enough for one or two whole blocks.
const STRETCH_BYTES: u64 = 8 << 20;

/// Folders up to this size are read completely.
pub(super) const WHOLE_BYTES: u64 = STRETCHES * STRETCH_BYTES;

/// Time limit: sampling starts no stretch after it.
const TIME_MAX: Duration = Duration::from_secs(4);

/// Bytes before each block: magic and size.
const RECORD_HEAD: usize = 8;

/// Cost of a sync on one core and on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunCost {
    /// Cost of all work on a block, in multiples of its check.
    pub(super) work: f64,
    /// The part of the work that runs on a single thread in addition to those of `--par`; 0 without such a thread.
    pub(super) alone: f64,
    /// Time for the scripts of an input, in seconds; 0 if they are not run.
    pub(super) scripts: f64,
    /// The number of passes over the blocks.
    pub(super) passes: f64,
    /// Time for the outputs, in seconds.
    pub(super) written: f64,
}

/// Lower bound on the created coins that stay unspent, in percent. If nearly all are spent, a sample says little about
/// the rest.
const STAY_PERCENT: u64 = 2;

/// Bytes of undo data per coin.
const UNDO_COIN_BYTES: u64 = 36;

/// The estimated time of a sync.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MethodTime {
    pub(super) seconds: f64,
    /// Whether the time is a lower bound, since the speed of the disk is unknown.
    pub(super) is_least: bool,
}

/// A sample of a chain's blocks.
#[derive(Debug, Clone, Default)]
pub(super) struct BlocksSample {
    /// Bytes of the checked blocks.
    bytes: u64,
    inputs: u64,
    check_seconds: f64,
    reading: DiskReading,
    /// Sizes of the blocks at the end of the files, in their order.
    last: Vec<u64>,
    /// Spendable outputs, except the genesis block's, and coins that inputs spend.
    made: u64,
    spent: u64,
    /// Whether the sample has all blocks of a chain.
    whole: bool,
}

/// The rules and buffers for checking blocks.
struct RuleTimes<'a> {
    params: &'a Params,
    verifier: Option<&'a dyn ScriptVerifier>,
    checker: BlockChecker,
    layout: BlockLayout,
}

impl<'a> RuleTimes<'a> {
    fn new(params: &'a Params, verifier: Option<&'a dyn ScriptVerifier>) -> Self {
        Self { params, verifier, checker: BlockChecker::new(), layout: BlockLayout::new() }
    }
}

impl BlocksSample {
    /// Reads and checks every block of a chain.
    pub(super) fn of_all(
        files: &BlockFiles,
        dir: &BlocksDir,
        params: &Params,
        verifier: Option<&dyn ScriptVerifier>,
        interrupt: &AtomicBool,
    ) -> Result<Self, Failure> {
        let mut sample = Self { whole: true, ..Self::default() };
        sample.read_all(files, interrupt)?;
        let mut rules = RuleTimes::new(params, verifier);
        let mut look = |_, raw: &[u8]| {
            sample.check_block(raw, &mut rules);
            sample.last.push(raw.len() as u64);
            if interrupt.load(Ordering::Relaxed) { BlockReply::Stop } else { BlockReply::Yes }
        };
        let all = HeightRange::new(0, dir.chain().tip_height() + 1);
        dir.fetcher(interrupt).fetch(all, &mut look).map_err(SyncError::from)?;
        stop_if(interrupt)?;
        Ok(sample)
    }

    /// Reads all files, to measure the disk's speed.
    fn read_all(&mut self, files: &BlockFiles, interrupt: &AtomicBool) -> Result<(), Failure> {
        let (begun, mut buffer) = (Instant::now(), Vec::new());
        for file in files.files() {
            for offset in (0..file.length).step_by(STRETCH_BYTES as usize) {
                stop_if(interrupt)?;
                if begun.elapsed() > TIME_MAX {
                    return Ok(());
                }
                self.read(files, file, offset, &mut buffer)?;
            }
        }
        Ok(())
    }

    /// Samples blocks for some seconds.
    pub(super) fn take(
        files: &BlockFiles,
        params: &Params,
        verifier: Option<&dyn ScriptVerifier>,
        interrupt: &AtomicBool,
    ) -> Result<Self, Failure> {
        let (begun, total) = (Instant::now(), files.bytes_total());
        let mut sample = Self::default();
        let (mut rules, mut buffer) = (RuleTimes::new(params, verifier), Vec::new());
        let stretches = STRETCHES.min(total.div_ceil(STRETCH_BYTES)).max(1);
        if let Some(file) = files.files().last() {
            let offset = file.length.saturating_sub(STRETCH_BYTES);
            sample.read(files, file, offset, &mut buffer)?;
            sample.note_last(&buffer, params);
        }
        // Start at the end: recent blocks make up most of the work.
        for index in (0..stretches).rev() {
            stop_if(interrupt)?;
            let at = (u128::from(total) * u128::from(index) / u128::from(stretches)) as u64;
            let Some((file, offset)) = place(files, at) else { break };
            sample.read(files, file, offset, &mut buffer)?;
            sample.check(&buffer, &mut rules);
            if begun.elapsed() > TIME_MAX {
                break;
            }
        }
        match sample.bytes {
            0 => Err(Failure::usage(format!(
                "{}: found no block of chain {}: if these are blocks of another chain, name it with --chain",
                files.dir().display(),
                params.network
            ))),
            _ => Ok(sample),
        }
    }

    fn read(
        &mut self,
        files: &BlockFiles,
        file: &BlockFile,
        offset: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let length = STRETCH_BYTES.min(file.length - offset);
        buffer.clear();
        buffer.resize(length as usize, 0);
        self.reading.read(file, offset, buffer)?;
        files.obfuscation().apply(buffer, offset);
        Ok(())
    }

    /// Records the sizes of the last blocks.
    fn note_last(&mut self, mut stretch: &[u8], params: &Params) {
        while let Some(raw) = next_block(&mut stretch, params.network.magic()) {
            self.last.push(raw.len() as u64);
        }
    }

    /// Checks all blocks that lie completely within a stretch.
    fn check(&mut self, stretch: &[u8], rules: &mut RuleTimes<'_>) {
        let mut rest = stretch;
        while let Some(raw) = next_block(&mut rest, rules.params.network.magic()) {
            self.check_block(raw, rules);
        }
    }

    fn check_block(&mut self, raw: &[u8], rules: &mut RuleTimes<'_>) {
        let RuleTimes { params, verifier, checker, layout } = rules;
        let Ok(view) = layout.read(raw) else { return };
        let (hash, inputs) = (view.hash(), view.input_count());
        let can_be_spent = view.txs().flat_map(|tx| tx.outputs());
        let made = can_be_spent.filter(|output| !is_unspendable(output.script())).count();
        let context =
            BlockContext { params, height: 0, hash, median_time_past: 0, verifier: *verifier };
        let begun = Instant::now();
        // Skip an invalid block: a sync will report it.
        if checker.check_anywhere(raw, &context).is_ok() {
            self.check_seconds += begun.elapsed().as_secs_f64();
            self.bytes += raw.len() as u64;
            self.inputs += inputs as u64;
            // A coinbase spends nothing, and the genesis block's creates no coin.
            self.spent += (inputs as u64).saturating_sub(1);
            self.made += if hash == params.genesis_hash { 0 } else { made as u64 };
        }
    }

    /// Whether every block was read, so that the coins are counted exactly.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Estimates the unspent coins of a chain of `block_bytes`: the created ones less the spent ones.
    pub(super) fn coins(&self, block_bytes: u64) -> u64 {
        let stay = self.made.saturating_sub(self.spent);
        match self.whole {
            true => stay,
            false => self.scaled(stay.max(self.made / 100 * STAY_PERCENT), block_bytes),
        }
    }

    /// Scales a count of the sample to a chain of `block_bytes`.
    fn scaled(&self, of_sample: u64, block_bytes: u64) -> u64 {
        let all = u128::from(of_sample) * u128::from(block_bytes) / u128::from(self.bytes.max(1));
        all.try_into().unwrap_or(u64::MAX)
    }

    /// Extrapolates the sizes to a chain of `block_bytes`.
    pub(super) fn blocks(&self, block_bytes: u64) -> BlocksSize {
        BlocksSize {
            bytes: block_bytes,
            undo_bytes: self.scaled(self.spent.saturating_mul(UNDO_COIN_BYTES), block_bytes),
            made: self.scaled(self.made, block_bytes),
            spent: self.scaled(self.spent, block_bytes),
            last_bytes: self.last_bytes(LAST_BLOCKS).min(block_bytes),
            recent_bytes: self.last_bytes(UNDO_BLOCKS).min(block_bytes),
        }
    }

    /// Bytes of the last `count` blocks.
    fn last_bytes(&self, count: u64) -> u64 {
        let seen = self.last.iter().rev().take(count as usize);
        let (known, bytes) = (seen.len() as u64, seen.sum::<u64>());
        match known {
            _ if known == count || self.whole => bytes,
            0 => count * LARGEST_BLOCK,
            _ => bytes / known * count,
        }
    }

    /// Seconds that one core takes to check `block_bytes` of blocks like the sampled ones.
    pub(super) fn check_seconds_of(&self, block_bytes: u64) -> f64 {
        block_bytes as f64 / self.bytes.max(1) as f64 * self.check_seconds
    }

    /// Estimates how long a sync takes on this many threads and cores.
    pub(super) fn time(
        &self,
        block_bytes: u64,
        takes: RunCost,
        threads: usize,
        cores: usize,
    ) -> MethodTime {
        let inputs = block_bytes as f64 / self.bytes as f64 * self.inputs as f64;
        let scripts = inputs * takes.scripts;
        let check = self.check_seconds_of(block_bytes);
        let cpu = check * takes.work + scripts + takes.written;
        let alone = check * takes.alone;
        let threads = if takes.alone > 0.0 { threads.max(cores.min(threads + 1)) } else { threads };
        let side_by_side = 1.0 + GAIN * (threads as f64 - 1.0);
        let rate = self.reading.bytes_per_second();
        let read = rate.map_or(0.0, |rate| block_bytes as f64 / rate * takes.passes);
        let seconds = (cpu / side_by_side).max(alone).max(read);
        MethodTime { seconds, is_least: rate.is_none() }
    }

    /// Describes the machine's speed in words.
    pub(super) fn words(&self, threads: usize) -> String {
        let check = bytes((self.bytes as f64 / self.check_seconds.max(1e-9)) as u64);
        let disk = match self.reading.bytes_per_second() {
            Some(rate) => format!("the disk reads {}/s", bytes(rate as u64)),
            None => "disk speed unknown".to_owned(),
        };
        let threads =
            if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        format!("{threads}; a thread checks {check}/s of these blocks; {disk}")
    }
}

fn stop_if(interrupt: &AtomicBool) -> Result<(), Failure> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted()),
        false => Ok(()),
    }
}

/// Converts an offset in the concatenated files to a file and an offset in it.
fn place(files: &BlockFiles, mut at: u64) -> Option<(&BlockFile, u64)> {
    for file in files.files() {
        if at < file.length {
            // The rest of the file may be too short for a block: take its last stretch instead.
            return Some((file, at.min(file.length.saturating_sub(STRETCH_BYTES))));
        }
        at -= file.length;
    }
    None
}

/// Finds the next complete block, by the magic and the size before it.
fn next_block<'a>(rest: &mut &'a [u8], magic: [u8; 4]) -> Option<&'a [u8]> {
    loop {
        let at = rest.windows(magic.len()).position(|window| window == magic)?;
        let record = &rest[at..];
        let head = record.get(..RECORD_HEAD)?;
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        match record.get(RECORD_HEAD..RECORD_HEAD.saturating_add(size)) {
            Some(block) if size > HEADER_SIZE => {
                *rest = &record[RECORD_HEAD + size..];
                return Some(block);
            }
            // The record is incomplete, or the magic was other data.
            _ => *rest = &record[magic.len()..],
        }
    }
}

/// A stretch counts as read from a disk if at least this percentage of it was.
const FROM_DISK_PERCENT: u64 = 90;

/// Bytes read from the disk, and the time to read them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskReading {
    bytes: u64,
    seconds: f64,
}

impl DiskReading {
    /// Reads a stretch of a file into `buffer`, to its full length.
    pub(super) fn read(
        &mut self,
        file: &BlockFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let failed = |error| Failure::io(&file.path, error);
        let open = File::open(&file.path).map_err(failed)?;
        // If the system keeps the stretch cached nevertheless, its counter below shows that.
        let _ = fadvise(&open, offset, NonZeroU64::new(buffer.len() as u64), Advice::DontNeed);
        let (before, begun) = (disk_read_bytes(), Instant::now());
        open.read_exact_at(buffer, offset).map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        let from_disk = disk_read_bytes().zip(before).map_or(0, |(after, before)| after - before);
        self.count(buffer.len() as u64, from_disk, seconds);
        Ok(())
    }

    fn count(&mut self, bytes: u64, from_disk: u64, seconds: f64) {
        if from_disk >= bytes / 100 * FROM_DISK_PERCENT && seconds > 0.0 {
            self.bytes += bytes;
            self.seconds += seconds;
        }
    }

    /// Creates a reading of `bytes` that took `seconds`.
    #[cfg(test)]
    pub(super) fn of(bytes: u64, seconds: f64) -> Self {
        Self { bytes, seconds }
    }

    /// Bytes per second; `None` if nothing came from a disk.
    pub(super) fn bytes_per_second(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.bytes as f64 / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Network;
    use apus_sync::{SilentObserver, UseIndex};
    use std::path::Path;

    fn fixture() -> BlockFiles {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/main-4521/blocks");
        BlockFiles::open(Path::new(dir), Network::Main.magic()).unwrap()
    }

    #[test]
    fn all_blocks_of_a_small_folder_are_counted() {
        let never = AtomicBool::new(false);
        let files = fixture();
        let sample = BlocksSample::take(&files, Params::of(Network::Main), None, &never).unwrap();
        // All blocks fit into the first stretch.
        assert_eq!(sample.bytes + 8 * 4522, files.bytes_total());
        assert!(sample.inputs > 0 && !sample.is_whole(), "{sample:?}");
        assert_eq!(sample.coins(sample.bytes), 4_348);
        assert_eq!(sample.coins(3 * sample.bytes), 3 * 4_348);
        let blocks = sample.blocks(sample.bytes);
        assert_eq!((blocks.made - blocks.spent, blocks.bytes), (4_348, sample.bytes));
        assert_eq!(sample.last.len(), 4522);
        assert!(blocks.last_bytes < blocks.recent_bytes && blocks.recent_bytes < blocks.bytes);
        let other =
            BlocksSample::take(&files, Params::of(Network::Signet), None, &never).unwrap_err();
        assert!(other.message.contains("--chain"), "{}", other.message);
    }

    #[test]
    fn coins_of_a_whole_chain_are_counted() {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"));
        for (chain, blocks, coins) in [
            (Network::Main, "main-4521/blocks", 4_348),
            (Network::Regtest, "regtest-315/regtest/blocks", 20_326),
        ] {
            let (params, never) = (Params::of(chain), AtomicBool::new(false));
            let blocks = fixtures.join(blocks);
            let files = BlockFiles::open(&blocks, chain.magic()).unwrap();
            let dir = BlocksDir::open(
                &blocks,
                params,
                4_000_000_000,
                UseIndex::IfPresent,
                &SilentObserver,
                &never,
            );
            let sample = BlocksSample::of_all(&files, &dir.unwrap(), params, None, &never).unwrap();
            assert_eq!(sample.coins(0), coins);
        }
    }

    #[test]
    fn time_is_the_greater_of_work_and_reading() {
        let sample = BlocksSample {
            bytes: 1_000,
            inputs: 10,
            check_seconds: 1.0,
            reading: DiskReading::of(1_000, 0.5),
            ..BlocksSample::default()
        };
        let seconds =
            |bytes, takes, threads, cores| sample.time(bytes, takes, threads, cores).seconds;
        let about = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let takes =
            |scripts, passes| RunCost { work: 2.0, alone: 0.0, scripts, passes, written: 0.0 };
        about(seconds(10_000, takes(0.0, 1.0), 1, 8), 20.0);
        about(seconds(10_000, takes(0.25, 1.0), 1, 8), 20.0 + 100.0 * 0.25);
        about(seconds(10_000, takes(0.0, 1.0), 2, 8), 20.0 / (1.0 + GAIN));
        about(seconds(10_000, takes(0.0, 2.0), 1_000, 8), 10.0);
        // If nothing came from a disk, the time is a lower bound.
        let unknown = BlocksSample { reading: DiskReading::default(), ..sample.clone() };
        let time = unknown.time(10_000, takes(0.0, 2.0), 1_000, 8);
        assert!(time.is_least && time.seconds < 0.1, "{time:?}");
        assert!(!sample.time(10_000, takes(0.0, 2.0), 1_000, 8).is_least);
        let written = RunCost { written: 5.0, ..takes(0.0, 1.0) };
        about(seconds(10_000, written, 1, 8), 25.0);
        about(sample.check_seconds_of(10_000), 10.0);
        // The single thread's part takes its time, regardless of the number of threads.
        let in_order = RunCost { alone: 1.5, ..takes(0.0, 1.0) };
        about(seconds(10_000, in_order, 1, 1), 20.0);
        about(seconds(10_000, in_order, 1_000, 1_000), 15.0);
        // With a spare core, it runs in parallel with the others.
        let little = RunCost { alone: 0.1, ..in_order };
        about(seconds(10_000, little, 1, 8), 20.0 / (1.0 + GAIN));
        about(seconds(10_000, little, 2, 2), 20.0 / (1.0 + GAIN));
    }

    #[test]
    fn records_are_found_among_other_bytes() {
        let magic = [1, 2, 3, 4];
        let record =
            |size: u32, body: usize| [&magic[..], &size.to_le_bytes(), &vec![9; body]].concat();
        let stretch = [&[7; 11][..], &record(100, 100), &record(u32::MAX, 0), &record(90, 90)];
        let bytes = [&stretch.concat()[..], &record(100, 99)].concat();
        let mut rest = &bytes[..];
        let sizes: Vec<usize> =
            std::iter::from_fn(|| next_block(&mut rest, magic)).map(<[u8]>::len).collect();
        assert_eq!(sizes, [100, 90]);
    }

    #[test]
    fn only_reads_from_a_disk_count() {
        let mut reading = DiskReading::default();
        assert_eq!(reading.bytes_per_second(), None);
        // The page cache reads at a rate that no disk reaches.
        reading.count(8_000_000, 0, 0.001);
        reading.count(8_000_000, 4_000_000, 0.02);
        assert_eq!(reading.bytes_per_second(), None);
        reading.count(8_000_000, 8_000_000, 0.08);
        reading.count(8_000_000, 7_500_000, 0.08);
        assert_eq!(reading.bytes_per_second(), Some(1e8));
    }

    #[test]
    fn reads_return_the_content_of_the_file() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("blk00000.dat");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = BlockFile { number: 0, length: 5000, path };
        let mut buffer = [0; 3000];
        DiskReading::default().read(&file, 2000, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 3000]);
        assert_eq!(DiskReading::default().read(&file, 2001, &mut buffer).unwrap_err().code, 3);
    }
}
