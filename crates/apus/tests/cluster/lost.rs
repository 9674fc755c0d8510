//! Objects that are lost or changed after machines left them, in every step: that is told by name, what left them is done
//! again, and all files are those of one machine.

use crate::cluster::kept::expect_files_of_one_machine;
use crate::cluster::world::{Process, World};
use crate::desk::MAIN;
use apus_chain::Reader;
use serde_json::Value;
use std::collections::BTreeSet;

/// Steps of a run, as a job names them (`extras/jobs/src/queue`).
const BLOCKS: u8 = 0;
const JOIN: u8 = 1;
const CONNECT: u8 = 2;

/// The place of the step in what a job leaves, and of what is behind the job.
const STEP: usize = 44;
const BODY: usize = 53;

/// A run whose coordinator stands still while jobs are done.
struct Halting {
    world: World,
    serve: Process,
}

/// How many jobs wait, and how many machines are at.
fn jobs(world: &World) -> (u64, u64) {
    let status: Value = serde_json::from_str(&world.status("--json").stdout).unwrap_or_default();
    let count = |name: &str| status["runs"][0][name].as_u64().unwrap_or_default();
    (count("waiting"), count("under_way"))
}

impl Halting {
    /// A run with every output for which machines leave something.
    fn start() -> Self {
        let world = World::with(MAIN);
        let more = "--segment-bytes 20000 --progress plain --out utreexo:roots --out datadir:node";
        let serve = world.serve_run(&world.join(more));
        Self { world, serve }
    }

    /// Has it stand still once it has put jobs.
    fn halt(&mut self) {
        let (world, mut before) = (&self.world, 0);
        assert!(self.serve.until(|| {
            let (waiting, _) = jobs(world);
            std::mem::replace(&mut before, waiting) == waiting && waiting > 0
        }));
        self.serve.signal("STOP");
    }

    /// Has all jobs of a step done: what each of them left. The coordinator has read nothing of it, and stands still.
    fn step(&mut self, step: u8) -> Vec<Vec<u8>> {
        loop {
            self.halt();
            let before = self.objects();
            let mut worker = self.world.work("--par 2 --stay");
            assert!(worker.until(|| jobs(&self.world) == (0, 0)));
            worker.kill();
            let new = self.objects().difference(&before).cloned().collect::<Vec<_>>();
            let read = new.iter().map(|path| self.world.desk.read(path));
            let is_of_step =
                |bytes: &Vec<u8>| bytes.starts_with(b"APUSDONE") && bytes[STEP] == step;
            let left: Vec<Vec<u8>> = read.filter(is_of_step).collect();
            if !left.is_empty() {
                return left;
            }
            // It puts jobs once it has read what is there.
            self.serve.signal("CONT");
        }
    }

    fn objects(&self) -> BTreeSet<String> {
        let desk = &self.world.desk;
        let run = &desk.names("objects")[0];
        let names = desk.names(&format!("objects/{run}")).into_iter();
        names.map(|name| format!("objects/{run}/{name}")).collect()
    }

    fn path(&self, object: &str) -> String {
        format!("objects/{}/{object}", self.world.desk.names("objects")[0])
    }

    fn lose(&self, object: &str) {
        self.world.desk.remove(&self.path(object));
    }

    fn change(&self, object: &str) {
        self.world.desk.edit(&self.path(object), |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
    }

    /// Lets all go on: so often it is said that an object is lost, and that a result is of no use.
    fn expect_done(self, lost: usize, refused: usize) {
        self.serve.signal("CONT");
        let worker = self.world.work("--par 1");
        let said = self.serve.wait().succeeds();
        worker.wait().succeeds();
        // What is tried again before the job is done again says it again.
        let again =
            said.stderr.lines().filter_map(|it| it.split_once(" is lost, and that is done again"));
        let segments = again.map(|(segment, _)| segment).collect::<BTreeSet<_>>();
        assert_eq!(segments.len(), lost, "{said}");
        assert_eq!(said.stderr.matches(" was refused").count(), refused, "{said}");
        self.world.expect_outputs();
        expect_files_of_one_machine(&self.world, "main", "--out utreexo:expected");
        assert!(self.world.desk.read("roots") == self.world.desk.read("expected"));
    }
}

/// Reads what jobs leave.
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

    /// The objects of a run.
    fn run(&mut self) -> Vec<String> {
        self.skip(8 + 4 + 16);
        self.objects()
    }

    /// Those of what was found for segments.
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

/// The objects that a part of the join left: coins, places, answers, leaves.
fn of_part(bytes: &[u8]) -> [Vec<String>; 4] {
    let mut left = Left::of(bytes);
    left.skip(3 * 8 + 16 + 768);
    let existed = left.count();
    left.skip(existed * 40);
    let all = [left.run(), left.run(), left.found(), left.found()];
    assert_eq!(left.0.remaining(), 0);
    all
}

/// Records, which parts of the join read, and what a segment left for itself.
#[test]
fn what_segments_left_is_lost() {
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

/// Coins and places, which the coordinator reads, and answers and leaves, which segments do.
#[test]
fn what_parts_of_the_join_left_is_lost() {
    let mut halting = Halting::start();
    let left = halting.step(JOIN);
    let parts: Vec<[Vec<String>; 4]> = left.iter().map(|bytes| of_part(bytes)).collect();
    let mut answered = parts.iter().filter(|[_, _, answers, _]| !answers.is_empty());
    let mut next = || answered.next().expect("there are parts enough");
    let [[coins, ..], [_, places, ..], [_, _, answers, _], [.., leaves]] =
        [next(), next(), next(), next()];
    halting.lose(&coins[0]);
    halting.change(&places[0]);
    halting.lose(&answers[0]);
    halting.change(&leaves[0]);
    halting.expect_done(2, 2);
}

#[test]
fn undo_data_are_lost() {
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
    // Blocks that spend nothing have the same undo data, which is one object.
    let is_of_one =
        |object: &&String| objects.iter().filter(|objects| objects.contains(object)).count() == 1;
    let of_one: Vec<&String> =
        objects.iter().filter_map(|of| of.first()).filter(is_of_one).collect();
    halting.lose(of_one[0]);
    halting.change(of_one[1]);
    halting.expect_done(0, 2);
}

/// What jobs are told is written again.
#[test]
fn what_jobs_are_told_is_lost() {
    let mut halting = Halting::start();
    halting.step(BLOCKS);
    halting.serve.signal("CONT");
    halting.halt();
    let objects = halting.objects();
    let is_told = |path: &&String| {
        let bytes = halting.world.desk.read(path);
        bytes.starts_with(b"APUSTOLD") && bytes.get(STEP) == Some(&JOIN)
    };
    let told: Vec<&String> = objects.iter().filter(is_told).collect();
    halting.world.desk.remove(told[0]);
    halting.world.desk.edit(told[1], |bytes| *bytes.last_mut().unwrap() ^= 1);
    halting.expect_done(0, 0);
}
