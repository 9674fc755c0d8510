//! `apus hints`: inspects, checks and converts hints.

mod convert;

use crate::args::{HintsArgs, HintsCheckArgs, HintsCommand, HintsInfoArgs, SourceFormat};
use crate::failure::{Failure, option_for};
use crate::files::Content;
use crate::machine::watch_signals;
use crate::print;
use crate::report::{bytes, grouped};
use crate::sync::{NOT_ASKED, RunJob, prove};
use crate::unpack::InputFile;
use apus_chain::{Height, HeightRange};
use apus_sync::engines::swiftsync::hints::bitmap::BitmapDecoder;
use apus_sync::engines::swiftsync::hints::btcd::BtcdDecoder;
use apus_sync::engines::swiftsync::hints::delta::DeltaDecoder;
use apus_sync::engines::swiftsync::hints::offsets::OffsetsDecoder;
use apus_sync::engines::swiftsync::hints::{
    BitOrder, Format, HintsDecoder, HintsError, HintsErrorKind, HintsFile, HintsOptions,
    OrderEvidence,
};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Runs `apus hints`.
pub(crate) fn command(args: &HintsArgs) -> Result<(), Failure> {
    match &args.command {
        HintsCommand::Info(args) => info(args),
        HintsCommand::Check(args) => check(args),
        HintsCommand::Convert(args) => convert::command(args),
    }
}

/// Lines of CSV are written when they take this many bytes.
const LINES_BYTES: usize = 1 << 16;

/// Creates the failure for an error of hints, with the name of their file.
fn about(path: &Path, error: &HintsError) -> Failure {
    let message = format!("{}: {error}{}", path.display(), option_for(error));
    match error.kind() {
        HintsErrorKind::Invalid => Failure::wrong(message),
        HintsErrorKind::Io => Failure::new(crate::failure::IO, message),
    }
}

/// Returns the bit order, if either option gives it.
fn order_of(
    from: Option<SourceFormat>,
    order: Option<BitOrder>,
) -> Result<Option<BitOrder>, Failure> {
    match (from.and_then(|from| from.order), order) {
        (Some(named), Some(given)) if named != given => Err(Failure::usage(
            "--from bip456-lsb means --hints-order lsb: leave out --hints-order",
        )),
        (named, given) => Ok(named.or(given)),
    }
}

/// Returns the encoding of a file: the one the user gave, or else detected from its first bytes.
fn format_of(input: &InputFile, given: Option<SourceFormat>) -> Result<Format, Failure> {
    let name = input.named().display();
    match (Content::of(input)?, given.map(|given| given.format)) {
        (_, Some(format)) | (Content::Hints(format), None) => Ok(format),
        (Content::Snapshot, None) => Err(Failure::usage(format!(
            "{name} is a UTXO snapshot, not hints: see `apus snapshot info`, or make hints from it \
             with `apus sync --hints snapshot:{name} --out hints:FILE`"
        ))),
        (Content::Unknown, None) => Err(Failure::wrong(format!(
            "{name}: the first bytes show no known encoding of hints. If the encoding has no magic number, add \
             --from bitmap (or delta, offsets, offsets-height)"
        ))),
    }
}

fn open_bip456(input: &InputFile, order: Option<BitOrder>) -> Result<HintsFile, Failure> {
    let options = HintsOptions { order, ..HintsOptions::default() };
    HintsFile::open_path(input.path(), &options).map_err(|error| about(input.named(), &error))
}

/// Opens a decoder for a file.
fn decoder(
    input: &InputFile,
    format: Format,
    order: Option<BitOrder>,
) -> Result<Box<dyn HintsDecoder>, Failure> {
    let named = |error| about(input.named(), &error);
    let file = File::open(input.path()).map_err(|error| Failure::opening(input.named(), &error))?;
    let reader = BufReader::with_capacity(1 << 18, file);
    Ok(match format {
        Format::Bip456 => {
            let file = open_bip456(input, order)?;
            let heights = HeightRange::new(1, file.info().stop_height + 1);
            Box::new(file.range(heights).map_err(named)?)
        }
        Format::Btcd => Box::new(BtcdDecoder::new(reader).map_err(named)?),
        Format::Bitmap => Box::new(BitmapDecoder::new(reader)),
        Format::Delta => Box::new(DeltaDecoder::new(reader)),
        Format::Offsets => Box::new(OffsetsDecoder::plain(reader).map_err(named)?),
        Format::OffsetsWithHeight => Box::new(OffsetsDecoder::with_height(reader).map_err(named)?),
    })
}

/// Totals of one pass over hints in any encoding.
struct Census {
    /// The last height; `None` without blocks.
    stop_height: Option<Height>,
    coins: u64,
    /// Number of outputs; `None` if the encoding does not store it.
    outputs: Option<u64>,
}

fn census(path: &Path, decoder: &mut dyn HintsDecoder) -> Result<Census, Failure> {
    let mut census = Census { stop_height: None, coins: 0, outputs: Some(0) };
    let mut indices = Vec::new();
    while let Some(block) = decoder.next_block(&mut indices).map_err(|e| about(path, &e))? {
        census.stop_height = Some(block.height);
        census.coins += indices.len() as u64;
        census.outputs = census.outputs.zip(block.outputs).map(|(sum, n)| sum + u64::from(n));
    }
    Ok(census)
}

fn info(args: &HintsInfoArgs) -> Result<(), Failure> {
    let (input, path) = (&args.file, args.file.named());
    let order = order_of(args.from, args.hints_order)?;
    let interrupt = watch_signals()?;
    input.make_plain(&std::env::temp_dir(), &interrupt)?;
    let format = format_of(input, args.from)?;
    let length = input.path().metadata().map_err(|error| Failure::io(path, error))?.len();
    let mut rows = vec![("file", path.display().to_string()), ("format", format.to_string())];
    let mut reading = decoder(input, format, order)?;
    if args.by_height {
        return by_height(path, &mut *reading);
    }
    if format == Format::Bip456 {
        let file = open_bip456(input, order)?;
        let info = file.info();
        let evidence = match info.order_evidence {
            OrderEvidence::Given => "as given".to_owned(),
            OrderEvidence::Settled(height) => format!("determined by block {height}"),
            OrderEvidence::Irrelevant => "both orders mean the same for this file".to_owned(),
        };
        rows.push(("bit order", format!("{}, {evidence}", info.order)));
        rows.push(("elements from", format!("height {}", info.layout.start_height())));
    }
    let stop_block = reading.stop_block();
    let found = census(path, &mut *reading)?;
    let stop = found.stop_height.map_or_else(|| "none".to_owned(), |height| height.to_string());
    rows.push(("heights", format!("{} to {stop}", format.start_height())));
    rows.push((
        "stop block",
        stop_block.map_or_else(
            || {
                "not stored in this encoding: `apus hints check` shows whether the hints fit a chain"
                    .to_owned()
            },
            |hash| hash.to_string(),
        ),
    ));
    rows.push(("coins", grouped(found.coins)));
    rows.push(("bytes", format!("{} ({})", grouped(length), bytes(length))));
    let per = |things: u64| format!("{:.3}", 8.0 * length as f64 / things as f64);
    if found.coins > 0 {
        rows.push(("bits per coin", per(found.coins)));
    }
    rows.push((
        "bits per output",
        match args.outputs.or(found.outputs).filter(|&n| n > 0) {
            Some(outputs) => format!("{} ({} outputs)", per(outputs), grouped(outputs)),
            None => "unknown: add --outputs, or run `apus hints check`, which counts the outputs"
                .to_owned(),
        },
    ));
    for (name, value) in rows {
        print::result(format_args!("{name:<16} {value}"))?;
    }
    Ok(())
}

/// Writes the counts of each block as CSV.
fn by_height(path: &Path, decoder: &mut dyn HintsDecoder) -> Result<(), Failure> {
    let (mut indices, mut lines) = (Vec::new(), "height,coins,outputs".to_owned());
    while let Some(block) = decoder.next_block(&mut indices).map_err(|e| about(path, &e))? {
        let outputs = block.outputs.map(|outputs| outputs.to_string()).unwrap_or_default();
        if lines.len() > LINES_BYTES {
            print::result(std::mem::take(&mut lines))?;
        } else {
            lines.push('\n');
        }
        lines.push_str(&format!("{},{},{outputs}", block.height, indices.len()));
    }
    print::result(lines)
}

fn check(args: &HintsCheckArgs) -> Result<(), Failure> {
    let report = prove(&RunJob::proof(
        &args.source,
        &args.hints,
        args.hints_order,
        args.proof.aggregate,
        &args.run,
    ))?;
    print::result(&report)?;
    print::result("")?;
    print::result(format_args!(
        "The hints fit the blocks up to {} ({}). {NOT_ASKED}",
        report.stop_height, report.stop_hash
    ))?;
    if let Some(hints) = &report.hints {
        print::result(format_args!(
            "Bit order: {}; elements from height {}.",
            hints.bit_order, hints.start_height
        ))?;
        if let Some(bits) = hints.bits_per_output {
            let outputs = grouped(report.outputs);
            print::result(format_args!("{bits:.3} bits per output, of {outputs} in the chain."))?;
        }
    }
    Ok(())
}
