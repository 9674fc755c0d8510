//! Machines with slow, lossy lines, and lines that are cut and restored: each machine in a network namespace.

use super::netns::{HUB, Net, NetLine};
use super::versitygw::S3Server;
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use apus_testkit::effort::rounds;
use apus_testkit::nats::NatsServer;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::Duration;

fn line(millis: u64, lost_per_mille: u64) -> NetLine {
    NetLine { delay: Duration::from_millis(millis), lost_per_mille }
}

/// A queue and a store in the hub, where programs run by default.
fn world_in(net: &Net) -> (World, S3Server) {
    let mut world = World::with(MAIN);
    world.server = NatsServer::start_by(&net.in_hub(), &World::key().server_settings());
    let s3 = S3Server::start_by(&net.in_hub(), HUB);
    world.queue = Some(format!("nats://{HUB}:4222"));
    world.objects = format!("s3://{}/here", S3Server::BUCKET);
    world.environment.extend(s3.environment());
    world.by = net.in_hub();
    (world, s3)
}

fn work_in(net: &Net, place: usize, world: &World) -> Process {
    let (url, objects) = (world.url(), &world.objects);
    let line = format!(
        "cluster work --nats {url} --objects {objects} --blocksdir blocks --par 1 --stay --name place-{place}"
    );
    world.start_by(&net.in_place(place), &line)
}

fn serve_in(net: &Net, place: usize, world: &World, run: &str) -> Process {
    let (url, objects) = (world.url(), &world.objects);
    let line = format!("cluster serve --nats {url} --objects {objects} --ack-wait 2 {run}");
    world.start_by(&net.in_place(place), &line)
}

/// Machines refuse a server that admits everyone and is on another machine. With the settings `nats-conf` prints, the
/// server admits only clients with the key.
#[test]
fn namespaces_with_a_queue_for_everyone_are_refused() {
    let net = Net::new(&[line(0, 0)], 33);
    let (mut world, _s3) = world_in(&net);
    let settings = world.start("cluster nats-conf").wait().succeeds().stdout;
    assert_eq!(settings, World::key().server_settings());
    world.status("").succeeds().says(&["no active runs"]);
    world.environment.retain(|(name, _)| name != "APUS_CLUSTER_KEY");
    world.environment.push(("APUS_CLUSTER_KEY".to_owned(), "4c".repeat(32)));
    world
        .status("")
        .fails(3, &["authorization violation", "apus cluster nats-conf", "--nats-creds"]);
    world.server.kill();
    world.server = NatsServer::start_by(&net.in_hub(), "");
    world.status("").fails(1, &["accepts any client", "apus cluster nats-conf", "--nats-creds"]);
}

#[test]
fn namespaces_with_slow_lossy_lines_give_the_same_set() {
    let net = Net::new(&[line(5, 10), line(50, 5), line(20, 30)], 31);
    let (world, _s3) = world_in(&net);
    let workers = [1, 2].map(|place| work_in(&net, place, &world));
    for run in [world.run("--segment-bytes 60000"), world.join("--segment-bytes 100000")] {
        serve_in(&net, 0, &world, &run).wait().succeeds();
        world.expect_done();
        for name in ["utxo.dat", "utxo.hints", "report.json"] {
            world.sandbox.remove(name);
        }
    }
    for (place, mut worker) in [1, 2].into_iter().zip(workers) {
        let gave_up = worker.has_ended();
        let ended = worker.kill();
        assert!(!gave_up, "a worker gave up: {ended}");
        let (carried, lost) = net.packets(place);
        assert!(carried > 100 && lost > 0, "its line was not used: {carried} {lost}");
    }
}

/// Workers and the coordinator are cut off in turn, and come back.
#[test]
fn namespaces_that_are_cut_off_and_come_back_give_the_same_set() {
    for seed in 0..rounds(1, 6) {
        println!("seed {seed}");
        let mut rng = Rng::new(9000 + seed);
        let net = Net::new(&[line(2, 0), line(5, 0), line(8, 2)], seed);
        let (world, _s3) = world_in(&net);
        let mut workers = [1, 2].map(|place| work_in(&net, place, &world));
        let run = match seed % 2 {
            0 => world.run("--segment-bytes 6000 --checkpoint-seconds 0"),
            _ => world.join("--segment-bytes 60000 --checkpoint-seconds 0"),
        };
        let mut serve = serve_in(&net, 0, &world, &run);
        let mut cuts = 0;
        for _ in 0..rounds(4, 12) {
            sleep(Duration::from_millis(rng.below(900)));
            if serve.has_ended() {
                break;
            }
            let place = rng.below(3) as usize;
            net.cut(place);
            // Sometimes the cut outlasts a lease.
            sleep(Duration::from_millis(rng.below(3500)));
            net.restore(place);
            cuts += 1;
        }
        serve.wait().succeeds();
        assert!(cuts > 0, "the run was over before a line was cut");
        let gave_up = workers.iter_mut().any(Process::has_ended);
        let ended = workers.map(|worker| worker.kill().to_string());
        assert!(!gave_up, "a worker gave up: {ended:?}");
        world.expect_outputs();
        assert_eq!(world.sandbox.json("report.json")["blocks"], 4521);
    }
}
