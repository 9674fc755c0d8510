//! What a coordinator removes, alone: answers that are of no use, and runs that are over.

use crate::cluster::altered::{link, machine};
use crate::cluster::world::World;
use crate::desk::MAIN;
use apus_chain::HeightRange;
use apus_cluster::{Coordinator, Worker};
use apus_jobs::{AnswerBytes, JobCopy, JobKey, JobOffer, JobQueue, Jobs, RunId};
use std::time::{Duration, Instant};

/// Waits until the coordinator has seen a sign of life from a machine that takes part in the newest run.
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

/// The coordinator goes on to the next chain after it closed a run, and sees the machines of that one, whether the objects
/// of the first one could be removed or not.
#[test]
fn the_next_run_is_as_any_other_where_the_last_one_could_not_be_removed() {
    let world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let worker = machine(&world, "rack-1");
    let (first, second) = (RunId::of(b"first"), RunId::of(b"second"));
    coordinator.open(&first, b"first").unwrap();
    assert!(sees(&coordinator, &worker, first));
    // What is no folder cannot be removed as one.
    world.desk.write(&format!("objects/{}", first.name()), b"in the way");
    coordinator.close().unwrap();
    assert!(coordinator.workers().is_empty());
    assert_eq!(coordinator.opened(), None);
    assert!(worker.runs().unwrap().is_empty());
    coordinator.open(&second, b"second").unwrap();
    assert!(sees(&coordinator, &worker, second));
    coordinator.close().unwrap();
    // It is known which one that was, for another try.
    for _ in 0..2 {
        coordinator.closed().unwrap_err();
    }
    coordinator.open(&first, b"first").unwrap_err();
    world.desk.remove(&format!("objects/{}", first.name()));
    coordinator.closed().unwrap();
    coordinator.open(&first, b"first").unwrap();
    coordinator.close().unwrap();
}

/// Which run is to be closed is known until the queue has nothing of it.
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

/// A run that is closed, and begun again while its objects are being removed, keeps those that it puts then.
#[test]
fn what_is_put_after_a_run_was_closed_stays() {
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
    assert!(world.desk.names("objects").is_empty());
}

/// Whether it was there, was forgotten before, or never was.
#[test]
fn an_answer_is_forgotten_once_it_is_not_there() {
    let world = World::with(MAIN);
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    let (worker, run) = (machine(&world, "rack-1"), RunId::of(b"run"));
    coordinator.open(&run, b"run").unwrap();
    let seen = worker.runs().unwrap().remove(0);
    let joined = worker.join(&seen).unwrap().unwrap();
    let key = JobKey::blocks(HeightRange::new(1, 5));
    let answer = |text: &[u8]| {
        coordinator.put_job_anew(key, JobCopy::First, b"job").unwrap();
        let JobOffer::Job(lease) = joined.take(Duration::from_secs(5)).unwrap() else { panic!() };
        lease.answer(key, text).unwrap();
        coordinator.answer(Duration::from_secs(5)).unwrap().unwrap()
    };
    let first = answer(b"one");
    coordinator.forget(&first).unwrap();
    // There is place for another one now.
    let second = answer(b"two");
    assert_eq!(second.message, b"two");
    coordinator.forget(&first).unwrap();
    coordinator.forget(&AnswerBytes { place: second.place + 1000, ..first }).unwrap();
    coordinator.open(&run, b"run").unwrap();
    assert_eq!(coordinator.answer(Duration::ZERO).unwrap(), Some(second));
    coordinator.close().unwrap();
}
