//! [`ClusterConnections`]: a pool of connections to the servers, which replaces failed ones.
//!
//! A connection that met an error may still have answers in flight, which would be mistaken for answers to
//! the next request. So it is dropped, regardless of the error.
//!
//! A connection keeps as much memory as its longest answer took, for each server. So it is not kept after a
//! long answer, and bulk transfers use [separate connections](ClusterConnections::apart), which are dropped
//! afterwards.

use super::ClusterOptions;
use super::servers::{ClusterAddress, Servers, is_alone};
use crate::retry::{self, Absence};
use crate::store::{RandomId, WHOM_TO_TRUST, is_tls_error};
use crate::url::ClusterUrl;
use apus_engine::utxo::StoreError;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, cmd};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of idle connections to keep.
const IDLE_MAX: usize = 64;

/// How long to wait for an answer before asking the servers again. No answer takes this long.
const ANSWER: Duration = Duration::from_secs(30);

/// How long to retry the first connection: a wrong name should be reported soon.
const OPENING: Duration = Duration::from_secs(5);

/// An answer longer than this, in bytes, counts as long.
const LONG_ANSWER: usize = 128 << 10;

/// A pool of connections to a store's servers.
pub(super) struct ClusterConnections {
    reach: ClusterAddress,
    idle: Mutex<Vec<Servers>>,
    place: String,
    /// The names of the store's keys.
    pub(super) keys: Keys,
    absence: Absence,
}

impl ClusterConnections {
    /// Makes the first connection.
    pub(super) fn open(place: &ClusterUrl, options: &ClusterOptions) -> Result<Self, StoreError> {
        let absence = Absence::new(options.patience);
        let mut connections = Self {
            reach: ClusterAddress::new(place, options.password.clone()),
            idle: Mutex::new(Vec::new()),
            place: place.to_string(),
            keys: Keys::new(&place.name),
            absence: absence.at_most(OPENING),
        };
        connections.run(|_| Ok(()))?;
        connections.absence = absence;
        Ok(connections)
    }

    /// The store's name in errors.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// A separate pool to the same servers, for long answers.
    pub(super) fn apart(&self) -> Self {
        Self {
            reach: self.reach.clone(),
            idle: Mutex::new(Vec::new()),
            place: self.place.clone(),
            keys: self.keys.clone(),
            absence: self.absence.clone(),
        }
    }

    /// Performs an idempotent operation, and retries it while a server is unavailable.
    pub(super) fn run<T>(
        &self,
        act: impl Fn(&mut Servers) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        self.run_measured(act, |_| 0)
    }

    /// Like [`run`](Self::run), for one command, which must use one key.
    pub(super) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.run(|to| to.ask(command))
    }

    /// Like [`run`](Self::run), for an operation with long answers; `bytes` gives their approximate length.
    pub(super) fn run_measured<T>(
        &self,
        mut act: impl FnMut(&mut Servers) -> RedisResult<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T, StoreError> {
        let mut patience = self.absence.patience();
        loop {
            let listening = retry::within(patience.left().min(ANSWER));
            let done = self.once_measured(&mut act, &bytes);
            let heard = listening.heard();
            drop(listening);
            match done {
                Ok(done) => {
                    patience.ends_well();
                    return Ok(done);
                }
                Err(error) if !passes(&error) => return Err(failed(&self.place, &error)),
                Err(_) if patience.wait(heard) => {}
                Err(error) => return Err(patience.is_over(&self.place, error)),
            }
        }
    }

    /// Performs an operation once, within `most` time.
    pub(super) fn once<T>(
        &self,
        most: Duration,
        act: impl Fn(&mut Servers) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let _listening = retry::within(self.absence.once().min(most).min(ANSWER));
        self.once_measured(act, |_| 0)
    }

    fn once_measured<T>(
        &self,
        act: impl FnOnce(&mut Servers) -> RedisResult<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> RedisResult<T> {
        let kept = self.idle.lock().pop();
        let mut servers = kept.map_or_else(|| self.reach.open(), Ok)?;
        let done = act(&mut servers)?;
        if bytes(&done) > LONG_ANSWER {
            return Ok(done);
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(servers);
        }
        Ok(done)
    }

    /// Asks every server; `None` if a server does not let this user ask.
    fn unless_refused<T: FromRedisValue>(
        &self,
        command: Cmd,
    ) -> Result<Option<Vec<(String, T)>>, StoreError> {
        self.run(|to| match to.everywhere::<T>(&command) {
            Err(error) if is_denied(&error) => Ok(None),
            answers => answers.map(Some),
        })
    }

    /// Fails if servers lose acknowledged data when they stop or run out of memory. Reports all problems at
    /// once. A server that hides its settings is trusted, and `notice` receives what could not be checked.
    pub(super) fn expect_durable(&self, notice: fn(&str)) -> Result<(), StoreError> {
        let info = self.unless_refused(cmd("INFO"))?;
        let syncs = self.unless_refused(cmd("CONFIG").arg("GET").arg("appendfsync").to_owned())?;
        let hidden = match (&info, &syncs) {
            (None, None) => Some("appendonly yes, appendfsync always, maxmemory-policy noeviction"),
            (None, Some(_)) => Some("appendonly yes, maxmemory-policy noeviction"),
            (Some(_), None) => Some("appendfsync always"),
            (Some(_), Some(_)) => None,
        };
        if let Some(hidden) = hidden {
            let place = &self.place;
            notice(&format!(
                "{place} does not show its settings to this user, so they are not checked. Make sure that it has: \
                 {hidden}. Otherwise it may lose coins"
            ));
        }
        let info: Vec<(String, String)> = info.unwrap_or_default();
        let syncs: Vec<(String, Vec<String>)> = syncs.unwrap_or_default();
        let mut wrong = Vec::new();
        for (place, (server, info)) in info.iter().enumerate() {
            let sync = syncs.get(place).and_then(|(_, values)| values.last()).map(String::as_str);
            let lines = settings_wanted(info, sync.unwrap_or_default());
            if !lines.is_empty() {
                wrong.push(format!("{server}: {}", lines.join(", ")));
            }
        }
        match &wrong[..] {
            [] => Ok(()),
            wrong => Err(StoreError::io(
                &self.place,
                format!(
                    "the servers would lose data when they stop or run out of memory. Set these with \
                     redis-cli CONFIG SET, and in redis.conf: {}. (With appendfsync no, a killed server \
                     loses nothing, but a power cut may lose some data.)",
                    wrong.join("; ")
                ),
            )),
        }
    }
}

/// Returns true if a server refuses a command to this user, or does not know it.
fn is_denied(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || error.to_string().contains("unknown command")
}

/// The settings that a server needs to keep its data but lacks, from its INFO and its `appendfsync`.
fn settings_wanted(info: &str, sync: &str) -> Vec<&'static str> {
    let has = |line: &str| info.lines().any(|info| info.trim() == line);
    // With `everysec`, the default, a server answers up to two seconds before it writes.
    let wanted = [
        ("appendonly yes", !has("aof_enabled:1")),
        ("appendfsync always", sync == "everysec"),
        ("maxmemory-policy noeviction", !has("maxmemory:0") && !has("maxmemory_policy:noeviction")),
    ];
    wanted.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(line, _)| line).collect()
}

/// Returns true if an error may be temporary.
fn passes(error: &RedisError) -> bool {
    match error.kind() {
        // An untrusted certificate will stay untrusted.
        _ if is_tls(error) => false,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => !is_refusal(error),
        // The client reports this if no server knows which server has which keys, for instance during an outage.
        ErrorKind::Client => true,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
        ),
        _ => false,
    }
}

/// Returns true if a server is not trusted, or does not encrypt.
fn is_tls(error: &RedisError) -> bool {
    let Some(cause) = error.source() else { return false };
    // The client wraps the cause of an error to share it.
    let shared = cause.downcast_ref::<Arc<dyn Error + Send + Sync>>();
    shared.map_or_else(|| is_tls_error(cause), |cause| is_tls_error(&**cause))
}

/// Returns true if a server rejected the password.
fn is_refusal(error: &RedisError) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS", "AuthenticationFailed", "authentication failed"]
            .iter()
            .any(|sign| text.contains(sign))
}

fn failed(place: &str, error: &RedisError) -> StoreError {
    let what = if is_refusal(error) {
        "set APUS_COINS_PASSWORD, or --coins-password-file, to the servers' password, or to that of the user in the URL"
    } else if error.kind() == ErrorKind::InvalidClientConfig {
        "another server of the cluster announced this server"
    } else if is_alone(error) {
        "its servers are not a cluster: give one server alone, or create a cluster (cluster-enabled yes in each \
         redis.conf, then redis-cli --cluster create)"
    } else if is_tls(error) {
        WHOM_TO_TRUST
    } else if error.is_io_error() {
        "check that its servers run and can be reached from here"
    } else {
        "check its servers' logs"
    };
    StoreError::io(place, format!("{error}: {what}"))
}

/// The key names of one store.
///
/// Each key hashes to its own slot of the cluster, so related keys may be on different servers, and no
/// command uses two keys.
#[derive(Debug, Clone)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The store's identity and its block: a string.
    pub(super) fn record(&self) -> String {
        format!("{}:record", self.0)
    }

    /// The current writer: a string that expires.
    pub(super) fn lease(&self) -> String {
        format!("{}:lease", self.0)
    }

    /// Tokens of started flushes: a set.
    pub(super) fn flushes(&self) -> String {
        format!("{}:flushes", self.0)
    }

    /// A chunk of a flush: a string.
    pub(super) fn chunk(&self, token: &RandomId, number: u32) -> String {
        format!("{}:w:{token}:{number}", self.0)
    }

    /// A bucket of coins: a hash.
    pub(super) fn coins(&self, bucket: u16) -> String {
        format!("{}:c:{bucket:04x}", self.0)
    }

    /// A bucket of undo data: a hash.
    pub(super) fn undo(&self, bucket: u8) -> String {
        format!("{}:u:{bucket:02x}", self.0)
    }

    /// The blocks with undo data: a hash.
    pub(super) fn undo_blocks(&self) -> String {
        format!("{}:undo", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_lose_data_are_recognized() {
        let wanted = |log, most, policy, sync| {
            let memory = format!("maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            settings_wanted(
                &format!("# Memory\r\n{memory}# Persistence\r\naof_enabled:{log}\r\n"),
                sync,
            )
        };
        for sync in ["always", "no", ""] {
            assert!(wanted(1, 0, "allkeys-lru", sync).is_empty(), "{sync}");
            assert!(wanted(1, 5, "noeviction", sync).is_empty(), "{sync}");
        }
        let all = ["appendonly yes", "appendfsync always", "maxmemory-policy noeviction"];
        assert_eq!(wanted(0, 5, "allkeys-lru", "everysec"), all);
        assert_eq!(wanted(1, 0, "noeviction", "everysec"), all[1..2]);
    }

    #[test]
    fn a_wrong_password_is_not_retried() {
        let refused = (ErrorKind::Io, "no node", "WRONGPASS invalid username".to_owned());
        assert!(!passes(&RedisError::from(refused.clone())));
        let message = failed("redis://a:1/x", &RedisError::from(refused)).to_string();
        assert!(message.contains("APUS_COINS_PASSWORD"), "{message}");
        assert!(passes(&RedisError::from((ErrorKind::Io, "gone"))));
        assert!(!passes(&RedisError::from((ErrorKind::UnexpectedReturnType, "odd"))));
    }
}
