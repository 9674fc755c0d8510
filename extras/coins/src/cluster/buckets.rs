//! [`Buckets`]: which coins share a bucket, and a coin's field name in it.

use super::connections::{ClusterConnections, Keys};
use super::servers::{CommandPipe, Servers};
use apus_chain::{OutPoint, Txid};
use apus_engine::utxo::store::{EachBatch, stored_coin};
use apus_engine::utxo::{CoinBytes, StoreError};
use redis::{RedisResult, Value};
use std::ops::Range;

/// A bucket's own field, next to its coins: the epoch of the last change. No coin has so short a name.
pub(super) const EPOCH: &[u8] = b"e";

/// The division of txids into buckets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    bits: u8,
}

impl Buckets {
    pub(crate) fn new(bits: u8) -> Self {
        Self { bits }
    }

    /// All buckets, in the order of their txids.
    pub(super) fn all(self) -> Range<u32> {
        0..1 << self.bits
    }

    /// The bucket of a txid: its leading bits.
    pub(crate) fn of(self, txid: &Txid) -> u16 {
        u16::from_be_bytes([txid.0[0], txid.0[1]]) >> (16 - self.bits)
    }

    /// How many bytes of a txid the bucket implies.
    fn known(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// A coin's field name: the rest of its txid, then the output number without leading zeros.
    pub(crate) fn field(self, outpoint: &OutPoint) -> Vec<u8> {
        self.in_parts(outpoint, |parts| parts.concat())
    }

    /// A coin's field name in two parts, without an allocation.
    fn in_parts<T>(self, outpoint: &OutPoint, then: impl FnOnce([&[u8]; 2]) -> T) -> T {
        let number = outpoint.vout.to_be_bytes();
        let zeros = outpoint.vout.leading_zeros() as usize / 8;
        then([&outpoint.txid.0[self.known()..], &number[zeros..]])
    }

    /// The coin with this field name in a bucket.
    pub(crate) fn outpoint(self, bucket: u16, field: &[u8]) -> Option<OutPoint> {
        let first = (bucket << (16 - self.bits)).to_be_bytes();
        let (rest, number) = field.split_at_checked(32 - self.known())?;
        let mut txid = [0; 32];
        txid[..self.known()].copy_from_slice(&first[..self.known()]);
        txid[self.known()..].copy_from_slice(rest);
        let zeros = 4usize.checked_sub(number.len())?;
        let mut vout = [0; 4];
        vout[zeros..].copy_from_slice(number);
        let outpoint = OutPoint { txid: Txid(txid), vout: u32::from_be_bytes(vout) };
        let canonical = number.first() != Some(&0) && self.of(&outpoint.txid) == bucket;
        canonical.then_some(outpoint)
    }
}

/// Looks up batches of coins, and reports each result. Sends all batches before it reads the first answer, so
/// that the servers work while one is read.
pub(super) fn look_up(
    connections: &ClusterConnections,
    buckets: Buckets,
    batches: &[&[OutPoint]],
    each: &mut EachBatch<'_>,
) {
    let mut given = 0;
    let asking = connections.run_measured(
        |to| {
            let batches = batches[given..].iter();
            let sent: Vec<BucketQuery<'_>> = batches
                .map(|wanted| BucketQuery::new(&connections.keys, buckets, wanted))
                .collect();
            to.send(sent.iter().map(|asked| &asked.pipe))?;
            let mut longest = 0;
            for asked in sent {
                let (coins, bytes) = asked.receive(to, connections.place())?;
                longest = longest.max(bytes);
                // If the rest must be requested again, this batch is not part of it.
                each(given, coins);
                given += 1;
            }
            Ok(longest)
        },
        |longest| *longest,
    );
    if let Err(error) = asking {
        (given..batches.len()).for_each(|number| each(number, Err(error.clone())));
    }
}

/// Looks up one batch.
pub(super) fn look_up_one(
    connections: &ClusterConnections,
    buckets: Buckets,
    wanted: &[OutPoint],
) -> Result<Vec<Option<CoinBytes>>, StoreError> {
    let mut found = None;
    look_up(connections, buckets, &[wanted], &mut |_, coins| found = Some(coins));
    found.expect("each batch is answered")
}

/// The result of a batch.
type Found = Result<Vec<Option<CoinBytes>>, StoreError>;

/// A batch in flight: one command for each bucket.
struct BucketQuery<'a> {
    buckets: Buckets,
    wanted: &'a [OutPoint],
    /// Indexes of the wanted coins, by ascending outpoint.
    places: Vec<usize>,
    pipe: CommandPipe,
}

impl<'a> BucketQuery<'a> {
    fn new(keys: &Keys, buckets: Buckets, wanted: &'a [OutPoint]) -> Self {
        let mut places: Vec<usize> = (0..wanted.len()).collect();
        places.sort_unstable_by_key(|place| wanted[*place]);
        let mut asked = Self { buckets, wanted, places, pipe: CommandPipe::default() };
        let mut pipe = CommandPipe::default();
        for group in asked.groups() {
            let key = keys.coins(buckets.of(&wanted[group[0]].txid));
            pipe.begin(group.len() + 2);
            pipe.word(b"HMGET");
            pipe.word(key.as_bytes());
            for place in group {
                buckets.in_parts(&wanted[*place], |parts| pipe.word_of(parts));
            }
            pipe.end(key.as_bytes());
        }
        asked.pipe = pipe;
        asked
    }

    /// The indexes of each bucket, which share one command.
    fn groups(&self) -> impl Iterator<Item = &[usize]> {
        let bucket = |place: &usize| self.buckets.of(&self.wanted[*place].txid);
        self.places.chunk_by(move |a, b| bucket(a) == bucket(b))
    }

    /// Receives the result, and the largest number of coin bytes in one answer.
    fn receive(&self, from: &mut Servers, place: &str) -> RedisResult<(Found, usize)> {
        let (mut groups, mut longest) = (self.groups(), 0);
        let mut coins: Found = Ok(vec![None; self.wanted.len()]);
        from.receive(&self.pipe, |answer| {
            let group = groups.next().unwrap_or_default();
            if let Ok(found) = &mut coins {
                match self.take(place, group, answer, found) {
                    Ok(bytes) => longest = longest.max(bytes),
                    Err(error) => coins = Err(error),
                }
            }
            Ok(())
        })?;
        Ok((coins, longest))
    }

    /// Takes the coins of one bucket. Returns their size in bytes.
    fn take(
        &self,
        place: &str,
        group: &[usize],
        answer: Value,
        coins: &mut [Option<CoinBytes>],
    ) -> Result<usize, StoreError> {
        let strange = || StoreError::io(place, "its answers do not match the requests");
        let found = match answer {
            Value::Array(found) if found.len() == group.len() => found,
            _ => return Err(strange()),
        };
        let mut bytes = 0;
        for (at, found) in group.iter().zip(found) {
            match found {
                Value::Nil => {}
                Value::BulkString(found) => {
                    bytes += found.len();
                    coins[*at] = Some(stored_coin(place, self.wanted[*at], &found)?);
                }
                _ => return Err(strange()),
            }
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_coin_has_one_name(txid: [u8; 32], vout: u32, bits in 4u8..=16) {
            let (buckets, outpoint) = (Buckets::new(bits), OutPoint { txid: Txid(txid), vout });
            let (bucket, field) = (buckets.of(&outpoint.txid), buckets.field(&outpoint));
            prop_assert!(buckets.all().contains(&bucket.into()));
            prop_assert!(field.len() > EPOCH.len());
            prop_assert_eq!(buckets.outpoint(bucket, &field), Some(outpoint));
        }

        #[test]
        fn other_names_are_not_coins(
            field in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 28..38),
            bucket: u16,
            bits in 4u8..=16,
        ) {
            let buckets = Buckets::new(bits);
            let bucket = bucket >> (16 - bits);
            if let Some(outpoint) = buckets.outpoint(bucket, &field) {
                prop_assert_eq!(buckets.of(&outpoint.txid), bucket);
                prop_assert_eq!(buckets.field(&outpoint), field);
            }
        }

        #[test]
        fn buckets_ascend_as_txids_do(a: [u8; 32], b: [u8; 32], bits in 4u8..=16) {
            let buckets = Buckets::new(bits);
            let (low, high) = (Txid(a.min(b)), Txid(a.max(b)));
            prop_assert!(buckets.of(&low) <= buckets.of(&high));
        }
    }
}
