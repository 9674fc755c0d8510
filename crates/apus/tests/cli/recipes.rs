//! The recipes of docs/remote-coins.md and docs/cluster.md, run as they stand, except for places, ports and heights.

use crate::sandbox::{MAIN, Sandbox};
#[cfg(feature = "cluster")]
use apus_testkit::nats::NatsServer;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::programs::{find_program, free_ports};
use std::path::Path;
use std::process::Command;

/// Returns the commands below a mark in a document.
fn recipe(page: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (_, after) = text.split_once(&format!("<!-- recipe: {name} -->\n```sh\n")).unwrap();
    after.split_once("```").unwrap().0.replace("~/.bitcoin/blocks", "blocks")
}

/// Runs a script in a folder with blocks, and returns what it printed.
fn run(
    sandbox: &Sandbox,
    script: &str,
    programs: &[&Path],
    environment: &[(&str, &str)],
) -> String {
    // Programs beside it may be where a link leads.
    let places = programs
        .iter()
        .flat_map(|program| [program.to_path_buf(), program.canonicalize().unwrap()]);
    let mut folders: Vec<_> = places.map(|place| place.parent().unwrap().to_owned()).collect();
    folders.push(Path::new(env!("CARGO_BIN_EXE_apus")).parent().unwrap().to_owned());
    let paths = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&paths));
    let ended = Command::new("bash")
        .args(["-ec", script])
        .current_dir(sandbox.path(""))
        .env("PATH", std::env::join_paths(folders).unwrap())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    said
}

#[test]
fn the_recipe_for_redis_works() {
    let [port] = free_ports();
    let script = recipe("remote-coins.md", "redis").replace("6379", &port.to_string());
    let script = format!("trap 'kill %1; wait' EXIT\n{script}");
    let said = run(&Sandbox::with(MAIN), &script, &[&find_program("redis-server")], &[]);
    assert!(said.contains("\"amount_sat\": 5000000000"), "{said}");
}

#[test]
fn the_recipe_for_postgresql_works() {
    let server = PostgresServer::start();
    let (folder, port) = (server.sql("SHOW unix_socket_directories"), server.port().to_string());
    let script = recipe("remote-coins.md", "postgres")
        .replace("sudo -u postgres ", "")
        .replace("@/coins", &format!("@:{port}/coins"))
        .replace("/run/postgresql", &folder);
    let environment =
        [("USER", "me"), ("PGHOST", "127.0.0.1"), ("PGPORT", &port), ("PGUSER", "apus")];
    let said = run(&Sandbox::with(MAIN), &script, &[&find_program("postgres")], &environment);
    assert!(said.contains("the coins of block 4521 were right as they were found"), "{said}");
    assert_eq!(server.sql("SELECT 1"), "1");
}

/// The same worker takes part in both runs.
#[cfg(feature = "cluster")]
#[test]
fn the_recipe_for_a_second_run_on_a_cluster_works() {
    let (sandbox, server) = (Sandbox::with(MAIN), NatsServer::start());
    let script = recipe("cluster.md", "second-run")
        .replace("nats://10.0.0.1:4222", &server.url())
        .replace("/mnt/shared/apus", "objects")
        .replace("/mnt/shared/blocks", "blocks")
        .replace("800000", "4000")
        .replace("--stay &", "--stay 2>worker & worker=$!")
        .replace("first.dat", "first.dat --report first.json")
        .replace("second.dat", "second.dat --report second.json");
    let script = format!("trap 'kill $worker; wait' EXIT\n{script}");
    let said = run(&sandbox, &script, &[], &[("APUS_CLUSTER_KEY", &"4b".repeat(32))]);
    assert!(said.contains("no active runs"), "{said}");
    assert!(sandbox.read("second.dat") == sandbox.read("node.dat"));
    let workers = |report: &str| sandbox.json(report)["cluster"]["workers"].clone();
    let (first, second) = (workers("first.json"), workers("second.json"));
    assert_eq!((first[0]["name"].is_string(), &first[0]["name"]), (true, &second[0]["name"]));
    assert_eq!(sandbox.json("first.json")["stop_height"], 4000);
}
