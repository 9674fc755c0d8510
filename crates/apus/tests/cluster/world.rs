//! [`World`]: a queue and a sandbox, with processes that work on them.

use crate::sandbox::{Ended, Fixture, Running, Sandbox};
use apus_cluster::ClusterKey;
use apus_testkit::nats::NatsServer;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A process that ends with its test.
pub(crate) struct Process(Option<Running>);

impl Process {
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(Running::has_ended)
    }

    pub(crate) fn until(&mut self, so: impl FnMut() -> bool) -> bool {
        self.0.as_mut().is_some_and(|running| running.until(so))
    }

    pub(crate) fn signal(&self, name: &str) {
        self.0.iter().for_each(|running| running.signal(&[name]));
    }

    pub(crate) fn wait(mut self) -> Ended {
        self.0.take().unwrap().wait()
    }

    /// Ends one of several workers after the run. A worker that joined the run ends with it; one that was too slow to
    /// join waits for the next run, and is interrupted.
    pub(crate) fn leave(mut self) {
        let deadline = Instant::now() + Duration::from_secs(3);
        while !self.has_ended() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        match self.has_ended() {
            true => drop(self.wait().succeeds()),
            // Interrupt instead of kill, so that the worker removes its scratch folder.
            false => {
                self.signal("INT");
                drop(self.wait());
            }
        }
    }

    /// Kills the process.
    pub(crate) fn kill(self) -> Ended {
        self.signal("KILL");
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// The last message of a run.
pub(crate) fn final_message(ended: &Ended) -> &str {
    ended.stderr.lines().find(|line| line.starts_with("apus: ")).unwrap()
}

pub(crate) struct World {
    pub(crate) server: NatsServer,
    /// The address of the queue, if it differs from the server's.
    pub(crate) queue: Option<String>,
    pub(crate) sandbox: Sandbox,
    /// The place of the objects, and the environment variables to reach it.
    pub(crate) objects: String,
    pub(crate) environment: Vec<(String, String)>,
    /// The command prefix for programs, unless another is given.
    pub(crate) by: Vec<String>,
    chain: &'static str,
}

/// The cluster key of all machines here.
const KEY: [u8; 32] = [0x4b; 32];

/// The environment variable with the key.
fn environment() -> Vec<(String, String)> {
    vec![("APUS_CLUSTER_KEY".to_owned(), "4b".repeat(KEY.len()))]
}

impl World {
    /// A world with a copy of a fixture.
    pub(crate) fn with(fixture: Fixture) -> Self {
        Self::on(Sandbox::with(fixture), fixture.chain)
    }

    pub(crate) fn on(sandbox: Sandbox, chain: &'static str) -> Self {
        let (server, objects) = (NatsServer::start(), "objects".to_owned());
        let (environment, by) = (environment(), Vec::new());
        Self { server, queue: None, sandbox, objects, environment, by, chain }
    }

    /// The cluster key of all machines here.
    pub(crate) fn key() -> ClusterKey {
        ClusterKey::new(&KEY)
    }

    /// The URL of the queue.
    pub(crate) fn url(&self) -> String {
        self.queue.clone().unwrap_or_else(|| self.server.url())
    }

    /// The options of a run that writes the set and the hints.
    pub(crate) fn run(&self, more: &str) -> String {
        let chain = self.chain;
        format!(
            "--chain {chain} --blocksdir blocks --hints msb.hints --assumevalid hints \
             --workdir progress.work --out snapshot:utxo.dat --out hints:utxo.hints \
             --report report.json {more}"
        )
    }

    /// Starts the program with a command line.
    pub(crate) fn start(&self, line: &str) -> Process {
        self.start_by(&self.by, line)
    }

    /// Starts the program through another program, with its command prefix.
    pub(crate) fn start_by(&self, by: &[String], line: &str) -> Process {
        Process(Some(self.sandbox.start_by(by, &self.environment, line)))
    }

    /// The options of a run without hints, with the same outputs.
    pub(crate) fn join(&self, more: &str) -> String {
        let chain = self.chain;
        format!(
            "--chain {chain} --blocksdir blocks --engine mergesync --workdir progress.work \
             --out snapshot:utxo.dat --out hints:utxo.hints --report report.json {more}"
        )
    }

    /// Starts a coordinator for a run with these options.
    pub(crate) fn serve_run(&self, run: &str) -> Process {
        let url = self.url();
        // Short, so that the jobs of killed machines are requeued soon.
        let objects = &self.objects;
        let line = format!("cluster serve --nats {url} --objects {objects} --ack-wait 1 {run}");
        self.start(&line)
    }

    pub(crate) fn serve(&self, more: &str) -> Process {
        self.serve_run(&self.run(more))
    }

    /// Starts a worker.
    pub(crate) fn work(&self, more: &str) -> Process {
        self.work_on("blocks", more)
    }

    /// Starts a worker with a folder of blocks.
    pub(crate) fn work_on(&self, blocks: &str, more: &str) -> Process {
        let url = self.url();
        let objects = &self.objects;
        let line =
            format!("cluster work --nats {url} --objects {objects} --blocksdir {blocks} {more}");
        self.start(&line)
    }

    /// Kills the server, and starts it again a moment later.
    pub(crate) fn lose_server(&mut self, rng: &mut Rng) {
        self.server.kill();
        sleep(Duration::from_millis(rng.below(300)));
        self.server.start_again();
    }

    pub(crate) fn status(&self, more: &str) -> Ended {
        let url = self.url();
        self.start(&format!("cluster status --nats {url} {more}")).wait()
    }

    /// Asserts that the run wrote the node's set, and left no other file.
    #[track_caller]
    pub(crate) fn expect_done(&self) {
        self.expect_outputs();
        assert_eq!(self.sandbox.names("objects"), [""; 0]);
        self.status("").succeeds().says(&["no active runs"]);
    }

    /// Asserts that the run wrote the node's set.
    #[track_caller]
    pub(crate) fn expect_outputs(&self) {
        assert!(self.sandbox.read("utxo.dat") == self.sandbox.read("node.dat"));
        assert!(self.sandbox.read("utxo.hints") == self.sandbox.read("msb.hints"));
        assert!(!self.sandbox.has("progress.work"));
    }

    /// Reads the run's secret from its progress.
    pub(crate) fn secret(&self) -> Vec<u8> {
        self.sandbox.read("progress.work/plan")[90..122].to_vec()
    }

    pub(crate) fn stores(&self, bytes: &[u8]) -> bool {
        self.server.stored().windows(bytes.len()).any(|window| window == bytes)
    }
}
