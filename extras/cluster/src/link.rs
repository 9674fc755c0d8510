//! [`Link`]: the connection to the queue, and its common requests.

use crate::key::ClusterKey;
use crate::names;
use crate::objects::Objects;
use crate::options::{LinkError, LinkOptions, chain, is_loopback};
use apus_jobs::{ObjectRef, QueueError, RunId};
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Timeout of a request, after which the server counts as unreachable.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// How long to wait for a server at the start of the program.
const START_WAIT: Duration = Duration::from_secs(4);

/// Timeout of the check whether a server accepts any client; after it, the server is skipped.
const DOOR_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum interval between two attempts to reconnect.
const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// The connection to the queue.
pub(crate) struct Link {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) objects: Objects,
    pub(crate) key: ClusterKey,
    /// Servers on this machine that accept any client.
    pub(crate) open_servers: Vec<String>,
    /// Number of connections made so far.
    connections: Arc<AtomicU64>,
}

/// Whether the server may be about to start.
fn is_absent(error: &ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::Io | ConnectErrorKind::TimedOut)
}

/// How to fix a failed connection.
fn advice(error: &ConnectError) -> &'static str {
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            "configure the server to accept this machine's key (`apus cluster nats-conf` prints the settings), or pass \
             its credentials with --nats-creds"
        }
        _ => "check that the NATS server is running there",
    }
}

/// The servers that accept a client without credentials.
async fn open_servers(servers: &[ServerAddr], ca: Option<&Path>) -> Vec<ServerAddr> {
    let mut open = Vec::new();
    for server in servers {
        let mut stranger = ConnectOptions::new().connection_timeout(DOOR_TIMEOUT);
        if let Some(ca) = ca {
            stranger = stranger.add_root_certificates(ca.to_owned());
        }
        let connect = tokio::time::timeout(DOOR_TIMEOUT, stranger.connect(server.clone()));
        if matches!(connect.await, Ok(Ok(_))) {
            open.push(server.clone());
        }
    }
    open
}

/// Fails if a server on another machine accepts any client.
fn expect_closed(open: &[ServerAddr]) -> Result<(), LinkError> {
    match open.iter().find(|server| !is_loopback(server.host())) {
        Some(server) => Err(LinkError::Usage(format!(
            "--nats: the server at {} accepts any client, and any client can end runs there. Start the server with \
             the settings of `apus cluster nats-conf` (nats-server -c FILE -js), or with its own credentials, and \
             pass those with --nats-creds FILE",
            server.host()
        ))),
        None => Ok(()),
    }
}

/// A temporary error: the caller should retry.
pub(crate) fn away(error: impl Display) -> QueueError {
    let text = error.to_string();
    // The client adds this suffix if a server replied with only a number.
    let text = text.strip_suffix(", None").unwrap_or(&text);
    QueueError::Away(format!("NATS: {text}"))
}

impl Link {
    /// Connects.
    pub(crate) fn connect(options: &LinkOptions, name: &str) -> Result<Self, LinkError> {
        let servers = options.servers()?;
        let failed = |what: String| LinkError::Server { url: options.nats.clone(), what };
        let objects =
            options.objects.as_deref().map_or_else(|| Ok(Objects::none()), Objects::open)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime =
            runtime.map_err(|error| LinkError::Usage(format!("cannot start threads: {error}")))?;
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        let client = runtime.block_on(async {
            let mut connect = ConnectOptions::new()
                .name(name)
                .request_timeout(Some(ASK_TIMEOUT))
                .event_callback(move |event| {
                    if matches!(event, async_nats::Event::Connected) {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    std::future::ready(())
                })
                .reconnect_delay_callback(|attempts| {
                    RECONNECT_MAX.min(Duration::from_millis(20 << attempts.min(8)))
                });
            connect = match &options.creds {
                Some(creds) => connect.credentials_file(creds).await.map_err(|error| {
                    LinkError::Usage(format!("--nats-creds {}: {error}", creds.display()))
                })?,
                None => connect.nkey(options.key.login_seed()),
            };
            if let Some(ca) = &options.ca {
                connect = connect.add_root_certificates(ca.clone());
            }
            let began = Instant::now();
            loop {
                // Retry: the server may be about to start.
                match connect.clone().connect(&servers[..]).await {
                    Err(error) if is_absent(&error) && began.elapsed() < START_WAIT => {
                        tokio::time::sleep(RECONNECT_MAX).await;
                    }
                    other => {
                        return other.map_err(|error| {
                            failed(format!("{}: {}", chain(&error), advice(&error)))
                        });
                    }
                }
            }
        })?;
        if !client.server_info().jetstream {
            return Err(failed(
                "the server has no JetStream. Start it with JetStream (nats-server -js)".to_owned(),
            ));
        }
        let open = runtime.block_on(open_servers(&servers, options.ca.as_deref()));
        expect_closed(&open)?;
        let open_servers = open.iter().map(|server| server.host().to_owned()).collect();
        runtime.block_on(objects.try_out())?;
        // The context spawns a task, which needs the runtime.
        let inside = runtime.enter();
        let mut context = async_nats::jetstream::new(client.clone());
        drop(inside);
        context.set_timeout(ASK_TIMEOUT);
        let key = options.key.clone();
        Ok(Self { runtime, client, context, objects, key, open_servers, connections })
    }

    /// Number of connections made so far. A change shows that a server may have been killed and lost what it had not
    /// written, even if no request failed.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits for a future.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn object(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.wait(self.objects.get(run, of))
    }

    /// Waits until all messages are sent, at most [`ASK_TIMEOUT`], since the client never stops reconnecting to servers
    /// that are gone.
    pub(crate) async fn flush(&self) -> Result<(), QueueError> {
        match tokio::time::timeout(ASK_TIMEOUT, self.client.flush()).await {
            Ok(flushed) => flushed.map_err(away),
            Err(_) => Err(away("the server does not answer")),
        }
    }

    /// A stream, if it exists.
    pub(crate) async fn stream(&self, name: &str) -> Result<Option<Stream>, QueueError> {
        use async_nats::jetstream::context::GetStreamErrorKind;
        match self.context.get_stream(name).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                _ => Err(away(error)),
            },
        }
    }

    /// Stores a message unless its subject has one; returns whether it was stored.
    pub(crate) async fn publish_first(
        &self,
        subject: String,
        message: &[u8],
    ) -> Result<bool, QueueError> {
        let message = self.sealed(&subject, message).expected_last_subject_sequence(0);
        self.send(subject, message).await
    }

    /// Stores a message.
    pub(crate) async fn publish(&self, subject: String, message: &[u8]) -> Result<(), QueueError> {
        let message = self.sealed(&subject, message);
        self.send(subject, message).await.map(drop)
    }

    fn sealed(&self, subject: &str, message: &[u8]) -> PublishMessage {
        PublishMessage::build().payload(self.key.seal(subject, message).into())
    }

    /// Stores a message; returns false if it must be the first of its subject and is not.
    async fn send(&self, subject: String, message: PublishMessage) -> Result<bool, QueueError> {
        let sent = async { self.context.send_publish(subject, message).await?.await };
        match sent.await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                PublishErrorKind::WrongLastSequence => Ok(false),
                // A cluster of servers reports the wrong sequence number in another way.
                _ if says_wrong_sequence(&error) => Ok(false),
                PublishErrorKind::MaxPayloadExceeded => {
                    Err(QueueError::Refused(format!("NATS: {error}")))
                }
                _ => Err(away(chain(&error))),
            },
        }
    }

    /// The message with the description of a run, unless the run has ended.
    pub(crate) async fn spec(&self, run: &RunId) -> Result<Option<StreamMessage>, QueueError> {
        match self.stream(names::RUNS).await? {
            Some(stream) => last(&stream, &names::run(run)).await,
            None => Ok(None),
        }
    }

    /// Removes a run from the queue. Removes its description first, so that the server overwrites its bytes, which
    /// contain the secret.
    pub(crate) async fn remove_run(&self, run: &RunId) -> Result<(), QueueError> {
        if let (Some(spec), Some(runs)) = (self.spec(run).await?, self.stream(names::RUNS).await?) {
            runs.delete_message(spec.sequence).await.map(drop).map_err(away)?;
        }
        for name in [names::jobs_stream(run), names::answers_stream(run)] {
            if self.stream(&name).await?.is_some() {
                self.context.delete_stream(name).await.map(drop).map_err(away)?;
            }
        }
        Ok(())
    }
}

/// The last message of a subject.
pub(crate) async fn last(
    stream: &Stream,
    subject: &str,
) -> Result<Option<StreamMessage>, QueueError> {
    found(stream.get_last_raw_message_by_subject(subject).await)
}

/// The message with a sequence number.
pub(crate) async fn at(
    stream: &Stream,
    sequence: u64,
) -> Result<Option<StreamMessage>, QueueError> {
    found(stream.get_raw_message(sequence).await)
}

/// The first message of these subjects at or after a sequence number.
pub(crate) async fn from(
    stream: &Stream,
    subjects: &str,
    sequence: u64,
) -> Result<Option<StreamMessage>, QueueError> {
    found(stream.get_first_raw_message_by_subject(subjects, sequence).await)
}

fn found(
    result: Result<StreamMessage, async_nats::jetstream::stream::RawMessageError>,
) -> Result<Option<StreamMessage>, QueueError> {
    match result {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(away(error)),
    }
}

/// Whether an error means that the stream's last message is not the expected one.
fn says_wrong_sequence(error: &dyn std::error::Error) -> bool {
    let source = error.source().and_then(|it| it.downcast_ref::<async_nats::jetstream::Error>());
    source.is_some_and(|it| it.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}
