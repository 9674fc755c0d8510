//! Objects that are lost or changed in every step, after machines left them: the error names them, their jobs are done
//! again, and all files are the same as those of one machine.

use crate::cluster::kept::expect_files_of_one_machine;
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use apus_chain::Reader;
use serde_json::Value;
use std::collections::BTreeSet;

/// Steps of a run, as a job names them (`extras/jobs/src/queue`).
const BLOCKS: u8 = 0;
const JOIN: u8 = 1;
const CONNECT: u8 = 2;

/// Offsets in a job's result: of the step, and of the data after the job.
const STEP: usize = 44;
const BODY: usize = 53;

/// A run whose coordinator is stopped while machines execute jobs.
struct Halting {
    world: World,
    serve: Process,
}

/// How many jobs are waiting, and how many are in progress.
fn jobs(world: &World) -> (u64, u64) {
    let status: Value = serde_json::from_str(&world.status("--json").stdout).unwrap_or_default();
    let count = |name: &str| status["runs"][0][name].as_u64().unwrap_or_default();
    (count("waiting"), count("under_way"))
}

impl Halting {
    /// Starts a run with every output that needs results of machines.
    fn start() -> Self {
        let world = World::with(MAIN);
        let more = "--segment-bytes 20000 --progress plain --out utreexo:roots --out datadir:node";
        let serve = world.serve_run(&world.join(more));
        Self { world, serve }
    }

    /// Stops the coordinator once it has put jobs.
    fn halt(&mut self) {
        let (world, mut before) = (&self.world, 0);
        assert!(self.serve.until(|| {
            let (waiting, _) = jobs(world);
            std::mem::replace(&mut before, waiting) == waiting && waiting > 0
        }));
        self.serve.signal("STOP");
    }

    /// Completes all jobs of a step, and returns their results. The coordinator is stopped and has read none of them.
    fn step(&mut self, step: u8) -> Vec<Vec<u8>> {
        loop {
            self.halt();
            let before = self.objects();
            let mut worker = self.world.work("--par 2 --stay");
            assert!(worker.until(|| jobs(&self.world) == (0, 0)));
            worker.kill();
            let new = self.objects().difference(&before).cloned().collect::<Vec<_>>();
            let read = new.iter().map(|path| self.world.sandbox.read(path));
            let is_of_step =
                |bytes: &Vec<u8>| bytes.starts_with(b"APUSDONE") && bytes[STEP] == step;
            let left: Vec<Vec<u8>> = read.filter(is_of_step).collect();
            if !left.is_empty() {
                return left;
            }
            // The coordinator puts jobs after it has read the existing results.
            self.serve.signal("CONT");
        }
    }

    fn objects(&self) -> BTreeSet<String> {
        let sandbox = &self.world.sandbox;
        let run = &sandbox.names("objects")[0];
        let names = sandbox.names(&format!("objects/{run}")).into_iter();
        names.map(|name| format!("objects/{run}/{name}")).collect()
    }

    fn path(&self, object: &str) -> String {
        format!("objects/{}/{object}", self.world.sandbox.names("objects")[0])
    }

    fn lose(&self, object: &str) {
        self.world.sandbox.remove(&self.path(object));
    }

    fn change(&self, object: &str) {
        self.world.sandbox.edit(&self.path(object), |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
    }

    /// Completes the run; asserts how many lost objects and refused results it reported.
    fn expect_done(self, lost: usize, refused: usize) {
        self.serve.signal("CONT");
        let worker = self.world.work("--par 1");
        let said = self.serve.wait().succeeds();
        worker.wait().succeeds();
        // A step that is retried before the job is done again reports it again.
        let again =
            said.stderr.lines().filter_map(|it| it.split_once(" is lost, and the job is requeued"));
        let segments = again.map(|(segment, _)| segment).collect::<BTreeSet<_>>();
        assert_eq!(segments.len(), lost, "{said}");
        assert_eq!(said.stderr.matches(" was refused").count(), refused, "{said}");
        self.world.expect_outputs();
        expect_files_of_one_machine(&self.world, "main", "--out utreexo:expected");
        assert!(self.world.sandbox.read("roots") == self.world.sandbox.read("expected"));
    }
}

/// A reader of the results of jobs.
struct Left<'l>(Reader<'l>);

impl<'l> Left<'l> {
    fn of(bytes: &'l [u8]) -> Self {
        Self(Reader::new(&bytes[BODY..]))
    }

    fn skip(&mut self, bytes: usize) {
        self.0.take(bytes).unwrap();
    }

    fn count(&mut self) -> usize {
        self.0.compact_size().unwrap()
    }

    fn object(&mut self) -> String {
        let digest: [u8; 32] = *self.0.array().unwrap();
        self.skip(8);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn objects(&mut self) -> Vec<String> {
        let count = self.count();
        (0..count).map(|_| self.object()).collect()
    }

    /// Reads the objects of a run.
    fn run(&mut self) -> Vec<String> {
        self.skip(8 + 4 + 16);
        self.objects()
    }

    /// Reads the objects found for segments.
    fn found(&mut self) -> Vec<String> {
        let objects = self.objects();
        for _ in 0..self.count() {
            self.skip(8);
            let bytes = self.0.u32().unwrap();
            self.skip(if bytes > 0 { 32 } else { 0 });
        }
        objects
    }
}

/// The objects in the result of a part of the join: coins, positions, answers, leaves.
fn of_part(bytes: &[u8]) -> [Vec<String>; 4] {
    let mut left = Left::of(bytes);
    left.skip(3 * 8 + 16 + 768);
    let existed = left.count();
    left.skip(existed * 40);
    let all = [left.run(), left.run(), left.found(), left.found()];
    assert_eq!(left.0.remaining(), 0);
    all
}

/// Records, which the parts of the join read, and the segment's own objects.
#[test]
fn lost_results_of_segments_are_recomputed() {
    let mut halting = Halting::start();
    let left = halting.step(BLOCKS);
    let objects = left.iter().map(|bytes| {
        let mut left = Left::of(bytes);
        [left.object(), left.object()]
    });
    let objects: Vec<[String; 2]> = objects.collect();
    halting.lose(&objects[0][0]);
    halting.change(&objects[1][0]);
    halting.lose(&objects[2][1]);
    halting.change(&objects[3][1]);
    halting.expect_done(4, 0);
}

/// Coins and positions, which the coordinator reads, and answers and leaves, which segments read.
#[test]
fn lost_results_of_the_join_are_recomputed() {
    let mut halting = Halting::start();
    let left = halting.step(JOIN);
    let parts: Vec<[Vec<String>; 4]> = left.iter().map(|bytes| of_part(bytes)).collect();
    let mut answered = parts.iter().filter(|[_, _, answers, _]| !answers.is_empty());
    let mut next = || answered.next().expect("there are enough parts");
    let [[coins, ..], [_, places, ..], [_, _, answers, _], [.., leaves]] =
        [next(), next(), next(), next()];
    halting.lose(&coins[0]);
    halting.change(&places[0]);
    halting.lose(&answers[0]);
    halting.change(&leaves[0]);
    halting.expect_done(2, 2);
}

#[test]
fn lost_undo_data_is_recomputed() {
    let mut halting = Halting::start();
    let left = halting.step(CONNECT);
    let objects = left.iter().map(|bytes| {
        let mut left = Left::of(bytes);
        left.skip(16);
        let fragment = left.count();
        left.skip(fragment);
        left.objects()
    });
    let objects: Vec<Vec<String>> = objects.collect();
    // Blocks that spend nothing have the same undo data, so they share one object.
    let is_of_one =
        |object: &&String| objects.iter().filter(|objects| objects.contains(object)).count() == 1;
    let of_one: Vec<&String> =
        objects.iter().filter_map(|of| of.first()).filter(is_of_one).collect();
    halting.lose(of_one[0]);
    halting.change(of_one[1]);
    halting.expect_done(0, 2);
}

/// The coordinator rewrites lost payloads of jobs.
#[test]
fn lost_payloads_of_jobs_are_rewritten() {
    let mut halting = Halting::start();
    halting.step(BLOCKS);
    halting.serve.signal("CONT");
    halting.halt();
    let objects = halting.objects();
    let is_payload = |path: &&String| {
        let bytes = halting.world.sandbox.read(path);
        bytes.starts_with(b"APUSTOLD") && bytes.get(STEP) == Some(&JOIN)
    };
    let payloads: Vec<&String> = objects.iter().filter(is_payload).collect();
    halting.world.sandbox.remove(payloads[0]);
    halting.world.sandbox.edit(payloads[1], |bytes| *bytes.last_mut().unwrap() ^= 1);
    halting.expect_done(0, 0);
}
