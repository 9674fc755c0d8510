//! The memory of the coins cache: its own count, the system's count, and the bound on both.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockHash, CoinRef, KnownBlock, OutPoint, Txid};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsCache, CoinsDelta, CoinsStore, Flush, StoreError};
use apus_testkit::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A store that keeps only a count, so that all memory is the cache's. It is slow, so that blocks
/// arrive during a write.
#[derive(Default)]
struct Sink {
    changes: AtomicU64,
    pause: Duration,
}

impl CoinsStore for Sink {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(None)
    }

    fn get(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(None)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        std::thread::sleep(self.pause);
        flush.changes.for_each(&mut |_, _| {
            self.changes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn undo(&self, _: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn for_each(&self, _: &mut EachCoin<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Returns new outpoints; with `ground`, all begin with the same bytes, as an attacker's would.
fn outpoint(random: &mut Rng, ground: bool) -> OutPoint {
    let mut txid = [0; 32];
    random.fill(&mut txid);
    if ground {
        txid[..2].fill(0);
    }
    OutPoint { txid: Txid(txid), vout: 0 }
}

/// Applies blocks of new coins, some with long scripts. A third of the blocks spend coins of the
/// previous block, and some spend coins that only the store has.
fn fill(bytes_max: u64, coins: u32, ground: bool) -> (u64, u64) {
    let store = Arc::new(Sink { pause: Duration::from_millis(20), ..Sink::default() });
    let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, bytes_max);
    let mut random = Rng::new(1);
    let block = KnownBlock { height: 1, hash: BlockHash([0; 32]) };
    let (short, long) = ([0x51; 22], [0x51; 300]);
    let (mut last, mut most, mut applied) = (Vec::new(), 0, 0u64);
    for _ in 0..coins / 5000 {
        let mut delta = CoinsDelta::with_capacity(10_000);
        let mut made = Vec::new();
        for number in 0..5000u32 {
            let script = if number.is_multiple_of(100) { &long[..] } else { &short };
            let coin = CoinRef { height: 1, coinbase: false, amount: 1, script };
            let outpoint = outpoint(&mut random, ground);
            delta.create(outpoint, CoinBytes::new(coin), true);
            made.push(outpoint);
        }
        last.iter().step_by(3).for_each(|spent| delta.spend(*spent));
        (0..500).for_each(|_| delta.spend(outpoint(&mut random, ground)));
        last = made;
        cache.apply(&delta).unwrap();
        applied += 1;
        let bytes = cache.stats().bytes;
        assert!(bytes <= bytes_max, "{bytes} bytes after block {applied}");
        most = most.max(bytes);
        if cache.flush_due() {
            cache.begin_flush(block, Vec::new(), 0).unwrap();
        }
    }
    cache.finish_flush().unwrap();
    assert!(cache.stats().flushes >= 2, "more than once around");
    assert!(store.changes.load(Ordering::Relaxed) > 0);
    (most, resident_bytes().unwrap_or(0))
}

/// Returns the system's count; `None` on systems other than Linux.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// A single test, because others would use memory at the same time.
#[test]
fn memory_matches_the_count_and_stays_within_the_bound() {
    let before = resident_bytes().unwrap_or(0);
    for ground in [false, true] {
        let bytes_max = 96 * MIB;
        let (most, resident) = fill(bytes_max, 3_000_000, ground);
        assert!(most > bytes_max * 9 / 10, "the cache should use its memory: {most} bytes");
        // Allow for the blocks themselves and the allocator's overhead.
        let resident = resident.saturating_sub(before);
        assert!(
            resident < bytes_max + 24 * MIB,
            "{resident} bytes are resident, {most} were counted"
        );
    }
}
