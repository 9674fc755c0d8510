//! Data that only a coordinator removes: refused answers, and ended runs.

use crate::cluster::altered::{link, machine};
use crate::cluster::world::World;
use crate::sandbox::MAIN;
use apus_chain::HeightRange;
use apus_cluster::{Coordinator, Worker};
use apus_jobs::{AnswerBytes, JobCopy, JobKey, JobOffer, JobQueue, Jobs, RunId};
use std::time::{Duration, Instant};

/// Waits until the coordinator has received a heartbeat from a machine in the newest run.
fn sees(coordinator: &Coordinator, worker: &Worker, run: RunId) -> bool {
    let seen = worker.runs().unwrap().into_iter().find(|seen| seen.run == run).unwrap();
    let _joined = worker.join(&seen).unwrap().unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        if !coordinator.workers().is_empty() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// After closing a run, the coordinator continues with the next chain and sees its machines, whether or not the
/// objects of the first run could be removed.
#[test]
fn the_next_run_works_if_the_last_one_could_not_be_removed() {
    let world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let worker = machine(&world, "rack-1");
    let (first, second) = (RunId::of(b"first"), RunId::of(b"second"));
    coordinator.open(&first, b"first").unwrap();
    assert!(sees(&coordinator, &worker, first));
    // A file in place of a folder cannot be removed as one.
    world.sandbox.write(&format!("objects/{}", first.name()), b"in the way");
    coordinator.close().unwrap();
    assert!(coordinator.workers().is_empty());
    assert_eq!(coordinator.opened(), None);
    assert!(worker.runs().unwrap().is_empty());
    coordinator.open(&second, b"second").unwrap();
    assert!(sees(&coordinator, &worker, second));
    coordinator.close().unwrap();
    // The queue still knows which run that was, for another attempt.
    for _ in 0..2 {
        coordinator.closed().unwrap_err();
    }
    coordinator.open(&first, b"first").unwrap_err();
    world.sandbox.remove(&format!("objects/{}", first.name()));
    coordinator.closed().unwrap();
    coordinator.open(&first, b"first").unwrap();
    coordinator.close().unwrap();
}

/// The coordinator remembers which run it must close until the queue has nothing left of it.
#[test]
fn a_run_is_closed_when_the_server_is_back() {
    let mut world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let run = RunId::of(b"run");
    coordinator.open(&run, b"run").unwrap();
    world.server.kill();
    coordinator.close().unwrap_err();
    assert_eq!(coordinator.opened(), Some(run));
    world.server.start_again();
    let began = Instant::now();
    while coordinator.close().is_err() {
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(coordinator.opened(), None);
    assert!(machine(&world, "rack-1").runs().unwrap().is_empty());
}

/// If a closed run restarts while its objects are being removed, it keeps the objects that it puts from then on.
#[test]
fn objects_put_after_a_run_was_closed_stay() {
    let world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let run = RunId::of(b"run");
    let put = |text: &[u8]| coordinator.put_object(&run, text).unwrap();
    for _ in 0..20 {
        let before: Vec<_> = (0..50u8).map(|number| put(&[number; 1000])).collect();
        coordinator.open(&run, b"run").unwrap();
        coordinator.close().unwrap();
        let kept = put(b"kept");
        coordinator.open(&run, b"run").unwrap();
        coordinator.closed().unwrap();
        assert_eq!(coordinator.object(&kept).unwrap(), b"kept");
        assert!(before.iter().all(|object| coordinator.object(object).is_err()));
    }
    coordinator.close().unwrap();
    coordinator.closed().unwrap();
    assert!(world.sandbox.names("objects").is_empty());
}

/// Forgetting an answer succeeds whether it exists, was forgotten before, or never existed.
#[test]
fn an_answer_can_be_forgotten_repeatedly() {
    let world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let (worker, run) = (machine(&world, "rack-1"), RunId::of(b"run"));
    coordinator.open(&run, b"run").unwrap();
    let seen = worker.runs().unwrap().remove(0);
    let joined = worker.join(&seen).unwrap().unwrap();
    let key = JobKey::blocks(HeightRange::new(1, 5));
    let answer = |text: &[u8]| {
        coordinator.put_job_again(key, JobCopy::First, b"job").unwrap();
        let JobOffer::Job(lease) = joined.take(Duration::from_secs(5)).unwrap() else { panic!() };
        lease.answer(key, text).unwrap();
        coordinator.answer(Duration::from_secs(5)).unwrap().unwrap()
    };
    let first = answer(b"one");
    coordinator.forget(&first).unwrap();
    // The job can now have another answer.
    let second = answer(b"two");
    assert_eq!(second.message, b"two");
    coordinator.forget(&first).unwrap();
    coordinator.forget(&AnswerBytes { place: second.place + 1000, ..first }).unwrap();
    coordinator.open(&run, b"run").unwrap();
    assert_eq!(coordinator.answer(Duration::ZERO).unwrap(), Some(second));
    coordinator.close().unwrap();
}
