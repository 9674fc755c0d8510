//! Programs that tests start: finding them, waiting until one listens, sending signals.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Maximum time for a program to start or stop, on a slow and busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks during a wait.
pub const POLL_EVERY: Duration = Duration::from_millis(20);

/// Finds the program of this name: the one that its variable names (`BITCOIND_EXE`), else the one on `PATH`,
/// else the one that its script in `scripts/` fetched.
///
/// # Panics
/// If there is none; the message says how to get one.
pub fn find_program(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    choose(name, env::var_os(variable(name)), env::var_os("PATH"), &repository)
        .unwrap_or_else(|message| panic!("{message}"))
}

/// Returns the name of the variable that names a program.
fn variable(name: &str) -> String {
    format!("{}_EXE", name.to_ascii_uppercase().replace('-', "_"))
}

/// Does the work of [`find_program`], with its inputs as arguments.
fn choose(
    name: &str,
    named: Option<OsString>,
    path: Option<OsString>,
    repository: &Path,
) -> Result<PathBuf, String> {
    let variable = variable(name);
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!(
                "{variable} names {}, which is not a file: correct or unset it",
                named.display()
            )),
        };
    }
    let on_path = path.iter().flat_map(env::split_paths).map(|folder| folder.join(name));
    let fetched = repository.join(format!(".peers/{name}/bin/{name}"));
    on_path.chain([fetched]).find(|candidate| candidate.is_file()).ok_or_else(|| {
        format!(
            "this test needs a {name} but there is none: run scripts/{name} to get one, or \
             set {variable} to the path of yours"
        )
    })
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    /// Starts it, and waits until it `listens`, as its output file or another check shows. It is killed if that
    /// takes too long.
    ///
    /// # Errors
    /// If it cannot be run, ends, or does not listen; the error contains its output.
    pub fn start(
        command: &mut Command,
        said: &Path,
        listens: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let name = command.get_program().display().to_string();
        let failed = |error: io::Error| format!("{name} cannot be run: {error}");
        let out = File::create(said).map_err(failed)?;
        let both = out.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(out).stderr(both);
        let mut server = Self(command.spawn().map_err(failed)?);
        let deadline = Instant::now() + PATIENCE;
        let tail = || String::from_utf8_lossy(&fs::read(said).unwrap_or_default()).into_owned();
        while !listens(&tail()) {
            if let Some(status) = server.ended() {
                return Err(format!("{name} ended with {status}: {}", tail().trim()));
            }
            if Instant::now() > deadline {
                return Err(format!("{name} does not listen within {PATIENCE:?}: {}", tail()));
            }
            sleep(POLL_EVERY);
        }
        Ok(server)
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Kills it. An error means that it has already ended.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Another program may take a port between our choice and a server's bind.
const PORT_TRIES: usize = 5;

/// Starts a server on free ports; tries other ports if it does not start.
///
/// # Panics
/// If it does not start on any.
pub fn on_free_ports<T, const N: usize>(
    name: &str,
    mut start: impl FnMut([u16; N]) -> Result<T, String>,
) -> T {
    let mut said = String::new();
    for _ in 0..PORT_TRIES {
        match start(free_ports()) {
            Ok(started) => return started,
            Err(message) => said = message,
        }
    }
    panic!("{name} does not start: {said}")
}

/// Waits for a condition.
///
/// # Panics
/// If that takes too long.
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(POLL_EVERY);
    }
}

/// Returns ports on which no program is listening now.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners =
        [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// Returns the children of a process.
pub fn children_of(process: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let listed = listed.unwrap_or_default();
    listed.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Sends a signal to a process that may be gone.
pub fn signal(process: u32, name: &str) {
    let mut command = Command::new("kill");
    command.args([format!("-{name}"), process.to_string()]);
    let _ = command.stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_from_its_variable_the_path_or_its_script() {
        let folder = tempfile::tempdir().unwrap();
        let place = |relative: &str| {
            let file = folder.path().join(relative);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            file
        };
        let path = || Some(folder.path().join("bin").into_os_string());
        let none = choose("bitcoind", None, path(), folder.path()).unwrap_err();
        assert!(none.contains("scripts/bitcoind"), "{none}");

        let fetched = place(".peers/bitcoind/bin/bitcoind");
        assert_eq!(choose("bitcoind", None, path(), folder.path()), Ok(fetched));
        let on_path = place("bin/bitcoind");
        assert_eq!(choose("bitcoind", None, path(), folder.path()), Ok(on_path));
        let named = place("mine");
        assert_eq!(
            choose("bitcoind", Some(named.clone().into()), path(), folder.path()),
            Ok(named)
        );
        // A wrong name is a mistake to report, not a reason to use another node.
        let gone = || Some(folder.path().join("gone").into());
        let wrong = choose("bitcoind", gone(), path(), folder.path());
        assert!(wrong.unwrap_err().contains("BITCOIND_EXE"));
        let wrong = choose("btcd", gone(), path(), folder.path());
        assert!(wrong.unwrap_err().contains("BTCD_EXE"));
    }
}
