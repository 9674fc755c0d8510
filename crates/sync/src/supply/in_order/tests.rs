use super::*;
use crate::error::{InvalidError, SourceError};
use crate::source::{BlockFetcher, BlockReply, BlockSource};
use crate::supply::Permits;
use apus_chain::{HeaderChain, Network, Params};
use apus_testkit::chain::ChainBuilder;
use bitcoin::consensus::encode::serialize;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

impl QueueItem for Height {}

/// A block that uses this much memory while its consumer holds it.
struct LongScriptMemory(Arc<Height>, u64);

impl QueueItem for LongScriptMemory {
    fn memory_bytes(&self, _: u64) -> u64 {
        self.1
    }

    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        let block: Arc<dyn Any + Send + Sync> = Arc::clone(&self.0) as _;
        Some(Arc::downgrade(&block))
    }
}

const NOW: i64 = 4_000_000_000;

/// Slightly more blocks than two claims hold.
const TIP: Height = 600;

/// A source with blocks in memory that can misbehave.
struct Fake {
    raw: Vec<Vec<u8>>,
    chain: HeaderChain,
    /// The claimed size of each block.
    bytes: u64,
    fault: Fault,
    /// End of the highest range requested so far.
    asked: AtomicU64,
}

enum Fault {
    None,
    /// The files cannot be read at this height.
    Error(Height),
    /// The source leaves out this height.
    Missing(Height),
    /// The source returns this height again instead of the one above it.
    Twice(Height),
    /// The source first returns blocks that were not requested.
    Unasked,
    /// The block of this height breaks a rule.
    Invalid(Height),
    /// Fetching takes longer the lower the heights are.
    SlowBelow(Height),
}

impl Fake {
    /// The [`Supply`] for two workers that read this source.
    fn supply<'a>(&'a self, interrupt: &'a AtomicBool) -> Supply<'a> {
        Supply {
            params: Params::of(Network::Regtest),
            chain: &self.chain,
            verifier: None,
            source: self,
            interrupt,
            permits: Permits::new(2),
            unseen: 0,
            window_bytes: 0,
        }
    }

    fn new(fault: Fault) -> Self {
        let mut builder = ChainBuilder::new(5);
        builder.empty_blocks(TIP as usize);
        let mut blocks = builder.blocks();
        if let Fault::Invalid(height) = fault {
            blocks.truncate(height as usize + 1);
            let block = &mut blocks[height as usize];
            // More than exists: no block may create it with any inputs.
            block.txdata[0].output[0].value = bitcoin::Amount::from_sat(21_000_001 * 100_000_000);
            apus_testkit::chain::seal(block);
        }
        let raw: Vec<Vec<u8>> = blocks.iter().map(serialize).collect();
        let headers = raw.iter().map(|block| block.first_chunk().unwrap());
        let chain = HeaderChain::from_headers(Params::of(Network::Regtest), NOW, headers).unwrap();
        Self { raw, chain, bytes: 8_000, fault, asked: AtomicU64::new(0) }
    }

    fn range(&self) -> HeightRange {
        HeightRange::new(1, self.raw.len() as u32)
    }
}

impl BlockSource for Fake {
    fn fetcher<'a>(&'a self, _halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a> {
        Box::new(FakeFetcher(self))
    }

    fn block_bytes(&self, _height: Height) -> u64 {
        self.bytes
    }
}

struct FakeFetcher<'a>(&'a Fake);

impl BlockFetcher for FakeFetcher<'_> {
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<(), SourceError> {
        let Fake { raw, fault, asked, .. } = self.0;
        asked.fetch_max(u64::from(want.end), Ordering::SeqCst);
        if matches!(fault, Fault::Unasked) && want.end < TIP {
            let taken = each(want.end, &raw[want.end as usize]);
            assert!(matches!(taken, BlockReply::NotWanted), "{taken:?}");
        }
        if matches!(fault, Fault::SlowBelow(height) if want.start < *height) {
            thread::sleep(Duration::from_millis(20));
        }
        let mut before = HashSet::new();
        // Any order within the requested range.
        for height in want.heights().rev() {
            let given = match fault {
                Fault::Error(at) if *at == height => {
                    return Err(SourceError::NoChain { chain: "fake" });
                }
                Fault::Missing(at) if *at == height => continue,
                Fault::Twice(at) if *at + 1 == height => *at,
                _ => height,
            };
            match each(given, &raw[given as usize]) {
                BlockReply::Yes => assert!(want.contains(given) && before.insert(given)),
                BlockReply::NotWanted => assert!(!want.contains(given) || before.contains(&given)),
                BlockReply::Damaged(error) => panic!("{error}"),
                BlockReply::Stop => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The heights returned, and how it ended.
type Outcome = (Vec<Height>, Result<(), SyncError>);

/// Runs some workers and one consumer, and calls `look` on each block taken.
fn run(
    source: &Fake,
    workers: usize,
    bytes_max: u64,
    interrupt: &AtomicBool,
    look: &mut dyn FnMut(Height),
) -> Outcome {
    let supply = source.supply(interrupt);
    let ahead = InOrder::new(source.range(), bytes_max);
    let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let prepare = |block: CheckedBlock| {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::yield_now();
        now.fetch_sub(1, Ordering::SeqCst);
        block.height()
    };
    let mut taken = Vec::new();
    let ended = thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| ahead.work(&supply, &by_checking(&prepare)));
        }
        let ended = loop {
            match ahead.next() {
                Ok(Some((height, prepared))) => {
                    assert_eq!(height, prepared);
                    taken.push(height);
                    look(height);
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        ahead.end();
        ended
    });
    assert!(most.load(Ordering::SeqCst) <= 2, "more threads compute than are permitted to");
    (taken, ended)
}

fn run_all(fault: Fault, workers: usize) -> Outcome {
    run(&Fake::new(fault), workers, 1 << 20, &AtomicBool::new(false), &mut |_| {})
}

fn all_below(height: Height) -> Vec<Height> {
    (1..height).collect()
}

#[test]
fn blocks_are_returned_in_ascending_height() {
    for workers in [1, 2, 4] {
        for fault in [Fault::None, Fault::SlowBelow(200), Fault::Unasked] {
            let (taken, ended) = run_all(fault, workers);
            ended.unwrap();
            assert_eq!(taken, all_below(TIP + 1));
        }
    }
}

/// If blocks stay in use after they were returned, their bytes still count; if they alone reach the limit,
/// one claim at a time is made anyway.
#[test]
fn returned_blocks_count_while_their_consumer_holds_them() {
    let source = Fake { bytes: CLAIM_BYTES, ..Fake::new(Fault::None) };
    let flag = AtomicBool::new(false);
    let (weight, most) = (1 << 20, 10u64);
    let supply = source.supply(&flag);
    let ahead: InOrder<LongScriptMemory> = InOrder::new(source.range(), most * weight);
    let now = AtomicU64::new(0);
    let prepare = |block: CheckedBlock| {
        now.fetch_add(1, Ordering::SeqCst);
        LongScriptMemory(Arc::new(block.height()), weight)
    };
    // Returns how far the worker runs ahead of a consumer that keeps the last few blocks.
    let ahead_of = |keeps: usize, until: Height, at_least: u64| {
        let mut kept = VecDeque::new();
        while let Some((height, block)) = ahead.next().unwrap() {
            assert_eq!(height, *block.0);
            kept.push_back(block);
            kept.drain(..kept.len().saturating_sub(keeps));
            if height == until {
                break;
            }
        }
        let far = || now.load(Ordering::SeqCst) - u64::from(until);
        let waits = (0..5_000).take_while(|_| far() < at_least);
        waits.for_each(|_| thread::sleep(Duration::from_millis(1)));
        thread::sleep(Duration::from_millis(5));
        far()
    };
    thread::scope(|scope| {
        scope.spawn(|| ahead.work(&supply, &by_checking(&prepare)));
        // The last block returned may or may not be dropped when the worker looks.
        let found = [(0, 40, 9), (6, 80, 3), (20, 120, 1)]
            .map(|(keeps, until, at_least)| ahead_of(keeps, until, at_least));
        ahead.end();
        assert!((9..=10).contains(&found[0]), "{found:?}");
        assert!((3..=4).contains(&found[1]), "{found:?}");
        assert_eq!(found[2], 1, "{found:?}");
    });
}

/// At most one claim exceeds the bound: a whole range, if blocks are this small.
#[test]
fn workers_run_ahead_no_further_than_the_bound() {
    let claim_blocks = CLAIM_BYTES.div_ceil(100_000);
    for bytes_max in [0, 1, 3 << 20] {
        let source = Fake { bytes: 100_000, ..Fake::new(Fault::None) };
        // A claim counts with the size that the source claims, and its blocks with their real size after they
        // were read.
        let blocks_max = bytes_max / source.raw[1].len() as u64 + claim_blocks;
        let mut furthest = 0;
        let (taken, ended) = run(&source, 1, bytes_max, &AtomicBool::new(false), &mut |height| {
            if height <= 3 {
                thread::sleep(Duration::from_millis(5));
            }
            let ahead = source.asked.load(Ordering::SeqCst) - u64::from(height);
            furthest = furthest.max(ahead);
            assert!(ahead <= blocks_max + claim_blocks, "{ahead} at {height}");
        });
        ended.unwrap();
        assert_eq!(taken, all_below(TIP + 1));
        assert!(furthest > 0);
    }
}

/// Blocks that leave nothing to keep still take their places in the queue.
#[test]
fn workers_do_not_run_ahead_without_a_bound_on_the_smallest_blocks() {
    let source = Fake { bytes: 1, ..Fake::new(Fault::None) };
    let flag = AtomicBool::new(false);
    let supply = source.supply(&flag);
    let ahead: InOrder<LongScriptMemory> = InOrder::new(source.range(), CLAIM_BLOCKS.into());
    let prepare = |block: CheckedBlock| LongScriptMemory(Arc::new(block.height()), 0);
    thread::scope(|scope| {
        scope.spawn(|| ahead.work(&supply, &by_checking(&prepare)));
        for height in 1..10 {
            assert_eq!(ahead.next().unwrap().map(|(height, _)| height), Some(height));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(source.asked.load(Ordering::SeqCst), u64::from(CLAIM_BLOCKS) + 1);
        ahead.end();
    });
}

/// While there are blocks that need not be read, claims of them are longer, and all threads take part.
#[test]
fn blocks_that_are_not_read_are_claimed_many_at_a_time() {
    let source = Fake { bytes: 300_000, ..Fake::new(Fault::None) };
    let flag = AtomicBool::new(false);
    let supply = source.supply(&flag);
    let claims = |workers, count: usize| -> Vec<u32> {
        let ahead: InOrder<(Height, u64)> = InOrder::new(source.range(), 16 << 20);
        let ahead = ahead.unread(30, workers);
        (0..count).map(|_| ahead.claim(&supply).unwrap().0.end).collect()
    };
    assert_eq!(claims(1, 4), [15, 29, 31, 35]);
    assert_eq!(claims(4, 3), [8, 15, 22]);
    assert_eq!(claims(16, 9), [5, 9, 13, 17, 21, 25, 29, 31, 35]);
}

#[test]
fn an_error_is_returned_after_all_blocks_below_it() {
    for workers in [1, 3] {
        for at in [1, 2, 131, 132, 133, TIP] {
            // The fake gives ranges from their end, so blocks of the same claim may be lost, but never those
            // of lower ranges.
            let (taken, ended) = run_all(Fault::Error(at), workers);
            assert!(matches!(ended, Err(SyncError::Source(SourceError::NoChain { .. }))));
            assert_eq!(taken, all_below(taken.len() as u32 + 1));
            assert!(taken.len() < at as usize);
            assert!(taken.len() as u64 + CLAIM_BYTES.div_ceil(8_000) >= u64::from(at), "{at}");
        }
    }
}

#[test]
fn a_block_that_breaks_a_rule_has_its_height_in_the_error() {
    for workers in [1, 3] {
        for at in [2, 140, TIP] {
            match run_all(Fault::Invalid(at), workers).1 {
                Err(SyncError::Invalid(InvalidError::InvalidBlock { height, error, .. })) => {
                    assert_eq!((height, error.reason()), (at, "bad-txns-vout-toolarge"));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_source_that_omits_blocks_is_reported() {
    for workers in [1, 3] {
        for at in [1, 131, 132, 133, TIP - 1] {
            for fault in [Fault::Missing(at), Fault::Twice(at)] {
                let missing = if matches!(fault, Fault::Twice(_)) { at + 1 } else { at };
                let (taken, ended) = run_all(fault, workers);
                assert_eq!(taken, all_below(missing));
                match ended {
                    Err(SyncError::Source(SourceError::Incomplete { range })) => {
                        assert!(range.contains(missing));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn an_interruption_keeps_the_ready_blocks() {
    for workers in [1, 3] {
        let source = Fake { bytes: 200_000, ..Fake::new(Fault::None) };
        let flag = AtomicBool::new(false);
        let (taken, ended) = run(&source, workers, 0, &flag, &mut |height| {
            if height == 20 {
                flag.store(true, Ordering::SeqCst);
            }
        });
        assert!(matches!(ended, Err(SyncError::Interrupted)));
        assert!(taken.len() >= 20 && taken == all_below(taken.len() as u32 + 1));
    }
}

#[test]
fn a_panic_of_a_worker_ends_the_wait_with_an_error() {
    let source = Fake::new(Fault::None);
    let flag = AtomicBool::new(false);
    let supply = source.supply(&flag);
    for workers in [1, 3] {
        let ahead: InOrder<Height> = InOrder::new(source.range(), 1 << 20);
        let prepare = |block: CheckedBlock| match block.height() {
            150 => panic!("on purpose"),
            height => height,
        };
        let mut last = Ok(None);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            thread::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(|| ahead.work(&supply, &by_checking(&prepare)));
                }
                last = loop {
                    match ahead.next() {
                        Ok(Some((height, _))) => assert!(height < 150),
                        other => break other,
                    }
                };
            });
        }));
        assert!(ended.is_err() && matches!(last, Err(SyncError::Interrupted)));
    }
}

#[test]
fn peeking_takes_no_block() {
    let source = Fake::new(Fault::None);
    let flag = AtomicBool::new(false);
    let supply = source.supply(&flag);
    let ahead = InOrder::new(source.range(), u64::MAX);
    assert_eq!(ahead.peek(|height: &Height| *height), None);
    ahead.work(&supply, &by_checking(&|block| block.height()));
    for height in 1..TIP {
        assert_eq!(ahead.peek(|height| *height), Some(height));
        assert_eq!(ahead.next().unwrap(), Some((height, height)));
        assert_eq!(ahead.peek(|height| *height), Some(height + 1));
    }
    assert_eq!(ahead.next().unwrap(), Some((TIP, TIP)));
    assert_eq!(ahead.peek(|height| *height), None);
    assert_eq!(ahead.next().unwrap(), None);
}

/// A source that is far away gives the blocks of a window in any order.
#[test]
fn blocks_of_a_window_ascend() {
    let (interrupt, halt) = (AtomicBool::new(false), AtomicBool::new(false));
    let take = |fault, window_bytes, fails_at: Option<Height>| {
        let source = Fake::new(fault);
        let supply = Supply { window_bytes, ..source.supply(&interrupt) };
        let mut taken = Vec::new();
        let ended = supply.walker(&halt).take_ascending(source.range(), &mut |block| {
            taken.push(block.height());
            match fails_at == Some(block.height()) {
                true => Err(SyncError::Interrupted),
                false => Ok(()),
            }
        });
        (taken, ended)
    };
    for window_bytes in [0, 50_000, 1 << 30] {
        let (taken, ended) = take(Fault::None, window_bytes, None);
        assert_eq!((taken, ended.unwrap()), (all_below(TIP + 1), true));
        let (taken, ended) = take(Fault::None, window_bytes, Some(40));
        assert!(matches!(ended, Err(SyncError::Interrupted)));
        assert_eq!(taken, all_below(41));
        let (taken, ended) = take(Fault::Invalid(137), window_bytes, None);
        let invalid = crate::error::InvalidBlock::of(&ended.unwrap_err()).unwrap();
        assert_eq!((taken, invalid.block.height), (all_below(137), 137));
        let (taken, ended) = take(Fault::Missing(300), window_bytes, None);
        assert!(matches!(ended, Err(SyncError::Source(SourceError::Incomplete { .. }))));
        assert_eq!(taken, all_below(300));
    }
}
