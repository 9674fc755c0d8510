//! Jobs that two machines execute, so that the coordinator can compare the results.

use crate::cluster::altered::{Alters, link, machine, newest, with_altered};
use crate::cluster::world::World;
use crate::sandbox::REGTEST;
use apus_cluster::{Coordinator, JoinedRun, Worker};
use apus_jobs::{JobCopy, JobKey, JobLease, JobOffer, JobQueue, Jobs, ObjectRef, RunId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// A machine that changes a sum in one result before it sends it, and otherwise works correctly.
#[derive(Default)]
pub(crate) struct Lies {
    has_lied: AtomicBool,
}

impl Alters for Lies {
    /// The sums come before a MuHash of 768 bytes and an empty list.
    fn put(&self, bytes: &mut [u8]) {
        if !self.has_lied.swap(true, Ordering::Relaxed) {
            let place = bytes.len() - 1 - 768 - 10;
            bytes[place] ^= 1;
        }
    }
}

/// If every job runs on two machines, the coordinator finds the lie at once, and its error names both machines.
#[test]
fn a_lie_is_found_by_a_second_machine() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 9000 --progress none --audit 100");
    let lies = Lies::default();
    let (honest, _) = with_altered(&world, "liar", &lies, || {
        // Let it lie before another machine joins.
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
    assert!(!world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work"));
    world.status("").succeeds().says(&["no active runs"]);
}

/// No result counts before its audit: the next start compares it, too.
#[test]
fn a_lie_is_found_after_a_restart() {
    let world = World::with(REGTEST);
    let options = "--segment-bytes 9000 --progress none --audit 100";
    let mut serve = world.serve(options);
    let ((), _) = with_altered(&world, "liar", &Lies::default(), || {
        let is_all_answered = || {
            let status = world.status("--json").stdout;
            let run = &serde_json::from_str::<serde_json::Value>(&status).unwrap()["runs"][0];
            run["segments"].as_u64().is_some_and(|segments| run["answered"] == segments)
        };
        assert!(serve.until(is_all_answered));
        serve.signal("INT");
        serve.wait().fails(130, &["interrupted"]);
        let serve = world.serve(options);
        let honest = world.work("--par 1 --stay --name honest");
        serve.wait().fails(3, &["liar and honest did blocks ", "their results differ"]);
        honest.kill();
    });
    assert!(!world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work"));
}

/// A machine that reports a fault of its arithmetic with the job of this number, from 0 on.
struct Faulty(AtomicU32);

impl Alters for Faulty {
    fn answer(&self, lease: &dyn JobLease, key: JobKey) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 0 {
            report_fault(lease, key);
        }
    }
}

/// Reports as the machine `bad` that it computes wrongly.
fn report_fault(lease: &dyn JobLease, key: JobKey) {
    // The version, the run, the job and its input are those of the job's message.
    let same = &lease.message()[8..93];
    let message = [b"APUSANSW", same, &3_u32.to_le_bytes(), b"bad", &[4]].concat();
    lease.give_back(Duration::ZERO, Some((key, &message))).unwrap();
}

/// As on one machine, what it checked proves nothing.
#[test]
fn a_machine_that_computes_wrongly_ends_the_run() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 9000 --progress none");
    let ((), _) = with_altered(&world, "bad", &Faulty(AtomicU32::new(1)), || {
        serve.wait().fails(3, &["a test found that bad computes wrongly", "start over"]);
    });
    assert!(!world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work"));
    world.status("").succeeds().says(&["no active runs"]);
}

/// If no result is of that machine, the run continues without it.
#[test]
fn a_machine_that_computes_wrongly_from_the_start_does_no_harm() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 9000 --progress plain");
    let bad = machine(&world, "bad");
    report_fault(&*job_of(&joined(&bad)), JobKey::join(0));
    let worker = world.work("--par 1");
    let said = serve.wait().succeeds();
    assert!(said.stderr.contains("bad computes wrongly, so it left"), "{said}");
    worker.wait().succeeds();
    world.expect_done();
}

/// A machine that finishes its first job after another machine has answered it.
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

/// Both machines finish the job, but only one answer counts. The late machine may audit it.
#[test]
fn a_late_machine_is_compared_with_the_other_one() {
    let world = World::with(REGTEST);
    let serve = world.serve("--segment-bytes 60000 --progress plain --audit 100");
    let late = Late::default();
    let (second, worked) = with_altered(&world, "late", &late, || {
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

/// A machine answers before it marks a job as done. If the answer is refused, others can take the job at once.
#[test]
fn a_job_with_a_refused_answer_can_be_taken_at_once() {
    let world = World::with(REGTEST);
    let (spec, key) = (b"a run", JobKey::join(3));
    // No lease expires within an hour.
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(3600)).unwrap();
    coordinator.open(&RunId::of(spec), spec).unwrap();
    let (one, other) = (machine(&world, "one"), machine(&world, "other"));
    let (first, second) = (joined(&one), joined(&other));
    for copy in [JobCopy::First, JobCopy::Audit] {
        coordinator.put_job(key, copy, b"job").unwrap();
        let held = job_of(&first);
        // The copy exists already, so this call adds none.
        coordinator.put_job(key, copy, b"job").unwrap();
        assert!(matches!(second.take(Duration::from_millis(200)).unwrap(), JobOffer::Nothing));
        coordinator.put_job_again(key, copy, b"job anew").unwrap();
        let anew = job_of(&second);
        assert_eq!((held.message(), anew.message()), (&b"job"[..], &b"job anew"[..]));
        held.done().unwrap();
        anew.done().unwrap();
    }
    coordinator.close().unwrap();
}

/// A machine removes the objects that it puts after its run has ended, no matter what happens to its job.
#[test]
fn objects_put_too_late_are_removed() {
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
    let left = || std::fs::read_dir(world.sandbox.path("objects")).unwrap().count();
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
