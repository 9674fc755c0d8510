//! Clients that reach the queue without belonging to the cluster, and runs without a coordinator.

use super::outsider::Outsider;
use crate::cluster::altered::{link, machine, newest};
use crate::cluster::world::World;
use crate::sandbox::REGTEST;
use apus_cluster::{ClusterKey, Coordinator, LinkOptions, Worker};
use apus_jobs::{JobOffer, JobQueue, Jobs, RunId};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// Subjects of a stream.
fn subjects(outsider: &mut Outsider, stream: &str) -> Vec<String> {
    let (mut all, mut next) = (Vec::new(), 1);
    loop {
        let asked = json!({ "next_by_subj": ">", "seq": next }).to_string();
        let reply = outsider.ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), asked.as_bytes());
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        let Some(message) = reply.get("message") else { return all };
        all.push(message["subject"].as_str().unwrap().to_owned());
        next = message["seq"].as_u64().unwrap() + 1;
    }
}

/// Answers of a client without the key cannot affect a run: the coordinator removes them, and machines execute the
/// jobs.
#[test]
fn a_client_without_the_key_cannot_affect_a_run() {
    let world = World::with(REGTEST);
    let mut serve = world.serve("--segment-bytes 9000 --progress plain");
    assert!(serve.until(|| world.status("").stdout.contains(" waiting")));
    let mut outsider = Outsider::connect(&world.server);
    let run = subjects(&mut outsider, "apus-runs")[0].replace("apus.run.", "");
    let stream = format!("apus-jobs-{run}");
    assert!(serve.until(|| subjects(&mut outsider, &stream).len() > 2));
    let jobs = subjects(&mut outsider, &stream);
    let forged = [b"APUSANSW".as_slice(), &10_u32.to_le_bytes(), &[0; 200]].concat();
    for (job, bytes) in jobs.iter().zip([&forged[..], b"hello"]) {
        let reply = outsider.ask(&job.replace("apus.job.", "apus.answer."), bytes);
        assert!(String::from_utf8_lossy(&reply).contains("\"seq\""), "it is not stored");
    }
    let worker = world.work("--par 1");
    let ended = serve.wait().succeeds();
    assert_eq!(
        ended.stderr.matches("was not sealed with the key of this run").count(),
        2,
        "{ended}"
    );
    assert!(ended.stderr.contains("accepts any client"), "{ended}");
    worker.wait().succeeds();
    world.expect_done();
}

/// A machine ignores runs with another key, and jobs that the coordinator did not put.
#[test]
fn runs_and_jobs_with_another_key_are_ignored() {
    let mut world = World::with(REGTEST);
    let (spec, of) = (b"a run", RunId::of(b"a run"));
    let coordinator = Coordinator::connect(&link(&world), Duration::from_secs(30)).unwrap();
    coordinator.open(&of, spec).unwrap();
    let other = LinkOptions { key: ClusterKey::new(&[1; 32]), ..link(&world) };
    let stranger = Worker::connect(&other, Some("stranger")).unwrap();
    assert!(stranger.runs().unwrap().is_empty());
    let ignored = stranger.passed_over();
    assert!(
        ignored[0].contains(&of.name()) && ignored[0].contains("not sealed with the key"),
        "{ignored:?}"
    );
    assert!(
        stranger.runs().unwrap().is_empty() && stranger.passed_over().is_empty(),
        "reported twice"
    );
    let worker = machine(&world, "worker");
    let joined = worker.join(&newest(&worker)).unwrap().unwrap();
    let mut outsider = Outsider::connect(&world.server);
    outsider.ask(&format!("apus.job.{of}.join-5-6"), b"do it");
    assert!(matches!(joined.take(Duration::from_secs(5)).unwrap(), JobOffer::Nothing));
    let ignored = worker.passed_over();
    assert!(ignored[0].starts_with("a job of run ") && ignored.len() == 1, "{ignored:?}");
    world.environment = vec![("APUS_CLUSTER_KEY".to_owned(), "4c".repeat(32))];
    world.status("").succeeds().says(&["with another key"]);
    coordinator.close().unwrap();
}

/// The first command creates the key, readable only by its user, and a worker of the same user finds it.
#[test]
fn machines_of_one_user_find_the_key_by_themselves() {
    let mut world = World::with(REGTEST);
    let home = world.sandbox.path("home").display().to_string();
    world.environment =
        vec![("HOME".to_owned(), home), ("XDG_CONFIG_HOME".to_owned(), String::new())];
    let key = "home/.config/apus/cluster.key";
    world.status("").fails(1, &[key, "copy the file from the coordinator's machine", "--key-file"]);
    let worker = world.work("--par 1");
    world.serve("--segment-bytes 9000").wait().succeeds();
    worker.wait().succeeds();
    let path = world.sandbox.path(key);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(world.sandbox.names("home/.config/apus"), ["cluster.key"]);
    world.expect_done();
    let open = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    open(0o644);
    world.status("").fails(1, &["other users of this machine can read", "chmod 600"]);
    open(0o600);
    world.sandbox.write(key, b"too short");
    world.status("").fails(1, &["64 hexadecimal digits"]);
}

/// A machine that waits in a run whose coordinator is gone switches to another run, and says so.
#[test]
fn machines_leave_a_run_without_a_coordinator() {
    let world = World::with(REGTEST);
    let mut left = world.serve_run(&world.join("--segment-bytes 60000 --progress none"));
    assert!(left.until(|| world.status("").stdout.contains(" waiting")));
    left.kill();
    world.sandbox.remove("progress.work");
    let mut worker = world.work("--par 1 --name early");
    assert!(worker.until(|| world.status("").stdout.contains("early: ")));
    world.status("").succeeds().says(&["no sign of life from the coordinator"]);
    world.serve("--segment-bytes 9000 --progress none").wait().succeeds();
    let ended = worker.wait().succeeds();
    assert!(ended.stderr.contains("leaving the run"), "{ended}");
    world.expect_outputs();
}
