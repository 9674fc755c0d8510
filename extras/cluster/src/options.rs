//! [`LinkOptions`]: where the queue and the objects are; and [`LinkError`], why they cannot be reached.

use crate::key::ClusterKey;
use async_nats::ServerAddr;
use std::net::IpAddr;
use std::path::PathBuf;

/// See the module.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// The NATS server, or several of a cluster with commas between. Has no user and no password.
    pub nats: String,
    /// What is said goes under this key, and by it the server is shown that this is one of the cluster's machines.
    pub key: ClusterKey,
    /// A file with credentials as NATS has them (`.creds`), for a server that does not go by the key.
    pub creds: Option<PathBuf>,
    /// A file with the certificates of those who may have signed the server's.
    pub ca: Option<PathBuf>,
    /// The objects: a folder, or a URL; none where no object is wanted.
    pub objects: Option<String>,
}

/// Why queue or objects cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It cannot be as it is asked for.
    #[error("{0}")]
    Usage(String),
    /// The server does not answer as it should.
    #[error("{url}: {what}")]
    Server {
        /// Where it should be.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// The store of objects.
    #[error("{place}: {what}")]
    Objects {
        /// Where it should be.
        place: String,
        /// What is wrong.
        what: String,
    },
}

impl LinkOptions {
    /// The servers.
    pub(crate) fn servers(&self) -> Result<Vec<ServerAddr>, LinkError> {
        let server = |url: &str| {
            let server: ServerAddr = url
                .parse()
                .map_err(|error| LinkError::Usage(format!("--nats {}: {error}", shown(url))))?;
            if server.has_user_pass() || url.contains('@') {
                return Err(LinkError::Usage(
                    "--nats takes no user, password or token: others on this machine see command lines. Put \
                     them into a file and name it by --nats-creds FILE"
                        .to_owned(),
                ));
            }
            Ok(server)
        };
        self.nats.split(',').map(|url| server(url.trim())).collect()
    }

    /// Whether no machine but this one is named.
    pub fn is_on_loopback(&self) -> Result<bool, LinkError> {
        Ok(self.servers()?.iter().all(|server| is_loopback(server.host())))
    }
}

/// An error with all that led to it.
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

/// A URL without what may be a secret in it.
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
    fn no_secret_stands_in_a_url() {
        for url in ["nats://user:pass@host", "tls://token@host:4222", "a,nats://u:p@b"] {
            let told = options(url).servers().unwrap_err().to_string();
            assert!(told.contains("--nats-creds FILE"), "{told}");
            assert!(!told.contains("pass@") && !told.contains("token@"), "{told}");
        }
        assert_eq!(options("nats://a:1, nats://b:2").servers().unwrap().len(), 2);
        assert!(options("http://a").servers().is_err());
    }

    #[test]
    fn what_is_on_this_machine_is_known() {
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
