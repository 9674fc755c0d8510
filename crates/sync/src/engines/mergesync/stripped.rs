//! [`StrippedCoin`]: a coin without its script, for a spend whose script is assumed valid.
//!
//! The remaining rules only need the cost of the script's signature operations when it is spent, which
//! depends on its form: pay-to-script-hash, one of the two witness programs of version 0, or any other (Core
//! `consensus/tx_verify.cpp`, `GetTransactionSigOpCost`). So one byte represents the script, and
//! [`read`](StrippedCoin::read) returns a script of the same form. The first two fields are as in the coin's
//! stored form. A stripped coin cannot be used to run scripts, for undo data, or for a sum of coins.

use apus_chain::{CoinRef, CoinValue, Reader, extend_short, read_coin_value};

/// A script of each form, indexed by the byte.
const SCRIPTS: [&[u8]; 4] = [&[], &P2SH, &P2WPKH, &P2WSH];

/// `OP_HASH160`, a hash of 20 bytes, `OP_EQUAL`.
const P2SH: [u8; 23] = begun(&[0xa9, 20], 0x87);
/// `OP_0`, a hash of 20 bytes.
const P2WPKH: [u8; 22] = begun(&[0, 20], 0);
/// `OP_0`, a hash of 32 bytes.
const P2WSH: [u8; 34] = begun(&[0, 32], 0);

/// First byte of the script in a stored coin: P2SH has the number 1, other scripts their length plus 6 (Core
/// `compressor.h`, `ScriptCompression`).
const P2SH_STORED: u8 = 1;
const P2WPKH_STORED: u8 = P2WPKH.len() as u8 + 6;
const P2WSH_STORED: u8 = P2WSH.len() as u8 + 6;

const fn begun<const N: usize>(first: &[u8; 2], last: u8) -> [u8; N] {
    let mut script = [0; N];
    (script[0], script[1], script[N - 1]) = (first[0], first[1], last);
    script
}

/// A coin without its script.
#[derive(Debug, Clone, Copy)]
pub struct StrippedCoin;

impl StrippedCoin {
    /// Appends the stored coin at the start of `stored`, without its script.
    pub fn write(out: &mut Vec<u8>, stored: &[u8]) {
        let (head, script) = stored.split_at(head_length(stored));
        let form = form_of(script);
        match stored.first_chunk() {
            Some(bytes) if head.len() < size_of::<u128>() => {
                let end = 8 * head.len();
                let kept = u128::from_le_bytes(*bytes) & ((1 << end) - 1);
                let bare = kept | u128::from(form) << end;
                extend_short(out, &bare.to_le_bytes(), head.len() + 1);
            }
            _ => {
                out.extend_from_slice(head);
                out.push(form);
            }
        }
    }

    /// Reads a stripped coin; `None` if the bytes are invalid or longer.
    pub fn read(bytes: &[u8]) -> Option<CoinRef<'static>> {
        let mut reader = Reader::new(bytes);
        let CoinValue { height, coinbase, amount } = read_coin_value(&mut reader).ok()?;
        let [form] = *reader.unread() else { return None };
        let script = SCRIPTS.get(usize::from(form))?;
        Some(CoinRef { height, coinbase, amount, script })
    }
}

/// The byte for a stored script that begins like this.
#[inline]
fn form_of(stored: &[u8]) -> u8 {
    match stored {
        [P2SH_STORED, ..] => 1,
        [P2WPKH_STORED, 0, 20, ..] => 2,
        [P2WSH_STORED, 0, 32, ..] => 3,
        _ => 0,
    }
}

/// Length in bytes of the two fields before the script: each ends with its first byte below 0x80.
#[inline]
fn head_length(stored: &[u8]) -> usize {
    const TOP_BITS: u128 = 0x80 * (u128::MAX / 0xff);
    // Together they have at most 14 bytes.
    if let Some(bytes) = stored.first_chunk() {
        let ends = !u128::from_le_bytes(*bytes) & TOP_BITS;
        let second = ends & ends.wrapping_sub(1);
        return (second.trailing_zeros() as usize / 8 + 1).min(stored.len());
    }
    let mut ends = (0..).zip(stored).filter(|(_, byte)| **byte < 0x80);
    ends.nth(1).map_or(stored.len(), |(at, _)| at + 1)
}

// [`IndexedCoin`]: a coin with its number ([`commitment`](crate::commitment)).
//
// The number follows the coin's stored form in four bytes, big-endian, from the first walk over the blocks to
// the second one; the join ignores it. A coin that its own block spends has no number: all bits are ones.

const NO_NUMBER: u32 = u32::MAX;

/// Length in bytes of the number.
const SIZE: usize = 4;

/// A coin with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedCoin<'a> {
    /// The coin in its stored form.
    pub coin: &'a [u8],
    /// Its number among the outputs of its block; `None` if that block spends it.
    pub number: Option<u32>,
}

impl<'a> IndexedCoin<'a> {
    /// Splits the bytes into coin and number; `None` if they are too short.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (coin, number) = bytes.split_last_chunk::<SIZE>()?;
        let number = Some(u32::from_be_bytes(*number)).filter(|number| *number != NO_NUMBER);
        (!coin.is_empty()).then_some(Self { coin, number })
    }

    /// Appends the mark of a coin without a number.
    pub(super) fn no_number(out: &mut Vec<u8>) {
        out.extend_from_slice(&NO_NUMBER.to_be_bytes());
    }

    /// Sets the number of a coin.
    pub(super) fn set_number(bytes: &mut [u8], number: u32) {
        if let Some(behind) = bytes.last_chunk_mut::<SIZE>() {
            *behind = number.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{
        BlockLayout, VERIFY_P2SH, VERIFY_WITNESS, transaction_sigop_cost, write_coin,
    };
    use bitcoin::{Amount, Block, OutPoint, ScriptBuf, Transaction, TxIn, TxOut, Witness};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn script() -> impl Strategy<Value = Vec<u8>> {
        let program =
            |version: u8, length: usize| [&[version, length as u8][..], &vec![7; length]].concat();
        prop_oneof![
            (prop_oneof![Just(0u8), Just(0x51)], prop_oneof![19usize..22, 31usize..34])
                .prop_map(move |(version, length)| program(version, length)),
            Just([&[0xa9, 20][..], &[7; 20], &[0x87]].concat()),
            Just([&[0x76, 0xa9, 20][..], &[7; 20], &[0x88, 0xac]].concat()),
            Just([&[33, 2][..], &[7; 32], &[0xac]].concat()),
            vec(any::<u8>(), 0..60),
        ]
    }

    proptest! {
        #[test]
        fn all_but_the_script_round_trips(
            height in 0u32..=apus_chain::COIN_HEIGHT_MAX,
            coinbase: bool,
            amount in 0..=apus_chain::MAX_MONEY,
            script in script(),
            behind in vec(any::<u8>(), 0..5),
        ) {
            let coin = CoinRef { height, coinbase, amount, script: &script };
            let mut stored = Vec::new();
            write_coin(&mut stored, coin);
            stored.extend_from_slice(&behind);
            let mut bare = Vec::new();
            StrippedCoin::write(&mut bare, &stored);
            prop_assert_eq!(StrippedCoin::read(&bare).unwrap().value(), coin.value());
            prop_assert!(bare.len() <= 15);
            for length in 0..bare.len() {
                prop_assert!(StrippedCoin::read(&bare[..length]).is_none());
            }
            bare.push(0);
            prop_assert!(StrippedCoin::read(&bare).is_none());
        }

        /// A script's substitute costs the same as the script.
        #[test]
        fn signature_operations_cost_the_same(
            script in script(),
            redeem in script(),
            witness in vec(vec(any::<u8>(), 0..9), 0..3),
            flags in 0u32..4,
        ) {
            let coin = CoinRef { height: 5, coinbase: false, amount: 6, script: &script };
            let (mut stored, mut bare) = (Vec::new(), Vec::new());
            write_coin(&mut stored, coin);
            StrippedCoin::write(&mut bare, &stored);
            let script_sig = [&[0x4c, redeem.len() as u8][..], &redeem].concat();
            let input = TxIn {
                previous_output: OutPoint::default(),
                script_sig: ScriptBuf::from_bytes(script_sig),
                sequence: bitcoin::Sequence::MAX,
                witness: Witness::from_slice(&witness),
            };
            // A coinbase's outpoint is a different one.
            let input = TxIn { previous_output: OutPoint { vout: 3, ..input.previous_output }, ..input };
            let output = TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new() };
            let tx = Transaction {
                version: bitcoin::transaction::Version::TWO,
                lock_time: bitcoin::absolute::LockTime::ZERO,
                input: vec![input],
                output: vec![output],
            };
            let mut block: Block = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
            block.txdata = vec![tx];
            let raw = bitcoin::consensus::serialize(&block);
            let mut layout = BlockLayout::new();
            let tx = layout.read(&raw).unwrap().tx(0).unwrap();
            let flags = ((flags & 1) * VERIFY_P2SH) | ((flags >> 1) * VERIFY_WITNESS);
            let cost = |script: &[u8]| transaction_sigop_cost(&tx, [script], flags);
            prop_assert_eq!(cost(StrippedCoin::read(&bare).unwrap().script), cost(&script));
        }
    }

    #[test]
    fn heads_of_every_length_are_measured() {
        for (first, second) in (0..5).flat_map(|first| (0..9).map(move |second| (first, second))) {
            let head = [vec![0xff; first], vec![0x7f], vec![0x80; second], vec![0]].concat();
            for behind in 0..20 {
                let stored = [&head[..], &vec![0x85; behind]].concat();
                assert_eq!(head_length(&stored), head.len(), "{behind} behind {head:?}");
            }
        }
        assert_eq!(head_length(&[0x80; 3]), 3);
        assert_eq!(head_length(&[0x80; 30]), 17, "not a coin, and no panic");
    }

    #[test]
    fn unknown_script_forms_are_refused() {
        assert!(StrippedCoin::read(&[2, 3, 3]).is_some());
        assert!(StrippedCoin::read(&[2, 3, 4]).is_none());
    }
}

#[cfg(test)]
mod numbered_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(coin in prop::collection::vec(any::<u8>(), 1..50), number in 0..NO_NUMBER) {
            let mut bytes = coin.clone();
            IndexedCoin::no_number(&mut bytes);
            prop_assert_eq!(IndexedCoin::read(&bytes), Some(IndexedCoin { coin: &coin, number: None }));
            IndexedCoin::set_number(&mut bytes, number);
            let numbered = IndexedCoin { coin: &coin, number: Some(number) };
            prop_assert_eq!(IndexedCoin::read(&bytes), Some(numbered));
        }
    }

    #[test]
    fn bytes_without_a_coin_are_refused() {
        assert!((0..5).all(|length| IndexedCoin::read(&[7; 5][..length]).is_none()));
    }
}
