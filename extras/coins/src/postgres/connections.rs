//! [`PostgresConnections`]: a pool of connections to the server, which replaces failed ones.
//!
//! A connection that met any error is dropped: answers still in flight would not match later requests.

use super::PostgresOptions;
use super::line::{PlainConnector, SocketConnector, TlsConnector};
use crate::retry::{self, Absence, RetryBudget};
use crate::store::{WHOM_TO_TRUST, is_tls_error};
use crate::url::{PasswordExposed, PostgresUrl, is_socket};
use ::postgres::config::{SslMode, SslNegotiation, TargetSessionAttrs};
use ::postgres::error::SqlState;
use ::postgres::{Client, Config, Statement};
use apus_engine::utxo::StoreError;
use parking_lot::Mutex;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Maximum number of idle connections to keep.
const IDLE_MAX: usize = 32;

/// How long the server may take to accept a connection, or to acknowledge sent data.
const CONNECT: Duration = Duration::from_secs(3);
const UNHEARD: Duration = Duration::from_secs(30);

/// How long to retry the first connection: a wrong name should be reported soon.
const OPENING: Duration = Duration::from_secs(5);

/// Time without traffic before TCP keepalive probes the server, and how many probes may fail.
const ALIVE_AFTER: Duration = Duration::from_secs(10);
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const ALIVE_TRIES: u32 = 3;

/// The settings of each session.
///
/// Names are looked up one by one in the index. With a few names among many coins, and a table of changes without
/// statistics on the server, no other plan is ever better, and another could scan all coins. A vanished
/// client is detected soon, so that its lease and locks are released. Acknowledged data is on the disk.
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

/// Looks coins up. Returns the coins found, each with its place in the request.
const LOOK_UP: &str = "\
SELECT wanted.place, coins.coin
FROM unnest($1::bytea[]) WITH ORDINALITY AS wanted (outpoint, place)
JOIN coins ON coins.outpoint = wanted.outpoint";

/// A connection with its prepared statements.
pub(super) struct PostgresSession {
    pub(super) client: Client,
    look_up: Option<Statement>,
}

impl PostgresSession {
    /// The prepared look-up statement.
    pub(super) fn look_up(&mut self) -> Result<Statement, ::postgres::Error> {
        if self.look_up.is_none() {
            self.look_up = Some(self.client.prepare(LOOK_UP)?);
        }
        Ok(self.look_up.clone().expect("it was prepared above"))
    }
}

/// A pool of connections to a store's server.
pub(super) struct PostgresConnections {
    config: Config,
    tls: Option<TlsConnector>,
    /// The server's Unix socket, if it is reached through one.
    socket: Option<SocketConnector>,
    idle: Mutex<Vec<PostgresSession>>,
    place: String,
    schema: String,
    absence: Absence,
}

impl PostgresConnections {
    /// Makes the first connection. For writers, `attrs` excludes read-only servers.
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
            .ssl_mode(if is_socket(&place.host) { SslMode::Disable } else { SslMode::Require });
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
            socket: is_socket(&place.host).then(|| SocketConnector {
                socket: Path::new(&place.host).join(format!(".s.PGSQL.{}", place.port)),
            }),
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

    /// The store's name in errors.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The schema's name. It needs quotes but no escapes: it has letters, digits, - and _.
    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    /// The retry budget of a call that does its own retries.
    pub(super) fn patience(&self) -> RetryBudget<'_> {
        self.absence.patience()
    }

    /// Performs an idempotent operation, and retries it while the server is unavailable.
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

    /// Pauses if an error may be temporary and the retry budget is not used up. Otherwise returns the store's
    /// error.
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
        Err(patience.is_over(&self.place, message_of(error)))
    }

    /// Performs an operation once.
    fn once<T>(
        &self,
        mut act: impl FnMut(&mut PostgresSession) -> Result<T, ::postgres::Error>,
    ) -> Result<T, ::postgres::Error> {
        let kept = self.idle.lock().pop();
        let mut session = kept.map_or_else(|| self.connect(), Ok)?;
        let done = act(&mut session)?;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
        Ok(done)
    }

    /// Makes a new connection.
    pub(super) fn connect(&self) -> Result<PostgresSession, ::postgres::Error> {
        let mut client = match &self.tls {
            Some(tls) => self.config.connect(tls.clone())?,
            None => match &self.socket {
                Some(socket) => self.config.connect(socket.clone())?,
                None => self.config.connect(PlainConnector)?,
            },
        };
        client.batch_execute(SESSION)?;
        client.batch_execute(&format!("SET search_path = \"{}\"", self.schema))?;
        Ok(PostgresSession { client, look_up: None })
    }

    /// Fails if the server may lose data when its machine stops.
    pub(super) fn expect_durable(&self) -> Result<(), StoreError> {
        const ASK: &str = "\
SELECT name FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name";
        let off: Vec<String> = self.run(|session| {
            let rows = session.client.query(ASK, &[])?;
            rows.iter().map(|row| row.try_get(0)).collect()
        })?;
        match &off[..] {
            [] => Ok(()),
            off => Err(StoreError::io(
                &self.place,
                format!(
                    "the server could lose or corrupt coins when its machine stops: set {} to on",
                    off.join(" and ")
                ),
            )),
        }
    }
}

/// Performs an operation with this limit on the server's silence. Returns when the server was last heard.
pub(super) fn listen<T>(limit: Duration, act: impl FnOnce() -> T) -> (T, Instant) {
    let listening = retry::within(limit);
    let done = act();
    (done, listening.heard())
}

/// Configures TLS with the certificates that the system trusts.
fn tls(place: &str) -> Result<MakeRustlsConnect, StoreError> {
    let failed = |error: String| StoreError::io(place, error);
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "there are none".into(), ToString::to_string);
        return Err(failed(format!(
            "this system trusts no certificates ({why}): install its CA certificates package, or set \
             SSL_CERT_FILE to a file of certificates"
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

/// Returns true if an error may be temporary.
pub(super) fn passes(error: &::postgres::Error) -> bool {
    let Some(code) = error.code() else {
        // Not a server message: the connection ended, or was never established. An untrusted certificate will
        // stay untrusted.
        return error.is_closed() || has_io_error(error) && !is_tls(error);
    };
    // Error classes: connection exceptions, transaction rollbacks to retry, and server shutdown.
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

/// The causes of an error.
fn causes<'a>(error: &'a ::postgres::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// The text of an error, with its causes.
fn message_of(error: &::postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} ({})", error.message(), error.code().code()),
        None => causes(error).fold(error.to_string(), |text, cause| format!("{text}: {cause}")),
    }
}

/// The store's error for this failure, with a remedy.
pub(super) fn failed(place: &str, error: &::postgres::Error) -> StoreError {
    let message = message_of(error);
    let code = error.code();
    let is = |states: &[SqlState]| code.is_some_and(|code| states.contains(code));
    let wants_password = message.contains("password missing");
    let what = if wants_password
        || is(&[SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION])
    {
        "set APUS_COINS_PASSWORD, or --coins-password-file, to this user's password on the server"
    } else if is(&[SqlState::INVALID_CATALOG_NAME]) {
        "create the database with createdb, or use another database"
    } else if is(&[SqlState::INSUFFICIENT_PRIVILEGE]) {
        "GRANT CREATE, TEMPORARY ON DATABASE to this user, or use a store that this user owns"
    } else if is(&[SqlState::DISK_FULL, SqlState::OUT_OF_MEMORY]) {
        "free disk space or memory on the server"
    } else if is_tls(error) {
        WHOM_TO_TRUST
    } else if code.is_none() {
        "check that its server runs and can be reached from here"
    } else {
        "check its server's log"
    };
    StoreError::io(place, format!("{message}: {what}"))
}
