//! [`UndoBytes`]: undo data of a block that shares long scripts with the coins that they are of.
//!
//! A block may spend a quarter of a gigabyte of coins, whose scripts are nearly all of it, and of its undo data too.
//! They are held once.

use crate::coin::CoinBytes;
use std::borrow::Cow;

/// Memory of a coin's own from which on it is shared, in bytes: with less there is little to save.
const SHARED_FROM: usize = 1 << 10;

/// Undo data in Core's form, in several parts of memory.
#[derive(Clone, Default)]
pub struct UndoBytes {
    /// All that is not shared, one after the other.
    own: Vec<u8>,
    /// By ascending place in that.
    shared: Vec<SharedCoin>,
}

/// The end of a coin's stored form, as a part of undo data.
#[derive(Clone)]
struct SharedCoin {
    /// Before which of the bytes that are not shared it belongs.
    at: usize,
    coin: CoinBytes,
    /// Where in the coin it begins.
    from: usize,
}

impl SharedCoin {
    fn bytes(&self) -> &[u8] {
        &self.coin.as_bytes()[self.from..]
    }
}

impl UndoBytes {
    /// Whether a coin is worth being shared.
    pub(super) fn shares(coin: &CoinBytes) -> bool {
        coin.heap_bytes() >= SHARED_FROM
    }

    /// Puts undo data together. Of each coin that is shared is told before which of the other bytes its end belongs,
    /// in ascending order, and how long that is.
    pub(super) fn with(own: Vec<u8>, shared: Vec<(usize, &CoinBytes, usize)>) -> Self {
        let share = |(at, coin, length): (usize, &CoinBytes, usize)| {
            let from = coin.as_bytes().len() - length;
            SharedCoin { at, coin: coin.clone(), from }
        };
        Self { own, shared: shared.into_iter().map(share).collect() }
    }

    /// With some more bytes behind them.
    pub fn followed_by(mut self, end: &[u8]) -> Self {
        self.own.reserve_exact(end.len());
        self.own.extend_from_slice(end);
        self
    }

    /// The bytes, part by part.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.shared.iter().map(|shared| shared.at));
        let ends = self.shared.iter().map(Some).chain([None]);
        begins.zip(ends).flat_map(|(begin, shared)| {
            let end = shared.map_or(self.own.len(), |shared| shared.at);
            [&self.own[begin..end], shared.map_or(&[][..], SharedCoin::bytes)]
        })
    }

    /// How many bytes they are.
    pub fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one place. A copy is made only where something is shared.
    pub fn whole(&self) -> Cow<'_, [u8]> {
        if self.shared.is_empty() {
            return Cow::Borrowed(&self.own);
        }
        let mut whole = Vec::with_capacity(self.len());
        self.parts().for_each(|part| whole.extend_from_slice(part));
        Cow::Owned(whole)
    }

    /// The bytes in pieces of `size`, of which the last may be shorter; none where there are no bytes. A copy is made
    /// of one piece at a time.
    ///
    /// # Panics
    /// When `size` is zero.
    pub fn chunks(&self, size: usize) -> impl Iterator<Item = Cow<'_, [u8]>> {
        assert!(size > 0, "pieces without bytes");
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

    /// Memory that is held for it alone, beyond the value itself, in bytes.
    pub fn own_bytes(&self) -> usize {
        self.own.capacity() + self.shared.capacity() * size_of::<SharedCoin>()
    }

    /// Memory that is held for it, with what it shares.
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
    use apus_chain::CoinRef;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Bytes of its own and a script to be shared, alternately, and the same in one place.
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
    fn without_bytes_there_are_no_pieces() {
        let none = UndoBytes::from(Vec::new());
        assert!(none.is_empty() && none.chunks(5).next().is_none());
        assert_eq!(none.heap_bytes(), 0);
    }
}
