//! [`Buckets`]: which coins lie together, and how a coin is called within its bucket.

use super::connections::Connections;
use super::keys::Keys;
use super::servers::Pipe;
use apus_chain::{OutPoint, Txid};
use apus_engine::utxo::{CoinBytes, StoreError};
use redis::cmd;
use std::ops::Range;

/// A bucket's own entry, beside its coins: the epoch of the last change. No coin's name is so short.
pub(super) const EPOCH: &[u8] = b"e";

/// How txids are divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    bits: u8,
}

impl Buckets {
    pub(crate) fn new(bits: u8) -> Self {
        Self { bits }
    }

    /// All of them, in the order of the txids in them.
    pub(super) fn all(self) -> Range<u32> {
        0..1 << self.bits
    }

    /// The bucket of a txid: its leading bits.
    pub(crate) fn of(self, txid: &Txid) -> u16 {
        u16::from_be_bytes([txid.0[0], txid.0[1]]) >> (16 - self.bits)
    }

    /// Bytes of a txid that a bucket says.
    fn known(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// What a coin is called: the rest of its txid, and the number of the output without zeros in
    /// front of it.
    pub(crate) fn field(self, outpoint: &OutPoint) -> Vec<u8> {
        let number = outpoint.vout.to_be_bytes();
        let zeros = outpoint.vout.leading_zeros() as usize / 8;
        [&outpoint.txid.0[self.known()..], &number[zeros..]].concat()
    }

    /// The coin that is called so in a bucket.
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

/// A coin that a server gave.
pub(super) fn coin(place: &str, outpoint: OutPoint, bytes: &[u8]) -> Result<CoinBytes, StoreError> {
    CoinBytes::read(bytes).map_err(|error| StoreError::Coin {
        place: place.to_owned(),
        outpoint,
        error,
    })
}

/// Looks coins up: one command for each bucket, all of them at once.
pub(super) fn look_up(
    connections: &Connections,
    keys: &Keys,
    buckets: Buckets,
    wanted: &[OutPoint],
) -> Result<Vec<Option<CoinBytes>>, StoreError> {
    let mut places: Vec<usize> = (0..wanted.len()).collect();
    places.sort_unstable_by_key(|place| wanted[*place]);
    let bucket = |place: &usize| buckets.of(&wanted[*place].txid);
    let groups: Vec<&[usize]> = places.chunk_by(|a, b| bucket(a) == bucket(b)).collect();
    let mut coins = vec![None; wanted.len()];
    if groups.is_empty() {
        return Ok(coins);
    }
    let mut pipe = Pipe::default();
    for group in &groups {
        let (key, mut get) = (keys.coins(bucket(&group[0])), cmd("HMGET"));
        get.arg(&key);
        for place in *group {
            get.arg(buckets.field(&wanted[*place]));
        }
        pipe.add(key.as_bytes(), &get);
    }
    let found: Vec<Vec<Option<Vec<u8>>>> =
        connections.run_measured(|to| to.answers(&pipe), |found: &Vec<_>| bytes_of(found))?;
    let asked: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    if found.iter().map(Vec::len).ne(asked) {
        return Err(StoreError::Io {
            place: connections.place().to_owned(),
            error: "its answers are not those to what was asked".to_owned(),
        });
    }
    for (place, bytes) in places.iter().zip(found.into_iter().flatten()) {
        let read = |bytes: Vec<u8>| coin(connections.place(), wanted[*place], &bytes);
        coins[*place] = bytes.map(read).transpose()?;
    }
    Ok(coins)
}

/// How long an answer is, about.
fn bytes_of(found: &[Vec<Option<Vec<u8>>>]) -> usize {
    found.iter().flatten().flatten().map(Vec::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_coin_is_called_by_one_name(txid: [u8; 32], vout: u32, bits in 4u8..=16) {
            let (buckets, outpoint) = (Buckets::new(bits), OutPoint { txid: Txid(txid), vout });
            let (bucket, field) = (buckets.of(&outpoint.txid), buckets.field(&outpoint));
            prop_assert!(buckets.all().contains(&bucket.into()));
            prop_assert!(field.len() > EPOCH.len());
            prop_assert_eq!(buckets.outpoint(bucket, &field), Some(outpoint));
        }

        #[test]
        fn other_names_are_of_no_coin(
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
