//! Builds and applies a block's undo data in the form of Core's undo files. [`UndoBytes`] share
//! long scripts with their coins.
//!
//! A block may spend a quarter of a gigabyte of coins. Nearly all of that is scripts, and so is
//! nearly all of its undo data. They are kept in memory only once.

use super::delta::{CoinChange, CoinsDelta};
use super::prepared::{Place, wanted_of};
use crate::coin::CoinBytes;
use apus_chain::{BlockUndo, BlockUndoWriter, BlockView, CheckedBlock, OutPoint, is_unspendable};
use std::borrow::Cow;
use std::collections::HashSet;

/// Maximum number of bytes written for a shared coin: its height and coinbase flag, and a zero.
const SHARED_HEAD: usize = 6;

/// Builds the undo data of a block that spends `spent`, in input order.
pub fn block_undo(view: BlockView<'_>, spent: &[impl AsRef<[u8]>]) -> Vec<u8> {
    write_undo(view, spent, |_| false).0
}

/// Like [`block_undo`], but shares long scripts with the coins.
pub fn shared_undo(view: BlockView<'_>, spent: &[CoinBytes]) -> UndoBytes {
    let (own, shared) = write_undo(view, spent, UndoBytes::shares);
    UndoBytes::with(own, shared)
}

/// Writes the undo data of a block without the ends of shared coins. For each of these returns the
/// position of the end, the coin, and the length of the end.
fn write_undo<'c, C: AsRef<[u8]>>(
    view: BlockView<'_>,
    spent: &'c [C],
    shares: impl Fn(&C) -> bool,
) -> (Vec<u8>, Vec<(usize, &'c C, usize)>) {
    // Many of these wait for a flush at the same time, so there is little spare capacity: one byte
    // more than the stored form of each coin, and for each transaction its coin count of at most
    // three bytes.
    let own = |coin: &C| if shares(coin) { SHARED_HEAD } else { coin.as_ref().len() + 1 };
    let coins: usize = spent.iter().map(own).sum();
    let mut out = Vec::with_capacity(16 + view.tx_count() * 3 + coins);
    let (mut writer, mut shared) = (BlockUndoWriter::new(&mut out, view.tx_count()), Vec::new());
    let mut rest = spent;
    for tx in view.txs().skip(1) {
        let (coins, after) = rest.split_at(tx.inputs().len());
        rest = after;
        let mut each = coins.iter();
        let leave = |at: usize, end: &[u8]| {
            let coin = each.next().expect("it is called once for each coin");
            let shares = shares(coin);
            if shares {
                shared.push((at, coin, end.len()));
            }
            shares
        };
        writer
            .push_stored_tx_without(coins.iter().map(AsRef::as_ref), leave)
            .expect("coins are in their stored form");
    }
    writer.finish();
    (out, shared)
}

/// Returns the effect of disconnecting a block (Core `validation.cpp`, `DisconnectBlock`): removes
/// the coins it created, and restores the coins it spent. Fails if the undo data belongs to another
/// block.
///
/// As in Core, a coin that one of BIP-30's two exceptions overwrote is not restored.
pub fn undo_delta(block: &CheckedBlock, undo: &[u8]) -> Result<CoinsDelta, String> {
    let undo = BlockUndo::read(undo).map_err(|error| format!("cannot be read: {error}"))?;
    let bytes = block.bytes();
    let view = bytes.view();
    let inputs: usize = view.txs().skip(1).map(|tx| tx.inputs().len()).sum();
    if undo.tx_count() != view.tx_count() || undo.coins().len() != inputs {
        return Err("is of another block".to_owned());
    }
    let (mut wanted, mut places) = (Vec::new(), Vec::new());
    wanted_of(&bytes, &mut wanted, &mut places);
    let spends = view.txs().skip(1).flat_map(|tx| tx.inputs());
    // Coins that the block both created and spent were in no set, before or after.
    let within: HashSet<OutPoint> = spends
        .zip(&places)
        .filter(|(_, place)| matches!(place, Place::Created { .. }))
        .map(|(input, _)| OutPoint::from_bytes(input.outpoint()))
        .collect();
    let mut delta = CoinsDelta::with_capacity(inputs + view.output_count());
    for (txid, tx) in bytes.txs() {
        for (vout, output) in tx.outputs().enumerate() {
            let outpoint = OutPoint { txid, vout: vout as u32 };
            if !is_unspendable(output.script()) && !within.contains(&outpoint) {
                delta.spend(outpoint);
            }
        }
    }
    let mut stored = Vec::new();
    for (place, coin) in places.iter().zip(undo.coins()) {
        if let Place::Wanted(index) = place {
            stored.clear();
            coin.write_stored(&mut stored);
            let coin = CoinBytes::read(&stored).map_err(|error| format!("is damaged: {error}"))?;
            delta.create(wanted[*index as usize], coin, false);
        }
    }
    Ok(delta)
}

/// Returns by how much a change increases the number of coins.
pub fn coins_added(delta: &CoinsDelta) -> i64 {
    let one = |change: &CoinChange| match change {
        CoinChange::Created { .. } => 1,
        CoinChange::Spent => -1,
    };
    delta.iter().map(|(_, change)| one(change)).sum()
}

/// Minimum heap memory of a coin to be shared, in bytes: below this there is little to save.
const SHARED_FROM: usize = 1 << 10;

/// Undo data in Core's form, in several parts of memory.
#[derive(Clone, Default)]
pub struct UndoBytes {
    /// All bytes that are not shared, concatenated.
    own: Vec<u8>,
    /// The shared ends, by ascending position in `own`.
    shared: Vec<SharedCoin>,
}

/// The end of a coin's stored form, as a part of undo data.
#[derive(Clone)]
struct SharedCoin {
    /// Position in `own` before which it belongs.
    at: usize,
    coin: CoinBytes,
    /// Where it begins in the coin.
    from: usize,
}

impl SharedCoin {
    fn bytes(&self) -> &[u8] {
        &self.coin.as_bytes()[self.from..]
    }
}

impl UndoBytes {
    /// Returns whether sharing a coin is worthwhile.
    pub(super) fn shares(coin: &CoinBytes) -> bool {
        coin.heap_bytes() >= SHARED_FROM
    }

    /// Assembles undo data. `shared` lists the shared coins in ascending order, each with the
    /// position in `own` before which its end belongs, and the length of the end.
    pub(super) fn with(own: Vec<u8>, shared: Vec<(usize, &CoinBytes, usize)>) -> Self {
        let share = |(at, coin, length): (usize, &CoinBytes, usize)| {
            let from = coin.as_bytes().len() - length;
            SharedCoin { at, coin: coin.clone(), from }
        };
        Self { own, shared: shared.into_iter().map(share).collect() }
    }

    /// Appends bytes.
    pub fn followed_by(mut self, end: &[u8]) -> Self {
        self.own.reserve_exact(end.len());
        self.own.extend_from_slice(end);
        self
    }

    /// Returns the bytes, part by part.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.shared.iter().map(|shared| shared.at));
        let ends = self.shared.iter().map(Some).chain([None]);
        begins.zip(ends).flat_map(|(begin, shared)| {
            let end = shared.map_or(self.own.len(), |shared| shared.at);
            [&self.own[begin..end], shared.map_or(&[][..], SharedCoin::bytes)]
        })
    }

    /// Returns the total number of bytes.
    pub fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all bytes contiguously. Copies only if something is shared.
    pub fn whole(&self) -> Cow<'_, [u8]> {
        if self.shared.is_empty() {
            return Cow::Borrowed(&self.own);
        }
        let mut whole = Vec::with_capacity(self.len());
        self.parts().for_each(|part| whole.extend_from_slice(part));
        Cow::Owned(whole)
    }

    /// Returns the bytes in pieces of `size`; the last one may be shorter, and without bytes there
    /// are none. Copies one piece at a time.
    ///
    /// # Panics
    ///
    /// Panics if `size` is zero.
    pub fn chunks(&self, size: usize) -> impl Iterator<Item = Cow<'_, [u8]>> {
        assert!(size > 0, "the size of pieces must not be zero");
        let mut parts = self.parts();
        let mut rest: &[u8] = &[];
        std::iter::from_fn(move || {
            let mut piece = Cow::Borrowed(&[][..]);
            while piece.len() < size {
                if rest.is_empty() {
                    let Some(part) = parts.next() else { break };
                    rest = part;
                }
                let (some, others) = rest.split_at(rest.len().min(size - piece.len()));
                rest = others;
                match piece.is_empty() {
                    true => piece = Cow::Borrowed(some),
                    false => piece.to_mut().extend_from_slice(some),
                }
            }
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Returns its unshared memory in addition to the value itself, in bytes.
    pub fn own_bytes(&self) -> usize {
        self.own.capacity() + self.shared.capacity() * size_of::<SharedCoin>()
    }

    /// Returns its memory including shared memory, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let shared: usize = self.shared.iter().map(|shared| shared.coin.heap_bytes()).sum();
        self.own_bytes() + shared
    }
}

impl From<Vec<u8>> for UndoBytes {
    fn from(own: Vec<u8>) -> Self {
        Self { own, shared: Vec::new() }
    }
}

impl From<UndoBytes> for Vec<u8> {
    fn from(undo: UndoBytes) -> Self {
        match undo.shared.is_empty() {
            true => undo.own,
            false => undo.whole().into_owned(),
        }
    }
}

impl PartialEq for UndoBytes {
    fn eq(&self, other: &Self) -> bool {
        self.whole() == other.whole()
    }
}

impl Eq for UndoBytes {}

impl std::fmt::Debug for UndoBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of undo data", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{BlockChecker, BlockContext, BlockHash, CoinRef, Network, Params};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn real_block() -> CheckedBlock {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/main-blocks");
        let name = "170060_00000000000002dc756eebf4f49723ed8d30cc28a5f108eb94b1ba88ac4f9c22.raw";
        let raw = std::fs::read(format!("{folder}/{name}")).unwrap();
        let context = BlockContext {
            params: Params::of(Network::Main),
            height: 170_060,
            hash: BlockHash(apus_hash::sha256d(&raw[..80])),
            median_time_past: u32::MAX,
            verifier: None,
        };
        BlockChecker::new().check_owned(raw, &context).map_err(|(_, error)| error).unwrap()
    }

    /// Builds undo data of transactions with these numbers of inputs.
    fn undo_of(inputs: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = BlockUndoWriter::new(&mut out, inputs.len() + 1);
        let coin = CoinRef { height: 9, coinbase: false, amount: 1, script: &[0x51] };
        inputs.iter().for_each(|&count| writer.push_tx(std::iter::repeat_n(coin, count)));
        writer.finish();
        out
    }

    /// Builds distinct coins for the inputs of a block.
    fn coins_of(lengths: &[usize], inputs: usize) -> Vec<CoinBytes> {
        let coin = |number: usize| {
            let length = lengths[number % lengths.len()];
            let script = [&[0x51][..], &number.to_le_bytes()[..], &vec![0x51; length][..]].concat();
            let (height, coinbase) = ((number as u32 + 1) * 1000, number.is_multiple_of(3));
            CoinBytes::new(CoinRef { height, coinbase, amount: number as u64, script: &script })
        };
        (0..inputs).map(coin).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn shared_coins_match_each_inputs_coin(
            lengths in vec(prop_oneof![0usize..60, 900usize..1_100, Just(9_990)], 1..12),
        ) {
            let block = real_block();
            let view = block.bytes().view();
            let inputs = view.txs().skip(1).map(|tx| tx.inputs().len()).sum();
            let spent = coins_of(&lengths, inputs);
            let (shared, whole) = (shared_undo(view, &spent), block_undo(view, &spent));
            prop_assert_eq!(&*shared.whole(), &whole[..]);
            let long = spent.iter().filter(|coin| UndoBytes::shares(coin)).count();
            prop_assert_eq!(shared.own_bytes() < whole.len(), long > 0);
            // After undoing, each outpoint has the coin that its input spent.
            let delta = undo_delta(&block, &Vec::from(shared)).unwrap();
            let inputs = view.txs().skip(1).flat_map(|tx| tx.inputs());
            for (input, coin) in inputs.zip(&spent) {
                // Coins that the block created itself are removed.
                if let Some(Some(found)) = delta.get(&OutPoint::from_bytes(input.outpoint())) {
                    prop_assert_eq!(found, coin);
                }
            }
        }
    }

    #[test]
    fn undo_data_of_another_block_is_refused() {
        let block = real_block();
        let inputs: Vec<usize> =
            block.bytes().view().txs().skip(1).map(|tx| tx.inputs().len()).collect();
        assert!(undo_delta(&block, &undo_of(&inputs)).is_ok());
        // Try one transaction fewer with the same number of coins, then the same transactions with
        // one more coin.
        let fewer = [&[inputs[0] + inputs[1]], &inputs[2..]].concat();
        let more = [&[inputs[0] + 1], &inputs[1..]].concat();
        for other in [fewer, more] {
            let error = undo_delta(&block, &undo_of(&other)).unwrap_err();
            assert_eq!(error, "is of another block");
        }
    }
}

#[cfg(test)]
mod shared_tests {
    use super::*;
    use apus_chain::CoinRef;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Unshared bytes and shared scripts alternately, and the same bytes contiguously.
    fn undo_of(parts: &[(Vec<u8>, usize)]) -> (UndoBytes, Vec<u8>) {
        let (mut own, mut shared, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for (bytes, length) in parts {
            own.extend_from_slice(bytes);
            whole.extend_from_slice(bytes);
            let script = vec![bytes.len() as u8; 1_000 + length];
            let coin =
                CoinBytes::new(CoinRef { height: 1, coinbase: false, amount: 1, script: &script });
            shared.push((own.len(), coin, script.len()));
            whole.extend_from_slice(&script);
        }
        own.extend_from_slice(b"end");
        whole.extend_from_slice(b"end");
        let shared = shared.iter().map(|(at, coin, length)| (*at, coin, *length)).collect();
        (UndoBytes::with(own, shared), whole)
    }

    proptest! {
        #[test]
        fn parts_and_pieces_are_the_whole(
            parts in vec((vec(any::<u8>(), 0..40), 0usize..2_000), 0..6),
            size in 1usize..3_000,
        ) {
            let (undo, whole) = undo_of(&parts);
            prop_assert_eq!(undo.len(), whole.len());
            prop_assert_eq!(&*undo.whole(), &whole[..]);
            prop_assert_eq!(Vec::from(undo.clone()), whole.clone());
            prop_assert_eq!(undo.parts().flatten().copied().collect::<Vec<_>>(), whole.clone());
            let pieces: Vec<_> = undo.chunks(size).map(Cow::into_owned).collect();
            prop_assert_eq!(pieces, whole.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>());
            prop_assert_eq!(&undo, &UndoBytes::from(whole.clone()));
            let longer = UndoBytes::from([&whole[..], &[7, 8]].concat());
            prop_assert_eq!(undo.followed_by(&[7, 8]), longer);
        }
    }

    #[test]
    fn empty_undo_data_has_no_pieces() {
        let none = UndoBytes::from(Vec::new());
        assert!(none.is_empty() && none.chunks(5).next().is_none());
        assert_eq!(none.heap_bytes(), 0);
    }
}
