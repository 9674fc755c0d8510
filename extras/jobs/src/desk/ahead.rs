//! [`AnswersAhead`]: answers that came, of which what they name is fetched meanwhile.
//!
//! To read what a machine left, and to hash it, takes longer than all else that is done here for a job. Threads do that, and
//! the [`Desk`] takes answers in the order in which they came.

use super::{Desk, Useless};
use crate::queue::{AnswerBytes, AnswerKind, JobAnswer, JobQueue, ObjectRef};
use apus_sync::error::{IoError, SyncError};
use apus_sync::request::Request;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};
use std::time::Duration;

/// So many threads fetch at most. Each object that waits for its turn takes some megabytes, and there are no more of
/// them.
const FETCHERS_MAX: usize = 8;

/// An object, or why there is none.
type Got = Result<Vec<u8>, Useless>;

/// An object that is to be fetched, and where it goes.
struct WantedObject {
    object: ObjectRef,
    to: SyncSender<Got>,
}

/// Threads that fetch objects, as long as this is there.
pub(super) struct Fetchers {
    wanted: Sender<WantedObject>,
    count: usize,
}

impl Fetchers {
    /// As many as the run may have threads.
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
                    // Where the desk has gone none waits for it.
                    let _ = to.send(Desk::object(queue, request, &object));
                }
            };
            let spawned = Builder::new().name(format!("fetch-{number}")).spawn_scoped(scope, fetch);
            spawned.map_err(|error| SyncError::Io(IoError::Threads { wanted: count, error }))?;
        }
        Ok(Self { wanted, count })
    }

    /// Has an object fetched.
    fn fetch(&self, object: ObjectRef) -> Receiver<Got> {
        let (to, got) = sync_channel(1);
        // The threads end after this.
        let _ = self.wanted.send(WantedObject { object, to });
        got
    }
}

fn next(wanted: &Mutex<Receiver<WantedObject>>) -> Option<WantedObject> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// An answer, and the object that it names on its way.
pub(super) struct Coming {
    pub(super) bytes: AnswerBytes,
    object: Option<(ObjectRef, Receiver<Got>)>,
}

/// An object that was fetched.
pub(super) type Fetched = Option<(ObjectRef, Got)>;

impl Coming {
    /// One whose object is fetched when it is needed.
    pub(super) fn alone(bytes: AnswerBytes) -> Self {
        Self { bytes, object: None }
    }

    /// Waits for the object.
    pub(super) fn wait(self) -> (AnswerBytes, Fetched) {
        let fetched = |(of, got): (ObjectRef, Receiver<Got>)| Some((of, got.recv().ok()?));
        (self.bytes, self.object.and_then(fetched))
    }
}

/// See the module. Those that a step leaves are the next one's.
#[derive(Default)]
pub(super) struct AnswersAhead(VecDeque<Coming>);

impl Desk<'_> {
    /// The next answer. The queue is asked for those behind it, too, as many as are fetched at a time.
    pub(super) fn answer(
        &mut self,
        wait: Duration,
        fetchers: &Fetchers,
    ) -> Result<Option<Coming>, SyncError> {
        while self.ahead.0.len() <= fetchers.count {
            let wait = if self.ahead.0.is_empty() { wait } else { Duration::ZERO };
            let Some(bytes) = self.ask(|| self.queue.answer(wait))? else { break };
            let object = self.named(&bytes).map(|object| (object, fetchers.fetch(object)));
            self.ahead.0.push_back(Coming { bytes, object });
        }
        Ok(self.ahead.0.pop_front())
    }

    /// The object that an answer names, if it is waited for.
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
