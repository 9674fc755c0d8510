//! The life of a node: start on free ports, wait until it answers, stop or kill.

use crate::programs::{Server, free_ports, wait_until};
use crate::rpc::{Rpc, RpcError};
use serde_json::Value;
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Another program may take a port between our choice and the node's bind.
const PORT_TRIES: usize = 5;

/// Where a node keeps its data.
#[derive(Debug)]
pub enum NodeFolder {
    /// A new folder, which is removed with the node.
    Temporary(TempDir),
    /// A folder of the caller, which outlives the node.
    Given(PathBuf),
}

impl NodeFolder {
    /// The folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Given(folder) => folder,
        }
    }
}

/// A running bitcoind. Dropping it kills it.
#[derive(Debug)]
pub struct Bitcoind {
    process: Server,
    folder: NodeFolder,
    chain: String,
    rpc: Rpc,
    p2p_port: u16,
}

impl Bitcoind {
    /// Starts a regtest node in a new folder, with further arguments such as `-blocksxor=0`.
    ///
    /// # Panics
    /// If there is no bitcoind or it does not start.
    pub fn start(args: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("bitcoind-").tempdir();
        Self::launch(NodeFolder::Temporary(folder.expect("a temporary folder")), "regtest", args)
            .unwrap_or_else(|message| panic!("{message}"))
    }

    /// Starts a node for `chain` (Core's name for it) on a data directory of the caller.
    ///
    /// `Err` holds the node's message if it refused to start.
    pub fn start_in(folder: &Path, chain: &str, args: &[&str]) -> Result<Self, String> {
        Self::launch(NodeFolder::Given(folder.to_owned()), chain, args)
    }

    /// Stops the node and starts it on the same data with other arguments.
    ///
    /// # Panics
    /// If it does not stop or does not start.
    pub fn restart(&mut self, args: &[&str]) {
        self.shut_down();
        // Pass the folder as the caller's, so that a temporary folder outlives both nodes.
        let given = NodeFolder::Given(self.datadir().to_owned());
        let mut next = Self::launch(given, &self.chain, args).unwrap_or_else(|m| panic!("{m}"));
        std::mem::swap(&mut self.process, &mut next.process);
        std::mem::swap(&mut self.rpc, &mut next.rpc);
        self.p2p_port = next.p2p_port;
    }

    /// Stops the node cleanly and returns its folder, with all data flushed.
    ///
    /// # Panics
    /// If it does not stop by itself.
    pub fn stop(mut self) -> NodeFolder {
        self.shut_down();
        let gone = NodeFolder::Given(PathBuf::new());
        std::mem::replace(&mut self.folder, gone)
    }

    /// Stops the node with a signal, as a service manager does, and returns its folder.
    ///
    /// # Panics
    /// If it does not stop by itself.
    pub fn terminate(mut self) -> NodeFolder {
        self.signal("TERM");
        self.expect_end();
        let gone = NodeFolder::Given(PathBuf::new());
        std::mem::replace(&mut self.folder, gone)
    }

    /// Sends a signal by its name.
    ///
    /// # Panics
    /// If the system has no program `kill`.
    pub fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        sent.expect("every POSIX system has this program");
    }

    /// Kills the node at once, like a power failure, and returns its folder.
    pub fn kill(mut self) -> NodeFolder {
        self.process.kill();
        let gone = NodeFolder::Given(PathBuf::new());
        std::mem::replace(&mut self.folder, gone)
    }

    /// Returns its data directory.
    pub fn datadir(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the part of the data directory that belongs to the node's chain.
    pub fn chain_dir(&self) -> PathBuf {
        chain_dir(self.datadir(), &self.chain)
    }

    /// Returns the folder of its block files.
    pub fn blocks_dir(&self) -> PathBuf {
        self.chain_dir().join("blocks")
    }

    /// Returns the port for peers, on 127.0.0.1.
    pub fn p2p_port(&self) -> u16 {
        self.p2p_port
    }

    /// Returns the node's log so far.
    pub fn log(&self) -> String {
        let file = self.chain_dir().join("debug.log");
        String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
    }

    /// Calls a method of the node.
    ///
    /// # Panics
    /// If the node answers with an error, or not at all.
    pub fn call(&self, method: &str, params: &[Value]) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method that may fail.
    ///
    /// # Panics
    /// If the node does not answer.
    pub fn try_call(&self, method: &str, params: &[Value]) -> Result<Value, RpcError> {
        self.rpc
            .call(method, params)
            .unwrap_or_else(|error| panic!("bitcoind gave no answer to {method}: {error}"))
    }

    fn launch(folder: NodeFolder, chain: &str, args: &[&str]) -> Result<Self, String> {
        Self::launch_on((0..PORT_TRIES).map(|_| free_ports()), folder, chain, args)
    }

    /// Tries pairs of ports in order.
    fn launch_on(
        ports: impl Iterator<Item = [u16; 2]>,
        folder: NodeFolder,
        chain: &str,
        args: &[&str],
    ) -> Result<Self, String> {
        let mut said = String::new();
        for ports in ports {
            match Self::launch_once(ports, folder.path(), chain, args) {
                Ok((process, rpc, p2p_port)) => {
                    let chain = chain.to_owned();
                    return Ok(Self { process, folder, chain, rpc, p2p_port });
                }
                Err(message) if lost_a_port(&message) => said = message,
                Err(message) => return Err(message),
            }
        }
        Err(said)
    }

    fn launch_once(
        [rpc_port, p2p_port]: [u16; 2],
        folder: &Path,
        chain: &str,
        args: &[&str],
    ) -> Result<(Server, Rpc, u16), String> {
        let cookie_file = chain_dir(folder, chain).join(".cookie");
        // A cookie left by a killed node would be mistaken for the new node's.
        let _ = fs::remove_file(&cookie_file);
        let errors = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let mut command = Command::new(super::find());
        command
            .arg(format!("-datadir={}", folder.display()))
            .arg(format!("-chain={chain}"))
            .arg(format!("-rpcport={rpc_port}"))
            .arg(format!("-bind=127.0.0.1:{p2p_port}"))
            .args(["-connect=0", "-listen=1", "-listenonion=0", "-discover=0", "-dnsseed=0"])
            .args(["-server=1", "-rpcthreads=2", "-printtoconsole=0", "-daemon=0"])
            .args(args);
        let found = OnceCell::new();
        let answers = |_: &str| {
            let Ok(cookie) = fs::read_to_string(&cookie_file) else { return false };
            let rpc = super::rpc(rpc_port, cookie);
            // The call fails while the node warms up.
            matches!(rpc.call("getblockcount", &[]), Ok(Ok(_))) && found.set(rpc).is_ok()
        };
        let process = Server::start(&mut command, errors.path(), answers)?;
        let rpc = found.into_inner().ok_or("bitcoind does not answer")?;
        Ok((process, rpc, p2p_port))
    }

    fn shut_down(&mut self) {
        self.call("stop", &[]);
        self.expect_end();
    }

    /// Waits until the node has stopped by itself.
    fn expect_end(&mut self) {
        let mut status = None;
        wait_until("bitcoind stops", || {
            status = self.process.ended();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "bitcoind stopped with {status:?}");
    }
}

/// Returns Core's folder for a chain within the data directory (Core `chainparamsbase.cpp`).
fn chain_dir(datadir: &Path, chain: &str) -> PathBuf {
    match chain {
        "main" => datadir.to_owned(),
        "test" => datadir.join("testnet3"),
        other => datadir.join(other),
    }
}

/// Returns whether the node stopped because another program had one of its ports.
fn lost_a_port(message: &str) -> bool {
    ["Unable to bind", "Unable to start HTTP server", "Failed to listen"]
        .iter()
        .any(|sign| message.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_port_lost_to_another_program_is_not_a_failure() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = listener.local_addr().unwrap().port();
        let [rpc_port, p2p_port] = free_ports();
        let ports = [[taken, p2p_port], [rpc_port, taken], free_ports()];
        let folder = tempfile::tempdir().unwrap();
        let start = |ports: &[[u16; 2]]| {
            let folder = NodeFolder::Given(folder.path().to_owned());
            Bitcoind::launch_on(ports.iter().copied(), folder, "regtest", &[])
        };
        assert!(start(&ports[..2]).is_err());
        let node = start(&ports).unwrap();
        assert_eq!([node.rpc.port, node.p2p_port()], ports[2]);
    }
}
