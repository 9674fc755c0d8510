//! [`ServedNode`]: a node that serves the blocks of a prepared folder.
//!
//! It runs on its own copy, which shares immutable files by hard links, so that many nodes take the disk
//! space and the page cache of one.

use super::folder::{BenchNodeFolder, CHAIN_DIR, PATIENCE, QUIET, comparable, free_port, version};
use crate::chain::BenchChain;
use crate::error::{AtPath, BenchError, ErrorKind};
use crate::process::{self, RunningProgram, Usage};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Another program may take a port after it was chosen and before the node binds it.
const PORT_TRIES: usize = 5;

/// A running node. Dropping it kills it.
#[derive(Debug)]
pub struct ServedNode {
    process: RunningProgram,
    /// The address that it listens on.
    pub address: SocketAddr,
}

impl BenchNodeFolder {
    /// Starts a node on a copy of this folder, replacing an existing copy, with or without the encrypted
    /// transport.
    pub fn serve(
        &self,
        copy: &Path,
        v2transport: bool,
        interrupt: &AtomicBool,
    ) -> Result<ServedNode, BenchError> {
        if copy.exists() {
            fs::remove_dir_all(copy).at(copy)?;
        }
        let own = |name: &str| [".lock", ".cookie", "debug.log"].contains(&name);
        link_tree(&self.path.join(CHAIN_DIR), &copy.join(CHAIN_DIR), &self.last_file()?, &own)?;
        let mut tries = 1;
        loop {
            match self.serve_once(copy, v2transport, interrupt) {
                Err(error) if error.kind() == ErrorKind::Io && tries < PORT_TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// The block file that a node might still write to.
    fn last_file(&self) -> Result<String, BenchError> {
        let last = self.files()?.pop().unwrap_or_default();
        let name = last.file_name().unwrap_or_default().to_string_lossy();
        Ok(name.trim_start_matches("blk").to_owned())
    }

    fn serve_once(
        &self,
        copy: &Path,
        v2transport: bool,
        interrupt: &AtomicBool,
    ) -> Result<ServedNode, BenchError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().at(copy)?));
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-datadir={}", copy.display()))
            .args(QUIET.iter().filter(|argument| **argument != "-listen=0"))
            .args(["-listen=1", "-listenonion=0", "-discover=0", "-blocksonly=1", "-server=0"])
            .args(["-checkblocks=1", "-checklevel=0", "-maxtipage=2000000000", "-dbcache=4"])
            .arg(format!("-bind={address}"))
            .arg(format!("-v2transport={}", u8::from(v2transport)));
        // It listens once it has loaded its chain.
        let listens = || TcpStream::connect(address).ok();
        let (process, _) = process::start(&mut command, PATIENCE, interrupt, listens)?;
        Ok(ServedNode { process, address })
    }
}

impl ServedNode {
    /// Whether the node has ended without being stopped.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended().unwrap_or(true)
    }
}

/// Copies a folder; LevelDB tables and full block and undo files as hard links, if the file system allows.
fn link_tree(
    from: &Path,
    to: &Path,
    last_file: &str,
    left_out: &dyn Fn(&str) -> bool,
) -> Result<(), BenchError> {
    fs::create_dir_all(to).at(to)?;
    for entry in fs::read_dir(from).at(from)? {
        let path: PathBuf = entry.at(from)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let target = to.join(&name);
        if path.is_dir() {
            link_tree(&path, &target, last_file, left_out)?;
            continue;
        }
        if left_out(&name) {
            continue;
        }
        let blocks = name.starts_with("blk") || name.starts_with("rev");
        let shared = name.ends_with(".ldb") || (blocks && !name.ends_with(last_file));
        if !shared || fs::hard_link(&path, &target).is_err() {
            fs::copy(&path, &target).at(&path)?;
        }
    }
    Ok(())
}

// ---- a node that downloads its blocks ----

impl BenchNodeFolder {
    /// A folder below `scratch` for a node without any blocks. Creates nothing yet.
    pub fn of_its_own(
        program: &Path,
        chain: &BenchChain,
        scratch: &Path,
    ) -> Result<Self, BenchError> {
        let manifest = comparable(chain)?.clone();
        let version = version(program)?;
        let path = scratch.join("bitcoind-from-peers");
        let known_block = super::known_block(program, chain)?;
        Ok(Self { program: program.to_owned(), version, path, manifest, known_block })
    }

    /// The arguments of [`BenchNodeFolder::download`], without the folder. Scripts are skipped up to the last
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

    /// Removes an existing folder, and downloads all blocks from peers.
    pub fn download(
        &self,
        peers: &[SocketAddr],
        v2transport: bool,
        dbcache_mib: u64,
        interrupt: &AtomicBool,
    ) -> Result<Usage, BenchError> {
        self.clear()?;
        let mut command = Command::new(&self.program);
        command.arg(format!("-datadir={}", self.path.display()));
        command.args(self.download_arguments(peers, v2transport, dbcache_mib));
        let (usage, log) = self.logged(&mut command, interrupt)?;
        log.expect_end(self.manifest.height).map_err(BenchError::different)?;
        Ok(usage)
    }

    /// Removes everything.
    pub fn remove(&self) -> Result<(), BenchError> {
        if self.path.exists() {
            fs::remove_dir_all(&self.path).at(&self.path)?;
        }
        Ok(())
    }
}
