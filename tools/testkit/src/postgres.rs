//! [`PostgresServer`]: a real PostgreSQL server, for tests of stores on one.
//!
//! A test that needs it fails if no postgres can be found: it never passes by skipping. The server has its own
//! folder and is killed when dropped. The tests talk to it through its own `psql`, not through the tested code.
//!
//! PostgreSQL refuses to run as root. Tests that run as root start it as the user `postgres` or else as
//! `nobody`, who must be able to reach the folder: its parent folders must be executable for others.

use crate::programs::{Server, children_of, find_program, on_free_ports, signal, wait_until};
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The user of the database, who has all rights, and the name of the database.
pub const USER: &str = "apus";
const DATABASE: &str = "postgres";

/// The settings of a server.
#[derive(Debug, Clone, Copy, Default)]
pub struct PostgresSetup {
    /// The required password, if any.
    pub password: Option<&'static str>,
    /// Whether the server never syncs, so that the system decides when data reaches the disk.
    pub forgets: bool,
    /// Files of its certificate and key, if it speaks TLS.
    pub tls: Option<(&'static Path, &'static Path)>,
}

/// A server on 127.0.0.1.
#[derive(Debug)]
pub struct PostgresServer {
    process: Option<Server>,
    port: u16,
    setup: PostgresSetup,
    folder: TempDir,
}

impl PostgresServer {
    /// Starts a server without a password.
    ///
    /// # Panics
    /// If there is no postgres, or it does not start.
    pub fn start() -> Self {
        Self::with(PostgresSetup::default())
    }

    /// Starts a server with these settings. Panics like [`start`](Self::start).
    pub fn with(setup: PostgresSetup) -> Self {
        let folder = tempfile::Builder::new().prefix("postgres").tempdir().unwrap();
        let mut server = Self { process: None, port: 0, setup, folder };
        server.make();
        on_free_ports("postgres", |[port]| {
            server.port = port;
            server.try_start()
        });
        server
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of a store on it: `postgres://apus@127.0.0.1:PORT/postgres/NAME`.
    pub fn url(&self, name: &str) -> String {
        self.url_at(self.port, name)
    }

    /// Returns the URL through a relay that listens on another port.
    pub fn url_at(&self, port: u16, name: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{DATABASE}/{name}")
    }

    /// Kills it without warning, with the processes that serve connections.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // The processes that serve connections run for a moment after the server has ended, and must not touch
        // the folder on which the next server starts. So each of them is killed.
        let children = children_of(process.id());
        process.kill();
        for child in children {
            signal(child, "KILL");
        }
    }

    /// Suspends it and all its processes until [`go_on`](Self::go_on). Their connections stay, and the system
    /// accepts data and new connections.
    pub fn stop(&self) {
        self.signal_all("STOP");
    }

    /// Resumes the suspended processes.
    pub fn go_on(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, name: &str) {
        let Some(process) = &self.process else { return };
        // Signal the main process first, so that it starts no more processes.
        signal(process.id(), name);
        children_of(process.id()).into_iter().for_each(|child| signal(child, name));
    }

    /// Starts a killed server again, with its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        // Memory shared by the killed processes stays in use until the last of them has ended.
        wait_until("postgres starts again", || self.try_start().is_ok());
    }

    /// Runs a line of SQL with `psql`, and returns the output: a line for each row, `|` between columns.
    ///
    /// # Panics
    /// If there is no `psql` or it fails.
    pub fn sql(&self, line: &str) -> String {
        let mut command = Command::new(self.sibling("psql"));
        command
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--host", "127.0.0.1"])
            .args(["--port", &self.port.to_string(), "--username", USER, "--dbname", DATABASE])
            .args(["--command", line]);
        if let Some(password) = self.setup.password {
            command.env("PGPASSWORD", password);
        }
        let said = command.output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{line}: {error}");
        String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
    }

    /// Makes the folder of the databases.
    fn make(&self) {
        let data = self.data();
        fs::create_dir(&data).unwrap();
        if let Some((user, group)) = other_user() {
            std::os::unix::fs::chown(self.folder.path(), Some(user), Some(group)).unwrap();
            std::os::unix::fs::chown(&data, Some(user), Some(group)).unwrap();
        }
        let mut command = self.command("initdb");
        command
            .args(["--no-sync", "--encoding", "UTF8", "--locale", "C", "--username", USER])
            .args(["--auth", if self.setup.password.is_some() { "scram-sha-256" } else { "trust" }])
            .arg("--pgdata")
            .arg(&data);
        if let Some(password) = self.setup.password {
            let file = self.folder.path().join("password");
            fs::write(&file, password).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            command.arg("--pwfile").arg(file);
        }
        let said = command.output().unwrap();
        let error = String::from_utf8_lossy(&said.stderr);
        assert!(
            said.status.success(),
            "initdb in {}: {error} (may others pass through the folders above it? chmod o+x)",
            data.display()
        );
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns whether it started.
    fn try_start(&mut self) -> Result<(), String> {
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-k"])
            .arg(self.data())
            .args(["-c", "max_connections=60", "-c", "shared_buffers=64MB"])
            .args(["-c", if self.setup.forgets { "fsync=off" } else { "fsync=on" }]);
        if let Some((certificate, key)) = self.setup.tls {
            command.args(["-c", "ssl=on", "-c"]);
            command
                .arg(format!("ssl_cert_file={}", self.own(certificate, "certificate").display()));
            command.arg("-c");
            command.arg(format!("ssl_key_file={}", self.own(key, "key").display()));
        }
        let log = self.folder.path().join("log");
        self.process = Some(Server::start(&mut command, &log, |_| self.is_ready())?);
        Ok(())
    }

    /// Copies a file for the server, unreadable for other users.
    fn own(&self, file: &Path, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        fs::copy(file, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = other_user() {
            std::os::unix::fs::chown(&copy, Some(user), Some(group)).unwrap();
        }
        copy
    }

    fn is_ready(&self) -> bool {
        let address = (Ipv4Addr::LOCALHOST, self.port);
        // While nothing listens, this avoids starting a process for each check.
        TcpStream::connect(address).and_then(|mut stream| stream.flush()).is_ok()
            && Command::new(self.sibling("pg_isready"))
                .args(["--quiet", "--host", "127.0.0.1", "--port", &self.port.to_string()])
                .status()
                .unwrap()
                .success()
    }

    /// Returns a program in the server's real folder.
    fn sibling(&self, name: &str) -> PathBuf {
        fs::canonicalize(find_program("postgres")).unwrap().with_file_name(name)
    }

    /// Makes a command for a program of the server, run by the owner of its folder.
    fn command(&self, name: &str) -> Command {
        let program = self.sibling(name);
        let mut command = match other_user() {
            None => Command::new(program),
            Some((user, group)) => {
                let mut command = Command::new("setpriv");
                command
                    .args([format!("--reuid={user}"), format!("--regid={group}")])
                    .args(["--clear-groups", "--"])
                    .arg(program);
                command
            }
        };
        command.current_dir("/").stdin(Stdio::null());
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the user and group to run the server as, if it cannot be the tests' user.
fn other_user() -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let users = || fs::read_to_string("/etc/passwd").unwrap_or_default();
    root.then(|| user_of(&users(), "postgres").or_else(|| user_of(&users(), "nobody")))
        .map(|user| user.expect("no user postgres or nobody here, and root may not run it"))
}

/// Returns the ids of a user and its group, from the lines of `/etc/passwd`.
fn user_of(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut fields = users
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    fields.next();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_keeps_its_data() {
        let mut server =
            PostgresServer::with(PostgresSetup { password: Some("word"), ..Default::default() });
        server.sql("CREATE TABLE notes (what text)");
        server.sql("INSERT INTO notes VALUES ('this')");
        assert_eq!(server.sql("SELECT what, 1 FROM notes"), "this|1");
        server.kill();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).is_err());
        server.restart();
        assert_eq!(server.sql("SELECT what FROM notes"), "this");
        assert!(server.url("x").ends_with("/postgres/x"));
    }

    #[test]
    fn users_are_found_by_their_names() {
        let users = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:7::/:/bin/false\n";
        assert_eq!(user_of(users, "nobody"), Some((65_534, 7)));
        assert_eq!(user_of(users, "body"), None);
    }
}
