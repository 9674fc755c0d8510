//! [`RedisCluster`]: three real Redis servers as one cluster, for tests of stores on one; [`RedisServer`]: a
//! single server.
//!
//! A test that needs it fails if no redis-server can be found: it never passes by skipping. The servers have
//! their own folder, log their commands, and are killed when dropped. The tests talk to them in lines of text,
//! not through the tested code.

mod alone;

pub use alone::RedisServer;

use crate::line::LineRelay;
use crate::programs::{PATIENCE, Server, find_program, on_free_ports, signal, wait_until};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Number of servers.
pub const NODES: usize = 3;

/// Slots of a cluster.
const SLOTS: usize = 16_384;

/// The settings of the servers.
#[derive(Debug, Clone, Copy, Default)]
pub struct RedisSetup {
    /// The required password, if any.
    pub password: Option<&'static str>,
    /// Whether they lose all data when they stop.
    pub forgets: bool,
    /// Files for TLS, which they speak in addition to plaintext. They then name each other `localhost`.
    pub tls: Option<RedisTls>,
}

/// Files: a certificate for servers and clients, its key, and the trusted authority.
#[derive(Debug, Clone, Copy)]
pub struct RedisTls {
    /// The certificate.
    pub certificate: &'static Path,
    /// Its key.
    pub key: &'static Path,
    /// The authority.
    pub authority: &'static Path,
}

/// A cluster of three servers on 127.0.0.1.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisNode>,
    setup: RedisSetup,
    folder: TempDir,
}

#[derive(Debug)]
struct RedisNode {
    process: Option<Server>,
    ports: Ports,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    clear: u16,
    bus: u16,
    /// Used if they speak TLS.
    tls: u16,
}

/// Relays to the servers of a cluster, which make it seem far away.
#[derive(Debug)]
pub struct RedisFar {
    lines: [LineRelay; NODES],
}

impl RedisFar {
    /// Returns the URL of a store on the servers.
    pub fn url(&self, name: &str) -> String {
        url_of(self.lines.each_ref().map(|line| line.address().port()), name)
    }
}

/// Makes `redis://127.0.0.1:PORT,…/NAME`.
fn url_of(ports: [u16; NODES], name: &str) -> String {
    let nodes = ports.map(|port| format!("127.0.0.1:{port}"));
    format!("redis://{}/{name}", nodes.join(","))
}

impl RedisCluster {
    /// Starts a cluster without a password.
    ///
    /// # Panics
    /// If there is no redis-server, or the servers do not form a cluster.
    pub fn start() -> Self {
        Self::with(RedisSetup::default())
    }

    /// Starts a cluster with these settings. Panics like [`start`](Self::start).
    pub fn with(setup: RedisSetup) -> Self {
        let folder = tempfile::Builder::new().prefix("redis").tempdir().unwrap();
        let mut cluster = Self { nodes: Vec::new(), setup, folder };
        for number in 0..NODES {
            let node = on_free_ports("redis-server", |[clear, bus, tls]| {
                let ports = Ports { clear, bus, tls };
                Ok(RedisNode { process: Some(cluster.launch(number, ports)?), ports })
            });
            cluster.nodes.push(node);
        }
        cluster.join();
        cluster.wait();
        cluster
    }

    /// Returns the ports of the servers.
    pub fn ports(&self) -> [u16; NODES] {
        std::array::from_fn(|number| self.nodes[number].ports.clear)
    }

    /// Returns the URL of a store on the servers: `redis://127.0.0.1:PORT,…/NAME`.
    pub fn url(&self, name: &str) -> String {
        url_of(self.ports(), name)
    }

    /// Returns the URL with TLS: `rediss://localhost:PORT,…/NAME`.
    ///
    /// # Panics
    /// If they do not speak TLS.
    pub fn tls_url(&self, name: &str) -> String {
        assert!(self.setup.tls.is_some(), "the servers speak no TLS");
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| format!("localhost:{}", node.ports.tls)).collect();
        format!("rediss://{}/{name}", nodes.join(","))
    }

    /// Puts relays in front of the servers, which delay everything that clients send. From then on, the servers
    /// send clients to these relays.
    ///
    /// # Panics
    /// If a server refuses, or still reports another port.
    pub fn far(&self, delay: Duration) -> RedisFar {
        let lines = self.ports().map(|port| LineRelay::far(port, delay));
        for (port, line) in self.ports().into_iter().zip(&lines) {
            let said = self
                .tell(port, &format!("CONFIG SET cluster-announce-port {}", line.address().port()));
            assert!(said.unwrap().starts_with("+OK"), "a server reports a wrong port");
        }
        let named = |port| {
            let said = self.tell(port, "CLUSTER SLOTS").unwrap();
            lines.iter().all(|line| said.contains(&format!(":{}\r\n", line.address().port())))
        };
        wait_until("servers learn of each other's lines", || self.ports().into_iter().all(named));
        self.wait();
        RedisFar { lines }
    }

    /// Kills a server without warning.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].process = None;
    }

    /// Starts a killed server again, with its data. [`wait`](Self::wait) waits until all servers form a cluster
    /// again.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self, number: usize) {
        let process = self.launch(number, self.nodes[number].ports).unwrap();
        self.nodes[number].process = Some(process);
    }

    /// Starts all killed servers again.
    ///
    /// # Panics
    /// If one does not start.
    pub fn restart_killed(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].process.is_none() {
                self.restart(number);
            }
        }
    }

    /// Suspends all servers until [`go_on`](Self::go_on). Their connections stay, and the system accepts data
    /// and new connections.
    pub fn stop(&self) {
        self.signal_all("STOP");
    }

    /// Resumes them.
    pub fn go_on(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, name: &str) {
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        processes.for_each(|process| signal(process.id(), name));
    }

    /// Waits until all servers agree that they form a cluster.
    ///
    /// # Panics
    /// If a server refuses, or still reports another port.
    pub fn wait(&self) {
        let whole = |node: &RedisNode| {
            let said = self.tell(node.ports.clear, "CLUSTER INFO").unwrap_or_default();
            let known = format!("cluster_known_nodes:{NODES}\r\n");
            said.contains("cluster_state:ok") && said.contains(&known)
        };
        wait_until("the servers are one cluster", || self.nodes.iter().all(whole));
    }

    /// Sends a line of text to a server, and returns its answer.
    pub fn tell(&self, port: u16, line: &str) -> io::Result<String> {
        ask(port, self.setup.password, line)
    }

    fn launch(&self, number: usize, ports: Ports) -> Result<Server, String> {
        let folder = self.folder.path().join(number.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(find_program("redis-server"));
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
            .args(["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"])
            .args(["--port", &ports.clear.to_string(), "--cluster-port", &ports.bus.to_string()])
            // Written data is in the system's buffers before the server answers, so it outlasts a kill. By default, a
            // server answers first and delays writing while it waits for the disk.
            .args(["--appendonly", if self.setup.forgets { "no" } else { "yes" }])
            .args(["--appendfsync", "always"])
            .arg("--dir")
            .arg(&folder);
        if let Some(password) = self.setup.password {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        if let Some(RedisTls { certificate, key, authority }) = self.setup.tls {
            command
                .args(["--tls-port", &ports.tls.to_string(), "--tls-cluster", "yes"])
                .args(["--tls-auth-clients", "no", "--cluster-announce-hostname", "localhost"])
                .args(["--cluster-preferred-endpoint-type", "hostname"])
                .arg("--tls-cert-file")
                .arg(certificate)
                .arg("--tls-key-file")
                .arg(key)
                .arg("--tls-ca-cert-file")
                .arg(authority);
        }
        let answers =
            |_: &str| self.tell(ports.clear, "PING").is_ok_and(|said| said.contains("PONG"));
        Server::start(&mut command, &folder.join("said"), answers)
    }

    fn join(&self) {
        let [first, ..] = &self.nodes[..] else { return };
        for (number, node) in self.nodes.iter().enumerate() {
            let (from, to) = (SLOTS * number / NODES, SLOTS * (number + 1) / NODES - 1);
            for line in [
                format!("CLUSTER ADDSLOTSRANGE {from} {to}"),
                format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1),
                format!("CLUSTER MEET 127.0.0.1 {} {}", first.ports.clear, first.ports.bus),
            ] {
                let said = self.tell(node.ports.clear, &line).unwrap();
                assert!(said.starts_with("+OK"), "{line}: {said}");
            }
        }
    }
}

/// Sends a line to a server, and returns its answer.
fn ask(port: u16, password: Option<&str>, line: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    if let Some(password) = password {
        stream.write_all(format!("AUTH {password}\r\n").as_bytes())?;
        answer(&mut reader)?;
    }
    stream.write_all(format!("{line}\r\n").as_bytes())?;
    answer(&mut reader)
}

/// Reads one answer of a server: its first line, and the data or the list of answers that the line announces.
fn answer(reader: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    if reader.read_line(&mut text)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = text[1..].trim_end().parse::<i64>();
    match (text.as_bytes()[0], length) {
        (b'$', Ok(length)) if length >= 0 => {
            let mut bytes = vec![0; length as usize + 2];
            reader.read_exact(&mut bytes)?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        (b'*', Ok(length)) => {
            for _ in 0..length {
                text.push_str(&answer(reader)?);
            }
        }
        _ => {}
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_keeps_its_data() {
        let mut cluster =
            RedisCluster::with(RedisSetup { password: Some("word"), ..RedisSetup::default() });
        let [port, ..] = cluster.ports();
        // A key of the first server's slots.
        assert_eq!(cluster.tell(port, "CLUSTER KEYSLOT b").unwrap(), ":3300\r\n");
        assert_eq!(cluster.tell(port, "SET b kept").unwrap(), "+OK\r\n");
        cluster.kill(0);
        assert!(cluster.tell(port, "GET b").is_err());
        cluster.restart(0);
        cluster.wait();
        assert_eq!(cluster.tell(port, "GET b").unwrap(), "$4\r\nkept\r\n");
        assert!(cluster.tell(cluster.ports()[1], "GET b").unwrap().starts_with("-MOVED 3300"));
        assert!(
            cluster.url("x").starts_with("redis://127.0.0.1:") && cluster.url("x").ends_with("/x")
        );
    }
}
