//! [`LinkOptions`]: the addresses of the queue and the object store; and [`LinkError`], why they cannot be reached.

use crate::key::ClusterKey;
use async_nats::ServerAddr;
use std::net::IpAddr;
use std::path::PathBuf;

/// Addresses and keys of the queue and the object store.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The URL of the NATS server, or several of a cluster, separated by commas. Must not contain a user or a password.
    pub nats: String,
    /// The key that seals all messages and logs in to the server.
    pub key: ClusterKey,
    /// A NATS credentials file (`.creds`), for a server that does not know the key.
    pub creds: Option<PathBuf>,
    /// A file with CA certificates for the server's certificate.
    pub ca: Option<PathBuf>,
    /// The object store: a folder or a URL; `None` if no object is needed.
    pub objects: Option<String>,
}

/// Failure to reach the queue or the object store.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The options are invalid.
    #[error("{0}")]
    Usage(String),
    /// The server cannot be used.
    #[error("{url}: {what}")]
    Server {
        /// The server's URL.
        url: String,
        /// The cause.
        what: String,
    },
    /// The object store cannot be used.
    #[error("{place}: {what}")]
    Objects {
        /// The store's folder or URL.
        place: String,
        /// The cause.
        what: String,
    },
}

impl LinkOptions {
    /// Parses the servers' addresses.
    pub(crate) fn servers(&self) -> Result<Vec<ServerAddr>, LinkError> {
        let server = |url: &str| {
            let server: ServerAddr = url
                .parse()
                .map_err(|error| LinkError::Usage(format!("--nats {}: {error}", shown(url))))?;
            if server.has_user_pass() || url.contains('@') {
                return Err(LinkError::Usage(
                    "--nats takes no user, password or token, because other users of this machine can see command \
                     lines. Put them into a file and pass it with --nats-creds FILE"
                        .to_owned(),
                ));
            }
            Ok(server)
        };
        self.nats.split(',').map(|url| server(url.trim())).collect()
    }

    /// Whether all servers are on this machine.
    pub fn is_on_loopback(&self) -> Result<bool, LinkError> {
        Ok(self.servers()?.iter().all(|server| is_loopback(server.host())))
    }
}

/// The message of an error and of all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// A URL without the part that may be a secret.
fn shown(url: &str) -> &str {
    url.rsplit('@').next().unwrap_or_default()
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(nats: &str) -> LinkOptions {
        let key = ClusterKey::new(&[7; 32]);
        LinkOptions { nats: nats.into(), key, creds: None, ca: None, objects: None }
    }

    #[test]
    fn secrets_in_urls_are_refused() {
        for url in ["nats://user:pass@host", "tls://token@host:4222", "a,nats://u:p@b"] {
            let error = options(url).servers().unwrap_err().to_string();
            assert!(error.contains("--nats-creds FILE"), "{error}");
            assert!(!error.contains("pass@") && !error.contains("token@"), "{error}");
        }
        assert_eq!(options("nats://a:1, nats://b:2").servers().unwrap().len(), 2);
        assert!(options("http://a").servers().is_err());
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for (urls, here) in [
            ("nats://127.0.0.1:4222", true),
            ("localhost, nats://[::1]:4222", true),
            ("tls://far.example", false),
            ("localhost,nats://near.example", false),
            ("192.168.1.2:4222", false),
        ] {
            assert_eq!(options(urls).is_on_loopback().unwrap(), here, "{urls}");
        }
    }
}
