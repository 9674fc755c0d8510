//! [`S3Server`]: a real S3 server over a folder, for the tests with objects in buckets.
//!
//! A test that needs it fails if versitygw is not installed; it is never skipped. The server listens only on 127.0.0.1,
//! has one bucket, and is killed when dropped.

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
    /// The command prefix that runs it, and its address.
    by: Vec<String>,
    address: String,
    port: u16,
    folder: TempDir,
}

impl S3Server {
    /// The name of the bucket.
    pub(crate) const BUCKET: &str = "objects";

    /// The keys that it accepts.
    pub(crate) const KEYS: [&str; 2] = ["apus-test-access", "apus-test-secret-0123456789"];

    /// Starts a server with an empty bucket.
    ///
    /// # Panics
    /// If versitygw is not installed, or does not start.
    pub(crate) fn start() -> Self {
        on_free_ports("versitygw", |[port]| {
            let (folder, address) = (empty(), "127.0.0.1".to_owned());
            let process = launch(&[], &folder, &address, port)?;
            Ok(Self { process, by: Vec::new(), address, port, folder })
        })
    }

    /// Starts a server through another program, for example in a network namespace, on an address there.
    ///
    /// # Panics
    /// If versitygw is not installed, or does not start.
    pub(crate) fn start_by(by: &[String], address: &str) -> Self {
        let (folder, by, address, port) = (empty(), by.to_vec(), address.to_owned(), 7070);
        let process = launch(&by, &folder, &address, port).unwrap();
        Self { process, by, address, port, folder }
    }

    /// The environment variables for a client.
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

    /// The folder with the bucket's objects.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.folder.path().join("buckets").join(Self::BUCKET)
    }

    /// Everything that the server has printed.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap_or_default()
    }

    /// Kills the server. Unlike in a power cut, the system still writes the server's files.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server with its old objects.
    ///
    /// # Panics
    /// If the server does not start.
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
        // Other users of the machine can see the command line, so pass the keys in the environment.
        .env("ROOT_ACCESS_KEY_ID", access)
        .env("ROOT_SECRET_ACCESS_KEY", secret)
        .args(["--port", &format!("{address}:{port}"), "--keep-alive", "posix"])
        // Not every filesystem has extended attributes.
        .arg("--sidecar")
        .arg(folder.path().join("about"))
        .arg(folder.path().join("buckets"));
    Server::start(&mut command, &said, |said| match by.is_empty() {
        true => TcpStream::connect((address, port)).is_ok(),
        // A server in a namespace cannot be reached from here, so its output must show the port.
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
