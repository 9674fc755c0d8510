//! Any number of machines, with any kind of hints: the same set, byte for byte, and the same report.

use crate::cluster::world::{Process, World};
use crate::sandbox::{MAIN, REGTEST};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

/// About sixteen segments.
const LARGE: &str = "--segment-bytes 60000 --muhash";

#[test]
fn any_number_of_workers_gives_the_same_set() {
    for count in [1, 2, 5] {
        let world = World::with(MAIN);
        let names: Vec<String> = (0..count).map(|number| format!("rack-{number}")).collect();
        let workers: Vec<_> =
            names.iter().map(|name| world.work(&format!("--par 1 --name {name}"))).collect();
        let ended = world.serve(LARGE).wait().succeeds();
        workers.into_iter().for_each(Process::leave);
        let report = world.sandbox.json("report.json");
        let node = world.sandbox.json("gettxoutsetinfo.json");
        assert_eq!(report["muhash"], node["muhash"]);
        assert_eq!(report["blocks"], 4521);
        let cluster = &report["cluster"];
        let shares = cluster["workers"].as_array().unwrap();
        let sum =
            |field: &str| shares.iter().map(|share| share[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("blocks"), sum("bytes")), (4521, report["bytes"].as_u64().unwrap()));
        let known: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        assert!(shares.iter().all(|share| known.contains(share["name"].as_str().unwrap())));
        let part = cluster["serial_fraction"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&part), "{part}");
        for said in ["machines", "projected", "not measured"] {
            assert!(ended.stdout.contains(said), "{said}: {ended}");
        }
        world.expect_done();
    }
}

/// A coordinator that also executes jobs needs no other machine, and leaves its own jobs to others when it ends.
#[test]
fn a_coordinator_can_execute_jobs_itself() {
    let world = World::with(MAIN);
    world.serve("--segment-bytes 60000 --work 2").wait().succeeds();
    let shares = world.sandbox.json("report.json")["cluster"]["workers"].clone();
    assert_eq!((&shares[0]["blocks"], &shares[1]), (&4521.into(), &serde_json::Value::Null));
    world.expect_done();
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.sandbox.remove(name);
    }
    // Interrupt the coordinator once, then add a worker.
    let run =
        world.join("--segment-bytes 12000 --checkpoint-seconds 0 --work 1 --scratchdir scratch");
    let mut serve = world.serve_run(&run);
    assert!(serve.until(|| world.sandbox.names("objects").len() == 1));
    sleep(Duration::from_millis(300));
    serve.signal("INT");
    serve.wait().fails(130, &["interrupted"]);
    let worker = world.work("--par 1 --scratchdir scratch");
    world.serve_run(&run).wait().succeeds();
    worker.wait().succeeds();
    let shares = world.sandbox.json("report.json")["cluster"]["workers"].clone();
    let blocks = shares.as_array().unwrap().iter().map(|share| share["blocks"].as_u64().unwrap());
    assert_eq!(blocks.sum::<u64>(), 4521);
    assert_eq!(world.sandbox.names("scratch"), [""; 0]);
    world.expect_done();
}

/// Each machine has undo data next to its blocks, so every rule is checked.
#[test]
fn with_undo_data_every_rule_is_checked() {
    let world = World::with(REGTEST);
    let worker = world.work("--par 2");
    let run = world.run("--segment-bytes 9000 --assumevalid 0");
    let run = run.replace("--assumevalid hints ", "");
    let ended = world.serve_run(&run).wait().succeeds();
    worker.wait().succeeds();
    assert!(ended.stdout.contains("every script"), "{ended}");
    let report = world.sandbox.json("report.json");
    assert_eq!(report["aggregate"], "coins");
    assert_eq!(report["verified"]["scripts"], true);
    world.expect_done();
}

#[test]
fn hints_from_a_snapshot_and_leaves_of_the_forest_work() {
    let world = World::with(REGTEST);
    let worker = world.work("--par 2");
    let run = world.run("--segment-bytes 9000 --out utreexo:roots");
    let run = run.replace("msb.hints", "snapshot:node.dat");
    world.serve_run(&run).wait().succeeds();
    worker.wait().succeeds();
    let alone = "sync --chain regtest --blocksdir blocks --hints msb.hints --out utreexo:alone";
    world.sandbox.start(alone).wait().succeeds();
    assert!(world.sandbox.read("roots") == world.sandbox.read("alone"));
    world.expect_done();
}

/// For each kind of job, two machines produce exactly the same bytes; one machine cannot be compared with itself.
#[test]
fn jobs_on_two_machines_give_the_same_result() {
    let world = World::with(REGTEST);
    let first = world.work("--par 2 --stay --name first");
    let mut serve = world.serve("--segment-bytes 9000 --audit 60 --progress plain");
    sleep(Duration::from_secs(3));
    assert!(!serve.has_ended(), "a machine was compared with itself");
    let second = world.work("--par 2 --stay --name second");
    serve.wait().succeeds();
    world.expect_done();
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.sandbox.remove(name);
    }
    world.serve_run(&world.join("--segment-bytes 9000 --audit 100")).wait().succeeds();
    world.expect_done();
    first.kill();
    second.kill();
}

#[test]
fn status_shows_runs_and_machines() {
    let world = World::with(REGTEST);
    world.status("").succeeds().says(&["no active runs"]);
    let mut serve = world.serve("--segment-bytes 9000");
    assert!(serve.until(|| world.status("").stdout.contains("no sign of life from any worker")));
    let json = world.status("--json").succeeds();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let run = &json["runs"][0];
    assert_eq!((&run["chain"], &run["stop_height"]), (&"regtest".into(), &315.into()));
    assert_eq!(run["waiting"], run["segments"]);
    // The worker is stopped before it takes a job, but it is listed.
    let mut worker = world.work("--par 1 --stay --name rack-7");
    serve.until(|| false);
    serve.wait().succeeds();
    assert!(!worker.has_ended());
    worker.signal("INT");
    worker.wait().fails(130, &["interrupted"]);
    world.expect_done();
}

/// The server's disk never contains the secret, neither during the run nor afterwards.
#[test]
fn the_secret_is_hidden_from_the_queue() {
    let world = World::with(REGTEST);
    let mut serve = world.serve("--segment-bytes 9000 --progress json");
    assert!(serve.until(|| !world.status("").stdout.contains("no active runs")));
    let secret = world.secret();
    assert!(world.stores(b"APUSSEAL"), "the test looks in the wrong place");
    assert!(!world.stores(&secret) && !world.stores(b"APUSSPEC"));
    let shown: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let worker = world.work("--par 1");
    let ended = [serve.wait().succeeds(), worker.wait().succeeds()];
    assert!(ended.iter().all(|it| !it.to_string().contains(&shown[..16])));
    assert!(!world.stores(&secret));
    world.expect_done();
}
