//! [`BlocksSample`]: some blocks from all over a folder, and how fast this machine reads and checks them.
//!
//! Blocks are found by the magic before them, wherever a stretch of a file begins. Nothing is believed of
//! them but how long they take: what is no block is passed over. Of a small folder every block is looked at.
//!
//! [`DiskReading`] is how fast the disk gives block files, and not the system what it has of them in memory: some stretches
//! of the files are dropped from the system's memory and read. Only those count of which the system says that they came from
//! a disk. Where it never says so, as of files that lie in memory, nothing was measured.

use crate::failure::Failure;
use crate::machine::disk_read_bytes;
use crate::plan::{GAIN, SCRIPTS_SECONDS};
use crate::report::bytes;
use apus_chain::{
    BlockChecker, BlockContext, BlockLayout, HEADER_SIZE, HeightRange, Params, ScriptVerifier,
    is_unspendable,
};
use apus_datadir::{BlockFile, BlockFiles};
use apus_sync::{BlockSource, BlocksDir, ChainSource, SyncError, Taken};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Blocks at the end of which the engine `utxo` keeps undo data in its store.
const UNDO_BLOCKS: u64 = 1008;

/// Blocks at the end that a pruned data directory keeps.
const LAST_BLOCKS: u64 = apus_sync::LAST_BLOCKS as u64;

/// No block is larger.
const LARGEST_BLOCK: u64 = 4_000_000;

/// Undo data, in percent of the blocks, where nothing is known of these.
const UNDO_PERCENT: u64 = 15;

/// What is known of a chain's blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BlocksSize {
    pub(crate) bytes: u64,
    /// Bytes of the undo data of all.
    pub(crate) undo_bytes: u64,
    /// Coins that they make, and that they spend; none where that is not known.
    pub(crate) made: u64,
    pub(crate) spent: u64,
    /// Bytes of the last ones, that a pruned data directory keeps.
    pub(crate) last_bytes: u64,
    /// Bytes of the recent ones, whose undo data is kept while blocks are connected.
    pub(crate) recent_bytes: u64,
}

impl BlocksSize {
    /// Of which only the size is known.
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

    /// The undo data of some of them.
    pub(super) fn undo_of(self, bytes: u64) -> u64 {
        let undo = u128::from(self.undo_bytes) * u128::from(bytes) / u128::from(self.bytes.max(1));
        undo.try_into().unwrap_or(u64::MAX)
    }
}

/// Stretches that are looked at, unless time is up before.
const STRETCHES: u64 = 24;

/// Bytes of a stretch: any has a whole block, or two.
const STRETCH_BYTES: u64 = 8 << 20;

/// Folders of no more bytes are looked at whole.
pub(super) const WHOLE_BYTES: u64 = STRETCHES * STRETCH_BYTES;

/// When no further stretch is begun.
const TIME_MAX: Duration = Duration::from_secs(4);

/// Before each block: magic and size.
const RECORD_HEAD: usize = 8;

/// What a run takes of one core and of the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Takes {
    /// All work on a block, in times what its check takes.
    pub(super) work: f64,
    /// The part of it that one thread does, which is there beside those that `--par` counts; 0 where there is none.
    pub(super) alone: f64,
    /// Whether every script is run.
    pub(super) scripts: bool,
    /// How often it goes over the blocks.
    pub(super) passes: f64,
    /// What its outputs take, in seconds.
    pub(super) written: f64,
}

/// Of coins that blocks make, at least so many stay, in percent. What a sample has of them says little where nearly all
/// are spent.
const STAY_PERCENT: u64 = 2;

/// Undo data of a coin.
const UNDO_COIN_BYTES: u64 = 36;

/// How long a run takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WayTime {
    pub(super) seconds: f64,
    /// Whether it may well be more, since nothing says how fast the disk is.
    pub(super) is_least: bool,
}

/// What was seen of a chain.
#[derive(Debug, Clone, Default)]
pub(super) struct BlocksSample {
    /// Bytes of the blocks that were checked.
    bytes: u64,
    inputs: u64,
    check_seconds: f64,
    reading: DiskReading,
    /// Sizes of blocks at the end of the files, in their order.
    last: Vec<u64>,
    /// Outputs that can be spent, but for that of the genesis block, and the coins that inputs spend.
    made: u64,
    spent: u64,
    /// Whether these are all blocks of a chain.
    whole: bool,
}

/// What blocks are checked by, and with.
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
    /// Looks at every block of a chain.
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
            if interrupt.load(Ordering::Relaxed) { Taken::Stop } else { Taken::Yes }
        };
        let all = HeightRange::new(0, dir.chain().tip_height() + 1);
        dir.fetcher(interrupt).fetch(all, &mut look).map_err(SyncError::from)?;
        stop_if(interrupt)?;
        Ok(sample)
    }

    /// Reads all files, to know how fast that is.
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

    /// Looks at blocks for some seconds.
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
        // The last ones first: blocks of today are most of what there is to do.
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
                "no block of the chain {} was found in {}: is it another chain's (--chain)?",
                params.network,
                files.dir().display()
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

    /// Notes how large the blocks are that come last.
    fn note_last(&mut self, mut stretch: &[u8], params: &Params) {
        while let Some(raw) = next_block(&mut stretch, params.network.magic()) {
            self.last.push(raw.len() as u64);
        }
    }

    /// Checks the blocks of a stretch that it has whole.
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
        // Whatever is wrong with a block, a run will tell.
        if checker.check_anywhere(raw, &context).is_ok() {
            self.check_seconds += begun.elapsed().as_secs_f64();
            self.bytes += raw.len() as u64;
            self.inputs += inputs as u64;
            // A coinbase spends nothing, and that of the genesis block makes nothing.
            self.spent += (inputs as u64).saturating_sub(1);
            self.made += if hash == params.genesis_hash { 0 } else { made as u64 };
        }
    }

    /// Whether every block was looked at, so that coins are counted.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// How many coins a chain of so many bytes leaves: those that its blocks make, less those that they spend.
    pub(super) fn coins(&self, block_bytes: u64) -> u64 {
        let stay = self.made.saturating_sub(self.spent);
        match self.whole {
            true => stay,
            false => self.scaled(stay.max(self.made / 100 * STAY_PERCENT), block_bytes),
        }
    }

    /// What a chain of so many bytes has, where the blocks that were looked at have so much.
    fn scaled(&self, of_sample: u64, block_bytes: u64) -> u64 {
        let all = u128::from(of_sample) * u128::from(block_bytes) / u128::from(self.bytes.max(1));
        all.try_into().unwrap_or(u64::MAX)
    }

    /// What is known of the blocks of a chain of so many bytes.
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

    /// Bytes of the last so many blocks.
    fn last_bytes(&self, count: u64) -> u64 {
        let seen = self.last.iter().rev().take(count as usize);
        let (known, bytes) = (seen.len() as u64, seen.sum::<u64>());
        match known {
            _ if known == count || self.whole => bytes,
            0 => count * LARGEST_BLOCK,
            _ => bytes / known * count,
        }
    }

    /// Seconds in which one core checks so many bytes of such blocks.
    pub(super) fn check_seconds_of(&self, block_bytes: u64) -> f64 {
        block_bytes as f64 / self.bytes as f64 * self.check_seconds
    }

    /// How long a run takes with so many threads on so many cores.
    pub(super) fn time(
        &self,
        block_bytes: u64,
        takes: Takes,
        threads: usize,
        cores: usize,
    ) -> WayTime {
        let inputs = block_bytes as f64 / self.bytes as f64 * self.inputs as f64;
        let scripts = if takes.scripts { inputs * SCRIPTS_SECONDS } else { 0.0 };
        let check = self.check_seconds_of(block_bytes);
        let cpu = check * takes.work + scripts + takes.written;
        let alone = check * takes.alone;
        let threads = if takes.alone > 0.0 { threads.max(cores.min(threads + 1)) } else { threads };
        let side_by_side = 1.0 + GAIN * (threads as f64 - 1.0);
        let rate = self.reading.bytes_per_second();
        let read = rate.map_or(0.0, |rate| block_bytes as f64 / rate * takes.passes);
        let seconds = (cpu / side_by_side).max(alone).max(read);
        WayTime { seconds, is_least: rate.is_none() }
    }

    /// What is to be told of the machine.
    pub(super) fn words(&self, threads: usize) -> String {
        let check = bytes((self.bytes as f64 / self.check_seconds.max(1e-9)) as u64);
        let disk = match self.reading.bytes_per_second() {
            Some(rate) => format!("the disk gives {}/s", bytes(rate as u64)),
            None => "the disk was not measured".to_owned(),
        };
        let threads =
            if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        format!("{threads}; one checks {check}/s of these blocks; {disk}")
    }
}

fn stop_if(interrupt: &AtomicBool) -> Result<(), Failure> {
    match interrupt.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted()),
        false => Ok(()),
    }
}

/// The file, and the place in it, of a byte of all files one behind the other.
fn place(files: &BlockFiles, mut at: u64) -> Option<(&BlockFile, u64)> {
    for file in files.files() {
        if at < file.length {
            // A short rest of a file would show nothing: its last bytes instead.
            return Some((file, at.min(file.length.saturating_sub(STRETCH_BYTES))));
        }
        at -= file.length;
    }
    None
}

/// The next block that is whole, by the magic and a size before it.
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
            // Not whole here, or no record.
            _ => *rest = &record[magic.len()..],
        }
    }
}

/// Of a stretch that came from a disk, the disk gave at least so much, in percent.
const FROM_DISK_PERCENT: u64 = 90;

/// What the disk gave, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskReading {
    bytes: u64,
    seconds: f64,
}

impl DiskReading {
    /// Reads a stretch of a file, as much as `buffer` has room for.
    pub(super) fn read(
        &mut self,
        file: &BlockFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let failed = |error| Failure::io(&file.path, error);
        let open = File::open(&file.path).map_err(failed)?;
        // Where the system keeps it in spite of that, it tells below.
        let _ = fadvise(&open, offset, NonZeroU64::new(buffer.len() as u64), Advice::DontNeed);
        let (before, begun) = (disk_read_bytes(), Instant::now());
        open.read_exact_at(buffer, offset).map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        let gave = disk_read_bytes().zip(before).map_or(0, |(after, before)| after - before);
        self.count(buffer.len() as u64, gave, seconds);
        Ok(())
    }

    fn count(&mut self, bytes: u64, gave: u64, seconds: f64) {
        if gave >= bytes / 100 * FROM_DISK_PERCENT && seconds > 0.0 {
            self.bytes += bytes;
            self.seconds += seconds;
        }
    }

    /// Of so many bytes that took so long.
    #[cfg(test)]
    pub(super) fn of(bytes: u64, seconds: f64) -> Self {
        Self { bytes, seconds }
    }

    /// Bytes a second; none where nothing came from a disk.
    pub(super) fn bytes_per_second(self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.bytes as f64 / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Network;
    use apus_sync::{Silent, UseIndex};
    use std::path::Path;

    fn fixture() -> BlockFiles {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/main-4521/blocks");
        BlockFiles::open(Path::new(dir), Network::Main.magic()).unwrap()
    }

    #[test]
    fn the_blocks_of_a_folder_are_counted_as_they_are() {
        let never = AtomicBool::new(false);
        let files = fixture();
        let sample = BlocksSample::take(&files, Params::of(Network::Main), None, &never).unwrap();
        // All of them fit into the first stretch.
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
    fn of_a_whole_chain_the_coins_are_counted() {
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
                &Silent,
                &never,
            );
            let sample = BlocksSample::of_all(&files, &dir.unwrap(), params, None, &never).unwrap();
            assert_eq!(sample.coins(0), coins);
        }
    }

    #[test]
    fn time_is_that_of_the_slower_of_work_and_reading() {
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
            |scripts, passes| Takes { work: 2.0, alone: 0.0, scripts, passes, written: 0.0 };
        about(seconds(10_000, takes(false, 1.0), 1, 8), 20.0);
        about(seconds(10_000, takes(true, 1.0), 1, 8), 20.0 + 100.0 * SCRIPTS_SECONDS);
        about(seconds(10_000, takes(false, 1.0), 2, 8), 20.0 / (1.0 + GAIN));
        about(seconds(10_000, takes(false, 2.0), 1_000, 8), 10.0);
        // Where nothing came from a disk, that it may take longer is said.
        let unknown = BlocksSample { reading: DiskReading::default(), ..sample.clone() };
        let time = unknown.time(10_000, takes(false, 2.0), 1_000, 8);
        assert!(time.is_least && time.seconds < 0.1, "{time:?}");
        assert!(!sample.time(10_000, takes(false, 2.0), 1_000, 8).is_least);
        let written = Takes { written: 5.0, ..takes(false, 1.0) };
        about(seconds(10_000, written, 1, 8), 25.0);
        about(sample.check_seconds_of(10_000), 10.0);
        // However many threads there are, one of them has its part to do.
        let in_order = Takes { alone: 1.5, ..takes(false, 1.0) };
        about(seconds(10_000, in_order, 1, 1), 20.0);
        about(seconds(10_000, in_order, 1_000, 1_000), 15.0);
        // It goes on beside the others where there is a core for it.
        let little = Takes { alone: 0.1, ..in_order };
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
    fn only_what_came_from_a_disk_counts() {
        let mut reading = DiskReading::default();
        assert_eq!(reading.bytes_per_second(), None);
        // Out of memory, at a rate that no disk has.
        reading.count(8_000_000, 0, 0.001);
        reading.count(8_000_000, 4_000_000, 0.02);
        assert_eq!(reading.bytes_per_second(), None);
        reading.count(8_000_000, 8_000_000, 0.08);
        reading.count(8_000_000, 7_500_000, 0.08);
        assert_eq!(reading.bytes_per_second(), Some(1e8));
    }

    #[test]
    fn what_is_read_is_what_the_file_has() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("blk00000.dat");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = BlockFile { number: 0, length: 5000, path };
        let mut buffer = [0; 3000];
        DiskReading::default().read(&file, 2000, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 3000]);
        assert_eq!(DiskReading::default().read(&file, 2001, &mut buffer).unwrap_err().code, 3);
    }
}
