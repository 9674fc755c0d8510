//! [`NatsServer`]: a real NATS server with JetStream, for tests of syncs that several machines share.
//!
//! A test that needs it fails if none can be found: it never passes by skipping. It listens only on 127.0.0.1,
//! its streams are in its own folder, and it is killed when dropped.

use crate::http::get;
use crate::programs::{Server, find_program, on_free_ports};
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The folder of a server's streams.
const STREAMS: &str = "streams";

/// The file of a server's settings, if it has any.
const SETTINGS: &str = "nats.conf";

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct NatsServer {
    process: Server,
    port: u16,
    folder: TempDir,
    /// The command that runs it, and its address.
    place: NatsPlace,
}

/// The command that runs a server, and its address.
#[derive(Debug)]
struct NatsPlace {
    by: Vec<String>,
    address: &'static str,
    /// The port on which it reports its traffic, if it does.
    counts: Option<u16>,
}

impl NatsServer {
    /// Starts a server without streams.
    ///
    /// # Panics
    /// If there is no nats-server, or it does not start.
    pub fn start() -> Self {
        Self::start_that(false)
    }

    /// Starts a server that reports its [traffic](Self::counted).
    ///
    /// # Panics
    /// If there is no nats-server, or it does not start.
    pub fn start_counted() -> Self {
        Self::start_that(true)
    }

    fn start_that(counts: bool) -> Self {
        on_free_ports("nats-server", |[port, other]| {
            let folder = tempfile::Builder::new().prefix("nats").tempdir().unwrap();
            let counts = counts.then_some(other);
            let place = NatsPlace { by: Vec::new(), address: "127.0.0.1", counts };
            Ok(Self { process: launch(&folder, port, &place)?, port, folder, place })
        })
    }

    /// Starts a server through another program, for example in its own network namespace, where it listens on
    /// all addresses, with these settings.
    ///
    /// # Panics
    /// If there is no nats-server, or it does not start.
    pub fn start_by(by: &[String], settings: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("nats").tempdir().unwrap();
        fs::write(folder.path().join(SETTINGS), settings).unwrap();
        let (port, place) = (4222, NatsPlace { by: by.to_vec(), address: "0.0.0.0", counts: None });
        let process = launch(&folder, port, &place).unwrap();
        Self { process, port, folder, place }
    }

    /// Returns its address.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the bytes that it received, and the bytes that it sent, of messages with their subjects.
    ///
    /// # Panics
    /// If it was started without counting, or does not answer.
    pub fn counted(&self) -> (u64, u64) {
        let port = self.place.counts.expect("it was started to count");
        let reported: Value = serde_json::from_str(&get(port, "/varz", &[]).body).unwrap();
        let number = |name: &str| reported[name].as_u64().unwrap();
        (number("in_bytes"), number("out_bytes"))
    }

    /// Kills it, like a power failure, except that the system still writes its buffers.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it, and starts it again without its streams.
    ///
    /// # Panics
    /// If it does not start.
    pub fn lose_all(&mut self) {
        self.kill();
        fs::remove_dir_all(self.folder.path().join(STREAMS)).unwrap();
        self.start_again();
    }

    /// Starts it again, with its streams.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_again(&mut self) {
        self.process = launch(&self.folder, self.port, &self.place).unwrap();
    }

    /// Returns all bytes that it has stored, including deleted messages.
    pub fn stored(&self) -> Vec<u8> {
        let (mut bytes, mut folders) = (Vec::new(), vec![self.folder.path().join(STREAMS)]);
        while let Some(folder) = folders.pop() {
            // Files may appear and disappear during the listing.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path().is_dir() {
                    true => folders.push(entry.path()),
                    false => bytes.extend(fs::read(entry.path()).unwrap_or_default()),
                }
            }
        }
        bytes
    }
}

fn launch(folder: &TempDir, port: u16, place: &NatsPlace) -> Result<Server, String> {
    let (said, settings) = (folder.path().join("said"), folder.path().join(SETTINGS));
    let program = find_program("nats-server").into_os_string();
    let mut words = place.by.iter().map(Into::into).chain([program]);
    let mut command = Command::new(words.next().expect("there is a program"));
    command
        .args(words)
        .args(["--jetstream", "--addr", place.address, "--port", &port.to_string()])
        .args(place.counts.iter().flat_map(|port| ["--http_port".to_owned(), port.to_string()]))
        .args(settings.is_file().then_some("--config"))
        .args(settings.is_file().then_some(&settings))
        .arg("--store_dir")
        .arg(folder.path().join(STREAMS));
    start(&mut command, &said, place.by.is_empty().then_some(port))
}

/// Starts a server, and waits until it is ready and, if it can be reached from here, accepts connections.
///
/// # Errors
/// If it does not start.
pub fn start(command: &mut Command, said: &Path, port: Option<u16>) -> Result<Server, String> {
    let is_reached = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
    Server::start(command, said, |said| {
        port.is_none_or(is_reached) && said.contains("Server is ready")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn the_server_counts_its_traffic() {
        let server = NatsServer::start_counted();
        let before = server.counted();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let message = "x".repeat(1000);
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB it 1\r\nPUB it 1000\r\n{message}\r\n")
            .unwrap();
        // Once the message has returned, the server has counted both directions.
        let mut read = Vec::new();
        let mut piece = [0; 4096];
        while !String::from_utf8_lossy(&read).contains(&message) {
            let more = stream.read(&mut piece).unwrap();
            assert!(more > 0);
            read.extend_from_slice(&piece[..more]);
        }
        let after = server.counted();
        assert!(after.0 >= before.0 + 1000 && after.1 >= before.1 + 1000, "{before:?} {after:?}");
    }

    #[test]
    fn a_killed_server_can_be_restarted() {
        let mut server = NatsServer::start();
        let port = server.port;
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        server.start_again();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    }
}
