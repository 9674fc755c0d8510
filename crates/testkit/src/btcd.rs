//! [`Btcd`]: a real node of another make, for the tests that get blocks from one.
//!
//! A test that needs it fails where none can be found: it never passes by skipping. It lives in a
//! folder of its own, gets its blocks from a bitcoind, and is killed when dropped.

use crate::bitcoind::{Bitcoind, PATIENCE, POLL_EVERY, find_program, free_ports, rpc};
use apus_rig::rpc::Rpc;
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
pub struct Btcd {
    process: Child,
    rpc: Rpc,
    p2p_port: u16,
    _folder: TempDir,
}

impl Btcd {
    /// Starts a node that gets all blocks of a bitcoind, and waits until it has them.
    ///
    /// # Panics
    /// When there is no btcd, it does not start, or it does not take the blocks.
    pub fn with_blocks_of(node: &Bitcoind) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_TRIES {
            match Self::launch(node.p2p_port()) {
                Ok(btcd) => {
                    btcd.wait_for(&node.best_block_hash().to_string());
                    return btcd;
                }
                Err(message) => said = message,
            }
        }
        panic!("btcd does not start: {said}")
    }

    /// Where peers can reach it, on 127.0.0.1.
    pub fn p2p_port(&self) -> u16 {
        self.p2p_port
    }

    fn launch(from: u16) -> Result<Self, String> {
        let failed = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new().prefix("btcd-").tempdir().map_err(failed)?;
        let [rpc_port, p2p_port] = free_ports();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let said = folder.path().join("said");
        let (user, password) = LOGIN.split_once(':').unwrap_or_default();
        // Without one it writes a file of its own into the user's home.
        fs::write(folder.path().join("conf"), "").map_err(failed)?;
        let process = Command::new(find_program("btcd"))
            .args(["--regtest", "--nodnsseed", "--nocfilters", "--notls", "--nobanning"])
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
            .map_err(|error| format!("btcd cannot be run: {error}"))?;
        let mut btcd =
            Self { process, rpc: rpc(rpc_port, LOGIN.to_owned()), p2p_port, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while btcd.ask("getblockcount").is_none() {
            if let Ok(Some(status)) = btcd.process.try_wait() {
                return Err(format!("it ended with {status}: {}", tail(&said)));
            }
            if Instant::now() > deadline {
                return Err(format!("it did not answer within {PATIENCE:?}: {}", tail(&said)));
            }
            sleep(POLL_EVERY);
        }
        Ok(btcd)
    }

    fn ask(&self, method: &str) -> Option<Value> {
        self.rpc.call(method, &[]).ok()?.ok()
    }

    fn wait_for(&self, tip: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.ask("getbestblockhash") != Some(json!(tip)) {
            assert!(Instant::now() < deadline, "btcd did not come to {tip} within {PATIENCE:?}");
            sleep(POLL_EVERY);
        }
    }
}

impl Drop for Btcd {
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
