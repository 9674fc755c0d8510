//! [`Btcd`]: a real node of another implementation, for tests that get blocks from one; and how to run it and
//! programs derived from it.
//!
//! A test that needs it fails if none can be found: it never passes by skipping. It has its own folder, gets
//! its blocks from a bitcoind, and is killed when dropped.

use crate::bitcoind::{Bitcoind, rpc};
use crate::programs::{Server, find_program, on_free_ports, wait_until};
use crate::rpc::Rpc;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use tempfile::TempDir;

/// User and password of its RPC, which listens only on 127.0.0.1.
const LOGIN: &str = "user:password";

/// A running btcd on regtest. Dropping it kills it.
#[derive(Debug)]
pub struct Btcd(Relative);

impl Btcd {
    /// Starts a node that gets all blocks of a bitcoind, and waits until it has them.
    ///
    /// # Panics
    /// If there is no btcd, it does not start, or it does not accept the blocks.
    pub fn with_blocks_of(node: &Bitcoind) -> Self {
        Self(Relative::with_blocks_of("btcd", &["--nocfilters"], node))
    }

    /// Returns the port for peers, on 127.0.0.1.
    pub fn p2p_port(&self) -> u16 {
        self.0.p2p_port
    }
}

/// A running btcd, or a program derived from it, on regtest. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Relative {
    _process: Server,
    rpc: Rpc,
    pub(crate) p2p_port: u16,
    _folder: TempDir,
}

impl Relative {
    /// Starts a program with its own arguments that gets all blocks of a bitcoind, and waits until it has them.
    pub(crate) fn with_blocks_of(name: &'static str, args: &[&str], node: &Bitcoind) -> Self {
        let from = node.p2p_port();
        let started = on_free_ports(name, |ports| Self::launch(name, args, ports, from));
        let tip = json!(node.best_block_hash().to_string());
        wait_until(&format!("{name} at {tip}"), || {
            started.ask("getbestblockhash", &[]).as_ref() == Some(&tip)
        });
        started
    }

    fn launch(
        name: &'static str,
        args: &[&str],
        [rpc_port, p2p_port]: [u16; 2],
        from: u16,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new().prefix(name).tempdir().map_err(failed)?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (user, password) = LOGIN.split_once(':').unwrap_or_default();
        // Without a configuration file it writes one into the user's home.
        fs::write(folder.path().join("conf"), "").map_err(failed)?;
        let mut command = Command::new(find_program(name));
        command
            .args(["--regtest", "--nodnsseed", "--notls", "--nobanning"])
            .args(args)
            .arg(format!("--configfile={}", path("conf")))
            .arg(format!("--datadir={}", path("data")))
            .arg(format!("--logdir={}", path("logs")))
            .arg(format!("--connect=127.0.0.1:{from}"))
            .arg(format!("--listen=127.0.0.1:{p2p_port}"))
            .arg(format!("--rpclisten=127.0.0.1:{rpc_port}"))
            .arg(format!("--rpcuser={user}"))
            .arg(format!("--rpcpass={password}"));
        let rpc = rpc(rpc_port, LOGIN.to_owned());
        let answers = |_: &str| matches!(rpc.call("getblockcount", &[]), Ok(Ok(_)));
        let process = Server::start(&mut command, &folder.path().join("said"), answers)?;
        Ok(Self { _process: process, rpc, p2p_port, _folder: folder })
    }

    pub(crate) fn ask(&self, method: &str, params: &[Value]) -> Option<Value> {
        self.rpc.call(method, params).ok()?.ok()
    }
}
