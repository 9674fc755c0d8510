//! The laws that transactions follow: how many inputs and outputs they have, which scripts, and
//! when a coin is spent.
//!
//! All are tables of whole numbers drawn from by an [`Rng`], after what the main chain has shown
//! in recent years. They say what is wanted; limits of blocks and amounts may bend it.

use apus_testkit::rng::Rng;

/// The shape of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Transactions, scripts and ages of coins of recent years.
    MainnetLike,
    /// The same, but that coins live shorter and fewer of them are never spent. A short chain ends with many coins whose
    /// time has not come; of this one 8 GB have nearly as many at their end, for each byte, as the main chain of 2026, which has
    /// 170 million for some 730 GB.
    FewCoins,
}

impl Profile {
    /// Its name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MainnetLike => "mainnet-like",
            Self::FewCoins => "few-coins",
        }
    }

    /// Weight that a full block has for each coin that it spends: a little less than is usual, so that
    /// there is always something to spend.
    pub(super) const fn weight_per_input(self) -> u64 {
        match self {
            Self::MainnetLike => 550,
            Self::FewCoins => 520,
        }
    }

    const fn lifetimes(self) -> &'static [Row] {
        match self {
            Self::MainnetLike => LIFETIMES,
            Self::FewCoins => SHORT_LIFETIMES,
        }
    }

    /// Of 1,000 outputs that pay, those that are never spent.
    const fn forgotten_per_mille(self) -> u64 {
        match self {
            Self::MainnetLike => 62,
            Self::FewCoins => 40,
        }
    }

    /// Of 1,000 transactions, those that spend one coin more, so that what is meant to be spent is.
    const fn one_more_per_mille(self) -> u64 {
        match self {
            Self::MainnetLike => 0,
            Self::FewCoins => 150,
        }
    }
}

/// A row of a table: so many of all draws, and the range that they fall in, both ends included.
type Row = (u32, u64, u64);

/// Inputs of a transaction, of 10,000: most have one or two, a few consolidate hundreds.
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

/// Outputs that pay, of 100,000 transactions: most have two, a few pay hundreds at once.
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

/// Blocks from the making of a coin to its spending, of 10,000 coins that are meant to be spent.
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

/// The same where coins live shorter.
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

/// So many inputs and more are a consolidation.
const CONSOLIDATION: usize = 50;
/// Of 1,000 transactions, those that also carry data.
const DATA_PER_MILLE: u64 = 130;

/// A kind of output script that can be spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
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
    /// The hash of a script that wants two of three keys, witness version 0.
    Wsh,
    /// One of two keys, bare.
    Multisig,
    /// A key, bare.
    Pk,
}

impl Kind {
    /// All of them, by number.
    pub(super) const ALL: [Self; 8] = [
        Self::Wpkh,
        Self::Tr,
        Self::TrScript,
        Self::Pkh,
        Self::ShWpkh,
        Self::Wsh,
        Self::Multisig,
        Self::Pk,
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
        }
    }

    /// Of 950 outputs that can be spent; the 50 that carry data make it 1,000.
    const fn share(self) -> u32 {
        match self {
            Self::Wpkh => 420,
            Self::Tr => 260,
            Self::TrScript => 30,
            Self::Pkh => 105,
            Self::ShWpkh => 85,
            Self::Wsh => 40,
            Self::Multisig | Self::Pk => 5,
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

/// What a transaction would be if blocks and amounts were boundless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Coins that it spends.
    pub(super) inputs: usize,
    /// Outputs that can be spent.
    pub(super) payments: usize,
    /// Bytes of data that it carries, if it does.
    pub(super) data: Option<u8>,
}

impl Wanted {
    pub(super) fn draw(profile: Profile, rng: &mut Rng) -> Self {
        let mut inputs = draw(rng, INPUTS) as usize;
        let one_more = profile.one_more_per_mille();
        // Nothing is drawn for none, or the chains of that profile would be others.
        if one_more > 0 && rng.per_mille(one_more) {
            inputs += 1;
        }
        let payments = draw(rng, PAYMENTS) as usize;
        let data = rng.per_mille(DATA_PER_MILLE).then(|| rng.between(8, 75) as u8);
        // Who consolidates does not pay many at once.
        let payments = if inputs >= CONSOLIDATION { payments.min(2) } else { payments };
        Self { inputs, payments, data }
    }
}

/// Which kind of script an output has.
pub(super) fn kind(rng: &mut Rng) -> Kind {
    let mut left = rng.below(950) as u32;
    for kind in Kind::ALL {
        if left < kind.share() {
            return kind;
        }
        left -= kind.share();
    }
    Kind::Wpkh
}

/// After how many blocks a coin is spent; `None` if it never is.
pub(super) fn lifetime(profile: Profile, rng: &mut Rng) -> Option<u32> {
    let is_forgotten = rng.per_mille(profile.forgotten_per_mille());
    (!is_forgotten).then(|| draw(rng, profile.lifetimes()) as u32)
}

/// Of 10,000 coins meant to be spent, how many are so within `blocks` blocks.
pub(super) fn spent_within(profile: Profile, blocks: u32) -> u32 {
    let blocks = u64::from(blocks);
    let part = |&(share, low, high): &Row| {
        let covered = (blocks + 1).saturating_sub(low).min(high - low + 1);
        (u64::from(share) * covered / (high - low + 1)) as u32
    };
    profile.lifetimes().iter().map(part).sum()
}

/// Satoshis paid for a virtual byte: mostly a few, sometimes many.
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
        assert_eq!(total(INPUTS), 10_000);
        assert_eq!(total(PAYMENTS), 100_000);
        assert_eq!((total(LIFETIMES), total(SHORT_LIFETIMES)), (10_000, 10_000));
        assert_eq!(Kind::ALL.map(Kind::share).iter().sum::<u32>(), 950);
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn transactions_have_the_size_of_real_ones() {
        let inputs = mean(|rng| Wanted::draw(Profile::MainnetLike, rng).inputs);
        assert!((2.1..2.4).contains(&inputs), "{inputs}");
        // Some spend one more.
        for (profile, low, high) in
            [(Profile::MainnetLike, 0.66, 0.68), (Profile::FewCoins, 0.56, 0.58)]
        {
            let one = mean(|rng| usize::from(Wanted::draw(profile, rng).inputs == 1));
            assert!((low..high).contains(&one), "{one}");
        }
        let outputs = mean(|rng| {
            let wanted = Wanted::draw(Profile::MainnetLike, rng);
            wanted.payments + usize::from(wanted.data.is_some())
        });
        assert!((2.5..2.75).contains(&outputs), "{outputs}");
    }

    #[test]
    fn lifetimes_follow_their_table() {
        for (profile, forgotten) in [(Profile::MainnetLike, 0.062), (Profile::FewCoins, 0.04)] {
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
    fn kinds_come_in_their_shares() {
        let mut rng = Rng::at(3, 4);
        let mut counts = [0u32; 8];
        (0..DRAWS).for_each(|_| counts[kind(&mut rng) as usize] += 1);
        for kind in Kind::ALL {
            let (share, stated) =
                (f64::from(counts[kind as usize]) / DRAWS as f64, f64::from(kind.share()) / 950.0);
            assert!((share - stated).abs() < 0.004, "{kind:?}: {share} of {stated}");
        }
    }
}
