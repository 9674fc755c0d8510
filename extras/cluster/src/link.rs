//! [`Link`]: the connection to the queue, and what is asked of it over and over.

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

/// A server that takes longer is away.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// A server that is not there when the program starts is waited for so long.
const START_WAIT: Duration = Duration::from_secs(4);

/// A server that does not say in so long whom it lets in is passed over.
const DOOR_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that was away is looked for again so often.
const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct Link {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) objects: Objects,
    pub(crate) key: ClusterKey,
    /// Servers on this machine that let in whoever comes.
    pub(crate) open_servers: Vec<String>,
    /// How often a connection was made.
    connections: Arc<AtomicU64>,
}

/// Whether a server may be there in a moment.
fn is_absent(error: &ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::Io | ConnectErrorKind::TimedOut)
}

/// What to do about a server that cannot be used.
fn advice(error: &ConnectError) -> &'static str {
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            "have it let in those who have this machine's key (apus cluster nats-conf prints the settings), or give \
             its credentials by --nats-creds"
        }
        _ => "see that the NATS server runs there",
    }
}

/// The servers that let in one who shows nothing.
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

/// Servers off this machine have to look who comes: an error for people.
fn expect_closed(open: &[ServerAddr]) -> Result<(), LinkError> {
    match open.iter().find(|server| !is_loopback(server.host())) {
        Some(server) => Err(LinkError::Usage(format!(
            "--nats: the server at {} lets in whoever reaches it, who can end runs there: start it with the settings that \
             `apus cluster nats-conf` prints (nats-server -c FILE), or with credentials of its own, which --nats-creds names",
            server.host()
        ))),
        None => Ok(()),
    }
}

/// Something that may be worth another try.
pub(crate) fn away(error: impl Display) -> QueueError {
    let said = error.to_string();
    // So the client shows that a server said no more than a number.
    let said = said.strip_suffix(", None").unwrap_or(&said);
    QueueError::Away(format!("NATS: {said}"))
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
                // It may be about to start.
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
                "the server keeps no streams: start it with JetStream (nats-server -js)".to_owned(),
            ));
        }
        let open = runtime.block_on(open_servers(&servers, options.ca.as_deref()));
        expect_closed(&open)?;
        let open_servers = open.iter().map(|server| server.host().to_owned()).collect();
        runtime.block_on(objects.try_out())?;
        // It begins a task of its own.
        let inside = runtime.enter();
        let mut context = async_nats::jetstream::new(client.clone());
        drop(inside);
        context.set_timeout(ASK_TIMEOUT);
        let key = options.key.clone();
        Ok(Self { runtime, client, context, objects, key, open_servers, connections })
    }

    /// How often a connection was made: a server that was killed has lost what it had not written, and a request
    /// need not have failed meanwhile.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits for something.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn object(&self, run: &RunId, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.wait(self.objects.get(run, of))
    }

    /// Waits until all that was said is on its way: no longer than for an answer, since a client goes on looking for servers
    /// that are gone.
    pub(crate) async fn flush(&self) -> Result<(), QueueError> {
        match tokio::time::timeout(ASK_TIMEOUT, self.client.flush()).await {
            Ok(flushed) => flushed.map_err(away),
            Err(_) => Err(away("the server does not answer")),
        }
    }

    /// A stream that is there or not.
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

    /// Stores a message unless one is there; says whether it was stored.
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

    /// Stores a message; false where one was to be the first and is not.
    async fn send(&self, subject: String, message: PublishMessage) -> Result<bool, QueueError> {
        let sent = async { self.context.send_publish(subject, message).await?.await };
        match sent.await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                PublishErrorKind::WrongLastSequence => Ok(false),
                // A cluster of servers says it so.
                _ if says_wrong_sequence(&error) => Ok(false),
                PublishErrorKind::MaxPayloadExceeded => {
                    Err(QueueError::Refused(format!("NATS: {error}")))
                }
                _ => Err(away(chain(&error))),
            },
        }
    }

    /// The description of a run, if it is going on, and where it stands in the stream of runs.
    pub(crate) async fn spec(&self, run: &RunId) -> Result<Option<StreamMessage>, QueueError> {
        match self.stream(names::RUNS).await? {
            Some(stream) => last(&stream, &names::run(run)).await,
            None => Ok(None),
        }
    }
}

/// The last message of a subject.
pub(crate) async fn last(
    stream: &Stream,
    subject: &str,
) -> Result<Option<StreamMessage>, QueueError> {
    found(stream.get_last_raw_message_by_subject(subject).await)
}

/// The message of a sequence.
pub(crate) async fn at(
    stream: &Stream,
    sequence: u64,
) -> Result<Option<StreamMessage>, QueueError> {
    found(stream.get_raw_message(sequence).await)
}

/// The first message of some subjects from a sequence on.
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

/// Whether an error is the one of a stream that has another last message than was said.
fn says_wrong_sequence(error: &dyn std::error::Error) -> bool {
    let source = error.source().and_then(|it| it.downcast_ref::<async_nats::jetstream::Error>());
    source.is_some_and(|it| it.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}
