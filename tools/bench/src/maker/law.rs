//! The distributions of transactions: the number of inputs and outputs, the kinds of scripts, and the
//! lifetimes of coins.
//!
//! All are integer tables sampled by an [`Rng`], modelled on the main chain of recent years. They give
//! targets; the limits of blocks and amounts may change them.

use apus_testkit::rng::Rng;

/// The shape of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ChainProfile {
    /// Full blocks with the transactions, scripts and ages of coins of recent years
    MainnetLike,
    /// The same with shorter-lived coins: at 8 GB it has as many coins per byte as the main chain
    // Also, fewer coins are never spent. A short chain ends with many coins that are not due yet. The main
    // chain of 2026 has 170 million coins in about 730 GB.
    FewCoins,
    /// All of the main chain from its first block on, era by era, at a scale
    MainHistory,
}

impl ChainProfile {
    /// Its name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MainnetLike => "mainnet-like",
            Self::FewCoins => "few-coins",
            Self::MainHistory => "main-history",
        }
    }

    /// Weight of a full block per coin that it spends: a little less than usual, so that there is always
    /// something to spend.
    pub(super) const fn weight_per_input(self) -> u64 {
        match self {
            Self::MainnetLike | Self::MainHistory => 550,
            Self::FewCoins => 520,
        }
    }

    const fn lifetimes(self) -> &'static [Row] {
        match self {
            Self::MainnetLike => LIFETIMES,
            Self::FewCoins => SHORT_LIFETIMES,
            Self::MainHistory => LONG_LIFETIMES,
        }
    }

    const fn inputs(self) -> &'static [Row] {
        match self {
            Self::MainnetLike | Self::FewCoins => INPUTS,
            Self::MainHistory => HISTORIC_INPUTS,
        }
    }

    const fn payments(self) -> &'static [Row] {
        match self {
            Self::MainnetLike | Self::FewCoins => PAYMENTS,
            Self::MainHistory => HISTORIC_PAYMENTS,
        }
    }

    /// Of 1,000 payment outputs, the number that is never spent.
    const fn forgotten_per_mille(self) -> u64 {
        match self {
            Self::MainnetLike => 62,
            Self::FewCoins => 40,
            // The totals of its eras decide.
            Self::MainHistory => 0,
        }
    }

    /// Of 1,000 transactions, the number that spends one more coin, so that every due coin is spent.
    const fn one_more_per_mille(self) -> u64 {
        match self {
            Self::MainnetLike | Self::MainHistory => 0,
            Self::FewCoins => 150,
        }
    }
}

/// A row of a table: the number of draws, and the range of their values, both ends included.
type Row = (u32, u64, u64);

/// Inputs per transaction, of 10,000: most have one or two, a few consolidate hundreds.
const INPUTS: &[Row] = &[
    (6_700, 1, 1),
    (2_000, 2, 2),
    (550, 3, 3),
    (230, 4, 4),
    (133, 5, 5),
    (250, 6, 10),
    (80, 11, 20),
    (30, 21, 49),
    (20, 50, 150),
    (7, 151, 500),
];

/// Payment outputs, of 100,000 transactions: most have two, a few pay hundreds at once.
const PAYMENTS: &[Row] = &[
    (20_500, 1, 1),
    (70_950, 2, 2),
    (4_500, 3, 3),
    (1_300, 4, 4),
    (1_800, 5, 10),
    (600, 11, 20),
    (200, 21, 50),
    (110, 51, 200),
    (35, 201, 1_000),
    (5, 1_001, 2_000),
];

/// The same two of all years, in which the averages were smaller. A history adds some to either, because its
/// number of coins is given.
const HISTORIC_INPUTS: &[Row] = &[
    (7_100, 1, 1),
    (1_750, 2, 2),
    (480, 3, 3),
    (200, 4, 4),
    (113, 5, 5),
    (220, 6, 10),
    (80, 11, 20),
    (30, 21, 49),
    (20, 50, 150),
    (7, 151, 500),
];
const HISTORIC_PAYMENTS: &[Row] = &[
    (26_000, 1, 1),
    (67_187, 2, 2),
    (3_800, 3, 3),
    (1_200, 4, 4),
    (1_200, 5, 10),
    (400, 11, 20),
    (120, 21, 50),
    (70, 51, 200),
    (20, 201, 1_000),
    (3, 1_001, 2_000),
];

/// Blocks from a coin's creation to its spending, of 10,000 coins meant to be spent.
const LIFETIMES: &[Row] = &[
    (450, 0, 0),
    (950, 1, 1),
    (700, 2, 2),
    (1_000, 3, 5),
    (1_000, 6, 10),
    (1_050, 11, 20),
    (1_350, 21, 50),
    (1_000, 51, 100),
    (700, 101, 200),
    (700, 201, 500),
    (400, 501, 1_000),
    (300, 1_001, 2_000),
    (250, 2_001, 5_000),
    (150, 5_001, 20_000),
];

/// The same for shorter-lived coins.
const SHORT_LIFETIMES: &[Row] = &[
    (450, 0, 0),
    (950, 1, 1),
    (700, 2, 2),
    (1_000, 3, 5),
    (1_000, 6, 10),
    (1_050, 11, 20),
    (1_350, 21, 50),
    (1_500, 51, 100),
    (2_000, 101, 200),
];

/// The same over years: some coins of the first days are spent today.
const LONG_LIFETIMES: &[Row] = &[
    (450, 0, 0),
    (900, 1, 1),
    (650, 2, 2),
    (950, 3, 5),
    (950, 6, 10),
    (1_000, 11, 20),
    (1_250, 21, 50),
    (950, 51, 100),
    (650, 101, 200),
    (650, 201, 500),
    (400, 501, 1_000),
    (300, 1_001, 2_000),
    (250, 2_001, 5_000),
    (250, 5_001, 20_000),
    (250, 20_001, 60_000),
    (150, 60_001, 200_000),
];

/// Minimum number of inputs of a consolidation.
const CONSOLIDATION: usize = 50;
/// Of 1,000 transactions, the number that also carries data.
pub(super) const DATA_PER_MILLE: u64 = 130;

/// A kind of spendable output script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PaymentKind {
    /// The hash of a key, witness version 0.
    Wpkh,
    /// A taproot output, spent by its key.
    Tr,
    /// A taproot output, spent by a script with data in it.
    TrScript,
    /// The hash of a key.
    Pkh,
    /// P2WPKH within P2SH.
    ShWpkh,
    /// The hash of a 2-of-3 script, witness version 0.
    Wsh,
    /// One of two keys, bare.
    Multisig,
    /// A key, bare.
    Pk,
    /// The hash of a 2-of-3 script.
    Sh,
    /// The hash of an uncompressed key.
    PkhLong,
    /// An uncompressed key, bare.
    PkLong,
}

impl PaymentKind {
    /// All of them, by number.
    pub(super) const ALL: [Self; 11] = [
        Self::Wpkh,
        Self::Tr,
        Self::TrScript,
        Self::Pkh,
        Self::ShWpkh,
        Self::Wsh,
        Self::Multisig,
        Self::Pk,
        Self::Sh,
        Self::PkhLong,
        Self::PkLong,
    ];

    /// Its name in a manifest.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Wpkh => "p2wpkh",
            Self::Tr => "p2tr",
            Self::TrScript => "p2tr_script_path",
            Self::Pkh => "p2pkh",
            Self::ShWpkh => "p2sh_p2wpkh",
            Self::Wsh => "p2wsh",
            Self::Multisig => "multisig",
            Self::Pk => "p2pk",
            Self::Sh => "p2sh_multisig",
            Self::PkhLong => "p2pkh_uncompressed",
            Self::PkLong => "p2pk_uncompressed",
        }
    }

    /// Whether its spending needs a witness.
    pub(super) const fn has_witness(self) -> bool {
        matches!(self, Self::Wpkh | Self::Tr | Self::TrScript | Self::ShWpkh | Self::Wsh)
    }

    /// Of 950 spendable outputs of recent years; the 50 that carry data make it 1,000.
    const fn share(self) -> u32 {
        match self {
            Self::Wpkh => 420,
            Self::Tr => 260,
            Self::TrScript => 30,
            Self::Pkh => 105,
            Self::ShWpkh => 85,
            Self::Wsh => 40,
            Self::Multisig | Self::Pk => 5,
            Self::Sh | Self::PkhLong | Self::PkLong => 0,
        }
    }
}

fn draw(rng: &mut Rng, table: &[Row]) -> u64 {
    let total: u32 = table.iter().map(|(share, ..)| share).sum();
    let mut left = rng.below(total.into()) as u32;
    for &(share, low, high) in table {
        if left < share {
            return rng.between(low, high);
        }
        left -= share;
    }
    1
}

/// A transaction as drawn, before the limits of blocks and amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WantedTx {
    /// Coins that it spends.
    pub(super) inputs: usize,
    /// Spendable outputs.
    pub(super) payments: usize,
    /// Bytes of data, if it carries any.
    pub(super) data: Option<u8>,
}

impl WantedTx {
    pub(super) fn draw(profile: ChainProfile, data_per_mille: u64, rng: &mut Rng) -> Self {
        let mut inputs = draw(rng, profile.inputs()) as usize;
        let one_more = profile.one_more_per_mille();
        // Draw nothing if this is zero: another draw would change the chains of that profile.
        if one_more > 0 && rng.per_mille(one_more) {
            inputs += 1;
        }
        let payments = draw(rng, profile.payments()) as usize;
        let data = rng.per_mille(data_per_mille).then(|| rng.between(8, 75) as u8);
        // A consolidation does not pay many at once.
        let payments = if inputs >= CONSOLIDATION { payments.min(2) } else { payments };
        Self { inputs, payments, data }
    }
}

/// The kind of an output's script.
pub(super) fn kind(rng: &mut Rng) -> PaymentKind {
    let mut left = rng.below(950) as u32;
    for kind in PaymentKind::ALL {
        if left < kind.share() {
            return kind;
        }
        left -= kind.share();
    }
    PaymentKind::Wpkh
}

/// Number of blocks until a coin is spent; `None` if it never is.
pub(super) fn lifetime(profile: ChainProfile, rng: &mut Rng) -> Option<u32> {
    let is_forgotten = rng.per_mille(profile.forgotten_per_mille());
    (!is_forgotten).then(|| draw(rng, profile.lifetimes()) as u32)
}

/// Of 10,000 coins meant to be spent, the number spent within `blocks` blocks.
pub(super) fn spent_within(profile: ChainProfile, blocks: u32) -> u32 {
    let blocks = u64::from(blocks);
    let part = |&(share, low, high): &Row| {
        let covered = (blocks + 1).saturating_sub(low).min(high - low + 1);
        (u64::from(share) * covered / (high - low + 1)) as u32
    };
    profile.lifetimes().iter().map(part).sum()
}

/// The lifetime of a coin that is spent.
pub(super) fn spent_after(profile: ChainProfile, rng: &mut Rng) -> u32 {
    draw(rng, profile.lifetimes()) as u32
}

/// Fee in satoshis per virtual byte: mostly low, sometimes high.
pub(super) fn fee_rate(rng: &mut Rng) -> u64 {
    let high = if rng.per_mille(100) { 30 } else { 6 };
    rng.between(1, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn mean(mut of: impl FnMut(&mut Rng) -> usize) -> f64 {
        let mut rng = Rng::at(7, 7);
        (0..DRAWS).map(|_| of(&mut rng) as f64).sum::<f64>() / DRAWS as f64
    }

    #[test]
    fn tables_add_up() {
        let total = |table: &[Row]| table.iter().map(|(share, ..)| share).sum::<u32>();
        assert_eq!((total(INPUTS), total(HISTORIC_INPUTS)), (10_000, 10_000));
        assert_eq!((total(PAYMENTS), total(HISTORIC_PAYMENTS)), (100_000, 100_000));
        for lifetimes in [LIFETIMES, SHORT_LIFETIMES, LONG_LIFETIMES] {
            assert_eq!(total(lifetimes), 10_000);
        }
        assert_eq!(PaymentKind::ALL.map(PaymentKind::share).iter().sum::<u32>(), 950);
        for (place, kind) in PaymentKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn transactions_have_the_size_of_real_ones() {
        let inputs =
            mean(|rng| WantedTx::draw(ChainProfile::MainnetLike, DATA_PER_MILLE, rng).inputs);
        assert!((2.1..2.4).contains(&inputs), "{inputs}");
        // In some profiles, some transactions spend one more.
        for (profile, low, high) in
            [(ChainProfile::MainnetLike, 0.66, 0.68), (ChainProfile::FewCoins, 0.56, 0.58)]
        {
            let one =
                mean(|rng| usize::from(WantedTx::draw(profile, DATA_PER_MILLE, rng).inputs == 1));
            assert!((low..high).contains(&one), "{one}");
        }
        let outputs = mean(|rng| {
            let wanted = WantedTx::draw(ChainProfile::MainnetLike, DATA_PER_MILLE, rng);
            wanted.payments + usize::from(wanted.data.is_some())
        });
        assert!((2.5..2.75).contains(&outputs), "{outputs}");
    }

    #[test]
    fn lifetimes_follow_their_table() {
        for (profile, forgotten) in
            [(ChainProfile::MainnetLike, 0.062), (ChainProfile::FewCoins, 0.04)]
        {
            let mut rng = Rng::at(1, 2);
            let drawn: Vec<Option<u32>> = (0..DRAWS).map(|_| lifetime(profile, &mut rng)).collect();
            let never = drawn.iter().filter(|life| life.is_none()).count() as f64 / DRAWS as f64;
            assert!((never - forgotten).abs() < 0.004, "{never}");
            for blocks in [0, 1, 4, 10, 100, 1_000, 20_000] {
                let within = drawn.iter().flatten().filter(|life| **life <= blocks).count() as f64;
                let share = within / drawn.iter().flatten().count() as f64;
                let stated = f64::from(spent_within(profile, blocks)) / 10_000.0;
                assert!((share - stated).abs() < 0.005, "{blocks}: {share} of {stated}");
            }
        }
    }

    #[test]
    fn kinds_appear_in_their_shares() {
        let mut rng = Rng::at(3, 4);
        let mut counts = [0u32; PaymentKind::ALL.len()];
        (0..DRAWS).for_each(|_| counts[kind(&mut rng) as usize] += 1);
        for kind in PaymentKind::ALL {
            let (share, stated) =
                (f64::from(counts[kind as usize]) / DRAWS as f64, f64::from(kind.share()) / 950.0);
            assert!((share - stated).abs() < 0.004, "{kind:?}: {share} of {stated}");
        }
    }
}
