//! [`BlockCoins`]: the coins that a block creates and spends, from the block and its entry.
//!
//! An input spends either an output of an earlier transaction in its own block, or the coin of the next leaf.
//! An output of the block that is already spent or is unspendable is not a coin; an input that spends an
//! output of another block has no coin if no leaf is left. Rules are checked only up to the first input
//! without a coin, but the proof must cover all leaves.

use apus_chain::{
    BlockBytes, BlockHash, BlockView, CoinRef, HeaderChain, Height, InputView, OutPoint, Params,
    Reader, WitnessView, is_unspendable,
};
use apus_engine::connect::coins_of;
use apus_engine::tx_table::TxTable;
use apus_utreexo::{CompactLeaf, Leaf, LeafDataError, Proof, ProofBytesError, ProofError, Spender};

/// Why the entry of a block is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It does not begin with a valid proof.
    #[error(transparent)]
    Bytes(#[from] ProofBytesError),
    /// A leaf is invalid.
    #[error("leaf {leaf}, for transaction {tx}, input {vin} ({outpoint}): {fault}")]
    Leaf {
        /// Index of the leaf, from 0.
        leaf: usize,
        /// Index of the transaction that spends it.
        tx: usize,
        /// Index of the input.
        vin: usize,
        /// The outpoint that it spends.
        outpoint: OutPoint,
        /// The fault.
        fault: LeafFault,
    },
    /// More leaves than the block can spend.
    #[error(
        "they prove {leaves} coins, but the block spends only {needed} that it does not create itself"
    )]
    Surplus {
        /// Number of leaves.
        leaves: usize,
        /// Number of inputs that need a leaf.
        needed: usize,
    },
    /// Bytes after the last leaf.
    #[error("{count} bytes are left over at byte {offset}")]
    Trailing {
        /// Offset of these bytes.
        offset: usize,
        /// Number of these bytes.
        count: usize,
    },
    /// The coins are not in the forest before the block.
    #[error(
        "they do not hold in the forest before it, or its range began with a wrong forest: {0}"
    )]
    Proof(#[from] ProofError),
}

/// Why a leaf is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafFault {
    /// It cannot be read.
    #[error(transparent)]
    Bytes(#[from] LeafDataError),
    /// The coin's block is not before the block that spends it.
    #[error(
        "the coin claims block {height}, but it must be above block 0 and below the block that spends it"
    )]
    Height {
        /// The claimed height.
        height: Height,
    },
    /// A script that no input can satisfy.
    #[error("the coin's script is unspendable, so there is no such coin")]
    Unspendable,
    /// A coinbase that a later one overwrote (BIP-30).
    #[error(
        "the coin claims the coinbase of block {height}, which a later coinbase overwrote before it was spent"
    )]
    Overwritten {
        /// The claimed height.
        height: Height,
    },
}

/// The origin of an input's coin.
#[derive(Clone, Copy)]
enum CoinOrigin {
    /// The same block; an index into the coins that the block creates.
    Own(u32),
    /// A leaf, by its index.
    Leaf(u32),
    Nowhere,
}

/// An output of the block.
struct BlockTx<'b> {
    outpoint: OutPoint,
    coin: CoinRef<'b>,
    /// Whether its own block spends it.
    own: bool,
}

/// The coins that a block creates and spends.
pub(super) struct BlockCoins<'b> {
    hash: BlockHash,
    made: Vec<BlockTx<'b>>,
    sources: Vec<CoinOrigin>,
    leaves: Vec<(OutPoint, CompactLeaf<'b>)>,
}

/// The most coins that a block can spend: one for each input but the coinbase's.
pub(super) fn spends_max(block: &BlockView<'_>) -> usize {
    block.input_count().saturating_sub(1)
}

/// The context for reading an entry.
pub(super) struct EntryReading<'a, 'b> {
    pub(super) params: &'a Params,
    pub(super) chain: &'a HeaderChain,
    pub(super) block: &'a BlockBytes<'b>,
    /// A reusable buffer.
    pub(super) table: &'a mut TxTable,
}

impl<'b> BlockCoins<'b> {
    /// Reads an entry.
    pub(super) fn read(
        entry: &'b [u8],
        reading: EntryReading<'_, 'b>,
    ) -> Result<(Proof, Self), EntryError> {
        let mut reader = Reader::new(entry);
        let view = reading.block.view();
        let proof = Proof::read(&mut reader, spends_max(&view))?;
        reading.table.clear();
        let coins = Self {
            hash: reading.block.hash(),
            made: Vec::with_capacity(view.output_count()),
            sources: Vec::with_capacity(view.input_count()),
            leaves: Vec::with_capacity(proof.targets.len()),
        };
        let mut walk = InputWalk { reading, reader, count: proof.targets.len(), needed: 0, coins };
        walk.block()?;
        let InputWalk { reader, count, needed, coins, .. } = walk;
        if needed < count {
            return Err(EntryError::Surplus { leaves: count, needed });
        }
        match reader.remaining() {
            0 => Ok((proof, coins)),
            count => Err(EntryError::Trailing { offset: reader.position(), count }),
        }
    }

    /// The coins of its inputs, up to the first input without one.
    pub(super) fn spent(&self) -> Vec<CoinRef<'_>> {
        let coin = |source: &CoinOrigin| match *source {
            CoinOrigin::Own(made) => Some(self.made[made as usize].coin),
            CoinOrigin::Leaf(leaf) => Some(self.leaves[leaf as usize].1.coin()),
            CoinOrigin::Nowhere => None,
        };
        self.sources.iter().map_while(coin).collect()
    }

    /// The leaves that the block deletes, then the leaves that it adds, and the number of deleted ones.
    pub(super) fn leaves<'c>(&'c self, chain: &'c HeaderChain) -> (Vec<Leaf<'c>>, usize) {
        let mut leaves = Vec::with_capacity(self.leaves.len() + self.made.len());
        // Reading checked that each leaf's block is in the chain.
        leaves.extend(self.leaves.iter().filter_map(|(outpoint, leaf)| {
            let block = chain.hash(leaf.height)?;
            Some(Leaf { block, outpoint: *outpoint, coin: leaf.coin() })
        }));
        let deleted = leaves.len();
        let added = self.made.iter().filter(|made| !made.own);
        leaves.extend(added.map(|made| Leaf {
            block: &self.hash,
            outpoint: made.outpoint,
            coin: made.coin,
        }));
        (leaves, deleted)
    }
}

/// A walk over the inputs of a block, which reads its leaves.
struct InputWalk<'a, 'b> {
    reading: EntryReading<'a, 'b>,
    reader: Reader<'b>,
    /// Number of leaves in the entry.
    count: usize,
    /// Number of inputs so far that need a leaf.
    needed: usize,
    coins: BlockCoins<'b>,
}

impl<'b> InputWalk<'_, 'b> {
    fn block(&mut self) -> Result<(), EntryError> {
        let height = self.reading.block.height();
        let mut firsts = Vec::with_capacity(self.reading.block.view().tx_count());
        for (index, (txid, tx)) in self.reading.block.txs().enumerate() {
            if index > 0 {
                for (vin, (input, witness)) in tx.inputs().zip(tx.witnesses()).enumerate() {
                    let source = self.source((index, vin), &input, &witness, &firsts)?;
                    self.coins.sources.push(source);
                }
            }
            // A block has fewer outputs than bytes.
            firsts.push(self.coins.made.len() as u32);
            self.reading.table.add(txid);
            let made = coins_of(height, txid, &tx, index == 0);
            let made = made.map(|(outpoint, coin)| BlockTx { outpoint, coin, own: false });
            self.coins.made.extend(made);
        }
        Ok(())
    }

    /// The origin of an input's coin.
    fn source(
        &mut self,
        at: (usize, usize),
        input: &InputView<'b>,
        witness: &WitnessView<'b>,
        firsts: &[u32],
    ) -> Result<CoinOrigin, EntryError> {
        let outpoint = OutPoint::from_bytes(input.outpoint());
        if let Some(tx) = self.reading.table.find(&outpoint.txid) {
            return Ok(self.own(tx, &outpoint, firsts));
        }
        self.needed += 1;
        let leaf = self.coins.leaves.len();
        if leaf == self.count {
            return Ok(CoinOrigin::Nowhere);
        }
        let read = self.leaf(&Spender::new(input, witness));
        let (tx, vin) = at;
        let found = read.map_err(|fault| EntryError::Leaf { leaf, tx, vin, outpoint, fault })?;
        self.coins.leaves.push((outpoint, found));
        Ok(CoinOrigin::Leaf(leaf as u32))
    }

    /// Takes an output of an earlier transaction of the block.
    fn own(&mut self, tx: u32, outpoint: &OutPoint, firsts: &[u32]) -> CoinOrigin {
        let first = firsts[tx as usize] as usize;
        let end = firsts.get(tx as usize + 1).map_or(self.coins.made.len(), |end| *end as usize);
        let of_tx = &mut self.coins.made[first..end];
        let found = of_tx.binary_search_by_key(&outpoint.vout, |made| made.outpoint.vout);
        match found.map(|at| (at, &mut of_tx[at])) {
            Ok((at, made)) if !made.own => {
                made.own = true;
                CoinOrigin::Own((first + at) as u32)
            }
            _ => CoinOrigin::Nowhere,
        }
    }

    fn leaf(&mut self, spender: &Spender<'_>) -> Result<CompactLeaf<'b>, LeafFault> {
        let leaf = CompactLeaf::read(&mut self.reader, spender)?;
        let EntryReading { params, chain, block, .. } = &self.reading;
        let height = leaf.height;
        let below = (1..block.height()).contains(&height);
        let made_by = chain.hash(height).filter(|_| below).ok_or(LeafFault::Height { height })?;
        if is_unspendable(&leaf.script) {
            return Err(LeafFault::Unspendable);
        }
        if leaf.coinbase && params.is_bip30_unspendable(height, made_by) {
            return Err(LeafFault::Overwritten { height });
        }
        Ok(leaf)
    }
}
