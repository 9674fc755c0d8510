//! [`PostgresConnections`]: to the server, kept for the next call, and made anew where one fails.
//!
//! A connection that met any error is dropped: what it still has to say belongs to nothing that is
//! asked later.

use super::PostgresOptions;
use super::line::{PlainConnector, TlsConnector};
use crate::patience::{self, Absence, RetryBudget};
use crate::store::{WHOM_TO_TRUST, is_tls_error};
use crate::url::{PasswordExposed, PostgresUrl};
use ::postgres::config::{SslMode, SslNegotiation, TargetSessionAttrs};
use ::postgres::error::SqlState;
use ::postgres::{Client, Config, Statement};
use apus_engine::utxo::StoreError;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Connections that are kept while they are not used.
const IDLE_MAX: usize = 32;

/// How long the server may take to accept a connection, and not acknowledge what was sent.
const CONNECT: Duration = Duration::from_secs(3);
const UNHEARD: Duration = Duration::from_secs(30);

/// How long to try again to make the first connection: a wrong name is to be told soon.
const OPENING: Duration = Duration::from_secs(5);

/// After which time without a word the server's system is asked whether it is there, and how often before it
/// is not.
const ALIVE_AFTER: Duration = Duration::from_secs(10);
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const ALIVE_TRIES: u32 = 3;

/// What each session is told first.
///
/// Names are looked up one after the other in the index: with so few of so many, and changes in a table
/// that the server knows nothing of, another plan is never better, and may be one over all coins. A
/// client that is gone is noticed soon, so that its lease and its locks go. What is acknowledged is on
/// the disk.
const SESSION: &str = "\
SET client_min_messages = error;
SET bytea_output = hex;
SET plan_cache_mode = force_generic_plan;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_seqscan = off;
SET jit = off;
SET tcp_keepalives_idle = 10;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SET lock_timeout = '60s';
SET client_connection_check_interval = '2s';
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'";

/// Looks coins up: the places of those that are there among those that are wanted, and the coins.
const LOOK_UP: &str = "\
SELECT wanted.place, coins.coin
FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (outpoint, place)
JOIN coins ON coins.outpoint = wanted.outpoint";

/// A connection, and what was prepared on it.
pub(super) struct PostgresSession {
    pub(super) client: Client,
    look_up: Option<Statement>,
}

impl PostgresSession {
    /// The statement that looks coins up.
    pub(super) fn look_up(&mut self) -> Result<Statement, ::postgres::Error> {
        if self.look_up.is_none() {
            self.look_up = Some(self.client.prepare(LOOK_UP)?);
        }
        Ok(self.look_up.clone().expect("it was prepared above"))
    }
}

/// See the module.
pub(super) struct PostgresConnections {
    config: Config,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<PostgresSession>>,
    place: String,
    schema: String,
    absence: Absence,
}

impl PostgresConnections {
    /// Makes the first one. For writers, `attrs` keeps from servers that cannot be written to.
    pub(super) fn open(
        place: &PostgresUrl,
        options: &PostgresOptions,
        attrs: TargetSessionAttrs,
    ) -> Result<Self, StoreError> {
        let mut config = Config::new();
        config
            .host(&place.host)
            .port(place.port)
            .user(&place.user)
            .dbname(&place.database)
            .application_name("apus")
            .connect_timeout(CONNECT)
            .tcp_user_timeout(UNHEARD)
            .keepalives_idle(ALIVE_AFTER)
            .keepalives_interval(ALIVE_EVERY)
            .keepalives_retries(ALIVE_TRIES)
            .target_session_attrs(attrs)
            .ssl_mode(SslMode::Require);
        if !place.tls {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        if let Some(password) = &options.password {
            let password = password.reveal(&place.host, place.tls);
            let failed =
                |error: PasswordExposed| StoreError::io(&place.to_string(), error.to_string());
            config.password(password.map_err(failed)?);
        }
        let name = place.to_string();
        let absence = Absence::new(options.patience);
        let encrypted = place.tls.then(|| {
            let server = (place.host.clone(), place.port);
            Ok(TlsConnector { tls: tls(&name)?, server, connect: CONNECT })
        });
        let mut connections = Self {
            config,
            tls: encrypted.transpose()?,
            idle: Mutex::new(Vec::new()),
            place: name,
            schema: place.name.clone(),
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

    /// The schema's name. It needs quotes and nothing else: it is letters, digits, - and _.
    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// For one call that makes its own tries.
    pub(super) fn patience(&self) -> RetryBudget<'_> {
        self.absence.patience()
    }

    /// Does something that may be done twice, and does it again while the server is away.
    pub(super) fn run<T>(
        &self,
        mut act: impl FnMut(&mut PostgresSession) -> Result<T, ::postgres::Error>,
    ) -> Result<T, StoreError> {
        let mut patience = self.patience();
        loop {
            let (done, heard) = listen(patience.left(), || self.once(&mut act));
            match done {
                Ok(done) => {
                    patience.ends_well();
                    return Ok(done);
                }
                Err(error) => self.bear(&mut patience, heard, &error)?,
            }
        }
    }

    /// Lets some time pass where an error may go away by itself; else, and where it has been long enough, it is
    /// the store's.
    pub(super) fn bear(
        &self,
        patience: &mut RetryBudget<'_>,
        heard: Instant,
        error: &::postgres::Error,
    ) -> Result<(), StoreError> {
        if !passes(error) {
            return Err(failed(&self.place, error));
        }
        if patience.wait(heard) {
            return Ok(());
        }
        Err(patience.is_over(&self.place, said(error)))
    }

    /// Does something without a second try.
    fn once<T>(
        &self,
        mut act: impl FnMut(&mut PostgresSession) -> Result<T, ::postgres::Error>,
    ) -> Result<T, ::postgres::Error> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut session = kept.map_or_else(|| self.connect(), Ok)?;
        let done = act(&mut session)?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
        Ok(done)
    }

    /// A new connection.
    pub(super) fn connect(&self) -> Result<PostgresSession, ::postgres::Error> {
        let mut client = match &self.tls {
            Some(tls) => self.config.connect(tls.clone())?,
            None => self.config.connect(PlainConnector)?,
        };
        client.batch_execute(SESSION)?;
        client.batch_execute(&format!("SET search_path = \"{}\"", self.schema))?;
        Ok(PostgresSession { client, look_up: None })
    }

    /// Refuses a server that leaves it to chance what of its data survives.
    pub(super) fn expect_durable(&self) -> Result<(), StoreError> {
        const ASK: &str = "\
SELECT name FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name";
        let off: Vec<String> = self.run(|session| {
            let rows = session.client.query(ASK, &[])?;
            rows.iter().map(|row| row.try_get(0)).collect()
        })?;
        match off.first() {
            None => Ok(()),
            Some(name) => Err(StoreError::io(
                &self.place,
                format!(
                    "the server would forget coins, or have others instead, when its machine stops: set \
                     {name} to on"
                ),
            )),
        }
    }
}

/// Does something that listens for so long. When the server was heard last.
pub(super) fn listen<T>(limit: Duration, act: impl FnOnce() -> T) -> (T, Instant) {
    let listening = patience::within(limit);
    let done = act();
    (done, listening.heard())
}

/// With the certificates that the system trusts.
fn tls(place: &str) -> Result<MakeRustlsConnect, StoreError> {
    let failed = |error: String| StoreError::io(place, error);
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "there are none".into(), ToString::to_string);
        return Err(failed(format!(
            "no certificates are trusted by this system ({why}): install its package of them, or name a \
             file of them in SSL_CERT_FILE"
        )));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Whether an error may go away by itself.
pub(super) fn passes(error: &::postgres::Error) -> bool {
    let Some(code) = error.code() else {
        // Nothing that the server said: the connection ended, or did not come about. A certificate that is
        // not trusted will not be later, either.
        return error.is_closed() || has_io_error(error) && !is_tls(error);
    };
    // Classes: connection exceptions, transactions to be tried again, and the end of the server.
    ["08", "40"].iter().any(|class| code.code().starts_with(class))
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::TOO_MANY_CONNECTIONS,
        ]
        .contains(code)
}

fn has_io_error(error: &::postgres::Error) -> bool {
    causes(error).any(|cause| cause.is::<std::io::Error>()) || error.to_string().contains("timeout")
}

fn is_tls(error: &::postgres::Error) -> bool {
    causes(error).any(is_tls_error)
}

/// What led to an error.
fn causes<'a>(error: &'a ::postgres::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// What an error says.
fn said(error: &::postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        None => causes(error).fold(error.to_string(), |said, cause| format!("{said}: {cause}")),
    }
}

/// The error of a store, with what to do.
pub(super) fn failed(place: &str, error: &::postgres::Error) -> StoreError {
    let said = said(error);
    let code = error.code();
    let is = |states: &[SqlState]| code.is_some_and(|code| states.contains(code));
    let wants_password = said.contains("password missing");
    let what = if wants_password
        || is(&[SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION])
    {
        "set APUS_COINS_PASSWORD, or --coins-password-file, to the password that the server wants of \
         this user"
    } else if is(&[SqlState::INVALID_CATALOG_NAME]) {
        "make the database with createdb, or name another"
    } else if is(&[SqlState::INSUFFICIENT_PRIVILEGE]) {
        "GRANT CREATE, TEMPORARY ON DATABASE to this user, or name a store of its own"
    } else if is(&[SqlState::DISK_FULL, SqlState::OUT_OF_MEMORY]) {
        "make room on the server"
    } else if is_tls(error) {
        WHOM_TO_TRUST
    } else if code.is_none() {
        "see whether its server runs and can be reached from here"
    } else {
        "see what its server's log says"
    };
    StoreError::io(place, format!("{said}: {what}"))
}
