//! [`Servers`]: real servers of either kind, and stores on them, opened by URL.

use apus_chain::Network;
use apus_coins::{
    ClusterOptions, ClusterStore, Password, PostgresOptions, PostgresStore, StoreUrl,
};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::postgres::{PostgresServer, PostgresSetup};
use apus_testkit::redis::{NODES, RedisCluster, RedisSetup};
use apus_testkit::rng::Rng;
use std::time::Duration;

/// Operations of tests on servers of either kind.
pub(crate) trait Servers: Sized {
    /// The number of servers.
    const COUNT: usize;

    /// Starts servers that require a password, or none.
    fn with_password(password: Option<&'static str>) -> Self;

    /// Starts servers that may lose acknowledged data, and returns the setting that the error must name.
    fn forgetful() -> (Self, &'static str);

    /// The URL of a store.
    fn url(&self, name: &str) -> String;

    /// Kills one server, at once and without a warning.
    fn kill(&mut self, number: usize);

    /// Restarts the killed servers with their data, and waits for them.
    fn restart(&mut self);

    /// Stops all of them with their connections open.
    fn stop(&self);

    /// Resumes stopped servers.
    fn resume(&self);

    /// Starts servers without a password.
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

    fn resume(&self) {
        Self::go_on(self);
        // At first, the servers believe each other to be gone.
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

    fn resume(&self) {
        Self::go_on(self);
    }
}

/// How to open a store.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) network: Network,
    pub(crate) password: Option<&'static str>,
    /// How long a vanished writer keeps others out of a cluster.
    pub(crate) lease: Duration,
    /// How long to wait for another writer.
    pub(crate) waits: Duration,
    pub(crate) patience: Duration,
}

impl Default for How {
    /// A lease short enough for a test to wait for.
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
    /// Options for a cluster, with few buckets.
    pub(crate) fn cluster(&self) -> ClusterOptions {
        ClusterOptions {
            password: self.password.map(Password::new),
            bucket_bits: 6,
            lease: self.lease,
            patience: self.patience,
            ..ClusterOptions::default()
        }
    }

    /// Options for PostgreSQL, with few partitions.
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

    /// Opens the store at `url`, which must fail, and returns the error.
    pub(crate) fn refusal(&self, url: &str) -> StoreError {
        self.open(url).err().unwrap()
    }
}

pub(crate) fn open(url: &str) -> Box<dyn CoinsStore> {
    How::default().open(url).unwrap()
}

/// The index of a random server.
pub(crate) fn one_of<S: Servers>(rng: &mut Rng) -> usize {
    rng.index(S::COUNT)
}
