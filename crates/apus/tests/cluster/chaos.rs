//! Workers, coordinators and servers killed one after the other, without a pause, for as long as a seed says: each run
//! that comes through has the very set of a node, and each of its blocks counts once.

use crate::cluster::world::{Process, World};
use crate::desk::{Fixture, MAIN, REGTEST};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

const WORKERS: usize = 3;

/// So many are killed in one go, with hours to spend and without.
const KILLS: (u64, u64) = (6, 100);

/// What is run.
struct Course {
    fixture: Fixture,
    run: fn(&World) -> String,
    blocks: u64,
}

/// A world in which things are killed.
struct Chaos {
    course: Course,
    world: World,
    workers: Vec<Process>,
    serve: Option<Process>,
    /// Whether the coordinator was killed during this run.
    anew: bool,
    runs: u32,
}

impl Chaos {
    fn begin(course: Course) -> Self {
        let world = World::with(course.fixture);
        let workers = (0..WORKERS).map(|_| work(&world)).collect();
        let serve = Some(world.serve_run(&(course.run)(&world)));
        Self { course, world, workers, serve, anew: false, runs: 0 }
    }

    /// The run that came through is as it should be, and makes place for the next.
    fn expect_set(&mut self) {
        self.world.expect_outputs();
        let report = self.world.desk.json("report.json");
        assert_eq!(report["blocks"], self.course.blocks);
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let counted: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        // What an earlier start counted is no share of this one's machines.
        assert!(
            counted == self.course.blocks || self.anew && counted < self.course.blocks,
            "{counted}"
        );
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            self.world.desk.remove(name);
        }
        (self.anew, self.runs) = (false, self.runs + 1);
    }

    fn serve_again(&mut self) {
        self.serve = Some(self.world.serve_run(&(self.course.run)(&self.world)));
    }

    /// Where the run came through, the next begins.
    fn go_on(&mut self) {
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
                let desk = &self.world.desk;
                self.anew = true;
                if desk.has("utxo.dat") && !desk.has("progress.work") {
                    // It was through, but for its last word.
                    let files = ["utxo.dat", "utxo.hints", "report.json"];
                    files
                        .into_iter()
                        .filter(|name| desk.has(name))
                        .for_each(|name| desk.remove(name));
                    self.anew = false;
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
    world.work("--par 1 --stay --scratch scratch")
}

fn arrives(course: Course, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut chaos = Chaos::begin(course);
    let kills = rounds(KILLS.0, KILLS.1);
    for _ in 0..kills {
        sleep(Duration::from_millis(rng.below(700)));
        chaos.go_on();
        chaos.expect_workers();
        chaos.kill(&mut rng);
    }
    chaos.end_run();
    assert!(chaos.workers[0].until(|| chaos.world.desk.names("objects").is_empty()));
    chaos.expect_workers();
    println!("seed {seed}: {kills} kills, {} runs came through", chaos.runs);
    chaos.world.status("").succeeds().says(&["no run goes on"]);
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
