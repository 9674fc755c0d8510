//! [`RedisServer`]: one real Redis server outside a cluster.

use super::ask;
use crate::programs::{Server, find_program, free_ports};
use std::io;
use std::process::Command;
use tempfile::TempDir;

/// A running server on 127.0.0.1. Dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    process: Server,
    port: u16,
    settings: Vec<String>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server with these command-line settings, and defaults otherwise.
    ///
    /// # Panics
    /// If there is no redis-server, or it does not start.
    pub fn start(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("redis").tempdir().unwrap();
        let [port] = free_ports();
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let process = launch(port, &settings, &folder);
        Self { process, port, settings, folder }
    }

    /// Returns the URL of a store on the server.
    pub fn url(&self, name: &str) -> String {
        format!("redis://127.0.0.1:{}/{name}", self.port)
    }

    /// Kills it without warning, and starts it again with its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = launch(self.port, &self.settings, &self.folder);
    }

    /// Sends a line of text to it, and returns its answer.
    pub fn tell(&self, line: &str) -> io::Result<String> {
        ask(self.port, None, line)
    }
}

fn launch(port: u16, settings: &[String], folder: &TempDir) -> Server {
    let mut command = Command::new(find_program("redis-server"));
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()])
        .args(settings)
        .arg("--dir")
        .arg(folder.path());
    let answers = |_: &str| ask(port, None, "PING").is_ok_and(|said| said.contains("PONG"));
    Server::start(&mut command, &folder.path().join("said"), answers).unwrap()
}
