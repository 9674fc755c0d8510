//! The recipes of docs/remote-coins.md, run as they stand, except for places and ports.

use crate::sandbox::{MAIN, Sandbox};
use apus_testkit::postgres::PostgresServer;
use apus_testkit::programs::{find_program, free_ports};
use std::path::Path;
use std::process::Command;

/// Returns the commands below a mark in the document.
fn recipe(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/remote-coins.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, after) = text.split_once(&format!("<!-- recipe: {name} -->\n```sh\n")).unwrap();
    after.split_once("```").unwrap().0.replace("~/.bitcoin/blocks", "blocks")
}

/// Runs a script in a folder with blocks, and returns what it printed.
fn run(script: &str, programs: &[&Path], environment: &[(&str, &str)]) -> String {
    let sandbox = Sandbox::with(MAIN);
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
    let script = recipe("redis").replace("6379", &port.to_string());
    let script = format!("trap 'kill %1; wait' EXIT\n{script}");
    let said = run(&script, &[&find_program("redis-server")], &[]);
    assert!(said.contains("\"amount_sat\": 5000000000"), "{said}");
}

#[test]
fn the_recipe_for_postgresql_works() {
    let server = PostgresServer::start();
    let (folder, port) = (server.sql("SHOW unix_socket_directories"), server.port().to_string());
    let script = recipe("postgres")
        .replace("sudo -u postgres ", "")
        .replace("@/coins", &format!("@:{port}/coins"))
        .replace("/run/postgresql", &folder);
    let environment =
        [("USER", "me"), ("PGHOST", "127.0.0.1"), ("PGPORT", &port), ("PGUSER", "apus")];
    let said = run(&script, &[&find_program("postgres")], &environment);
    assert!(said.contains("the coins of block 4521 were right as they were found"), "{said}");
    assert_eq!(server.sql("SELECT 1"), "1");
}
