//! The witness commitment (BIP-141), and witnesses where none are allowed.
//!
//! The list lacks one case: a coinbase without a witness although the block commits to one. A node that gets
//! such a block by RPC repairs it, so it cannot be compared.

use super::draft::{COMMITMENT, raw_of, script};
use super::{Case, Mutation, Mutator, mutation};
use crate::chain::ScriptKind;
use crate::chain::builder::{Commitment, seal};
use bitcoin::hashes::Hash;
use bitcoin::{Block, Transaction, TxOut, Witness};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("commitment wrong", |this| {
        let bit = this.rng.index(256);
        this.committed(|_, block| flip(commitment(block), 6 + bit / 8, bit % 8))
    }),
    mutation("commitment missing", |this| {
        this.committed(|_, block| {
            block.txdata[0].output.pop();
            block.txdata[0].input[0].witness = Witness::new();
        })
    }),
    mutation("commitment missing, its witness there", |this| {
        this.committed(|_, block| {
            block.txdata[0].output.pop();
        })
    }),
    mutation("wrong commitment before the right one", |this| this.two_commitments(false)),
    mutation("wrong commitment behind the right one", |this| this.two_commitments(true)),
    mutation("commitment one byte short", |this| {
        this.committed(|_, block| {
            let output = commitment(block);
            let mut bytes = output.script_pubkey.to_bytes();
            bytes.pop();
            output.script_pubkey = script(bytes);
        })
    }),
    mutation("commitment with more behind it", |this| {
        this.committed(|this, block| {
            let output = commitment(block);
            let len = this.rng.between(1, 30) as usize;
            let more = this.rng.bytes(len);
            output.script_pubkey = script([output.script_pubkey.as_bytes(), &more].concat());
        })
    }),
    mutation("commitment with another opcode", |this| {
        this.committed(|this, block| {
            let place = this.rng.index(6);
            flip(commitment(block), place, 0);
        })
    }),
    mutation("nonce of 31 bytes", |this| this.nonce(&[&[0; 31]])),
    mutation("nonce of 33 bytes", |this| this.nonce(&[&[0; 33]])),
    mutation("nonce empty", |this| this.nonce(&[&[]])),
    mutation("two nonces", |this| this.nonce(&[&[0; 32], &[0; 32]])),
    mutation("nonce other than committed to", |this| this.nonce(&[&[1; 32]])),
    mutation("nonce of any bytes", |this| {
        this.committed(|this, block| {
            let nonce = this.rng.bytes(32);
            let root = block.witness_root().expect("a block has a coinbase");
            let hash = Block::compute_witness_commitment(&root, &nonce);
            let bytes = [&COMMITMENT[..], &hash.to_byte_array()].concat();
            commitment(block).script_pubkey = script(bytes);
            block.txdata[0].input[0].witness = Witness::from_slice(&[nonce]);
        })
    }),
    mutation("witness lost", |this| {
        this.committed(|_, block| {
            if let Some(tx) = block.txdata[1..].iter_mut().find(|tx| has_witness(tx)) {
                tx.input.iter_mut().for_each(|input| input.witness.clear());
            }
        })
    }),
    mutation("witness changed behind the commitment", |this| {
        this.committed(|_, block| {
            if let Some(tx) = block.txdata[1..].iter_mut().find(|tx| has_witness(tx)) {
                let input = tx.input.iter_mut().find(|input| !input.witness.is_empty());
                input.into_iter().for_each(|input| input.witness.push([7]));
            }
        })
    }),
    mutation("coinbase has a witness, nothing commits", |this| {
        let mut draft = this.draft();
        draft.transactions.retain(|tx| !has_witness(tx));
        let mut block = this.finish_with(super::draft::BlockDraft::default(), vec![]);
        draft.commitment = Commitment::Never;
        block.txdata[0].output =
            vec![TxOut { value: bitcoin::Amount::ZERO, script_pubkey: script([0x51]) }];
        block.txdata[0].input[0].witness = Witness::from_slice(&[[0; 32]]);
        seal(&mut block);
        Some(raw_of(&block))
    }),
    mutation("witness of a script that takes none", |this| {
        let mut draft = this.draft();
        let coin = this.coin_of(&mut draft, ScriptKind::OpTrue)?;
        let mut tx = this.spend(&coin);
        tx.input[0].witness = Witness::from_slice(&[[0x51]]);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("witness without a commitment", |this| {
        let mut draft = this.draft();
        let coin = this.coin_of(&mut draft, ScriptKind::Wpkh)?;
        let tx = this.spend(&coin);
        draft.transactions.push(tx);
        draft.commitment = Commitment::Never;
        this.done(draft)
    }),
    mutation("commitment to no witness", |this| {
        let mut draft = this.draft();
        draft.commitment = Commitment::Always;
        this.done(draft)
    }),
];

fn has_witness(tx: &Transaction) -> bool {
    tx.input.iter().any(|input| !input.witness.is_empty())
}

/// Returns the committing output, which is the last one.
fn commitment(block: &mut Block) -> &mut TxOut {
    block.txdata[0].output.last_mut().expect("the block commits")
}

fn flip(output: &mut TxOut, byte: usize, bit: usize) {
    let mut bytes = output.script_pubkey.to_bytes();
    bytes[byte] ^= 1 << bit;
    output.script_pubkey = script(bytes);
}

impl Mutator {
    /// Makes a valid block with a witness and its commitment, then changes it.
    fn committed(&mut self, edit: impl FnOnce(&mut Self, &mut Block)) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let coin = self.coin_of(&mut draft, ScriptKind::Wpkh)?;
        let tx = self.spend(&coin);
        draft.transactions.push(tx);
        let mut block = self.finish(draft);
        edit(self, &mut block);
        seal(&mut block);
        Some(raw_of(&block))
    }

    /// Makes a block that commits to witnesses and whose coinbase has none. It is not in the list, since a node
    /// that gets it by RPC repairs it.
    pub fn case_without_nonce(&mut self) -> Case {
        let raw = self.committed(|_, block| block.txdata[0].input[0].witness.clear());
        match raw {
            Some(raw) => Case { mutation: "nonce missing", raw },
            None => self.case(),
        }
    }

    fn nonce(&mut self, items: &[&[u8]]) -> Option<Vec<u8>> {
        self.committed(|_, block| {
            block.txdata[0].input[0].witness = Witness::from_slice(items);
        })
    }

    fn two_commitments(&mut self, wrong_last: bool) -> Option<Vec<u8>> {
        self.committed(|this, block| {
            let right = commitment(block).clone();
            let mut wrong = right.clone();
            flip(&mut wrong, 6 + this.rng.index(32), 0);
            block.txdata[0].output.pop();
            let both = if wrong_last { [right, wrong] } else { [wrong, right] };
            block.txdata[0].output.extend(both);
        })
    }
}
