//! Lists all coins in the order of their names.

use super::buckets::{Buckets, EPOCH};
use super::connections::ClusterConnections;
use super::servers::{CommandPipe, Servers};
use apus_chain::{MAX_SCRIPT_SIZE, OutPoint};
use apus_engine::utxo::StoreError;
use redis::{ErrorKind, RedisResult, cmd, from_redis_value};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of entries held at once. An attacker can grind txids with a common prefix, so a bucket may have any
/// size; a larger one takes several passes.
const ENTRIES_MAX: usize = 4096;

/// How many buckets to query for their sizes together.
const SIZES: usize = 1024;

/// Maximum size of an entry's value, in bytes: more than any coin in its stored form.
const VALUE_BYTES_MAX: usize = MAX_SCRIPT_SIZE + 32;

/// Answers of a pass: as many as the bucket has entries, and these. A server's answer is empty only where its table
/// has ten thousand free places in a row.
const MORE_ANSWERS: usize = 1000;

/// Maximum number of answers of a pass, however many entries a server announces.
const ANSWERS_MAX: usize = 1 << 20;

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
                large(connections, buckets, (bucket, size), each)?;
            } else if size > 0 {
                together.push((bucket, size));
                entries += size;
            }
        }
        small(connections, buckets, &together, each)?;
    }
    Ok(())
}

/// Reads several buckets in one round trip. Each has an announced number of entries.
fn small(
    connections: &ClusterConnections,
    buckets: Buckets,
    some: &[(u16, usize)],
    each: &mut Each<'_>,
) -> Result<(), StoreError> {
    if some.is_empty() {
        return Ok(());
    }
    let mut pipe = CommandPipe::default();
    for (bucket, _) in some {
        let key = connections.keys.coins(*bucket);
        pipe.add(key.as_bytes(), cmd("HGETALL").arg(&key));
    }
    let found = connections.run(|to| {
        to.send([&pipe])?;
        let (mut some, mut found) = (some.iter(), Ok(Vec::with_capacity(some.len())));
        // Drop a wrong answer, and all that follow, at once: together they could fill the memory.
        to.receive(&pipe, |answer| {
            let entries: Entries = from_redis_value(answer)?;
            if let (Some((bucket, size)), Ok(coins)) = (some.next(), &mut found) {
                match sorted(connections, buckets, *bucket, (entries, size + 1)) {
                    Ok(sorted) => coins.push(sorted),
                    Err(error) => found = Err(error),
                }
            }
            Ok(())
        })?;
        Ok(found)
    })??;
    let mut coins = found.iter().flatten();
    coins.try_for_each(|(outpoint, value)| each(outpoint, value))
}

/// Reads one bucket, lowest names first, in as many passes as needed.
fn large(
    connections: &ClusterConnections,
    buckets: Buckets,
    (bucket, size): (u16, usize),
    each: &mut Each<'_>,
) -> Result<(), StoreError> {
    let answers = size.min(ANSWERS_MAX) + MORE_ANSWERS;
    let mut after: Option<OutPoint> = None;
    loop {
        let pass = |to: &mut Servers| {
            lowest(to, (connections, buckets), (bucket, answers), after.as_ref())
        };
        let lowest = connections.run(pass)??;
        let Some((last, _)) = lowest.last_key_value() else { return Ok(()) };
        after = Some(*last);
        lowest.iter().try_for_each(|(outpoint, value)| each(outpoint, value))?;
    }
}

/// Makes a pass through a bucket: returns the lowest coins above `after`. It needs one connection from beginning to
/// end, because a cursor means nothing to a server that was restarted, or to another one.
fn lowest(
    to: &mut Servers,
    (connections, buckets): (&ClusterConnections, Buckets),
    (bucket, answers): (u16, usize),
    after: Option<&OutPoint>,
) -> RedisResult<Result<BucketCoins, StoreError>> {
    let key = connections.keys.coins(bucket);
    let (mut lowest, mut cursor) = (BucketCoins::new(), 0);
    for _ in 0..answers {
        let mut scan = cmd("HSCAN");
        scan.arg(&key).arg(cursor).arg("COUNT").arg(1000);
        let (next, entries): (u64, Entries) = to.ask_there(&key, &scan)?;
        // An entry may be returned twice; keep it once.
        match sorted(connections, buckets, bucket, (entries, usize::MAX)) {
            Ok(coins) => {
                let is_above = |(outpoint, _): &(OutPoint, _)| after.is_none_or(|it| outpoint > it);
                lowest.extend(coins.into_iter().filter(is_above));
            }
            Err(error) => return Ok(Err(error)),
        }
        while lowest.len() > ENTRIES_MAX {
            lowest.pop_last();
        }
        cursor = next;
        if cursor == 0 {
            return Ok(Ok(lowest));
        }
    }
    Err((ErrorKind::Parse, "the server's list of entries does not end", key).into())
}

/// Some coins of a bucket, in their stored form.
type BucketCoins = BTreeMap<OutPoint, Vec<u8>>;

/// Sorts a bucket's entries, at most `most`, by coin.
fn sorted(
    connections: &ClusterConnections,
    buckets: Buckets,
    bucket: u16,
    (entries, most): (Entries, usize),
) -> Result<BucketCoins, StoreError> {
    let wrong = |what: &str| {
        let what = format!("{} has {what}", connections.keys.coins(bucket));
        StoreError::damaged(connections.place(), what)
    };
    if entries.len() > most {
        return Err(wrong("more entries than its server announced"));
    }
    let coins = entries.into_iter().filter(|(field, _)| field != EPOCH);
    let read = |(field, value): (Vec<u8>, Vec<u8>)| {
        let outpoint = buckets.outpoint(bucket, &field).filter(|_| value.len() <= VALUE_BYTES_MAX);
        Ok((outpoint.ok_or_else(|| wrong("an entry that is not a coin"))?, value))
    };
    coins.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeServer, bulk, list};
    use super::*;
    use apus_chain::Txid;

    const ENTRIES: u32 = 5000;

    /// A coin of the first bucket.
    fn outpoint(number: u32) -> OutPoint {
        let mut txid = [0; 32];
        txid[1..5].copy_from_slice(&number.to_be_bytes());
        OutPoint { txid: Txid(txid), vout: 0 }
    }

    fn entries(of: impl Iterator<Item = u32>) -> Vec<u8> {
        let field = |number| bulk(&Buckets::new(4).field(&outpoint(number)));
        list(of.flat_map(|number| [field(number), bulk(b"coin")]).collect())
    }

    fn size(words: &[Vec<u8>], entries: u32) -> Vec<u8> {
        let is_first = words[1].ends_with(b":c:0000");
        format!(":{}\r\n", if is_first { entries } else { 0 }).into_bytes()
    }

    fn scan(server: &FakeServer) -> Result<Vec<u32>, StoreError> {
        let mut found = Vec::new();
        coins(&server.connections(), Buckets::new(4), &mut |outpoint, _| {
            found.push(u32::from_be_bytes(outpoint.txid.0[1..5].try_into().unwrap()));
            Ok(())
        })?;
        Ok(found)
    }

    /// The first server process goes away in the middle of a pass, the second one moves the bucket, and each has its own
    /// order of entries.
    #[test]
    fn a_lost_connection_restarts_the_pass() {
        let server = FakeServer::start(|process, words| match &words[0][..] {
            b"HLEN" => Some(size(words, ENTRIES)),
            b"HSCAN" => {
                let first = u32::from(process > 0);
                let rest = if words[2] == b"0" { first } else { 1 - first };
                let part = entries((0..ENTRIES).filter(|number| number % 2 == rest));
                let next = if words[2] == b"0" { "7" } else { "0" };
                match (process, next) {
                    (0, "0") => None,
                    (1, "0") => Some(b"-ASK 3 127.0.0.1:1\r\n".to_vec()),
                    _ => Some(list(vec![bulk(next.as_bytes()), part])),
                }
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(scan(&server).unwrap(), (0..ENTRIES).collect::<Vec<_>>());
    }

    #[test]
    fn a_list_without_end_is_an_error() {
        let server = FakeServer::start(|_, words| match &words[0][..] {
            b"HLEN" => Some(size(words, ENTRIES)),
            _ => Some(list(vec![bulk(b"1"), list(vec![])])),
        });
        let error = scan(&server).unwrap_err().to_string();
        assert!(error.contains("does not end") && error.contains(":c:0000"), "{error}");
    }

    #[test]
    fn more_entries_than_announced_are_refused() {
        for (announced, accepted) in [(20, true), (19, true), (18, false)] {
            let server = FakeServer::start(move |_, words| match &words[0][..] {
                b"HLEN" => Some(size(words, announced)),
                _ => Some(entries(0..20)),
            });
            match scan(&server) {
                Ok(found) => assert!(accepted && found == (0..20).collect::<Vec<_>>()),
                Err(error) => assert!(!accepted && error.to_string().contains("more entries")),
            }
        }
    }

    #[test]
    fn a_value_longer_than_any_coin_is_refused() {
        let server = FakeServer::start(|_, words| match &words[0][..] {
            b"HLEN" => Some(size(words, 1)),
            _ => {
                let field = bulk(&Buckets::new(4).field(&outpoint(1)));
                Some(list(vec![field, bulk(&[0; VALUE_BYTES_MAX + 1])]))
            }
        });
        assert!(scan(&server).unwrap_err().to_string().contains("not a coin"));
    }
}
