//! [`ClusterReader`]: look-ups beside a writer, each of one block.

use super::buckets::{self, Buckets};
use super::connections::Connections;
use super::keys::Keys;
use super::record::Record;
use super::{ClusterOptions, ClusterPlace};
use crate::seen::{AT_ONCE, Seen, no_store};
use apus_chain::{Network, OutPoint};
use apus_engine::utxo::StoreError;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether a flush is over.
const LOOK: Duration = Duration::from_millis(20);

/// Reads a store that another writes.
#[derive(Debug)]
pub(crate) struct ClusterReader {
    connections: Connections,
    keys: Keys,
    network: Network,
    patience: Duration,
}

impl ClusterReader {
    pub(crate) fn open(
        place: &ClusterPlace,
        network: Network,
        options: &ClusterOptions,
    ) -> Result<Self, StoreError> {
        let connections = Connections::open(place, options)?;
        let keys = Keys::new(&place.name);
        Ok(Self { connections, keys, network, patience: options.patience })
    }

    pub(crate) fn look_up(&self, wanted: &[OutPoint]) -> Result<Seen, StoreError> {
        let place = self.connections.place();
        let started = Instant::now();
        loop {
            let before = self.record()?.ok_or_else(|| no_store(place))?;
            let tip = before.tip.ok_or_else(|| no_store(place))?;
            // While chunks are applied, some buckets are of one block and some of another.
            if before.pending.is_none() {
                let mut coins = Vec::with_capacity(wanted.len());
                let buckets = Buckets::new(before.bucket_bits);
                for some in wanted.chunks(AT_ONCE) {
                    let (to, keys) = (&self.connections, &self.keys);
                    coins.extend(buckets::look_up_one(to, keys, buckets, some)?);
                }
                if self.record()? == Some(before) {
                    return Ok(Seen { tip, coins });
                }
            }
            if started.elapsed() > self.patience {
                return Err(StoreError::Io {
                    place: place.to_owned(),
                    error: "it is between two blocks: wait for its writer, or have apus sync go on where that \
                            one was stopped"
                        .to_owned(),
                });
            }
            thread::sleep(LOOK);
        }
    }

    fn record(&self) -> Result<Option<Record>, StoreError> {
        Record::read(&self.connections, &self.keys, self.network)
    }
}
