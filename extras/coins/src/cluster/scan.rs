//! Lists all coins in the order of their names.

use super::buckets::{Buckets, EPOCH};
use super::connections::ClusterConnections;
use super::servers::CommandPipe;
use apus_chain::OutPoint;
use apus_engine::utxo::StoreError;
use redis::cmd;
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of entries held at once. An attacker can grind txids with a common prefix, so a bucket may have any
/// size; a larger one takes several passes.
const ENTRIES_MAX: usize = 4096;

/// How many buckets to query for their sizes together.
const SIZES: usize = 1024;

/// Entries of a hash.
pub(super) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Receives coins one by one, in their stored form.
type Each<'a> = dyn FnMut(&OutPoint, &[u8]) -> Result<(), StoreError> + 'a;

/// Passes every coin to `each`, by ascending outpoint.
pub(super) fn coins(
    connections: &ClusterConnections,
    buckets: Buckets,
    each: &mut Each<'_>,
) -> Result<(), StoreError> {
    let Range { start, end } = buckets.all();
    for first in (start..end).step_by(SIZES) {
        let some: Vec<u16> =
            (first..end.min(first + SIZES as u32)).map(|bucket| bucket as u16).collect();
        let mut pipe = CommandPipe::default();
        for bucket in &some {
            let key = connections.keys.coins(*bucket);
            pipe.add(key.as_bytes(), cmd("HLEN").arg(&key));
        }
        let sizes: Vec<usize> = connections.run(|to| to.answers(&pipe))?;
        let mut together = Vec::new();
        let mut entries = 0;
        for (bucket, size) in some.into_iter().zip(sizes) {
            if entries + size > ENTRIES_MAX {
                small(connections, buckets, &std::mem::take(&mut together), each)?;
                entries = 0;
            }
            if size > ENTRIES_MAX {
                large(connections, buckets, bucket, each)?;
            } else if size > 0 {
                together.push(bucket);
                entries += size;
            }
        }
        small(connections, buckets, &together, each)?;
    }
    Ok(())
}

/// Reads several buckets in one round trip.
fn small(
    connections: &ClusterConnections,
    buckets: Buckets,
    some: &[u16],
    each: &mut Each<'_>,
) -> Result<(), StoreError> {
    if some.is_empty() {
        return Ok(());
    }
    let mut pipe = CommandPipe::default();
    for bucket in some {
        let key = connections.keys.coins(*bucket);
        pipe.add(key.as_bytes(), cmd("HGETALL").arg(&key));
    }
    let found: Vec<Entries> = connections.run(|to| to.answers(&pipe))?;
    for (bucket, entries) in some.iter().zip(found) {
        let mut coins = BTreeMap::new();
        put(&mut coins, (connections, buckets), *bucket, entries)?;
        coins.iter().try_for_each(|(outpoint, value)| each(outpoint, value))?;
    }
    Ok(())
}

/// Reads one bucket, lowest names first, in as many passes as needed.
fn large(
    connections: &ClusterConnections,
    buckets: Buckets,
    bucket: u16,
    each: &mut Each<'_>,
) -> Result<(), StoreError> {
    let mut after: Option<OutPoint> = None;
    loop {
        let (mut lowest, mut cursor) = (BTreeMap::new(), 0);
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(connections.keys.coins(bucket)).arg(cursor).arg("COUNT").arg(1000);
            let (next, entries): (u64, Entries) = connections.ask(&scan)?;
            put(&mut lowest, (connections, buckets), bucket, entries)?;
            // An entry may be returned twice; keep it once.
            if let Some(after) = &after {
                lowest.retain(|outpoint, _| outpoint > after);
            }
            while lowest.len() > ENTRIES_MAX {
                lowest.pop_last();
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let Some((last, _)) = lowest.last_key_value() else { return Ok(()) };
        after = Some(*last);
        lowest.iter().try_for_each(|(outpoint, value)| each(outpoint, value))?;
    }
}

/// Sorts a bucket's entries by coin.
fn put(
    coins: &mut BTreeMap<OutPoint, Vec<u8>>,
    (connections, buckets): (&ClusterConnections, Buckets),
    bucket: u16,
    entries: Entries,
) -> Result<(), StoreError> {
    for (field, value) in entries.into_iter().filter(|(field, _)| field != EPOCH) {
        let outpoint = buckets.outpoint(bucket, &field).ok_or_else(|| {
            let what =
                format!("{} has an entry that is not a coin", connections.keys.coins(bucket));
            StoreError::damaged(connections.place(), what)
        })?;
        coins.insert(outpoint, value);
    }
    Ok(())
}
