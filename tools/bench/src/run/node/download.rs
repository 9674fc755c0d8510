//! A node that gets its blocks from other nodes, beginning with nothing.

use super::bip30;
use super::folder::{CHAIN_DIR, Folder, LIMIT, comparable, version};
use super::log::{Log, LogError};
use crate::process::{self, Usage};
use crate::run::chain::Chain;
use crate::run::error::{At, RunError};
use std::fs::{self, File};
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

impl Folder {
    /// A folder for a node without any blocks, below `scratch`. Nothing is made yet.
    pub fn of_its_own(program: &Path, chain: &Chain, scratch: &Path) -> Result<Self, RunError> {
        let manifest = comparable(chain)?.clone();
        let version = version(program)?;
        let path = scratch.join("bitcoind-from-peers");
        let known_block = bip30::known_block(program, chain)?;
        Ok(Self { program: program.to_owned(), version, path, manifest, known_block })
    }

    /// The arguments of [`Folder::download`], the folder left out. Scripts are skipped up to the last
    /// block with transactions.
    pub fn download_arguments(
        &self,
        peers: &[SocketAddr],
        v2transport: bool,
        dbcache_mib: u64,
    ) -> Vec<String> {
        let mut arguments = self.quiet();
        arguments.retain(|argument| argument != "-connect=0");
        arguments.extend(peers.iter().map(|peer| format!("-connect={peer}")));
        arguments.extend([
            format!("-v2transport={}", u8::from(v2transport)),
            format!("-dbcache={dbcache_mib}"),
            format!("-assumevalid={}", self.manifest.assumevalid_hash),
            format!("-stopatheight={}", self.manifest.height),
            "-listenonion=0".to_owned(),
            "-server=0".to_owned(),
        ]);
        arguments
    }

    /// Removes what is there, and gets all blocks from peers.
    pub fn download(
        &self,
        peers: &[SocketAddr],
        v2transport: bool,
        dbcache_mib: u64,
        interrupt: &AtomicBool,
    ) -> Result<Usage, RunError> {
        self.clear()?;
        let mut command = Command::new(&self.program);
        command.arg(format!("-datadir={}", self.path.display()));
        command.args(self.download_arguments(peers, v2transport, dbcache_mib));
        let usage = process::run(&mut command, LIMIT, interrupt)?;
        let path = self.path.join(CHAIN_DIR).join("debug.log");
        let log = Log::read(BufReader::new(File::open(&path).at(&path)?)).at(&path)?;
        log.expect_end(self.manifest.height)
            .map_err(|error: LogError| RunError::Different(error.to_string()))?;
        Ok(usage)
    }

    /// Removes everything.
    pub fn remove(&self) -> Result<(), RunError> {
        if self.path.exists() {
            fs::remove_dir_all(&self.path).at(&self.path)?;
        }
        Ok(())
    }
}
