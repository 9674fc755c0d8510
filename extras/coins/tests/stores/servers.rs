//! [`Servers`]: real servers of either kind, and stores on them, opened by their places.

use apus_chain::Network;
use apus_coins::{
    ClusterOptions, ClusterStore, Password, PostgresOptions, PostgresStore, StoreUrl,
};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::postgres::{PostgresServer, PostgresSetup};
use apus_testkit::redis::{NODES, RedisCluster, RedisSetup};
use apus_testkit::rng::Rng;
use std::time::Duration;

/// What tests do to servers, whatever they are.
pub(crate) trait Servers: Sized {
    /// How many there are.
    const COUNT: usize;

    /// Starts some that want a password, or none.
    fn with_password(password: Option<&'static str>) -> Self;

    /// Starts some that may lose what they acknowledged, and the word of a setting that they are told by.
    fn forgetful() -> (Self, &'static str);

    /// The place of a store.
    fn url(&self, name: &str) -> String;

    /// Kills one, at once and without a warning.
    fn kill(&mut self, number: usize);

    /// Starts those again that were killed, with what they kept, and waits for them.
    fn restart(&mut self);

    /// Has all of them do nothing, with their connections as they are.
    fn stop(&self);

    /// Has them go on.
    fn go_on(&self);

    /// Starts some without a password.
    fn start() -> Self {
        Self::with_password(None)
    }
}

impl Servers for RedisCluster {
    const COUNT: usize = NODES;

    fn with_password(password: Option<&'static str>) -> Self {
        Self::with(RedisSetup { password, ..RedisSetup::default() })
    }

    fn forgetful() -> (Self, &'static str) {
        (Self::with(RedisSetup { forgets: true, ..RedisSetup::default() }), "appendonly")
    }

    fn url(&self, name: &str) -> String {
        Self::url(self, name)
    }

    fn kill(&mut self, number: usize) {
        Self::kill(self, number);
    }

    fn restart(&mut self) {
        self.restart_killed();
        self.wait();
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn go_on(&self) {
        Self::go_on(self);
        // They take each other to be gone at first.
        self.wait();
    }
}

impl Servers for PostgresServer {
    const COUNT: usize = 1;

    fn with_password(password: Option<&'static str>) -> Self {
        Self::with(PostgresSetup { password, ..PostgresSetup::default() })
    }

    fn forgetful() -> (Self, &'static str) {
        (Self::with(PostgresSetup { forgets: true, ..PostgresSetup::default() }), "set fsync to on")
    }

    fn url(&self, name: &str) -> String {
        Self::url(self, name)
    }

    fn kill(&mut self, _: usize) {
        Self::kill(self);
    }

    fn restart(&mut self) {
        Self::restart(self);
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn go_on(&self) {
        Self::go_on(self);
    }
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) network: Network,
    pub(crate) password: Option<&'static str>,
    /// How long a writer that is gone keeps others out of a cluster.
    pub(crate) lease: Duration,
    /// How long another one is waited for.
    pub(crate) waits: Duration,
    pub(crate) patience: Duration,
}

impl Default for How {
    /// With a lease that a test can wait for.
    fn default() -> Self {
        Self {
            network: Network::Regtest,
            password: None,
            lease: Duration::from_millis(1500),
            waits: Duration::from_secs(20),
            patience: Duration::from_secs(120),
        }
    }
}

impl How {
    /// On a cluster, in few buckets.
    pub(crate) fn cluster(&self) -> ClusterOptions {
        ClusterOptions {
            password: self.password.map(Password::new),
            bucket_bits: 6,
            lease: self.lease,
            patience: self.patience,
        }
    }

    /// On PostgreSQL, in few parts.
    pub(crate) fn postgres(&self) -> PostgresOptions {
        PostgresOptions {
            password: self.password.map(Password::new),
            lease: self.waits,
            patience: self.patience,
            partitions: 3,
        }
    }

    pub(crate) fn open(&self, url: &str) -> Result<Box<dyn CoinsStore>, StoreError> {
        Ok(match url.parse().unwrap() {
            StoreUrl::Cluster(place) => {
                Box::new(ClusterStore::open(&place, self.network, &self.cluster())?)
            }
            StoreUrl::Postgres(place) => {
                Box::new(PostgresStore::open(&place, self.network, &self.postgres())?)
            }
        })
    }

    /// Why it is not opened.
    pub(crate) fn refusal(&self, url: &str) -> StoreError {
        self.open(url).err().unwrap()
    }
}

pub(crate) fn open(url: &str) -> Box<dyn CoinsStore> {
    How::default().open(url).unwrap()
}

/// One of the servers.
pub(crate) fn one_of<S: Servers>(rng: &mut Rng) -> usize {
    rng.index(S::COUNT)
}
