//! [`PostgresServer`]: a real PostgreSQL server, for the tests of stores on one.
//!
//! A test that needs it fails where no postgres can be found: it never passes by skipping. The server
//! lives in a folder of its own and is killed when dropped. It is spoken to by its own `psql`, by nothing
//! that the tests are about.
//!
//! PostgreSQL refuses to run as root. Tests that are root run it as the user `postgres`, or else as
//! `nobody`, who has to be able to get to the folder: those above it must let others pass.

use crate::programs::{Server, children_of, find_program, on_free_ports, signal, wait_until};
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The user of the database, who may do everything, and the database.
pub const USER: &str = "apus";
const DATABASE: &str = "postgres";

/// How a server is run.
#[derive(Debug, Clone, Copy, Default)]
pub struct PostgresSetup {
    /// The password that it wants, if any.
    pub password: Option<&'static str>,
    /// Whether it leaves it to the system when what is written gets to the disk.
    pub forgets: bool,
    /// Its certificate and key, as files; it speaks TLS with them.
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
    /// Starts one without a password.
    ///
    /// # Panics
    /// When there is no postgres, or it does not start.
    pub fn start() -> Self {
        Self::with(PostgresSetup::default())
    }

    /// Starts one of a given kind. Panics as [`start`](Self::start) does.
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

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The place of a store on it: `postgres://apus@127.0.0.1:PORT/postgres/NAME`.
    pub fn url(&self, name: &str) -> String {
        self.url_at(self.port, name)
    }

    /// The same through something that listens on another port.
    pub fn url_at(&self, port: u16, name: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{port}/{DATABASE}/{name}")
    }

    /// Kills it, at once and without a warning; its processes that serve connections go with it.
    pub fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // Those that serve connections notice that it is gone, but go on for a moment: what they do then
        // must not reach the folder that the next one starts on. So all are killed, each alone.
        let children = children_of(process.id());
        process.kill();
        for child in children {
            signal(child, "KILL");
        }
    }

    /// Has it and all its processes do nothing, until [`go_on`](Self::go_on). Their connections stay, and the system
    /// takes what is said to them, and new ones.
    pub fn stop(&self) {
        self.signal_all("STOP");
    }

    /// Has them go on.
    pub fn go_on(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, name: &str) {
        let Some(process) = &self.process else { return };
        // The first one first: it starts no more then.
        signal(process.id(), name);
        children_of(process.id()).into_iter().for_each(|child| signal(child, name));
    }

    /// Starts a server again that was killed, with what it kept.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        // Memory that the one before shared with its processes is in use until the last of them is gone.
        wait_until("postgres starts again", || self.try_start().is_ok());
    }

    /// Runs a line of SQL by `psql`, and what it prints: a line for each row, `|` between columns.
    ///
    /// # Panics
    /// When there is no `psql` or it does not succeed.
    pub fn sql(&self, line: &str) -> String {
        let mut command = Command::new(self.beside("psql"));
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

    /// Whether it started.
    fn try_start(&mut self) -> Result<(), String> {
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-h", "127.0.0.1", "-k", "", "-p", &self.port.to_string()])
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

    /// A copy of a file that is the server's own, and that no other user can read.
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
        // Spares a process for each look while nothing listens.
        TcpStream::connect(address).and_then(|mut stream| stream.flush()).is_ok()
            && Command::new(self.beside("pg_isready"))
                .args(["--quiet", "--host", "127.0.0.1", "--port", &self.port.to_string()])
                .status()
                .unwrap()
                .success()
    }

    /// A program that lies where the server really lies.
    fn beside(&self, name: &str) -> PathBuf {
        fs::canonicalize(find_program("postgres")).unwrap().with_file_name(name)
    }

    /// A program of the server's, run by the user who owns its folder.
    fn command(&self, name: &str) -> Command {
        let program = self.beside(name);
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

/// The user and the group that the server is to be run as, where it cannot be the tests' own.
fn other_user() -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let users = || fs::read_to_string("/etc/passwd").unwrap_or_default();
    root.then(|| user_of(&users(), "postgres").or_else(|| user_of(&users(), "nobody"))).map(
        |user| user.expect("neither postgres nor nobody is a user here, and root may not run it"),
    )
}

/// The ids of a user and its group, by the lines of `/etc/passwd`.
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
    fn what_a_killed_server_was_told_it_still_knows() {
        let mut server =
            PostgresServer::with(PostgresSetup { password: Some("word"), ..Default::default() });
        server.sql("CREATE TABLE told (what text)");
        server.sql("INSERT INTO told VALUES ('this')");
        assert_eq!(server.sql("SELECT what, 1 FROM told"), "this|1");
        server.kill();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).is_err());
        server.restart();
        assert_eq!(server.sql("SELECT what FROM told"), "this");
        assert!(server.url("x").ends_with("/postgres/x"));
    }

    #[test]
    fn users_are_found_by_their_names() {
        let users = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:7::/:/bin/false\n";
        assert_eq!(user_of(users, "nobody"), Some((65_534, 7)));
        assert_eq!(user_of(users, "body"), None);
    }
}
