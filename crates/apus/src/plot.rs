//! `apus plot`: pictures of runs, from reports of Apus and logs of Bitcoin Core.

use crate::failure::Failure;
use crate::files::{expect_apart, expect_writable, publish};
use crate::machine::{clock, watch_signals};
use crate::print;
use crate::report::grouped;
use apus_chain::{Network, Params};
use apus_sync::{BlockSource, BlocksDir, ChainSource, Silent, SyncError, UseIndex};
use clap::Args;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

mod chart;
mod read;
mod run;

use chart::{RunsChart, TimeScale};
use read::{ReadOptions, Since, labels, read};
use run::{Comparison, PlotMeasure, PlottedRun, csv, total};

/// More lines than this cannot be told apart.
const RUNS_MAX: usize = 21;

const EXAMPLES: &str = "\
Examples:
  A run of Apus beside one of Bitcoin Core on the same blocks:
    apus plot run.json ~/.bitcoin/debug.log --labels apus,core --out both.svg

  The same by bytes of blocks, or by transactions:
    apus plot run.json ~/.bitcoin/debug.log --by bytes \\
         --blocksdir ~/.bitcoin/blocks
    apus plot run.json ~/.bitcoin/debug.log --by transactions \\
         --blocksdir ~/.bitcoin/blocks

  Each of several versions of Bitcoin Core against the first, up to one height:
    apus plot a/debug.log b/debug.log c/debug.log --baseline a \\
         --stopatheight 886000

The upper panel shows height over time, the lower one how many times as fast as
the baseline each run was to the same height. Beside each run stands which
scripts it ran; a run that ran all of them is not compared with one that took
some for valid. Of a log with several starts of a node the last one counts, and
the picture says which it took. A log is that of `bitcoind`, with whole seconds
or -logtimemicros=1, also as journald or a container keeps it, or compressed by
gzip; blocks are its lines `UpdateTip: new best=...`, and its last block ends
the time. A run of Apus counts blocks in any order, and its time
includes what follows the last one; where it goes over them twice, it is the
second time that counts.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlotArgs {
    /// Reports of `apus sync --report`, and Bitcoin Core's debug.log files
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// A picture to write, as SVG [default: plot.svg]
    #[arg(long, value_name = "FILE.svg")]
    out: Vec<SvgPath>,
    /// Also write the points: label,seconds,height; with --by the last column is bytes or transactions
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Names of the runs, in their order [default: names of files or folders]
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',')]
    labels: Vec<String>,
    /// Which run the others are compared with, by its label [default: the slowest]
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// What stands above the picture
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// How far a run is: by its height, where each block counts as much as any; or by bytes of blocks or by
    /// transactions, which are closer to the work. A report has no transactions and a log no bytes: there
    /// --blocksdir tells what each block has
    #[arg(long, value_name = "MEASURE", default_value = "height")]
    by: PlotMeasure,
    /// Folder with the blocks of the runs, for --by bytes with logs and --by transactions with reports
    #[arg(long, value_name = "DIR")]
    blocksdir: Option<PathBuf>,
    /// Which chain: main, test, testnet4, signet or regtest. If not given, that of --blocksdir
    #[arg(long, default_value = "main", hide_default_value = true)]
    chain: Network,
    /// How time is spread: auto is logarithmic where runs differ much
    #[arg(long, value_name = "SCALE", default_value = "auto")]
    scale: TimeScale,
    /// When time begins: with the program, or with the first block
    #[arg(long, value_name = "EVENT", default_value = "start")]
    since: Since,
    /// Of a log with several starts of a node, which one, from 1 [default: the last]
    #[arg(long, value_name = "N")]
    start: Option<NonZeroU64>,
    /// Of a log, nothing after this height
    #[arg(long, value_name = "HEIGHT")]
    stopatheight: Option<u64>,
}

/// A picture to write.
#[derive(Clone)]
struct SvgPath(PathBuf);

impl FromStr for SvgPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = PathBuf::from(text);
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Self(path)),
            Some("png") => Err(format!(
                "pictures are written as SVG, which browsers open. For a PNG write an SVG first, then: rsvg-convert \
                 -z 2 -o {text} FILE.svg"
            )),
            _ => Err("use a name that ends with .svg".to_owned()),
        }
    }
}

/// Runs `apus plot`.
pub(crate) fn command(args: &PlotArgs) -> Result<(), Failure> {
    let outputs = outputs(args)?;
    let runs = runs(args)?;
    let comparison = Comparison::new(&runs, args.baseline.as_deref())?;
    let title = args.title.as_deref().unwrap_or(match args.by {
        PlotMeasure::Height => "Block height over time",
        PlotMeasure::Bytes => "Bytes of blocks over time",
        PlotMeasure::Transactions => "Transactions over time",
    });
    let (scale, measure) = (args.scale, args.by);
    let svg = RunsChart { title, runs: &runs, comparison: &comparison, scale, measure }.to_svg();
    for path in &outputs {
        publish(path, svg.as_bytes())?;
    }
    if let Some(path) = &args.csv {
        publish(path, csv(&runs, args.by).as_bytes())?;
    }
    table(&runs, &comparison, args.by)?;
    if let Some(unlike) = comparison.warning(&runs) {
        print::result(format_args!("\n{unlike}. They did not do the same work."))?;
    }
    let written = outputs.iter().chain(&args.csv);
    for path in written {
        print::result(format_args!("{} is written.", path.display()))?;
    }
    Ok(())
}

/// Pictures to write, all of them new, and so is the table of points.
fn outputs(args: &PlotArgs) -> Result<Vec<PathBuf>, Failure> {
    let mut outputs: Vec<PathBuf> = args.out.iter().map(|SvgPath(path)| path.clone()).collect();
    if outputs.is_empty() && args.csv.is_none() {
        outputs.push(PathBuf::from("plot.svg"));
    }
    let paths: Vec<&Path> = outputs.iter().chain(&args.csv).map(PathBuf::as_path).collect();
    expect_apart(&paths)?;
    for path in paths {
        expect_writable(path, |_| false)?;
    }
    Ok(outputs)
}

fn runs(args: &PlotArgs) -> Result<Vec<PlottedRun>, Failure> {
    let count = args.runs.len();
    if count > RUNS_MAX {
        return Err(Failure::usage(format!(
            "{count} runs: no picture of more than {RUNS_MAX} can be read"
        )));
    }
    let labels = match args.labels.len() {
        0 => labels(&args.runs),
        named if named == count => args.labels.clone(),
        named => {
            return Err(Failure::usage(format!("--labels: {named} for {count} runs")));
        }
    };
    let options = ReadOptions {
        start: args.start,
        since: args.since,
        stop_height: args.stopatheight,
        measure: args.by,
    };
    let mut runs = Vec::with_capacity(count);
    for (path, label) in args.runs.iter().zip(labels) {
        let mut run = read(path, &options)?;
        run.label = label;
        runs.push(run);
    }
    // What a file tells nothing of, blocks tell. A run that counts its blocks in any order begins with the lowest
    // ones; those that are under way at once make little of a chain.
    let lacks = |run: &PlottedRun| match args.by {
        PlotMeasure::Height => false,
        PlotMeasure::Bytes => run.of_node,
        PlotMeasure::Transactions => !run.of_node,
    };
    if runs.iter().any(lacks) {
        let upto = up_to(args)?;
        // Above the blocks that are there it is at the last of them.
        let of =
            |height: u64| upto[usize::try_from(height).unwrap_or(usize::MAX).min(upto.len() - 1)];
        runs.iter_mut().filter(|run| lacks(run)).for_each(|run| *run = run.measured(of));
    }
    Ok(runs)
}

/// Bytes or transactions of all blocks up to each height, without those of the first of all.
fn up_to(args: &PlotArgs) -> Result<Vec<u64>, Failure> {
    let blocksdir = args.blocksdir.as_ref().ok_or_else(|| {
        let says_nothing = match args.by {
            PlotMeasure::Transactions => "a report says nothing of the transactions of each block",
            PlotMeasure::Height | PlotMeasure::Bytes => "a log says nothing of bytes",
        };
        Failure::usage(format!(
            "{says_nothing}: name the folder of these blocks by --blocksdir DIR"
        ))
    })?;
    let (params, interrupt) = (Params::of(args.chain), watch_signals()?);
    // A node's index does not say how long blocks are, so files are gone through.
    let dir =
        BlocksDir::open(blocksdir, params, clock(params)?, UseIndex::Never, &Silent, &interrupt)
            .map_err(SyncError::from)?;
    let tip = dir.chain().tip_height();
    let each: Vec<u64> = match args.by {
        PlotMeasure::Transactions => {
            let heads = dir.heads(tip, &mut |_| Ok(())).map_err(SyncError::from)?;
            heads.iter().map(|head| head.tx_count.into()).collect()
        }
        PlotMeasure::Height | PlotMeasure::Bytes => {
            (1..=tip).map(|height| dir.block_bytes(height)).collect()
        }
    };
    let sums = each.iter().scan(0, |sum, block| {
        *sum += block;
        Some(*sum)
    });
    Ok(std::iter::once(0).chain(sums).collect())
}

fn table(runs: &[PlottedRun], comparison: &Comparison, by: PlotMeasure) -> Result<(), Failure> {
    let wide = |least: usize, texts: &mut dyn Iterator<Item = usize>| {
        texts.fold(least, |widest, length| widest.max(length))
    };
    let label = wide(3, &mut runs.iter().map(|run| run.label.chars().count()));
    let detail = wide(7, &mut runs.iter().map(|run| run.detail.chars().count()));
    let scripts = wide(7, &mut runs.iter().map(|run| run.scripts.words().len()));
    let line = |cells: [&str; 6]| {
        let [name, program, verified, height, time, ratio] = cells;
        let line = format!(
            "{name:<label$}  {program:<detail$}  {verified:<scripts$}  {height:>12}  {time:>13}  {ratio:>9}",
        );
        print::result(line.trim_end())
    };
    line(["run", "program", "scripts", by.name(), "time", "ratio"])?;
    for (index, run) in runs.iter().enumerate() {
        let (far, verified) = (grouped(run.height()), run.scripts.words());
        line([&run.label, &run.detail, verified, &far, &total(run), &comparison.words(index)])?;
    }
    Ok(())
}
