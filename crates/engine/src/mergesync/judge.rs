//! [`Judge`]: a block with the coins that it spends, under every rule.
//!
//! The rules, their order and their names are those of the engine that connects blocks one after the
//! other; only where the coins come from is another matter. Blocks are judged in any order.

use super::record::AnswerRecord;
use crate::coin::CoinBytes;
use crate::connect::rules::{Spent, asks_for_bip30, bip30_error, check, may_repeat, outputs_of};
use crate::connect::sums::RunningSum;
use crate::connect::undo::block_undo;
use crate::connect::{ConnectContext, ConnectError, Connected, PreparedBlock};
use crate::script::{NoInterpreter, ScriptBatch, ScriptPool, Verdict};
use apus_chain::{CoinSum, CoinSumKey, Height, HeightRange, OutPoint, Params};
use core::convert::Infallible;
use std::sync::Arc;

/// The coins that blocks take, by their places.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Height, u32, CoinBytes)>);

impl Answers {
    /// Those for the blocks of `range`, out of runs. `None` where these are no such runs, have others, or
    /// give two coins to one place.
    pub fn read(range: HeightRange, runs: &[&[u8]]) -> Option<Self> {
        let mut answers = Vec::new();
        for run in runs {
            let mut rest = *run;
            while !rest.is_empty() {
                let (record, after) = AnswerRecord::read(rest)?;
                let AnswerRecord { height, place, coin } = record;
                if !range.contains(height) {
                    return None;
                }
                answers.push((height, place, CoinBytes::read(coin).ok()?));
                rest = after;
            }
        }
        answers.sort_unstable_by_key(|(height, place, _)| (*height, *place));
        let twice =
            |pair: &[(Height, u32, CoinBytes)]| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
        (!answers.windows(2).any(twice)).then_some(Self(answers))
    }

    /// The coin that a block takes at a place.
    fn coin(&self, height: Height, place: u32) -> Option<CoinBytes> {
        let found =
            self.0.binary_search_by_key(&(height, place), |(height, place, _)| (*height, *place));
        found.ok().map(|at| self.0[at].2.clone())
    }
}

/// A block that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The rule that it breaks.
    pub error: ConnectError,
    /// Core would have asked before whether any of these outputs of the block, all it has, is in the set
    /// already (BIP-30); the first that is would have been the reason. Nothing is known of them here.
    pub asked_before: Vec<OutPoint>,
}

impl Refused {
    /// The rule that it breaks, where `exists` says of an output whether it was in the set when the
    /// block began.
    pub fn told(
        self,
        block: &PreparedBlock,
        mut exists: impl FnMut(&OutPoint) -> bool,
    ) -> ConnectError {
        let found = self.asked_before.into_iter().find(|outpoint| exists(outpoint));
        found.map_or(self.error, |outpoint| bip30_error(block, outpoint))
    }
}

/// A block that passed everything but its scripts.
#[must_use]
pub struct Judged {
    connected: Connected,
    verdict: Option<Verdict>,
}

impl Judged {
    /// Waits for the scripts' verdict.
    pub fn wait(self) -> Result<Connected, JudgeError> {
        let Self { connected, verdict } = self;
        let Some(failure) = verdict.and_then(|verdict| verdict.wait().err()) else {
            return Ok(connected);
        };
        Err(match ConnectError::of_script(&connected.block, &failure) {
            Some(error) => JudgeError::Refused(Refused { error, asked_before: Vec::new() }),
            None => JudgeError::Script(failure.reason()),
        })
    }
}

/// Why a block could not be judged, or was refused.
#[derive(Debug)]
pub enum JudgeError {
    /// It breaks a rule.
    Refused(Refused),
    /// A script could not be run, which says nothing of the block.
    Script(String),
    /// Its scripts are to be run, and nothing can run them.
    NoInterpreter(NoInterpreter),
}

/// See the module.
pub struct Judge<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Runs scripts; none where none are to be run.
    pub scripts: Option<&'a ScriptPool>,
    /// Under which the coins are added up that a block spends, where the caller wants that.
    pub sum_key: Option<CoinSumKey>,
}

impl Judge<'_> {
    /// Judges a block. `existed` are outputs of it that were in the set when the block began, as the join
    /// found them.
    pub fn block(
        &self,
        block: &Arc<PreparedBlock>,
        answers: &Answers,
        existed: &[OutPoint],
        context: &ConnectContext<'_>,
    ) -> Result<Judged, JudgeError> {
        let id = block.id();
        let asks = asks_for_bip30(self.params, block, context);
        let refused = |error, asked_before| JudgeError::Refused(Refused { error, asked_before });
        // Where no valid block repeats one, the join does not see all of them, and need not.
        if asks && may_repeat(self.params) && !existed.is_empty() {
            let first = outputs_of(block).into_iter().find(|output| existed.contains(output));
            if let Some(outpoint) = first {
                return Err(refused(bip30_error(block, outpoint), Vec::new()));
            }
        }
        let look_up = |place: usize| Ok::<_, Infallible>(answers.coin(id.height, place as u32));
        let Ok(spent) = Spent::gather(block, look_up);
        let mut batch = match (self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(JudgeError::NoInterpreter(NoInterpreter)),
        };
        if let Err(error) = check(self.params, block, context, &spent, batch.as_mut()) {
            let outputs = if asks { outputs_of(block) } else { Vec::new() };
            return Err(refused(error, outputs));
        }
        let sum = self.sum_key.map(|key| RunningSum { key, sum: CoinSum::default() });
        let change = sum.map(|sum| sum.change(block, &spent.coins)).unwrap_or_default();
        let undo = block_undo(block, &spent.coins);
        let connected = Connected { block: Arc::clone(block), undo, spent: change.spent };
        Ok(Judged { connected, verdict: batch.map(ScriptBatch::finish) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::CoinRef;

    fn run(places: &[(Height, u32)]) -> Vec<u8> {
        let coin = CoinRef { height: 1, coinbase: false, amount: 5, script: &[0x51] };
        let coin = CoinBytes::new(coin);
        let mut out = Vec::new();
        for &(height, place) in places {
            AnswerRecord { height, place, coin: coin.as_bytes() }.write(&mut out);
        }
        out
    }

    #[test]
    fn answers_are_of_the_segment_and_one_for_each_place() {
        let range = HeightRange::new(5, 8);
        let read = |runs: &[&[(Height, u32)]]| {
            let runs: Vec<Vec<u8>> = runs.iter().map(|places| run(places)).collect();
            Answers::read(range, &runs.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let answers = read(&[&[(7, 0), (5, 3)], &[], &[(5, 2), (7, 1)]]).unwrap();
        for (height, place, there) in [(5, 2, true), (5, 3, true), (5, 0, false), (6, 0, false)] {
            assert_eq!(answers.coin(height, place).is_some(), there);
        }
        assert!(read(&[&[(5, 2)], &[(5, 2)]]).is_none(), "two for one place");
        assert!(read(&[&[(4, 0)]]).is_none() && read(&[&[(8, 0)]]).is_none(), "another segment");
        let whole = run(&[(5, 0)]);
        for length in 1..whole.len() {
            assert!(Answers::read(range, &[&whole[..length]]).is_none(), "{length}");
        }
    }
}
