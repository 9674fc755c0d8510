//! `apus hints convert`: converts any encoding to any other. Needs the blocks if the two number outputs differently.

use super::{about, census, decoder, format_of, order_of};
use crate::args::verifier;
use crate::args::{HintsConvertArgs, TargetFormat};
use crate::failure::{Failure, INTERRUPTED};
use crate::files::{FileDrafts, expect_writable};
use crate::machine::{clock, watch_signals};
use crate::print;
use crate::report::grouped;
use apus_chain::{BlockHash, Height, HeightRange, Params};
use apus_storage::{DirStorage, StorageFile};
use apus_sync::engines::swiftsync::hints::bitmap::BitmapEncoder;
use apus_sync::engines::swiftsync::hints::btcd::BtcdEncoder;
use apus_sync::engines::swiftsync::hints::delta::DeltaEncoder;
use apus_sync::engines::swiftsync::hints::offsets::OffsetsEncoder;
use apus_sync::engines::swiftsync::hints::{
    Format, HintsDecoder, HintsEncoder, HintsError, HintsWriter, IndexSpace, Layout,
};
use apus_sync::sink::FileDraft;
use apus_sync::{
    BlocksDir, ChainSource, OutputsOfBlock, SilentObserver, SyncError, UseIndex, parent,
    walk_outputs,
};
use std::fs;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn command(args: &HintsConvertArgs) -> Result<(), Failure> {
    let order = order_of(args.from, args.hints_order)?;
    expect_writable(&args.out, |_| false)?;
    let interrupt = watch_signals()?;
    args.file.make_plain(parent(&args.out), &interrupt)?;
    let format = format_of(&args.file, args.from)?;
    let named = args.file.named();
    // A first pass finds the stop height, which some encodings store at the start, and some not at all.
    let mut first = decoder(&args.file, format, order)?;
    let named_stop = first.stop_block();
    let found = census(named, &mut *first)?;
    let stop_height = found.stop_height.ok_or_else(|| {
        Failure::wrong(format!("{} holds no hints for any block", named.display()))
    })?;
    let chain = HintedChain::open(args, format, stop_height, &interrupt)?;
    let stop_block = chain.as_ref().and_then(|chain| chain.stop_block);
    if let (Some(stated), Some(found)) = (named_stop, stop_block)
        && stated != found
    {
        return Err(Failure::wrong(format!(
            "{}: the hints are for block {stated}, but the chain has {found} at height {stop_height}",
            named.display()
        )));
    }
    let stop =
        StopBlock { height: stop_height, block: stop_block.or(named_stop).or(args.stop_block) };
    let folder = parent(&args.out);
    fs::create_dir_all(folder)
        .map_err(|error| Failure::making(folder, &error, "use another --out"))?;
    let (storage, name) = (DirStorage::new(folder), args.out.file_name().unwrap_or_default());
    let _drafts = FileDrafts(std::slice::from_ref(&args.out));
    let (draft, file) = FileDraft::create(&storage, &name.to_string_lossy())?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut reading = decoder(&args.file, format, order)?;
    let encoder = encoder(args.to, &mut out, stop, &args.out)?;
    let mut conversion = Conversion {
        from: format,
        to: args.to.format,
        source: named,
        target: &args.out,
        decoder: &mut *reading,
        encoder,
        indices: Vec::new(),
        interrupt: &interrupt,
    };
    match &chain {
        Some(chain) => chain.walk(&mut conversion, stop_height)?,
        None => while conversion.block(None)? {},
    }
    conversion.finish()?;
    let file = out.into_inner().map_err(|error| Failure::io(&args.out, error.into_error()))?;
    draft.publish(file)?;
    print::result(format_args!(
        "{}: {} coins of blocks up to {stop_height}, as {}",
        args.out.display(),
        grouped(found.coins),
        args.to
    ))
}

/// The last block of the hints.
#[derive(Clone, Copy)]
struct StopBlock {
    height: Height,
    block: Option<BlockHash>,
}

/// The chain of the hints, if the conversion needs the blocks or the user gave them.
struct HintedChain {
    params: &'static Params,
    dir: BlocksDir,
    verifier: Option<Box<dyn apus_chain::ScriptVerifier>>,
    stop_block: Option<BlockHash>,
}

impl HintedChain {
    fn open(
        args: &HintsConvertArgs,
        from: Format,
        stop_height: Height,
        interrupt: &AtomicBool,
    ) -> Result<Option<Self>, Failure> {
        let Some(blocksdir) = &args.blocksdir else {
            let why = if from.index_space() != args.to.format.index_space() {
                "one of these encodings counts unspendable outputs and the other does not"
            } else if from == Format::Bitmap || args.to.format == Format::Bitmap {
                "a bitmap has one bit per output of a block, and counts them in 16 bits"
            } else {
                return Ok(None);
            };
            return Err(Failure::usage(format!(
                "{why}, so Apus needs the blocks: add --blocksdir DIR"
            )));
        };
        let params = Params::of(args.chain);
        let verifier = verifier(params)?;
        let dir = BlocksDir::open(
            blocksdir,
            params,
            clock(params)?,
            UseIndex::IfPresent,
            &SilentObserver,
            interrupt,
        )
        .map_err(SyncError::from)?;
        let tip = dir.chain().tip_height();
        let stop_block = dir.chain().hash(stop_height).copied();
        if stop_block.is_none() {
            return Err(Failure::wrong(format!(
                "the hints reach height {stop_height}, but the chain found ends at {tip}{}",
                dir.gap()
            )));
        }
        Ok(Some(Self { params, dir, verifier, stop_block }))
    }

    fn walk(&self, conversion: &mut Conversion<'_>, stop: Height) -> Result<(), Failure> {
        let mut failure = None;
        if conversion.from.start_height() == 0 || conversion.to.start_height() == 0 {
            conversion.genesis()?;
        }
        let walked = walk_outputs(
            self.params,
            &self.dir,
            self.verifier.as_deref(),
            HeightRange::new(1, stop + 1),
            &mut |outputs| {
                conversion.block(Some(&outputs)).map(|_| ()).map_err(|error| {
                    failure = Some(error);
                    SyncError::Interrupted
                })
            },
        );
        match failure {
            Some(failure) => Err(failure),
            None => Ok(walked?),
        }
    }
}

/// A conversion in progress.
struct Conversion<'a> {
    from: Format,
    to: Format,
    source: &'a Path,
    target: &'a Path,
    decoder: &'a mut dyn HintsDecoder,
    encoder: Box<dyn HintsEncoder + 'a>,
    indices: Vec<u32>,
    interrupt: &'a AtomicBool,
}

impl Conversion<'_> {
    /// Converts the genesis block, which some encodings list and others do not. Its only output never was a coin.
    fn genesis(&mut self) -> Result<(), Failure> {
        if self.from.start_height() == 0 {
            let read = self.decoder.next_block(&mut self.indices);
            read.map_err(|error| about(self.source, &error))?;
            if !self.indices.is_empty() {
                return Err(Failure::wrong(format!(
                    "{}: the hints list the genesis block's output as unspent, but that output never was a coin",
                    self.source.display()
                )));
            }
        }
        if self.to.start_height() == 0 {
            self.encoder.put_block(&[], 1).map_err(|error| about(self.target, &error))?;
        }
        Ok(())
    }

    /// Converts one block; returns `false` at the end.
    fn block(&mut self, outputs: Option<&OutputsOfBlock>) -> Result<bool, Failure> {
        if self.interrupt.load(Ordering::Relaxed) {
            let message = "interrupted: nothing was written".to_owned();
            return Err(Failure::new(INTERRUPTED, message));
        }
        let read = self.decoder.next_block(&mut self.indices);
        let Some(element) = read.map_err(|error| about(self.source, &error))? else {
            return Ok(false);
        };
        let count = match outputs {
            Some(outputs) => {
                self.expect_count(outputs, element.outputs)?;
                self.translate(outputs)?
            }
            None => self.indices.last().map_or(0, |last| last + 1),
        };
        let put = self.encoder.put_block(&self.indices, count);
        put.map_err(|error| about(self.target, &error))?;
        Ok(true)
    }

    /// Compares the number of outputs that the encoding states with the block's.
    fn expect_count(&self, block: &OutputsOfBlock, stated: Option<u32>) -> Result<(), Failure> {
        let real = block.spendable.len() as u32;
        match stated {
            Some(stated) if stated != real => {
                let why = if self.from == Format::Bitmap && stated == real & 0xffff {
                    "the bitmap counts outputs in 16 bits, which this block overflows. The bitmap cannot hold this \
                     block's hints, and nothing after this block can be trusted: use another encoding"
                } else {
                    "the hints were made for another chain or are damaged"
                };
                Err(Failure::wrong(format!(
                    "{}: block {} has {real} outputs, but the hints say {stated}: {why}",
                    self.source.display(),
                    block.height
                )))
            }
            _ => Ok(()),
        }
    }

    /// Converts indices from one index space to the other; returns the block's number of outputs in the new one.
    fn translate(&mut self, block: &OutputsOfBlock) -> Result<u32, Failure> {
        let (from, to) = (self.from.index_space(), self.to.index_space());
        let spendable = block.spendable.iter().filter(|&&yes| yes).count() as u32;
        let translated = match (from, to) {
            (IndexSpace::AllOutputs, IndexSpace::Spendable) => self.without_unspendable(block)?,
            (IndexSpace::Spendable, IndexSpace::AllOutputs) => {
                let places: Vec<u32> = (0..block.spendable.len() as u32)
                    .filter(|&place| block.spendable[place as usize])
                    .collect();
                let place = |&index: &u32| places.get(index as usize).copied();
                let all: Option<Vec<u32>> = self.indices.iter().map(place).collect();
                all.ok_or_else(|| self.out_of_range(block, spendable))?
            }
            _ => std::mem::take(&mut self.indices),
        };
        self.indices = translated;
        let count = match to {
            IndexSpace::AllOutputs => block.spendable.len() as u32,
            IndexSpace::Spendable => spendable,
        };
        match self.indices.last() {
            Some(&last) if last >= count => Err(self.out_of_range(block, count)),
            _ => Ok(count),
        }
    }

    fn without_unspendable(&self, block: &OutputsOfBlock) -> Result<Vec<u32>, Failure> {
        let mut rank = 0;
        let ranks: Vec<Option<u32>> = block
            .spendable
            .iter()
            .map(|&yes| {
                rank += u32::from(yes);
                yes.then(|| rank - 1)
            })
            .collect();
        let mut kept = Vec::with_capacity(self.indices.len());
        for &index in &self.indices {
            match ranks.get(index as usize) {
                Some(Some(rank)) => kept.push(*rank),
                // A later block, with the same transaction id, creates the coin with this outpoint.
                Some(None) if block.coinbase_overwritten && index == 0 => {}
                Some(None) => {
                    return Err(Failure::wrong(format!(
                        "{}: the hints list output {index} of block {} as unspent, but that output is unspendable",
                        self.source.display(),
                        block.height
                    )));
                }
                None => return Err(self.out_of_range(block, block.spendable.len() as u32)),
            }
        }
        Ok(kept)
    }

    fn out_of_range(&self, block: &OutputsOfBlock, count: u32) -> Failure {
        Failure::wrong(format!(
            "{}: the hints of block {} name an output past the block's {count}: the hints were made for another \
             chain or are damaged",
            self.source.display(),
            block.height
        ))
    }

    fn finish(self) -> Result<(), Failure> {
        self.encoder.finish().map_err(|error| about(self.target, &error))
    }
}

fn encoder<'o>(
    to: TargetFormat,
    out: &'o mut BufWriter<Box<dyn StorageFile>>,
    stop: StopBlock,
    path: &Path,
) -> Result<Box<dyn HintsEncoder + 'o>, Failure> {
    let named = |error: HintsError| about(path, &error);
    let block = || {
        stop.block.ok_or_else(|| {
            Failure::usage(
                "this encoding stores the stop block: add --stop-block HASH, or --blocksdir DIR to find that block",
            )
        })
    };
    Ok(match to.format {
        Format::Bip456 => {
            let layout = Layout::FromHeightOne;
            let writer = HintsWriter::with(out, stop.height, to.order, layout).map_err(named)?;
            Box::new(writer)
        }
        Format::Btcd => Box::new(BtcdEncoder::new(out, stop.height).map_err(named)?),
        Format::Bitmap => Box::new(BitmapEncoder::new(out)),
        Format::Delta => Box::new(DeltaEncoder::new(out)),
        Format::Offsets => Box::new(OffsetsEncoder::new(out, &block()?).map_err(named)?),
        Format::OffsetsWithHeight => {
            return Err(Failure::usage(
                "Apus reads offsets-height but does not write it, because no known program still reads it: \
                 use bip456",
            ));
        }
    })
}
