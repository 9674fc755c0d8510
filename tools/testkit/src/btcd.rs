//! [`Btcd`]: a real node of another make, for the tests that get blocks from one; and how it and those that
//! descend from it are run.
//!
//! A test that needs it fails where none can be found: it never passes by skipping. It lives in a
//! folder of its own, gets its blocks from a bitcoind, and is killed when dropped.

use crate::bitcoind::{Bitcoind, rpc};
use crate::programs::{PATIENCE, POLL_EVERY, find_program, free_ports};
use crate::rpc::Rpc;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::TempDir;

/// Another program may take a port between our choosing it and the node's binding it.
const PORT_TRIES: usize = 5;

/// User and password of its RPC, which listens on 127.0.0.1 alone.
const LOGIN: &str = "user:password";

/// A running btcd on regtest. Dropping it kills it.
#[derive(Debug)]
pub struct Btcd(Relative);

impl Btcd {
    /// Starts a node that gets all blocks of a bitcoind, and waits until it has them.
    ///
    /// # Panics
    /// When there is no btcd, it does not start, or it does not take the blocks.
    pub fn with_blocks_of(node: &Bitcoind) -> Self {
        Self(Relative::with_blocks_of("btcd", &["--nocfilters"], node))
    }

    /// Where peers can reach it, on 127.0.0.1.
    pub fn p2p_port(&self) -> u16 {
        self.0.p2p_port
    }
}

/// A running btcd, or a program that descends from it, on regtest. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Relative {
    name: &'static str,
    process: Child,
    rpc: Rpc,
    pub(crate) p2p_port: u16,
    _folder: TempDir,
}

impl Relative {
    /// Starts a program, with arguments of its own, that gets all blocks of a bitcoind, and waits until it has them.
    pub(crate) fn with_blocks_of(name: &'static str, args: &[&str], node: &Bitcoind) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_TRIES {
            match Self::launch(name, args, node.p2p_port()) {
                Ok(started) => {
                    started.wait_for(&node.best_block_hash().to_string());
                    return started;
                }
                Err(message) => said = message,
            }
        }
        panic!("{name} does not start: {said}")
    }

    fn launch(name: &'static str, args: &[&str], from: u16) -> Result<Self, String> {
        let failed = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new().prefix(name).tempdir().map_err(failed)?;
        let [rpc_port, p2p_port] = free_ports();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let said = folder.path().join("said");
        let (user, password) = LOGIN.split_once(':').unwrap_or_default();
        // Without one it writes a file of its own into the user's home.
        fs::write(folder.path().join("conf"), "").map_err(failed)?;
        let process = Command::new(find_program(name))
            .args(["--regtest", "--nodnsseed", "--notls", "--nobanning"])
            .args(args)
            .arg(format!("--configfile={}", path("conf")))
            .arg(format!("--datadir={}", path("data")))
            .arg(format!("--logdir={}", path("logs")))
            .arg(format!("--connect=127.0.0.1:{from}"))
            .arg(format!("--listen=127.0.0.1:{p2p_port}"))
            .arg(format!("--rpclisten=127.0.0.1:{rpc_port}"))
            .arg(format!("--rpcuser={user}"))
            .arg(format!("--rpcpass={password}"))
            .stdin(Stdio::null())
            .stdout(File::create(&said).map_err(failed)?)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{name} cannot be run: {error}"))?;
        let rpc = rpc(rpc_port, LOGIN.to_owned());
        let mut started = Self { name, process, rpc, p2p_port, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while started.ask("getblockcount", &[]).is_none() {
            if let Ok(Some(status)) = started.process.try_wait() {
                return Err(format!("it ended with {status}: {}", tail(&said)));
            }
            if Instant::now() > deadline {
                return Err(format!("it did not answer within {PATIENCE:?}: {}", tail(&said)));
            }
            sleep(POLL_EVERY);
        }
        Ok(started)
    }

    /// What it answers to a call; nothing where it answers with an error or not at all.
    pub(crate) fn ask(&self, method: &str, params: &[Value]) -> Option<Value> {
        self.rpc.call(method, params).ok()?.ok()
    }

    fn wait_for(&self, tip: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.ask("getbestblockhash", &[]) != Some(json!(tip)) {
            let late = Instant::now() >= deadline;
            assert!(!late, "{} did not come to {tip} within {PATIENCE:?}", self.name);
            sleep(POLL_EVERY);
        }
    }
}

impl Drop for Relative {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The end of what it said.
fn tail(said: &Path) -> String {
    let text = fs::read_to_string(said).unwrap_or_default();
    text.lines().rev().take(3).collect::<Vec<_>>().join(" < ")
}
