//! The limits of a block: signature operations and weight, reached and exceeded by the least amount.

use super::draft::{BlockDraft, raw_of, recommit, sat, script};
use super::scripts::{Wrap, unlock};
use super::{Mutation, Mutator, mutation};
use crate::chain::{Commitment, ScriptKind};
use bitcoin::opcodes::all as op;
use bitcoin::{ScriptBuf, TxOut, Witness};

/// Core `consensus/consensus.h`.
const SIGOPS_COST_MAX: usize = 80_000;
const WEIGHT_MAX: u64 = 4_000_000;

/// Changes that reach a limit; their blocks take long.
pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("legacy sigops at the limit", |this| this.sigops(None, 0)),
    mutation("legacy sigops above the limit", |this| this.sigops(None, 4)),
    mutation("P2SH sigops at the limit", |this| this.sigops(Some(Wrap::Sh), 0)),
    mutation("P2SH sigops above the limit", |this| this.sigops(Some(Wrap::Sh), 4)),
    mutation("witness sigops at the limit", |this| this.sigops(Some(Wrap::Wsh), 0)),
    mutation("witness sigops above the limit", |this| this.sigops(Some(Wrap::Wsh), 1)),
    mutation("nested witness sigops at the limit", |this| this.sigops(Some(Wrap::ShWsh), 0)),
    mutation("nested witness sigops above the limit", |this| this.sigops(Some(Wrap::ShWsh), 1)),
    mutation("tapscript sigops count for nothing", |this| this.sigops(Some(Wrap::Leaf(0xc0)), 0)),
    mutation("weight at the limit", |this| this.weight(0, false)),
    mutation("weight four above the limit", |this| this.weight(4, false)),
    mutation("weight at the limit by a witness", |this| this.weight(0, true)),
    mutation("weight one above the limit by a witness", |this| this.weight(1, true)),
    mutation("block without witnesses above the limit", |this| this.weight(400, false)),
];

/// Makes a script of `count` signature checks that are never run, and true.
fn idle_checks(count: usize) -> ScriptBuf {
    let mut bytes = vec![0, op::OP_IF.to_u8()];
    bytes.extend(vec![op::OP_CHECKSIG.to_u8(); count]);
    bytes.extend([op::OP_ENDIF.to_u8(), 0x51]);
    script(bytes)
}

impl Mutator {
    /// Makes a block whose cost differs from the limit by `more`, with some of the operations in one form.
    fn sigops(&mut self, part: Option<Wrap>, more: usize) -> Option<Vec<u8>> {
        let mut draft = BlockDraft::default();
        if let Some(how) = part {
            // The total cost is a multiple of four plus `more`, and so is the rest.
            let count = self.rng.between(1, 45) as usize * 4 + more % 4;
            let inner = idle_checks(count);
            let coin = self.fund(&mut draft, self.locked(how, &inner))?;
            let mut tx = self.bare_spend(&coin);
            (tx.input[0].script_sig, tx.input[0].witness) = unlock(how, &inner, &[]);
            draft.transactions.push(tx);
        }
        let index = self.leaf(&mut draft)?;
        let cost = self.sigops_cost(&draft);
        let checks = (SIGOPS_COST_MAX + more).checked_sub(cost)? / 4;
        let tx = &mut draft.transactions[index];
        let checks = script(vec![op::OP_CHECKSIG.to_u8(); checks]);
        tx.output.push(TxOut { value: sat(0), script_pubkey: checks });
        self.resign(&mut draft, index);
        let outputs = vec![TxOut { value: sat(1), script_pubkey: script([0x51]) }];
        Some(raw_of(&self.finish_with(draft, outputs)))
    }

    fn sigops_cost(&self, draft: &BlockDraft) -> usize {
        let spent = |index| {
            let coins = self.spent_by(draft, index);
            move |outpoint: &bitcoin::OutPoint| {
                let coin = coins.iter().find(|(name, _)| name == outpoint);
                coin.map(|(_, output)| output.clone())
            }
        };
        let costs = (0..).zip(&draft.transactions);
        costs.map(|(index, tx)| tx.total_sigop_cost(spent(index))).sum()
    }

    /// Makes a block that exceeds the maximum weight by this much.
    fn weight(&mut self, more: u64, by_witness: bool) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        draft.commitment = Commitment::Always;
        let mut spender = None;
        if by_witness {
            // Any witness spends it.
            let coin = self.coin_of(&mut draft, ScriptKind::FutureWitness)?;
            let mut tx = self.spend(&coin);
            tx.input[0].witness = Witness::from_slice(&[vec![0; 1_000]]);
            draft.transactions.push(tx);
            spender = Some(draft.transactions.len());
        }
        // Its spender has no signature that depends on the filler.
        let coin = self.coin_of(&mut draft, ScriptKind::OpTrue)?;
        let mut tx = self.spend(&coin);
        tx.output.push(filler(900_000));
        draft.transactions.push(tx);
        let mut block = self.finish(draft);
        let missing = (WEIGHT_MAX + more).checked_sub(block.weight().to_wu())?;
        let last = block.txdata.last_mut()?.output.last_mut()?;
        *last = filler(900_000 + (missing / 4) as usize);
        if let Some(spender) = spender {
            let items = [vec![0; 1_000 + (missing % 4) as usize]];
            block.txdata[spender].input[0].witness = Witness::from_slice(&items);
        }
        recommit(&mut block);
        Some(raw_of(&block))
    }
}

/// Makes an output that only takes space.
fn filler(len: usize) -> TxOut {
    let mut bytes = vec![op::OP_RETURN.to_u8()];
    bytes.resize(len, 0);
    TxOut { value: sat(0), script_pubkey: script(bytes) }
}
