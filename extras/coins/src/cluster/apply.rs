//! Applies chunks to the buckets, both in a normal flush and when a flush is completed by the next program
//! that opens the store.

use super::buckets::{Buckets, EPOCH};
use super::connections::ClusterConnections;
use super::record::PendingFlush;
use super::servers::{CommandPipe, Servers};
use super::undo;
use super::wal::{self, StoreChange};
use apus_engine::utxo::StoreError;
use redis::{Cmd, ErrorKind, RedisResult, Script, ServerErrorKind, cmd};
use std::collections::BTreeMap;
use std::time::Duration;

/// Changes one bucket, unless a later epoch already changed it, a thousand arguments at a time: Lua cannot pass many
/// more. Epochs arrive as text, and the script compares
/// them as numbers, because the order of texts depends on the server's locale.
const APPLY: &str = "\
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and tonumber(there) > tonumber(ARGV[2]) then return 0 end
local puts = 3 + 2 * tonumber(ARGV[3])
for i = 4, puts, 1000 do redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, puts))) end
for i = puts + 1, #ARGV, 1000 do redis.call('HDEL', KEYS[1], unpack(ARGV, i, math.min(i + 999, #ARGV))) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1";

/// A pipeline is sent once it exceeds this size, in bytes.
const PIPE_BYTES: usize = 512 << 10;

/// The changes of one bucket.
#[derive(Default)]
struct BucketChanges<'a> {
    puts: Vec<(Vec<u8>, NewValue<'a>)>,
    removals: Vec<Vec<u8>>,
}

/// A value from the chunk, or one created here.
enum NewValue<'a> {
    Slice(&'a [u8]),
    Owned(Vec<u8>),
}

impl NewValue<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Applies all chunks of a flush. Idempotent.
pub(super) fn chunks(
    connections: &ClusterConnections,
    buckets: Buckets,
    epoch: u64,
    pending: &PendingFlush,
) -> Result<(), StoreError> {
    for number in 0..pending.chunks {
        let key = connections.keys.chunk(&pending.token, number);
        let chunk = connections.ask::<Option<Vec<u8>>>(cmd("GET").arg(&key))?;
        let wrong = |what: &str| {
            StoreError::damaged(connections.place(), format!("{key}, which a flush needs, {what}"))
        };
        let chunk = chunk.ok_or_else(|| wrong("is missing"))?;
        let changes = wal::changes(&chunk).ok_or_else(|| wrong("is corrupt"))?;
        apply(connections, buckets, epoch, &changes)?;
    }
    Ok(())
}

/// Applies changes to their buckets.
pub(super) fn apply(
    connections: &ClusterConnections,
    buckets: Buckets,
    epoch: u64,
    changes: &[StoreChange<'_>],
) -> Result<(), StoreError> {
    let mut parts: BTreeMap<String, BucketChanges<'_>> = BTreeMap::new();
    for change in changes {
        match change {
            StoreChange::Coin(outpoint, coin) => {
                let part =
                    parts.entry(connections.keys.coins(buckets.of(&outpoint.txid))).or_default();
                part.change(buckets.field(outpoint), coin.map(NewValue::Slice));
            }
            StoreChange::Piece(hash, piece, bytes) => {
                let part = parts.entry(connections.keys.undo(hash.0[0])).or_default();
                part.change(undo::field(hash, *piece), bytes.map(NewValue::Slice));
            }
            StoreChange::Undo(hash, stored) => {
                let stored = stored.map(|stored| NewValue::Owned(stored.to_bytes().to_vec()));
                parts
                    .entry(connections.keys.undo_blocks())
                    .or_default()
                    .change(hash.0.to_vec(), stored);
            }
        }
    }
    let script = Script::new(APPLY);
    let mut pipe = CommandPipe::default();
    for (key, part) in &parts {
        pipe.add(key.as_bytes(), &part.command(&script, key, epoch));
        if pipe.bytes() >= PIPE_BYTES {
            send(connections, &std::mem::take(&mut pipe))?;
        }
    }
    if pipe.len() > 0 { send(connections, &pipe) } else { Ok(()) }
}

impl<'a> BucketChanges<'a> {
    fn change(&mut self, field: Vec<u8>, value: Option<NewValue<'a>>) {
        match value {
            Some(value) => self.puts.push((field, value)),
            None => self.removals.push(field),
        }
    }

    fn command(&self, script: &Script, key: &str, epoch: u64) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(script.get_hash()).arg(1).arg(key);
        command.arg(EPOCH).arg(epoch).arg(self.puts.len());
        for (field, value) in &self.puts {
            command.arg(&field[..]).arg(value.bytes());
        }
        for field in &self.removals {
            command.arg(&field[..]);
        }
        command
    }
}

/// Loads the script on all servers, so that it need not be sent with each bucket.
pub(super) fn load(to: &mut Servers) -> RedisResult<()> {
    to.everywhere::<String>(cmd("SCRIPT").arg("LOAD").arg(APPLY)).map(drop)
}

fn send(connections: &ClusterConnections, pipe: &CommandPipe) -> Result<(), StoreError> {
    let applied: Vec<u8> = connections.run(|to| match to.answers(pipe) {
        // A restarted server does not know the script. Other answers are still in flight on this connection,
        // so load it on others and retry.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connections.once(Duration::MAX, load)?;
            Err((ErrorKind::Io, "the script had to be loaded again").into())
        }
        done => done,
    })?;
    if applied.len() == pipe.len() && applied.iter().all(|done| *done == 1) {
        return Ok(());
    }
    // A bucket has a later epoch, so another writer took over.
    Err(StoreError::InUse { place: connections.place().to_owned() })
}
