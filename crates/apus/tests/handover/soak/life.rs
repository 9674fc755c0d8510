//! [`Life`]: the events of a node on one folder.

use super::Span;
use super::kinds::{Folder, INDEX_ALL, Kind, NODE, reindex};
use super::tally::{Counts, Tally};
use super::world::{World, verdict};
use crate::lived::CHAIN;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::Case;
use bitcoin::BlockHash;
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than a node takes to connect the blocks that it has.
const PATIENCE: Duration = Duration::from_secs(60);

/// About the time that a node takes to write everything when it ends.
const ENDING_MILLIS: u64 = 80;

/// With fewer blocks, a node prunes nothing (Core `kernel/chainparams.cpp`, `-fastprune`).
const PRUNE_AFTER: u32 = 100;

/// A node on a folder that the program made.
pub(crate) struct Life<'a> {
    world: &'a mut World,
    kind: &'static str,
    folder: Folder,
    /// `None` only between two starts.
    node: Option<Bitcoind>,
    counts: &'a mut Counts,
}

impl<'a> Life<'a> {
    /// Makes a folder and starts a node on it, with the same blocks as the reference.
    pub(crate) fn begin(world: &'a mut World, kind: Kind, tally: &'a mut Tally) -> Self {
        println!("{}: seed {}, height {}", kind.name, world.seed, world.height());
        let folder = Folder::make(world, kind);
        println!("  apus {}", folder.line);
        let counts = tally.of(kind.name);
        counts.lives += 1;
        let mut life = Self { world, kind: kind.name, folder, node: None, counts };
        life.start();
        life
    }

    /// Generates events until the span is over; then compares everything and removes the folder.
    pub(crate) fn live(mut self, span: Span) {
        self.reorganise();
        for _ in 0..self.world.rng.between(span.events_max.div_ceil(2), span.events_max) {
            if span.is_over() {
                break;
            }
            self.event();
        }
        self.compare();
        self.verify();
        self.node.take().map(Bitcoind::stop);
        self.world.sandbox.remove(NODE);
    }

    fn event(&mut self) {
        match self.world.rng.below(16) {
            0..3 => self.extend(),
            3..6 => self.reorganise(),
            6..8 => self.branch(),
            8 => self.stay_behind(),
            9..11 => self.restart(),
            11..13 => self.prune(),
            13 => self.run_between(),
            14 => self.verify(),
            _ => self.compare(),
        }
    }

    fn tell(&self, what: &str) {
        println!("  {}, block {}: {what}", self.kind, self.world.height());
    }

    fn node(&self) -> &Bitcoind {
        self.node.as_ref().expect("it runs except between two starts")
    }

    /// Submits a block to both nodes, which must give the same verdict and have the same tip.
    fn give(&mut self, case: &Case) {
        let [here, there] = [self.node(), self.world.reference()]
            .map(|node| (verdict(node, &case.raw), node.best_block_hash()));
        assert_eq!(here, there, "{}, {}", self.kind, case.mutation);
        match here.0.as_str() {
            "accepted" | "inconclusive" => self.counts.blocks += 1,
            _ => self.counts.refused += 1,
        }
    }

    /// Adds blocks to the tip, some with a change.
    fn extend(&mut self) {
        let count = self.world.rng.between(1, 8);
        for _ in 0..count {
            if self.world.rng.one_in(3) {
                let case = self.world.blocks.case();
                self.give(&case);
                if self.world.reference().best_block_hash() != self.world.blocks.chain.tip() {
                    self.world.blocks.accept(&case.raw);
                }
            } else {
                self.give_valid();
            }
        }
        self.tell(&format!("{count} blocks"));
    }

    fn give_valid(&mut self) {
        let case = self.world.valid();
        self.give(&case);
    }

    /// Adds a branch of valid blocks from `depth` below the tip.
    fn grow_branch(&mut self, depth: u32, length: u32) {
        let fork = self.world.block_at(self.world.height() - depth);
        self.world.blocks.go_to(fork);
        (0..length).for_each(|_| self.give_valid());
    }

    /// Adds a branch that becomes the best chain.
    fn reorganise(&mut self) {
        let (depth, before) = (self.world.depth(), self.world.blocks.chain.tip());
        let more = self.world.rng.between(1, 3) as u32;
        self.grow_branch(depth, depth + more);
        self.expect_tip();
        assert_eq!(self.went_back(before), depth as usize);
        self.tell(&format!("a reorganisation by {depth}"));
    }

    /// Adds a branch that would become the best chain if it were valid. A node switches to it, and back when it finds
    /// the invalid block.
    fn branch(&mut self) {
        let (depth, before) = (self.world.depth(), self.world.blocks.chain.tip());
        for case in self.world.blocks.branch(depth.into()) {
            self.give(&case);
        }
        let best = self.world.reference().best_block_hash();
        self.world.blocks.go_to(best);
        let back = self.went_back(before);
        // Between two branches with the same work, a node may choose the other one after a restart.
        self.give_valid();
        self.expect_tip();
        self.tell(&format!("a branch with something changed, back by {back}"));
    }

    /// Adds a branch that never becomes the best chain.
    fn stay_behind(&mut self) {
        let (depth, tip) = (self.world.depth().max(2), self.world.blocks.chain.tip());
        self.grow_branch(depth, depth - 1);
        self.world.blocks.go_to(tip);
        self.expect_tip();
        self.tell("a branch that stays behind");
    }

    fn expect_tip(&self) {
        assert_eq!(self.node().best_block_hash(), self.world.blocks.chain.tip(), "{}", self.kind);
    }

    /// Returns how many blocks both nodes disconnected below their old tip.
    fn went_back(&mut self, before: BlockHash) -> usize {
        let chain = &self.world.blocks.chain;
        let parent = |hash: &BlockHash| Some(chain.block(*hash).header.prev_blockhash);
        let now = std::iter::successors(Some(chain.tip()), parent).take(2 * 100 + 4);
        let now: HashSet<BlockHash> = now.collect();
        let before = std::iter::successors(Some(before), parent);
        let depth = before.take_while(|hash| !now.contains(hash)).count();
        if depth > 0 {
            self.counts.reorganised(depth);
        }
        depth
    }

    /// Asserts that the node's indexes follow its chain: the statistics have the hash of the coins, every transaction is
    /// found, and each block has a filter.
    fn compare_indexes(&self) {
        let node = self.node();
        let deadline = Instant::now() + PATIENCE;
        let tip = self.world.height();
        let is_synced = || {
            let info = node.call("getindexinfo", &[]);
            let mut all = info.as_object().unwrap().values();
            info.as_object().unwrap().len() >= 3
                && all.all(|it| it["synced"] == true && it["best_block_height"] == tip)
        };
        while !is_synced() {
            assert!(Instant::now() < deadline, "{}: the indexes stay behind", self.kind);
            sleep(Duration::from_millis(20));
        }
        let hash = |by_index| {
            node.call("gettxoutsetinfo", &[json!("muhash"), json!(null), json!(by_index)])["muhash"]
                .clone()
        };
        assert_eq!(hash(true), hash(false), "{}: coinstatsindex", self.kind);
        for height in (1..=tip).step_by(7).chain([tip]) {
            let block = node.call("getblockhash", &[json!(height)]);
            let txids = node.call("getblock", &[block.clone(), json!(1)])["tx"].clone();
            for txid in txids.as_array().unwrap() {
                let found = node.call("getrawtransaction", &[txid.clone(), json!(true)]);
                assert_eq!(found["blockhash"], block, "{}: txindex, block {height}", self.kind);
            }
            assert!(node.call("getblockfilter", &[block])["header"].is_string());
        }
    }

    /// Asserts that the coins are the reference's.
    fn compare(&mut self) {
        if self.folder.indexed {
            self.compare_indexes();
        }
        let [here, there] = [self.node(), self.world.reference()].map(Bitcoind::txoutset_info);
        assert_eq!(here, there, "{}", self.kind);
        self.counts.comparisons += 1;
        self.tell(&format!("the same {} coins", here.txouts));
    }

    /// Returns how many of its last blocks the node can disconnect.
    fn undo_depth(&self) -> u32 {
        let info = self.node().call("getblockchaininfo", &[]);
        let stored_from = info["pruneheight"].as_u64().unwrap_or(0) as u32;
        self.world.height() - self.folder.floor.max(stored_from.saturating_sub(1))
    }

    /// Makes the node check its blocks and undo data, disconnect all of them, and connect them again. A node with a
    /// small cache does not get as far back in a long chain and says so; then it checks fewer blocks (Core
    /// `validation.cpp`, `CVerifyDB`).
    fn verify(&mut self) {
        let most = self.undo_depth();
        let mut depth = match self.world.rng.one_in(2) {
            true => most,
            false => most.min(self.world.rng.between(1, 120) as u32),
        };
        let skipped =
            |node: &Bitcoind| node.log().matches("insufficient database cache size").count();
        loop {
            let before = skipped(self.node());
            let verified = self.node().call("verifychain", &[json!(4), json!(depth)]);
            if verified == json!(true) {
                break;
            }
            let lacks_cache = skipped(self.node()) > before && depth > 300;
            assert!(lacks_cache, "{}: verifychain 4 {depth}", self.kind);
            depth /= 2;
        }
        self.counts.verifications += 1;
        self.tell(&format!("{depth} blocks verified"));
    }

    /// Makes the node prune its oldest files; an unpruned node may become a pruned one.
    fn prune(&mut self) {
        if !self.folder.pruned {
            // A node with txindex cannot prune.
            if self.folder.indexed || !self.world.rng.one_in(3) {
                return self.compare();
            }
            self.folder.pruned = true;
            self.restart();
        }
        let height = self.world.height();
        if height <= PRUNE_AFTER {
            return;
        }
        let before = self.undo_depth();
        let up_to = self.world.rng.between(1, height.into());
        self.node().call("pruneblockchain", &[json!(up_to)]);
        let after = self.undo_depth();
        self.counts.prunes += usize::from(after < before);
        self.tell(&format!("pruned, {before} blocks become {after}"));
    }

    /// Ends the node in one of four ways; returns whether it had time to write everything.
    fn end_node(&mut self) -> bool {
        let node = self.node.take().expect("it runs");
        // A node that is killed after a reorganisation has filters of blocks above its index's best one, and does not
        // start again (Core `index/blockfilterindex.cpp`, `CustomInit`). That is so for its own indexes, too.
        let way = self.world.rng.below(if self.folder.indexed { 2 } else { 4 });
        match way {
            0 => drop(node.stop()),
            1 => drop(node.terminate()),
            2 => drop(node.kill()),
            _ => {
                node.signal("TERM");
                sleep(Duration::from_millis(self.world.rng.below(ENDING_MILLIS)));
                node.kill();
            }
        }
        let clean = way < 2;
        match clean {
            true => self.counts.restarts += 1,
            false => self.counts.kills += 1,
        }
        self.tell(["stopped", "terminated", "killed", "killed while it ended"][way as usize]);
        clean
    }

    fn restart(&mut self) {
        self.end_node();
        self.start();
    }

    /// Starts a node on the folder, and submits the blocks that it lacks.
    fn start(&mut self) {
        let mut args = vec!["-fastprune"];
        if self.folder.pruned {
            args.push(if self.world.rng.one_in(2) { "-prune=1" } else { "-prune=550" });
        }
        if self.folder.indexed {
            args.extend(["-txindex", "-blockfilterindex", "-coinstatsindex"]);
        }
        // Use many small writes, so that a kill can hit between two of one flush.
        for arg in ["-dbbatchsize=1000", "-dbcache=4", "-checklevel=4", "-par=1"] {
            if self.world.rng.one_in(3) {
                args.push(arg);
            }
        }
        let node = Bitcoind::start_in(&self.world.sandbox.path(NODE), CHAIN, &args);
        let node = node.unwrap_or_else(|said| panic!("{}, {args:?}: {said}", self.kind));
        assert!(node.height() >= self.folder.height, "{} is at {}", self.kind, node.height());
        self.node = Some(node);
        self.catch_up();
    }

    /// Submits the blocks that the reference's chain has and the node lacks.
    fn catch_up(&self) {
        let (chain, node) = (&self.world.blocks.chain, self.node());
        let on_chain = |hash: &BlockHash| {
            let header = node.try_call("getblockheader", &[json!(hash.to_string())]);
            header.is_ok_and(|header| header["confirmations"].as_i64() >= Some(0))
        };
        let mut missing = Vec::new();
        let mut at = chain.tip();
        while !on_chain(&at) {
            missing.push(at);
            at = chain.block(at).header.prev_blockhash;
        }
        for hash in missing.iter().rev() {
            let said = verdict(node, &bitcoin::consensus::serialize(chain.block(*hash)));
            let taken = ["accepted", "inconclusive", "duplicate", "duplicate-inconclusive"];
            assert!(taken.contains(&said.as_str()), "{}: {said}", self.kind);
        }
        let deadline = Instant::now() + PATIENCE;
        while node.best_block_hash() != chain.tip() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        self.expect_tip();
    }

    /// Makes the program rebuild the coins of the stopped node, or a folder from the node's blocks.
    fn run_between(&mut self) {
        if self.folder.pruned {
            return self.compare();
        }
        let clean = self.end_node();
        // `reindex` uses undo data for the blocks that the node has connected.
        let whole = self.folder.floor > 0 || self.world.rng.one_in(3);
        let mut line = match whole {
            true => {
                format!("sync --chain regtest --blocksdir {NODE}/regtest/blocks --out datadir:new")
            }
            false => reindex(),
        };
        // A killed node may have lost blocks that hints would cover.
        if !whole && clean && self.world.rng.one_in(2) {
            let (hints, _) = self.world.write_hints(self.world.height());
            line.push_str(&format!(" --hints {hints}"));
        }
        // After `reindex` alone, the indexes stay beside the new coins.
        if self.folder.indexed && whole {
            line.push_str(INDEX_ALL);
        }
        let sandbox = &self.world.sandbox;
        sandbox.start(&line).wait().succeeds();
        if whole {
            sandbox.remove(NODE);
            fs::rename(sandbox.path("new"), sandbox.path(NODE)).unwrap();
            self.folder.floor = 0;
        } else {
            sandbox.remove("node/regtest/chainstate.old");
        }
        self.counts.runs_between += 1;
        self.tell(&format!("apus {line}"));
        self.start();
    }
}
