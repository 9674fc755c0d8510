//! [`CoinSample`]: a random sample of a chainstate's coins, for looking them up one by one as a
//! node does.
//!
//! Reading a database from its first entry to its last never uses the index separators, the filters or the
//! restart points of blocks. One wrong bit in them hides a coin from a node, which then refuses the valid
//! block that spends it. So the sample looks up coins through another implementation: all coins of a small
//! set; at least a thousandth and [`COINS_MIN`] of a large one. It also looks up as many outpoints that do
//! not exist, because filters and blocks must agree on those too.
//!
//! A secret, new for each sample, decides which coins to draw while they are read. For each drawn coin the
//! sample keeps the outpoint and a digest under that secret, 48 bytes; it holds at most one and a half times
//! the wanted number.

use super::read::{ChainstateSummary, block, obfuscation};
use super::{ChainstateDbError, KEY_BEST_BLOCK, KEY_COIN, KEY_OBFUSCATION};
use crate::independent::DatabaseLookUps;
use apus_chain::{OutPoint, write_varint};
use core::ops::ControlFlow;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// The minimum number of coins to look up, if the set has that many.
const COINS_MIN: usize = 100_000;

/// Of larger sets, one coin in this many is looked up.
const ONE_OF: u64 = 1_000;

/// An output number too high for any transaction.
const NO_OUTPUT: u32 = 1 << 31;

/// How many look-ups succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoinLookUp {
    /// Coins that were found unchanged.
    pub coins: u64,
    /// Outpoints that were correctly not found.
    pub absent: u64,
}

/// A random sample of the coins passed to it.
pub struct CoinSample {
    secret: RandomState,
    coins_min: usize,
    seen: u64,
    /// The highest lot drawn.
    limit: u64,
    drawn: Vec<SampledCoin>,
}

struct SampledCoin {
    outpoint: OutPoint,
    /// The digest of the coin's stored form.
    digest: u64,
}

/// The lot of a coin, derived from its outpoint and the secret.
fn lot(secret: &RandomState, outpoint: &OutPoint) -> u64 {
    secret.hash_one((outpoint.txid.0, outpoint.vout))
}

impl Default for CoinSample {
    fn default() -> Self {
        Self::new()
    }
}

impl CoinSample {
    /// An empty sample, with a secret from the system.
    pub fn new() -> Self {
        Self::of_at_least(COINS_MIN)
    }

    pub(super) fn of_at_least(coins_min: usize) -> Self {
        let secret = RandomState::new();
        Self { secret, coins_min, seen: 0, limit: u64::MAX, drawn: Vec::new() }
    }

    /// The outpoints that were drawn.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<OutPoint> {
        self.drawn.iter().map(|drawn| drawn.outpoint).collect()
    }

    /// Draws a coin in its stored form, or skips it. Expects coins in the order of the database.
    pub fn take(&mut self, outpoint: OutPoint, coin: &[u8]) {
        self.seen += 1;
        if lot(&self.secret, &outpoint) > self.limit {
            return;
        }
        self.drawn.push(SampledCoin { outpoint, digest: self.secret.hash_one(coin) });
        let wanted = self.coins_min.max((self.seen / ONE_OF) as usize);
        if self.drawn.len() > wanted + wanted / 2 {
            // Three quarters of these are an eighth more than wanted, so the sample never gets too small.
            self.limit = self.limit / 4 * 3;
            let Self { secret, limit, drawn, .. } = self;
            drawn.retain(|drawn| lot(secret, &drawn.outpoint) <= *limit);
        }
    }

    /// The number of coins to look up.
    pub fn count(&self) -> u64 {
        self.drawn.len() as u64
    }

    /// The approximate size of a sample of `coins` coins.
    pub fn expected_count(coins: u64) -> u64 {
        coins.min((COINS_MIN as u64).max(coins / ONE_OF) / 4 * 3)
    }

    /// Looks up each sampled coin, and as many missing outpoints, in the chainstate in the folder `dir`.
    /// `read` is the result of reading it. `reached` gets the number of look-ups so far, and may cancel: then
    /// the result is `None`.
    ///
    /// # Errors
    /// [`ChainstateDbError::LookUp`] for the first answer that differs from the entries read in order.
    pub fn look_up(
        self,
        dir: &Path,
        read: &ChainstateSummary,
        reached: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<CoinLookUp>, ChainstateDbError> {
        let mut database =
            ChainstateLookUps { dir, database: DatabaseLookUps::open(dir)?, key: Vec::new() };
        database.expect_set(read)?;
        let mut found = CoinLookUp::default();
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
                return Err(wrong("finds another coin"));
            }
            found.coins += 1;
            let outpoint = absent(outpoint, self.secret.hash_one(at));
            if database.coin(&outpoint)?.is_some() {
                let (path, what) = (dir.to_owned(), "finds a coin that does not exist");
                let entry = format!("coin {outpoint}");
                return Err(ChainstateDbError::LookUp { path, entry, what });
            }
            found.absent += 1;
        }
        Ok(Some(found))
    }
}

/// Makes up an outpoint that does not exist: at random, either with an output number that no transaction can
/// have, or with a txid that would take 2^192 attempts to find.
fn absent(near: &OutPoint, random: u64) -> OutPoint {
    let mut outpoint = *near;
    if random & 1 == 0 {
        outpoint.vout = NO_OUTPUT | random as u32;
    } else if let Some(end) = outpoint.txid.0.last_chunk_mut() {
        *end = (random ^ u64::from_le_bytes(*end)).to_le_bytes();
    }
    outpoint
}

/// Looks up single entries of a chainstate.
struct ChainstateLookUps<'d> {
    dir: &'d Path,
    database: DatabaseLookUps<'d>,
    key: Vec<u8>,
}

impl ChainstateLookUps<'_> {
    /// Fails unless the entries that a node looks up first match the entries read in order.
    fn expect_set(&mut self, read: &ChainstateSummary) -> Result<(), ChainstateDbError> {
        let wrong = |entry: &str| ChainstateDbError::LookUp {
            path: self.dir.to_owned(),
            entry: entry.to_owned(),
            what: "gives a different answer from when it was read",
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

    /// Returns the value stored for a coin.
    fn coin(&mut self, outpoint: &OutPoint) -> Result<Option<Vec<u8>>, ChainstateDbError> {
        self.key.clear();
        self.key.push(KEY_COIN);
        self.key.extend_from_slice(&outpoint.txid.0);
        write_varint(&mut self.key, outpoint.vout.into());
        Ok(self.database.get(&self.key)?)
    }
}
