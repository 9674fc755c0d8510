//! [`AnswersAhead`]: answers whose objects are being fetched.
//!
//! Reading and hashing a result takes longer than all other work of the coordinator on a job. So threads fetch the
//! results, while the [`Scheduler`] handles the answers in order of arrival.

use super::{AnswerError, Scheduler};
use crate::queue::{AnswerBytes, AnswerKind, JobAnswer, JobQueue, ObjectRef};
use apus_sync::error::{IoError, SyncError};
use apus_sync::request::Request;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};
use std::time::Duration;

/// Maximum number of fetching threads. It also bounds the memory: each waiting object takes some MB, and there are
/// about as many as threads.
const FETCHERS_MAX: usize = 8;

/// An object, or why it cannot be read.
type ObjectResult = Result<Vec<u8>, AnswerError>;

/// An object to fetch, and the channel to send it to.
struct WantedObject {
    object: ObjectRef,
    to: SyncSender<ObjectResult>,
}

/// Threads that fetch objects; they end when this is dropped.
pub(super) struct Fetchers {
    wanted: Sender<WantedObject>,
    count: usize,
}

impl Fetchers {
    /// Starts as many threads as the run may have, up to [`FETCHERS_MAX`].
    pub(super) fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        queue: &'scope dyn JobQueue,
        request: &'scope Request<'_>,
    ) -> Result<Self, SyncError> {
        let count = request.env.threads.clamp(1, FETCHERS_MAX);
        let (wanted, receive) = channel();
        let receive = Arc::new(Mutex::new(receive));
        for number in 0..count {
            let receive = Arc::clone(&receive);
            let fetch = move || {
                while let Some(WantedObject { object, to }) = next(&receive) {
                    // If the scheduler is gone, the object is not needed.
                    let _ = to.send(Scheduler::object(queue, request, &object));
                }
            };
            let spawned = Builder::new().name(format!("fetch-{number}")).spawn_scoped(scope, fetch);
            spawned.map_err(|error| SyncError::Io(IoError::Threads { wanted: count, error }))?;
        }
        Ok(Self { wanted, count })
    }

    /// Starts to fetch an object.
    fn fetch(&self, object: ObjectRef) -> Receiver<ObjectResult> {
        let (to, got) = sync_channel(1);
        // Sending cannot fail: the threads outlive this.
        let _ = self.wanted.send(WantedObject { object, to });
        got
    }
}

fn next(wanted: &Mutex<Receiver<WantedObject>>) -> Option<WantedObject> {
    wanted.lock().recv().ok()
}

/// An answer whose object is being fetched.
pub(super) struct PendingAnswer {
    pub(super) bytes: AnswerBytes,
    object: Option<(ObjectRef, Receiver<ObjectResult>)>,
}

/// An object that was fetched.
pub(super) type FetchedObject = Option<(ObjectRef, ObjectResult)>;

impl PendingAnswer {
    /// An answer whose object is fetched when it is needed.
    pub(super) fn alone(bytes: AnswerBytes) -> Self {
        Self { bytes, object: None }
    }

    /// Waits for the object.
    pub(super) fn wait(self) -> (AnswerBytes, FetchedObject) {
        let fetched = |(of, got): (ObjectRef, Receiver<ObjectResult>)| Some((of, got.recv().ok()?));
        (self.bytes, self.object.and_then(fetched))
    }
}

/// Answers whose objects are being fetched, in order of arrival. The next step handles the answers that a step leaves
/// here.
#[derive(Default)]
pub(super) struct AnswersAhead(VecDeque<PendingAnswer>);

impl Scheduler<'_> {
    /// Returns the next answer. Reads ahead as many answers as there are threads to fetch their objects.
    pub(super) fn answer(
        &mut self,
        wait: Duration,
        fetchers: &Fetchers,
    ) -> Result<Option<PendingAnswer>, SyncError> {
        while self.ahead.0.len() <= fetchers.count {
            let wait = if self.ahead.0.is_empty() { wait } else { Duration::ZERO };
            let Some(bytes) = self.ask(|| self.queue.answer(wait))? else { break };
            let object = self.named(&bytes).map(|object| (object, fetchers.fetch(object)));
            self.ahead.0.push_back(PendingAnswer { bytes, object });
        }
        Ok(self.ahead.0.pop_front())
    }

    /// Returns the object that an answer names, if the scheduler waits for it.
    fn named(&self, bytes: &AnswerBytes) -> Option<ObjectRef> {
        let is_wanted = !bytes.audit
            && self.out.contains_key(&bytes.key)
            && !self.counted.contains_key(&bytes.key);
        let answer = is_wanted.then(|| JobAnswer::from_bytes(&bytes.message, self.run).ok())??;
        match answer.kind {
            AnswerKind::Done { result, .. } => Some(result),
            _ => None,
        }
    }
}
