//! Bitcoin Core's `bitcoind` beside Apus: found, given the same blocks, timed, and asked for its set.
//!
//! - Here: [`find()`], which program; whether it looks up outputs for BIP-30; the few questions that it is asked.
//! - [`version()`]: what it says that it is.
//! - [`BenchNodeFolder`]: a data directory with the chain's blocks, prepared once; timed runs on it.
//! - [`ServedNode`]: nodes that hand out its blocks; [`BenchNodeFolder::download`]: one that takes them.
//! - [`NodeLog`]: what `debug.log` tells of a run.
//!
//! The node computes the set with everything that makes it comparable: `-reindex-chainstate` on
//! blocks that it has or from peers on this machine, scripts skipped by `-assumevalid` or all of them run, no other peers, no wallet, no RPC, and without
//! the internal consistency checks that are on by default on regtest alone.

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
// On the main chain no node does so any more: it knows the block at the height of BIP-34, above which no transaction
// can be there twice (Core `validation.cpp`, `ConnectBlock`). Regtest knows no such block, so an ordinary bitcoind
// looks up every output that a block makes. The build of `scripts/core` takes the block's hash as an option.

/// The option that names the block at the height of BIP-34, which is 1 on regtest.
const OPTION: &str = "-testbip34hash=";

/// The block to name to a node; none where it cannot be told.
pub(super) fn known_block(
    program: &Path,
    chain: &BenchChain,
) -> Result<Option<BlockHash>, BenchError> {
    let output =
        Command::new(program).arg("-help-debug").stdin(Stdio::null()).output().at(program)?;
    let has = String::from_utf8_lossy(&output.stdout).contains(OPTION);
    has.then(|| chain.block_1()).transpose()
}

/// The argument that names it.
pub(super) fn bip30_argument(block: BlockHash) -> String {
    format!("{OPTION}{block}")
}

// ---- which bitcoind to run ----

/// In a checkout: makes one available and prints its path.
const SCRIPT: &str = "scripts/bitcoind";

/// The bitcoind to run: the one named, else `$BITCOIND_EXE`, else the one on `PATH`, else the one
/// that a checkout around the current folder fetches for its tests.
pub fn find(named: Option<&Path>) -> Result<PathBuf, BenchError> {
    let folder = env::current_dir().unwrap_or_default();
    choose(named, env::var_os("BITCOIND_EXE"), env::var_os("PATH"), &folder)
}

/// [`find`], with everything that it looks at handed in.
fn choose(
    named: Option<&Path>,
    variable: Option<OsString>,
    path: Option<OsString>,
    folder: &Path,
) -> Result<PathBuf, BenchError> {
    let variable = variable.filter(|name| !name.is_empty()).map(PathBuf::from);
    for (how, program) in [("--bitcoind", named), ("BITCOIND_EXE", variable.as_deref())] {
        let Some(program) = program else { continue };
        // A wrong name is a mistake to report, no reason to take another node.
        return if program.is_file() {
            Ok(program.to_owned())
        } else {
            Err(BenchError::usage(format!(
                "{how} names {}, which is no file: name the program bitcoind itself",
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
            "there is no bitcoind on PATH: install Bitcoin Core, or name its program with \
             --bitcoind or in BITCOIND_EXE"
                .to_owned(),
        )),
    }
}

/// What a checkout's own script says.
fn fetched(script: &Path) -> Result<PathBuf, BenchError> {
    let failed = |why: String| {
        BenchError::usage(format!(
            "{} finds no bitcoind: {why}: name one with --bitcoind or in BITCOIND_EXE",
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
        Err(failed(format!("it named {}", program.display())))
    }
}

// ---- questions to a node ----

/// Longer than any of the calls takes, which go through a whole UTXO set.
const ANSWER_WAIT: Duration = Duration::from_secs(1800);

/// Longer than any answer that is asked for.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A node that can be asked.
#[derive(Debug, Clone)]
pub(super) struct NodeRpc(Rpc);

impl NodeRpc {
    /// The node at a port, by the cookie that it left for its own user.
    pub(super) fn new(port: u16, cookie: String) -> Self {
        let (answer_wait, answer_bytes_max) = (ANSWER_WAIT, ANSWER_BYTES_MAX);
        Self(Rpc { port, cookie, answer_wait, answer_bytes_max })
    }

    /// Calls a method.
    pub(super) fn call(&self, method: &str, params: &[Value]) -> Result<Value, BenchError> {
        let answer = self.0.call(method, params).map_err(|error| BenchError::rpc(method, error))?;
        answer.map_err(|error| BenchError::rpc(method, error.message))
    }

    /// The set of the node's tip, by two calls that go through all of it.
    pub(super) fn set(&self) -> Result<SetResult, BenchError> {
        let muhash = self.call("gettxoutsetinfo", &[json!("muhash")])?;
        let serialized = self.call("gettxoutsetinfo", &[json!("hash_serialized_3")])?;
        set_of(&muhash, &serialized).ok_or_else(|| {
            let message = format!("an answer without all that is in it: {muhash} and {serialized}");
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
    fn named_first_then_variable_then_path_then_checkout_then_a_clear_message() {
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
    fn a_set_as_the_node_tells_it() {
        let muhash = json!({
            "height": 315, "bestblock": "ab", "txouts": 20_324, "muhash": "cd",
            "total_amount": 11_399.997_527_89
        });
        let serialized = json!({"bestblock": "ab", "hash_serialized_3": "ef"});
        let set = set_of(&muhash, &serialized).unwrap();
        assert_eq!(set.total_amount_sat, 1_139_999_752_789);
        assert_eq!((set.coins, set.hash_serialized_3.as_deref()), (20_324, Some("ef")));
        // Another tip by then, or no such hash.
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ba"})), None);
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ab"})), None);
    }
}
