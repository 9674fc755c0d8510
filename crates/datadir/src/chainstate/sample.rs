//! [`CoinSample`]: coins of a chainstate drawn at random, to ask for one by one as a node does.
//!
//! Reading a database from its first entry to its last never uses the separators of an index, the
//! filters or the restart points of blocks, where one wrong bit hides a coin from a node, which
//! then refuses the valid block that spends it. So some coins are looked up, through another
//! implementation: all of a small set, at least a thousandth and [`COINS_MIN`] of a large one. As many
//! outpoints are asked for that are not there, on which filters and blocks have to agree, too.
//!
//! Which they are is decided by a secret of its own for each sample, while the coins are read. What is
//! kept of a coin is its name and a digest under that secret, 48 bytes; at most half as many again as
//! are wanted are kept.

use super::read::{ChainstateSummary, block, obfuscation};
use super::{ChainstateDbError, KEY_BEST_BLOCK, KEY_COIN, KEY_OBFUSCATION};
use crate::independent::DatabaseLookUps;
use apus_chain::{OutPoint, write_varint};
use core::ops::ControlFlow;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// So many coins are looked up where a set has them.
const COINS_MIN: usize = 100_000;

/// One of so many is looked up where that is more.
const ONE_OF: u64 = 1_000;

/// No transaction has so many outputs that one has this number.
const NO_OUTPUT: u32 = 1 << 31;

/// What was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookedUp {
    /// Coins that were found, as they are.
    pub coins: u64,
    /// Outpoints that were not found, and are not there.
    pub absent: u64,
}

/// Coins drawn from those that it is shown.
pub struct CoinSample {
    secret: RandomState,
    coins_min: usize,
    seen: u64,
    /// Coins are drawn whose lot is below this.
    limit: u64,
    drawn: Vec<SampledCoin>,
}

struct SampledCoin {
    outpoint: OutPoint,
    /// Of its stored form.
    digest: u64,
}

/// What was drawn, by the place of the coin among all.
fn lot(secret: &RandomState, outpoint: &OutPoint) -> u64 {
    secret.hash_one((outpoint.txid.0, outpoint.vout))
}

impl Default for CoinSample {
    fn default() -> Self {
        Self::new()
    }
}

impl CoinSample {
    /// No coin yet, and a secret from the system.
    pub fn new() -> Self {
        Self::of_at_least(COINS_MIN)
    }

    pub(super) fn of_at_least(coins_min: usize) -> Self {
        let secret = RandomState::new();
        Self { secret, coins_min, seen: 0, limit: u64::MAX, drawn: Vec::new() }
    }

    /// What was drawn.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<OutPoint> {
        self.drawn.iter().map(|drawn| drawn.outpoint).collect()
    }

    /// Takes note of a coin in its stored form, or passes it over. They come in the order of the
    /// database.
    pub fn take(&mut self, outpoint: OutPoint, coin: &[u8]) {
        self.seen += 1;
        if lot(&self.secret, &outpoint) > self.limit {
            return;
        }
        self.drawn.push(SampledCoin { outpoint, digest: self.secret.hash_one(coin) });
        let wanted = self.coins_min.max((self.seen / ONE_OF) as usize);
        if self.drawn.len() > wanted + wanted / 2 {
            // Three quarters of them are an eighth more than wanted: too few is not to be feared.
            self.limit = self.limit / 4 * 3;
            let Self { secret, limit, drawn, .. } = self;
            drawn.retain(|drawn| lot(secret, &drawn.outpoint) <= *limit);
        }
    }

    /// How many coins there are to look up.
    pub fn count(&self) -> u64 {
        self.drawn.len() as u64
    }

    /// About how many that will be of so many coins.
    pub fn expected_count(coins: u64) -> u64 {
        coins.min((COINS_MIN as u64).max(coins / ONE_OF) / 4 * 3)
    }

    /// Asks the chainstate in the folder `dir`, which was `read` with these coins, for each of them and
    /// for as many that are not there. `reached` is told how many were asked for, and may break it off:
    /// then there is nothing.
    ///
    /// # Errors
    /// [`ChainstateDbError::LookUp`] for the first answer that is another one than reading gave.
    pub fn look_up(
        self,
        dir: &Path,
        read: &ChainstateSummary,
        reached: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<LookedUp>, ChainstateDbError> {
        let mut database =
            ChainstateLookUps { dir, database: DatabaseLookUps::open(dir)?, key: Vec::new() };
        database.expect_set(read)?;
        let mut found = LookedUp::default();
        for (at, SampledCoin { outpoint, digest }) in (0..).zip(&self.drawn) {
            if reached(at).is_break() {
                return Ok(None);
            }
            let wrong = |what| ChainstateDbError::LookUp {
                path: dir.to_owned(),
                entry: format!("coin {outpoint}"),
                what,
            };
            let mut coin = database.coin(outpoint)?.ok_or_else(|| wrong("does not find it"))?;
            read.key.apply(&mut coin, 0);
            if self.secret.hash_one(&coin[..]) != *digest {
                return Err(wrong("has another one"));
            }
            found.coins += 1;
            let outpoint = absent(outpoint, self.secret.hash_one(at));
            if database.coin(&outpoint)?.is_some() {
                let (path, what) = (dir.to_owned(), "has one, though there is none");
                let entry = format!("coin {outpoint}");
                return Err(ChainstateDbError::LookUp { path, entry, what });
            }
            found.absent += 1;
        }
        Ok(Some(found))
    }
}

/// The name of no coin, by chance either an output that no transaction can have, or one of a transaction
/// whose txid would have to be found by 2^192 attempts.
fn absent(near: &OutPoint, random: u64) -> OutPoint {
    let mut outpoint = *near;
    if random & 1 == 0 {
        outpoint.vout = NO_OUTPUT | random as u32;
    } else if let Some(end) = outpoint.txid.0.last_chunk_mut() {
        *end = (random ^ u64::from_le_bytes(*end)).to_le_bytes();
    }
    outpoint
}

/// A chainstate that is asked for single entries.
struct ChainstateLookUps<'d> {
    dir: &'d Path,
    database: DatabaseLookUps<'d>,
    key: Vec<u8>,
}

impl ChainstateLookUps<'_> {
    /// Fails unless what a node asks for first is what was read.
    fn expect_set(&mut self, read: &ChainstateSummary) -> Result<(), ChainstateDbError> {
        let wrong = |entry: &str| ChainstateDbError::LookUp {
            path: self.dir.to_owned(),
            entry: entry.to_owned(),
            what: "gives another answer than before",
        };
        let key = self.database.get(KEY_OBFUSCATION)?;
        let key = key.map(|value| obfuscation(self.dir, &value)).transpose()?;
        if key.unwrap_or(crate::Obfuscation::NONE) != read.key {
            return Err(wrong("the obfuscation key"));
        }
        let mut best = self.database.get(KEY_BEST_BLOCK)?.ok_or_else(|| wrong("its block"))?;
        read.key.apply(&mut best, 0);
        if block(self.dir, &best)? != read.best {
            return Err(wrong("its block"));
        }
        Ok(())
    }

    /// What is stored under a coin's name.
    fn coin(&mut self, outpoint: &OutPoint) -> Result<Option<Vec<u8>>, ChainstateDbError> {
        self.key.clear();
        self.key.push(KEY_COIN);
        self.key.extend_from_slice(&outpoint.txid.0);
        write_varint(&mut self.key, outpoint.vout.into());
        Ok(self.database.get(&self.key)?)
    }
}
