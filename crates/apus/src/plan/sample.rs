//! [`Sample`]: some blocks from all over a folder, and how fast this machine reads and checks them.
//!
//! Blocks are found by the magic before them, wherever a stretch of a file begins. Nothing is believed of
//! them but how long they take: what is no block is passed over. Of a small folder every block is looked at.

use super::{GAIN, SCRIPTS_SECONDS};
use crate::failure::Failure;
use crate::report::bytes;
use apus_chain::{
    BlockChecker, BlockContext, BlockLayout, HEADER_SIZE, HeightRange, Params, ScriptVerifier,
    is_unspendable,
};
use apus_datadir::{BlockFile, BlockFiles};
use apus_sync::{BlockSource, BlocksDir, ChainSource, SyncError, Taken};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// What was seen of a chain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Bytes of the blocks that were checked.
    bytes: u64,
    inputs: u64,
    outputs: u64,
    check_seconds: f64,
    read_bytes: u64,
    read_seconds: f64,
    /// Outputs that can be spent, but for that of the genesis block, and the coins that inputs spend.
    made: u64,
    spent: u64,
    /// Whether these are all blocks of a chain.
    whole: bool,
}

/// What blocks are checked by, and with.
struct Rules<'a> {
    params: &'a Params,
    verifier: Option<&'a dyn ScriptVerifier>,
    checker: BlockChecker,
    layout: BlockLayout,
}

impl<'a> Rules<'a> {
    fn new(params: &'a Params, verifier: Option<&'a dyn ScriptVerifier>) -> Self {
        Self { params, verifier, checker: BlockChecker::new(), layout: BlockLayout::new() }
    }
}

impl Sample {
    /// Looks at every block of a chain.
    pub(super) fn of_all(
        dir: &BlocksDir,
        params: &Params,
        verifier: Option<&dyn ScriptVerifier>,
        interrupt: &AtomicBool,
    ) -> Result<Self, Failure> {
        let (begun, mut sample) = (Instant::now(), Self::default());
        let mut rules = Rules::new(params, verifier);
        let mut look = |_, raw: &[u8]| {
            sample.read_bytes += raw.len() as u64;
            sample.check_block(raw, &mut rules);
            if interrupt.load(Ordering::Relaxed) { Taken::Stop } else { Taken::Yes }
        };
        let all = HeightRange::new(0, dir.chain().tip_height() + 1);
        dir.fetcher(interrupt).fetch(all, &mut look).map_err(SyncError::from)?;
        stop_if(interrupt)?;
        sample.read_seconds = (begun.elapsed().as_secs_f64() - sample.check_seconds).max(0.0);
        sample.whole = true;
        Ok(sample)
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
        let (mut rules, mut buffer) = (Rules::new(params, verifier), Vec::new());
        let stretches = STRETCHES.min(total.div_ceil(STRETCH_BYTES)).max(1);
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
        let begun = Instant::now();
        let read = File::open(&file.path).and_then(|it| it.read_exact_at(buffer, offset));
        read.map_err(|error| Failure::io(&file.path, error))?;
        self.read_seconds += begun.elapsed().as_secs_f64();
        self.read_bytes += length;
        files.obfuscation().apply(buffer, offset);
        Ok(())
    }

    /// Checks the blocks of a stretch that it has whole.
    fn check(&mut self, stretch: &[u8], rules: &mut Rules<'_>) {
        let mut rest = stretch;
        while let Some(raw) = next_block(&mut rest, rules.params.network.magic()) {
            self.check_block(raw, rules);
        }
    }

    fn check_block(&mut self, raw: &[u8], rules: &mut Rules<'_>) {
        let Rules { params, verifier, checker, layout } = rules;
        let Ok(view) = layout.read(raw) else { return };
        let (hash, inputs, outputs) = (view.hash(), view.input_count(), view.output_count());
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
            self.outputs += outputs as u64;
            // A coinbase spends nothing, and that of the genesis block makes nothing.
            self.spent += (inputs as u64).saturating_sub(1);
            self.made += if hash == params.genesis_hash { 0 } else { made as u64 };
        }
    }

    /// How many coins the chain leaves, where that is known.
    pub(super) fn coins(&self) -> Option<u64> {
        self.whole.then(|| self.made.saturating_sub(self.spent))
    }

    /// Outputs of a chain of so many bytes.
    pub(super) fn outputs(&self, block_bytes: u64) -> u64 {
        let outputs = u128::from(self.outputs) * u128::from(block_bytes) / u128::from(self.bytes);
        outputs.try_into().unwrap_or(u64::MAX)
    }

    /// Seconds in which one core checks so many bytes of such blocks.
    pub(super) fn check_seconds_of(&self, block_bytes: u64) -> f64 {
        block_bytes as f64 / self.bytes as f64 * self.check_seconds
    }

    /// How long a run takes with so many threads on so many cores.
    pub(super) fn seconds(
        &self,
        block_bytes: u64,
        takes: Takes,
        threads: usize,
        cores: usize,
    ) -> f64 {
        let inputs = block_bytes as f64 / self.bytes as f64 * self.inputs as f64;
        let scripts = if takes.scripts { inputs * SCRIPTS_SECONDS } else { 0.0 };
        let check = self.check_seconds_of(block_bytes);
        let cpu = check * takes.work + scripts + takes.written;
        let alone = check * takes.alone;
        let threads = if takes.alone > 0.0 { threads.max(cores.min(threads + 1)) } else { threads };
        let side_by_side = 1.0 + GAIN * (threads as f64 - 1.0);
        let read = self.read_seconds / self.read_bytes as f64 * block_bytes as f64 * takes.passes;
        (cpu / side_by_side).max(alone).max(read)
    }

    /// What is to be told of the machine.
    pub(super) fn words(&self, threads: usize) -> String {
        let rate = |count: u64, seconds: f64| bytes((count as f64 / seconds.max(1e-9)) as u64);
        format!(
            "{threads} threads; one checks {}/s of these blocks; {}/s are read",
            rate(self.bytes, self.check_seconds),
            rate(self.read_bytes, self.read_seconds)
        )
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
        let sample = Sample::take(&files, Params::of(Network::Main), None, &never).unwrap();
        // All of them fit into the first stretch.
        assert_eq!(sample.read_bytes, files.bytes_total());
        assert_eq!(sample.bytes + 8 * 4522, files.bytes_total());
        assert!(sample.outputs >= 4522 && sample.inputs > 0, "{sample:?}");
        assert_eq!(sample.outputs(sample.bytes), sample.outputs);
        assert_eq!(sample.outputs(3 * sample.bytes), 3 * sample.outputs);
        assert_eq!(sample.coins(), None, "blocks beside the chain may be among them");
        let other = Sample::take(&files, Params::of(Network::Signet), None, &never).unwrap_err();
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
            let dir = BlocksDir::open(
                &fixtures.join(blocks),
                params,
                4_000_000_000,
                UseIndex::IfPresent,
                &Silent,
                &never,
            );
            let sample = Sample::of_all(&dir.unwrap(), params, None, &never).unwrap();
            assert_eq!(sample.coins(), Some(coins));
            assert_eq!(sample.bytes, sample.read_bytes);
        }
    }

    #[test]
    fn time_is_that_of_the_slower_of_work_and_reading() {
        let sample = Sample {
            bytes: 1_000,
            inputs: 10,
            outputs: 10,
            check_seconds: 1.0,
            read_bytes: 1_000,
            read_seconds: 0.5,
            ..Sample::default()
        };
        let about = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        let takes =
            |scripts, passes| Takes { work: 2.0, alone: 0.0, scripts, passes, written: 0.0 };
        about(sample.seconds(10_000, takes(false, 1.0), 1, 8), 20.0);
        about(sample.seconds(10_000, takes(true, 1.0), 1, 8), 20.0 + 100.0 * SCRIPTS_SECONDS);
        about(sample.seconds(10_000, takes(false, 1.0), 2, 8), 20.0 / (1.0 + GAIN));
        about(sample.seconds(10_000, takes(false, 2.0), 1_000, 8), 10.0);
        let written = Takes { written: 5.0, ..takes(false, 1.0) };
        about(sample.seconds(10_000, written, 1, 8), 25.0);
        about(sample.check_seconds_of(10_000), 10.0);
        // However many threads there are, one of them has its part to do.
        let in_order = Takes { alone: 1.5, ..takes(false, 1.0) };
        about(sample.seconds(10_000, in_order, 1, 1), 20.0);
        about(sample.seconds(10_000, in_order, 1_000, 1_000), 15.0);
        // It goes on beside the others where there is a core for it.
        let little = Takes { alone: 0.1, ..in_order };
        about(sample.seconds(10_000, little, 1, 8), 20.0 / (1.0 + GAIN));
        about(sample.seconds(10_000, little, 2, 2), 20.0 / (1.0 + GAIN));
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
}
