//! `apus plot`: charts of runs, from reports of Apus and logs of Bitcoin Core.

use crate::failure::Failure;
use crate::files::{expect_apart, expect_writable, publish};
use crate::machine::{clock, watch_signals};
use crate::print;
use crate::report::grouped;
use apus_chain::{Network, Params};
use apus_indexes::{NumbersError, read_numbers};
use apus_sync::{BlockSource, BlocksDir, ChainSource, SilentObserver, SyncError, UseIndex};
use clap::Args;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

mod chart;
mod read;
mod run;

use chart::{GrowthChart, RunsChart, TimeScale};
use read::{ReadOptions, Since, labels, read};
use run::{Comparison, PlotMeasure, PlottedRun, csv, total};

/// Maximum number of runs: a chart with more lines is not readable.
const RUNS_MAX: usize = 21;

const EXAMPLES: &str = "\
Examples:
  A run of Apus and one of Bitcoin Core on the same blocks:
    apus plot run.json ~/.bitcoin/debug.log --labels apus,core --out both.svg

  The same, by bytes of blocks or by transactions:
    apus plot run.json ~/.bitcoin/debug.log --by bytes \\
         --blocksdir ~/.bitcoin/blocks
    apus plot run.json ~/.bitcoin/debug.log --by transactions \\
         --blocksdir ~/.bitcoin/blocks

  Several versions of Bitcoin Core, compared with the first, up to one height:
    apus plot a/debug.log b/debug.log c/debug.log --baseline a \\
         --stopatheight 886000

  The growth of the UTXO set, by height:
    apus index --datadir ~/.bitcoin --numbers chain.csv
    apus plot --numbers chain.csv --out growth.svg

The upper panel shows height over time. The lower one shows how many times as
fast as the baseline each run reached the same height. The legend shows which
scripts each run ran; a run that ran all of them is not compared with one that
assumed some valid. If a log has several starts of a node, the last one counts,
and the chart says which one it shows. A log comes from `bitcoind`, with whole
seconds or -logtimemicros=1. It may have passed through journald or a
container's log, or be compressed with gzip. Its blocks are the lines
`UpdateTip: new best=...`, and its time ends with the last block. A run of Apus
counts blocks in any order, and its time includes what follows the last one. If
it has two passes over the blocks, the second pass counts.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlotArgs {
    /// Reports of `apus sync --report`, and Bitcoin Core's debug.log files
    #[arg(required_unless_present = "numbers", conflicts_with = "numbers", value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Instead of runs, draw how the UTXO set and the chain grow: a file of `apus index --numbers`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["csv", "labels", "baseline", "blocksdir"])]
    numbers: Option<PathBuf>,
    /// The chart to write, as SVG [default: plot.svg]
    #[arg(long, value_name = "FILE.svg")]
    out: Vec<SvgPath>,
    /// Also write the points as CSV: label,seconds,height; with --by, the last column is bytes or transactions
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Names of the runs, in the files' order [default: names of files or folders]
    #[arg(long, value_name = "NAME,NAME...", value_delimiter = ',')]
    labels: Vec<String>,
    /// Label of the run to compare the others with [default: the slowest]
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// Title of the chart
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Measure of progress: height, which counts all blocks equally; or bytes or transactions, which are closer to the
    /// work. A report has no transactions and a log has no bytes; these cases need --blocksdir
    #[arg(long, value_name = "MEASURE", default_value = "height")]
    by: PlotMeasure,
    /// Folder of the runs' blocks, for --by bytes with logs and for --by transactions with reports
    #[arg(long, value_name = "DIR")]
    blocksdir: Option<PathBuf>,
    /// Which chain: main, test, testnet4, signet or regtest [default: the chain of --blocksdir]
    #[arg(long, default_value = "main", hide_default_value = true)]
    chain: Network,
    /// Scale of the time axis: auto is logarithmic if the runs' times differ much
    #[arg(long, value_name = "SCALE", default_value = "auto")]
    scale: TimeScale,
    /// When time begins: at the start of the program, or with the first block
    #[arg(long, value_name = "EVENT", default_value = "start")]
    since: Since,
    /// Which start of the node to show if a log has several, counted from 1 [default: the last]
    #[arg(long, value_name = "N")]
    start: Option<NonZeroU64>,
    /// Show logs only up to this height
    #[arg(long, value_name = "HEIGHT")]
    stopatheight: Option<u64>,
}

/// Path of a chart to write.
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
                "charts are written as SVG, which browsers open. For a PNG, write an SVG first, then: rsvg-convert \
                 -z 2 -o {text} FILE.svg"
            )),
            _ => Err("use a name that ends with .svg".to_owned()),
        }
    }
}

/// Runs `apus plot`.
pub(crate) fn command(args: &PlotArgs) -> Result<(), Failure> {
    let outputs = outputs(args)?;
    if let Some(path) = &args.numbers {
        return growth(args, path, &outputs);
    }
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
        print::result(format_args!("\n{unlike}, because they did not do the same work."))?;
    }
    let written = outputs.iter().chain(&args.csv);
    for path in written {
        print::result(format_args!("Written: {}", path.display()))?;
    }
    Ok(())
}

/// Draws how the set and the chain grow.
fn growth(args: &PlotArgs, path: &Path, outputs: &[PathBuf]) -> Result<(), Failure> {
    let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
    let numbers = &read_numbers(BufReader::new(file)).map_err(|error| match error {
        NumbersError::Io(error) => Failure::io(path, error),
        error => Failure::wrong(format!("{}: {error}", path.display())),
    })?;
    let title = args.title.as_deref().unwrap_or("The UTXO set by height");
    let svg = GrowthChart { title, numbers }.to_svg();
    for path in outputs {
        publish(path, svg.as_bytes())?;
        print::result(format_args!("Written: {}", path.display()))?;
    }
    Ok(())
}

/// Returns the charts to write. Fails if one of them, or the table of points, already exists.
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
            "a chart cannot show {count} runs: give at most {RUNS_MAX}"
        )));
    }
    let labels = match args.labels.len() {
        0 => labels(&args.runs),
        named if named == count => args.labels.clone(),
        named => {
            return Err(Failure::usage(format!(
                "--labels: labels given: {named}, runs: {count}: give one label per run"
            )));
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
    // If a file lacks the measure, compute it from the blocks. For a run in any order, this takes the lowest blocks as
    // the processed ones, which is close: only a small part of a chain is in progress at once.
    let lacks = |run: &PlottedRun| match args.by {
        PlotMeasure::Height => false,
        PlotMeasure::Bytes => run.of_node,
        PlotMeasure::Transactions => !run.of_node,
    };
    if runs.iter().any(lacks) {
        let upto = up_to(args)?;
        // Above the last available block, use its value.
        let of =
            |height: u64| upto[usize::try_from(height).unwrap_or(usize::MAX).min(upto.len() - 1)];
        runs.iter_mut().filter(|run| lacks(run)).for_each(|run| *run = run.measured(of));
    }
    Ok(runs)
}

/// Returns for each height the bytes or transactions of all blocks up to it, without the genesis block's.
fn up_to(args: &PlotArgs) -> Result<Vec<u64>, Failure> {
    let blocksdir = args.blocksdir.as_ref().ok_or_else(|| {
        let lacks = match args.by {
            PlotMeasure::Transactions => "a report lacks the transactions of each block",
            PlotMeasure::Height | PlotMeasure::Bytes => "a log lacks the bytes of blocks",
        };
        Failure::usage(format!("{lacks}: give the folder of these blocks with --blocksdir DIR"))
    })?;
    let (params, interrupt) = (Params::of(args.chain), watch_signals()?);
    // A node's index does not have the sizes of blocks, so read the files.
    let dir = BlocksDir::open(
        blocksdir,
        params,
        clock(params)?,
        UseIndex::Never,
        &SilentObserver,
        &interrupt,
    )
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
