//! What is read of a cluster's servers and written there, as functions of bytes: for those who try what
//! readers make of any bytes.

use crate::cluster::{Buckets, ClusterRecord, ServerAnswers, changes_as_written};
use apus_hash::sha256;

/// Puts the digest behind bytes that both records and chunks end with.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    [bytes, &sha256(bytes)[..8]].concat()
}

/// A record as it is written, where bytes are one.
pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
    ClusterRecord::as_written(bytes)
}

/// A chunk as it is written, where bytes are one.
pub fn chunk(bytes: &[u8]) -> Option<Vec<u8>> {
    changes_as_written(bytes).map(|changes| sealed(&changes))
}

/// The field of a coin as it is written, where one of a bucket is a coin's. So many bits choose the bucket,
/// 4 to 16.
pub fn field(bits: u8, bucket: u16, field: &[u8]) -> Option<Vec<u8>> {
    let buckets = Buckets::new(bits.clamp(4, 16));
    let bucket = bucket >> (16 - bits.clamp(4, 16));
    let outpoint = buckets.outpoint(bucket, field)?;
    (buckets.of(&outpoint.txid) == bucket).then(|| buckets.field(&outpoint))
}

/// How many answers of a server bytes are, one after the other.
pub fn answers(bytes: &[u8]) -> usize {
    let mut answers = ServerAnswers::new(bytes);
    std::iter::from_fn(|| answers.next().ok()).count()
}
