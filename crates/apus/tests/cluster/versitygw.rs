//! [`S3Server`]: a real server that speaks S3 over a folder, for the tests of objects in buckets.
//!
//! A test that needs it fails where none can be found: it never passes by skipping. It listens on 127.0.0.1 alone, has
//! one bucket, and is killed when dropped.

use apus_testkit::programs::{Server, find_program, on_free_ports};
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct S3Server {
    process: Server,
    /// What runs it, and where it is reached.
    by: Vec<String>,
    address: String,
    port: u16,
    folder: TempDir,
}

impl S3Server {
    /// The bucket that is there.
    pub(crate) const BUCKET: &str = "objects";

    /// The keys that it takes.
    pub(crate) const KEYS: [&str; 2] = ["apus-test-access", "apus-test-secret-0123456789"];

    /// Starts a server with an empty bucket.
    ///
    /// # Panics
    /// When there is no versitygw, or it does not start.
    pub(crate) fn start() -> Self {
        on_free_ports("versitygw", |[port]| {
            let (folder, address) = (empty(), "127.0.0.1".to_owned());
            let process = launch(&[], &folder, &address, port)?;
            Ok(Self { process, by: Vec::new(), address, port, folder })
        })
    }

    /// Starts one by another program, as in a network namespace of its own, on an address there.
    ///
    /// # Panics
    /// When there is no versitygw, or it does not start.
    pub(crate) fn start_by(by: &[String], address: &str) -> Self {
        let (folder, by, address, port) = (empty(), by.to_vec(), address.to_owned(), 7070);
        let process = launch(&by, &folder, &address, port).unwrap();
        Self { process, by, address, port, folder }
    }

    /// What a client has in its environment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let [access, secret] = Self::KEYS;
        let endpoint = format!("http://{}:{}", self.address, self.port);
        let named = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", access),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ];
        named.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// The folder in which its bucket's objects lie.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.folder.path().join("buckets").join(Self::BUCKET)
    }

    /// All that it said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }

    /// Ends it as a power cut would, but for what the system still writes.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, with the objects that it had.
    ///
    /// # Panics
    /// When it does not start.
    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.by, &self.folder, &self.address, self.port).unwrap();
    }
}

fn empty() -> TempDir {
    let folder = tempfile::Builder::new().prefix("s3").tempdir().unwrap();
    fs::create_dir_all(folder.path().join("buckets").join(S3Server::BUCKET)).unwrap();
    fs::create_dir(folder.path().join("about")).unwrap();
    folder
}

/// Starts a server, and waits until it listens.
fn launch(by: &[String], folder: &TempDir, address: &str, port: u16) -> Result<Server, String> {
    let [access, secret] = S3Server::KEYS;
    let said = folder.path().join("said");
    let program = find_program("versitygw").into_os_string();
    let mut words = by.iter().map(Into::into).chain([program]);
    let mut command = Command::new(words.next().expect("there is a program"));
    command
        .args(words)
        // Not on its command line: other users of the machine see that.
        .env("ROOT_ACCESS_KEY_ID", access)
        .env("ROOT_SECRET_ACCESS_KEY", secret)
        .args(["--port", &format!("{address}:{port}"), "--keep-alive", "posix"])
        // Not every folder has attributes.
        .arg("--sidecar")
        .arg(folder.path().join("about"))
        .arg(folder.path().join("buckets"));
    Server::start(&mut command, &said, |said| match by.is_empty() {
        true => TcpStream::connect((address, port)).is_ok(),
        // It cannot be reached from here.
        false => said.contains(&port.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::http::get;

    #[test]
    fn it_refuses_requests_without_keys() {
        let mut server = S3Server::start();
        assert_eq!(get(server.port, "/objects?list-type=2", &[]).status, 403);
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
        server.start_again();
        assert!(TcpStream::connect(("127.0.0.1", server.port)).is_ok());
    }
}
