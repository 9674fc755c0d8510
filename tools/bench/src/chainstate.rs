//! `apus-bench chainstate`: writing a chainstate, compared with copying its bytes.
//!
//! It generates a set and writes it to disk in txid order, as a merge of runs yields it. Then, in rounds,
//! each part in a separate process: it writes the set as a chainstate; copies the chainstate's files; reads
//! the chainstate back through another implementation of LevelDB and computes its hash. Copying the bytes is
//! a lower bound for writing them, so the ratio of the two shows how far the writer is from the disk. The
//! times exclude the merge, which a sync runs on another thread at the same time.
//!
//! The check compares the set with the generated one; if they differ, no numbers are reported.

use crate::chain::read_json;
use crate::commands::{ScratchFolder, own_program, show};
use crate::error::{AtPath, BenchError};
use crate::machine::BenchMachine;
use crate::process;
use crate::table::{MeasuredSpread, TextTable, bytes, grouped};
use crate::terminal::{self, watch_signals};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

mod part;

pub use part::ChainstatePart;
use part::{PartOutcome, part};

/// Version of the JSON form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 1;

/// The results of `apus-bench chainstate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainstateRecord {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// Coins of the set.
    pub coins: u64,
    /// Bytes of the input set, with txids and group lengths.
    pub set_bytes: u64,
    /// Bytes of the chainstate's files.
    pub chainstate_bytes: u64,
    /// Number of rounds; each measures all parts once, in alternating order.
    pub rounds: u32,
    /// Results by part.
    pub parts: Vec<MeasuredPart>,
}

/// Measurements of one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPart {
    /// The part.
    pub part: ChainstatePart,
    /// Time from the first byte read until everything was durable, or compared.
    pub wall_seconds: MeasuredSpread,
    /// Processor time of all threads of its process.
    pub cpu_seconds: MeasuredSpread,
    /// Peak memory of its process over all rounds, without the page cache.
    pub rss_peak_bytes: Option<u64>,
    /// Ratio of its time to the copy in the same round; its median is the ratio of the medians.
    pub over_copy: MeasuredSpread,
}

/// The folder that holds all files.
#[derive(Debug, Clone)]
struct ChainstateFolder {
    folder: PathBuf,
}

impl ChainstateFolder {
    /// Uses `folder`, which must exist. Replaces existing files of the names used here.
    fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The set, record by record.
    fn set(&self) -> PathBuf {
        self.folder.join("set.records")
    }

    fn chainstate(&self) -> PathBuf {
        self.folder.join("chainstate")
    }

    fn copy(&self) -> PathBuf {
        self.folder.join("chainstate.copy")
    }

    /// The result of a part's process.
    fn outcome_file(&self) -> PathBuf {
        self.folder.join("part.json")
    }

    /// Makes room for the output of `part`.
    fn prepare(&self, part: ChainstatePart) -> Result<(), BenchError> {
        let folder = match part {
            ChainstatePart::Write => self.chainstate(),
            ChainstatePart::Copy => self.copy(),
            ChainstatePart::Make | ChainstatePart::Check => return Ok(()),
        };
        remove(&folder).and_then(|()| fs::create_dir(&folder)).at(&folder)
    }

    /// Removes all generated files.
    fn clear(&self) -> Result<(), BenchError> {
        [self.set(), self.outcome_file(), self.chainstate(), self.copy()]
            .iter()
            .try_for_each(|path| remove(path))
            .at(&self.folder)
    }
}

/// Removes a file or a folder if it exists.
fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

// ---- the command ----

const CHAINSTATE_EXAMPLES: &str = "\
Examples:
  Ten million generated coins, on the disk of the temporary folder:
    apus-bench chainstate

  On another disk, with JSON output:
    apus-bench chainstate --coins 50000000 --dir /mnt/disk/scratch \\
         --json chainstate.json

  Without a disk, for the processor's part only:
    apus-bench chainstate --dir /dev/shm/scratch

The folder needs three times the chainstate's size, about 70 bytes per coin.";

/// Measure writing a chainstate, compared with copying its bytes
#[derive(Debug, Args)]
#[command(after_help = CHAINSTATE_EXAMPLES)]
pub struct ChainstateArgs {
    /// Coins of the set
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    coins: u64,

    /// Folder to work in, on the disk to measure; its generated files are removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Run one part in the folder (used by this command itself)
    #[arg(long, value_name = "PART", hide = true, requires = "dir", value_enum)]
    part: Option<ChainstatePart>,
}

/// Measures, writes and shows the results; or runs one part.
///
/// # Errors
/// If the disk fails, the set that was read back differs, or the command is interrupted.
pub fn command(args: &ChainstateArgs) -> Result<(), BenchError> {
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    if let (Some(part), Some(folder)) = (args.part, &args.dir) {
        return self::part(&ChainstateFolder::new(folder), part, args.coins, &interrupt);
    }
    let program = own_program()?;
    let scratch = ScratchFolder::open(args.dir.as_deref(), "apus-bench-chainstate")?;
    let command = |part: ChainstatePart| {
        let mut command = Command::new(&program);
        command.args(["chainstate", "--coins", &args.coins.to_string()]);
        command.args(["--part", part.name(), "--dir"]).arg(&scratch.folder);
        command
    };
    let plan =
        ChainstatePlan { place: ChainstateFolder::new(&scratch.folder), rounds: args.rounds };
    let mut log = |line: String| terminal::aside(line);
    let found = measure(&plan, machine, &command, &interrupt, &mut log)?;
    show(args.json.as_deref(), &found, &table(&found))
}

// ---- tables ----

/// The cost of each part, and its ratio to copying.
pub fn table(found: &ChainstateRecord) -> TextTable {
    let columns = [
        "part",
        "s",
        "least",
        "greatest",
        "MB/s",
        "M coins/s",
        "CPU s",
        "peak memory",
        "over copy",
        "least",
        "greatest",
    ];
    let title = format!(
        "A chainstate of {} coins, {}, {} rounds",
        grouped(found.coins),
        bytes(found.chainstate_bytes as f64),
        grouped(found.rounds.into()),
    );
    let mut table = TextTable::new(title, &columns);
    found.parts.iter().for_each(|it| table.row(row(found, it)));
    table
}

fn row(found: &ChainstateRecord, it: &MeasuredPart) -> Vec<String> {
    let MeasuredPart { part, wall_seconds: wall, cpu_seconds, rss_peak_bytes, over_copy } = it;
    let part = match part {
        ChainstatePart::Make => "make",
        ChainstatePart::Copy => "copy, durable",
        ChainstatePart::Write => "write, durable",
        ChainstatePart::Check => "check: read back, hash",
    };
    let a_second = |count: u64| format!("{:.2}", count as f64 / wall.median / 1e6);
    let mut cells = vec![part.to_owned()];
    cells.extend(wall.cells(2));
    cells.extend([
        format!("{:.0}", found.chainstate_bytes as f64 / wall.median / 1e6),
        a_second(found.coins),
        format!("{:.2}", cpu_seconds.median),
        rss_peak_bytes.map_or("-".to_owned(), |peak| bytes(peak as f64)),
    ]);
    cells.extend(over_copy.cells(2));
    cells
}

// ---- rounds ----
//
// Each process has its own memory peak and a fresh heap. A slow minute of the machine affects all parts, and
// the order alternates between rounds.

/// Time limit of a part: longer than any should take.
const LIMIT: Duration = Duration::from_secs(3600);

/// The size of the measurement.
struct ChainstatePlan {
    place: ChainstateFolder,
    rounds: u32,
}

/// One part's rounds.
#[derive(Default)]
struct Rounds {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    rss_peak_bytes: Option<u64>,
}

/// Measures, then removes all generated files. `command` returns the command that runs a part with
/// [`part()`].
fn measure(
    plan: &ChainstatePlan,
    machine: BenchMachine,
    command: &dyn Fn(ChainstatePart) -> Command,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<ChainstateRecord, BenchError> {
    let found = all(plan, machine, command, interrupt, each);
    let cleared = plan.place.clear();
    let found = found?;
    cleared.map(|()| found)
}

fn all(
    plan: &ChainstatePlan,
    machine: BenchMachine,
    command: &dyn Fn(ChainstatePart) -> Command,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<ChainstateRecord, BenchError> {
    let run = |part: ChainstatePart| -> Result<(process::Usage, PartOutcome), BenchError> {
        plan.place.prepare(part)?;
        let mut command = command(part);
        let usage = process::run(&mut command, LIMIT, interrupt)?;
        Ok((usage, read_json(&plan.place.outcome_file())?))
    };
    each("generating a set of coins".to_owned());
    let (_, made) = run(ChainstatePart::Make)?;
    let mut order = ChainstatePart::MEASURED.map(|part| (part, Rounds::default()));
    // The first round begins with writing; a later one may copy the previous round's output.
    let mut chainstate_bytes = 0;
    for round in 0..plan.rounds {
        for (part, rounds) in &mut order {
            let (usage, done) = run(*part)?;
            if *part == ChainstatePart::Write {
                chainstate_bytes = done.bytes;
            }
            compare(*part, &done, &made, chainstate_bytes)?;
            let (round, of, name, seconds) = (round + 1, plan.rounds, part.name(), done.seconds);
            each(format!("round {round} of {of}: {name}: {seconds:.3} s"));
            rounds.wall.push(done.seconds);
            rounds.cpu.push(usage.cpu_seconds);
            rounds.rss_peak_bytes = rounds.rss_peak_bytes.max(usage.rss_peak_bytes);
        }
        if round + 1 < plan.rounds {
            order.reverse();
        }
    }
    order.sort_by_key(|(part, _)| ChainstatePart::MEASURED.iter().position(|other| other == part));
    Ok(ChainstateRecord {
        version: VERSION,
        machine,
        coins: made.coins,
        set_bytes: made.bytes,
        chainstate_bytes,
        rounds: plan.rounds,
        parts: measured(&order),
    })
}

/// Compares a part's result with the generated set.
fn compare(
    part: ChainstatePart,
    done: &PartOutcome,
    made: &PartOutcome,
    chainstate_bytes: u64,
) -> Result<(), BenchError> {
    let different = |what| {
        Err(BenchError::different(format_args!(
            "{}: the {what} differs from the generated set: the writer or the reader is broken",
            part.name()
        )))
    };
    if part != ChainstatePart::Copy && done.coins != made.coins {
        return different("number of coins");
    }
    if done.hash_serialized_3.is_some() && done.hash_serialized_3 != made.hash_serialized_3 {
        return different("hash_serialized_3");
    }
    if done.bytes != chainstate_bytes {
        return different("number of bytes");
    }
    Ok(())
}

fn measured(parts: &[(ChainstatePart, Rounds)]) -> Vec<MeasuredPart> {
    let copy = parts.iter().find(|(part, _)| *part == ChainstatePart::Copy);
    let copy: &[f64] = copy.map_or(&[], |(_, rounds)| &rounds.wall);
    let of = |(part, rounds): &(ChainstatePart, Rounds)| {
        let (wall_seconds, cpu_seconds) =
            (MeasuredSpread::of(&rounds.wall)?, MeasuredSpread::of(&rounds.cpu)?);
        Some(MeasuredPart {
            part: *part,
            wall_seconds,
            cpu_seconds,
            rss_peak_bytes: rounds.rss_peak_bytes,
            over_copy: MeasuredSpread::of_ratios(&rounds.wall, copy)?,
        })
    };
    parts.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chainstate::{part, table};
    use crate::error::ErrorKind;
    use std::cell::RefCell;

    /// Runs the parts in this process; the started command does nothing.
    fn measure_here(
        coins: u64,
        spoil: impl Fn(ChainstatePart, &ChainstateFolder),
    ) -> Result<ChainstateRecord, BenchError> {
        let folder = tempfile::tempdir().unwrap();
        let (plan, interrupt) = (
            ChainstatePlan { place: ChainstateFolder::new(folder.path()), rounds: 2 },
            AtomicBool::new(false),
        );
        let failed = RefCell::new(None);
        let command = |it: ChainstatePart| {
            spoil(it, &plan.place);
            if let Err(error) = part(&plan.place, it, coins, &interrupt) {
                failed.borrow_mut().get_or_insert(error);
                return Command::new("false");
            }
            Command::new("true")
        };
        let mut lines = Vec::new();
        let mut log = |line: String| lines.push(line);
        let found = measure(&plan, BenchMachine::here(), &command, &interrupt, &mut log);
        assert_eq!(lines[0], "generating a set of coins");
        if found.is_ok() {
            assert!(lines[1].starts_with("round 1 of 2: write: "), "{lines:?}");
            assert!(lines[6].starts_with("round 2 of 2: write: "), "{lines:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files were left behind");
        match failed.into_inner() {
            Some(error) => Err(error),
            None => found,
        }
    }

    /// A measurement of minimal size.
    fn small() -> ChainstateRecord {
        measure_here(2_000, |_, _| ()).unwrap()
    }

    #[test]
    fn every_part_is_measured_and_compared() {
        let found = small();
        assert_eq!((found.coins, found.rounds), (2_000, 2));
        assert!(found.chainstate_bytes > found.set_bytes && found.set_bytes > 2_000 * 40);
        let parts: Vec<ChainstatePart> = found.parts.iter().map(|it| it.part).collect();
        assert_eq!(parts, ChainstatePart::MEASURED);
        for it in &found.parts {
            assert!(it.wall_seconds.min > 0.0, "{it:?}");
            if it.part == ChainstatePart::Copy {
                assert_eq!(it.over_copy, MeasuredSpread { median: 1.0, min: 1.0, max: 1.0 });
            }
        }
        let text = table(&found).text();
        for words in ["2,000 coins", "write", "copy", "check"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    /// A chainstate without one of the coins is valid, but not the generated one.
    #[test]
    fn a_different_set_reports_no_numbers() {
        let other = |it, place: &ChainstateFolder| {
            if it == ChainstatePart::Check {
                let interrupt = AtomicBool::new(false);
                part(place, ChainstatePart::Make, 1_999, &interrupt).unwrap();
                std::fs::remove_dir_all(place.chainstate()).unwrap();
                std::fs::create_dir(place.chainstate()).unwrap();
                part(place, ChainstatePart::Write, 0, &interrupt).unwrap();
            }
        };
        let error = measure_here(2_000, other).unwrap_err();
        assert!(error.to_string().starts_with("check: the number of coins differs"), "{error}");
    }

    #[test]
    fn a_damaged_chainstate_fails_the_benchmark() {
        let damage = |it, place: &ChainstateFolder| {
            if it == ChainstatePart::Check {
                let path = place.chainstate().join("000003.ldb");
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[1000] ^= 1;
                std::fs::write(path, bytes).unwrap();
            }
        };
        let error = measure_here(2_000, damage).unwrap_err();
        assert!(error.kind() != ErrorKind::Usage, "{error}");
    }
}
