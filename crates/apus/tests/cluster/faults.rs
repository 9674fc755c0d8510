//! Kills workers, coordinators and servers at any moment: no job is lost, and none counts twice.

use crate::cluster::altered::{machine, newest};
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use apus_cluster::JoinedRun;
use apus_jobs::{JobLease, JobOffer, JobStep, Jobs};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// About six hundred segments, so that kills can happen at many moments.
const SMALL: &str = "--segment-bytes 1500 --checkpoint-seconds 0";

#[derive(Clone, Copy, Debug)]
enum Fault {
    Worker,
    Coordinator,
    Server,
}

/// The kind of run: with hints or without.
#[derive(Clone, Copy, Debug)]
enum By {
    Hints,
    Join,
}

impl By {
    fn run(self, world: &World) -> String {
        match self {
            Self::Hints => world.run(SMALL),
            Self::Join => world.join("--segment-bytes 12000 --checkpoint-seconds 0"),
        }
    }

    /// Faults happen about this many milliseconds apart.
    fn pause(self) -> u64 {
        match self {
            Self::Hints => 500,
            Self::Join => 1200,
        }
    }
}

/// Completes a run with two workers, and causes each of these faults at a random moment.
fn arrives_after(by: By, faults: &[Fault], rng: &mut Rng) {
    let mut world = World::with(MAIN);
    let work = |world: &World| world.work("--par 1 --stay --scratchdir scratch");
    let mut workers = [work(&world), work(&world)];
    let mut serve = world.serve_run(&by.run(&world));
    for fault in faults {
        sleep(Duration::from_millis(rng.below(by.pause())));
        match fault {
            Fault::Worker => {
                let place = rng.below(2) as usize;
                let killed = std::mem::replace(&mut workers[place], work(&world));
                killed.kill();
            }
            Fault::Coordinator => {
                serve = restarted(by, &world, serve);
            }
            Fault::Server => world.lose_server(rng),
        }
    }
    serve.wait().succeeds();
    // A worker that repeated a job removes the objects that it put for it.
    assert!(workers[0].until(|| world.sandbox.names("objects").is_empty()));
    for mut worker in workers {
        let gave_up = worker.has_ended();
        let ended = worker.kill();
        assert!(!gave_up, "a worker gave up: {ended}");
    }
    world.expect_done();
}

/// Kills the coordinator, and reruns its command.
fn restarted(by: By, world: &World, serve: Process) -> Process {
    serve.kill();
    if world.sandbox.has("utxo.dat") && !world.sandbox.has("progress.work") {
        // The killed coordinator had completed.
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.sandbox.remove(name);
        }
    }
    world.serve_run(&by.run(world))
}

#[test]
fn killed_at_any_moment_the_set_is_the_same() {
    for seed in 0..rounds(1, 34) {
        let mut rng = Rng::new(seed);
        for fault in [Fault::Worker, Fault::Coordinator, Fault::Server] {
            println!("seed {seed}, {fault:?}");
            arrives_after(By::Hints, &[fault; 2], &mut rng);
        }
    }
}

#[test]
fn killed_at_any_moment_the_join_gives_the_same_set() {
    for seed in 0..rounds(1, 34) {
        let mut rng = Rng::new(500 + seed);
        for fault in [Fault::Worker, Fault::Coordinator, Fault::Server] {
            println!("seed {seed}, {fault:?}");
            arrives_after(By::Join, &[fault; 3], &mut rng);
        }
    }
}

/// Waits for a job of this step of a run and takes it; gives other jobs back.
fn held<'j>(joined: &'j JoinedRun<'_>, step: JobStep) -> Box<dyn JobLease + 'j> {
    let name = [JobStep::Blocks, JobStep::Join, JobStep::Connect].iter().position(|it| *it == step);
    loop {
        if let JobOffer::Job(lease) = joined.take(Duration::from_secs(1)).unwrap() {
            if Some(usize::from(lease.message()[44])) == name {
                return lease;
            }
            lease.give_back(Duration::from_millis(500), None).unwrap();
        }
    }
}

/// Workers and coordinators die in each step of a run that joins coins with spends.
#[test]
fn killed_in_each_step_the_join_gives_the_same_set() {
    let world = World::with(MAIN);
    let work = || world.work("--par 1 --stay --scratchdir scratch");
    let mut serve = world.serve_run(&By::Join.run(&world));
    let watcher = machine(&world, "watcher");
    let run = newest(&watcher);
    let mut worker = None;
    for step in [JobStep::Blocks, JobStep::Join, JobStep::Connect] {
        println!("{step:?}");
        let joined = watcher.join(&run).unwrap().unwrap();
        // While this job is held the step does not end.
        let lease = held(&joined, step);
        worker.take().map(Process::kill);
        worker = Some(work());
        sleep(Duration::from_millis(200));
        assert!(!serve.has_ended());
        serve.kill();
        serve = world.serve_run(&By::Join.run(&world));
        drop(lease);
    }
    serve.wait().succeeds();
    let mut worker = worker.unwrap();
    assert!(worker.until(|| world.sandbox.names("objects").is_empty()));
    worker.kill();
    world.expect_done();
}

#[test]
fn all_faults_in_turn() {
    for seed in 0..rounds(1, 30) {
        println!("seed {seed}");
        let mut rng = Rng::new(1000 + seed);
        let faults = [Fault::Server, Fault::Worker, Fault::Coordinator, Fault::Worker];
        arrives_after(By::Hints, &faults, &mut rng);
        let mut rng = Rng::new(2000 + seed);
        arrives_after(By::Join, &faults, &mut rng);
    }
}

/// Machines do not repeat the jobs that they answered while the coordinator was down.
#[test]
fn answers_while_the_coordinator_is_down_count() {
    let world = World::with(MAIN);
    let mut serve = world.serve("--segment-bytes 60000");
    let all_jobs_wait = || {
        let status: serde_json::Value =
            serde_json::from_str(&world.status("--json").stdout).unwrap();
        let run = &status["runs"][0];
        run["segments"].as_u64().is_some_and(|segments| run["waiting"] == segments)
    };
    assert!(serve.until(all_jobs_wait));
    serve.kill();
    let mut worker = world.work("--par 1 --stay --name rack-1");
    assert!(worker.until(|| world.status("").stdout.contains(" 0 jobs under way, 0 waiting")));
    worker.kill();
    // The rest needs no machine.
    world.serve("--segment-bytes 60000").wait().succeeds();
    let shares = world.sandbox.json("report.json")["cluster"]["workers"].clone();
    assert_eq!((&shares[0]["name"], &shares[0]["blocks"]), (&"rack-1".into(), &4521.into()));
    world.expect_done();
}

/// A worker does not take a server without data for the end of the run: the coordinator announces the run again.
#[test]
fn a_queue_that_loses_everything_does_not_end_the_run() {
    let mut world = World::with(MAIN);
    let mut serve = world.serve(SMALL);
    let mut worker = world.work("--par 1");
    serve.until(|| world.sandbox.names("progress.work").len() > 20);
    serve.signal("STOP");
    world.server.lose_all();
    let began = Instant::now();
    assert!(worker.until(|| began.elapsed() > Duration::from_secs(2)), "it waits");
    serve.signal("CONT");
    serve.wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
}

/// A hanging worker loses its jobs as soon as a dead one would, and its late answers do not matter.
#[test]
fn a_run_completes_without_a_worker_that_hangs() {
    let world = World::with(MAIN);
    let slow = world.work("--par 1 --stay");
    let mut serve = world.serve(SMALL);
    serve.until(|| world.sandbox.names("progress.work").len() > 20);
    slow.signal("STOP");
    let worker = world.work("--par 1");
    serve.wait().succeeds();
    worker.wait().succeeds();
    slow.signal("CONT");
    slow.signal("INT");
    slow.wait().fails(130, &[]);
    world.expect_done();
}

/// At the end, an idle machine also executes the job of a slow machine.
#[test]
fn the_job_of_a_slow_machine_is_done_by_another() {
    let world = World::with(MAIN);
    let url = world.server.url();
    let run = world.run("--segment-bytes 20000");
    // No lease expires within an hour.
    let line = format!("cluster serve --nats {url} --objects objects --ack-wait 3600 {run}");
    let serve = world.start(&line);
    let slow = machine(&world, "slow");
    let joined = slow.join(&newest(&slow)).unwrap().unwrap();
    let lease = held(&joined, JobStep::Blocks);
    let quick = world.work("--par 1 --name quick");
    serve.wait().succeeds();
    quick.leave();
    drop(lease);
    world.expect_done();
}

/// An interrupted worker gives its jobs back, and no one waits for them.
#[test]
fn an_interrupted_worker_gives_its_jobs_back_at_once() {
    let world = World::with(MAIN);
    let url = world.server.url();
    let run = world.run(SMALL);
    let line = format!("cluster serve --nats {url} --objects objects --ack-wait 3600 {run}");
    let mut serve = world.start(&line);
    let worker = world.work("--par 2");
    serve.until(|| world.sandbox.names("progress.work").len() > 20);
    worker.signal("INT");
    worker.wait().fails(130, &["interrupted: unfinished jobs go to other machines"]);
    let worker = world.work("--par 2");
    serve.wait().succeeds();
    worker.wait().succeeds();
    world.expect_done();
}

/// An interrupted coordinator keeps its progress and the run.
#[test]
fn an_interrupted_coordinator_resumes() {
    let world = World::with(MAIN);
    let mut serve = world.serve(SMALL);
    let worker = world.work("--par 1");
    serve.until(|| world.sandbox.names("progress.work").len() > 20);
    serve.signal("INT");
    serve.wait().fails(130, &["progress is kept"]);
    let ended = world.serve(SMALL).wait().succeeds();
    assert!(ended.stderr.contains("resuming: "), "{ended}");
    worker.wait().succeeds();
    world.expect_done();
}
