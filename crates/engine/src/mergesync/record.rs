//! The records that blocks leave for one another.
//!
//! Their keys stand first, with numbers in big-endian, so that records are sorted by their bytes. A run
//! holds records one after the other; each says how long it is. Coins are not looked into: what takes
//! them does. Format: `docs/formats/workdir.md`.

use apus_chain::{Height, OutPoint, Reader, Txid};

/// Length of an outpoint in a record in bytes: the id, then the place of the output.
pub(super) const OUTPOINT: usize = 36;

/// A coin that a block leaves: `outpoint ‖ height ‖ index ‖ length ‖ coin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeRecord<'a> {
    /// Its name.
    pub outpoint: OutPoint,
    /// The block that makes it.
    pub height: Height,
    /// Which one of the block's outputs that can be spent it is.
    pub index: u32,
    /// The coin in its stored form; empty where the block itself spends it.
    pub coin: &'a [u8],
}

/// A coin that a block wants from the blocks below it: `outpoint ‖ height ‖ place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentRecord {
    /// Its name.
    pub outpoint: OutPoint,
    /// The block that spends it.
    pub height: Height,
    /// Which one of the coins that the block wants it is.
    pub place: u32,
}

/// The coin that an input takes: `height ‖ place ‖ length ‖ coin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerRecord<'a> {
    /// The block that spends it.
    pub height: Height,
    /// Which one of the coins that the block wants it is.
    pub place: u32,
    /// The coin in its stored form.
    pub coin: &'a [u8],
}

impl<'a> MadeRecord<'a> {
    /// Where in a record the coin's length stands.
    pub(super) const LENGTH_AT: usize = OUTPOINT + 4 + 4;

    /// Length in bytes before the coin.
    const HEAD: usize = Self::LENGTH_AT + 2;

    /// Appends the record.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_outpoint(out, &self.outpoint);
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.index.to_be_bytes());
        write_coin(out, self.coin);
    }

    /// The record at the beginning of `bytes`, and what follows; none where there is no whole one.
    pub fn read(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(Self::HEAD)?;
        let mut reader = Reader::new(head);
        let outpoint = read_outpoint(&mut reader)?;
        let (height, index) = (big_endian(&mut reader)?, big_endian(&mut reader)?);
        let (coin, rest) = split_coin(&mut reader, rest)?;
        Some((Self { outpoint, height, index, coin }, rest))
    }
}

impl SpentRecord {
    /// Length in bytes.
    pub const SIZE: usize = OUTPOINT + 4 + 4;

    /// Appends the record.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_outpoint(out, &self.outpoint);
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes());
    }

    /// The record at the beginning of `bytes`, and what follows; none where there is no whole one.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (record, rest) = bytes.split_first_chunk::<{ Self::SIZE }>()?;
        let mut reader = Reader::new(record);
        let outpoint = read_outpoint(&mut reader)?;
        let (height, place) = (big_endian(&mut reader)?, big_endian(&mut reader)?);
        Some((Self { outpoint, height, place }, rest))
    }
}

impl<'a> AnswerRecord<'a> {
    const HEAD: usize = 4 + 4 + 2;

    /// Appends the record.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes());
        write_coin(out, self.coin);
    }

    /// The record at the beginning of `bytes`, and what follows; none where there is no whole one.
    pub fn read(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(Self::HEAD)?;
        let mut reader = Reader::new(head);
        let (height, place) = (big_endian(&mut reader)?, big_endian(&mut reader)?);
        let (coin, rest) = split_coin(&mut reader, rest)?;
        Some((Self { height, place, coin }, rest))
    }
}

fn write_outpoint(out: &mut Vec<u8>, outpoint: &OutPoint) {
    out.extend_from_slice(&outpoint.txid.0);
    out.extend_from_slice(&outpoint.vout.to_be_bytes());
}

fn read_outpoint(reader: &mut Reader<'_>) -> Option<OutPoint> {
    let txid = Txid(*reader.array().ok()?);
    Some(OutPoint { txid, vout: big_endian(reader)? })
}

fn big_endian(reader: &mut Reader<'_>) -> Option<u32> {
    Some(u32::from_be_bytes(*reader.array().ok()?))
}

/// A coin with its length before it. One that can be spent has a script of at most 10,000 bytes.
fn write_coin(out: &mut Vec<u8>, coin: &[u8]) {
    let length = u16::try_from(coin.len()).expect("a coin is shorter than 64 KiB");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(coin);
}

fn split_coin<'a>(head: &mut Reader<'_>, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let length = u16::from_be_bytes(*head.array().ok()?);
    rest.split_at_checked(usize::from(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coin::CoinBytes;
    use apus_chain::CoinRef;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn outpoint() -> impl Strategy<Value = OutPoint> {
        (any::<[u8; 32]>(), any::<u32>()).prop_map(|(id, vout)| OutPoint { txid: Txid(id), vout })
    }

    fn coin() -> impl Strategy<Value = Vec<u8>> {
        let script = prop_oneof![vec(0u8..0x60, 0..90), vec(0u8..0x60, 9_990..10_001)];
        (0u32..2_000_000, any::<bool>(), 0..=apus_chain::MAX_MONEY, script).prop_map(
            |(height, coinbase, amount, script)| {
                let coin = CoinRef { height, coinbase, amount, script: &script };
                CoinBytes::new(coin).as_bytes().to_vec()
            },
        )
    }

    proptest! {
        #[test]
        fn records_come_back(
            outpoint in outpoint(),
            height: u32,
            place: u32,
            coin in coin(),
            rest in vec(any::<u8>(), 0..9),
        ) {
            let (made, nothing) = (
                MadeRecord { outpoint, height, index: place, coin: &coin },
                MadeRecord { outpoint, height, index: place, coin: &[] },
            );
            let spent = SpentRecord { outpoint, height, place };
            let answer = AnswerRecord { height, place, coin: &coin };
            for made in [made, nothing] {
                let mut out = Vec::new();
                made.write(&mut out);
                out.extend_from_slice(&rest);
                prop_assert_eq!(MadeRecord::read(&out), Some((made, &rest[..])));
            }
            let mut out = Vec::new();
            spent.write(&mut out);
            out.extend_from_slice(&rest);
            prop_assert_eq!(SpentRecord::read(&out), Some((spent, &rest[..])));
            out.clear();
            answer.write(&mut out);
            out.extend_from_slice(&rest);
            prop_assert_eq!(AnswerRecord::read(&out), Some((answer, &rest[..])));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in vec(any::<u8>(), 0..120)) {
            let mut out = Vec::new();
            if let Some((record, rest)) = MadeRecord::read(&bytes) {
                record.write(&mut out);
                prop_assert_eq!(&[&out[..], rest].concat(), &bytes);
            }
            out.clear();
            if let Some((record, rest)) = AnswerRecord::read(&bytes) {
                record.write(&mut out);
                prop_assert_eq!(&[&out[..], rest].concat(), &bytes);
            }
        }

        /// The order of the bytes is that of the outpoints, then of the chain.
        #[test]
        fn records_are_sorted_by_their_bytes(
            a in (0u8..2, 0u32..600, 0u32..600, 0u32..600),
            b in (0u8..2, 0u32..600, 0u32..600, 0u32..600),
        ) {
            let written = |(id, vout, height, place): (u8, u32, u32, u32)| {
                let outpoint = OutPoint { txid: Txid([id; 32]), vout };
                let (mut spent, mut made) = (Vec::new(), Vec::new());
                SpentRecord { outpoint, height, place }.write(&mut spent);
                MadeRecord { outpoint, height, index: place, coin: &[] }.write(&mut made);
                [spent, made]
            };
            for (one, other) in written(a).iter().zip(written(b)) {
                prop_assert_eq!(one.cmp(&other), a.cmp(&b));
            }
        }
    }
}
