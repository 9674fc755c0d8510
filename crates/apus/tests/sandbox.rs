//! [`Sandbox`]: a folder for a single test, in which `apus` runs as in a user's terminal.

use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::ChainBuilder;
use apus_testkit::oracle;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// Real data, with a node's answers about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fixture {
    /// Core's name of the chain.
    pub(crate) chain: &'static str,
    folder: &'static str,
    blocks: &'static str,
}

pub(crate) const MAIN: Fixture = Fixture { chain: "main", folder: "main-4521", blocks: "blocks" };
pub(crate) const SIGNET: Fixture =
    Fixture { chain: "signet", folder: "signet-120", blocks: "blocks" };
pub(crate) const REGTEST: Fixture =
    Fixture { chain: "regtest", folder: "regtest-315", blocks: "regtest/blocks" };

/// The magic of regtest.
pub(crate) const REGTEST_MAGIC: [u8; 4] = [0xfa, 0xbf, 0xb5, 0xda];

/// The repository's fixtures.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The program of the package that these tests belong to.
const PROGRAM: &str =
    match (option_env!("CARGO_BIN_EXE_apus"), option_env!("CARGO_BIN_EXE_apus-bench")) {
        (Some(program), _) | (None, Some(program)) => program,
        (None, None) => panic!("this package has no program to test"),
    };

/// Upper bound on the duration of a job here, even on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A folder in which to run `apus`. Names in command lines are relative to it.
///
/// Prepared folders hold `blocks`, the set as `node.dat` and its hints as `msb.hints` and
/// `lsb.hints`, so that a test can add outputs of any other name.
pub(crate) struct Sandbox {
    folder: TempDir,
}

/// All files with their content and modification time; folders have neither.
type Tree = BTreeMap<PathBuf, Option<(Vec<u8>, SystemTime)>>;

impl Sandbox {
    /// An empty sandbox.
    pub(crate) fn empty() -> Self {
        Self { folder: tempfile::Builder::new().prefix("apus sandbox ").tempdir().unwrap() }
    }

    /// A sandbox with a copy of a fixture.
    pub(crate) fn with(fixture: Fixture) -> Self {
        let sandbox = Self::empty();
        let from = fixtures().join(fixture.folder);
        sandbox.copy(&from.join(fixture.blocks), "blocks");
        for (name, copy) in [
            ("utxo.dat", "node.dat"),
            ("utxo.bip456.hints", "msb.hints"),
            ("utxo.hintsfile-0.2.hints", "lsb.hints"),
            ("gettxoutsetinfo.json", "gettxoutsetinfo.json"),
        ] {
            sandbox.write(copy, &fs::read(from.join(name)).unwrap());
        }
        sandbox
    }

    /// A sandbox with a regtest chain: its blocks in one file, and its set and hints at the tip.
    pub(crate) fn of(chain: &ChainBuilder) -> Self {
        let sandbox = Self::empty();
        let mut files = BlockFiles::regtest();
        files.blocks(&chain.blocks());
        files.write(&sandbox.path("blocks"));
        sandbox.write_results(chain);
        sandbox
    }

    /// Writes the set and the hints of a chain at its tip, from the oracle.
    pub(crate) fn write_results(&self, chain: &ChainBuilder) {
        self.write("node.dat", &oracle::snapshot(REGTEST_MAGIC, chain.tip(), chain.utxo()));
        let hints = chain.hints();
        self.write("msb.hints", &oracle::hints_file(&hints, oracle::BitOrder::Msb));
        self.write("lsb.hints", &oracle::hints_file(&hints, oracle::BitOrder::Lsb));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Changes a file's bytes.
    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(name);
        change(&mut bytes);
        self.write(name, &bytes);
    }

    pub(crate) fn remove(&self, name: &str) {
        let path = self.path(name);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Copies a folder recursively to a name here.
    pub(crate) fn copy(&self, from: &Path, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
        for (path, file) in tree(from, Path::new("")) {
            let to = self.path(name).join(path);
            match file {
                Some((bytes, _)) => fs::write(to, bytes),
                None => fs::create_dir_all(to),
            }
            .unwrap();
        }
    }

    /// Names of the files in a folder here; empty if there is no such folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs `apus` with a command line, [`assuming`] that hints are valid, and checks its promises about files.
    pub(crate) fn apus(&self, line: &str) -> Ended {
        self.apus_as_typed(&assuming(line))
    }

    /// Runs `apus` with exactly this command line, and checks its promises about files.
    pub(crate) fn apus_as_typed(&self, line: &str) -> Ended {
        let before = tree(self.folder.path(), Path::new(""));
        let ended = self.start_as_typed(line).wait();
        let after = tree(self.folder.path(), Path::new(""));
        let stays = |path: &Path, was| !is_progress(path) && !says_why_a_run_failed(was);
        for (path, was) in before.iter().filter(|(path, was)| stays(path, was)) {
            let unchanged = after.get(path) == Some(was);
            assert!(unchanged, "{} was changed by: {}", path.display(), ended.line);
        }
        for path in after.keys().filter(|path| !before.contains_key(*path)) {
            let failed = ended.code != Some(0);
            let fine = is_forest(path) || is_progress(path) == failed;
            let fine = fine || failed && says_why_a_run_failed(&after[path]);
            assert!(fine, "{} was left by: {ended:?}", path.display());
        }
        ended
    }

    /// Starts `apus` with a command line, [`assuming`] that hints are valid.
    pub(crate) fn start(&self, line: &str) -> Running {
        self.start_as_typed(&assuming(line))
    }

    /// Starts `apus` with exactly this command line.
    pub(crate) fn start_as_typed(&self, line: &str) -> Running {
        self.start_by(&[], &[], line)
    }

    /// Starts `apus` with exactly this command line, through the program `by` if given, with additional environment
    /// variables.
    pub(crate) fn start_by(
        &self,
        by: &[String],
        environment: &[(String, String)],
        line: &str,
    ) -> Running {
        let mut words = by.iter().map(String::as_str).chain([PROGRAM]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(line.split_whitespace());
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        self.spawn(command, line)
    }

    /// Runs a shell script in which `"$0" "$@"` is `apus` with a command line, [`assuming`] that hints are valid.
    pub(crate) fn start_in_shell(&self, script: &str, line: &str) -> Running {
        self.spawn_shell(script, line, |_| {})
    }

    /// Runs `apus` with files limited to `blocks` of 512 bytes, to imitate a full disk.
    pub(crate) fn start_with_small_files(&self, blocks: u32, line: &str) -> Running {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        self.start_in_shell(&script, line)
    }

    /// Runs a command line in a process that may have at most `files` files open.
    pub(crate) fn start_with_few_files(&self, files: u32, line: &str) -> Running {
        self.start_in_shell(&format!("ulimit -n {files}; exec \"$0\" \"$@\""), line)
    }

    /// Runs a shell script like [`Self::start_in_shell`], in its own process group, as a terminal does for each command
    /// line.
    pub(crate) fn start_in_group(&self, script: &str, line: &str) -> Running {
        self.spawn_shell(script, line, |command| {
            command.process_group(0);
        })
    }

    fn spawn_shell(&self, script: &str, line: &str, prepare: fn(&mut Command)) -> Running {
        let (mut command, line) = (Command::new("sh"), assuming(line));
        command.args(["-c", script, PROGRAM]).args(line.split_whitespace());
        prepare(&mut command);
        self.spawn(command, &line)
    }

    fn spawn(&self, mut command: Command, line: &str) -> Running {
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Running { child, line: format!("apus {line}"), stdout, stderr }
    }
}

/// If APUS_KEEP is set in the environment, a failed test keeps its sandbox for inspection.
impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("APUS_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            println!("the sandbox is kept in {}", self.folder.path().display());
        }
    }
}

/// Adds `--assumevalid hints` to a command line with hints, since Core assumes nothing valid on the short, young
/// chains of the tests, which have little work. Other tests show that such hints are refused without it.
fn assuming(line: &str) -> String {
    let mut words = line.split_whitespace();
    let takes_hints =
        matches!(words.next(), Some("sync" | "reindex")) && words.any(|w| w == "--hints");
    const OPTION: &str = "--assumevalid ";
    match line.split_once(OPTION) {
        _ if !takes_hints => line.to_owned(),
        None => format!("{line} {OPTION}hints"),
        // A line that runs every script assumes none valid.
        Some((_, after)) if after.split(' ').next() == Some("0") => line.to_owned(),
        Some((before, after)) => format!("{before}{OPTION}hints,{after}"),
    }
}

/// Whether a path is progress, which a job keeps next to its outputs: it stays after a failure and is gone after
/// success.
fn is_progress(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_string_lossy();
        part.ends_with(".work") || part.ends_with(".incomplete")
    })
}

/// Whether a file is the report of a failed job.
fn says_why_a_run_failed(file: &Option<(Vec<u8>, SystemTime)>) -> bool {
    let content = file.as_ref().map(|(content, _)| content.as_slice()).unwrap_or_default();
    let json: Value = serde_json::from_slice(content).unwrap_or_default();
    json["failure"]["class"].is_string() && json["verified"].is_null()
}

/// Whether a path belongs to a forest that is kept for a later job, or to the work folder around it.
fn is_forest(path: &Path) -> bool {
    let names: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    names[0].starts_with("proofs")
        && names[0].ends_with(".work")
        && names.get(1).is_none_or(|it| it == "forest")
}

fn tree(root: &Path, inside: &Path) -> Tree {
    let mut found = Tree::new();
    for entry in fs::read_dir(root.join(inside)).unwrap() {
        let path = inside.join(entry.unwrap().file_name());
        // A file that vanished belonged to a job.
        let Ok(metadata) = fs::metadata(root.join(&path)) else { continue };
        if metadata.is_dir() {
            found.insert(path.clone(), None);
            found.extend(tree(root, &path));
        } else {
            let content = fs::read(root.join(&path)).unwrap();
            found.insert(path, Some((content, metadata.modified().unwrap())));
        }
    }
    found
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).expect("output for people is UTF-8")
    })
}

/// A running program.
pub(crate) struct Running {
    child: Child,
    line: String,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

impl Running {
    /// Sends signals in order, by name.
    pub(crate) fn signal(&self, names: &[&str]) {
        let kill = |name: &&str| format!("kill -{name} {}", self.child.id());
        let script = names.iter().map(kill).collect::<Vec<_>>().join(";");
        // It may have ended already.
        let _ = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
    }

    /// Interrupts each process of the group, as a terminal does at Ctrl-C.
    pub(crate) fn interrupt_group(&self) {
        let script = format!("kill -s INT -- -{}", self.child.id());
        let _ = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
    }

    /// Waits until a thread with this name exists, or the program has ended.
    pub(crate) fn until_thread(&mut self, name: &str) -> bool {
        let threads = format!("/proc/{}/task", self.child.id());
        self.until(|| {
            fs::read_dir(&threads).into_iter().flatten().flatten().any(|thread| {
                fs::read_to_string(thread.path().join("comm")).is_ok_and(|it| it.trim_end() == name)
            })
        })
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until a condition holds or the program has ended; returns whether the condition holds.
    pub(crate) fn until(&mut self, mut holds: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            if self.has_ended() {
                return holds();
            }
            assert!(Instant::now() < deadline, "waited too long for: {}", self.line);
            sleep(Duration::from_micros(200));
        }
        true
    }

    /// Waits until the program ends; returns its output and exit code.
    pub(crate) fn wait(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                panic!("did not end within {PATIENCE:?}: {}", self.line);
            }
            sleep(Duration::from_millis(1));
        }
        let status = self.child.wait().unwrap();
        let ended = Ended {
            line: self.line,
            code: status.code(),
            stdout: self.stdout.join().unwrap(),
            stderr: self.stderr.join().unwrap(),
        };
        ended.expect_plain_words();
        ended
    }
}

/// The output and the exit code of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) line: String,
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Asserts success.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Asserts this exit code, and that standard error contains all of these texts.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, said: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        for words in said {
            assert!(self.stderr.contains(words), "{words:?} is missing: {self}");
        }
        // To read all messages at once: --nocapture.
        println!("$ {}\n[{code}] {}", self.line, self.stderr.trim_end());
        self
    }

    /// Asserts that standard output contains all of these texts.
    #[track_caller]
    pub(crate) fn says(self, said: &[&str]) -> Self {
        for words in said {
            assert!(self.stdout.contains(words), "{words:?} is missing: {self}");
        }
        self
    }

    /// Asserts that there are no panics and no jargon for programmers.
    fn expect_plain_words(&self) {
        for words in ["panicked", "RUST_BACKTRACE", "Some(", "None", "Err(", "Ok(", " { ", "\\x"] {
            assert!(!self.stderr.contains(words), "{words:?} is in the output: {self}");
        }
        if self.code.is_some_and(|code| code != 0) {
            let starts = ["apus: ", "apus-bench: ", "error: ", "Usage: ", r#""event":"failed""#];
            let named = starts.iter().any(|start| self.stderr.contains(start));
            assert!(named, "the output does not name the program that failed: {self}");
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "$ {}\n{:?}\n{}\n{}", self.line, self.code, self.stdout, self.stderr)
    }
}
