//! [`NatsServer`]: a real NATS server with JetStream, for the tests of runs that machines share.
//!
//! A test that needs it fails where none can be found: it never passes by skipping. It listens on 127.0.0.1 alone, its
//! streams lie in a folder of its own, and it is killed when dropped.

use crate::http::get;
use crate::programs::{Server, find_program, on_free_ports};
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The file of a server's settings, where it has any.
const SETTINGS: &str = "nats.conf";

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct NatsServer {
    process: Server,
    port: u16,
    folder: TempDir,
    /// What runs it, and where it listens.
    place: NatsPlace,
}

/// What runs a server, and where it listens.
#[derive(Debug)]
struct NatsPlace {
    by: Vec<String>,
    address: &'static str,
    /// Where it tells how much it carried, if it does.
    counts: Option<u16>,
}

impl NatsServer {
    /// Starts a server with no streams.
    ///
    /// # Panics
    /// When there is no nats-server, or it does not start.
    pub fn start() -> Self {
        Self::start_that(false)
    }

    /// Starts a server that tells how much it [carried](Self::counted).
    ///
    /// # Panics
    /// When there is no nats-server, or it does not start.
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

    /// Starts a server by another program, as in a network namespace of its own, where it listens on all addresses; with these
    /// settings.
    ///
    /// # Panics
    /// When there is no nats-server, or it does not start.
    pub fn start_by(by: &[String], settings: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("nats").tempdir().unwrap();
        fs::write(folder.path().join(SETTINGS), settings).unwrap();
        let (port, place) = (4222, NatsPlace { by: by.to_vec(), address: "0.0.0.0", counts: None });
        let process = launch(&folder, port, &place).unwrap();
        Self { process, port, folder, place }
    }

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Bytes that it got, and bytes that it gave, of messages with their subjects.
    ///
    /// # Panics
    /// When it was not started to count, or does not answer.
    pub fn counted(&self) -> (u64, u64) {
        let port = self.place.counts.expect("it was started to count");
        let told: Value = serde_json::from_str(&get(port, "/varz", &[]).body).unwrap();
        let number = |name: &str| told[name].as_u64().unwrap();
        (number("in_bytes"), number("out_bytes"))
    }

    /// Ends it as a power cut would, but for what the system still writes.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, with the streams that it had.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&mut self) {
        self.process = launch(&self.folder, self.port, &self.place).unwrap();
    }

    /// All bytes that it has stored, of messages that are gone as well.
    pub fn stored(&self) -> Vec<u8> {
        let (mut bytes, mut folders) = (Vec::new(), vec![self.folder.path().join("streams")]);
        while let Some(folder) = folders.pop() {
            // Files come and go.
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
        .arg(folder.path().join("streams"));
    start(&mut command, &said, place.by.is_empty().then_some(port))
}

/// Starts a server, and waits until it is ready and reached at a port, if it can be reached from here.
///
/// # Errors
/// When it does not start.
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
    fn it_tells_how_much_it_carried() {
        let server = NatsServer::start_counted();
        let before = server.counted();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let message = "x".repeat(1000);
        write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB it 1\r\nPUB it 1000\r\n{message}\r\n")
            .unwrap();
        // It is back once it was carried both ways.
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
    fn it_is_there_again_after_it_was_killed() {
        let mut server = NatsServer::start();
        let port = server.port;
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        server.start_again();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    }
}
