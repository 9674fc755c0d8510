//! Runs whose coordinator never returns: workers turn to a run that has one, and the user can remove such a run.

use crate::cluster::altered::{machine, newest};
use crate::cluster::world::{Process, World};
use crate::sandbox::MAIN;
use std::fs;

/// The options of a run in another work folder than that of [`World::run`], so that it is another run.
fn other(world: &World) -> String {
    world.join("--progress plain").replace("progress.work", "other.work")
}

/// Starts a run, and kills its coordinator once it has queued a job. Returns the name of the run.
fn abandoned(world: &World) -> String {
    let mut serve = world.serve_run(&other(world));
    assert!(serve.until(|| world.status("").stdout.contains(", 1 waiting")));
    serve.kill();
    world.sandbox.names("objects").remove(0)
}

/// Asserts that a run completes beside an abandoned one, and returns what the worker said.
fn completes(world: &World, worker: Process) -> String {
    world.serve("").wait().succeeds();
    world.expect_outputs();
    worker.wait().succeeds().stderr
}

#[test]
fn a_worker_leaves_an_abandoned_run_for_one_with_a_coordinator() {
    let world = World::with(MAIN);
    let run = abandoned(&world);
    let mut worker = world.work("--par 1");
    // The worker has joined the run, and does its job.
    assert!(worker.until(|| world.status("").stdout.contains("1 answered")));
    let said = completes(&world, worker);
    assert!(said.contains(&format!("no sign of life from the coordinator of run {run}")), "{said}");
}

/// A worker that cannot take part in an abandoned run waits for another one instead of giving up.
#[test]
fn an_abandoned_run_that_cannot_be_done_keeps_no_worker_from_another() {
    let world = World::with(MAIN);
    let run = abandoned(&world);
    fs::remove_dir_all(world.sandbox.path(&format!("objects/{run}"))).unwrap();
    let said = completes(&world, world.work("--par 1"));
    let remedy = format!("apus cluster forget {run}");
    for part in
        ["has no coordinator, and this machine cannot take part in it", "not found", &remedy]
    {
        assert!(said.contains(part), "{said}");
    }
}

/// A worker that starts beside both kinds of runs joins the one with a coordinator, even if it is older.
#[test]
fn a_new_worker_prefers_a_run_with_a_coordinator() {
    let world = World::with(MAIN);
    let mut serve = world.serve("");
    assert!(serve.until(|| world.status("").stdout.contains(" waiting")));
    let older = newest(&machine(&world, "watcher")).run.name();
    let mut second = world.serve_run(&other(&world));
    assert!(second.until(|| world.status("").stdout.matches(" waiting").count() == 2));
    second.kill();
    // As soon as its coordinator counts as gone.
    let led = || world.status("").stdout.contains("no sign of life from the coordinator");
    assert!(serve.until(led));
    let said = world.work("--par 1").wait().succeeds().stderr;
    serve.wait().succeeds();
    let joined: Vec<_> = said.lines().filter(|line| line.contains("joined run")).collect();
    assert!(joined.len() == 1 && joined[0].ends_with(&older), "{said}");
}

#[test]
fn an_abandoned_run_can_be_removed() {
    let world = World::with(MAIN);
    let forget = |run: &str, more: &str| {
        let line = format!("cluster forget {run} --nats {} {more}", world.url());
        world.start(&line).wait()
    };
    forget("3f9a", "").fails(1, &["has no run 3f9a", "no runs"]);
    let mut serve = world.serve_run(&other(&world));
    assert!(serve.until(|| world.status("").stdout.contains(", 1 waiting")));
    let run = world.sandbox.names("objects").remove(0);
    forget(&run, "--objects objects").fails(1, &["has a coordinator", "Ctrl-C"]);
    serve.kill();
    world.status("").succeeds().says(&["apus cluster forget"]);
    forget(&run[..6], "--objects objects").succeeds().says(&[&format!("removed run {run}")]);
    world.status("").succeeds().says(&["no active runs"]);
    assert_eq!(world.sandbox.names("objects"), [""; 0]);
    // The coordinator's work folder is whole: its command starts the run again.
    let serve = world.serve_run(&other(&world));
    let worker = world.work("--par 1");
    serve.wait().succeeds();
    worker.wait().succeeds();
}

#[test]
fn a_coordinator_without_workers_says_which_run_they_work_on() {
    let world = World::with(MAIN);
    let serve = world.serve_run(&other(&world));
    let busy = machine(&world, "busy");
    let seen = newest(&busy);
    let joined = busy.join(&seen).unwrap().unwrap();
    let second = world.serve("--progress plain");
    let said = format!("busy works on run {}", seen.run);
    // Later than the first report, which may come before the machine's heartbeat.
    std::thread::sleep(std::time::Duration::from_secs(8));
    second.signal("INT");
    second.wait().fails(130, &["no machine works on this run", &said]);
    drop(joined);
    serve.kill();
}
