//! [`Planning`]: what each way to a set takes, in one table, and which of them fit.

use super::Place;
use super::needs::{Blocks, Disk, Needs, Set, Way};
use super::sample::{Sample, Time};
use super::times::time;
use crate::args::{PlanArgs, SinkArg};
use crate::course::duration;
use crate::failure::{Failure, IO};
use crate::machine::{available_bytes, threads};
use crate::print;
use crate::report::{bytes, grouped};
use apus_chain::Params;

/// What a run takes beside `--dbcache`, at most.
const MEMORY_BESIDE: u64 = 100 << 20;

/// What there is to plan with.
pub(super) struct Planning<'a> {
    pub(super) args: &'a PlanArgs,
    pub(super) place: &'a Place,
    pub(super) sample: &'a Sample,
    pub(super) blocks: Blocks,
    pub(super) set: Set,
}

/// What one way takes.
struct Row {
    way: Way,
    disks: Vec<Disk>,
    /// None where it cannot be foreseen.
    time: Option<Time>,
    /// Why it does not fit, each with what would do; empty where it fits.
    lacking: Vec<String>,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Hints => "with hints",
            Self::Joins => "without hints",
            Self::InOrder | Self::InOrderOnServers => "in order",
        }
    }

    /// How a run is told to go this way.
    fn option(self) -> &'static str {
        match self {
            Self::Hints => "--hints FILE",
            Self::Joins => "no option",
            Self::InOrder | Self::InOrderOnServers => "--engine utxo",
        }
    }
}

impl Planning<'_> {
    /// Tells all, and fails where nothing fits. `chosen` is what the options ask for.
    pub(super) fn tell_all(&self, chosen: Way, files: usize) -> Result<(), Failure> {
        let Self { args, place, sample, blocks, set } = self;
        let files = if files == 1 {
            "1 file".to_owned()
        } else {
            format!("{} files", grouped(files as u64))
        };
        say("chain", format!("{}: {} of blocks in {files}", args.chain, bytes(blocks.bytes)))?;
        let coins = (grouped(set.coins), bytes(set.chainstate()));
        say("coins", format!("some {}: {} as a chainstate", coins.0, coins.1))?;
        say("this machine", sample.words(threads(args.par)))?;
        let in_order = if chosen == Way::InOrderOnServers { chosen } else { Way::InOrder };
        let rows = [Way::Hints, Way::Joins, in_order].map(|way| self.row(way));
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.tell_rows(&rows, chosen)?;
        let this = rows.iter().find(|row| row.way == chosen);
        this.map_or(Ok(()), |row| tell_disks(&row.disks))?;
        if let Some(old) = place.old_chainstate {
            say("", format!("the old chainstate, {}, stays until you remove it", bytes(old)))?;
        }
        if chosen == Way::InOrderOnServers {
            let set = bytes(set.on_servers());
            let text =
                format!("some {set} for the coins, and twice as much while they are written");
            say("servers", text)?;
        }
        place.expect_good()?;
        self.conclude(&rows, chosen)
    }

    /// Which ways fit, and what the others lack.
    fn conclude(&self, rows: &[Row], chosen: Way) -> Result<(), Failure> {
        let fit: Vec<&Row> = rows.iter().filter(|row| row.lacking.is_empty()).collect();
        let why = |row: &Row| format!("{}: {}", row.way.name(), row.lacking.join(", and "));
        if fit.is_empty() {
            let all: Vec<String> = rows.iter().map(why).collect();
            return Err(Failure::new(IO, format!("too little for any way: {}", all.join("; "))));
        }
        print::result("")?;
        for row in rows.iter().filter(|row| !row.lacking.is_empty()) {
            print::result(format_args!("Too little {}.", why(row)))?;
        }
        if fit.iter().any(|row| row.way == chosen) {
            return print::result(format_args!("There is enough of everything {}.", chosen.name()));
        }
        let ways: Vec<String> =
            fit.iter().map(|row| format!("{} ({})", row.way.name(), row.way.option())).collect();
        print::result(format_args!("There is enough {}.", ways.join(", or ")))
    }

    fn row(&self, way: Way) -> Result<Row, Failure> {
        let Self { args, place, sample, blocks, set } = self;
        let needs = Needs {
            blocks: *blocks,
            way,
            set: *set,
            outputs: &place.outputs,
            prune: args.prune,
            workdir: &place.workdir,
            memory_bytes: args.dbcache << 20,
            threads: threads(args.par),
        };
        // Without an assumed-valid block, as on regtest, no script is left out but of blocks under hints.
        let assumes = args.assume.block(Params::of(args.chain)).is_some();
        let scripts = args.assume.nothing() || !assumes && way != Way::Hints;
        let disks = needs.disks()?;
        let whole = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
        let mut lacking = Vec::new();
        if way == Way::Hints && !args.prune && place.outputs.iter().any(whole) {
            // Where hints are given this is a mistake, and was told.
            lacking.push("undo data, of which hints lead to none: --prune would do".to_owned());
        }
        lacking.extend(self.memory_lacking());
        lacking.extend(disks.iter().filter_map(Disk::lacking));
        Ok(Row { way, disks, time: time(sample, &needs, scripts, args.muhash), lacking })
    }

    /// Memory that every way takes, at most.
    fn memory(&self) -> u64 {
        (self.args.dbcache << 20) + MEMORY_BESIDE
    }

    fn memory_lacking(&self) -> Option<String> {
        let free = available_bytes().filter(|free| *free < self.memory())?;
        let fits = free.saturating_sub(MEMORY_BESIDE) >> 20;
        Some(match fits {
            4.. => {
                format!("memory, {} available, for which --dbcache {fits} would do", bytes(free))
            }
            _ => format!("memory, {} available and {} needed", bytes(free), bytes(self.memory())),
        })
    }

    fn tell_rows(&self, rows: &[Row], chosen: Way) -> Result<(), Failure> {
        print::result("")?;
        let line = |[way, disk, memory, time, fits]: [&str; 5]| {
            let line = format!("{way:<15} {disk:<11} {memory:<11} {time:<22} {fits}");
            print::result(line.trim_end())
        };
        line(["way", "disk", "memory", "time", "fits"])?;
        for row in rows {
            let disk = bytes(row.disks.iter().map(Disk::needed).sum());
            let fits = if row.lacking.is_empty() { "yes" } else { "no" };
            let mark = if row.way == chosen { "  <- this run" } else { "" };
            let (memory, time) = (bytes(self.memory()), words(row.time));
            line([row.way.name(), &disk, &memory, &time, &format!("{fits}{mark}")])?;
        }
        Ok(())
    }
}

fn words(time: Option<Time>) -> String {
    match time {
        None => "cannot be foreseen".to_owned(),
        Some(Time { seconds: ..1.0, .. }) => "less than a second".to_owned(),
        Some(Time { seconds, is_least: true }) => format!("{} at least", duration(seconds)),
        Some(Time { seconds, .. }) => format!("about {}", duration(seconds)),
    }
}

/// What comes onto each disk.
fn tell_disks(disks: &[Disk]) -> Result<(), Failure> {
    print::result("")?;
    for disk in disks {
        let (needed, free) = (bytes(disk.needed()), bytes(disk.free));
        say("disk of this run", format!("{needed} at {}, {free} free", disk.folder.display()))?;
        for part in &disk.parts {
            say("", format!("{} for {}", bytes(part.bytes), part.what))?;
        }
    }
    Ok(())
}

fn say(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    print::result_behind(&format!("{name:<18} "), value)
}
