//! [`LeasedJob`]: a job leased to this machine.

use crate::beat::InWork;
use crate::link::{Link, away, last};
use crate::names;
use apus_jobs::{JobCopy, JobKey, JobLease, ObjectPart, ObjectRef, QueueError, RunId};
use async_nats::jetstream::message::{AckKind, Acker, Message};
use async_nats::jetstream::stream::Stream;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of heartbeats within the requeue timeout of a job.
const BEATS: u32 = 4;

/// Heartbeats stop if reading or writing an object takes longer than this.
const OBJECT_MAX: Duration = Duration::from_secs(600);

/// Bytes of an object, shared because a retry needs them again.
struct SharedBytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The run that this machine takes jobs from.
pub(crate) struct Place<'w> {
    pub(crate) link: &'w Link,
    /// The name of this machine.
    pub(crate) name: &'w str,
    pub(crate) run: RunId,
    pub(crate) answers: Stream,
    /// A job is requeued after this time without a heartbeat.
    pub(crate) ack_wait: Duration,
    pub(crate) doing: Arc<Mutex<InWork>>,
}

impl Place<'_> {
    /// Whether the run has ended. A server without any runs has lost its data: then the coordinator announces the run
    /// again.
    pub(crate) async fn is_over(&self) -> Result<bool, QueueError> {
        match self.link.stream(names::RUNS).await? {
            Some(runs) => Ok(last(&runs, &names::run(&self.run)).await?.is_none()),
            None => Ok(false),
        }
    }
}

/// A job leased to this machine.
pub(crate) struct LeasedJob<'r> {
    place: &'r Place<'r>,
    message: Vec<u8>,
    copy: JobCopy,
    deliveries: u64,
    acker: Arc<Acker>,
    number: u64,
    beaten: Mutex<Instant>,
    /// Objects stored for the job.
    put: Mutex<Vec<ObjectRef>>,
}

impl<'r> LeasedJob<'r> {
    /// Leases the job in a message.
    pub(crate) fn new(place: &'r Place<'_>, message: Message, job: Vec<u8>) -> Self {
        let deliveries = message.info().map_or(1, |info| info.delivered);
        let (message, acker) = message.split();
        let (key, copy) = (names::key_of(&message.subject), names::copy_of(&message.subject));
        Self {
            place,
            message: job,
            copy,
            deliveries: u64::try_from(deliveries).unwrap_or(1),
            acker: Arc::new(acker),
            number: place.doing.lock().begin(key),
            beaten: Mutex::new(Instant::now()),
            put: Mutex::default(),
        }
    }

    /// Removes the objects stored for the job.
    async fn remove_put(&self) -> Result<(), QueueError> {
        loop {
            let Some(of) = self.put.lock().last().copied() else { return Ok(()) };
            self.place.link.objects.remove(&self.place.run, &of).await?;
            self.put.lock().pop();
        }
    }

    /// Sends heartbeats until a future is ready or takes too long.
    async fn living<T>(&self, what: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let mut what = std::pin::pin!(what);
        loop {
            let wait = self.place.ack_wait / BEATS;
            if let Ok(value) = tokio::time::timeout(wait, &mut what).await {
                return value;
            }
            if began.elapsed() < OBJECT_MAX {
                // A failed heartbeat is followed by the next.
                let _ = self.acker.ack_with(AckKind::Progress).await;
            }
        }
    }
}

impl Drop for LeasedJob<'_> {
    fn drop(&mut self) {
        self.place.doing.lock().end(self.number);
    }
}

impl JobLease for LeasedJob<'_> {
    fn message(&self) -> &[u8] {
        &self.message
    }

    fn deliveries(&self) -> u64 {
        match self.copy {
            JobCopy::First => self.deliveries,
            // Deliveries of a copy do not count, because machines pass on copies meant for others. At least 2, because
            // the job may be answered already.
            JobCopy::Again | JobCopy::Audit => self.deliveries.clamp(2, 3),
        }
    }

    fn alive(&self) {
        self.place.doing.lock().block(self.number);
        let mut beaten = self.beaten.lock();
        if beaten.elapsed() >= self.place.ack_wait / BEATS {
            *beaten = Instant::now();
            let acker = Arc::clone(&self.acker);
            // Send in the background, so that the walk over blocks does not wait.
            self.place.link.runtime.spawn(async move {
                let _ = acker.ack_with(AckKind::Progress).await;
            });
        }
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let link = self.place.link;
        link.wait(self.living(link.objects.get(&self.place.run, of)))
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        let link = self.place.link;
        link.wait(self.living(link.objects.parts(&self.place.run, parts)))
    }

    fn put_object(&self, of: &ObjectRef, bytes: &Arc<Vec<u8>>) -> Result<(), QueueError> {
        let link = self.place.link;
        let bytes = Bytes::from_owner(SharedBytes(Arc::clone(bytes)));
        // It may be stored even if that is reported as failed.
        self.put.lock().push(*of);
        link.wait(self.living(link.objects.put(&self.place.run, of, bytes)))
    }

    fn is_over(&self) -> bool {
        self.place.link.wait(async {
            let is_over = self.place.is_over().await.unwrap_or(false);
            if is_over {
                // The objects came too late to be removed with the run. Leftover objects only take space.
                let _ = self.remove_put().await;
            }
            is_over
        })
    }

    fn is_answered(&self, key: JobKey) -> Result<bool, QueueError> {
        let place = self.place;
        let subject = names::answer(&place.run, key, self.copy);
        place.link.wait(async {
            match last(&place.answers, &subject).await {
                // The stream is removed with the run.
                Err(_) if place.is_over().await? => Ok(true),
                other => Ok(other?.is_some()),
            }
        })
    }

    fn answer(&self, key: JobKey, message: &[u8]) -> Result<(), QueueError> {
        let place = self.place;
        let subject = names::answer(&place.run, key, self.copy);
        place.link.wait(async {
            // If there is an answer already, the job is done as well.
            match self.living(place.link.publish_first(subject, message)).await {
                // The objects came too late to be removed with the run.
                Err(_) if place.is_over().await? => self.remove_put().await,
                other => other.map(drop),
            }
        })?;
        place.doing.lock().answered();
        self.done()
    }

    fn done(&self) -> Result<(), QueueError> {
        // If the acknowledgement is lost, the job is offered again and found to be answered.
        let _ = self.place.link.wait(self.acker.double_ack_with(AckKind::Ack));
        Ok(())
    }

    fn give_back(
        &self,
        after: Duration,
        trouble: Option<(JobKey, &[u8])>,
    ) -> Result<(), QueueError> {
        let place = self.place;
        place.link.wait(async {
            if let Some((key, message)) = trouble {
                let subject = names::trouble(&place.run, key, place.name);
                match place.link.publish(subject, message).await {
                    Err(_) if place.is_over().await? => return self.remove_put().await,
                    other => other?,
                }
            }
            let after = Some(after).filter(|after| !after.is_zero());
            self.acker.ack_with(AckKind::Nak(after)).await.map_err(away)?;
            // Flush, because the process may end at once.
            place.link.flush().await
        })
    }
}
