//! `apus plan`: what a run would take of disk, memory and time, before anything is written.
//!
//! Sizes follow from the blocks that are there and from what is known of sets ([`needs`]); time from how
//! fast this machine reads and checks some of these blocks, or all where they are few ([`sample`]). Blocks from peers are not foreseen:
//! there is nothing to measure, and the peers' lines decide. Nor is the time that coins on servers take.

mod needs;
mod reading;
mod sample;
mod table;
mod times;

pub(crate) use needs::{Blocks, Needs, Set, Way, tell_little_room};

use crate::args::{EngineArg, PlanArgs, SinkArg};
use crate::aside::bytes_in;
use crate::failure::Failure;
use crate::files::expect_hints;
use crate::interrupt::watch_signals;
use crate::machine::clock;
use crate::node::{Node, expect_first_blocks, expect_folders};
use crate::options::{expect_engine_takes, expect_undo_data};
use crate::places::{look_at, look_whether_it_moves};
use crate::print;
use crate::scripts::verifier;
use apus_chain::{Network, Params};
use apus_datadir::{BlockFiles, BlocksFolder};
use apus_sync::{BlocksDir, Event, Gap, Observer, SourceError, SyncError, UseIndex};
use sample::{Sample, WHOLE_BYTES};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use table::Planning;

/// Runs `apus plan`.
pub(crate) fn command(args: &PlanArgs) -> Result<(), Failure> {
    let chosen = way(args)?;
    let place = Place::of(args)?;
    expect_undo_data(&place.outputs, args.hints.is_some(), args.prune)?;
    let files = BlockFiles::open(&place.blocksdir, args.chain.magic());
    let files = files.map_err(|error| Failure::from(SyncError::from(SourceError::from(error))))?;
    expect_first_blocks(&place.blocksdir)?;
    let interrupt = watch_signals()?;
    if let Some(hints) = &args.hints {
        hints.input().make_plain(&std::env::temp_dir(), &interrupt)?;
        expect_hints(hints)?;
    }
    let sample = look(&place.blocksdir, &files, args.chain, &interrupt)?;
    let blocks = sample.blocks(files.bytes_total());
    let set = Set::of(args.hints.as_ref(), place.old_chainstate, blocks, args.chain, &sample)?;
    let planning = Planning { args, place: &place, sample: &sample, blocks, set };
    planning.tell_all(chosen, files.files().len())
}

/// Looks at some of the blocks, or where there are few, at all of them. What a run would warn of is told, as far as it is
/// seen.
fn look(
    blocksdir: &BlocksFolder,
    files: &BlockFiles,
    chain: Network,
    interrupt: &AtomicBool,
) -> Result<Sample, Failure> {
    let params = Params::of(chain);
    let now = clock(params)?;
    let verifier = verifier(params)?;
    if files.bytes_total() > WHOLE_BYTES {
        if let Some(missing) = Gap::between(files.files()).missing_files() {
            let ends = "a run ends below what lay there, unless it lies in other files, too";
            print::aside(format_args!("warning: {missing}: {ends}"));
        }
        return Sample::take(files, params, verifier.as_deref(), interrupt);
    }
    let use_index = UseIndex::IfPresent;
    let dir = BlocksDir::open(blocksdir, params, now, use_index, &Warnings, interrupt);
    Sample::of_all(files, &dir.map_err(SyncError::from)?, params, verifier.as_deref(), interrupt)
}

/// Tells of warnings, and of nothing else.
struct Warnings;

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(warning) = event {
            print::aside(format_args!("warning: {warning}"));
        }
    }
}

/// What the options ask for, where a plan knows it.
fn way(args: &PlanArgs) -> Result<Way, Failure> {
    #[cfg(feature = "remote-coins")]
    let on_servers = args.coins.are_named();
    #[cfg(not(feature = "remote-coins"))]
    let on_servers = false;
    let engine = args.engine.or(on_servers.then_some(EngineArg::Utxo));
    expect_engine_takes(engine, args.hints.as_ref())?;
    let in_order = engine == Some(EngineArg::Utxo);
    #[cfg(feature = "remote-coins")]
    args.coins.beyond(in_order)?;
    match engine {
        Some(EngineArg::Utreexo) => Err(Failure::usage(
            "what the engine utreexo takes cannot be foreseen: leave out --engine, or name another",
        )),
        _ if args.hints.is_some() => Ok(Way::Hints),
        _ if on_servers => Ok(Way::InOrderOnServers),
        _ if in_order => Ok(Way::InOrder),
        _ => Ok(Way::Joins),
    }
}

/// Where a run would find and leave what.
struct Place {
    blocksdir: BlocksFolder,
    outputs: Vec<SinkArg>,
    workdir: PathBuf,
    /// Bytes of the chainstate that is moved aside.
    old_chainstate: Option<u64>,
}

impl Place {
    fn of(args: &PlanArgs) -> Result<Self, Failure> {
        let (blocksdir, outputs) = match (&args.datadir, &args.blocksdir) {
            (Some(datadir), _) => {
                let node = Node::find(datadir, args.chain, args.blocksdir.as_deref())?;
                expect_folders(&node)?;
                (node.blocks, vec![SinkArg::Chainstate(node.folder.join("chainstate"))])
            }
            (None, Some(blocksdir)) => (blocksdir.into(), args.out.clone()),
            (None, None) => {
                return Err(Failure::usage(
                    "say where the blocks are, by --datadir DIR of a node or by --blocksdir DIR (see `apus plan \
                     --help`)",
                ));
            }
        };
        let old = outputs.iter().find_map(|sink| match sink {
            SinkArg::Chainstate(path) if path.is_dir() => Some(bytes_in(path)),
            _ => None,
        });
        let beside = || outputs.iter().find_map(SinkArg::path).unwrap_or(Path::new("."));
        let workdir = args.workdir.clone().unwrap_or_else(|| beside().to_owned());
        Ok(Self { blocksdir, outputs, workdir, old_chainstate: old })
    }
}

impl Place {
    /// What a run would be refused for, or fail for at its end.
    fn expect_good(&self) -> Result<(), Failure> {
        let outputs: Vec<&Path> = self.outputs.iter().filter_map(SinkArg::path).collect();
        look_at(&outputs, &self.workdir)?;
        self.outputs.iter().try_for_each(|sink| match sink {
            SinkArg::Chainstate(path) if path.is_symlink() => match fs::canonicalize(path) {
                Ok(path) => look_whether_it_moves(&path),
                Err(_) => Ok(()),
            },
            SinkArg::Chainstate(path) if path.is_dir() => look_whether_it_moves(path),
            _ => Ok(()),
        })
    }
}

/// Whether a set is that of the main chain, whose proportions are known.
fn is_main(chain: Network) -> bool {
    chain == Network::Main
}
