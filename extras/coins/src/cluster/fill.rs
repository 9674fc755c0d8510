//! The first flush of a store, which may be a whole UTXO set: it goes straight to the buckets.
//!
//! A store without a block has nothing to lose, so nothing is written ahead. Meanwhile the record names a pending flush
//! of [`FILLING`] chunks, and no block. The next writer that opens such a store empties it.

use super::apply;
use super::buckets::{Buckets, EPOCH};
use super::connections::ClusterConnections;
use super::record::{ClusterRecord, PendingFlush};
use super::servers::CommandPipe;
use super::undo;
use super::wal::StoreChange;
use crate::store::RandomId;
use apus_chain::OutPoint;
use apus_engine::utxo::store::Flush;
use apus_engine::utxo::{CoinBytes, StoreError};
use redis::cmd;

/// The number of chunks in the record of a store that is being filled. No flush has as many.
pub(super) const FILLING: u32 = u32::MAX;

/// Size of the coins sent together, in bytes, approximately: enough for several coins of each bucket.
const PART_BYTES: usize = 4 << 20;

/// Empties a bucket, unless a later epoch already changed it, and leaves the epoch, so that an earlier writer that
/// continues cannot change it.
pub(super) const EMPTY: &str = "\
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and tonumber(there) > tonumber(ARGV[2]) then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1";

/// A pipeline of scripts is sent once it exceeds this size, in bytes.
const PIPE_BYTES: usize = 512 << 10;

/// The pending flush of a store that is being filled, in a form that no other writer knows.
pub(super) fn pending(place: &str) -> Result<PendingFlush, StoreError> {
    Ok(PendingFlush { token: RandomId::random(place)?, chunks: FILLING })
}

/// Sends all coins, and the undo data. `expect` fails once another writer has taken over.
pub(super) fn fill(
    (to, main): (&ClusterConnections, &ClusterConnections),
    buckets: Buckets,
    epoch: u64,
    flush: &Flush<'_>,
    expect: &dyn Fn() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let (mut part, mut bytes): (Vec<(OutPoint, CoinBytes)>, _) = (Vec::new(), 0);
    let send = |part: &mut Vec<(OutPoint, CoinBytes)>| {
        expect()?;
        let changes =
            part.iter().map(|(outpoint, coin)| StoreChange::Coin(*outpoint, Some(coin.as_bytes())));
        apply::apply(to, buckets, epoch, &changes.collect::<Vec<_>>())?;
        part.clear();
        Ok::<_, StoreError>(())
    };
    flush.for_each(to.place(), &mut |outpoint, coin| {
        // A store without coins has none to remove.
        let Some(coin) = coin else { return Ok(()) };
        bytes += size_of::<(OutPoint, CoinBytes)>() + coin.heap_bytes();
        part.push((*outpoint, coin.clone()));
        if bytes >= PART_BYTES {
            bytes = 0;
            send(&mut part)?;
        }
        Ok(())
    })?;
    send(&mut part)?;
    undo::changes(main, flush, &mut |change| apply::apply(to, buckets, epoch, &[change]))
}

/// Empties a store whose filling was interrupted. Returns its record.
pub(super) fn empty(
    connections: &ClusterConnections,
    record: ClusterRecord,
) -> Result<ClusterRecord, StoreError> {
    // Claim the record first: the interrupted writer then fails if it continues, and the mark stays until the end.
    let epoch = record.epoch + 1;
    let claimed =
        ClusterRecord { epoch, tip: None, pending: Some(pending(connections.place())?), ..record };
    record.replace_by(&claimed, connections)?;
    let keys = &connections.keys;
    let coins = Buckets::new(record.bucket_bits).all().map(|bucket| keys.coins(bucket as u16));
    let undo = (0..=u8::MAX).map(|bucket| keys.undo(bucket)).chain([keys.undo_blocks()]);
    let send = |pipe: &CommandPipe| {
        let emptied: Vec<u8> = connections.run(|to| to.answers(pipe))?;
        match emptied.iter().all(|emptied| *emptied == 1) {
            true => Ok(()),
            false => Err(StoreError::InUse { place: connections.place().to_owned() }),
        }
    };
    let mut pipe = CommandPipe::default();
    for key in coins.chain(undo) {
        let mut empty = cmd("EVAL");
        pipe.add(key.as_bytes(), empty.arg(EMPTY).arg(1).arg(&key).arg(EPOCH).arg(epoch));
        if pipe.bytes() >= PIPE_BYTES {
            send(&std::mem::take(&mut pipe))?;
        }
    }
    if pipe.len() > 0 {
        send(&pipe)?;
    }
    let done = ClusterRecord { pending: None, ..claimed };
    claimed.replace_by(&done, connections)?;
    Ok(done)
}
