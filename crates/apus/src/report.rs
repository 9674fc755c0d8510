//! [`RunReport`]: what a run did, for people and for programs.
//!
//! The JSON form is a contract (`docs/formats/report.md`): plots, benchmarks and tests read it.

mod parts;

pub(crate) use apus_sync::numbers::grouped;
pub(crate) use parts::{
    FailedReport, ForestReport, ProofsReport, WrittenFile, is_failed_report, leave_failed,
    write_report,
};

use crate::machine::{Machine, Program, cpu_seconds, rss_peak_bytes};
use crate::print::hex;
use apus_chain::Network;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{
    ChainEnd, DatadirBlocks, Engine, FolderKind, Outcome, Unanchored, Validation, Workers,
    WrittenFolder,
};
use parts::Cluster;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub(crate) const VERSION: u32 = 1;

/// A finished run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunReport {
    pub(crate) version: u32,
    /// Core's name of the chain.
    pub(crate) chain: &'static str,
    pub(crate) engine: &'static str,
    pub(crate) validation: &'static str,
    /// Of the blocks up to the hints' stop height; null where there were no hints.
    pub(crate) aggregate: Option<&'static str>,
    pub(crate) stop_height: u32,
    pub(crate) stop_hash: String,
    /// The first height that was connected in order, by every rule; null where none was.
    pub(crate) connected_from: Option<u32>,
    /// Blocks whose scripts were run.
    pub(crate) script_blocks: u64,
    /// Height of the most-work chain that was found.
    pub(crate) tip_height: u32,
    /// `txouts` of gettxoutsetinfo.
    pub(crate) coins: u64,
    /// `transactions` of gettxoutsetinfo: those with at least one coin left.
    /// Null where no set was kept, as the two hashes are.
    pub(crate) coin_transactions: Option<u64>,
    pub(crate) bogosize: u64,
    pub(crate) total_amount_sat: u64,
    /// As gettxoutsetinfo shows it.
    pub(crate) muhash: Option<String>,
    /// As gettxoutsetinfo shows it.
    pub(crate) hash_serialized_3: Option<String>,
    /// The Utreexo forest, where `--out utreexo:FILE` was given, and with the engine that goes by proofs.
    pub(crate) utreexo: Option<ForestReport>,
    /// The proofs that were made, by `apus utreexo prove`.
    pub(crate) proofs: Option<ProofsReport>,
    pub(crate) verified: VerifiedRules,
    /// What was taken for granted, in words.
    pub(crate) assumed: Vec<String>,
    /// Blocks under hints that Bitcoin Core would have checked: what `--assumevalid hints` stands
    /// for here; null where there were none.
    pub(crate) assume_hinted_valid: Option<AssumedBlocks>,
    /// Whether Bitcoin Core's own table of snapshots has this very set.
    pub(crate) in_assumeutxo_table: bool,
    pub(crate) blocks: u64,
    pub(crate) transactions: u64,
    /// Inputs that spend a coin.
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    /// Bytes of blocks.
    pub(crate) bytes: u64,
    pub(crate) hints: Option<HintsReport>,
    /// Null where blocks came from files.
    pub(crate) peers: Option<PeersReport>,
    /// The machines that took part; null where this one did all.
    pub(crate) cluster: Option<Cluster>,
    /// Files that were written.
    pub(crate) files: Vec<WrittenFile>,
    /// Folders that were written for Bitcoin Core.
    pub(crate) folders: Vec<FolderReport>,
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_peak_bytes: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) dbcache_mib: u64,
    /// Segments that earlier starts had finished.
    pub(crate) segments_resumed: usize,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) series: Vec<CourseSample>,
    pub(crate) warnings: Vec<String>,
    /// Those of them that people read once more at the end.
    #[serde(skip)]
    lasting: Vec<String>,
    pub(crate) program: Program,
    pub(crate) machine: Machine,
}

/// What was proven.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct VerifiedRules {
    /// Every block rule that needs no coins, headers and proof of work included.
    pub(crate) blocks: bool,
    /// That all blocks have the witnesses that they commit to.
    pub(crate) witnesses: bool,
    /// Scripts and signatures.
    pub(crate) scripts: bool,
    /// No block spends more than its inputs hold, or claims more than subsidy and fees.
    pub(crate) amounts: bool,
    /// Coins are created before they are spent, and mature.
    pub(crate) order: bool,
    /// Every coin spent existed and was spent once.
    pub(crate) aggregate: bool,
    /// What was never spent is no more than all subsidies.
    pub(crate) supply: bool,
    /// No transaction id twice (BIP-30).
    pub(crate) bip30: bool,
    /// The chain has the work that the real one is known to have at least.
    pub(crate) minimum_chain_work: bool,
}

impl VerifiedRules {
    fn of(outcome: &Outcome) -> Self {
        let Validation { hints, connected_from, scripts, unseen_witnesses, .. } =
            &outcome.validation;
        // BIP-30 and the supply follow from each coin's having been created and spent once.
        let proven = hints.aggregate != Some(AggregateKind::None);
        let all_connected = *connected_from == Some(1);
        Self {
            blocks: true,
            witnesses: *unseen_witnesses == 0,
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

/// Blocks that were taken for valid because the user said so.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AssumedBlocks {
    pub(crate) first_height: u32,
    pub(crate) last_height: u32,
    /// Why Core would have run the scripts of the last one.
    pub(crate) reason: String,
    /// All of it for people.
    #[serde(skip)]
    text: String,
}

impl fmt::Display for AssumedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl AssumedBlocks {
    fn of(blocks: &Unanchored) -> Self {
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

/// What this start got from peers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeersReport {
    /// Bytes of blocks that were of use.
    pub(crate) taken_bytes: u64,
    /// Bytes of blocks that were not: others were faster, or there was no room.
    pub(crate) unneeded_bytes: u64,
    /// Copies of blocks that were not what their headers say.
    pub(crate) damaged_copies: u64,
    /// Peers that were parted with for what they did.
    pub(crate) dropped_peers: u64,
    /// Those that were there at the end.
    pub(crate) connected: Vec<PeerReport>,
}

/// A peer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeerReport {
    pub(crate) address: String,
    pub(crate) user_agent: String,
    pub(crate) encrypted: bool,
    /// Whether it had connected to us.
    pub(crate) inbound: bool,
    pub(crate) blocks_given: u64,
    pub(crate) bytes_given: u64,
}

/// A folder for Bitcoin Core.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FolderReport {
    /// `chainstate` or `datadir`.
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// Of a data directory, whether it has the last blocks with their undo data alone.
    pub(crate) pruned: bool,
    /// Of the tables of the chainstate.
    pub(crate) chainstate_bytes: u64,
    /// Coins that another implementation read back before the folder got its name; their number
    /// and `hash_serialized_3` are the set's.
    pub(crate) coins_read_back: u64,
    /// Coins that the same implementation found when it was asked for them one by one, as a node asks;
    /// as many that are not there it did not find.
    pub(crate) coins_looked_up: u64,
    /// Entries of the block index that the same implementation read back, each compared with the
    /// chain; 0 where there is none.
    pub(crate) index_entries_read_back: u64,
    /// Blocks that lay where the index says, with every byte bound to their headers.
    pub(crate) blocks_read_back: u64,
    /// Blocks whose undo data lay where the index says, of the coins that the block spends.
    pub(crate) undo_read_back: u64,
    /// How many of these are the last blocks, without a gap.
    pub(crate) undo_at_end: u64,
    /// Where the folder went that was there before.
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
            "Written: {} ({}); all {} coins read back by another implementation, same hash.",
            self.path,
            bytes(self.chainstate_bytes),
            grouped(self.coins_read_back)
        )?;
        if self.index_entries_read_back > 0 {
            let entries = grouped(self.index_entries_read_back);
            write!(f, " So were all {entries} entries of the block index, as the chain has them")?;
            let (blocks, undo) = (grouped(self.blocks_read_back), grouped(self.undo_read_back));
            match self.blocks_read_back {
                0 => write!(f, ".")?,
                _ => write!(
                    f,
                    ", and where they say, {blocks} blocks and the undo data of {undo}, all intact."
                )?,
            }
        }
        match &self.moved_to {
            Some(path) => write!(f, " What was there before is in {path}."),
            None => Ok(()),
        }
    }
}

/// One phase of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PhaseReport {
    pub(crate) phase: &'static str,
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Bytes of the phase's input.
    pub(crate) bytes: u64,
}

/// A point of a run's course. Out of order, the height counts blocks processed.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct CourseSample {
    pub(crate) seconds: f64,
    pub(crate) height: u64,
    pub(crate) bytes: u64,
}

/// What happened in a run, whether it goes on, is done or failed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunHistory {
    pub(crate) wall_seconds: f64,
    /// Segments that earlier starts had finished.
    pub(crate) segments_resumed: usize,
    /// Phases that ended.
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) series: Vec<CourseSample>,
    pub(crate) warnings: Vec<String>,
    /// Those of them that people read once more at the end.
    pub(crate) lasting: Vec<String>,
    /// Where other machines take part, what was last heard of them.
    pub(crate) workers: Option<Workers>,
    /// The phase that had begun and not ended, of a run that failed.
    pub(crate) phase: Option<&'static str>,
}

/// What else the caller that ran it knows.
pub(crate) struct Circumstances {
    pub(crate) network: Network,
    pub(crate) threads: usize,
    pub(crate) dbcache_mib: u64,
    pub(crate) peers: Option<PeersReport>,
    pub(crate) files: Vec<WrittenFile>,
    pub(crate) utreexo: Option<ForestReport>,
    pub(crate) proofs: Option<ProofsReport>,
}

/// A hash kept in internal order, as people see it.
pub(crate) fn display_hash(bytes: &[u8; 32]) -> String {
    bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

impl RunReport {
    pub(crate) fn new(outcome: &Outcome, history: RunHistory, around: Circumstances) -> Self {
        let Outcome { chain, validation, counts, set, written } = outcome;
        let Validation { hints, scripts, .. } = validation;
        let verified = VerifiedRules::of(outcome);
        let has_set = set.hashes.is_some();
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
            script_blocks: scripts.run,
            stop_height: chain.stop.height,
            stop_hash: chain.stop.hash.to_string(),
            tip_height: chain.tip_height,
            coins: set.totals.coins,
            coin_transactions: has_set.then_some(set.totals.transactions),
            bogosize: set.totals.bogosize,
            total_amount_sat: set.totals.amount as u64,
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
    /// What was checked, in words.
    fn verified(&self) -> String {
        let mut checked = vec!["headers and proof of work"];
        checked.push(match self.verified.witnesses {
            true => "every block rule that needs no spent coins",
            false => "every block rule that needs neither spent coins nor witnesses",
        });
        if self.verified.order {
            checked.push("that each coin spent existed, was mature and was spent once");
            checked.push("amounts, subsidies and relative lock times");
        } else if self.verified.aggregate {
            checked.push("that each coin spent existed and was spent once");
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
            text.push_str(". Not the coins");
        }
        text
    }
}

/// Whether a file is the report of a run that succeeded, whatever run's.
pub(crate) fn is_report(path: &Path) -> bool {
    let json = parts::json(path).unwrap_or_default();
    ["version", "stop_hash", "verified"].iter().all(|field| json.get(field).is_some())
}

fn assumed(validation: &Validation, chain: &ChainEnd) -> Vec<String> {
    let mut assumed = Vec::new();
    // With undo data every rule about coins is applied.
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
                "coins are created in no later block than they are spent in, coinbases are mature, \
                 relative lock times and signature operations of spent coins are within the \
                 rules{up_to}"
            ),
        ]);
        if aggregate == AggregateKind::None {
            assumed.push(
                "the hints are right: nothing was added up, so the set is not proven".to_owned(),
            );
        }
    }
    if validation.scripts.assumed > 0 {
        assumed.push(format!(
            "scripts and signatures of {} connected blocks are valid, which are ancestors of the \
             assumed-valid block",
            validation.scripts.assumed
        ));
    }
    if validation.unseen_witnesses > 0 {
        assumed.push(format!(
            "{} blocks whose scripts are taken for valid commit to witnesses that go with them, and \
             are within the limits with these (--witnesses check looks)",
            validation.unseen_witnesses
        ));
    }
    if !chain.enough_work {
        assumed.push(
            "this is the real chain although it has less work than the real one is known to have"
                .to_owned(),
        );
    }
    assumed
}

/// Hashes of the set, MuHash and `hash_serialized_3`, or why they are not there.
fn set_hashes(report: &RunReport) -> [String; 2] {
    let no_set = || "not known: no set was kept".to_owned();
    let Some(serialized) = report.hash_serialized_3.clone() else { return [no_set(), no_set()] };
    let muhash = report.muhash.clone();
    [muhash.unwrap_or_else(|| "not computed: give --muhash".to_owned()), serialized]
}

/// Bitcoins with all eight decimals.
pub(crate) fn bitcoins(satoshi: u64) -> String {
    format!("{}.{:08}", satoshi / 100_000_000, satoshi % 100_000_000)
}

/// Bytes in the largest unit that keeps them above one.
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.2} TB")
}

impl RunReport {
    /// What did the blocks, and on what.
    fn way(&self) -> String {
        let on = match (self.engine, self.aggregate) {
            ("swiftsync", Some("coins")) => {
                "hints and undo data, every rule in one pass".to_owned()
            }
            ("swiftsync", _) => match self.connected_from {
                Some(height) => format!("hints, and from block {height} on by utxo"),
                None => "hints alone".to_owned(),
            },
            ("mergesync", _) => "blocks alone, in any order".to_owned(),
            ("utreexo", _) => "blocks and proofs, range by range in any order".to_owned(),
            _ => "blocks alone, in ascending height".to_owned(),
        };
        format!("{}: {on}", self.engine)
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10} {:>10} {:>10} {:>10}", "phase", "wall s", "cpu s", "input")?;
        for phase in &self.phases {
            let cpu = format!("{:.2}", phase.cpu_seconds);
            writeln!(
                f,
                "{:<10} {:>10.3} {:>10} {:>10}",
                phase.phase,
                phase.wall_seconds,
                cpu,
                bytes(phase.bytes)
            )?;
        }
        let cpu = format!("{:.2}", self.cpu_seconds);
        // Phases go over the same blocks more than once: what they took in is nothing to add up.
        writeln!(f, "{:<10} {:>10.3} {cpu:>10}", "all", self.wall_seconds)?;
        writeln!(f)?;
        let rss = self.rss_peak_bytes.map_or_else(|| "unknown".to_owned(), bytes);
        for (name, value) in [
            ("chain", self.chain.to_owned()),
            ("computed by", self.way()),
            ("stop height", self.stop_height.to_string()),
            ("blocks", format!("{} ({})", grouped(self.blocks), bytes(self.bytes))),
            ("transactions", grouped(self.transactions)),
            ("coins", grouped(self.coins)),
            ("total amount", format!("{} BTC", bitcoins(self.total_amount_sat))),
            ("peak memory", rss),
        ] {
            writeln!(f, "{name:<18} {value}")?;
        }
        // With its name before it a hash would be wider than a terminal.
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
        if !self.assumed.is_empty() {
            write!(f, "Assumed: {}.", self.assumed.join("; "))?;
        }
        if self.in_assumeutxo_table {
            write!(f, "\nBitcoin Core's own table of snapshots has this very set.")?;
        }
        self.files.iter().try_for_each(|file| write!(f, "\n{file}"))?;
        self.folders.iter().try_for_each(|folder| write!(f, "\n{folder}"))?;
        // It was told first, and much of a long run came since.
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
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(750_000_000_000), "750.0 GB");
        assert_eq!(bytes(7_500_000_000_000), "7.50 TB");
        assert_eq!(bitcoins(1_139_999_752_789), "11399.99752789");
    }
}
