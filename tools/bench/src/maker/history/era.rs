//! The main chain by eras: how much each range of heights holds, and of which kinds.
//!
//! Each row ends at a height and has totals at that height, so that a rate is a difference of two rows.
//! Within a row all rates are constant.
//!
//! Sources:
//! - Transactions at 840,000, 880,000, 910,000 and 935,000: `m_assumeutxo_data` in Bitcoin Core's
//!   `kernel/chainparams.cpp`, as in `chain::params`.
//! - All other totals: recalled from published charts of the number of transactions, the size of the chain and
//!   the number of unspent outputs, and not compared with them again. Expect errors of some percent, and more
//!   before 200,000. A node's `getchaintxstats` and `gettxoutsetinfo` would give exact rows.
//! - Kinds and shares of data: estimates from published statistics by year. Keys were uncompressed before
//!   version 0.6 of the reference client (March 2012); SegWit is active from 481,824 on and taproot from
//!   709,632 on.
//!
//! `kept` has no source: no one can know it before the end of the chain. It is the number of coins that are
//! still there at the last height, chosen so that enough other coins exist for the years in which the set
//! shrank (2018 and 2025), and for the last blocks.

use crate::maker::law::PaymentKind;
use apus_chain::Height;

/// Height of the last row.
pub(in crate::maker) const TIP: Height = 935_000;

/// A range of heights, up to and including `end`.
#[derive(Debug, Clone, Copy)]
pub(in crate::maker) struct Era {
    pub(in crate::maker) end: Height,
    /// Transactions up to `end`, in thousands. Nothing is steered by it: tests compare it with the result.
    #[cfg_attr(not(test), expect(dead_code, reason = "the result is compared with it"))]
    pub(in crate::maker) txs: u64,
    /// Bytes of blocks up to `end`, in millions.
    pub(in crate::maker) bytes: u64,
    /// Coins at `end`, in thousands.
    pub(in crate::maker) coins: u64,
    /// Coins at `end` that are never spent, in thousands.
    pub(in crate::maker) kept: u64,
    /// Kinds of the payments made: shares of any sum.
    pub(in crate::maker) kinds: &'static [(PaymentKind, u32)],
    /// Values in satoshis of most coins that are never spent.
    pub(in crate::maker) dust: (u64, u64),
    /// Of 1,000 transactions, the number that carries data.
    pub(in crate::maker) data_per_mille: u64,
    /// Of 1,000 transactions, the number that has one input and at most two payments, beyond the usual ones.
    pub(in crate::maker) simple_per_mille: u64,
    /// Of 1,000 spent inscriptions, the number of 20,000 bytes or more.
    pub(in crate::maker) images_per_mille: u64,
}

impl Era {
    const fn new(end: Height, [txs, bytes, coins, kept]: [u64; 4]) -> Self {
        let (kinds, dust) = (&[(PaymentKind::Pkh, 1)], (300, 1_000));
        Self {
            end,
            txs,
            bytes,
            coins,
            kept,
            kinds,
            dust,
            data_per_mille: 0,
            simple_per_mille: 0,
            images_per_mille: 0,
        }
    }

    const fn kinds(self, kinds: &'static [(PaymentKind, u32)]) -> Self {
        Self { kinds, ..self }
    }

    const fn data(self, data_per_mille: u64) -> Self {
        Self { data_per_mille, ..self }
    }

    const fn dust(self, least: u64, most: u64) -> Self {
        Self { dust: (least, most), ..self }
    }

    const fn simple(self, simple_per_mille: u64) -> Self {
        Self { simple_per_mille, ..self }
    }

    const fn images(self, images_per_mille: u64) -> Self {
        Self { images_per_mille, ..self }
    }
}

use PaymentKind::{Multisig, PkLong, Pkh, PkhLong, Sh, ShWpkh, Tr, TrScript, Wpkh, Wsh};

/// The main chain.
pub(in crate::maker) const ERAS: &[Era] = &[
    // Rows of transactions (thousands), bytes (millions), coins and kept coins (thousands).
    // 2009 and 2010: nearly empty blocks, coinbases that pay to keys.
    Era::new(100_000, [217, 55, 72, 40]).kinds(&[(PkLong, 50), (PkhLong, 50)]),
    // 2011: the first wave of users.
    Era::new(150_000, [1_600, 690, 1_200, 300]).kinds(&[(PkhLong, 98), (PkLong, 2)]),
    // 2012: bets with tiny payouts; keys are compressed from now on.
    Era::new(200_000, [7_300, 2_900, 2_400, 800]).kinds(&[(PkhLong, 70), (Pkh, 30)]).dust(1, 1_000),
    // 2013: more bets, and dust, until nodes stopped relaying it.
    Era::new(250_000, [21_500, 10_400, 7_000, 2_500])
        .kinds(&[(PkhLong, 45), (Pkh, 54), (Multisig, 1), (Sh, 1)])
        .dust(1, 5_430),
    Era::new(300_000, [38_500, 18_500, 11_500, 4_500])
        .kinds(&[(PkhLong, 22), (Pkh, 74), (Sh, 3), (Multisig, 1)])
        .dust(546, 5_430),
    Era::new(350_000, [64_900, 33_000, 19_000, 8_000])
        .kinds(&[(PkhLong, 12), (Pkh, 76), (Sh, 11), (Multisig, 1)])
        .dust(546, 5_460)
        .data(10),
    // 2015: floods of transactions with many outputs.
    Era::new(400_000, [110_000, 58_000, 35_000, 14_000])
        .kinds(&[(PkhLong, 6), (Pkh, 77), (Sh, 16), (Multisig, 1)])
        .dust(546, 2_000)
        .data(25),
    Era::new(450_000, [192_000, 100_000, 45_000, 20_000])
        .kinds(&[(Pkh, 80), (Sh, 20)])
        .dust(546, 2_000)
        .data(20),
    // 2017: full blocks; SegWit at its end.
    Era::new(481_824, [249_000, 132_000, 52_500, 25_000])
        .kinds(&[(Pkh, 78), (Sh, 22)])
        .dust(546, 1_000)
        .data(20),
    Era::new(500_000, [283_000, 150_500, 61_000, 28_000])
        .kinds(&[(Pkh, 75), (Sh, 21), (ShWpkh, 4)])
        .data(25),
    // 2018: exchanges combine their coins while fees are low; the set shrinks.
    Era::new(550_000, [358_000, 190_500, 50_000, 32_000])
        .kinds(&[(Pkh, 60), (Sh, 20), (ShWpkh, 16), (Wpkh, 3), (Wsh, 1)])
        .data(60),
    // 2019: a message in every fifth transaction.
    Era::new(600_000, [465_000, 246_500, 62_000, 38_000])
        .kinds(&[(Pkh, 49), (Sh, 18), (ShWpkh, 21), (Wpkh, 10), (Wsh, 2)])
        .data(180),
    Era::new(650_000, [572_000, 306_000, 67_000, 44_000])
        .kinds(&[(Pkh, 41), (Sh, 18), (ShWpkh, 21), (Wpkh, 17), (Wsh, 3)])
        .data(120),
    Era::new(709_632, [687_000, 378_000, 77_000, 53_000])
        .kinds(&[(Pkh, 31), (Sh, 16), (ShWpkh, 21), (Wpkh, 26), (Wsh, 6)])
        .data(40),
    // 2022: taproot is active, and hardly used.
    Era::new(767_430, [790_000, 450_000, 84_500, 64_000])
        .kinds(&[(Pkh, 23), (Sh, 11), (ShWpkh, 18), (Wpkh, 39), (Wsh, 8), (Tr, 1)])
        .data(30),
    // Early 2023: inscriptions, first of images, then of text; the latter leave a coin of 546 satoshis each.
    Era::new(800_000, [864_000, 500_000, 112_000, 85_000])
        .kinds(&[(Pkh, 15), (Sh, 5), (ShWpkh, 11), (Wpkh, 36), (Wsh, 5), (Tr, 20), (TrScript, 8)])
        .dust(546, 546)
        .data(40)
        .images(12),
    Era::new(840_000, [991_032, 567_000, 177_000, 122_000])
        .kinds(&[(Pkh, 9), (Sh, 4), (ShWpkh, 7), (Wpkh, 36), (Wsh, 3), (Tr, 34), (TrScript, 7)])
        .dust(330, 546)
        .data(40)
        .images(3),
    // 2024: runes, marked by data in an output.
    Era::new(880_000, [1_145_604, 632_000, 184_800, 142_000])
        .kinds(&[(Pkh, 9), (Sh, 3), (ShWpkh, 6), (Wpkh, 42), (Wsh, 3), (Tr, 35), (TrScript, 2)])
        .dust(330, 546)
        .data(350)
        .simple(250)
        .images(2),
    // 2025: cheap blocks; holders of dust combine it, and the set shrinks again.
    Era::new(910_000, [1_226_586, 682_000, 169_500, 152_000])
        .kinds(&[(Pkh, 6), (Sh, 2), (ShWpkh, 5), (Wpkh, 44), (Wsh, 4), (Tr, 32), (TrScript, 7)])
        .dust(330, 1_000)
        .data(300)
        .images(4),
    Era::new(TIP, [1_305_397, 725_000, 166_000, 160_000])
        .kinds(&[(Pkh, 6), (Sh, 2), (ShWpkh, 5), (Wpkh, 44), (Wsh, 4), (Tr, 32), (TrScript, 7)])
        .dust(330, 1_000)
        .data(300)
        .images(4),
];

/// The era of a height, and the totals before it.
pub(in crate::maker) fn at(height: Height) -> (&'static Era, [u64; 3], Height) {
    let place = ERAS.partition_point(|era| era.end < height).min(ERAS.len() - 1);
    match place.checked_sub(1).map(|before| &ERAS[before]) {
        Some(before) => (&ERAS[place], before.totals(), before.end),
        None => (&ERAS[place], [0; 3], 0),
    }
}

impl Era {
    /// Bytes, coins and kept coins up to its end.
    pub(in crate::maker) const fn totals(&self) -> [u64; 3] {
        [self.bytes * 1_000_000, self.coins * 1_000, self.kept * 1_000]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_never_contradict_each_other() {
        let mut last = Era::new(0, [0; 4]);
        for era in ERAS {
            assert!(era.end > last.end && era.txs > last.txs && era.bytes > last.bytes);
            assert!(era.kept >= last.kept && era.kept <= era.coins, "{}", era.end);
            assert!(era.kinds.iter().map(|(_, share)| share).sum::<u32>() > 0);
            // A transaction has 200 to 1,000 bytes, and a block at most the bytes of its time.
            let size = 1_000 * (era.bytes - last.bytes) / (era.txs - last.txs);
            assert!((200..1_000).contains(&size), "{}: {size}", era.end);
            let block = 1_000_000 * (era.bytes - last.bytes) / u64::from(era.end - last.end);
            let limit = if era.end <= 481_824 { 1_010_000 } else { 1_900_000 };
            assert!(block < limit, "{}: {block}", era.end);
            last = *era;
        }
        assert_eq!(last.end, TIP);
    }

    #[test]
    fn heights_belong_to_their_eras() {
        assert_eq!((at(1).0.end, at(1).2), (100_000, 0));
        assert_eq!((at(100_000).0.end, at(100_001).0.end), (100_000, 150_000));
        assert_eq!(at(100_001).1, [55_000_000, 72_000, 40_000]);
        assert_eq!(at(TIP + 5).0.end, TIP);
    }
}
