//! [`History`]: what the blocks of a chain contain that follows the main chain from its first block on.
//!
//! A table has the main chain's totals by height ([`era`]). A chain follows three of them, at its [`Scale`]:
//!
//! - *bytes*: a block is full when the chain has the bytes that belong to its height;
//! - *coins*: transactions make more or fewer outputs, so that after each block the set has as many coins as
//!   belong to its height. If the bytes do not suffice for that, the coins win;
//! - *kept* coins, which are never spent: as many of the new ones as belong to the height. The others are due
//!   some day. So the number of coins that wait for that day follows the table too, and no block lacks coins.
//!
//! All else follows from these and from the shapes of transactions. With all bytes their number is within a
//! tenth of the main chain's; with few there are fewer of them, because the coins take most bytes.
//!
//! Deliberate differences: amounts are smaller, because all subsidies of regtest are 15,000 bitcoins; SegWit and
//! the height in coinbases are rules from the first block on; a block comes every 500 seconds, so that none has a
//! time in the future.

mod era;
mod scale;
#[cfg(test)]
mod tests;

pub use scale::Scale;

use super::keys::{KeyScript, Keyring};
use super::law::{self, ChainProfile, PaymentKind, WantedTx};
use apus_chain::Height;
use apus_testkit::rng::Rng;
use era::{Era, TIP};

/// Seconds from one block to the next.
pub(super) const SPACING_SECONDS: u32 = 500;
/// Bytes of a block's header and coinbase.
const BLOCK_OVERHEAD: u64 = 210;
/// Bytes of a typical transaction.
const TYPICAL_TX: u64 = 550;
/// Coins that a block may have too many or too few.
const TOLERANCE: u64 = 16;
/// Of 1,000 transactions, the number that makes up for such a difference.
const LEVELLING_PER_MILLE: u64 = 125;
/// Maximum number of payments and of inputs with which one transaction does that.
const PAYMENTS_MAX: u64 = 1_500;
const INPUTS_MAX: u64 = 500;
/// Blocks within which most value is spent again.
const SOON: u32 = 100;
/// Values of coins that are spent later. All of them together have a fifth of all value.
const LONG_TERM: (u64, u64) = (300, 10_000);
/// Bytes of a block for each input and for each payment that its largest transaction has.
const INPUT_PART: u64 = 600;
const PAYMENT_PART: u64 = 120;
/// Maximum number of transactions of a block beyond its bytes.
const BEYOND_MAX: u32 = 4;
/// Up to this age in blocks, coins are spent as early in a chain with fewer blocks.
const YOUNG: u32 = 10;
/// The denominator of shares.
const MILLION: u64 = 1_000_000;

/// Number of blocks at this scale.
pub(super) fn blocks(scale: Scale) -> u32 {
    TIP / scale.blocks
}

/// Totals up to a height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Totals {
    bytes: u64,
    coins: u64,
    kept: u64,
}

impl Totals {
    fn at(scale: Scale, height: Height) -> (&'static Era, Self) {
        let blocks = u64::from(scale.blocks.get());
        let real = (u64::from(height) * blocks).min(TIP.into()) as Height;
        let (era, before, start) = era::at(real);
        let part = |place: usize| {
            let (low, high) = (before[place], era.totals()[place]);
            let (done, all) = (u64::from(real - start), u64::from(era.end - start));
            let change = i128::from(high) - i128::from(low);
            (i128::from(low) + change * i128::from(done) / i128::from(all)) as u64
        };
        let (bytes, coins) = (u64::from(scale.bytes.get()), u64::from(scale.coins.get()));
        let totals = Self {
            bytes: part(0) / blocks / bytes,
            coins: part(1) / blocks / coins,
            kept: part(2) / blocks / coins,
        };
        (era, totals)
    }
}

/// What the current block should contain, and what the chain contains so far.
#[derive(Debug, Clone)]
pub(super) struct History {
    scale: Scale,
    /// The first height at which no coin is spent.
    end: Height,
    height: Height,
    era: &'static Era,
    /// The totals after the current block.
    wanted: Totals,
    /// Bytes for the current block.
    block_bytes: u64,
    /// Bytes so far.
    bytes: u64,
    /// Coins so far that are never spent.
    kept: u64,
    /// The share of the current block's payments that is never spent.
    kept_millionths: u64,
    /// Transactions beyond the current block's bytes.
    beyond: u32,
    /// Payments of the current block, and of the one before.
    payments: u64,
    payments_before: u64,
}

impl History {
    /// A history whose last block that spends is the one before height `end`.
    pub(super) fn new(scale: Scale, end: Height) -> Self {
        let (era, wanted) = Totals::at(scale, 0);
        Self {
            scale,
            end,
            height: 0,
            era,
            wanted,
            block_bytes: 0,
            bytes: 0,
            kept: 0,
            kept_millionths: 0,
            beyond: 0,
            payments: 0,
            payments_before: 0,
        }
    }

    pub(super) fn start_block(&mut self, height: Height, rng: &mut Rng) {
        self.height = height;
        (self.era, self.wanted) = Totals::at(self.scale, height);
        // Some blocks are larger than others.
        self.block_bytes =
            self.wanted.bytes.saturating_sub(self.bytes) * rng.between(80, 120) / 100;
        let lacking = self.wanted.kept.saturating_sub(self.kept);
        let payments = self.payments_before.max(1);
        self.kept_millionths = (lacking * MILLION / payments).min(MILLION * 95 / 100);
    }

    pub(super) fn end_block(&mut self, bytes: u64) {
        self.bytes += bytes;
        (self.payments_before, self.payments) = (self.payments, 0);
        self.beyond = 0;
    }

    /// The next transaction of a block whose transactions have `bytes` so far, with this many coins in the
    /// set; `None` if the block is complete.
    pub(super) fn wanted(&mut self, bytes: u64, coins: u64, rng: &mut Rng) -> Option<WantedTx> {
        let room = self.block_bytes.saturating_sub(BLOCK_OVERHEAD + bytes);
        let (lacking, excess) =
            (self.wanted.coins.saturating_sub(coins), coins.saturating_sub(self.wanted.coins));
        if room == 0 {
            return self.beyond(lacking, excess);
        }
        let mut wanted = WantedTx::draw(ChainProfile::MainHistory, self.era.data_per_mille, rng);
        if rng.per_mille(self.era.simple_per_mille) {
            wanted.inputs = 1;
            wanted.payments = wanted.payments.min(2);
        }
        let txs = (room / TYPICAL_TX).max(1);
        if lacking.max(excess) > TOLERANCE && rng.per_mille(LEVELLING_PER_MILLE) {
            let most = 1 + 2_000 / LEVELLING_PER_MILLE * lacking.max(excess) / txs;
            if lacking > 0 {
                wanted.payments += rng.between(1, most).min(PAYMENTS_MAX) as usize;
            } else {
                wanted.inputs += rng.between(1, most).min(INPUTS_MAX) as usize;
                wanted.payments = wanted.payments.min(2);
            }
        }
        // A small block has no room for the largest transactions.
        wanted.inputs = wanted.inputs.min((self.block_bytes / INPUT_PART) as usize).max(1);
        wanted.payments = wanted.payments.min((self.block_bytes / PAYMENT_PART) as usize).max(1);
        Some(wanted)
    }

    /// A transaction of a block that has all its bytes, but too few or too many coins: the coins win. There
    /// is a limit, because a block may have no coin to spend but its own new ones.
    fn beyond(&mut self, lacking: u64, excess: u64) -> Option<WantedTx> {
        self.beyond += 1;
        let (inputs, payments) = match self.beyond {
            ..=BEYOND_MAX if lacking > TOLERANCE => (1, lacking.min(PAYMENTS_MAX) + 1),
            1 if excess > TOLERANCE => (excess.min(INPUTS_MAX - 1) + 1, 1),
            _ => return None,
        };
        Some(WantedTx { inputs: inputs as usize, payments: payments as usize, data: None })
    }

    /// A new script of the era.
    pub(super) fn script(&self, keys: &Keyring, rng: &mut Rng) -> KeyScript {
        let total: u32 = self.era.kinds.iter().map(|(_, share)| share).sum();
        let mut left = rng.below(total.into()) as u32;
        for &(kind, share) in self.era.kinds {
            if left < share {
                let script = keys.script(kind, rng);
                let images = self.era.images_per_mille;
                return match kind == PaymentKind::TrScript && rng.per_mille(images) {
                    true => keys.image(script),
                    false => script,
                };
            }
            left -= share;
        }
        keys.script(PaymentKind::Pkh, rng)
    }

    /// The blocks that pass until a coin is spent.
    pub(super) fn lifetime(&self, rng: &mut Rng) -> u32 {
        let blocks = law::spent_after(ChainProfile::MainHistory, rng);
        blocks.min(YOUNG) + blocks.saturating_sub(YOUNG) / self.scale.blocks
    }

    /// Draws the heights at which the payments of a transaction are due; `None` for coins that are never
    /// spent.
    pub(super) fn draw_dues(
        &mut self,
        count: usize,
        dues: &mut Vec<Option<Height>>,
        rng: &mut Rng,
    ) {
        self.payments += count as u64;
        dues.extend((0..count).map(|_| self.due(rng)));
    }

    /// Chooses the payment that takes the value which the others may not have: the one due first. If that
    /// is far off, it is due soon instead: value must not be out of reach for years.
    pub(super) fn keeper(&self, dues: &mut [Option<Height>], rng: &mut Rng) -> usize {
        let later = |place: &usize| dues[*place].unwrap_or(Height::MAX);
        let place = (0..dues.len()).min_by_key(later).unwrap_or(0);
        if later(&place) > self.height + SOON {
            let soon = self.height + rng.between(1, SOON.into()) as u32;
            dues[place] = Some(soon).filter(|soon| *soon < self.end).or(dues[place]);
        }
        place
    }

    /// The greatest value of a payment due then, in a transaction that spends `worth`.
    pub(super) fn value_max(&self, due: Option<Height>, worth: u64, rng: &mut Rng) -> u64 {
        let (least, most) = match due {
            None => self.era.dust,
            Some(due) if due > self.height + SOON => LONG_TERM,
            // Otherwise all coins would soon have the same value, too small for many payments.
            Some(_) => return LONG_TERM.1.max(worth / 16),
        };
        rng.between(least, most)
    }

    fn due(&self, rng: &mut Rng) -> Option<Height> {
        match rng.below(MILLION) < self.kept_millionths {
            true => None,
            false => self.spent_at(rng),
        }
    }

    /// When a coin is due that is to be spent; `None` if there is no time left.
    fn spent_at(&self, rng: &mut Rng) -> Option<Height> {
        let due = self.height + self.lifetime(rng);
        if due < self.end {
            return Some(due);
        }
        let next = self.height + 1;
        (self.kept >= self.wanted.kept && next < self.end)
            .then(|| next + rng.below(u64::from(self.end - next)) as u32)
    }

    /// Counts a coin that is never spent.
    pub(super) fn kept_one(&mut self) {
        self.kept += 1;
    }
}
