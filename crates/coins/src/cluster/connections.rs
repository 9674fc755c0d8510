//! [`Connections`]: to the servers, kept for the next call, and made anew where one fails.
//!
//! A connection to the cluster that met an error may still have answers on their way, which would be
//! taken for those to the next question: it is dropped, whatever the error was.
//!
//! A connection keeps as much memory as its longest answer took, for each server. So it is not kept
//! after a long one, and what goes over much has connections [of its own](Connections::apart), which go
//! with it.

use super::ClusterOptions;
use super::servers::{Reach, Servers};
use crate::patience::Absence;
use crate::place::ClusterPlace;
use crate::{silence, trust};
use apus_engine::utxo::StoreError;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, cmd};
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
pub(super) struct Connections {
    reach: Reach,
    idle: Mutex<Vec<Servers>>,
    place: String,
    absence: Absence,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Connections {
    /// Makes the first one.
    pub(super) fn open(place: &ClusterPlace, options: &ClusterOptions) -> Result<Self, StoreError> {
        let absence = Absence::new(options.patience);
        let mut connections = Self {
            reach: Reach::new(place, options.password.clone()),
            idle: Mutex::new(Vec::new()),
            place: place.to_string(),
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

    /// The same of something whose answer may be long: so many bytes, about.
    pub(super) fn run_measured<T>(
        &self,
        mut act: impl FnMut(&mut Servers) -> RedisResult<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T, StoreError> {
        let mut patience = self.absence.patience();
        loop {
            let listening = silence::within(patience.left().min(ANSWER));
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
        let _listening = silence::within(self.absence.once().min(most).min(ANSWER));
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

    /// Refuses servers that forget all when they stop, or some of it when memory is short.
    pub(super) fn expect_durable(&self) -> Result<(), StoreError> {
        let said = self.run(|to| to.everywhere::<String>(&cmd("INFO")))?;
        for (server, said) in &said {
            if let Some(what) = forgets(said) {
                let error = format!("{server} {what}");
                return Err(StoreError::Io { place: self.place.clone(), error });
            }
        }
        self.expect_written_before_answers()
    }

    /// Refuses servers that answer before the system has what is to be kept. Who hides their settings is
    /// believed.
    fn expect_written_before_answers(&self) -> Result<(), StoreError> {
        let said = self.run(|to| {
            match to.everywhere::<Vec<String>>(cmd("CONFIG").arg("GET").arg("appendfsync")) {
                Err(error) if !passes(&error) => Ok(Vec::new()),
                said => said,
            }
        })?;
        for (server, said) in &said {
            if said.iter().any(|word| word == "everysec") {
                let error = format!(
                    "{server} may answer up to two seconds before it writes, and would forget coins when its \
                     process is killed: set appendfsync to always, or to no where power cuts are of no concern"
                );
                return Err(StoreError::Io { place: self.place.clone(), error });
            }
        }
        Ok(())
    }
}

/// Why a server would forget what it was told, by what it says of itself.
fn forgets(said: &str) -> Option<&'static str> {
    let says = |line: &str| said.lines().any(|said| said.trim() == line);
    if !says("aof_enabled:1") {
        return Some(
            "keeps no log of what is written and would forget coins: set appendonly to yes, and \
             appendfsync to always if it is to survive a power cut",
        );
    }
    let evicts = !says("maxmemory:0") && !says("maxmemory_policy:noeviction");
    evicts.then_some(
        "gives keys up when its memory is full and would forget coins: set maxmemory-policy to \
         noeviction",
    )
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
    shared.map_or_else(|| trust::is_tls(cause), |cause| trust::is_tls(&**cause))
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
    } else if error.to_string().contains("cluster support disabled") {
        "its servers are no cluster: set cluster-enabled to yes, and see `redis-cli --cluster create`"
    } else if is_tls(error) {
        trust::WHOM_TO_TRUST
    } else if error.is_io_error() {
        "see whether its servers run and can be reached from here"
    } else {
        "see what its servers' logs say"
    };
    StoreError::Io { place: place.to_owned(), error: format!("{error}: {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_forget_are_told_from_others() {
        let said = |log, most, policy| {
            let memory = format!("maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            forgets(&format!("# Memory\r\n{memory}# Persistence\r\naof_enabled:{log}\r\n"))
        };
        assert_eq!(said(1, 0, "allkeys-lru"), None);
        assert_eq!(said(1, 5, "noeviction"), None);
        assert!(said(0, 0, "noeviction").unwrap().contains("appendonly"));
        assert!(said(1, 5, "allkeys-lru").unwrap().contains("maxmemory-policy"));
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
