//! [`BenchNodeFolder`]: a separate data directory for the node with the blocks of a chain, and runs on it.
//!
//! It shares block files with the chain by hard links if the file system allows, so that both programs read
//! the same pages of the page cache. A node only reads full files; the last one, which it might write to, is
//! a copy. The chain's own folder does not change. Preparing also builds the node's block index, once.

use super::NodeRpc;
use super::log::NodeLog;
use crate::chain::{BenchChain, block_files, read_json};
use crate::error::{AtPath, BenchError};
use crate::manifest::ChainManifest;
use crate::process::{self, Usage};
use crate::run::matrix::ScriptValidation;
use crate::run::report::SetResult;
use apus_chain::BlockHash;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{self, File};
use std::io::BufReader;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Time limit of a run: longer than any should take.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Time limit for a node to answer, or to stop.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// Number of blocks that must follow the last one whose scripts are skipped: more than the work of two weeks
/// (Core `validation.cpp`, `ConnectBlock`: "too recent relative to best header").
const BLOCKS_IN_TWO_WEEKS: u32 = 2_016;

/// A file that this command writes first into every folder that it makes.
const OURS: &str = "README";

/// Written when a folder is ready, and compared when it is reused.
const MARK: &str = "prepared.json";

/// Core's folder for regtest within a data directory.
pub(crate) const CHAIN_DIR: &str = "regtest";

/// No peers, no wallet, no files except the chain's, and none of the internal checks that are on by default
/// on regtest only.
pub(super) const QUIET: &[&str] = &[
    "-chain=regtest",
    "-connect=0",
    "-listen=0",
    "-dnsseed=0",
    "-disablewallet=1",
    "-persistmempool=0",
    "-checkblockindex=0",
    "-checkmempool=0",
    "-printtoconsole=0",
    "-logtimemicros=1",
];

/// Default size of a node's mempool, in MB. Its coins cache may use the unused part of it, which is all of it
/// here.
const MEMPOOL_MIB: u64 = 300;

/// The smallest possible mempool. The coins cache may also use the mempool's unused memory, so with a larger
/// mempool it could exceed `-dbcache`.
const MEMPOOL_LEAST: &str = "-maxmempool=5";

/// A prepared data directory.
#[derive(Debug)]
pub struct BenchNodeFolder {
    pub(super) program: PathBuf,
    /// The node's version string.
    pub version: String,
    /// The data directory.
    pub path: PathBuf,
    pub(super) manifest: ChainManifest,
    /// The block after which it skips BIP-30 look-ups, if the node has that option.
    pub(super) known_block: Option<BlockHash>,
}

/// Identity of a prepared folder.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PreparedMark {
    version: String,
    blocksdir: PathBuf,
    tip_hash: String,
    bytes: u64,
}

/// Usage and log of one timed run.
#[derive(Debug)]
pub struct TimedRun {
    /// Usage of the process, including its last flush.
    pub usage: Usage,
    /// The facts from its log.
    pub log: NodeLog,
}

impl BenchNodeFolder {
    /// Prepares a folder for the chain in `scratch`, unless it is ready already.
    pub fn prepare(
        program: &Path,
        chain: &BenchChain,
        scratch: &Path,
        interrupt: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let manifest = comparable(chain)?.clone();
        let path = scratch.join(format!("bitcoind-{:.16}", manifest.tip_hash));
        let version = version(program)?;
        let mark = PreparedMark {
            version: version.clone(),
            blocksdir: fs::canonicalize(&chain.blocksdir).at(&chain.blocksdir)?,
            tip_hash: manifest.tip_hash.clone(),
            bytes: manifest.bytes,
        };
        let known_block = super::known_block(program, chain)?;
        let (marked, program) = (path.join(MARK), program.to_owned());
        let folder = Self { program, version, path, manifest, known_block };
        if marked.is_file() && read_json::<PreparedMark>(&marked).is_ok_and(|found| found == mark) {
            return Ok(folder);
        }
        folder.clear()?;
        folder.fill(chain)?;
        let mut command = folder.command();
        let validation = ScriptValidation::Assumevalid;
        command.arg("-reindex").args(folder.until_tip(validation));
        folder.timed(&mut command, validation, interrupt)?;
        let text = serde_json::to_string_pretty(&mark)
            .map_err(|error| BenchError::file(&marked, error))?;
        fs::write(&marked, text).at(&marked)?;
        Ok(folder)
    }

    /// Removes a folder that was prepared for something else, or incompletely. Refuses to remove a folder that
    /// this command did not make.
    pub(super) fn clear(&self) -> Result<(), BenchError> {
        let (path, ours) = (&self.path, self.path.join(OURS));
        if path.exists() && !ours.is_file() {
            return Err(BenchError::usage(format!(
                "{} exists and was not made by this command: choose another folder with --dir",
                path.display()
            )));
        }
        if path.exists() {
            fs::remove_dir_all(path).at(path)?;
        }
        fs::create_dir_all(path).at(path)?;
        fs::write(&ours, "Made for benchmarks of bitcoind; safe to remove.\n").at(&ours)
    }

    /// Hard-links the chain's block files into the folder; copies any file that may change.
    fn fill(&self, chain: &BenchChain) -> Result<(), BenchError> {
        let blocks = self.path.join(CHAIN_DIR).join("blocks");
        fs::create_dir_all(&blocks).at(&blocks)?;
        let files = chain.files()?;
        let key = chain.blocksdir.join("xor.dat");
        for path in files.iter().chain(key.is_file().then_some(&key)) {
            let to = blocks.join(path.file_name().unwrap_or_default());
            let may_change = Some(path) == files.last() || *path == key;
            if may_change || fs::hard_link(path, &to).is_err() {
                fs::copy(path, &to).at(path)?;
            }
        }
        Ok(())
    }

    /// Whether the node looks up every output for BIP-30, as nodes do on regtest only.
    pub fn looks_up_bip30(&self) -> bool {
        self.known_block.is_none()
    }

    /// The node's block files.
    pub fn files(&self) -> Result<Vec<PathBuf>, BenchError> {
        block_files(&self.path.join(CHAIN_DIR).join("blocks"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(format!("-datadir={}", self.path.display())).args(self.quiet());
        command
    }

    /// [`QUIET`], and the block that ends look-ups for BIP-30.
    pub(super) fn quiet(&self) -> Vec<String> {
        let quiet = QUIET.iter().map(|&argument| argument.to_owned());
        quiet.chain(self.known_block.map(super::bip30_argument)).collect()
    }

    /// Arguments that stop the node at the tip, or at the end of the block files if it does not reach the
    /// tip.
    fn until_tip(&self, validation: ScriptValidation) -> [String; 4] {
        let assumed = match validation {
            ScriptValidation::Assumevalid => self.manifest.assumevalid_hash.as_str(),
            ScriptValidation::Full => "0",
        };
        [
            format!("-assumevalid={assumed}"),
            format!("-stopatheight={}", self.manifest.height),
            "-stopafterblockimport=1".to_owned(),
            "-server=0".to_owned(),
        ]
    }

    /// The arguments of a timed run, without the folder.
    pub fn arguments(&self, validation: ScriptValidation, dbcache_mib: u64) -> Vec<String> {
        let run = ["-reindex-chainstate".to_owned(), format!("-dbcache={dbcache_mib}")];
        let least = (dbcache_mib < MEMPOOL_MIB).then(|| MEMPOOL_LEAST.to_owned());
        self.quiet().into_iter().chain(run).chain(least).chain(self.until_tip(validation)).collect()
    }

    /// Times a node that recomputes the set.
    pub fn run(
        &self,
        validation: ScriptValidation,
        dbcache_mib: u64,
        interrupt: &AtomicBool,
    ) -> Result<TimedRun, BenchError> {
        let mut command = Command::new(&self.program);
        command.arg(format!("-datadir={}", self.path.display()));
        command.args(self.arguments(validation, dbcache_mib));
        self.timed(&mut command, validation, interrupt)
    }

    /// Runs the node with a separate log, and checks that it did the expected work.
    fn timed(
        &self,
        command: &mut Command,
        validation: ScriptValidation,
        interrupt: &AtomicBool,
    ) -> Result<TimedRun, BenchError> {
        let (usage, log) = self.logged(command, interrupt)?;
        let ChainManifest { height, assumevalid_hash, assumevalid_height, .. } = &self.manifest;
        match validation {
            ScriptValidation::Assumevalid => {
                log.expect(*height, assumevalid_hash, *assumevalid_height)
            }
            ScriptValidation::Full => log.expect_scripts(*height),
        }
        .map_err(BenchError::different)?;
        Ok(TimedRun { usage, log })
    }

    /// Runs the node, and reads its log.
    pub(super) fn logged(
        &self,
        command: &mut Command,
        interrupt: &AtomicBool,
    ) -> Result<(Usage, NodeLog), BenchError> {
        let log = self.path.join(CHAIN_DIR).join("debug.log");
        if log.exists() {
            fs::remove_file(&log).at(&log)?;
        }
        let usage = process::run(command, LIMIT, interrupt)?;
        let file = File::open(&log).at(&log)?;
        Ok((usage, NodeLog::read(BufReader::new(file)).at(&log)?))
    }

    /// Queries the set that the last run produced.
    pub fn set(&self, interrupt: &AtomicBool) -> Result<SetResult, BenchError> {
        let port = free_port().at(&self.path)?;
        let cookie = self.path.join(CHAIN_DIR).join(".cookie");
        if cookie.exists() {
            // A leftover cookie of a killed node would be mistaken for the new one's.
            fs::remove_file(&cookie).at(&cookie)?;
        }
        let mut command = self.command();
        command
            .args(["-server=1", "-checkblocks=1", "-checklevel=0", "-rpcservertimeout=1800"])
            .arg(format!("-rpcport={port}"));
        let (mut node, rpc) = process::start(&mut command, PATIENCE, interrupt, || {
            let rpc = NodeRpc::new(port, fs::read_to_string(&cookie).ok()?);
            // Fails until the node has warmed up.
            let height = rpc.call("getblockcount", &[]).ok()?;
            (height == json!(self.manifest.height)).then_some(rpc)
        })?;
        let set = rpc.set()?;
        node.stop().at(&self.program)?;
        Ok(set)
    }
}

/// The manifest of a chain that a node can run on without validating scripts.
pub(super) fn comparable(chain: &BenchChain) -> Result<&ChainManifest, BenchError> {
    let name = &chain.name;
    let Some(manifest) = &chain.manifest else {
        return Err(BenchError::usage(format!(
            "{name}: without manifest.json the assumed-valid block is unknown, so no \
             node can be compared: make the chain with `apus-bench chain make`"
        )));
    };
    let tail = manifest.height.saturating_sub(manifest.assumevalid_height);
    if tail <= BLOCKS_IN_TWO_WEEKS {
        return Err(BenchError::usage(format!(
            "{name}: only {tail} blocks follow the last one with transactions, and bitcoind skips \
             scripts only below {BLOCKS_IN_TWO_WEEKS} of them: make a longer chain"
        )));
    }
    Ok(manifest)
}

/// The first line of a program's output for `-version`.
pub fn version(program: &Path) -> Result<String, BenchError> {
    let output = Command::new(program).arg("-version").stdin(Stdio::null()).output().at(program)?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() && !line.trim().is_empty() => {
            Ok(line.trim().to_owned())
        }
        _ => Err(BenchError::usage(format!(
            "{} does not print its version: is it a bitcoind? {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// A currently unused port.
pub(super) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
