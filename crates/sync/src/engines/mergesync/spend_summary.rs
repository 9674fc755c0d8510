//! [`SpendSummary`]: what a block requires of the coins that it spends, without the block itself.
//!
//! The first walk writes summaries so that the second need not read a block again if its scripts are assumed
//! valid and no part of it is kept. A summary says how many coins each transaction spends, what it pays out,
//! how old its coins must be, and an upper bound for the cost of signature operations. If the coins
//! [allow](SpendSummary::allowed) all of this, the [block connector](super::BlockConnector) would accept the
//! block. If they do not, the summary decides nothing: the block may still be valid, and if not, the connector
//! finds the reason.
//!
//! A block starts with a CompactSize: the number of bytes that follow, or 0 if it has no summary. Next come the
//! numbers below. All are CompactSizes, except sequence numbers.
//!
//! ```text
//! length of the block in bytes
//! upper bound for the cost of its signature operations
//! amount that its coinbase pays out, in satoshi
//! for each other transaction:
//!   twice the number of its inputs, plus 1 if any has a relative lock time
//!   amount that it pays out, in satoshi
//!   if any has one: the number of such inputs, then the index and sequence number (4 bytes) of each
//! ```

use apus_chain::{
    Ancestry, BlockBytes, BlockTotals, CoinValue, Height, Params, Reader, Txid,
    WITNESS_SCALE_FACTOR, check_fee, read_coin_value, relative_lock_is_over, relative_locks,
    spending_sigop_cost_max, value_out, write_compact_size,
};

/// What a block requires of the coins that it spends.
#[derive(Debug, Clone, Copy)]
pub struct SpendSummary<'a> {
    /// Length of the block in bytes.
    block_bytes: u64,
    /// Upper bound for the cost of its signature operations.
    sigop_cost_max: u64,
    /// Amount that its coinbase pays out, in satoshi.
    coinbase_out: u64,
    /// For each other transaction: `inputs * 2 + has_locks` and the amount it pays out; if it has locks, their
    /// number, then the input index and the little-endian sequence number of each.
    txs: &'a [u8],
}

impl<'a> SpendSummary<'a> {
    /// Appends a block's summary; `scratch` is working space.
    pub(super) fn write(out: &mut Vec<u8>, block: &BlockBytes<'_>, scratch: &mut Vec<u8>) {
        scratch.clear();
        let mut sigop_cost_max = block.legacy_sigops() * WITNESS_SCALE_FACTOR;
        for tx in block.view().txs().skip(1) {
            sigop_cost_max += spending_sigop_cost_max(&tx);
            let inputs = tx.inputs().len() as u64;
            let has_locks = relative_locks(&tx).next().is_some();
            write_compact_size(scratch, inputs << 1 | u64::from(has_locks));
            write_compact_size(scratch, value_out(&tx));
            if has_locks {
                write_compact_size(scratch, relative_locks(&tx).count() as u64);
                for (vin, sequence) in relative_locks(&tx) {
                    write_compact_size(scratch, vin as u64);
                    scratch.extend_from_slice(&sequence.to_le_bytes());
                }
            }
        }
        let block_bytes = block.view().raw().len() as u64;
        let coinbase_out = block.view().tx(0).map_or(0, |coinbase| value_out(&coinbase));
        let mut head = Vec::with_capacity(3 * 9);
        for number in [block_bytes, sigop_cost_max, coinbase_out] {
            write_compact_size(&mut head, number);
        }
        write_compact_size(out, (head.len() + scratch.len()) as u64);
        out.extend_from_slice(&head);
        out.extend_from_slice(scratch);
    }

    /// Appends the mark of a block without a summary.
    pub fn write_none(out: &mut Vec<u8>) {
        write_compact_size(out, 0);
    }

    /// Splits the first block's summary, if it has one, off `bytes`. `None` if the bytes are invalid.
    pub fn read(bytes: &'a [u8]) -> Option<(Option<Self>, &'a [u8])> {
        let mut reader = Reader::new(bytes);
        let length = reader.compact_size().ok()?;
        let (of_block, rest) = (reader.take(length).ok()?, reader.unread());
        if of_block.is_empty() {
            return Some((None, rest));
        }
        let mut reader = Reader::new(of_block);
        let mut number = || reader.compact_u64().ok();
        let (block_bytes, sigop_cost_max, coinbase_out) = (number()?, number()?, number()?);
        let claims = Self { block_bytes, sigop_cost_max, coinbase_out, txs: reader.unread() };
        Some((Some(claims), rest))
    }

    /// Returns the length of the block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Whether the coins allow what the block at this height requires. `coins` are in stored form, in the
    /// order of the inputs, without the coinbase's. The rules are the block connector's (Core
    /// `validation.cpp`, `ConnectBlock`), except BIP-30, which spent coins say nothing about.
    pub fn allowed<'c>(
        &self,
        params: &Params,
        height: Height,
        ancestry: &dyn Ancestry,
        coins: impl Iterator<Item = &'c [u8]>,
    ) -> bool {
        self.check(params, height, ancestry, coins).is_some()
    }

    fn check<'c>(
        &self,
        params: &Params,
        height: Height,
        ancestry: &dyn Ancestry,
        coins: impl Iterator<Item = &'c [u8]>,
    ) -> Option<()> {
        let csv = height >= params.csv_height;
        let mut totals = BlockTotals::new();
        totals.add_sigop_cost(0, Txid::ZERO, self.sigop_cost_max).ok()?;
        let mut coins = coins.map(|coin| read_coin_value(&mut Reader::new(coin)));
        let mut reader = Reader::new(self.txs);
        let mut heights = Vec::new();
        while reader.remaining() > 0 {
            let (inputs, value_out) = (reader.compact_u64().ok()?, reader.compact_u64().ok()?);
            let (inputs, has_locks) = (usize::try_from(inputs >> 1).ok()?, inputs & 1 == 1);
            heights.clear();
            let spent = coins.by_ref().map_while(Result::ok).inspect(|coin: &CoinValue| {
                if has_locks {
                    heights.push(coin.height);
                }
            });
            let fee = check_fee(inputs, value_out, spent, height).ok()?;
            totals.add_fee(0, Txid::ZERO, fee).ok()?;
            let locks = if has_locks { reader.compact_u64().ok()? } else { 0 };
            for _ in 0..locks {
                let vin = usize::try_from(reader.compact_u64().ok()?).ok()?;
                let sequence = u32::from_le_bytes(*reader.array().ok()?);
                let over = relative_lock_is_over(sequence, *heights.get(vin)?, ancestry, height);
                (over || !csv).then_some(())?;
            }
        }
        let all_taken = coins.next().is_none();
        (all_taken && self.coinbase_out <= totals.coinbase_max(height, params)).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{
        BLOCK_SIGOPS_COST_MAX, BlockHash, CoinRef, MAX_MONEY, Network, block_subsidy, write_coin,
    };
    use proptest::collection::vec;
    use proptest::prelude::*;

    const HEIGHT: Height = 1000;

    /// A chain whose blocks are one second apart.
    struct Seconds;

    impl Ancestry for Seconds {
        fn hash(&self, _: Height) -> Option<BlockHash> {
            None
        }

        fn median_time_past(&self, height: Height) -> Option<u32> {
            (height < HEIGHT).then_some(height)
        }
    }

    /// A transaction: its number of inputs, the amount it pays out, and its locks.
    type Tx<'t> = (u64, u64, &'t [(u64, u32)]);

    fn txs(all: &[Tx<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(inputs, value_out, locks) in all {
            write_compact_size(&mut out, inputs << 1 | u64::from(!locks.is_empty()));
            write_compact_size(&mut out, value_out);
            if !locks.is_empty() {
                write_compact_size(&mut out, locks.len() as u64);
            }
            for (vin, sequence) in locks {
                write_compact_size(&mut out, *vin);
                out.extend_from_slice(&sequence.to_le_bytes());
            }
        }
        out
    }

    fn coin(height: Height, coinbase: bool, amount: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write_coin(&mut out, CoinRef { height, coinbase, amount, script: &[0x51] });
        out
    }

    const ALL_RULES: Height = 1;

    /// Whether coins of these amounts allow the block, with relative locks in force from `csv_height` on.
    fn allowed(claims: (u64, u64, &[Tx<'_>]), csv_height: Height, coins: &[Vec<u8>]) -> bool {
        let (sigop_cost_max, coinbase_out, all) = claims;
        let txs = txs(all);
        let claims = SpendSummary { block_bytes: 80, sigop_cost_max, coinbase_out, txs: &txs };
        let params = Params { csv_height, ..Params::of(Network::Main).clone() };
        claims.allowed(&params, HEIGHT, &Seconds, coins.iter().map(Vec::as_slice))
    }

    #[test]
    fn summaries_accept_sufficient_coins_only() {
        let of = |amounts: &[u64]| -> Vec<Vec<u8>> {
            amounts.iter().map(|amount| coin(5, false, *amount)).collect()
        };
        let subsidy = block_subsidy(HEIGHT, Params::of(Network::Main).subsidy_halving_interval);
        let two: [Tx<'_>; 2] = [(1, 70, &[]), (2, 30, &[])];
        let allowed = |sigops, coinbase, txs, coins: &[u64]| {
            allowed((sigops, coinbase, txs), ALL_RULES, &of(coins))
        };
        assert!(allowed(0, subsidy, &[], &[]));
        assert!(!allowed(0, subsidy + 1, &[], &[]));
        assert!(allowed(0, subsidy + 8, &two, &[75, 30, 3]));
        assert!(!allowed(0, subsidy + 9, &two, &[75, 30, 3]));
        assert!(allowed(0, subsidy, &two, &[70, 10, 20]));
        assert!(!allowed(0, 0, &two, &[69, 30, 3]), "the second coin does not pay for the first");
        assert!(!allowed(0, 0, &two, &[70, 30]), "no coin");
        assert!(!allowed(0, 0, &two, &[70, 30, 3, 0]), "one coin too many");
        assert!(allowed(0, 0, &two, &[70, MAX_MONEY - 1, 1]));
        assert!(!allowed(0, 0, &two, &[70, MAX_MONEY, 1]));
        assert!(!allowed(0, 0, &two, &[MAX_MONEY, MAX_MONEY, 0]), "fees");
        assert!(allowed(BLOCK_SIGOPS_COST_MAX, 0, &two, &[70, 30, 3]));
        assert!(!allowed(BLOCK_SIGOPS_COST_MAX + 1, 0, &two, &[70, 30, 3]));
    }

    #[test]
    fn young_coins_are_not_allowed() {
        let one = |locks, height, coinbase| {
            let txs: [Tx<'_>; 2] = [(1, 1, &[]), (2, 1, locks)];
            let coins = [coin(5, false, 1), coin(5, false, 1), coin(height, coinbase, 1)];
            [ALL_RULES, HEIGHT, HEIGHT + 1].map(|csv| allowed((0, 0, &txs), csv, &coins))
        };
        assert_eq!(one(&[], 900, true), [true; 3]);
        assert_eq!(one(&[], 901, true), [false; 3]);
        assert_eq!(one(&[], 901, false), [true; 3]);
        // A lock in blocks, then one in time: 512 seconds from the block before.
        assert_eq!(one(&[(1, 7)], 993, false), [true; 3]);
        assert_eq!(one(&[(1, 7)], 994, false), [false, false, true]);
        assert_eq!(one(&[(0, 7), (1, 6)], 994, false), [true; 3]);
        assert_eq!(one(&[(1, 1 << 22 | 1)], 488, false), [true; 3]);
        assert_eq!(one(&[(1, 1 << 22 | 1)], 489, false), [false, false, true]);
        assert_eq!(one(&[(2, 0)], 5, false), [false; 3], "there is no such input");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in vec(prop_oneof![0u8..9, any::<u8>()], 0..40),
            coins in vec(vec(any::<u8>(), 0..9), 0..4),
        ) {
            if let Some((claims, rest)) = SpendSummary::read(&bytes) {
                prop_assert!(bytes.ends_with(rest) && rest.len() < bytes.len());
                if let Some(claims) = claims {
                    let params = Params::of(Network::Main);
                    let coins = coins.iter().map(Vec::as_slice);
                    claims.allowed(params, HEIGHT, &Seconds, coins);
                }
            }
        }
    }
}
