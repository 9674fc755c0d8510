//! Jobs that are done twice, by two machines, and compared.

use crate::cluster::altered::{Alters, beside, link, machine, newest};
use crate::cluster::world::World;
use crate::desk::REGTEST;
use apus_cluster::{Coordinator, JoinedRun, Worker};
use apus_jobs::{JobCopy, JobKey, JobLease, JobOffer, JobQueue, Jobs, ObjectRef, RunId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// A machine that changes a sum of one result before it gives it away, and does all else as it should.
#[derive(Default)]
pub(crate) struct Lies {
    has_lied: AtomicBool,
}

impl Alters for Lies {
    /// The sums stand before a MuHash of 768 bytes and an empty list.
    fn put(&self, bytes: &mut [u8]) {
        if !self.has_lied.swap(true, Ordering::Relaxed) {
            let place = bytes.len() - 1 - 768 - 10;
            bytes[place] ^= 1;
        }
    }
}

/// Where jobs are done twice, the lie is found at once, and it is known between whom.
#[test]
fn a_lie_is_found_by_a_second_machine() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 9000 --progress none --audit 100");
    let lies = Lies::default();
    let (honest, _) = beside(&world, "liar", &lies, || {
        // It has lied before anyone else is there.
        while !lies.has_lied.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1));
        }
        let honest = world.work("--par 1 --stay --name honest");
        let ended = serve.wait().fails(3, &["their results differ"]);
        let names = ["liar and honest did blocks ", "honest and liar did blocks "];
        assert!(names.iter().any(|names| ended.stderr.contains(names)), "{ended}");
        honest
    });
    honest.kill();
    assert!(!world.desk.has("utxo.dat") && !world.desk.has("progress.work"));
    world.status("").succeeds().says(&["no run goes on"]);
}

/// A machine that has done its first job when another one has answered it.
#[derive(Default)]
struct Late {
    has_job: AtomicBool,
}

impl Alters for Late {
    fn answer(&self, lease: &dyn JobLease, key: JobKey) {
        if !self.has_job.swap(true, Ordering::Relaxed) {
            while !lease.is_answered(key).unwrap() && !lease.is_over() {
                sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Both machines have done the job then, but only the answer of one counts, and the other one may be compared with it.
#[test]
fn a_machine_that_was_late_is_compared_with_the_one_that_was_not() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 60000 --progress plain --audit 100");
    let late = Late::default();
    let (second, worked) = beside(&world, "late", &late, || {
        while !late.has_job.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1));
        }
        let second = world.work("--par 1 --name second");
        serve.wait().succeeds();
        second
    });
    second.leave();
    worked.unwrap();
    world.expect_done();
}

/// A machine answers before it is done with a job. Where its answer is of no use the job is there for others at once.
#[test]
fn a_job_whose_answer_was_of_no_use_waits_for_no_machine() {
    let world = World::with(REGTEST);
    let (spec, key) = (b"a run", JobKey::join(3));
    // No job is missed for an hour.
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(3600)).unwrap();
    coordinator.open(&RunId::of(spec), spec).unwrap();
    let (one, other) = (machine(&world, "one"), machine(&world, "other"));
    let (first, second) = (joined(&one), joined(&other));
    for copy in [JobCopy::First, JobCopy::Audit] {
        coordinator.put_job(key, copy, b"job").unwrap();
        let held = job_of(&first);
        // It is there, and so it is not put.
        coordinator.put_job(key, copy, b"job").unwrap();
        assert!(matches!(second.take(Duration::from_millis(200)).unwrap(), JobOffer::Nothing));
        coordinator.put_job_anew(key, copy, b"job anew").unwrap();
        let anew = job_of(&second);
        assert_eq!((held.message(), anew.message()), (&b"job"[..], &b"job anew"[..]));
        held.done().unwrap();
        anew.done().unwrap();
    }
    coordinator.close().unwrap();
}

/// What a machine puts once its run has ended goes, whatever becomes of its job.
#[test]
fn what_is_put_too_late_does_not_stay() {
    let world = World::with(REGTEST);
    let spec = b"a run";
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(3600)).unwrap();
    coordinator.open(&RunId::of(spec), spec).unwrap();
    let machine = machine(&world, "late");
    let joined = joined(&machine);
    let ways: [fn(&dyn JobLease); 3] = [
        |lease| lease.answer(JobKey::join(0), b"done").unwrap(),
        |lease| lease.give_back(Duration::ZERO, Some((JobKey::join(1), b"lost"))).unwrap(),
        |lease| assert!(lease.is_over()),
    ];
    for number in 0..3 {
        coordinator.put_job(JobKey::join(number), JobCopy::First, b"job").unwrap();
    }
    let leases = ways.map(|_| job_of(&joined));
    coordinator.close().unwrap();
    coordinator.closed().unwrap();
    let left = || std::fs::read_dir(world.desk.path("objects")).unwrap().count();
    for (lease, end) in leases.iter().zip(ways) {
        let bytes = Arc::new(b"what it leaves".to_vec());
        lease.put_object(&ObjectRef::of(&bytes), &bytes).unwrap();
        assert_eq!(left(), 1);
        end(&**lease);
        assert_eq!(left(), 0);
    }
}

fn joined(worker: &Worker) -> JoinedRun<'_> {
    worker.join(&newest(worker)).unwrap().unwrap()
}

fn job_of<'j>(joined: &'j JoinedRun<'_>) -> Box<dyn JobLease + 'j> {
    loop {
        if let JobOffer::Job(lease) = joined.take(Duration::from_secs(1)).unwrap() {
            return lease;
        }
    }
}
