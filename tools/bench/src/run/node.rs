//! Bitcoin Core's `bitcoind` for comparison: finds it, gives it the same blocks, times it, and queries its
//! set.
//!
//! - Here: [`find()`], the program to use; whether it looks up outputs for BIP-30; the few RPCs it needs.
//! - [`version()`]: its version string.
//! - [`BenchNodeFolder`]: a data directory with the chain's blocks, prepared once; timed runs on it.
//! - [`ServedNode`]: nodes that serve its blocks; [`BenchNodeFolder::download`]: one that fetches them.
//! - [`NodeLog`]: the facts about a run in `debug.log`.
//!
//! The node computes the set with settings that make it comparable: `-reindex-chainstate` on blocks that it
//! has, or blocks from peers on this machine; scripts skipped by `-assumevalid`, or all validated; no other
//! peers, no wallet, no RPC, and without the internal consistency checks, which are on by default on regtest
//! only.

use crate::chain::BenchChain;
use crate::error::{AtPath, BenchError};
use crate::run::report::SetResult;
use apus_chain::BlockHash;
use apus_testkit::rpc::Rpc;
use serde_json::{Value, json};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

mod folder;
mod log;
mod serve;

pub(crate) use folder::CHAIN_DIR;
pub use folder::{BenchNodeFolder, TimedRun, version};
pub use log::NodeLog;
pub use serve::ServedNode;

// ---- whether a node looks up every output for BIP-30 ----
//
// On the main chain, nodes no longer look outputs up: they know the block at the BIP-34 height, above which
// no duplicate transaction is possible (Core `validation.cpp`, `ConnectBlock`). Regtest has no such block, so
// an unmodified bitcoind looks up every output that a block creates. The build of `scripts/core` takes the
// block's hash as an option.

/// The option that names the block at the BIP-34 height, which is 1 on regtest.
const OPTION: &str = "-testbip34hash=";

/// The block to pass to a node; `None` if the node lacks the option.
pub(super) fn known_block(
    program: &Path,
    chain: &BenchChain,
) -> Result<Option<BlockHash>, BenchError> {
    let output =
        Command::new(program).arg("-help-debug").stdin(Stdio::null()).output().at(program)?;
    let has = String::from_utf8_lossy(&output.stdout).contains(OPTION);
    has.then(|| chain.block_1()).transpose()
}

/// The argument that passes this block to a node.
pub(super) fn bip30_argument(block: BlockHash) -> String {
    format!("{OPTION}{block}")
}

// ---- which bitcoind to run ----

/// In a checkout: provides a bitcoind and prints its path.
const SCRIPT: &str = "scripts/bitcoind";

/// The bitcoind to run: the given one, else `$BITCOIND_EXE`, else the one on `PATH`, else the one that a
/// checkout around the current folder fetches for its tests.
pub fn find(named: Option<&Path>) -> Result<PathBuf, BenchError> {
    let folder = env::current_dir().unwrap_or_default();
    choose(named, env::var_os("BITCOIND_EXE"), env::var_os("PATH"), &folder)
}

/// [`find`], with its environment as parameters.
fn choose(
    named: Option<&Path>,
    variable: Option<OsString>,
    path: Option<OsString>,
    folder: &Path,
) -> Result<PathBuf, BenchError> {
    let variable = variable.filter(|name| !name.is_empty()).map(PathBuf::from);
    for (how, program) in [("--bitcoind", named), ("BITCOIND_EXE", variable.as_deref())] {
        let Some(program) = program else { continue };
        // A wrong name is an error, not a reason to use another node.
        return if program.is_file() {
            Ok(program.to_owned())
        } else {
            Err(BenchError::usage(format!(
                "{how}: {} is not a file: give the path of the program bitcoind",
                program.display()
            )))
        };
    }
    let mut on_path = path.iter().flat_map(env::split_paths).map(|dir| dir.join("bitcoind"));
    if let Some(program) = on_path.find(|program| program.is_file()) {
        return Ok(program);
    }
    let script = folder.ancestors().map(|folder| folder.join(SCRIPT)).find(|path| path.is_file());
    match script {
        Some(script) => fetched(&script),
        None => Err(BenchError::usage(
            "bitcoind is not on PATH: install Bitcoin Core, or give its path with \
             --bitcoind or in BITCOIND_EXE"
                .to_owned(),
        )),
    }
}

/// Runs a checkout's script and returns the path that it prints.
fn fetched(script: &Path) -> Result<PathBuf, BenchError> {
    let failed = |why: String| {
        BenchError::usage(format!(
            "{} found no bitcoind: {why}: give its path with --bitcoind or in BITCOIND_EXE",
            script.display()
        ))
    };
    let output = Command::new(script)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let program = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if program.is_file() {
        Ok(program)
    } else {
        Err(failed(format!("it printed {}", program.display())))
    }
}

// ---- RPCs to a node ----

/// Longer than any RPC takes, including scans of a whole UTXO set.
const ANSWER_WAIT: Duration = Duration::from_secs(1800);

/// Longer than any expected answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A node's RPC interface.
#[derive(Debug, Clone)]
pub(super) struct NodeRpc(Rpc);

impl NodeRpc {
    /// The node at a port, authenticated by the cookie file of its user.
    pub(super) fn new(port: u16, cookie: String) -> Self {
        let (answer_wait, answer_bytes_max) = (ANSWER_WAIT, ANSWER_BYTES_MAX);
        Self(Rpc { port, cookie, answer_wait, answer_bytes_max })
    }

    /// Calls a method.
    pub(super) fn call(&self, method: &str, params: &[Value]) -> Result<Value, BenchError> {
        let answer = self.0.call(method, params).map_err(|error| BenchError::rpc(method, error))?;
        answer.map_err(|error| BenchError::rpc(method, error.message))
    }

    /// The set at the node's tip, from two RPCs that each scan all of it.
    pub(super) fn set(&self) -> Result<SetResult, BenchError> {
        let muhash = self.call("gettxoutsetinfo", &[json!("muhash")])?;
        let serialized = self.call("gettxoutsetinfo", &[json!("hash_serialized_3")])?;
        set_of(&muhash, &serialized).ok_or_else(|| {
            let message = format!("incomplete answer: {muhash} and {serialized}");
            BenchError::rpc("gettxoutsetinfo", message)
        })
    }
}

fn set_of(muhash: &Value, serialized: &Value) -> Option<SetResult> {
    if muhash["bestblock"] != serialized["bestblock"] {
        return None;
    }
    // Satoshis fit in the digits of a float up to 90 million bitcoins.
    let satoshis = muhash["total_amount"].as_f64()? * 1e8;
    Some(SetResult {
        stop_height: u32::try_from(muhash["height"].as_u64()?).ok()?,
        stop_hash: muhash["bestblock"].as_str()?.to_owned(),
        coins: muhash["txouts"].as_u64()?,
        total_amount_sat: satoshis.round() as u64,
        muhash: Some(muhash["muhash"].as_str()?.to_owned()),
        hash_serialized_3: Some(serialized["hash_serialized_3"].as_str()?.to_owned()),
        utreexo: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn bitcoind_comes_from_the_option_the_variable_the_path_or_a_checkout() {
        let folder = tempfile::tempdir().unwrap();
        let place = |relative: &str, content: &str| {
            let file = folder.path().join(relative);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let bin = || Some(folder.path().join("bin").into_os_string());
        let below = folder.path().join("a/b");
        let find = |named: Option<&Path>, variable: Option<&Path>| {
            let variable = variable.map(|path| path.as_os_str().to_owned());
            choose(named, variable, bin(), &below)
        };
        let none = find(None, None).unwrap_err().to_string();
        assert!(none.contains("--bitcoind"), "{none}");

        place(SCRIPT, "#!/bin/sh\necho no network >&2; exit 1\n");
        let failed = find(None, None).unwrap_err().to_string();
        assert!(failed.contains("no network"), "{failed}");
        let fetched = place("fetched/bitcoind", "");
        place(SCRIPT, &format!("#!/bin/sh\necho '{}'\n", fetched.display()));
        assert_eq!(find(None, None).unwrap(), fetched);
        let on_path = place("bin/bitcoind", "");
        assert_eq!(find(None, None).unwrap(), on_path);
        let mine = place("mine", "");
        assert_eq!(find(None, Some(&mine)).unwrap(), mine);
        let given = place("given", "");
        assert_eq!(find(Some(&given), Some(&mine)).unwrap(), given);
        for (named, variable, how) in [
            (Some(below.as_path()), Some(mine.as_path()), "--bitcoind"),
            (None, Some(below.as_path()), "BITCOIND_EXE"),
        ] {
            let wrong = find(named, variable).unwrap_err().to_string();
            assert!(wrong.starts_with(how), "{wrong}");
        }
    }
}

#[cfg(test)]
mod pc_tests {
    use super::*;

    #[test]
    fn rpc_answers_give_a_set() {
        let muhash = json!({
            "height": 315, "bestblock": "ab", "txouts": 20_324, "muhash": "cd",
            "total_amount": 11_399.997_527_89
        });
        let serialized = json!({"bestblock": "ab", "hash_serialized_3": "ef"});
        let set = set_of(&muhash, &serialized).unwrap();
        assert_eq!(set.total_amount_sat, 1_139_999_752_789);
        assert_eq!((set.coins, set.hash_serialized_3.as_deref()), (20_324, Some("ef")));
        // The tip has changed meanwhile, or a hash is missing.
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ba"})), None);
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ab"})), None);
    }
}
