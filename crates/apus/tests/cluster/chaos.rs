//! Kills workers, coordinators and servers in turn, without a pause, for as long as a seed says. Each run that
//! completes has exactly the set of a node, and counts each of its blocks once.

use crate::cluster::world::{Process, World};
use crate::sandbox::{Fixture, MAIN, REGTEST};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

const WORKERS: usize = 3;

/// The number of kills in a normal test, and with hours to spend.
const KILLS: (u64, u64) = (6, 100);

/// The kind of run.
struct Course {
    fixture: Fixture,
    run: fn(&World) -> String,
    blocks: u64,
}

/// A world in which processes are killed.
struct Chaos {
    course: Course,
    world: World,
    workers: Vec<Process>,
    serve: Option<Process>,
    /// Whether the coordinator was killed during this run.
    was_restarted: bool,
    runs: u32,
}

impl Chaos {
    fn begin(course: Course) -> Self {
        let world = World::with(course.fixture);
        let workers = (0..WORKERS).map(|_| work(&world)).collect();
        let serve = Some(world.serve_run(&(course.run)(&world)));
        Self { course, world, workers, serve, was_restarted: false, runs: 0 }
    }

    /// Checks a completed run, and clears its output for the next.
    fn expect_set(&mut self) {
        self.world.expect_outputs();
        let report = self.world.sandbox.json("report.json");
        assert_eq!(report["blocks"], self.course.blocks);
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let counted: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        // The machines' counts do not include those of earlier starts.
        assert!(
            counted == self.course.blocks || self.was_restarted && counted < self.course.blocks,
            "{counted}"
        );
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            self.world.sandbox.remove(name);
        }
        (self.was_restarted, self.runs) = (false, self.runs + 1);
    }

    fn serve_again(&mut self) {
        self.serve = Some(self.world.serve_run(&(self.course.run)(&self.world)));
    }

    /// Begins the next run if this one has completed.
    fn begin_next(&mut self) {
        if self.serve.as_mut().is_none_or(Process::has_ended) {
            self.end_run();
            self.serve_again();
        }
    }

    fn end_run(&mut self) {
        self.serve.take().unwrap().wait().succeeds();
        self.expect_set();
    }

    fn kill(&mut self, rng: &mut Rng) {
        match rng.below(WORKERS as u64 + 2) {
            0 => {
                self.serve.take().unwrap().kill();
                let sandbox = &self.world.sandbox;
                self.was_restarted = true;
                if sandbox.has("utxo.dat") && !sandbox.has("progress.work") {
                    // It had completed, except for its last line.
                    let files = ["utxo.dat", "utxo.hints", "report.json"];
                    files
                        .into_iter()
                        .filter(|name| sandbox.has(name))
                        .for_each(|name| sandbox.remove(name));
                    self.was_restarted = false;
                }
                self.serve_again();
            }
            1 => {
                self.world.server.kill();
                sleep(Duration::from_millis(rng.below(300)));
                self.world.server.start_again();
            }
            worker => {
                let next = work(&self.world);
                std::mem::replace(&mut self.workers[worker as usize - 2], next).kill();
            }
        }
    }

    fn expect_workers(&mut self) {
        if let Some(place) = self.workers.iter_mut().position(Process::has_ended) {
            panic!("a worker gave up: {}", self.workers.remove(place).wait());
        }
    }
}

fn work(world: &World) -> Process {
    world.work("--par 1 --stay --scratchdir scratch")
}

fn arrives(course: Course, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut chaos = Chaos::begin(course);
    let kills = rounds(KILLS.0, KILLS.1);
    for _ in 0..kills {
        sleep(Duration::from_millis(rng.below(700)));
        chaos.begin_next();
        chaos.expect_workers();
        chaos.kill(&mut rng);
    }
    chaos.end_run();
    assert!(chaos.workers[0].until(|| chaos.world.sandbox.names("objects").is_empty()));
    chaos.expect_workers();
    println!("seed {seed}: {kills} kills, {} runs completed", chaos.runs);
    chaos.world.status("").succeeds().says(&["no active runs"]);
}

#[test]
fn kills_without_a_pause_leave_the_set_by_hints() {
    let run = |world: &World| world.run("--segment-bytes 1500 --checkpoint-seconds 0");
    arrives(Course { fixture: MAIN, run, blocks: 4521 }, 7001);
}

#[test]
fn kills_without_a_pause_leave_the_set_by_undo_data() {
    let run = |world: &World| {
        let run = world.run("--segment-bytes 3000 --assumevalid 0 --checkpoint-seconds 0");
        run.replace("--assumevalid hints ", "")
    };
    arrives(Course { fixture: REGTEST, run, blocks: 315 }, 7002);
}

#[test]
fn kills_without_a_pause_leave_the_set_of_a_join() {
    let run = |world: &World| world.join("--segment-bytes 12000 --checkpoint-seconds 0");
    arrives(Course { fixture: MAIN, run, blocks: 4521 }, 7003);
}
