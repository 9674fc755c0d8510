//! [`SeenBlock`]: a block that passed every rule which needs no coins, in this walk or an earlier one.

use apus_chain::{BlockBytes, BlockView, KnownBlock, TxView, Txid};
use xxhash_rust::xxh3::xxh3_128_with_seed;

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

// [`Fingerprint`]: by what the second walk over the blocks knows that their bytes are those of the first.
//
// It is no proof against a writer who knows the key: block files are the user's own, and what is to be
// noticed is that they changed meanwhile, or that a disk gave other bytes. The key is random and leaves
// the process in the plan of the run alone.

/// The key of a run's fingerprints.
#[derive(Clone, Copy)]
pub struct FingerprintKey(u64);

impl FingerprintKey {
    /// A key of these bytes, which the caller chooses at random.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    /// The fingerprint of a block's bytes.
    pub fn of(&self, block: &BlockView<'_>) -> Fingerprint {
        Fingerprint(xxh3_128_with_seed(block.raw(), self.0).to_be_bytes())
    }
}

/// XXH3 with 128 bits of a block's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; Self::SIZE]);

impl Fingerprint {
    /// Length in bytes.
    pub const SIZE: usize = 16;

    /// Of a block that is not expected to be read again.
    pub const NONE: Self = Self([0; Self::SIZE]);
}
