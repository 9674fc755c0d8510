//! [`SegmentIndex`]: the coins that the blocks of a segment create and spend, and which coins are spent within
//! it.
//!
//! Blocks arrive in any order. On arrival, each of a block's inputs is matched with outputs of its own block,
//! or of blocks that arrived before. The rest waits until all blocks have arrived and can be processed by
//! ascending height: each coin of the segment goes to the first spend above it.

use super::own::WaitingBlock;
use super::record::{OutputCoin, OutputRecord, PrevoutRecord, SpendRecord};
use super::seen::Fingerprint;
use super::spend_summary::SpendSummary;
use super::stripped::IndexedCoin;
use apus_chain::{BlockBytes, Height, InputView, OutPoint, TxView, Txid, write_coin};
use apus_engine::connect::coins_of;
use apus_engine::sort::sort_by_number;
use apus_engine::tx_table::TxTable;
use apus_hash::{prefetch, release};
use core::ops::Range;

/// Prefetch distance in records: enough to hide the latency of memory.
const AHEAD: usize = 8;

/// Options for a block that is added.
pub(super) struct BlockOptions {
    /// A valid block may have outputs that existed before it: none of its spends are matched ahead.
    pub(super) may_repeat: bool,
    pub(super) fingerprint: Fingerprint,
    /// Hints do not count the outputs of its coinbase (BIP-457).
    pub(super) coinbase_uncounted: bool,
    /// Its coins get their numbers.
    pub(super) numbered: bool,
    /// Its spend summary is kept.
    pub(super) claims: bool,
    /// Its inputs get stripped coins.
    pub(super) bare: bool,
    /// Its bytes wait for the second walk.
    pub(super) waits: bool,
}

/// A block in the index.
struct IndexedBlock {
    height: Height,
    may_repeat: bool,
    bare: bool,
    fingerprint: Fingerprint,
    /// Range of its spend summary.
    claims: Range<usize>,
    /// How many outputs it numbers, if numbers are needed.
    outputs: Option<u32>,
    /// Index of its first input among all.
    spends: usize,
}

/// A transaction of one of the blocks.
#[derive(Clone, Copy)]
struct IndexedTx {
    block: u32,
    /// Index of its first output among all.
    outputs: usize,
    /// Number of counted outputs before it in its block.
    index: u32,
    /// The segment has another transaction with its id.
    repeated: bool,
}

/// An output.
#[derive(Clone, Copy)]
struct IndexedOutput {
    /// Offset of its coin among the bytes; unset if it cannot be spent.
    start: usize,
    length: u16,
    /// Bytes before the coin that belong to its record.
    head: u8,
    taken: SpentBy,
}

impl IndexedOutput {
    fn coin(&self) -> Range<usize> {
        self.start..self.start + usize::from(self.length)
    }

    /// Range of its coin's record.
    fn record(&self) -> Range<usize> {
        self.start - usize::from(self.head)..self.coin().end
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SpentBy {
    No,
    /// Spent by a block above.
    Above,
    /// Spent by its own block.
    Own,
}

/// The source of an input's coin.
#[derive(Clone, Copy)]
enum InputSource {
    /// Its own block: index of the output among all.
    Own(usize),
    /// No coin: its own block's output was spent before, or cannot be spent.
    Nowhere,
    /// A transaction of another added block, which has such an output.
    Segment { tx: u32, vout: u32 },
    /// Not found yet: index among the unknown outpoints.
    Unknown(usize),
}

/// The coins that the blocks of a segment create and spend. Reusable: [`close`](Self::close) empties it and
/// keeps its memory.
pub(super) struct SegmentIndex {
    blocks: Vec<IndexedBlock>,
    table: TxTable,
    txs: Vec<IndexedTx>,
    outputs: Vec<IndexedOutput>,
    /// The coins, in the layout of their transaction's record.
    coins: Vec<u8>,
    /// The source of each input's coin.
    spends: Vec<InputSource>,
    unknown: Vec<OutPoint>,
    /// Spend summaries in the order in which blocks arrived, and working space.
    claims: Vec<u8>,
    scratch: Vec<u8>,
    /// Blocks that wait for the second walk ([`WaitingBlock`]), in order of arrival.
    waiting: Vec<u8>,
    /// Coins spent from below, while the index is being closed.
    spent: Vec<SpendRecord>,
    /// Items to sort, by their first bytes, and working space.
    order: Vec<(u64, u32)>,
    spare: Vec<(u64, u32)>,
}

impl Default for SegmentIndex {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            table: TxTable::new(0),
            txs: Vec::new(),
            outputs: Vec::new(),
            coins: Vec::new(),
            spends: Vec::new(),
            unknown: Vec::new(),
            claims: Vec::new(),
            scratch: Vec::new(),
            waiting: Vec::new(),
            spent: Vec::new(),
            order: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl Drop for SegmentIndex {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.txs));
        release(std::mem::take(&mut self.outputs));
        release(std::mem::take(&mut self.coins));
        release(std::mem::take(&mut self.spends));
        release(std::mem::take(&mut self.unknown));
    }
}

impl SegmentIndex {
    /// Adds a block.
    pub(super) fn add(&mut self, block: &BlockBytes<'_>, options: BlockOptions) {
        let (height, spends) = (block.height(), self.spends.len());
        let BlockOptions { may_repeat, fingerprint, numbered, claims, bare, waits, .. } = options;
        if waits {
            WaitingBlock { height, raw: block.view().raw() }.write(&mut self.waiting);
        }
        let first = self.outputs.len();
        let claims = self.claim(block, claims);
        // There are fewer blocks than heights, so the number fits.
        let number = self.blocks.len() as u32;
        let outputs = None;
        let entry = IndexedBlock { height, may_repeat, bare, fingerprint, claims, outputs, spends };
        self.blocks.push(entry);
        let mut index = 0;
        // The first input is the coinbase's.
        let [mut far, mut near] = [2, 1].map(|times| block.view().inputs().skip(1 + times * AHEAD));
        let mut next = block.txs().skip(AHEAD);
        for (at, (txid, tx)) in block.txs().enumerate() {
            next.next().inspect(|(txid, _)| self.table.prefetch_entry(txid));
            for input in tx.inputs().filter(|_| at > 0) {
                self.look_ahead_from_input(far.next(), near.next());
                let source = self.source(number, OutPoint::from_bytes(input.outpoint()));
                self.spends.push(source);
            }
            let same = self.table.add(txid);
            if let Some(same) = same {
                self.txs[same as usize].repeated = true;
            }
            let (outputs, repeated) = (self.outputs.len(), same.is_some());
            self.txs.push(IndexedTx { block: number, outputs, index, repeated });
            let made = self.make(height, txid, &tx, (at == 0, index), numbered);
            index += if at == 0 && options.coinbase_uncounted { 0 } else { made };
        }
        if numbered {
            self.blocks[number as usize].outputs = Some(self.number(first));
        }
    }

    /// Appends a block's spend summary, if `is_noted`. Returns its range.
    fn claim(&mut self, block: &BlockBytes<'_>, is_noted: bool) -> Range<usize> {
        let start = self.claims.len();
        match is_noted {
            true => SpendSummary::write(&mut self.claims, block, &mut self.scratch),
            false => SpendSummary::write_none(&mut self.claims),
        }
        start..self.claims.len()
    }

    /// Numbers the coins of the last block, whose first output is `first`, in order, except coins that the
    /// block spends itself. Returns their number.
    fn number(&mut self, first: usize) -> u32 {
        let mut next = 0;
        for output in &self.outputs[first..] {
            if output.length > 0 && output.taken != SpentBy::Own {
                IndexedCoin::set_number(&mut self.coins[output.coin()], next);
                next += 1;
            }
        }
        next
    }

    /// The source of the next input's coin, as far as it is known now.
    fn source(&mut self, block: u32, outpoint: OutPoint) -> InputSource {
        let found = self.find(&outpoint);
        let Some(tx) = found else {
            self.unknown.push(outpoint);
            return InputSource::Unknown(self.unknown.len() - 1);
        };
        if self.txs[tx as usize].block != block {
            return InputSource::Segment { tx, vout: outpoint.vout };
        }
        let at = self.txs[tx as usize].outputs + outpoint.vout as usize;
        let output = &mut self.outputs[at];
        if output.length == 0 || output.taken == SpentBy::Own {
            return InputSource::Nowhere;
        }
        output.taken = SpentBy::Own;
        InputSource::Own(at)
    }

    /// The transaction with this output: the last one added with its id.
    fn find(&self, outpoint: &OutPoint) -> Option<u32> {
        let tx = self.table.find(&outpoint.txid)?;
        ((outpoint.vout as usize) < self.outputs_of(tx).len()).then_some(tx)
    }

    /// Range of a transaction's outputs among all.
    fn outputs_of(&self, tx: u32) -> Range<usize> {
        let end = self.txs.get(tx as usize + 1).map_or(self.outputs.len(), |next| next.outputs);
        self.txs[tx as usize].outputs..end
    }

    /// Adds the outputs of a transaction; `index` counted outputs come before it in the block. Returns how
    /// many of them are spendable.
    fn make(
        &mut self,
        height: Height,
        txid: Txid,
        tx: &TxView<'_>,
        (coinbase, index): (bool, u32),
        numbered: bool,
    ) -> u32 {
        let (first, mut spendable) = (self.outputs.len(), 0);
        let no_coin = IndexedOutput { start: 0, length: 0, head: 0, taken: SpentBy::No };
        self.outputs.resize(first + tx.outputs().len(), no_coin);
        for (outpoint, coin) in coins_of(height, txid, tx, coinbase) {
            let (vout, record) = (outpoint.vout, self.coins.len());
            let write = |out: &mut Vec<u8>| {
                write_coin(out, coin);
                if numbered {
                    IndexedCoin::no_number(out);
                }
            };
            let length = OutputCoin::append(&mut self.coins, vout, index + spendable, write);
            let start = self.coins.len() - length;
            // A spendable script has at most 10,000 bytes.
            let (length, head) = (length as u16, (start - record) as u8);
            self.outputs[first + vout as usize] = IndexedOutput { start, length, head, ..no_coin };
            spendable += 1;
        }
        spendable
    }

    fn coin(&self, output: usize) -> &[u8] {
        &self.coins[self.outputs[output].coin()]
    }

    /// The memory in use, in bytes, and what closing takes to sort.
    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + size_of_val(&*self.txs)
            + size_of_val(&*self.outputs)
            + self.coins.len()
            + size_of_val(&*self.spends)
            + size_of_val(&*self.unknown)
            + self.claims.len()
            + self.waiting.len()
            + self.unknown.len() * size_of::<SpendRecord>()
            + 2 * self.txs.len().max(self.unknown.len()) * size_of::<(u64, u32)>()
    }

    /// Closes the segment and returns its runs: the coins it created, the coins it spends from below, its own
    /// answers, the fingerprints of its blocks, the number of outputs they number, their spend summaries, and those
    /// blocks that wait.
    /// The index is then empty, and keeps its memory.
    pub(super) fn close(&mut self) -> [Vec<u8>; 7] {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        let ascend = order.is_sorted_by_key(|block| self.blocks[*block].height);
        if !ascend {
            order.sort_unstable_by_key(|block| self.blocks[*block].height);
            self.find_unknown();
        }
        let mut fingerprints = Vec::with_capacity(order.len() * Fingerprint::SIZE);
        let (mut added, mut claims) = (Vec::new(), Vec::with_capacity(self.claims.len()));
        // Memory that a run turns out not to need is never touched.
        let coin_bytes = self.coins.len();
        let mut answers = Vec::with_capacity(self.spends.len() * PrevoutRecord::HEAD + coin_bytes);
        for block in order {
            let IndexedBlock { fingerprint, outputs, claims: claimed, .. } = &self.blocks[block];
            fingerprints.extend_from_slice(&fingerprint.0);
            claims.extend_from_slice(&self.claims[claimed.clone()]);
            added.extend(outputs.iter().flat_map(|outputs| outputs.to_be_bytes()));
            self.settle(block, &mut answers);
        }
        if claims.len() == self.blocks.len() {
            // No block's summary was kept.
            claims = Vec::new();
        }
        answers.shrink_to_fit();
        let mut made = Vec::with_capacity(self.txs.len() * OutputRecord::HEAD + coin_bytes);
        self.made(&mut made);
        made.shrink_to_fit();
        let spent = self.spent();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.shrink_to_fit();
        self.clear();
        [made, spent, answers, fingerprints, added, claims, waiting]
    }

    /// Removes everything, and keeps the memory that as much needs: the next segment may be much shorter.
    fn clear(&mut self) {
        fn clear<T>(items: &mut Vec<T>) {
            let count = items.len();
            items.clear();
            items.shrink_to(count + count / 8);
        }
        let Self { blocks, table, txs, outputs, coins, spends, unknown, .. } = self;
        clear(blocks);
        table.clear();
        clear(txs);
        clear(outputs);
        clear(coins);
        clear(spends);
        clear(unknown);
        clear(&mut self.claims);
        clear(&mut self.spent);
        self.order.clear();
    }

    /// Looks up unknown outpoints again, now that all blocks have arrived.
    fn find_unknown(&mut self) {
        for at in 0..self.spends.len() {
            if let InputSource::Unknown(unknown) = self.spends[at]
                && let OutPoint { vout, .. } = self.unknown[unknown]
                && let Some(tx) = self.find(&self.unknown[unknown])
            {
                self.spends[at] = InputSource::Segment { tx, vout };
            }
        }
    }

    /// Matches the inputs of a block, once all blocks below it are done.
    fn settle(&mut self, block: usize, answers: &mut Vec<u8>) {
        let IndexedBlock { height, bare, spends: start, .. } = self.blocks[block];
        let end = self.blocks.get(block + 1).map_or(self.spends.len(), |next| next.spends);
        for (place, at) in (0..).zip(start..end) {
            self.look_ahead_from_spend(at);
            let outpoint = match self.spends[at] {
                InputSource::Nowhere => continue,
                InputSource::Unknown(unknown) => self.unknown[unknown],
                InputSource::Own(output) => {
                    self.answer(answers, (height, place), output, bare);
                    continue;
                }
                InputSource::Segment { tx, vout } => {
                    if let Some(output) = self.take(tx, vout, height) {
                        self.answer(answers, (height, place), output, bare);
                        continue;
                    }
                    OutPoint { txid: *self.table.txid(tx), vout }
                }
            };
            self.spent.push(SpendRecord { outpoint, height, place });
        }
    }

    /// Prefetches memory for inputs that will be looked up soon: the table entry for the far one, then the
    /// transaction for the near one.
    fn look_ahead_from_input(&self, far: Option<InputView<'_>>, near: Option<InputView<'_>>) {
        let id = |input: InputView<'_>| OutPoint::from_bytes(input.outpoint()).txid;
        if let Some(input) = far {
            self.table.prefetch_entry(&id(input));
        }
        if let Some(tx) = near.and_then(|input| self.table.prefetch_id(&id(input))) {
            self.txs.get(tx as usize).inspect(|tx| prefetch(*tx));
        }
    }

    /// Prefetches memory for the inputs that follow one. Their coins are anywhere in the segment: the
    /// farthest input prefetches its transaction, nearer ones the output and then the coin.
    fn look_ahead_from_spend(&self, spend: usize) {
        let place = |at: usize| match *self.spends.get(at)? {
            InputSource::Own(output) => Some(output),
            InputSource::Segment { tx, vout } => {
                Some(self.txs[tx as usize].outputs + vout as usize)
            }
            InputSource::Nowhere | InputSource::Unknown(_) => None,
        };
        if let Some(InputSource::Segment { tx, .. }) = self.spends.get(spend + 3 * AHEAD) {
            prefetch(&self.txs[*tx as usize]);
        }
        if let Some(output) = place(spend + 2 * AHEAD) {
            prefetch(&self.outputs[output]);
        }
        if let Some(output) = place(spend + AHEAD) {
            self.coins.get(self.outputs[output].start).inspect(|coin| prefetch(*coin));
        }
    }

    /// Prefetches memory for transactions in the order in which they are written.
    fn look_ahead_in(&self, txs: &[(u64, u32)]) {
        let tx = |ahead: usize| txs.get(ahead).map(|(_, tx)| *tx as usize);
        if let Some(tx) = tx(3 * AHEAD) {
            prefetch(&self.txs[tx]);
            prefetch(self.table.txid(tx as u32));
        }
        if let Some(output) = tx(2 * AHEAD).and_then(|tx| self.outputs.get(self.txs[tx].outputs)) {
            prefetch(output);
        }
        if let Some(output) = tx(AHEAD).and_then(|tx| self.outputs.get(self.txs[tx].outputs)) {
            self.coins.get(output.start).inspect(|coin| prefetch(*coin));
        }
    }

    /// Appends the record of an input that spends an output.
    fn answer(&self, out: &mut Vec<u8>, at: (Height, u32), output: usize, bare: bool) {
        let record = PrevoutRecord { height: at.0, place: at.1, coin: self.coin(output) };
        if bare { record.write_bare(out) } else { record.write(out) }
    }

    /// Lets a block of this height spend an output, if the output exists at that height and is unambiguous.
    fn take(&mut self, tx: u32, vout: u32, height: Height) -> Option<usize> {
        let IndexedTx { block, outputs, repeated, .. } = self.txs[tx as usize];
        let IndexedBlock { height: made, may_repeat, .. } = self.blocks[block as usize];
        let at = outputs + vout as usize;
        let output = &mut self.outputs[at];
        let there = output.length > 0 && output.taken == SpentBy::No && made < height;
        if !there || repeated || may_repeat {
            return None;
        }
        output.taken = SpentBy::Above;
        Some(at)
    }

    /// Appends the remaining coins, as a run. An output that its own block spends is included only if the
    /// BIP-30 check may need it.
    fn made(&mut self, run: &mut Vec<u8>) {
        let (mut txs, mut spare) =
            (std::mem::take(&mut self.order), std::mem::take(&mut self.spare));
        let name = |tx: u32| {
            let block = self.txs[tx as usize].block as usize;
            (self.table.txid(tx), self.blocks[block].height)
        };
        let left = (0..self.txs.len() as u32).filter(|tx| self.is_left(*tx));
        txs.extend(left.map(|tx| (prefix(self.table.txid(tx)), tx)));
        let by_name =
            |a: &(u64, u32), b: &(u64, u32)| a.0.cmp(&b.0).then_with(|| name(a.1).cmp(&name(b.1)));
        sort_by_number(&mut txs, &mut spare, |tx| tx.0, by_name);
        // A block with the same transaction twice is refused anyway: the second one has nothing to spend.
        txs.dedup_by(|a, b| a.0 == b.0 && name(a.1) == name(b.1));
        for at in 0..txs.len() {
            self.look_ahead_in(&txs[at..]);
            let tx = txs[at].1;
            let (txid, height) = name(tx);
            OutputRecord::write(run, txid, height, |out| self.left(tx, out));
        }
        txs.clear();
        (self.order, self.spare) = (txs, spare);
    }

    /// The coins spent from below, as a run.
    fn spent(&mut self) -> Vec<u8> {
        let Self { spent, order, spare, .. } = self;
        // A segment has fewer inputs than bytes, so the index fits.
        order.extend((0..).zip(&*spent).map(|(at, it)| (prefix(&it.outpoint.txid), at)));
        let of = |at: u32| &spent[at as usize];
        let by_all =
            |a: &(u64, u32), b: &(u64, u32)| a.0.cmp(&b.0).then_with(|| of(a.1).cmp(of(b.1)));
        sort_by_number(order, spare, |it| it.0, by_all);
        let mut run = Vec::with_capacity(spent.len() * SpendRecord::SIZE);
        for (at, (_, spend)) in order.iter().enumerate() {
            order.get(at + AHEAD).inspect(|(_, next)| prefetch(of(*next)));
            of(*spend).write(&mut run);
        }
        run
    }

    /// Whether any output of a transaction must be recorded.
    fn is_left(&self, tx: u32) -> bool {
        let may_repeat = self.may_repeat(tx);
        let is_left = |output: &IndexedOutput| match output.taken {
            SpentBy::No => output.length > 0,
            SpentBy::Own => may_repeat,
            SpentBy::Above => false,
        };
        self.outputs[self.outputs_of(tx)].iter().any(is_left)
    }

    fn may_repeat(&self, tx: u32) -> bool {
        self.blocks[self.txs[tx as usize].block as usize].may_repeat
    }

    /// Appends the outputs of a transaction that must be recorded. Most of them are contiguous.
    fn left(&self, tx: u32, out: &mut Vec<u8>) {
        let may_repeat = self.may_repeat(tx);
        let (mut index, mut piece) = (self.txs[tx as usize].index, 0..0);
        for (vout, output) in (0..).zip(&self.outputs[self.outputs_of(tx)]) {
            if output.length == 0 {
                continue;
            }
            match output.taken {
                SpentBy::No if output.record().start == piece.end => {
                    piece.end = output.record().end
                }
                SpentBy::No => {
                    out.extend_from_slice(&self.coins[piece]);
                    piece = output.record();
                }
                SpentBy::Own if may_repeat => {
                    out.extend_from_slice(&self.coins[std::mem::take(&mut piece)]);
                    OutputCoin { vout, index, coin: &[] }.write(out);
                }
                SpentBy::Own | SpentBy::Above => {}
            }
            index += 1;
        }
        out.extend_from_slice(&self.coins[piece]);
    }
}

/// The first bytes of an id, to sort by.
fn prefix(txid: &Txid) -> u64 {
    txid.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
