//! Scripts and the data that unlocks them: hashes that do not match, taproot's trees, limits of a script.

use super::draft::{BlockDraft, script};
use super::{Mutation, Mutator, mutation};
use crate::chain::ScriptKind;
use bitcoin::opcodes::all as op;
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{Secp256k1, XOnlyPublicKey};
use bitcoin::taproot::{LeafVersion, TaprootBuilder, TaprootSpendInfo};
use bitcoin::{ScriptBuf, Witness};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("every form of a script, true", |this| this.script_is(&[0x51], &[])),
    mutation("every form of a script, false", |this| this.script_is(&[0x00], &[])),
    mutation("every form of a script, early return", |this| this.script_is(&[0x6a], &[])),
    mutation("every form of a script, two items left", |this| this.script_is(&[0x51, 0x51], &[])),
    mutation("item of 520 bytes", |this| this.script_is(&DROP, &[vec![1; 520]])),
    mutation("item of 521 bytes", |this| this.script_is(&DROP, &[vec![1; 521]])),
    mutation("condition that is not minimal", |this| this.script_is(&BRANCH, &[vec![2]])),
    mutation("condition that is minimal", |this| this.script_is(&BRANCH, &[vec![1]])),
    mutation("201 operations", |this| this.script_is(&nops(201), &[])),
    mutation("202 operations", |this| this.script_is(&nops(202), &[])),
    mutation("10,000 bytes in a witness", |this| this.long_witness(10_000)),
    mutation("10,001 bytes in a witness", |this| this.long_witness(10_001)),
    mutation("10,000 bytes spent", |this| {
        let mut draft = this.draft();
        let coin = this.coin_of(&mut draft, ScriptKind::Longest)?;
        let tx = this.spend(&coin);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("disabled operation, not run", |this| {
        this.script_is(&[0, 0x63, op::OP_CAT.to_u8(), 0x68, 0x51], &[])
    }),
    mutation("another script than hashed", |this| {
        let inner = script([0x51]);
        this.unlocked_by(&inner, |how| unlock(how, &script([0x52]), &[]))
    }),
    mutation("script missing", |this| {
        this.unlocked_by(&script([0x51]), |_| (ScriptBuf::new(), Witness::new()))
    }),
    mutation("items beyond what is needed", |this| this.script_is(&[0x51], &[vec![1], vec![2]])),
    mutation("input script of a native witness", |this| {
        let mut draft = this.draft();
        let kind = if this.rng.one_in(2) { ScriptKind::Wsh } else { ScriptKind::TrScript };
        let coin = this.coin_of(&mut draft, kind)?;
        let mut tx = this.spend(&coin);
        tx.input[0].script_sig = script([0x51]);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("nested program pushed in another way", |this| {
        let inner = script([0x51]);
        this.unlock_as(Wrap::ShWsh, &inner, |how| {
            let (script_sig, witness) = unlock(how, &inner, &[]);
            let longer = [&[0x4c][..], script_sig.as_bytes()].concat();
            (script(longer), witness)
        })
    }),
    mutation("input script of P2SH that is not all pushes", |this| {
        let inner = script([0x51]);
        this.unlock_as(Wrap::Sh, &inner, |how| {
            let (script_sig, witness) = unlock(how, &inner, &[]);
            (script([&[0x61][..], script_sig.as_bytes()].concat()), witness)
        })
    }),
    mutation("leaf of an unknown version", |this| this.leaf_is(0xc2, &[0x6a])),
    mutation("leaf of any version", |this| {
        let version = (this.rng.next_u64() as u8) & 0xfe;
        // 0x50 is not a version: it begins an annex.
        this.leaf_is(if version == 0x50 { 0xc0 } else { version }, &[0x00])
    }),
    mutation("leaf with an operation that succeeds", |this| this.leaf_is(0xc0, &[0x50, 0x6a])),
    mutation("leaf with CHECKMULTISIG", |this| {
        this.leaf_is(0xc0, &[0, 0, op::OP_CHECKMULTISIG.to_u8()])
    }),
    mutation("leaf with a key of unknown form", |this| {
        // A non-empty signature, a key of one byte, OP_CHECKSIG.
        let inner = script([1, 1, 1, 7, op::OP_CHECKSIG.to_u8()]);
        this.unlock_as(Wrap::Leaf(0xc0), &inner, |how| unlock(how, &inner, &[]))
    }),
    mutation("signature checks beyond the budget", |this| this.budget(20)),
    mutation("signature checks within the budget", |this| this.budget(1)),
    mutation("annex", |this| this.taproot_items(|_, items| items.push(vec![0x50, 1, 2]))),
    mutation("annex alone", |this| this.taproot_items(|_, items| *items = vec![vec![0x50, 1, 2]])),
    mutation("two annexes", |this| {
        this.taproot_items(|_, items| items.extend([vec![0x50], vec![0x50]]))
    }),
    mutation("control block flipped", |this| {
        this.taproot_items(|this, items| {
            let control = &mut items[1];
            let place = this.rng.index(control.len());
            control[place] ^= 1 << this.rng.below(8);
        })
    }),
    mutation("control block too short", |this| {
        this.taproot_items(|_, items| {
            items[1].pop();
        })
    }),
    mutation("control block too long", |this| this.taproot_items(|_, items| items[1].push(0))),
    mutation("control block of a longer path", |this| {
        this.taproot_items(|this, items| items[1].extend(this.rng.bytes(32)))
    }),
    mutation("control block of 129 steps", |this| {
        this.taproot_items(|this, items| items[1].extend(this.rng.bytes(32 * 129)))
    }),
    mutation("another leaf than committed to", |this| {
        this.taproot_items(|_, items| items[0] = vec![0x52])
    }),
    mutation("taproot witness empty", |this| this.taproot_items(|_, items| items.clear())),
    mutation("future witness with anything", |this| {
        let mut draft = this.draft();
        let coin = this.coin_of(&mut draft, ScriptKind::FutureWitness)?;
        let mut tx = this.spend(&coin);
        let items: Vec<Vec<u8>> = (0..3).map(|_| this.rng.bytes(30)).collect();
        tx.input[0].witness = Witness::from_slice(&items);
        draft.transactions.push(tx);
        this.done(draft)
    }),
    mutation("witness program of version 0 and odd length", |this| {
        let len = [2, 19, 21, 31, 33, 40][this.rng.index(6)];
        this.program(0, len)
    }),
    mutation("witness program of version 1 and odd length", |this| {
        let len = [2, 20, 31, 33, 40][this.rng.index(5)];
        this.program(0x51, len)
    }),
    mutation("no witness program: 1 or 41 bytes", |this| {
        let len = [1, 41][this.rng.index(2)];
        this.program(0x51, len)
    }),
];

const DROP: [u8; 2] = [0x75, 0x51];
/// OP_IF OP_1 OP_ELSE OP_1 OP_ENDIF
const BRANCH: [u8; 5] = [0x63, 0x51, 0x67, 0x51, 0x68];

fn nops(count: usize) -> Vec<u8> {
    let mut bytes = vec![op::OP_NOP.to_u8(); count];
    bytes.push(0x51);
    bytes
}

/// How an output contains a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrap {
    Bare,
    Sh,
    Wsh,
    ShWsh,
    /// The only leaf of a taproot tree, with this version.
    Leaf(u8),
}

impl Wrap {
    pub(super) const ALL: [Self; 5] =
        [Self::Bare, Self::Sh, Self::Wsh, Self::ShWsh, Self::Leaf(0xc0)];
}

/// Returns a key without a known secret (BIP-341).
fn internal_key() -> XOnlyPublicKey {
    "50929b74c1a04954b78b4b6035e97a5e078a5a0f28ec96d547bfee9ace803ac0".parse().expect("a point")
}

fn tree(version: LeafVersion, inner: &ScriptBuf) -> TaprootSpendInfo {
    let builder = TaprootBuilder::new().add_leaf_with_ver(0, inner.clone(), version);
    builder.expect("one leaf").finalize(&Secp256k1::new(), internal_key()).expect("complete")
}

fn leaf_version(version: u8) -> LeafVersion {
    LeafVersion::from_consensus(version).expect("an even number that is not 0x50")
}

/// Pushes items, each in the usual form for its length.
fn pushes(items: &[Vec<u8>]) -> ScriptBuf {
    let push = |builder: Builder, item: &Vec<u8>| {
        let bytes = PushBytesBuf::try_from(item.clone()).expect("shorter than 4 GiB");
        builder.push_slice(bytes)
    };
    items.iter().fold(Builder::new(), push).into_script()
}

/// Makes the input script and the witness that unlock a script with these items on the stack.
pub(super) fn unlock(how: Wrap, inner: &ScriptBuf, items: &[Vec<u8>]) -> (ScriptBuf, Witness) {
    let with = |more: &[Vec<u8>]| [items, more].concat();
    let witnessed = || Witness::from_slice(&with(&[inner.to_bytes()]));
    match how {
        Wrap::Bare => (pushes(items), Witness::new()),
        Wrap::Sh => (pushes(&with(&[inner.to_bytes()])), Witness::new()),
        Wrap::Wsh => (ScriptBuf::new(), witnessed()),
        Wrap::ShWsh => (pushes(&[inner.to_p2wsh().to_bytes()]), witnessed()),
        Wrap::Leaf(version) => {
            let version = leaf_version(version);
            let control = tree(version, inner).control_block(&(inner.clone(), version));
            let control = control.expect("the leaf is in the tree").serialize();
            (ScriptBuf::new(), Witness::from_slice(&with(&[inner.to_bytes(), control])))
        }
    }
}

impl Mutator {
    /// Makes the output script for an inner one.
    pub(super) fn locked(&self, how: Wrap, inner: &ScriptBuf) -> ScriptBuf {
        match how {
            Wrap::Bare => inner.clone(),
            Wrap::Sh => inner.to_p2sh(),
            Wrap::Wsh => inner.to_p2wsh(),
            Wrap::ShWsh => inner.to_p2wsh().to_p2sh(),
            Wrap::Leaf(version) => {
                ScriptBuf::new_p2tr_tweaked(tree(leaf_version(version), inner).output_key())
            }
        }
    }

    /// Adds a transaction that spends a script in this form, unlocked this way.
    pub(super) fn unlock_as(
        &mut self,
        how: Wrap,
        inner: &ScriptBuf,
        unlock: impl FnOnce(Wrap) -> (ScriptBuf, Witness),
    ) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        self.unlock_in(&mut draft, how, inner, unlock)?;
        self.done(draft)
    }

    fn unlock_in(
        &mut self,
        draft: &mut BlockDraft,
        how: Wrap,
        inner: &ScriptBuf,
        unlock: impl FnOnce(Wrap) -> (ScriptBuf, Witness),
    ) -> Option<()> {
        let coin = self.fund(draft, self.locked(how, inner))?;
        let mut tx = self.bare_spend(&coin);
        (tx.input[0].script_sig, tx.input[0].witness) = unlock(how);
        draft.transactions.push(tx);
        Some(())
    }

    /// Adds a transaction that spends a script in any form.
    fn unlocked_by(
        &mut self,
        inner: &ScriptBuf,
        unlock: impl FnOnce(Wrap) -> (ScriptBuf, Witness),
    ) -> Option<Vec<u8>> {
        let how = self.any_form();
        self.unlock_as(how, inner, unlock)
    }

    pub(super) fn any_form(&mut self) -> Wrap {
        Wrap::ALL[self.rng.index(Wrap::ALL.len())]
    }

    /// Spends a script of these bytes in any form, with these items.
    fn script_is(&mut self, bytes: &[u8], items: &[Vec<u8>]) -> Option<Vec<u8>> {
        let inner = script(bytes);
        self.unlocked_by(&inner, |how| unlock(how, &inner, items))
    }

    fn leaf_is(&mut self, version: u8, bytes: &[u8]) -> Option<Vec<u8>> {
        let inner = script(bytes);
        self.unlock_as(Wrap::Leaf(version), &inner, |how| unlock(how, &inner, &[]))
    }

    /// Spends a witness script, or a leaf, of this many bytes.
    fn long_witness(&mut self, len: usize) -> Option<Vec<u8>> {
        // Pushes and drops, 201 operations or fewer: nineteen long ones, and one that fills up the rest.
        let mut bytes = Vec::new();
        while bytes.len() + 524 + 3 < len {
            bytes.extend([0x4d, 8, 2]);
            bytes.extend([0; 520]);
            bytes.push(0x75);
        }
        let rest = len - bytes.len() - 5;
        bytes.extend([0x4d, rest as u8, (rest >> 8) as u8]);
        bytes.extend(vec![0; rest]);
        bytes.extend([0x75, 0x51]);
        let how = [Wrap::Wsh, Wrap::ShWsh, Wrap::Leaf(0xc0)][self.rng.index(3)];
        let inner = script(bytes);
        assert_eq!(inner.len(), len);
        self.unlock_as(how, &inner, |how| unlock(how, &inner, &[]))
    }

    /// Spends a script with signature checks under a key of unknown form; each costs 50 of the budget.
    fn budget(&mut self, checks: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for _ in 0..checks {
            // OP_1, a key of one byte, OP_CHECKSIGVERIFY.
            bytes.extend([0x51, 1, 7, op::OP_CHECKSIGVERIFY.to_u8()]);
        }
        bytes.push(0x51);
        self.leaf_is(0xc0, &bytes)
    }

    /// Changes the witness of a taproot spend by script: the script, then the control block.
    fn taproot_items(
        &mut self,
        edit: impl FnOnce(&mut Self, &mut Vec<Vec<u8>>),
    ) -> Option<Vec<u8>> {
        let inner = script([0x51]);
        let (script_sig, witness) = unlock(Wrap::Leaf(0xc0), &inner, &[]);
        let mut items = witness.to_vec();
        edit(self, &mut items);
        self.unlock_as(Wrap::Leaf(0xc0), &inner, |_| (script_sig, Witness::from_slice(&items)))
    }

    /// Spends a program with this version's opcode and this length, with no witness item or with one.
    fn program(&mut self, opcode: u8, len: usize) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let bytes = self.rng.bytes(len);
        let locked = script([&[opcode, len as u8][..], &bytes].concat());
        let coin = self.fund(&mut draft, locked)?;
        let mut tx = self.bare_spend(&coin);
        if self.rng.one_in(2) {
            tx.input[0].witness = Witness::from_slice(&[[1]]);
        }
        draft.transactions.push(tx);
        self.done(draft)
    }
}
