//! The coinbase's script: its length, and the height at its start (BIP-34).

use super::draft::{raw_of, recommit};
use super::{Mutation, Mutator, mutation};
use bitcoin::script::Builder;
use bitcoin::{Block, Sequence};

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("coinbase script of 0 bytes", |this| this.script_len(0)),
    mutation("coinbase script of 1 byte", |this| this.script_len(1)),
    mutation("coinbase script of 2 bytes", |this| this.script_len(2)),
    mutation("coinbase script as short as the height", |this| this.script_begins(0, "", 0)),
    mutation("coinbase script of 100 bytes", |this| this.script_len(100)),
    mutation("coinbase script of 101 bytes", |this| this.script_len(101)),
    mutation("height one too high", |this| this.script_begins(1, "", 8)),
    mutation("height one too low", |this| this.script_begins(-1, "", 8)),
    mutation("height negative", |this| {
        let height = i64::from(this.height());
        this.script_begins(-2 * height, "", 8)
    }),
    mutation("height by a longer push", |this| this.script_begins(0, "PUSHDATA1", 8)),
    mutation("height with a zero more", |this| this.script_begins(0, "zero", 8)),
    mutation("height behind an empty push", |this| this.script_begins(0, "behind", 8)),
    mutation("coinbase locked to its height", |this| this.coinbase_locked(0)),
    mutation("coinbase locked below its height", |this| this.coinbase_locked(-1)),
    mutation("coinbase of any version", |this| {
        let version = this.rng.next_u64() as i32;
        this.coinbase_edited(|block| {
            block.txdata[0].version = bitcoin::transaction::Version(version);
        })
    }),
    mutation("coinbase of any sequence", |this| {
        let sequence = this.rng.next_u64() as u32;
        this.coinbase_edited(|block| block.txdata[0].input[0].sequence = Sequence(sequence))
    }),
    mutation("coinbase without outputs", |this| {
        let draft = this.draft();
        let mut block = this.finish(draft);
        block.txdata[0].output.clear();
        crate::chain::seal(&mut block);
        Some(raw_of(&block))
    }),
];

impl Mutator {
    /// Makes a valid block with a change to its coinbase.
    pub(super) fn coinbase_edited(&mut self, edit: impl FnOnce(&mut Block)) -> Option<Vec<u8>> {
        let draft = self.draft();
        let mut block = self.finish(draft);
        edit(&mut block);
        recommit(&mut block);
        Some(raw_of(&block))
    }

    fn script_len(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Builder::new().push_int(i64::from(self.height())).into_bytes();
        bytes.extend(self.rng.bytes(100));
        bytes.truncate(len);
        if len > bytes.len() {
            bytes.resize(len, 0x51);
        }
        self.coinbase_edited(|block| block.txdata[0].input[0].script_sig = bytes.into())
    }

    fn script_begins(&mut self, more: i64, how: &str, rest: usize) -> Option<Vec<u8>> {
        let height = i64::from(self.height()) + more;
        let mut bytes = Builder::new().push_int(height).into_bytes();
        match how {
            "PUSHDATA1" => bytes.insert(0, 0x4c),
            "zero" => {
                bytes[0] += 1;
                bytes.push(0);
            }
            "behind" => bytes.insert(0, 0),
            _ => {}
        }
        bytes.extend(self.rng.bytes(rest));
        self.coinbase_edited(|block| block.txdata[0].input[0].script_sig = bytes.into())
    }

    fn coinbase_locked(&mut self, more: i64) -> Option<Vec<u8>> {
        let lock = u32::try_from(i64::from(self.height()) + more).ok()?;
        self.coinbase_edited(|block| {
            block.txdata[0].lock_time = bitcoin::absolute::LockTime::from_consensus(lock);
            block.txdata[0].input[0].sequence = Sequence::ZERO;
        })
    }
}
