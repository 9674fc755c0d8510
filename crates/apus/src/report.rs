//! [`RunReport`]: the report of a finished job, for people and for programs.
//!
//! The JSON form is a contract (`docs/formats/report.md`): plots, benchmarks and tests read it.

mod parts;

pub(crate) use apus_sync::numbers::{bytes, grouped};
pub(crate) use parts::{
    FailedReport, ForestReport, ProofsReport, SignaturesReport, WrittenFile, is_failed_report,
    leave_failed, write_report,
};

use crate::machine::{Machine, Program, cpu_seconds, rss_peak_bytes};
use crate::print::hex;
use apus_chain::{KnownBlock, Network};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{
    ChainEnd, DatadirBlocks, Engine, FolderKind, Outcome, UnanchoredBlocks, Validation, Workers,
    WrittenFolder,
};
use parts::{Cluster, ROOTS};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Version of the JSON form. New fields do not change it; a new meaning of a field does.
pub(crate) const VERSION: u32 = 1;

/// The report of a finished job.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunReport {
    pub(crate) version: u32,
    /// Core's name of the chain.
    pub(crate) chain: &'static str,
    pub(crate) engine: &'static str,
    pub(crate) validation: &'static str,
    /// The kind of aggregate over the blocks up to the hints' stop height; null without hints.
    pub(crate) aggregate: Option<&'static str>,
    pub(crate) stop_height: u32,
    pub(crate) stop_hash: String,
    /// The first height that was connected in order, under every rule; null if none was.
    pub(crate) connected_from: Option<u32>,
    /// The block up to which the run validated nothing: it took its coins or roots on trust. Null if there is none.
    pub(crate) trusted: Option<TrustedBlock>,
    /// Number of blocks whose scripts were run.
    pub(crate) script_blocks: u64,
    /// How the signatures of these scripts were checked on this machine.
    pub(crate) signatures: SignaturesReport,
    /// Height of the most-work chain that the run found.
    pub(crate) tip_height: u32,
    /// `txouts` of gettxoutsetinfo. Null, like the size and the amount, if the run began with roots: it does not know
    /// the coins of the blocks below.
    pub(crate) coins: Option<u64>,
    /// `transactions` of gettxoutsetinfo: the number of transactions with at least one unspent coin. Null, like the two
    /// hashes, if the run kept no set.
    pub(crate) coin_transactions: Option<u64>,
    pub(crate) bogosize: Option<u64>,
    pub(crate) total_amount_sat: Option<u64>,
    /// In gettxoutsetinfo's format.
    pub(crate) muhash: Option<String>,
    /// In gettxoutsetinfo's format.
    pub(crate) hash_serialized_3: Option<String>,
    /// The Utreexo forest, with `--out utreexo:FILE` and with the engine `utreexo`.
    pub(crate) utreexo: Option<ForestReport>,
    /// The proofs that `apus utreexo prove` made.
    pub(crate) proofs: Option<ProofsReport>,
    pub(crate) verified: VerifiedRules,
    /// The assumptions that the result depends on, in words.
    pub(crate) assumed: Vec<String>,
    /// Blocks under hints that Bitcoin Core would have checked, and that `--assumevalid hints` assumed valid; null if
    /// there were none.
    pub(crate) assume_hinted_valid: Option<AssumedBlocks>,
    /// Whether Bitcoin Core's assumeutxo table has this set.
    pub(crate) in_assumeutxo_table: bool,
    pub(crate) blocks: u64,
    pub(crate) transactions: u64,
    /// Inputs that spend a coin; excludes coinbases.
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    /// Bytes of blocks.
    pub(crate) bytes: u64,
    pub(crate) hints: Option<HintsReport>,
    /// Statistics of the peers; null if blocks came from files.
    pub(crate) peers: Option<PeersReport>,
    /// The worker machines' shares; null if this machine worked alone.
    pub(crate) cluster: Option<Cluster>,
    /// The files written.
    pub(crate) files: Vec<WrittenFile>,
    /// The folders written for Bitcoin Core.
    pub(crate) folders: Vec<FolderReport>,
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_peak_bytes: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) dbcache_mib: u64,
    /// Number of segments that earlier starts finished.
    pub(crate) segments_resumed: usize,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) series: Vec<ProgressSample>,
    pub(crate) warnings: Vec<String>,
    /// Warnings to repeat at the end, for people.
    #[serde(skip)]
    lasting: Vec<String>,
    pub(crate) program: Program,
    pub(crate) machine: Machine,
}

/// The rules that the run verified.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct VerifiedRules {
    /// Every block rule that needs no coins, including headers and proof of work.
    pub(crate) blocks: bool,
    /// Blocks have the witnesses that they commit to.
    pub(crate) witnesses: bool,
    /// Scripts and signatures.
    pub(crate) scripts: bool,
    /// No block spends more than its inputs hold, or claims more than subsidy and fees.
    pub(crate) amounts: bool,
    /// Coins are created before they are spent, and coinbases are mature.
    pub(crate) order: bool,
    /// Every spent coin existed and was spent once.
    pub(crate) aggregate: bool,
    /// The unspent amount is at most the sum of all subsidies.
    pub(crate) supply: bool,
    /// No duplicate transaction ids (BIP-30).
    pub(crate) bip30: bool,
    /// The chain has at least the real chain's known minimum of work.
    pub(crate) minimum_chain_work: bool,
}

impl VerifiedRules {
    fn of(outcome: &Outcome) -> Self {
        let Validation { hints, connected_from, scripts, unseen_witnesses, .. } =
            &outcome.validation;
        // If each coin was created and spent once, BIP-30 and the supply limit hold, too.
        let on_trust = outcome.validation.trusted.is_some();
        let proven = hints.aggregate != Some(AggregateKind::None) && !on_trust;
        let all_connected = *connected_from == Some(1);
        Self {
            blocks: !on_trust,
            witnesses: *unseen_witnesses == 0 && !on_trust,
            scripts: all_connected && scripts.assumed == 0,
            amounts: all_connected,
            order: all_connected,
            aggregate: proven && hints.aggregate.is_some(),
            supply: proven,
            bip30: proven,
            minimum_chain_work: outcome.chain.enough_work,
        }
    }
}

/// A block up to which a run validated nothing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TrustedBlock {
    pub(crate) height: u32,
    pub(crate) hash: String,
}

impl TrustedBlock {
    fn of(block: KnownBlock) -> Self {
        Self { height: block.height, hash: block.hash.to_string() }
    }
}

/// Blocks assumed valid on the user's request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AssumedBlocks {
    pub(crate) first_height: u32,
    pub(crate) last_height: u32,
    /// Why Core would have run the scripts of the last such block.
    pub(crate) reason: String,
    /// The complete warning, for people.
    #[serde(skip)]
    text: String,
}

impl fmt::Display for AssumedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl AssumedBlocks {
    fn of(blocks: &UnanchoredBlocks) -> Self {
        Self {
            first_height: blocks.first,
            last_height: blocks.last,
            reason: blocks.reason.to_string(),
            text: blocks.to_string(),
        }
    }
}

/// The hintsfile.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct HintsReport {
    pub(crate) bytes: u64,
    pub(crate) bit_order: String,
    pub(crate) start_height: u32,
    pub(crate) bits_per_output: Option<f64>,
    pub(crate) sha256: String,
}

/// Blocks received from peers in this start, and the peers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeersReport {
    /// Bytes of blocks that were used.
    pub(crate) taken_bytes: u64,
    /// Bytes of unneeded blocks: another peer was faster, or memory was short.
    pub(crate) unneeded_bytes: u64,
    /// Copies of blocks that did not match their headers.
    pub(crate) damaged_copies: u64,
    /// Peers disconnected for misbehaving.
    pub(crate) dropped_peers: u64,
    /// The peers connected at the end.
    pub(crate) connected: Vec<PeerReport>,
}

/// A connected peer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeerReport {
    pub(crate) address: String,
    pub(crate) user_agent: String,
    pub(crate) encrypted: bool,
    /// Whether the peer had connected to us.
    pub(crate) inbound: bool,
    pub(crate) blocks_given: u64,
    pub(crate) bytes_given: u64,
}

/// A folder written for Bitcoin Core.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FolderReport {
    /// `chainstate` or `datadir`.
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// Whether a data directory has only the last blocks and their undo data.
    pub(crate) pruned: bool,
    /// Bytes of the chainstate's tables.
    pub(crate) chainstate_bytes: u64,
    /// Coins that an independent reader read back before the folder got its name. Their number and
    /// `hash_serialized_3` match the set's.
    pub(crate) coins_read_back: u64,
    /// Coins that the independent reader looked up one by one, as a node does, and found. It also looked up as many
    /// coins that do not exist, and found none.
    pub(crate) coins_looked_up: u64,
    /// Entries of the block index that the independent reader read back and compared with the chain; 0 without an
    /// index.
    pub(crate) index_entries_read_back: u64,
    /// Blocks that the reader found at the positions in the index; it checked every byte against their headers.
    pub(crate) blocks_read_back: u64,
    /// Blocks whose undo data the reader found at the positions in the index, with the coins that the block spends.
    pub(crate) undo_read_back: u64,
    /// Length of the unbroken range of such blocks that ends at the last block.
    pub(crate) undo_at_end: u64,
    /// New name of the folder that this one replaced.
    pub(crate) moved_to: Option<String>,
}

impl FolderReport {
    fn of(written: &WrittenFolder) -> Self {
        let (kind, pruned) = match written.kind {
            FolderKind::Chainstate => ("chainstate", false),
            FolderKind::Datadir(kept) => ("datadir", kept == DatadirBlocks::Last),
            FolderKind::KeptDatadir => ("datadir", false),
        };
        Self {
            kind,
            path: written.path.display().to_string(),
            pruned,
            chainstate_bytes: written.chainstate_bytes,
            coins_read_back: written.coins_read_back,
            coins_looked_up: written.coins_looked_up,
            index_entries_read_back: written.blocks_read_back.index_entries,
            blocks_read_back: written.blocks_read_back.blocks,
            undo_read_back: written.blocks_read_back.undo,
            undo_at_end: written.blocks_read_back.undo_at_end,
            moved_to: written.moved_to.as_ref().map(|path| path.display().to_string()),
        }
    }
}

impl fmt::Display for FolderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Written: {} ({}). An independent reader read back all {} coins and got the same hash.",
            self.path,
            bytes(self.chainstate_bytes),
            grouped(self.coins_read_back)
        )?;
        if self.index_entries_read_back > 0 {
            let entries = grouped(self.index_entries_read_back);
            write!(f, " It read back all {entries} entries of the block index")?;
            let (blocks, undo) = (grouped(self.blocks_read_back), grouped(self.undo_read_back));
            // The genesis block has none.
            let is_of_all = self.undo_read_back + 1 >= self.blocks_read_back;
            match self.blocks_read_back {
                0 => write!(f, ", which match the chain.")?,
                _ if is_of_all => write!(f, ", {blocks} blocks and their undo data, all intact.")?,
                _ if self.undo_at_end == self.undo_read_back => write!(
                    f,
                    ", {blocks} blocks and the undo data of the last {undo}, all intact."
                )?,
                _ => {
                    write!(f, ", {blocks} blocks and the undo data of {undo} blocks, all intact.")?
                }
            }
        }
        match &self.moved_to {
            Some(path) => write!(f, " The old folder is now {path}."),
            None => Ok(()),
        }
    }
}

/// A phase of a job.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PhaseReport {
    pub(crate) phase: &'static str,
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Bytes of the phase's input.
    pub(crate) bytes: u64,
}

/// A point of a job's progress. If blocks are processed in any order, the height is their number.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ProgressSample {
    pub(crate) seconds: f64,
    pub(crate) height: u64,
    pub(crate) bytes: u64,
}

/// The events of a running, finished or failed job, up to now.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunHistory {
    pub(crate) wall_seconds: f64,
    /// Number of segments that earlier starts finished.
    pub(crate) segments_resumed: usize,
    /// The phases that ended.
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) series: Vec<ProgressSample>,
    pub(crate) warnings: Vec<String>,
    /// Warnings to repeat at the end, for people.
    pub(crate) lasting: Vec<String>,
    /// The last status of the worker machines, if there are any.
    pub(crate) workers: Option<Workers>,
    /// The phase in which the job failed, if any.
    pub(crate) phase: Option<&'static str>,
}

/// Facts for the report that the caller supplies.
pub(crate) struct Circumstances {
    pub(crate) network: Network,
    pub(crate) threads: usize,
    pub(crate) dbcache_mib: u64,
    pub(crate) peers: Option<PeersReport>,
    pub(crate) files: Vec<WrittenFile>,
    pub(crate) utreexo: Option<ForestReport>,
    pub(crate) proofs: Option<ProofsReport>,
    pub(crate) signatures: SignaturesReport,
}

/// Formats a hash in hex, in display order (bytes reversed).
pub(crate) fn display_hash(bytes: &[u8; 32]) -> String {
    bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

impl RunReport {
    pub(crate) fn new(outcome: &Outcome, history: RunHistory, around: Circumstances) -> Self {
        let Outcome { chain, validation, counts, set, written } = outcome;
        let Validation { hints, scripts, .. } = validation;
        let verified = VerifiedRules::of(outcome);
        let has_set = set.hashes.is_some();
        let knows_coins = has_set || validation.trusted.is_none();
        let of_coins = |number: u64| knows_coins.then_some(number);
        Self {
            version: VERSION,
            chain: around.network.name(),
            engine: match (hints.aggregate, validation.engine) {
                (Some(_), _) => "swiftsync",
                (None, Engine::Utxo) => "utxo",
                (None, Engine::MergeSync) => "mergesync",
                (None, Engine::Outside(name)) => name,
            },
            validation: if verified.scripts { "full" } else { "assumevalid" },
            aggregate: hints.aggregate.map(AggregateKind::name),
            connected_from: validation.connected_from,
            trusted: validation.trusted.map(TrustedBlock::of),
            script_blocks: scripts.run,
            signatures: around.signatures,
            stop_height: chain.stop.height,
            stop_hash: chain.stop.hash.to_string(),
            tip_height: chain.tip_height,
            coins: of_coins(set.totals.coins),
            coin_transactions: has_set.then_some(set.totals.transactions),
            bogosize: of_coins(set.totals.bogosize),
            total_amount_sat: of_coins(set.totals.amount as u64),
            muhash: set.muhash().as_ref().map(display_hash),
            in_assumeutxo_table: set.in_assumeutxo_table,
            hash_serialized_3: set.hash_serialized_3().as_ref().map(display_hash),
            utreexo: around.utreexo,
            proofs: around.proofs,
            verified,
            assumed: assumed(validation, chain),
            assume_hinted_valid: hints.unanchored.as_ref().map(AssumedBlocks::of),
            blocks: counts.blocks,
            transactions: counts.transactions,
            inputs: counts.inputs,
            outputs: counts.outputs,
            bytes: counts.bytes,
            hints: hints.info.as_ref().map(|info| HintsReport {
                bytes: info.bytes,
                bit_order: info.order.to_string(),
                start_height: info.layout.start_height(),
                bits_per_output: info.bits_per_output(counts.outputs),
                sha256: hex(&info.sha256),
            }),
            peers: around.peers,
            cluster: (history.workers.as_ref())
                .map(|workers| Cluster::of(workers, history.wall_seconds, &history.phases)),
            files: around.files,
            folders: written.folders.iter().map(FolderReport::of).collect(),
            wall_seconds: history.wall_seconds,
            cpu_seconds: cpu_seconds(),
            rss_peak_bytes: rss_peak_bytes(),
            threads: around.threads,
            dbcache_mib: around.dbcache_mib,
            segments_resumed: history.segments_resumed,
            phases: history.phases,
            series: history.series,
            warnings: history.warnings,
            lasting: history.lasting,
            program: Program::this(),
            machine: Machine::here(),
        }
    }
}

impl RunReport {
    /// The block whose roots the run took on trust, if it began with roots.
    pub(crate) fn began_with_roots(&self) -> Option<&TrustedBlock> {
        self.trusted.as_ref().filter(|_| self.engine == "utreexo")
    }

    /// Lists the verified rules in words.
    fn verified(&self) -> String {
        if let Some(TrustedBlock { height, .. }) = self.began_with_roots() {
            let scripts = match self.script_blocks {
                0 => "except scripts",
                run if run == self.blocks => "with every script",
                _ => "with some scripts",
            };
            let (first, stop) = (height + 1, self.stop_height);
            return format!(
                "headers and proof of work; all other rules only in blocks {first} to {stop}, {scripts}. Not verified: \
                 blocks 1 to {height}"
            );
        }
        let mut checked = vec!["headers and proof of work"];
        checked.push(match (self.verified.blocks, self.verified.witnesses) {
            (true, true) => "every block rule that needs no spent coins",
            (true, false) => "every block rule that needs neither spent coins nor witnesses",
            (false, _) => {
                "every block rule above the coins that were found, except in assumed blocks"
            }
        });
        if self.verified.order {
            checked.push("that each spent coin existed, was mature and was spent once");
            checked.push("amounts, subsidies and relative lock times");
        } else if self.verified.aggregate {
            checked.push("that each spent coin existed and was spent once");
        }
        if self.verified.bip30 {
            checked.extend(["BIP-30", "the supply"]);
        }
        match self.script_blocks {
            0 => {}
            _ if self.verified.scripts => checked.push("every script"),
            _ => checked.push("some scripts"),
        }
        let mut text = checked.join(", ");
        if !self.verified.bip30 {
            text.push_str(". Not verified: the coins");
        }
        text
    }
}

/// Whether a file is the report of any successful job.
pub(crate) fn is_report(path: &Path) -> bool {
    let json = parts::json(path).unwrap_or_default();
    ["version", "stop_hash", "verified"].iter().all(|field| json.get(field).is_some())
}

fn assumed(validation: &Validation, chain: &ChainEnd) -> Vec<String> {
    let mut assumed = Vec::new();
    if let Some(KnownBlock { height, .. }) = validation.trusted {
        let what = match validation.engine {
            Engine::Outside(_) => format!("the roots of block {height} (--roots) are right"),
            _ => {
                format!("the coins of block {height} were right as they were found on the servers")
            }
        };
        assumed.push(format!(
            "{what}, and all blocks up to there are valid: this run checked only the blocks above"
        ));
    }
    // With undo data, every rule about coins was checked.
    if let Some(aggregate) = validation.hints.aggregate.filter(|it| *it != AggregateKind::Coins) {
        let up_to = match validation.connected_from {
            Some(from) => format!(" up to height {}", from - 1),
            None => String::new(),
        };
        assumed.extend([
            format!("scripts and signatures are valid{up_to}"),
            format!(
                "no block{up_to} spends more than its inputs hold or claims more than subsidy and \
                 fees"
            ),
            format!(
                "no coin is spent in an earlier block than it is created in, coinbases are mature, \
                 and relative lock times and signature operations of spent coins are within the \
                 rules{up_to}"
            ),
        ]);
        if aggregate == AggregateKind::None {
            assumed.push(
                "the hints are right: without an aggregate, nothing proves the set".to_owned(),
            );
        }
    }
    if validation.scripts.assumed > 0 {
        assumed.push(format!(
            "scripts and signatures of {} connected blocks are valid, because these blocks are ancestors of the \
             assumed-valid block",
            validation.scripts.assumed
        ));
    }
    if validation.unseen_witnesses > 0 {
        assumed.push(format!(
            "{} blocks with assumed-valid scripts match their witness commitments, and are within \
             the limits with their witnesses (use --witnesses check to verify)",
            validation.unseen_witnesses
        ));
    }
    if !chain.enough_work {
        assumed.push(
            "this is the real chain, although it has less work than the real chain is known to have"
                .to_owned(),
        );
    }
    assumed
}

/// Returns the hashes of the set, MuHash and `hash_serialized_3`, or why they are missing.
fn set_hashes(report: &RunReport) -> [String; 2] {
    let no_set = || "unknown: no set was kept".to_owned();
    let Some(serialized) = report.hash_serialized_3.clone() else { return [no_set(), no_set()] };
    let muhash = report.muhash.clone();
    [muhash.unwrap_or_else(|| "not computed: add --muhash".to_owned()), serialized]
}

/// Formats an amount in bitcoins, with all eight decimals.
pub(crate) fn bitcoins(satoshi: u64) -> String {
    format!("{}.{:08}", satoshi / 100_000_000, satoshi % 100_000_000)
}

impl RunReport {
    /// The engine, and what it used.
    fn engine_words(&self) -> String {
        let on = match (self.engine, self.aggregate) {
            ("swiftsync", Some("coins")) => {
                "hints and undo data, every rule in one pass".to_owned()
            }
            ("swiftsync", _) => match self.connected_from {
                Some(height) => format!("hints, then utxo from block {height} on"),
                None => "hints only".to_owned(),
            },
            ("mergesync", _) => "blocks only, in any order".to_owned(),
            ("utreexo", _) => match self.began_with_roots() {
                Some(block) => {
                    format!("blocks and proofs, above the trusted block {}", block.height)
                }
                None => "blocks and proofs, in block ranges in any order".to_owned(),
            },
            _ => "blocks only, in ascending height".to_owned(),
        };
        format!("{}: {on}", self.engine)
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>10} {:>10} {:>10}", "phase", "wall s", "cpu s", "input")?;
        for phase in &self.phases {
            let cpu = format!("{:.2}", phase.cpu_seconds);
            writeln!(
                f,
                "{:<12} {:>10.3} {:>10} {:>10}",
                phase.phase,
                phase.wall_seconds,
                cpu,
                bytes(phase.bytes)
            )?;
        }
        let cpu = format!("{:.2}", self.cpu_seconds);
        // Several phases read the same blocks, so the sum of their inputs means nothing.
        writeln!(f, "{:<12} {:>10.3} {cpu:>10}", "total", self.wall_seconds)?;
        writeln!(f)?;
        let unknown = || "unknown: the run began with roots".to_owned();
        let amount = self.total_amount_sat.map(|amount| format!("{} BTC", bitcoins(amount)));
        let rss = self.rss_peak_bytes.map_or_else(|| "unknown".to_owned(), bytes);
        for (name, value) in [
            ("chain", self.chain.to_owned()),
            ("engine", self.engine_words()),
            ("stop height", self.stop_height.to_string()),
            ("blocks", format!("{} ({})", grouped(self.blocks), bytes(self.bytes))),
            ("transactions", grouped(self.transactions)),
            ("coins", self.coins.map_or_else(unknown, grouped)),
            ("total amount", amount.unwrap_or_else(unknown)),
            ("peak memory", rss),
        ] {
            writeln!(f, "{name:<18} {value}")?;
        }
        // Hashes have lines of their own: after a name they would be wider than a terminal.
        let [muhash, serialized] = set_hashes(self);
        for (name, hash) in [
            ("stop block", self.stop_hash.clone()),
            ("muhash", muhash),
            ("hash_serialized_3", serialized),
        ] {
            writeln!(f, "{name}\n    {hash}")?;
        }
        self.utreexo.iter().try_for_each(|forest| forest.fmt(f))?;
        self.proofs.iter().try_for_each(|proofs| proofs.fmt(f))?;
        self.cluster.iter().try_for_each(|cluster| cluster.fmt(f))?;
        writeln!(f)?;
        writeln!(f, "Verified: {}.", self.verified())?;
        if self.script_blocks > 0 {
            writeln!(f, "{}.", self.signatures)?;
        }
        if !self.assumed.is_empty() {
            write!(f, "Assumed: {}.", self.assumed.join("; "))?;
        }
        if self.in_assumeutxo_table {
            write!(f, "\nThis set is in Bitcoin Core's assumeutxo table.")?;
        }
        for file in &self.files {
            write!(f, "\n{file}")?;
            if file.kind == ROOTS {
                let (path, hash) = (&file.path, &self.stop_hash);
                write!(f, " A later run can begin with them: --roots {path}@{hash}")?;
            }
        }
        self.folders.iter().try_for_each(|folder| write!(f, "\n{folder}"))?;
        // The sync printed them when they occurred, perhaps hours ago.
        self.lasting.iter().try_for_each(|warning| write!(f, "\nWarning: {warning}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(bitcoins(1_139_999_752_789), "11399.99752789");
    }
}
