//! [`SeenBlock`]: a block that passed every rule which needs no coins, in this walk or an earlier one.

use super::fingerprint::{Fingerprint, FingerprintKey};
use apus_chain::{BlockBytes, BlockView, KnownBlock, TxView, Txid};

/// See the module. Transactions have no ids here: only a block that is refused needs them.
#[derive(Clone, Copy)]
pub struct SeenBlock<'a> {
    id: KnownBlock,
    view: BlockView<'a>,
}

impl<'a> SeenBlock<'a> {
    /// A block that a checker has just passed.
    pub fn checked(block: &BlockBytes<'a>) -> Self {
        let id = KnownBlock { height: block.height(), hash: block.hash() };
        Self { id, view: block.view() }
    }

    /// A block that passed when its fingerprint was noted; none where its bytes are others now, or none was.
    pub fn again(
        id: KnownBlock,
        view: BlockView<'a>,
        key: &FingerprintKey,
        noted: &Fingerprint,
    ) -> Option<Self> {
        let is_same = *noted != Fingerprint::NONE && key.of(&view) == *noted;
        is_same.then_some(Self { id, view })
    }

    /// Its height and hash.
    pub fn id(&self) -> KnownBlock {
        self.id
    }

    /// The block.
    pub fn view(&self) -> BlockView<'a> {
        self.view
    }

    /// The transactions with their ids, which takes long.
    pub(super) fn txs_with_ids(&self) -> impl Iterator<Item = (Txid, TxView<'a>)> + use<'a> {
        self.view.txs().map(|tx| (tx.txid(), tx))
    }
}
