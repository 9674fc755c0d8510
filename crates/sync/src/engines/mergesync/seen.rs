//! [`SeenBlock`]: a block that passed every rule that needs no coins, in this walk or an earlier one.

use apus_chain::{BlockBytes, BlockView, KnownBlock, TxView, Txid};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A block that passed every rule that needs no coins. It has no transaction ids: only a refused block needs
/// them.
#[derive(Clone, Copy)]
pub struct SeenBlock<'a> {
    id: KnownBlock,
    view: BlockView<'a>,
}

impl<'a> SeenBlock<'a> {
    /// Wraps a block that a checker has just accepted.
    pub fn checked(block: &BlockBytes<'a>) -> Self {
        let id = KnownBlock { height: block.height(), hash: block.hash() };
        Self { id, view: block.view() }
    }

    /// Recognises a block by the fingerprint recorded when it passed; `None` if its bytes have changed or it
    /// has no fingerprint.
    pub fn again(
        id: KnownBlock,
        view: BlockView<'a>,
        key: &FingerprintKey,
        noted: &Fingerprint,
    ) -> Option<Self> {
        let is_same = *noted != Fingerprint::NONE && key.of(&view) == *noted;
        is_same.then_some(Self { id, view })
    }

    /// Returns its height and hash.
    pub fn id(&self) -> KnownBlock {
        self.id
    }

    /// Returns the block.
    pub fn view(&self) -> BlockView<'a> {
        self.view
    }

    /// Returns the transactions with their ids, which take long to compute.
    pub(super) fn txs_with_ids(&self) -> impl Iterator<Item = (Txid, TxView<'a>)> + use<'a> {
        self.view.txs().map(|tx| (tx.txid(), tx))
    }
}

// [`Fingerprint`]: shows the second walk that it reads the same bytes of a block as the first.
//
// XXH3 is no MAC: a writer can make two blocks whose fingerprints are equal under some of the keys. So it serves only
// where the user's own disk gives the blocks, to notice that the files changed in the meantime, or that the disk
// returned other bytes. What peers send again is checked again.

/// The key of a sync's fingerprints.
#[derive(Clone, Copy)]
pub struct FingerprintKey(u64);

impl FingerprintKey {
    /// A key from these bytes, which the caller chooses at random.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// The fingerprint of a block's bytes.
    pub fn of(&self, block: &BlockView<'_>) -> Fingerprint {
        Fingerprint(xxh3_128_with_seed(block.raw(), self.0).to_be_bytes())
    }
}

/// The 128-bit XXH3 of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; Self::SIZE]);

impl Fingerprint {
    /// Length in bytes.
    pub const SIZE: usize = 16;

    /// The fingerprint of a block that is not expected to be read again.
    pub const NONE: Self = Self([0; Self::SIZE]);
}
