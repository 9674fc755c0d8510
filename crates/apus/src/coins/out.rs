//! `--out coins:URL`: writes the finished set of any engine to servers.
//!
//! A thread passes the coins to the store's first flush while others merge and hash them. The store has no block until
//! the whole set is proven and stored. Then all coins are read back and compared by their sum, which the store keeps
//! with them for later syncs.

use super::RemoteStore;
use apus_chain::{CoinAdder, CoinSum, CoinSumKey, KnownBlock, Network};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use apus_sync::engines::in_order::record_of_set;
use apus_sync::runs::records;
use apus_sync::sink::{CoinSink, SetEnd, SetInfo, SetOutput, each_coin};
use apus_sync::{SyncError, WrittenFolder};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Batches of records between the threads.
const BATCHES_AHEAD: usize = 16;

/// Memory for look-ups: the set is only written and read back.
const LOOK_UP_BYTES: u64 = 1 << 20;

/// A store to write a set to.
pub(crate) struct SetOnServers<'a>(pub(crate) &'a RemoteStore);

impl SetOnServers<'_> {
    /// Fails early if the servers cannot be reached, or have a set under this name that no earlier start of this sync
    /// wrote.
    pub(crate) fn expect_ready(&self, network: Network, is_resumed: bool) -> Result<(), SyncError> {
        match self.0.open(network, LOOK_UP_BYTES)?.tip()? {
            Some(there) if !is_resumed => Err(self.occupied(&there)),
            _ => Ok(()),
        }
    }

    fn occupied(&self, there: &KnownBlock) -> SyncError {
        let Self(RemoteStore { place, .. }) = self;
        SyncError::usage(format!(
            "{place} already has the coins of block {} ({}): use another name after the slash. To bring these coins to \
             later blocks, give them with --coins",
            there.height, there.hash
        ))
    }
}

impl SetOutput for SetOnServers<'_> {
    fn begin(&self, set: SetInfo) -> Result<Box<dyn CoinSink + '_>, SyncError> {
        let store = self.0.open(set.network, LOOK_UP_BYTES)?;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| StoreError::io(&self.0.place, error))?;
        let adder = CoinAdder::new(CoinSumKey::new(key));
        let tip = KnownBlock { height: set.height, hash: set.base };
        let writer = match store.tip()? {
            None => Some(StoreWriter::start(Arc::clone(&store), tip, &self.0.place)?),
            // An earlier start of this sync was stopped after it had written the set, which is now compared.
            Some(there) if there == tip => None,
            Some(there) => return Err(self.occupied(&there)),
        };
        let (place, key) = (self.0.place.clone(), CoinSumKey::new(key));
        Ok(Box::new(StoreSink { store, place, set, key, adder, writer }))
    }
}

/// Writes a set to a store.
struct StoreSink {
    store: Arc<dyn CoinsStore>,
    place: String,
    set: SetInfo,
    key: CoinSumKey,
    /// The sum of the set's coins.
    adder: CoinAdder,
    /// `None` if the store already has a set of this block.
    writer: Option<StoreWriter>,
}

impl CoinSink for StoreSink {
    fn put_records(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        let adder = &mut self.adder;
        each_record_coin(batch, &self.place, &mut |outpoint, coin| {
            adder.add(outpoint, coin.as_bytes());
            Ok(())
        })?;
        match &mut self.writer {
            Some(writer) => writer.put(SetPart::Records(batch.to_vec())),
            None => Ok(()),
        }
    }

    fn put(&mut self, txid: apus_chain::Txid, group: &[u8]) -> Result<(), SyncError> {
        let length = (group.len() as u32).to_le_bytes();
        self.put_records(&[&txid.0[..], &length, group].concat())
    }

    fn publish(mut self: Box<Self>, _: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        if let Some(mut writer) = self.writer.take() {
            writer.put(SetPart::End)?;
            writer.join()?;
        }
        let expected = self.adder.sum();
        if self.stored()? != (expected, self.set.coins) {
            let what =
                "the coins differ from the set of this sync: remove the store, or use another name";
            return Err(StoreError::io(&self.place, what).into());
        }
        let record = record_of_set(self.set, self.key, expected);
        let tip = KnownBlock { height: self.set.height, hash: self.set.base };
        let flush = Flush { tip, changes: &NoChanges, undo: &[record], undo_from: 0 };
        self.store.write(&flush)?;
        Ok(None)
    }
}

impl StoreSink {
    /// Reads the stored coins back: their sum, and their number.
    fn stored(&self) -> Result<(CoinSum, u64), StoreError> {
        let (mut adder, mut coins) = (CoinAdder::new(self.key), 0);
        self.store.for_each(&mut |outpoint, coin| {
            adder.add(outpoint, coin.as_bytes());
            coins += 1;
            Ok(())
        })?;
        Ok((adder.sum(), coins))
    }
}

struct NoChanges;

impl Changes for NoChanges {
    fn for_each(&self, _: &mut EachChange<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A part of a set.
enum SetPart {
    Records(Vec<u8>),
    /// The set is whole and proven.
    End,
}

/// The thread that writes to the store.
struct StoreWriter {
    to: Option<SyncSender<SetPart>>,
    thread: Option<JoinHandle<Result<(), StoreError>>>,
    place: String,
}

impl StoreWriter {
    fn start(store: Arc<dyn CoinsStore>, tip: KnownBlock, place: &str) -> Result<Self, SyncError> {
        let (to, parts) = sync_channel(BATCHES_AHEAD);
        let place = place.to_owned();
        let changes = ReceivedSet { parts: Mutex::new(Some(parts)), place: place.clone() };
        let thread = Builder::new()
            .name("coins-out".to_owned())
            .spawn(move || store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: 0 }));
        let failed = |error| StoreError::io(&place, format!("cannot start a thread: {error}"));
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { to: Some(to), thread, place })
    }

    fn put(&mut self, part: SetPart) -> Result<(), SyncError> {
        match self.to.as_ref().is_some_and(|to| to.send(part).is_ok()) {
            true => Ok(()),
            // The thread has ended early, and says why.
            false => Err(self.join().err().unwrap_or_else(|| StoreError::Stopped.into())),
        }
    }

    /// Waits until the set is stored.
    fn join(&mut self) -> Result<(), SyncError> {
        self.to = None;
        let stopped =
            || StoreError::io(&self.place, "the set was written already, or its writer stopped");
        let ended = self.thread.take().ok_or_else(stopped)?.join();
        Ok(ended.map_err(|_| stopped())??)
    }
}

impl Drop for StoreWriter {
    /// Without its end, the set is not stored.
    fn drop(&mut self) {
        let _ = self.thread.is_some().then(|| self.join());
    }
}

/// The set that another thread sends.
struct ReceivedSet {
    parts: Mutex<Option<Receiver<SetPart>>>,
    place: String,
}

impl Changes for ReceivedSet {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let parts = self.parts.lock().take();
        let again = "the connection was lost while the set was written: rerun the command";
        let parts = parts.ok_or_else(|| StoreError::io(&self.place, again))?;
        loop {
            match parts.recv() {
                Ok(SetPart::Records(batch)) => {
                    each_record_coin(&batch, &self.place, &mut |outpoint, coin| {
                        each(outpoint, Some(coin))
                    })?;
                }
                Ok(SetPart::End) => return Ok(()),
                Err(_) => return Err(StoreError::Stopped),
            }
        }
    }
}

/// Passes on the coins of records, by ascending outpoint.
fn each_record_coin(
    batch: &[u8],
    place: &str,
    each: &mut dyn FnMut(&apus_chain::OutPoint, &CoinBytes) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut coins = Vec::new();
    for (txid, group) in records(batch) {
        let read =
            each_coin(txid, group, |outpoint, coin| coins.push((outpoint, CoinBytes::new(coin))));
        read.map_err(|error| StoreError::io(place, format!("coins of {txid}: {error}")))?;
        coins.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
        coins.drain(..).try_for_each(|(outpoint, coin)| each(&outpoint, &coin))?;
    }
    Ok(())
}
