//! [`ClusterRecord`]: a store's identity and its block, in one string that is replaced as a whole.

use super::connections::ClusterConnections;
use super::wal::{seal, unsealed};
use crate::store::RandomId;
use apus_chain::{BlockHash, KnownBlock, Network, Reader};
use apus_engine::utxo::StoreError;
use redis::cmd;

const MAGIC: &[u8; 8] = b"APUSRCOI";
const FORMAT: u32 = 1;

/// Allowed numbers of txid bits that select a bucket.
pub(super) const BUCKET_BITS: std::ops::RangeInclusive<u8> = 4..=16;

/// Replaces the record if it is still the one that the writer knows. Also succeeds if the server already has
/// the new one: then an earlier answer was lost.
const REPLACE: &str = "\
local there = redis.call('GET', KEYS[1])
if there == ARGV[2] then return 1 end
if there ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1";

/// Chunks still to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingFlush {
    pub(super) token: RandomId,
    pub(super) chunks: u32,
}

/// A store's identity, its block, and the pending flush if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterRecord {
    pub(super) network: Network,
    pub(super) bucket_bits: u8,
    /// Number of flushes and openings so far.
    pub(super) epoch: u64,
    pub(super) tip: Option<KnownBlock>,
    pub(super) pending: Option<PendingFlush>,
}

/// Why bytes are not a valid record.
#[derive(Debug, PartialEq, Eq)]
enum NoRecord {
    Torn,
    Newer(u32),
}

impl ClusterRecord {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.network.magic());
        bytes.push(self.bucket_bits);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.push(self.tip.is_some().into());
        if let Some(KnownBlock { height, hash }) = self.tip {
            bytes.extend_from_slice(&height.to_le_bytes());
            bytes.extend_from_slice(&hash.0);
        }
        bytes.push(self.pending.is_some().into());
        if let Some(PendingFlush { token, chunks }) = self.pending {
            bytes.extend_from_slice(&token.0);
            bytes.extend_from_slice(&chunks.to_le_bytes());
        }
        seal(&mut bytes);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, NoRecord> {
        let body = unsealed(bytes).and_then(|body| body.strip_prefix(MAGIC));
        let mut reader = Reader::new(body.ok_or(NoRecord::Torn)?);
        let format = reader.u32().map_err(|_| NoRecord::Torn)?;
        if format > FORMAT {
            return Err(NoRecord::Newer(format));
        }
        let record = Self::parts(&mut reader).filter(|_| format == FORMAT);
        let whole = record.filter(|_| reader.remaining() == 0);
        whole.ok_or(NoRecord::Torn)
    }

    /// Parses a record and encodes it again.
    pub(crate) fn as_written(bytes: &[u8]) -> Option<Vec<u8>> {
        Self::from_bytes(bytes).ok().map(Self::to_bytes)
    }

    fn parts(reader: &mut Reader<'_>) -> Option<Self> {
        let network = Network::from_magic(*reader.array().ok()?)?;
        let bucket_bits = reader.u8().ok().filter(|bits| BUCKET_BITS.contains(bits))?;
        let epoch = reader.u64().ok()?;
        let tip = match reader.u8().ok()? {
            0 => None,
            1 => {
                let height = reader.u32().ok()?;
                Some(KnownBlock { height, hash: BlockHash(*reader.array().ok()?) })
            }
            _ => return None,
        };
        let pending = match reader.u8().ok()? {
            0 => None,
            1 => {
                let token = RandomId(*reader.array().ok()?);
                Some(PendingFlush { token, chunks: reader.u32().ok()? })
            }
            _ => return None,
        };
        Some(Self { network, bucket_bits, epoch, tip, pending })
    }

    /// Reads the record, if there is one. Fails if it is invalid, or of another chain.
    pub(super) fn read(
        connections: &ClusterConnections,
        network: Network,
    ) -> Result<Option<Self>, StoreError> {
        let place = || connections.place().to_owned();
        let bytes: Option<Vec<u8>> = connections.ask(cmd("GET").arg(connections.keys.record()))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let record = Self::from_bytes(&bytes).map_err(|error| match error {
            NoRecord::Newer(found) => StoreError::Newer { place: place(), found, known: FORMAT },
            NoRecord::Torn => StoreError::damaged(
                connections.place(),
                format!("the key {} does not hold a valid store record", connections.keys.record()),
            ),
        })?;
        if record.network != network {
            let (found, wanted) = (record.network, network);
            return Err(StoreError::OtherNetwork { place: place(), found, wanted });
        }
        Ok(Some(record))
    }

    /// Reads the record, or creates one.
    pub(super) fn read_or_make(
        connections: &ClusterConnections,
        network: Network,
        bucket_bits: u8,
    ) -> Result<Self, StoreError> {
        if let Some(record) = Self::read(connections, network)? {
            return Ok(record);
        }
        let bucket_bits = bucket_bits.clamp(*BUCKET_BITS.start(), *BUCKET_BITS.end());
        let new = Self { network, bucket_bits, epoch: 0, tip: None, pending: None };
        let mut set = cmd("SET");
        set.arg(connections.keys.record()).arg(new.to_bytes()).arg("NX");
        connections.ask::<Option<String>>(&set)?;
        // Another writer may have been faster.
        Self::read(connections, network)?.ok_or_else(|| {
            StoreError::io(
                connections.place(),
                "a record written a moment ago is missing: check that its servers do not evict keys",
            )
        })
    }

    /// Replaces this record atomically. Fails if this one is not the stored one.
    pub(super) fn replace_by(
        &self,
        next: &Self,
        connections: &ClusterConnections,
    ) -> Result<(), StoreError> {
        let (before, after) = (self.to_bytes(), next.to_bytes());
        let mut replace = cmd("EVAL");
        replace.arg(REPLACE).arg(1).arg(connections.keys.record()).arg(&before).arg(&after);
        match connections.ask(&replace)? {
            1 => Ok(()),
            _ => Err(StoreError::InUse { place: connections.place().to_owned() }),
        }
    }

    /// Replaces this record by an equivalent one without a pending flush, in a form that no earlier writer
    /// knows: an earlier writer that continues fails at its next flush. Returns the new record.
    ///
    /// In between, the record names a flush without chunks under a random token. Otherwise two writers that
    /// open the store at the same time, after one's lease failed, would write the same record, and both would
    /// succeed.
    pub(super) fn claim(self, connections: &ClusterConnections) -> Result<Self, StoreError> {
        let token = RandomId::random(connections.place())?;
        let pending = Some(PendingFlush { token, chunks: 0 });
        let claimed = Self { epoch: self.epoch + 1, pending, ..self };
        self.replace_by(&claimed, connections)?;
        let done = Self { pending: None, ..claimed };
        claimed.replace_by(&done, connections)?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = ClusterRecord> {
        let tip = proptest::option::of((any::<u32>(), any::<[u8; 32]>()));
        let pending = proptest::option::of((any::<[u8; 16]>(), any::<u32>()));
        (0..Network::ALL.len(), BUCKET_BITS, any::<u64>(), tip, pending).prop_map(
            |(network, bucket_bits, epoch, tip, pending)| ClusterRecord {
                network: Network::ALL[network],
                bucket_bits,
                epoch,
                tip: tip.map(|(height, hash)| KnownBlock { height, hash: BlockHash(hash) }),
                pending: pending
                    .map(|(token, chunks)| PendingFlush { token: RandomId(token), chunks }),
            },
        )
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        seal(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(record in record()) {
            prop_assert_eq!(ClusterRecord::from_bytes(&record.to_bytes()), Ok(record));
        }

        #[test]
        fn an_altered_record_is_invalid(record in record(), at: prop::sample::Index, to: u8) {
            let mut bytes = record.to_bytes();
            let at = at.index(bytes.len());
            let same = bytes[at] == to;
            bytes[at] = to;
            prop_assert_eq!(ClusterRecord::from_bytes(&bytes).is_ok(), same);
        }

        #[test]
        fn sealed_bytes_are_not_necessarily_a_record(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            let ours = [&MAGIC[..], &FORMAT.to_le_bytes(), &bytes].concat();
            for bytes in [sealed(bytes), sealed(ours)] {
                if let Ok(record) = ClusterRecord::from_bytes(&bytes) {
                    prop_assert_eq!(record.to_bytes(), bytes);
                }
            }
        }
    }

    #[test]
    fn a_later_format_is_reported() {
        let bytes = sealed([&MAGIC[..], &7u32.to_le_bytes(), b"more"].concat());
        assert_eq!(ClusterRecord::from_bytes(&bytes), Err(NoRecord::Newer(7)));
        assert_eq!(ClusterRecord::from_bytes(b""), Err(NoRecord::Torn));
    }
}
