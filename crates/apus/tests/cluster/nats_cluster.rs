//! [`NatsCluster`]: three real servers as one cluster, each of which can be killed and started again.

use apus_testkit::http::get;
use apus_testkit::nats;
use apus_testkit::programs::{Server, find_program, on_free_ports, wait_until};
use serde_json::Value;
use std::process::Command;
use tempfile::TempDir;

const SERVERS: usize = 3;

/// Running servers. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct NatsCluster {
    servers: Vec<ClusterNode>,
    folder: TempDir,
}

#[derive(Debug)]
struct ClusterNode {
    /// `None` while it is killed.
    process: Option<Server>,
    client: u16,
    route: u16,
    monitor: u16,
}

impl NatsCluster {
    /// Starts servers with no streams, and waits until they have a leader.
    ///
    /// # Panics
    /// If nats-server is not installed, or a server does not start.
    pub(crate) fn start() -> Self {
        on_free_ports("a cluster of nats-server", |ports: [u16; 3 * SERVERS]| {
            let folder = tempfile::Builder::new().prefix("nats").tempdir().unwrap();
            let servers = ports.chunks_exact(3).map(|ports| ClusterNode {
                process: None,
                client: ports[0],
                route: ports[1],
                monitor: ports[2],
            });
            let mut cluster = Self { servers: servers.collect(), folder };
            (0..SERVERS).try_for_each(|index| cluster.launch(index))?;
            cluster.await_leader();
            Ok(cluster)
        })
    }

    /// The servers' URLs, separated by commas.
    pub(crate) fn urls(&self) -> String {
        let url = |server: &ClusterNode| format!("nats://127.0.0.1:{}", server.client);
        self.servers.iter().map(url).collect::<Vec<_>>().join(",")
    }

    /// The index of the server that leads the stream with this prefix; `None` if there is no leader now.
    pub(crate) fn leader_of(&self, stream: &str) -> Option<usize> {
        let is_up = |index: &usize| self.servers[*index].process.is_some();
        (0..SERVERS).find_map(|index| {
            // Each server knows only the streams that it keeps.
            let about = self.asked(index, "/jsz?accounts=true&streams=true")?;
            let accounts = about["account_details"].as_array()?;
            let mut all = accounts.iter().flat_map(|it| it["stream_detail"].as_array()).flatten();
            let of = all.find(|of| of["name"].as_str().is_some_and(|it| it.starts_with(stream)))?;
            name_index(of["cluster"]["leader"].as_str()?).filter(is_up)
        })
    }

    /// The number of servers that keep that stream.
    pub(crate) fn replicas_of(&self, stream: &str) -> usize {
        let has = |index: &usize| {
            let about = self.asked(*index, "/jsz?accounts=true&streams=true");
            about.is_some_and(|about| about.to_string().contains(&format!("\"name\":\"{stream}")))
        };
        (0..SERVERS).filter(has).count()
    }

    /// Kills a server. Unlike in a power cut, the system still writes the server's files.
    pub(crate) fn kill(&mut self, index: usize) {
        self.servers[index].process = None;
    }

    /// Restarts a killed server with its old streams.
    ///
    /// # Panics
    /// If the server does not start.
    pub(crate) fn start_again(&mut self, index: usize) {
        self.launch(index).unwrap();
    }

    fn await_leader(&self) {
        let leader = |about: &Value| {
            let meta = &about["meta_cluster"];
            meta["leader"].as_str().is_some_and(|it| !it.is_empty())
                && meta["cluster_size"].as_u64() == Some(SERVERS as u64)
        };
        let knows = |index| self.asked(index, "/jsz").is_some_and(|about| leader(&about));
        wait_until("the servers have a leader", || (0..SERVERS).all(knows));
    }

    fn asked(&self, index: usize, path: &str) -> Option<Value> {
        let server = &self.servers[index];
        server.process.as_ref()?;
        serde_json::from_str(&get(server.monitor, path, &[]).body).ok()
    }

    /// Starts a server, and waits until it listens.
    fn launch(&mut self, index: usize) -> Result<(), String> {
        let name = name_of(index);
        let said = self.folder.path().join(format!("said-{name}"));
        let routes = self.servers.iter().map(|other| format!("nats://127.0.0.1:{}", other.route));
        let routes = routes.collect::<Vec<_>>().join(",");
        let server = &mut self.servers[index];
        let mut command = Command::new(find_program("nats-server"));
        command
            .args(["--jetstream", "--addr", "127.0.0.1", "--server_name", &name])
            .args([
                "--port",
                &server.client.to_string(),
                "--http_port",
                &server.monitor.to_string(),
            ])
            .args(["--cluster_name", "three", "--routes", &routes])
            .args(["--cluster", &format!("nats://127.0.0.1:{}", server.route)])
            .arg("--store_dir")
            .arg(self.folder.path().join(name));
        server.process = Some(nats::start(&mut command, &said, Some(server.client))?);
        Ok(())
    }
}

fn name_of(index: usize) -> String {
    format!("n{index}")
}

fn name_index(name: &str) -> Option<usize> {
    (0..SERVERS).find(|index| name_of(*index) == name)
}
