//! Runs without hints: coins are joined with spends by machines, and the set is that of one machine, to the byte.

use crate::desk::{MAIN, REGTEST};
use crate::world::{Process, World};

/// Some sixteen segments, and some parts of the join.
const LARGE: &str = "--segment-bytes 60000 --progress plain";

/// Many of both.
const SMALL: &str = "--segment-bytes 9000 --progress plain";

#[test]
fn any_number_of_workers_joins_to_the_same_set() {
    for (fixture, count, more) in [(MAIN, 1, LARGE), (MAIN, 2, SMALL), (REGTEST, 5, SMALL)] {
        let world = World::with(fixture);
        let workers: Vec<_> = (0..count).map(|_| world.work("--par 1 --scratch scratch")).collect();
        let ended = world.serve_run(&world.join(more)).wait().succeeds();
        workers.into_iter().for_each(Process::leave);
        let report = world.desk.json("report.json");
        assert_eq!(report["muhash"], world.desk.json("gettxoutsetinfo.json")["muhash"], "{ended}");
        assert_eq!(report["engine"], "mergesync");
        assert_eq!(report["verified"]["scripts"], true);
        let shares = report["cluster"]["workers"].as_array().unwrap();
        let blocks: u64 = shares.iter().map(|share| share["blocks"].as_u64().unwrap()).sum();
        assert_eq!(blocks, report["blocks"].as_u64().unwrap());
        assert_eq!(world.desk.names("scratch"), [""; 0]);
        world.expect_done();
    }
}
