//! Objects in a bucket of a real S3 server.

use super::versitygw::S3Server;
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// A world with its objects in a folder of a bucket.
fn on_bucket(s3: &S3Server) -> World {
    let mut world = World::with(MAIN);
    world.objects = format!("s3://{}/runs/here", S3Server::BUCKET);
    world.environment.extend(s3.environment());
    world
}

/// All objects in the bucket.
fn objects(s3: &S3Server) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![s3.bucket().join("runs")]);
    while let Some(folder) = folders.pop() {
        // Objects may appear and vanish in the meantime.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files
}

/// The objects with results of jobs.
fn results(s3: &S3Server) -> BTreeSet<PathBuf> {
    let is_result = |path: &PathBuf| fs::read(path).unwrap_or_default().starts_with(b"APUSDONE");
    objects(s3).into_iter().filter(is_result).collect()
}

#[track_caller]
fn expect_done(world: &World, s3: &S3Server) {
    world.expect_done();
    assert_eq!(objects(s3), [""; 0].map(PathBuf::from));
    assert!(!world.sandbox.has("objects"), "a folder was used, too");
}

#[test]
fn both_methods_work_through_a_bucket() {
    let s3 = S3Server::start();
    let world = on_bucket(&s3);
    let worker = world.work("--par 2 --stay");
    world.serve("--segment-bytes 60000").wait().succeeds();
    expect_done(&world, &s3);
    for name in ["utxo.dat", "utxo.hints", "report.json"] {
        world.sandbox.remove(name);
    }
    world.serve_run(&world.join("--segment-bytes 30000")).wait().succeeds();
    expect_done(&world, &s3);
    worker.kill();
    assert!(s3.said().contains("/objects/runs/here/"), "it was not asked: {}", s3.said());
}

/// A worker and the store are killed, and objects are lost and changed in the bucket.
#[test]
fn a_run_recovers_from_faults_of_a_bucket() {
    let mut s3 = S3Server::start();
    let world = on_bucket(&s3);
    let mut serve = world.serve_run(&world.join("--segment-bytes 30000 --progress plain"));
    assert!(serve.until(|| world.status("").stdout.contains("waiting")));
    let first = world.work("--par 1 --stay");
    assert!(serve.until(|| results(&s3).len() > 2));
    first.kill();
    serve.signal("STOP");
    let before = results(&s3);
    s3.kill();
    // A machine that starts now reports the missing store; a running machine waits.
    world.work("--par 1").wait().fails(3, &["s3://objects/runs/here: "]);
    serve.signal("CONT");
    sleep(Duration::from_millis(500));
    assert!(!serve.has_ended());
    serve.signal("STOP");
    s3.start_again();
    let mut worker = world.work("--par 1 --stay");
    let is_idle = || world.status("").stdout.contains(" 0 jobs under way, 0 waiting");
    assert!(worker.until(is_idle));
    let all = results(&s3);
    let mut unread = all.difference(&before);
    let (gone, changed) = (unread.next().unwrap(), unread.next().unwrap());
    fs::remove_file(gone).unwrap();
    let mut bytes = fs::read(changed).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(changed, bytes).unwrap();
    serve.signal("CONT");
    let ended = serve.wait().succeeds();
    assert!(ended.stderr.contains("not found"), "{ended}");
    assert!(ended.stderr.contains("its bytes have changed"), "{ended}");
    worker.kill();
    expect_done(&world, &s3);
}

/// Wrong keys, a missing bucket, a missing server: reported before any work, and without revealing a secret.
#[test]
fn an_unusable_bucket_is_reported_at_once_without_secrets() {
    let s3 = S3Server::start();
    let mut world = on_bucket(&s3);
    let both = |world: &World| [world.serve("--progress none"), world.work("--par 1")];
    let secret = "never-to-be-shown-0123456789";
    let expect_failure = |world: &World, said: &[&str]| {
        for ended in both(world).map(Process::wait) {
            let all = ended.fails(3, said).to_string();
            assert!(!all.contains(secret) && !all.contains(S3Server::KEYS[1]), "{all}");
        }
    };
    let right = world.environment.clone();
    let with = |name: &str, value: &str| {
        let mut environment = right.clone();
        environment.push((name.to_owned(), value.to_owned()));
        environment
    };
    world.environment = with("AWS_SECRET_ACCESS_KEY", secret);
    expect_failure(
        &world,
        &["the store refuses the credentials", "AWS_SECRET_ACCESS_KEY in the environment"],
    );
    // The error text comes from the server.
    world.environment = with("AWS_ACCESS_KEY_ID", "stranger");
    expect_failure(&world, &["XAdminUserNotFound"]);
    world.environment = right.clone();
    world.objects = "s3://another-bucket/runs".to_owned();
    expect_failure(&world, &["s3://another-bucket/runs: the bucket does not exist"]);
    world.objects = format!("s3://key:{secret}@{}/runs", S3Server::BUCKET);
    for ended in both(&world).map(Process::wait) {
        let all = ended.fails(1, &["takes only s3://BUCKET/FOLDER"]).stderr;
        assert!(!all.contains(secret), "{all}");
    }
    world.objects = format!("s3://{}/runs", S3Server::BUCKET);
    world.environment = with("AWS_ENDPOINT", "http://127.0.0.1:1");
    expect_failure(&world, &["s3://objects/runs: ", "127.0.0.1:1"]);
}

#[test]
fn keys_do_not_appear_in_stored_data_or_output() {
    let s3 = S3Server::start();
    let world = on_bucket(&s3);
    let mut serve = world.serve("--segment-bytes 20000 --progress json");
    let worker = world.work("--par 1");
    assert!(serve.until(|| objects(&s3).len() > 2));
    assert!(!world.stores(S3Server::KEYS[1].as_bytes()));
    for ended in [serve.wait().succeeds(), worker.wait().succeeds()] {
        assert!(!ended.to_string().contains(S3Server::KEYS[1]), "{ended}");
    }
    assert!(!s3.said().contains(S3Server::KEYS[1]));
    expect_done(&world, &s3);
}
