//! A cluster of three NATS servers that loses the leader of a stream during a run.

use super::nats_cluster::NatsCluster;
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than servers take to elect a leader, even on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a leader of a stream.
fn leader_of(cluster: &NatsCluster, stream: &str, serve: &mut Process) -> Option<usize> {
    let deadline = Instant::now() + PATIENCE;
    while !serve.has_ended() {
        if let Some(leader) = cluster.leader_of(stream) {
            return Some(leader);
        }
        assert!(Instant::now() < deadline, "{stream} has no leader");
        sleep(Duration::from_millis(5));
    }
    None
}

/// Kills the leader of a stream repeatedly; returns how often during the run.
fn loses_leaders(
    cluster: &mut NatsCluster,
    run: &str,
    world: &World,
    kills: u64,
    rng: &mut Rng,
) -> u64 {
    let workers = [world.work("--par 1 --stay"), world.work("--par 1 --stay --scratchdir scratch")];
    let mut serve = world.serve_run(run);
    let mut killed = 0;
    for _ in 0..kills {
        sleep(Duration::from_millis(rng.below(400)));
        let stream = ["apus-jobs-", "apus-answers-", "apus-runs"][rng.below(3) as usize];
        let Some(leader) = leader_of(cluster, stream, &mut serve) else { break };
        assert_eq!(cluster.replicas_of(stream), 3, "{stream}");
        println!("{stream} loses its leader, server {leader}");
        cluster.kill(leader);
        killed += 1;
        // The remaining two servers elect another leader.
        leader_of(cluster, stream, &mut serve);
        sleep(Duration::from_millis(rng.below(1500)));
        cluster.start_again(leader);
    }
    serve.wait().succeeds();
    for mut worker in workers {
        assert!(!worker.has_ended(), "a worker gave up: {}", worker.wait());
        worker.kill();
    }
    world.expect_outputs();
    assert_eq!(world.sandbox.json("report.json")["blocks"], 4521);
    killed
}

#[test]
fn without_the_leader_of_a_stream_the_set_is_the_same() {
    let mut cluster = NatsCluster::start();
    let mut killed = 0;
    for seed in 0..rounds(1, 4) {
        let mut rng = Rng::new(8000 + seed);
        let mut world = World::with(MAIN);
        world.queue = Some(cluster.urls());
        let run = match seed % 2 {
            0 => world.run("--segment-bytes 1500 --checkpoint-seconds 0"),
            _ => world.join("--segment-bytes 6000 --checkpoint-seconds 0"),
        };
        killed += loses_leaders(&mut cluster, &run, &world, rounds(1, 4), &mut rng);
    }
    assert!(killed > 0, "the runs were over before a leader was killed");
}

/// The user can choose how many servers keep each stream; a number above that of the servers is an error.
#[test]
fn the_number_of_replicas_can_be_set() {
    let cluster = NatsCluster::start();
    let mut world = World::with(MAIN);
    world.queue = Some(cluster.urls());
    let mut serve = world.serve("--segment-bytes 20000 --replicas 1");
    leader_of(&cluster, "apus-jobs-", &mut serve);
    assert_eq!(cluster.replicas_of("apus-jobs-"), 1);
    let worker = world.work("--par 1");
    serve.wait().succeeds();
    worker.leave();
    world.expect_done();
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.sandbox.remove(name);
    }
    let mut serve = world.serve("--segment-bytes 20000 --replicas 5 --progress plain");
    sleep(Duration::from_secs(4));
    assert!(!serve.has_ended());
    serve.signal("INT");
    serve.wait().fails(130, &["each stream needs 5 servers"]);
}
