//! One run of `apus sync`, as a user would start it.
//!
//! Each run has a separate work folder and starts from scratch, so that all runs have equal conditions.

use super::matrix::{
    CHAINSTATE, PROOFS, PROVE, ROOTS, SNAPSHOT_HINTS, ScriptValidation, Subject, UTREEXO, VERIFY,
    connects, validating_engine,
};
use super::node::CHAIN_DIR;
use super::record::OneRun;
use super::report::ApusReport;
use crate::chain::BenchChain;
use crate::error::{AtPath, BenchError};
use crate::process;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

/// Time limit of a run: longer than any should take.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The program to measure, and the place of its runs.
pub(crate) struct ApusRunner<'a> {
    /// The program.
    pub(crate) program: &'a Path,
    /// A folder for the files of a run.
    pub(crate) scratch: &'a Path,
    /// The index of this run among concurrent ones, each in its own subfolder and on its own processor.
    pub(crate) place: Option<usize>,
}

impl<'a> ApusRunner<'a> {
    /// A runner of one run at a time.
    pub(crate) fn new(program: &'a Path, scratch: &'a Path) -> Self {
        Self { program, scratch, place: None }
    }

    /// The folder of a run's files.
    fn folder(&self) -> PathBuf {
        self.place.map_or_else(
            || self.scratch.to_owned(),
            |place| self.scratch.join(format!("side-{place}")),
        )
    }

    /// The arguments of one subject, the same for each of its runs. `None` for a subject of another program,
    /// or if the chain lacks required facts. Some subjects need a `node`, which has index and undo data of
    /// the chain.
    pub(super) fn arguments(
        &self,
        chain: &BenchChain,
        node: Option<&Path>,
        subject: &Subject,
    ) -> Option<Vec<String>> {
        let Subject::Apus { engine, validation, aggregate, par, dbcache_mib, output } = subject
        else {
            return None;
        };
        let shown = |path: &Path| path.display().to_string();
        let output = match output.as_str() {
            "snapshot" => format!("snapshot:{}", shown(&self.folder().join(SNAPSHOT))),
            CHAINSTATE => format!("{CHAINSTATE}:{}", shown(&self.folder().join(COINS_WRITTEN))),
            ROOTS => format!("utreexo:{}", shown(&self.folder().join(FOREST))),
            _ if engine == PROVE => shown(&self.folder().join(PROVED)),
            other => other.to_owned(),
        };
        let mut pairs = vec![("--chain", chain.network.name().to_owned())];
        let verifies = engine == VERIFY;
        if verifies {
            pairs.push(("--datadir", shown(node?)));
        } else if engine == PROVE {
            pairs.push(("--blocksdir", shown(&chain.blocksdir)));
        } else {
            let blocksdir = match subject.of_node() {
                true => node?.join(CHAIN_DIR).join("blocks"),
                false => chain.blocksdir.clone(),
            };
            pairs.push(("--blocksdir", shown(&blocksdir)));
            let hints = match engine.as_str() {
                SNAPSHOT_HINTS => format!("snapshot:{}", shown(&self.snapshot(chain))),
                _ => shown(&chain.hints),
            };
            pairs.extend((!connects(engine)).then_some(("--hints", hints)));
            pairs.extend((engine == UTREEXO).then(|| ("--proofs", shown(&self.proofs(chain)))));
            pairs.push(("--engine", validating_engine(engine).to_owned()));
        }
        let assumed = match (validation, &chain.manifest) {
            (ScriptValidation::Full, _) => "0",
            // With hints only, Apus skips witnesses below this block, as bitcoind does.
            (ScriptValidation::Assumevalid, Some(manifest)) => &manifest.assumevalid_hash,
            (ScriptValidation::Assumevalid, None) if subject.sees_coins() => return None,
            (ScriptValidation::Assumevalid, None) => "default",
        };
        // A run by hints alone measures the speed of processing blocks, not their validity.
        let by_hints = !subject.of_node() && !connects(engine);
        let hints = if by_hints { "hints," } else { "" };
        pairs.push(("--assumevalid", format!("{hints}{assumed}")));
        // With undo data the default sums apply.
        let aggregate = aggregate.as_ref().filter(|_| !subject.of_node());
        pairs.extend(aggregate.map(|aggregate| ("--aggregate", aggregate.clone())));
        pairs.extend([("--par", par.to_string()), ("--dbcache", dbcache_mib.to_string())]);
        pairs.extend((!verifies).then_some(("--out", output)));
        pairs.extend([
            ("--workdir", shown(&self.folder().join(WORK))),
            ("--report", shown(&self.report())),
            ("--progress", "none".to_owned()),
        ]);
        let command: &[&str] = match engine.as_str() {
            VERIFY => &[VERIFY],
            PROVE => &["utreexo", PROVE],
            _ => &["sync"],
        };
        Some(line(command, pairs))
    }

    /// Path of a chain's proofs, made in advance.
    fn proofs(&self, chain: &BenchChain) -> PathBuf {
        self.scratch.join(format!("proofs-{}", chain.mark()))
    }

    /// Makes the proofs of a chain that a subject needs, if missing, by a run of the proving subject.
    pub(super) fn prove(
        &self,
        chain: &BenchChain,
        subject: &Subject,
        interrupt: &AtomicBool,
    ) -> Result<(), BenchError> {
        let mut prove = subject.clone();
        if let Subject::Apus { engine, output, .. } = &mut prove {
            PROVE.clone_into(engine);
            PROOFS.clone_into(output);
        }
        let arguments = self.arguments(chain, None, &prove);
        self.make_once(PROVED, &self.proofs(chain), arguments, interrupt)
    }

    /// Makes `path` if it is missing, by a run that leaves its result under the name `made`.
    fn make_once(
        &self,
        made: &str,
        path: &Path,
        arguments: Option<Vec<String>>,
        interrupt: &AtomicBool,
    ) -> Result<(), BenchError> {
        let Some(arguments) = arguments.filter(|_| !path.exists()) else { return Ok(()) };
        self.run(&arguments, None, 0, interrupt)?;
        // A stopped run has no file under this name.
        fs::rename(self.folder().join(made), path).at(path)
    }

    /// Path of a chain's snapshot, made in advance as a source of hints.
    fn snapshot(&self, chain: &BenchChain) -> PathBuf {
        self.scratch.join(format!("snapshot-{}.dat", chain.mark()))
    }

    /// Makes the snapshot that a subject takes hints from, if it is missing.
    pub(super) fn write_snapshot(
        &self,
        chain: &BenchChain,
        subject: &Subject,
        interrupt: &AtomicBool,
    ) -> Result<(), BenchError> {
        let mut writes = subject.plainer();
        if let Some(Subject::Apus { output, .. }) = &mut writes {
            "snapshot".clone_into(output);
        }
        let arguments = writes.and_then(|writes| self.arguments(chain, None, &writes));
        self.make_once(SNAPSHOT, &self.snapshot(chain), arguments, interrupt)
    }

    /// The arguments of a run that downloads blocks, the same for each of its runs except for the peers: like
    /// bitcoind, it validates and writes a chainstate; unlike it, it uses hints.
    pub(crate) fn download_arguments(
        &self,
        chain: &BenchChain,
        peers: &[SocketAddr],
        v2transport: bool,
        dbcache_mib: u64,
    ) -> Vec<String> {
        let mut pairs = vec![("--chain", chain.network.name().to_owned())];
        pairs.extend(peers.iter().map(|peer| ("--connect", peer.to_string())));
        pairs.extend([
            ("--v2transport", u8::from(v2transport).to_string()),
            ("--hints", chain.hints.display().to_string()),
            ("--dbcache", dbcache_mib.to_string()),
            ("--out", format!("{CHAINSTATE}:{}", self.folder().join(COINS_WRITTEN).display())),
            ("--workdir", self.folder().join(WORK).display().to_string()),
            ("--report", self.report().display().to_string()),
            ("--progress", "none".to_owned()),
            ("--assumevalid", "hints".to_owned()),
        ]);
        line(&["sync"], pairs)
    }

    /// Path of a run's report.
    pub(crate) fn report(&self) -> PathBuf {
        self.folder().join("report.json")
    }

    /// Runs it once, on as many processors as `threads`, or on all.
    pub(crate) fn run(
        &self,
        arguments: &[String],
        threads: Option<usize>,
        round: u32,
        interrupt: &AtomicBool,
    ) -> Result<(OneRun, ApusReport), BenchError> {
        fs::create_dir_all(self.folder()).at(&self.folder())?;
        remove_file(&self.report())?;
        remove_file(&self.folder().join(SNAPSHOT))?;
        remove_file(&self.folder().join(FOREST))?;
        remove_folder(&self.folder().join(PROVED))?;
        remove_folder(&self.folder().join(COINS_WRITTEN))?;
        // Leftovers of a stopped run: the next one would resume from there.
        remove_folder(&self.folder().join(WORK))?;
        let mut command = Command::new(self.program);
        command.args(arguments);
        let first = self.place.unwrap_or(0);
        let processors = threads.map(|threads| first..first.saturating_add(threads));
        let usage = process::run_on(processors, &mut command, LIMIT, interrupt)?;
        let report = ApusReport::read(&self.report())?;
        let run = OneRun {
            cpu_seconds: report.cpu_seconds.unwrap_or(0.0).max(usage.cpu_seconds),
            rss_peak_bytes: report.rss_peak_bytes.max(usage.rss_peak_bytes),
            phases: report.phases.clone(),
            ..OneRun::of(round, usage)
        };
        Ok((run, report))
    }
}

/// Name of the snapshot that some subjects write.
const SNAPSHOT: &str = "utxo.dat";

/// Name of the chainstate that some subjects write.
const COINS_WRITTEN: &str = "chainstate";

/// Name of the file with the roots of the Utreexo forest that some subjects write.
const FOREST: &str = "utreexo.roots";

/// Name of the folder of proofs that some subjects write.
const PROVED: &str = "proved";

/// Name of the folder for progress.
const WORK: &str = "apus.work";

/// A command line with these options.
fn line(command: &[&str], pairs: Vec<(&str, String)>) -> Vec<String> {
    let options = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    command.iter().map(|word| (*word).to_owned()).chain(options).collect()
}

/// Removes a file if it exists.
fn remove_file(path: &Path) -> Result<(), BenchError> {
    unless_gone(fs::remove_file(path)).at(path)
}

/// Removes a folder if it exists.
fn remove_folder(path: &Path) -> Result<(), BenchError> {
    unless_gone(fs::remove_dir_all(path)).at(path)
}

fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{apus, manifest, roots, utxo};
    use apus_chain::Network;

    fn arguments(subject: &Subject) -> Option<String> {
        let chain = BenchChain {
            name: "small".to_owned(),
            folder: PathBuf::new(),
            network: Network::Regtest,
            blocksdir: "blocks".into(),
            hints: "chain.hints".into(),
            manifest: Some(manifest()),
        };
        let apus = ApusRunner::new(Path::new("apus"), Path::new("s"));
        Some(apus.arguments(&chain, Some(Path::new("node")), subject)?.join(" "))
    }

    #[test]
    fn engines_get_their_arguments() {
        let around = |own: &str, par: u32| {
            Some(format!(
                "sync --chain regtest --blocksdir blocks {own} --par {par} --dbcache 450 --out null \
                 --workdir s/apus.work --report s/report.json --progress none"
            ))
        };
        assert_eq!(
            arguments(&apus("sha256", 1)),
            around(
                "--hints chain.hints --engine swiftsync --assumevalid hints,cd \
                 --aggregate sha256",
                1
            )
        );
        let mut of_snapshot = apus("sha256", 1);
        if let Subject::Apus { engine, .. } = &mut of_snapshot {
            *engine = SNAPSHOT_HINTS.to_owned();
        }
        assert_eq!(
            arguments(&of_snapshot),
            around(
                "--hints snapshot:s/snapshot-small-ab.dat --engine swiftsync --assumevalid hints,cd \
                 --aggregate sha256",
                1
            )
        );
        assert_eq!(
            arguments(&utxo(ScriptValidation::Assumevalid)),
            around("--engine utxo --assumevalid cd", 2)
        );
        assert_eq!(
            arguments(&utxo(ScriptValidation::Full)),
            around("--engine utxo --assumevalid 0", 2)
        );
        let of_node = |own: &str, rest: &str| {
            Some(format!(
                "{own} --assumevalid cd --par 2 --dbcache 450{rest} --workdir \
                 s/apus.work --report s/report.json --progress none"
            ))
        };
        assert_eq!(
            arguments(&apus("coins", 2)),
            of_node(
                "sync --chain regtest --blocksdir node/regtest/blocks --hints chain.hints --engine swiftsync",
                " --out null"
            )
        );
        let mut verify = utxo(ScriptValidation::Assumevalid);
        if let Subject::Apus { engine, .. } = &mut verify {
            *engine = VERIFY.to_owned();
        }
        assert_eq!(arguments(&verify), of_node("verify --chain regtest --datadir node", ""));
        let mut by_proofs = utxo(ScriptValidation::Assumevalid);
        if let Subject::Apus { engine, .. } = &mut by_proofs {
            *engine = UTREEXO.to_owned();
        }
        let own = "--proofs s/proofs-small-ab --engine utreexo --assumevalid cd";
        assert_eq!(arguments(&by_proofs), around(own, 2));
        let mut with_coins = roots();
        if let Subject::Apus { output, .. } = &mut with_coins {
            *output = CHAINSTATE.to_owned();
        }
        let with_coins = arguments(&with_coins).unwrap();
        assert!(with_coins.contains(" --out chainstate:s/chainstate "), "{with_coins}");
        let with_roots = arguments(&roots()).unwrap();
        assert!(with_roots.contains(" --out utreexo:s/utreexo.roots "), "{with_roots}");
        let mut prove = by_proofs;
        if let Subject::Apus { engine, output, .. } = &mut prove {
            (*engine, *output) = (PROVE.to_owned(), PROOFS.to_owned());
        }
        let blocks = "utreexo prove --chain regtest --blocksdir blocks";
        assert_eq!(arguments(&prove), of_node(blocks, " --out s/proved"));
        let node = Subject::Bitcoind { validation: ScriptValidation::Full, dbcache_mib: 450 };
        assert_eq!(arguments(&node), None);
    }
}
