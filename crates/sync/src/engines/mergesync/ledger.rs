//! [`Ledger`]: what the blocks of a segment make and spend, and who takes what within it.
//!
//! Blocks come in any order. While one comes it is found which of its inputs spend outputs of its own, or
//! of blocks that came before. The rest waits for the end, when all are there and can be gone through by
//! ascending height: each coin of the segment goes to the first spend above it.

use super::bare::NumberedCoin;
use super::claims::Claims;
use super::record::{AnswerRecord, MadeCoin, MadeRecord, SpentRecord};
use super::seen::Fingerprint;
use apus_chain::{BlockBytes, Height, InputView, OutPoint, TxView, Txid, write_coin};
use apus_engine::connect::coins_of;
use apus_engine::sort::sort_by_number;
use apus_engine::tx_table::TxTable;
use apus_hash::{prefetch, release};
use core::ops::Range;

/// How many of those that follow are asked for ahead: as long as memory takes, in records.
const AHEAD: usize = 8;

/// What is told of a block beside its bytes.
pub(super) struct BlockOptions {
    /// A valid block may have outputs that were there before: nothing of it is answered ahead.
    pub(super) may_repeat: bool,
    pub(super) fingerprint: Fingerprint,
    /// Each of its coins gets its number.
    pub(super) numbered: bool,
    /// Its claims are noted.
    pub(super) claims: bool,
    /// It is answered with bare coins.
    pub(super) bare: bool,
}

/// A block that came.
struct LedgerBlock {
    height: Height,
    may_repeat: bool,
    bare: bool,
    fingerprint: Fingerprint,
    /// Where its claims lie.
    claims: Range<usize>,
    /// How many outputs it numbers, where that is asked.
    outputs: Option<u32>,
    /// The first of its inputs among all.
    spends: usize,
}

/// A transaction of one of them.
#[derive(Clone, Copy)]
struct LedgerTx {
    block: u32,
    /// The first of its outputs among all.
    outputs: usize,
    /// How many outputs of the block before it can be spent.
    index: u32,
    /// There is another one of its id in the segment.
    repeated: bool,
}

/// An output.
#[derive(Clone, Copy)]
struct LedgerOutput {
    /// Where its coin lies among the bytes; nowhere where it cannot be spent.
    start: usize,
    length: u16,
    /// Bytes before the coin that are a part of its record.
    head: u8,
    taken: TakenBy,
}

impl LedgerOutput {
    fn coin(&self) -> Range<usize> {
        self.start..self.start + usize::from(self.length)
    }

    /// Where the record of its coin lies.
    fn record(&self) -> Range<usize> {
        self.start - usize::from(self.head)..self.coin().end
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TakenBy {
    No,
    /// By a block above.
    Above,
    /// By its own block.
    Own,
}

/// Where the coin of an input comes from.
#[derive(Clone, Copy)]
enum InputSource {
    /// Out of its own block: one of all outputs.
    Own(usize),
    /// From an output of its own block that was spent before, or cannot be.
    Nowhere,
    /// A transaction of another block that came, which has such an output.
    Segment { tx: u32, vout: u32 },
    /// It was not to be found: one of the outpoints.
    Unknown(usize),
}

/// See the module.
pub(super) struct Ledger {
    blocks: Vec<LedgerBlock>,
    table: TxTable,
    txs: Vec<LedgerTx>,
    outputs: Vec<LedgerOutput>,
    /// The coins, each as it stands in the record of its transaction.
    coins: Vec<u8>,
    /// Where the coin of each input comes from.
    spends: Vec<InputSource>,
    unknown: Vec<OutPoint>,
    /// What blocks claim, in the order in which they came, and working space.
    claims: Vec<u8>,
    scratch: Vec<u8>,
    /// Coins wanted from below, while the ledger is closed.
    spent: Vec<SpentRecord>,
    /// What is to be sorted, by its first bytes, and working space.
    order: Vec<(u64, u32)>,
    spare: Vec<(u64, u32)>,
}

impl Default for Ledger {
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
            spent: Vec::new(),
            order: Vec::new(),
            spare: Vec::new(),
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.txs));
        release(std::mem::take(&mut self.outputs));
        release(std::mem::take(&mut self.coins));
        release(std::mem::take(&mut self.spends));
        release(std::mem::take(&mut self.unknown));
    }
}

impl Ledger {
    /// Enters a block.
    pub(super) fn add(&mut self, block: &BlockBytes<'_>, told: BlockOptions) {
        let (height, spends) = (block.height(), self.spends.len());
        let BlockOptions { may_repeat, fingerprint, numbered, claims, bare } = told;
        let first = self.outputs.len();
        let claims = self.claim(block, claims);
        // There are fewer blocks than heights.
        let number = self.blocks.len() as u32;
        let outputs = None;
        let entry = LedgerBlock { height, may_repeat, bare, fingerprint, claims, outputs, spends };
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
            self.txs.push(LedgerTx { block: number, outputs, index, repeated });
            index += self.make(height, txid, &tx, (at == 0, index), numbered);
        }
        if numbered {
            self.blocks[number as usize].outputs = Some(self.number(first));
        }
    }

    /// Notes what a block claims, if it `is_noted`. Where that lies.
    fn claim(&mut self, block: &BlockBytes<'_>, is_noted: bool) -> Range<usize> {
        let start = self.claims.len();
        match is_noted {
            true => Claims::write(&mut self.claims, block, &mut self.scratch),
            false => Claims::write_none(&mut self.claims),
        }
        start..self.claims.len()
    }

    /// Numbers the coins of the last block, whose first output is this one: those that it does not spend itself, in
    /// their order. How many there are.
    fn number(&mut self, first: usize) -> u32 {
        let mut next = 0;
        for output in &self.outputs[first..] {
            if output.length > 0 && output.taken != TakenBy::Own {
                NumberedCoin::set_number(&mut self.coins[output.coin()], next);
                next += 1;
            }
        }
        next
    }

    /// Where the coin of the next input comes from, as far as it can be told now.
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
        if output.length == 0 || output.taken == TakenBy::Own {
            return InputSource::Nowhere;
        }
        output.taken = TakenBy::Own;
        InputSource::Own(at)
    }

    /// The transaction that has this output, the last one of its id that came.
    fn find(&self, outpoint: &OutPoint) -> Option<u32> {
        let tx = self.table.find(&outpoint.txid)?;
        ((outpoint.vout as usize) < self.outputs_of(tx).len()).then_some(tx)
    }

    /// Where the outputs of a transaction are among all.
    fn outputs_of(&self, tx: u32) -> Range<usize> {
        let end = self.txs.get(tx as usize + 1).map_or(self.outputs.len(), |next| next.outputs);
        self.txs[tx as usize].outputs..end
    }

    /// Enters the outputs of a transaction, before which the block has so many that can be spent. How many of
    /// them can be.
    fn make(
        &mut self,
        height: Height,
        txid: Txid,
        tx: &TxView<'_>,
        (coinbase, index): (bool, u32),
        numbered: bool,
    ) -> u32 {
        let (first, mut spendable) = (self.outputs.len(), 0);
        let no_coin = LedgerOutput { start: 0, length: 0, head: 0, taken: TakenBy::No };
        self.outputs.resize(first + tx.outputs().len(), no_coin);
        for (outpoint, coin) in coins_of(height, txid, tx, coinbase) {
            let (vout, record) = (outpoint.vout, self.coins.len());
            let write = |out: &mut Vec<u8>| {
                write_coin(out, coin);
                if numbered {
                    NumberedCoin::no_number(out);
                }
            };
            let length = MadeCoin::append(&mut self.coins, vout, index + spendable, write);
            let start = self.coins.len() - length;
            // A script that can be spent has at most 10,000 bytes.
            let (length, head) = (length as u16, (start - record) as u8);
            self.outputs[first + vout as usize] = LedgerOutput { start, length, head, ..no_coin };
            spendable += 1;
        }
        spendable
    }

    fn coin(&self, output: usize) -> &[u8] {
        &self.coins[self.outputs[output].coin()]
    }

    /// What is left of the segment: runs of what it made, of what it spends of others, of what it answers
    /// itself, the fingerprints of its blocks, how many outputs they number, and what they claim. The ledger is empty
    /// then, and keeps its memory.
    pub(super) fn close(&mut self) -> [Vec<u8>; 6] {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        let ascend = order.is_sorted_by_key(|block| self.blocks[*block].height);
        if !ascend {
            order.sort_unstable_by_key(|block| self.blocks[*block].height);
            self.find_unknown();
        }
        let mut fingerprints = Vec::with_capacity(order.len() * Fingerprint::SIZE);
        let (mut added, mut claims) = (Vec::new(), Vec::with_capacity(self.claims.len()));
        // Of memory that a run does not need in the end none is ever touched.
        let coin_bytes = self.coins.len();
        let mut answers = Vec::with_capacity(self.spends.len() * AnswerRecord::HEAD + coin_bytes);
        for block in order {
            let LedgerBlock { fingerprint, outputs, claims: claimed, .. } = &self.blocks[block];
            fingerprints.extend_from_slice(&fingerprint.0);
            claims.extend_from_slice(&self.claims[claimed.clone()]);
            added.extend(outputs.iter().flat_map(|outputs| outputs.to_be_bytes()));
            self.settle(block, &mut answers);
        }
        if claims.len() == self.blocks.len() {
            // Not one block's were noted.
            claims = Vec::new();
        }
        answers.shrink_to_fit();
        let mut made = Vec::with_capacity(self.txs.len() * MadeRecord::HEAD + coin_bytes);
        self.made(&mut made);
        made.shrink_to_fit();
        let spent = self.spent();
        self.clear();
        [made, spent, answers, fingerprints, added, claims]
    }

    fn clear(&mut self) {
        let Self { blocks, table, txs, outputs, coins, spends, unknown, .. } = self;
        blocks.clear();
        table.clear();
        txs.clear();
        outputs.clear();
        coins.clear();
        spends.clear();
        unknown.clear();
        self.claims.clear();
        self.spent.clear();
        self.order.clear();
    }

    /// Looks once more for what had not come yet.
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

    /// Goes through the inputs of a block, when all below it are settled.
    fn settle(&mut self, block: usize, answers: &mut Vec<u8>) {
        let LedgerBlock { height, bare, spends: start, .. } = self.blocks[block];
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
            self.spent.push(SpentRecord { outpoint, height, place });
        }
    }

    /// Has memory fetched for inputs that will be looked up: for the far one the entry, and then, for the near one,
    /// the transaction.
    fn look_ahead_from_input(&self, far: Option<InputView<'_>>, near: Option<InputView<'_>>) {
        let id = |input: InputView<'_>| OutPoint::from_bytes(input.outpoint()).txid;
        if let Some(input) = far {
            self.table.prefetch_entry(&id(input));
        }
        if let Some(tx) = near.and_then(|input| self.table.prefetch_id(&id(input))) {
            self.txs.get(tx as usize).inspect(|tx| prefetch(*tx));
        }
    }

    /// Has memory fetched that the next inputs after one ask of. Their coins lie anywhere in the segment: the last of
    /// them is asked for its transaction, those before for the output and for the coin.
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

    /// The same for transactions in the order in which they are written.
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

    /// Appends that an input takes an output.
    fn answer(&self, out: &mut Vec<u8>, at: (Height, u32), output: usize, bare: bool) {
        let record = AnswerRecord { height: at.0, place: at.1, coin: self.coin(output) };
        if bare { record.write_bare(out) } else { record.write(out) }
    }

    /// Gives an output to a block of this height, if it is there for it and known to be the one.
    fn take(&mut self, tx: u32, vout: u32, height: Height) -> Option<usize> {
        let LedgerTx { block, outputs, repeated, .. } = self.txs[tx as usize];
        let LedgerBlock { height: made, may_repeat, .. } = self.blocks[block as usize];
        let at = outputs + vout as usize;
        let output = &mut self.outputs[at];
        let there = output.length > 0 && output.taken == TakenBy::No && made < height;
        if !there || repeated || may_repeat {
            return None;
        }
        output.taken = TakenBy::Above;
        Some(at)
    }

    /// Appends the coins that are left, as a run. What a block spends itself is noted only where BIP-30 may ask
    /// whether it was there before.
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
        // A block that has a transaction twice is refused, where the second has nothing to spend.
        txs.dedup_by(|a, b| a.0 == b.0 && name(a.1) == name(b.1));
        for at in 0..txs.len() {
            self.look_ahead_in(&txs[at..]);
            let tx = txs[at].1;
            let (txid, height) = name(tx);
            MadeRecord::write(run, txid, height, |out| self.left(tx, out));
        }
        txs.clear();
        (self.order, self.spare) = (txs, spare);
    }

    /// The coins wanted from below, as a run.
    fn spent(&mut self) -> Vec<u8> {
        let Self { spent, order, spare, .. } = self;
        // There are fewer inputs than bytes in a segment.
        order.extend((0..).zip(&*spent).map(|(at, it)| (prefix(&it.outpoint.txid), at)));
        let of = |at: u32| &spent[at as usize];
        let by_all =
            |a: &(u64, u32), b: &(u64, u32)| a.0.cmp(&b.0).then_with(|| of(a.1).cmp(of(b.1)));
        sort_by_number(order, spare, |it| it.0, by_all);
        let mut run = Vec::with_capacity(spent.len() * SpentRecord::SIZE);
        for (at, (_, spend)) in order.iter().enumerate() {
            order.get(at + AHEAD).inspect(|(_, next)| prefetch(of(*next)));
            of(*spend).write(&mut run);
        }
        run
    }

    /// Whether anything is to be noted of a transaction's outputs.
    fn is_left(&self, tx: u32) -> bool {
        let may_repeat = self.may_repeat(tx);
        let is_left = |output: &LedgerOutput| match output.taken {
            TakenBy::No => output.length > 0,
            TakenBy::Own => may_repeat,
            TakenBy::Above => false,
        };
        self.outputs[self.outputs_of(tx)].iter().any(is_left)
    }

    fn may_repeat(&self, tx: u32) -> bool {
        self.blocks[self.txs[tx as usize].block as usize].may_repeat
    }

    /// Appends what is to be noted of a transaction's outputs. Most lie side by side.
    fn left(&self, tx: u32, out: &mut Vec<u8>) {
        let may_repeat = self.may_repeat(tx);
        let (mut index, mut piece) = (self.txs[tx as usize].index, 0..0);
        for (vout, output) in (0..).zip(&self.outputs[self.outputs_of(tx)]) {
            if output.length == 0 {
                continue;
            }
            match output.taken {
                TakenBy::No if output.record().start == piece.end => {
                    piece.end = output.record().end
                }
                TakenBy::No => {
                    out.extend_from_slice(&self.coins[piece]);
                    piece = output.record();
                }
                TakenBy::Own if may_repeat => {
                    out.extend_from_slice(&self.coins[std::mem::take(&mut piece)]);
                    MadeCoin { vout, index, coin: &[] }.write(out);
                }
                TakenBy::Own | TakenBy::Above => {}
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
