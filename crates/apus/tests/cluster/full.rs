//! Full disks: a worker's, whose jobs go to others, and the coordinator's, which stops and can be resumed.

use crate::cluster::world::World;
use crate::sandbox::{MAIN, REGTEST};

/// The command prefix that leaves a program room for `bytes` in the folder `small`; other programs do not notice.
fn with_small_folder(bytes: usize) -> Vec<String> {
    let mount = format!("mount -t tmpfs -o size={bytes} none small && exec \"$0\" \"$@\"");
    ["unshare", "--mount", "sh", "-c", &mount].map(str::to_owned).into()
}

/// The command prefix that limits a program's files to `blocks` of 512 bytes.
fn with_small_files(blocks: u32) -> Vec<String> {
    let limit = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    ["sh", "-c", &limit].map(str::to_owned).into()
}

/// The mount is in a namespace, which needs root.
#[test]
fn namespaces_with_a_full_disk_leave_their_jobs_to_others() {
    for bytes in [8192, 32_768] {
        let world = World::with(MAIN);
        std::fs::create_dir(world.sandbox.path("small")).unwrap();
        let serve = world.serve_run(&world.join("--segment-bytes 60000 --progress plain"));
        let line = format!(
            "cluster work --nats {} --objects objects --blocksdir blocks --par 1 --scratchdir small --name full",
            world.url()
        );
        // The worker gathers all segments, which needs no disk, but cannot join any part.
        let full = world.start_by(&with_small_folder(bytes), &line).wait();
        full.fails(3, &["No space left on device", "3 jobs"]);
        let other = world.work("--par 1 --scratchdir scratch --name other");
        let said = serve.wait().succeeds();
        other.wait().succeeds();
        let errors = said.stderr.lines().filter(|line| line.contains("No space left on device"));
        assert!(
            errors.clone().count() > 0 && errors.clone().all(|line| line.contains("full")),
            "{said}"
        );
        let shares = world.sandbox.json("report.json")["cluster"]["workers"].clone();
        let of =
            |name: &str| shares.as_array().unwrap().iter().find(|it| it["name"] == name).cloned();
        assert_eq!(of("full").unwrap()["blocks"], 4521, "{shares}");
        assert!(of("other").unwrap()["segments"].as_u64().unwrap() > 0, "{shares}");
        world.expect_done();
    }
}

/// The coordinator stops at any file that does not fit.
#[test]
fn a_coordinator_with_a_full_disk_stops_and_resumes_when_there_is_room() {
    let world = World::with(MAIN);
    let mut workers = [world.work("--par 1 --stay"), world.work("--par 1 --stay")];
    let run = world.join("--segment-bytes 60000 --progress none --out utreexo:roots");
    for blocks in [0, 4, 12, 40] {
        let line =
            format!("cluster serve --nats {} --objects objects --ack-wait 1 {run}", world.url());
        let ended = world.start_by(&with_small_files(blocks), &line).wait();
        ended.fails(3, &["File too large"]);
        assert!(!world.sandbox.has("utxo.dat"));
    }
    world.serve_run(&run).wait().succeeds();
    assert!(workers[0].until(|| world.sandbox.names("objects").is_empty()));
    for worker in workers.iter_mut() {
        assert!(!worker.has_ended(), "a worker gave up");
    }
    workers.into_iter().for_each(|worker| drop(worker.kill()));
    world.expect_done();
}

/// If only the output does not fit, the next start needs no machine.
#[test]
fn results_stay_until_the_output_is_written() {
    let world = World::with(REGTEST);
    let worker = world.work("--par 1 --stay");
    let run = world.join("--segment-bytes 60000 --progress none");
    let line = format!("cluster serve --nats {} --objects objects {run}", world.url());
    let almost = world.sandbox.read("node.dat").len() as u32 / 512;
    world.start_by(&with_small_files(almost), &line).wait().fails(3, &["File too large"]);
    worker.kill();
    world.serve_run(&run).wait().succeeds();
    world.expect_done();
}
