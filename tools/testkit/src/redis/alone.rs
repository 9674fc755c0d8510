//! [`RedisServer`]: one real Redis server that is none of a cluster.

use super::{PATIENCE, answer};
use crate::programs::{POLL_EVERY, find_program, free_ports};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::TempDir;

/// A running server on 127.0.0.1. Dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    settings: Vec<String>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts one with settings as they stand on its command line, and else as it comes.
    ///
    /// # Panics
    /// When there is no redis-server, or it does not start.
    pub fn start(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("redis").tempdir().unwrap();
        let [port, _, _] = free_ports();
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let process = launch(port, &settings, &folder);
        let mut server = Self { process, port, settings, folder };
        server.wait();
        server
    }

    /// The server as a store on it is named.
    pub fn url(&self, name: &str) -> String {
        format!("redis://127.0.0.1:{}/{name}", self.port)
    }

    /// Kills it, at once and without a warning, and starts it again with what it kept.
    ///
    /// # Panics
    /// When it does not start.
    pub fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = launch(self.port, &self.settings, &self.folder);
        self.wait();
    }

    /// Says a line of text to it, and what it answers to that.
    pub fn tell(&self, line: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        answer(&mut BufReader::new(stream))
    }

    fn wait(&mut self) {
        let started = Instant::now();
        while !self.tell("PING").is_ok_and(|said| said.contains("PONG")) {
            let is_there = self.process.try_wait().unwrap().is_none();
            assert!(is_there && started.elapsed() < PATIENCE, "redis-server does not start");
            sleep(POLL_EVERY);
        }
    }
}

fn launch(port: u16, settings: &[String], folder: &TempDir) -> Child {
    Command::new(find_program("redis-server"))
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()])
        .args(settings)
        .arg("--dir")
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
