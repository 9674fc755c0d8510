//! [`ClusterConnections`]: to the servers, kept for the next call, and made anew where one fails.
//!
//! A connection to the cluster that met an error may still have answers on their way, which would be
//! taken for those to the next question: it is dropped, whatever the error was.
//!
//! A connection keeps as much memory as its longest answer took, for each server. So it is not kept
//! after a long one, and what goes over much has connections [of its own](ClusterConnections::apart), which go
//! with it.

use super::ClusterOptions;
use super::servers::{ClusterAddress, Servers, is_alone};
use crate::patience::{self, Absence};
use crate::store::{RandomId, WHOM_TO_TRUST, is_tls_error};
use crate::url::ClusterUrl;
use apus_engine::utxo::StoreError;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, cmd};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Connections that are kept while they are not used.
const IDLE_MAX: usize = 64;

/// How long to listen for an answer before the servers are asked anew. None takes them long.
const ANSWER: Duration = Duration::from_secs(30);

/// How long to try again to make the first connection: a wrong name is to be told soon.
const OPENING: Duration = Duration::from_secs(5);

/// An answer of more bytes than this is long.
const LONG_ANSWER: usize = 128 << 10;

/// See the module.
pub(super) struct ClusterConnections {
    reach: ClusterAddress,
    idle: Mutex<Vec<Servers>>,
    place: String,
    /// What the store's things are called there.
    pub(super) keys: Keys,
    absence: Absence,
}

impl ClusterConnections {
    /// Makes the first one.
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

    /// What errors call the store.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Others to the same servers, for what has long answers.
    pub(super) fn apart(&self) -> Self {
        Self {
            reach: self.reach.clone(),
            idle: Mutex::new(Vec::new()),
            place: self.place.clone(),
            keys: self.keys.clone(),
            absence: self.absence.clone(),
        }
    }

    /// Does something that may be done twice, and does it again while a server is away.
    pub(super) fn run<T>(
        &self,
        act: impl Fn(&mut Servers) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        self.run_measured(act, |_| 0)
    }

    /// The same of one command, which is about one key.
    pub(super) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        self.run(|to| to.ask(command))
    }

    /// The same of something whose answer may be long: so many bytes, about.
    pub(super) fn run_measured<T>(
        &self,
        mut act: impl FnMut(&mut Servers) -> RedisResult<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T, StoreError> {
        let mut patience = self.absence.patience();
        loop {
            let listening = patience::within(patience.left().min(ANSWER));
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

    /// Does something without a second try, where it does not take longer than `most`.
    pub(super) fn once<T>(
        &self,
        most: Duration,
        act: impl Fn(&mut Servers) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let _listening = patience::within(self.absence.once().min(most).min(ANSWER));
        self.once_measured(act, |_| 0)
    }

    fn once_measured<T>(
        &self,
        act: impl FnOnce(&mut Servers) -> RedisResult<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> RedisResult<T> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut servers = kept.map_or_else(|| self.reach.open(), Ok)?;
        let done = act(&mut servers)?;
        if bytes(&done) > LONG_ANSWER {
            return Ok(done);
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(servers);
        }
        Ok(done)
    }

    /// Refuses servers that forget what they acknowledged when they stop, or when memory is short. What is wrong with all of
    /// them is told at once. Who hides a setting is believed.
    pub(super) fn expect_durable(&self) -> Result<(), StoreError> {
        let said = self.run(|to| to.everywhere::<String>(&cmd("INFO")))?;
        let syncs = self.run(|to| {
            match to.everywhere::<Vec<String>>(cmd("CONFIG").arg("GET").arg("appendfsync")) {
                Err(error) if !passes(&error) => Ok(Vec::new()),
                said => said,
            }
        })?;
        let mut wrong = Vec::new();
        for (place, (server, said)) in said.iter().enumerate() {
            let sync = syncs.get(place).and_then(|(_, said)| said.last()).map(String::as_str);
            let lines = settings_wanted(said, sync.unwrap_or_default());
            if !lines.is_empty() {
                wrong.push(format!("{server}: {}", lines.join(", ")));
            }
        }
        match &wrong[..] {
            [] => Ok(()),
            wrong => Err(StoreError::io(
                &self.place,
                format!(
                    "what was written would be forgotten when a server stops, or when its memory is full. Set by redis-cli \
                     CONFIG SET, and as lines of redis.conf: {}. (With appendfsync no a killed server forgets nothing, but a \
                     power cut may take some.)",
                    wrong.join("; ")
                ),
            )),
        }
    }
}

/// The settings without which a server would forget what it was told, by what it says of itself and of `appendfsync`.
fn settings_wanted(said: &str, sync: &str) -> Vec<&'static str> {
    let says = |line: &str| said.lines().any(|said| said.trim() == line);
    // By default a server answers up to two seconds before it writes.
    let wanted = [
        ("appendonly yes", !says("aof_enabled:1")),
        ("appendfsync always", sync == "everysec"),
        (
            "maxmemory-policy noeviction",
            !says("maxmemory:0") && !says("maxmemory_policy:noeviction"),
        ),
    ];
    wanted.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(line, _)| line).collect()
}

/// Whether an error may go away by itself.
fn passes(error: &RedisError) -> bool {
    match error.kind() {
        // A certificate that is not trusted will not be later, either.
        _ if is_tls(error) => false,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => !is_refusal(error),
        // The client says so where no server knows who has which keys, as while one is away.
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

/// Whether a server is not trusted, or does not encrypt.
fn is_tls(error: &RedisError) -> bool {
    let Some(cause) = error.source() else { return false };
    // The client keeps what led to an error where it can be shared.
    let shared = cause.downcast_ref::<Arc<dyn Error + Send + Sync>>();
    shared.map_or_else(|| is_tls_error(cause), |cause| is_tls_error(&**cause))
}

/// Whether a server wants another password.
fn is_refusal(error: &RedisError) -> bool {
    let text = error.to_string();
    error.kind() == ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS", "AuthenticationFailed", "authentication failed"]
            .iter()
            .any(|sign| text.contains(sign))
}

fn failed(place: &str, error: &RedisError) -> StoreError {
    let what = if is_refusal(error) {
        "set APUS_COINS_PASSWORD, or --coins-password-file, to the password that the servers want"
    } else if error.kind() == ErrorKind::InvalidClientConfig {
        "a server of the cluster named that one"
    } else if is_alone(error) {
        "its servers are no cluster: name one server alone, or make them one (cluster-enabled yes in each redis.conf, then \
         redis-cli --cluster create)"
    } else if is_tls(error) {
        WHOM_TO_TRUST
    } else if error.is_io_error() {
        "see whether its servers run and can be reached from here"
    } else {
        "see what its servers' logs say"
    };
    StoreError::io(place, format!("{error}: {what}"))
}

/// The names of one store.
///
/// A key is alone in its slot of the cluster, so what belongs together may lie on different servers,
/// and no command is about two keys.
#[derive(Debug, Clone)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// What the store is, and at which block: a string.
    pub(super) fn record(&self) -> String {
        format!("{}:record", self.0)
    }

    /// Who writes: a string that goes away by itself.
    pub(super) fn lease(&self) -> String {
        format!("{}:lease", self.0)
    }

    /// Tokens of flushes that were begun: a set.
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

    /// The blocks whose undo data is there: a hash.
    pub(super) fn undo_blocks(&self) -> String {
        format!("{}:undo", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_forget_are_told_from_others() {
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
    fn a_wrong_password_is_not_tried_again() {
        let refused = (ErrorKind::Io, "no node", "WRONGPASS invalid username".to_owned());
        assert!(!passes(&RedisError::from(refused.clone())));
        let told = failed("redis://a:1/x", &RedisError::from(refused)).to_string();
        assert!(told.contains("APUS_COINS_PASSWORD"), "{told}");
        assert!(passes(&RedisError::from((ErrorKind::Io, "gone"))));
        assert!(!passes(&RedisError::from((ErrorKind::UnexpectedReturnType, "odd"))));
    }
}
