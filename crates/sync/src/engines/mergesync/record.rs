//! The records that link blocks: created coins, spends and answers.
//!
//! Keys come first, with numbers in big-endian, so that sorting by bytes sorts the records. A run is a
//! sequence of records; each says how long it is. Coins are not parsed here.
//!
//! ```text
//! .made                                .spent                               .answers, spill-answers
//! 32    txid                           36    txid, output                   4     height that spends
//! 4     height that creates it         4     height that spends it          4     place of the input
//! 4     length of the coins            4     place of the input             2     length of the coin
//! …     coins, by ascending output                                          …     coin
//! ```
//!
//! A place is the input's number within the block, without the coinbase's inputs. Each coin in a `.made` is
//! three CompactSizes and the coin: the output, its index among the block's spendable outputs, the coin's
//! length. A coin of length 0 is spent by its own block. If proofs are made or roots of the Utreexo forest
//! are wanted, four bytes follow each coin: its number among its block's leaves, all ones if it is not a
//! leaf. For blocks whose witnesses are skipped an answer's coin has one byte in place of its script: 1 P2SH,
//! 2 P2WPKH, 3 P2WSH, 0 any other. `.prints` has the 128-bit XXH3 of each block's bytes under the plan's
//! secret, zeros if its spend summary is kept; `.added` four bytes for each block, the number of leaves it
//! adds; `.blocks` the blocks from peers that wait for the second walk, each after its height and its length
//! (4 each); `spill-places` height and number of each surviving coin, four bytes each; `spill-leaves` the number
//! of each surviving leaf (8) and its hash (32).

use super::stripped::StrippedCoin;
use apus_chain::{Height, OutPoint, Reader, Txid, write_compact_size};

/// Coins that a transaction creates: `txid ‖ height ‖ length ‖ coins`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputRecord<'a> {
    /// Transaction id.
    pub txid: Txid,
    /// Height of its block.
    pub height: Height,
    /// Its coins, as [`OutputCoin::write`] wrote them, by ascending output.
    coins: &'a [u8],
}

/// A coin that a transaction creates: output, index, length of the coin and the coin, the numbers as
/// CompactSizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputCoin<'a> {
    /// Output number within its transaction.
    pub vout: u32,
    /// Index among the block's spendable outputs.
    pub index: u32,
    /// The coin in its stored form; empty if its own block spends it.
    pub coin: &'a [u8],
}

/// A coin that a block spends from the blocks below it: `outpoint ‖ height ‖ place`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpendRecord {
    /// Outpoint.
    pub outpoint: OutPoint,
    /// Height of the spending block.
    pub height: Height,
    /// Number of the input within the block, without the coinbase's.
    pub place: u32,
}

/// The coin that an input spends: `height ‖ place ‖ length ‖ coin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrevoutRecord<'a> {
    /// Height of the spending block.
    pub height: Height,
    /// Number of the input within the block, without the coinbase's.
    pub place: u32,
    /// The coin in its stored form, or a [`StrippedCoin`] if no scripts are run.
    pub coin: &'a [u8],
}

impl<'a> OutputCoin<'a> {
    /// Appends the coin to its transaction's coins.
    pub fn write(&self, out: &mut Vec<u8>) {
        Self::append(out, self.vout, self.index, |out| out.extend_from_slice(self.coin));
    }

    /// Appends the coin; `write` appends its own bytes. Returns their number; they are the last bytes of `out`.
    pub fn append(
        out: &mut Vec<u8>,
        vout: u32,
        index: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        write_compact_size(out, u64::from(vout));
        write_compact_size(out, u64::from(index));
        // Nearly all coins are short enough for a one-byte length.
        let at = out.len();
        out.push(0);
        write(out);
        let length = out.len() - at - 1;
        match u8::try_from(length) {
            Ok(length @ ..0xfd) => out[at] = length,
            _ => {
                let mut bytes = Vec::new();
                write_compact_size(&mut bytes, length as u64);
                out.splice(at..=at, bytes);
            }
        }
        length
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let mut number = || u32::try_from(reader.compact_size().ok()?).ok();
        let (vout, index, length) = (number()?, number()?, number()?);
        Some(Self { vout, index, coin: reader.take(length as usize).ok()? })
    }
}

impl<'a> OutputRecord<'a> {
    /// Length in bytes before the coins.
    pub(super) const HEAD: usize = 32 + 4 + 4;

    /// Appends the record; `coins` writes its coins.
    pub fn write(out: &mut Vec<u8>, txid: &Txid, height: Height, coins: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(&txid.0);
        out.extend_from_slice(&height.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        let start = out.len();
        coins(out);
        // A transaction's outputs take only a few bytes more here than in a block.
        let length = (out.len() - start) as u32;
        out[start - 4..start].copy_from_slice(&length.to_be_bytes());
    }

    /// The record with these coins, which were read before.
    pub(super) fn of(txid: Txid, height: Height, coins: &'a [u8]) -> Self {
        Self { txid, height, coins }
    }

    /// The bytes of all its coins.
    pub(super) fn coin_bytes(&self) -> &'a [u8] {
        self.coins
    }

    /// Splits the first record off `bytes`; `None` if it is incomplete or its outputs do not ascend.
    pub fn read(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(Self::HEAD)?;
        let mut reader = Reader::new(head);
        let txid = Txid(*reader.array().ok()?);
        let (height, length) = (big_endian(&mut reader)?, big_endian(&mut reader)?);
        let (coins, rest) = rest.split_at_checked(length as usize)?;
        let (mut reader, mut last) = (Reader::new(coins), None);
        while reader.remaining() > 0 {
            let coin = OutputCoin::read(&mut reader).filter(|coin| last < Some(coin.vout))?;
            last = Some(coin.vout);
        }
        Some((Self { txid, height, coins }, rest))
    }

    /// The coins, by ascending output.
    pub fn coins(&self) -> impl Iterator<Item = OutputCoin<'a>> + use<'a> {
        let mut reader = Reader::new(self.coins);
        std::iter::from_fn(move || OutputCoin::read(&mut reader))
    }
}

impl SpendRecord {
    /// Length in bytes.
    pub const SIZE: usize = 36 + 4 + 4;

    /// Appends the record.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_outpoint(out, &self.outpoint);
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes());
    }

    /// Splits the first record off `bytes`; `None` if it is incomplete.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (record, rest) = bytes.split_first_chunk::<{ Self::SIZE }>()?;
        let mut reader = Reader::new(record);
        let outpoint = read_outpoint(&mut reader)?;
        let (height, place) = (big_endian(&mut reader)?, big_endian(&mut reader)?);
        Some((Self { outpoint, height, place }, rest))
    }
}

impl<'a> PrevoutRecord<'a> {
    pub(super) const HEAD: usize = 4 + 4 + 2;

    /// Appends the record.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.height.to_be_bytes());
        out.extend_from_slice(&self.place.to_be_bytes());
        write_coin(out, self.coin);
    }

    /// Appends the record with its coin, given in stored form, [stripped](StrippedCoin).
    pub fn write_bare(&self, out: &mut Vec<u8>) {
        PrevoutRecord { coin: &[], ..*self }.write(out);
        let start = out.len();
        StrippedCoin::write(out, self.coin);
        let length = (out.len() - start) as u16;
        out[start - 2..start].copy_from_slice(&length.to_be_bytes());
    }

    /// Splits the first record off `bytes`; `None` if it is incomplete.
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

/// Writes a coin, prefixed by its length. Spendable coins have scripts of at most 10,000 bytes.
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
    use apus_chain::CoinRef;
    use apus_engine::coin::CoinBytes;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    fn txid() -> impl Strategy<Value = Txid> {
        any::<[u8; 32]>().prop_map(Txid)
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
        fn records_round_trip(
            txid in txid(),
            height: u32,
            place: u32,
            coins in btree_map(0u32..1 << 20, (0u32..1 << 20, prop_oneof![coin(), Just(vec![])]), 0..5),
            rest in vec(any::<u8>(), 0..9),
        ) {
            let coins: Vec<OutputCoin<'_>> = coins
                .iter()
                .map(|(vout, (index, coin))| OutputCoin { vout: *vout, index: *index, coin })
                .collect();
            let mut out = Vec::new();
            OutputRecord::write(&mut out, &txid, height, |out| {
                coins.iter().for_each(|coin| coin.write(out));
            });
            out.extend_from_slice(&rest);
            let (made, after) = OutputRecord::read(&out).unwrap();
            prop_assert_eq!((made.txid, made.height, after), (txid, height, &rest[..]));
            prop_assert_eq!(made.coins().collect::<Vec<_>>(), coins.clone());
            let outpoint = OutPoint { txid, vout: place };
            let spent = SpendRecord { outpoint, height, place };
            out.clear();
            spent.write(&mut out);
            out.extend_from_slice(&rest);
            prop_assert_eq!(SpendRecord::read(&out), Some((spent, &rest[..])));
            for OutputCoin { coin, .. } in coins {
                let answer = PrevoutRecord { height, place, coin };
                out.clear();
                answer.write(&mut out);
                out.extend_from_slice(&rest);
                prop_assert_eq!(PrevoutRecord::read(&out), Some((answer, &rest[..])));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            head in vec(any::<u8>(), 36),
            length in 0u32..20,
            coins in vec(0u8..6, 0..24),
        ) {
            let bytes = [&head[..], &length.to_be_bytes(), &coins].concat();
            let mut out = Vec::new();
            if let Some((record, rest)) = OutputRecord::read(&bytes) {
                OutputRecord::write(&mut out, &record.txid, record.height, |out| {
                    record.coins().for_each(|coin| coin.write(out));
                });
                prop_assert_eq!(&[&out[..], rest].concat(), &bytes);
            }
            out.clear();
            if let Some((record, rest)) = PrevoutRecord::read(&bytes[30..]) {
                record.write(&mut out);
                prop_assert_eq!(&[&out[..], rest].concat(), &bytes[30..]);
            }
        }

        /// The order of the bytes is the order of the outpoints, then of the chain.
        #[test]
        fn records_are_sorted_by_their_bytes(
            a in (0u8..2, 0u32..600, 0u32..600, 0u32..600),
            b in (0u8..2, 0u32..600, 0u32..600, 0u32..600),
        ) {
            let spent = |(id, vout, height, place): (u8, u32, u32, u32)| {
                let outpoint = OutPoint { txid: Txid([id; 32]), vout };
                let mut spent = Vec::new();
                SpendRecord { outpoint, height, place }.write(&mut spent);
                spent
            };
            let made = |(id, height, ..): (u8, u32, u32, u32)| {
                let mut made = Vec::new();
                OutputRecord::write(&mut made, &Txid([id; 32]), height, |_| ());
                made
            };
            prop_assert_eq!(spent(a).cmp(&spent(b)), a.cmp(&b));
            prop_assert_eq!(made(a).cmp(&made(b)), (a.0, a.1).cmp(&(b.0, b.1)));
        }
    }

    /// Outputs ascend, and no coin extends past its record.
    #[test]
    fn invalid_coins_are_not_records() {
        let record = |coins: &[u8]| {
            let mut out = Vec::new();
            OutputRecord::write(&mut out, &Txid([1; 32]), 7, |out| out.extend_from_slice(coins));
            OutputRecord::read(&out).is_some()
        };
        assert!(record(&[]) && record(&[0, 0, 0, 1, 0, 2, 9, 9]));
        for coins in [&[1, 0, 0, 0, 0, 0][..], &[1, 0, 0, 1, 0, 0], &[1, 0, 3, 9, 9], &[1, 0]] {
            assert!(!record(coins), "{coins:?}");
        }
    }
}
