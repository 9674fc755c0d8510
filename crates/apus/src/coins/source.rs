//! [`CoinsSource`]: where a set of coins comes from, which can be gone over again and again.
//!
//! Coins come by ascending outpoint, whatever order the source has within a transaction.

use super::servers::about;
use crate::failure::{Failure, INTERRUPTED, IO};
use apus_chain::{
    BlockHash, Coin, Height, MuHashBatch, Network, OutPoint, UtxoSetHash, write_utxo_element,
};
use apus_coins::{Access, StoreUrl};
use apus_datadir::chainstate::read_node;
use apus_datadir::snapshot::SnapshotReader;
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// More than a transaction's coins can take: its outputs stand in a block.
const TRANSACTION_BYTES_MAX: usize = 16 << 20;

/// A source as its user names it.
#[derive(Debug, Clone)]
pub(super) enum SourceArg {
    Snapshot(PathBuf),
    Chainstate(PathBuf),
    Store(StoreUrl),
}

impl FromStr for SourceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("snapshot", path)) if !path.is_empty() => Ok(Self::Snapshot(path.into())),
            Some(("chainstate", path)) if !path.is_empty() => Ok(Self::Chainstate(path.into())),
            _ => text.parse().map(Self::Store).map_err(|error| {
                format!("use snapshot:FILE, chainstate:DIR or the place of a store: {error}")
            }),
        }
    }
}

/// See the module.
pub(super) enum CoinsSource {
    Snapshot(PathBuf, Network),
    Chainstate(PathBuf),
    Store(Arc<dyn CoinsStore>),
}

/// Takes coins one by one.
pub(super) type Each<'a> = dyn FnMut(&OutPoint, &CoinBytes) -> Result<(), Failure> + 'a;

/// What a set is, by one walk over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) coins: u64,
    /// The greatest height of a coin.
    pub(super) height_max: Height,
    pub(super) muhash: UtxoSetHash,
}

impl CoinsSource {
    /// Opens it. A store is kept from other writers for as long.
    pub(super) fn open(
        arg: &SourceArg,
        network: Network,
        access: &Access,
    ) -> Result<Self, Failure> {
        Ok(match arg {
            SourceArg::Snapshot(path) => Self::Snapshot(path.clone(), network),
            SourceArg::Chainstate(path) => Self::Chainstate(path.clone()),
            SourceArg::Store(place) => {
                let store = apus_coins::open(place, network, access);
                Self::Store(store.map_err(|error| about(&error))?)
            }
        })
    }

    /// Gives all coins to `each`, and the block whose coins they are.
    pub(super) fn walk(&self, each: &mut Each<'_>) -> Result<BaseBlock, Failure> {
        let of = |hash| BaseBlock { hash, height: None };
        match self {
            Self::Snapshot(path, network) => snapshot(path, *network, each).map(of),
            Self::Chainstate(path) => chainstate(path, each).map(of),
            Self::Store(store) => walk_store(&**store, each),
        }
    }
}

/// A block, with its height if the source says it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BaseBlock {
    pub(super) hash: BlockHash,
    pub(super) height: Option<Height>,
}

/// Gives all coins of a store to `each`.
fn walk_store(store: &dyn CoinsStore, each: &mut Each<'_>) -> Result<BaseBlock, Failure> {
    let tip = store.tip().map_err(|error| about(&error))?;
    let tip = tip.ok_or_else(|| Failure::usage("there are no coins in the store of --from"))?;
    let mut failure = None;
    let walked = store.for_each(&mut |outpoint, coin| {
        each(outpoint, coin).map_err(|error| {
            failure = Some(error);
            StoreError::Stopped
        })
    });
    match (failure, walked) {
        (Some(failure), _) => Err(failure),
        (None, Err(error)) => Err(about(&error)),
        (None, Ok(())) => Ok(BaseBlock { hash: tip.hash, height: Some(tip.height) }),
    }
}

/// The coins of one transaction, until they are in order.
#[derive(Default)]
struct CoinGroup {
    coins: Vec<(OutPoint, CoinBytes)>,
    bytes: usize,
}

impl CoinGroup {
    fn take(
        &mut self,
        outpoint: OutPoint,
        coin: CoinBytes,
        each: &mut Each<'_>,
    ) -> Result<(), Failure> {
        if self.coins.last().is_some_and(|(last, _)| last.txid != outpoint.txid) {
            self.hand_on(each)?;
        }
        self.bytes += size_of::<(OutPoint, CoinBytes)>() + coin.heap_bytes();
        if self.bytes > TRANSACTION_BYTES_MAX {
            let txid = outpoint.txid;
            return Err(Failure::wrong(format!(
                "transaction {txid} has more coins than fit into a block: the set is damaged"
            )));
        }
        self.coins.push((outpoint, coin));
        Ok(())
    }

    fn hand_on(&mut self, each: &mut Each<'_>) -> Result<(), Failure> {
        self.bytes = 0;
        self.coins.sort_unstable_by_key(|(outpoint, _)| *outpoint);
        self.coins.drain(..).try_for_each(|(outpoint, coin)| each(&outpoint, &coin))
    }
}

fn snapshot(path: &Path, network: Network, each: &mut Each<'_>) -> Result<BlockHash, Failure> {
    let about = |error| Failure::of_snapshot(path, &error);
    let file = File::open(path).map_err(|error| Failure::io(path, error))?;
    let mut reader = SnapshotReader::new(file, Some(network)).map_err(about)?;
    let mut group = CoinGroup::default();
    while let Some(next) = reader.next_coin().map_err(about)? {
        let coin = coin_of(next.bytes)?;
        group.take(next.outpoint, coin, each)?;
    }
    group.hand_on(each)?;
    Ok(reader.header().base_hash)
}

fn chainstate(path: &Path, each: &mut Each<'_>) -> Result<BlockHash, Failure> {
    let (mut group, mut failure) = (CoinGroup::default(), None);
    let read = read_node(path, &mut |outpoint, bytes| match coin_of(bytes)
        .and_then(|coin| group.take(outpoint, coin, each))
    {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(failure) = failure {
        return Err(failure);
    }
    let read = read.map_err(|error| match error.is_invalid() {
        true => Failure::wrong(&error),
        false => Failure::new(IO, error.to_string()),
    })?;
    group.hand_on(each)?;
    Ok(read.best)
}

fn coin_of(bytes: &[u8]) -> Result<CoinBytes, Failure> {
    // Both readers give coins in their one form.
    CoinBytes::read(bytes).map_err(Failure::wrong)
}

/// Sums coins up one by one.
pub(super) struct Summing {
    coins: u64,
    height_max: Height,
    muhash: MuHashBatch,
    element: Vec<u8>,
}

impl Summing {
    pub(super) fn new() -> Self {
        Self { coins: 0, height_max: 0, muhash: MuHashBatch::new(), element: Vec::new() }
    }

    pub(super) fn push(&mut self, outpoint: &OutPoint, coin: &CoinBytes) {
        let coin = coin.coin();
        let coin = Coin::as_ref(&coin);
        self.coins += 1;
        self.height_max = self.height_max.max(coin.height);
        self.element.clear();
        write_utxo_element(&mut self.element, outpoint, coin);
        self.muhash.insert(&self.element);
    }

    /// Counts one whose sum is known.
    pub(super) fn count(&mut self) {
        self.coins += 1;
    }

    /// How many there were so far.
    pub(super) fn coins(&self) -> u64 {
        self.coins
    }

    pub(super) fn finish(self) -> Summary {
        let muhash = UtxoSetHash(self.muhash.finish().finalize());
        Summary { coins: self.coins, height_max: self.height_max, muhash }
    }
}

/// The ending of a copy that was stopped by its user.
pub(super) fn interrupted() -> Failure {
    let message =
        "interrupted: nothing was copied, or all of it; the same command says which".to_owned();
    Failure::new(INTERRUPTED, message)
}
