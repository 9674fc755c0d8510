//! [`World`]: a queue and a desk, and the processes that work on it.

use crate::desk::{Desk, Ended, Fixture, Running};
use apus_cluster::ClusterKey;
use apus_testkit::nats::NatsServer;
use apus_testkit::rng::Rng;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A process that does not outlive its test.
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

    /// Waits for a worker beside others to end with the run, if it was quick enough to take part in it; one that
    /// was not waits for the next.
    pub(crate) fn leave(mut self) {
        let deadline = Instant::now() + Duration::from_secs(3);
        while !self.has_ended() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        match self.has_ended() {
            true => drop(self.wait().succeeds()),
            false => drop(self.kill()),
        }
    }

    /// Ends it as a power cut would.
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

/// What a run said last.
pub(crate) fn told(ended: &Ended) -> &str {
    ended.stderr.lines().find(|line| line.starts_with("apus: ")).unwrap()
}

pub(crate) struct World {
    pub(crate) server: NatsServer,
    /// Where the queue is, if it is not that server.
    pub(crate) queue: Option<String>,
    pub(crate) desk: Desk,
    /// Where objects are, and what programs have in their environment to get there.
    pub(crate) objects: String,
    pub(crate) environment: Vec<(String, String)>,
    /// What runs programs, unless another one is named.
    pub(crate) by: Vec<String>,
    chain: &'static str,
}

/// The key of the cluster of all machines here.
const KEY: [u8; 32] = [0x4b; 32];

/// The same, as programs have it in their environment.
fn environment() -> Vec<(String, String)> {
    vec![("APUS_CLUSTER_KEY".to_owned(), "4b".repeat(KEY.len()))]
}

impl World {
    /// On a copy of a fixture.
    pub(crate) fn with(fixture: Fixture) -> Self {
        Self::on(Desk::with(fixture), fixture.chain)
    }

    pub(crate) fn on(desk: Desk, chain: &'static str) -> Self {
        let (server, objects) = (NatsServer::start(), "objects".to_owned());
        let (environment, by) = (environment(), Vec::new());
        Self { server, queue: None, desk, objects, environment, by, chain }
    }

    /// The key of all machines here.
    pub(crate) fn key() -> ClusterKey {
        ClusterKey::new(&KEY)
    }

    /// Where the queue is.
    pub(crate) fn url(&self) -> String {
        self.queue.clone().unwrap_or_else(|| self.server.url())
    }

    /// The options of a run; the set is written, and what the hints leave behind.
    pub(crate) fn run(&self, more: &str) -> String {
        let chain = self.chain;
        format!(
            "--chain {chain} --blocksdir blocks --hints msb.hints --assumevalid hints \
             --workdir progress.work --out snapshot:utxo.dat --out hints:utxo.hints \
             --report report.json {more}"
        )
    }

    /// The program with a line.
    pub(crate) fn start(&self, line: &str) -> Process {
        self.start_by(&self.by, line)
    }

    /// The same, by another program.
    pub(crate) fn start_by(&self, by: &[String], line: &str) -> Process {
        Process(Some(self.desk.start_by(by, &self.environment, line)))
    }

    /// The options of a run without hints, of the same files.
    pub(crate) fn join(&self, more: &str) -> String {
        let chain = self.chain;
        format!(
            "--chain {chain} --blocksdir blocks --engine mergesync --workdir progress.work \
             --out snapshot:utxo.dat --out hints:utxo.hints --report report.json {more}"
        )
    }

    /// A coordinator of a run with these options.
    pub(crate) fn serve_run(&self, run: &str) -> Process {
        let url = self.url();
        // Short, or each job of a machine that was killed would be waited for.
        let objects = &self.objects;
        let line = format!("cluster serve --nats {url} --objects {objects} --ack-wait 1 {run}");
        self.start(&line)
    }

    pub(crate) fn serve(&self, more: &str) -> Process {
        self.serve_run(&self.run(more))
    }

    /// A worker.
    pub(crate) fn work(&self, more: &str) -> Process {
        self.work_on("blocks", more)
    }

    /// A worker with a folder of blocks.
    pub(crate) fn work_on(&self, blocks: &str, more: &str) -> Process {
        let url = self.url();
        let objects = &self.objects;
        let line =
            format!("cluster work --nats {url} --objects {objects} --blocksdir {blocks} {more}");
        self.start(&line)
    }

    /// Has the server die, and come back some moments later.
    pub(crate) fn lose_server(&mut self, rng: &mut Rng) {
        self.server.kill();
        sleep(Duration::from_millis(rng.below(300)));
        self.server.start_again();
    }

    pub(crate) fn status(&self, more: &str) -> Ended {
        let url = self.url();
        self.start(&format!("cluster status --nats {url} {more}")).wait()
    }

    /// The set of the node is there, and nothing else that a run leaves.
    #[track_caller]
    pub(crate) fn expect_done(&self) {
        self.expect_outputs();
        assert_eq!(self.desk.names("objects"), [""; 0]);
        self.status("").succeeds().says(&["no run goes on"]);
    }

    /// The set of the node is there.
    #[track_caller]
    pub(crate) fn expect_outputs(&self) {
        assert!(self.desk.read("utxo.dat") == self.desk.read("node.dat"));
        assert!(self.desk.read("utxo.hints") == self.desk.read("msb.hints"));
        assert!(!self.desk.has("progress.work"));
    }

    /// The secret of the run whose progress is there.
    pub(crate) fn secret(&self) -> Vec<u8> {
        self.desk.read("progress.work/plan")[90..122].to_vec()
    }

    pub(crate) fn stores(&self, bytes: &[u8]) -> bool {
        self.server.stored().windows(bytes.len()).any(|window| window == bytes)
    }
}
