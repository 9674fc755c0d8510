//! [`Altered`]: a worker machine in this process that behaves like the program, except for one thing.

use crate::cluster::world::World;
use apus_cluster::{JoinedRun, LinkOptions, RunSeen, Worker};
use apus_jobs::{
    JobKey, JobLease, JobOffer, Jobs, ObjectPart, ObjectRef, QueueError, WorkBlocks, WorkDone,
    WorkRequest, work,
};
use apus_sync::{SilentObserver, SyncError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How a machine deviates from the program's behaviour.
pub(crate) trait Alters: Sync {
    /// May change an object's bytes before the machine stores them.
    fn put(&self, _bytes: &mut [u8]) {}

    /// Called before the machine answers a job.
    fn answer(&self, _lease: &dyn JobLease, _key: JobKey) {}
}

/// The options for reaching queue and objects.
pub(crate) fn link(world: &World) -> LinkOptions {
    let objects = Some(world.sandbox.path("objects").display().to_string());
    LinkOptions { nats: world.server.url(), key: World::key(), creds: None, ca: None, objects }
}

/// Connects a worker of this process to the queue.
pub(crate) fn machine(world: &World, name: &str) -> Worker {
    Worker::connect(&link(world), Some(name)).unwrap()
}

/// Waits for a run; returns the newest.
pub(crate) fn newest(worker: &Worker) -> RunSeen {
    loop {
        if let Some(seen) = worker.runs().unwrap().into_iter().next() {
            return seen;
        }
    }
}

/// Lets an altered machine work on the newest run while `other` runs; returns both results.
pub(crate) fn with_altered<T>(
    world: &World,
    name: &str,
    alters: &dyn Alters,
    then: impl FnOnce() -> T,
) -> (T, Result<WorkDone, SyncError>) {
    let worker = machine(world, name);
    let altered = Altered { joined: worker.join(&newest(&worker)).unwrap().unwrap(), alters };
    let interrupt = AtomicBool::new(false);
    let request = WorkRequest {
        blocks: WorkBlocks::Folder(world.sandbox.path("blocks")),
        outside: None,
        scratch: world.sandbox.path("scratch"),
        memory_bytes: 64 << 20,
        threads: 1,
        now: 1_900_000_000,
        signatures: &Arc::default(),
        observer: &SilentObserver,
        interrupt: &interrupt,
    };
    std::thread::scope(|scope| {
        let works = scope.spawn(|| work(&request, &altered));
        let _ends = EndsWithTest(&interrupt);
        (then(), works.join().unwrap())
    })
}

/// Interrupts the machine if the test fails, so that nothing waits for it.
struct EndsWithTest<'i>(&'i AtomicBool);

impl Drop for EndsWithTest<'_> {
    fn drop(&mut self) {
        self.0.store(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// A queue that behaves differently in one way.
struct Altered<'a> {
    joined: JoinedRun<'a>,
    alters: &'a dyn Alters,
}

struct AlteredLease<'l> {
    lease: Box<dyn JobLease + 'l>,
    alters: &'l dyn Alters,
    /// Old and new names of changed objects.
    renamed: Mutex<Vec<[ObjectRef; 2]>>,
}

/// An object's name as in messages (`extras/jobs/src/queue`).
pub(crate) fn named(of: &ObjectRef) -> Vec<u8> {
    [&of.digest[..], &of.bytes.to_le_bytes()].concat()
}

impl Jobs for Altered<'_> {
    fn spec(&self) -> &[u8] {
        self.joined.spec()
    }

    fn name(&self) -> &str {
        self.joined.name()
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.joined.object(of)
    }

    fn take(&self, wait: Duration) -> Result<JobOffer<'_>, QueueError> {
        Ok(match self.joined.take(wait)? {
            JobOffer::Job(lease) => JobOffer::Job(Box::new(AlteredLease {
                lease,
                alters: self.alters,
                renamed: Mutex::default(),
            })),
            other => other,
        })
    }
}

impl JobLease for AlteredLease<'_> {
    fn message(&self) -> &[u8] {
        self.lease.message()
    }

    fn deliveries(&self) -> u64 {
        self.lease.deliveries()
    }

    fn alive(&self) {
        self.lease.alive();
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.lease.object(of)
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        self.lease.object_parts(parts)
    }

    fn put_object(&self, of: &ObjectRef, bytes: &Arc<Vec<u8>>) -> Result<(), QueueError> {
        let mut altered = bytes.to_vec();
        self.alters.put(&mut altered);
        if altered == **bytes {
            return self.lease.put_object(of, bytes);
        }
        let other = ObjectRef::of(&altered);
        self.renamed.lock().unwrap().push([*of, other]);
        self.lease.put_object(&other, &Arc::new(altered))
    }

    fn is_over(&self) -> bool {
        self.lease.is_over()
    }

    fn is_answered(&self, key: JobKey) -> Result<bool, QueueError> {
        self.lease.is_answered(key)
    }

    fn answer(&self, key: JobKey, message: &[u8]) -> Result<(), QueueError> {
        self.alters.answer(&*self.lease, key);
        let mut message = message.to_vec();
        for [before, now] in self.renamed.lock().unwrap().iter() {
            let (before, now) = (named(before), named(now));
            let place = message.windows(before.len()).position(|some| some == before).unwrap();
            message[place..place + now.len()].copy_from_slice(&now);
        }
        self.lease.answer(key, &message)
    }

    fn done(&self) -> Result<(), QueueError> {
        self.lease.done()
    }

    fn give_back(
        &self,
        after: Duration,
        trouble: Option<(JobKey, &[u8])>,
    ) -> Result<(), QueueError> {
        self.lease.give_back(after, trouble)
    }
}
