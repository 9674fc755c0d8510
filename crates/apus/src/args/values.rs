//! Option values with a syntax of their own, and their parsers.

use crate::unpack::InputFile;
#[cfg(feature = "utreexo")]
use apus_proofs::RootsBlock;
use apus_sync::OutputKind;
use apus_sync::engines::swiftsync::hints::BitOrder;
#[cfg(feature = "tables")]
use apus_tables::TableFormat;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The challenge of a signet, given in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChallengeArg(pub(crate) Vec<u8>);

impl FromStr for ChallengeArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let byte = |pair: &[u8]| {
            let digits = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
            u8::from_str_radix(digits, 16).ok()
        };
        let is_hex = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.filter(|_| is_hex).map(Self).ok_or_else(|| {
            "a signet challenge is a script in hexadecimal digits, two per byte".to_owned()
        })
    }
}

/// `FILE` or `snapshot:FILE`.
#[derive(Clone)]
pub(crate) enum HintsArg {
    File(InputFile),
    Snapshot(InputFile),
}

impl HintsArg {
    /// The hints or snapshot file.
    pub(crate) fn input(&self) -> &InputFile {
        match self {
            Self::File(input) | Self::Snapshot(input) => input,
        }
    }

    /// The file's name as the user gave it.
    pub(crate) fn named(&self) -> &Path {
        self.input().named()
    }
}

impl FromStr for HintsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("snapshot:") {
            Some("") => Err("snapshot: needs the name of a file".to_owned()),
            Some(path) => Ok(Self::Snapshot(path.into())),
            None if text.is_empty() => Err("give a file".to_owned()),
            None => Ok(Self::File(text.into())),
        }
    }
}

/// `DIR`, `peer:HOST[:PORT]` or `peers`.
#[cfg(feature = "utreexo")]
#[derive(Clone)]
pub(crate) enum ProofsArg {
    Folder(PathBuf),
    /// An address. Its default port depends on the network.
    Peer(String),
    /// Bridges among the peers that give the blocks.
    Peers,
}

#[cfg(feature = "utreexo")]
impl ProofsArg {
    /// The peer's address.
    pub(crate) const fn address(&self) -> Option<&str> {
        match self {
            Self::Peer(address) => Some(address.as_str()),
            Self::Folder(_) | Self::Peers => None,
        }
    }

    /// Whether it stands for nodes on the network.
    pub(crate) const fn is_of_peers(&self) -> bool {
        !matches!(self, Self::Folder(_))
    }
}

#[cfg(feature = "utreexo")]
impl FromStr for ProofsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("peer:") {
            Some("") => Err("peer: needs the address of a bridge node".to_owned()),
            Some(address) => Ok(Self::Peer(address.to_owned())),
            None if text.is_empty() => Err("give a folder or a peer".to_owned()),
            None if text == "peers" => Ok(Self::Peers),
            None => Ok(Self::Folder(text.into())),
        }
    }
}

/// `FILE@BLOCK`: a file of roots, and the block that they belong to.
#[cfg(feature = "utreexo")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootsArg {
    pub(crate) path: PathBuf,
    pub(crate) block: RootsBlock,
}

#[cfg(feature = "utreexo")]
impl FromStr for RootsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let lacking = || {
            format!(
                "a file of roots does not name its block: add its hash or height, as in {}@900000. The run that wrote \
                 the file said both",
                text.trim_end_matches('@')
            )
        };
        let (path, block) = text.rsplit_once('@').ok_or_else(lacking)?;
        if path.is_empty() {
            return Err("give the file before the @".to_owned());
        }
        let is_number = block.bytes().all(|byte| byte.is_ascii_digit());
        let block = match block.parse() {
            Ok(height) if is_number => RootsBlock::Height(height),
            _ => RootsBlock::Hash(block.parse().map_err(|_| lacking())?),
        };
        Ok(Self { path: path.into(), block })
    }
}

/// What writes a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileKind {
    /// The sync itself.
    Output(OutputKind),
    /// The crate for tables.
    #[cfg(feature = "tables")]
    Table(TableFormat),
}

/// A kind of file that a run can write from its set; [`FILE_FORMS`] lists all.
#[derive(Debug)]
pub(crate) struct FileForm {
    pub(crate) kind: FileKind,
    /// Name in `--out`, before the colon, and in the report.
    pub(crate) name: &'static str,
    /// Name in a plan.
    pub(crate) planned: &'static str,
    /// Name in the result that a run prints.
    pub(crate) written: &'static str,
    /// Approximate bytes per coin.
    pub(crate) coin_bytes: u64,
    /// Seconds of one core per coin, in addition to the cost of every run.
    pub(crate) coin_seconds: f64,
}

/// A UTXO snapshot.
pub(crate) static SNAPSHOT: FileForm = FileForm {
    kind: FileKind::Output(OutputKind::Snapshot),
    name: "snapshot",
    planned: "the snapshot",
    written: "a UTXO snapshot",
    // Each transaction's txid is stored once: 43 bytes per coin if transactions have many coins, 70 on a chain of the
    // first years.
    coin_bytes: 60,
    // Negligible compared with the cost of every run.
    coin_seconds: 0.0,
};

/// A hintsfile.
static HINTS: FileForm = FileForm {
    kind: FileKind::Output(OutputKind::Hints),
    name: "hints",
    planned: "hints",
    written: "hints",
    coin_bytes: 1,
    coin_seconds: 0.0,
};

/// A table as CSV.
#[cfg(feature = "tables")]
static CSV: FileForm = FileForm {
    kind: FileKind::Table(TableFormat::Csv),
    name: "csv",
    planned: "the table",
    written: "the UTXO set as a CSV table, with its facts in a .json file beside it",
    coin_bytes: 140,
    coin_seconds: 0.3e-6,
};

/// A table in an SQLite database.
#[cfg(feature = "sqlite")]
static SQLITE: FileForm = FileForm {
    kind: FileKind::Table(TableFormat::Sqlite),
    name: "sqlite",
    planned: "the database",
    written: "the UTXO set as an SQLite database",
    coin_bytes: 140,
    coin_seconds: 0.6e-6,
};

/// A table in Parquet.
#[cfg(feature = "parquet")]
static PARQUET: FileForm = FileForm {
    kind: FileKind::Table(TableFormat::Parquet),
    name: "parquet",
    planned: "the table",
    written: "the UTXO set as a Parquet table",
    coin_bytes: 55,
    coin_seconds: 0.4e-6,
};

/// All kinds of file that a run can write from its set. `--out`, its help, `apus plan` and the report use this list.
static FILE_FORMS: &[&FileForm] = &[
    &SNAPSHOT,
    &HINTS,
    #[cfg(feature = "tables")]
    &CSV,
    #[cfg(feature = "sqlite")]
    &SQLITE,
    #[cfg(feature = "parquet")]
    &PARQUET,
];

/// A file of [`FILE_FORMS`], `utreexo:FILE`, `sighints:FILE`, `stats:FILE`, `chainstate:DIR`, `datadir:DIR`, `coins:URL` or
/// `null`.
#[derive(Clone)]
pub(crate) enum SinkArg {
    File(&'static FileForm, PathBuf),
    Utreexo(PathBuf),
    SignatureHints(PathBuf),
    /// The chain in numbers.
    Stats(PathBuf),
    Chainstate(PathBuf),
    Datadir(PathBuf),
    /// The whole value, `coins:URL` or a URL alone, not parsed yet: clap would quote an invalid one, which may contain a
    /// password.
    Coins(String),
    Null,
}

impl SinkArg {
    /// The file, if the output is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(_, path)
            | Self::Utreexo(path)
            | Self::SignatureHints(path)
            | Self::Stats(path) => Some(path),
            _ => None,
        }
    }

    /// Whether `--replace` is for this output.
    pub(crate) fn is_replaced(&self) -> bool {
        match self {
            #[cfg(feature = "tables")]
            Self::File(FileForm { kind: FileKind::Table(_), .. }, _) => true,
            Self::Stats(_) | Self::Chainstate(_) => true,
            _ => false,
        }
    }

    /// The second file of an output: the facts about the set in a CSV.
    pub(crate) fn beside(&self) -> Option<PathBuf> {
        match self {
            #[cfg(feature = "tables")]
            Self::File(FileForm { kind: FileKind::Table(format), .. }, path) => {
                format.facts_path(path)
            }
            _ => None,
        }
    }

    /// The file or folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(_, path)
            | Self::Utreexo(path)
            | Self::SignatureHints(path)
            | Self::Stats(path)
            | Self::Chainstate(path)
            | Self::Datadir(path) => Some(path),
            Self::Coins(_) | Self::Null => None,
        }
    }

    /// Says why the output is refused, if it is. The text does not quote it.
    pub(crate) fn refusal(&self) -> Option<String> {
        let Self::Coins(text) = self else { return None };
        let bare = || match text.starts_with(COINS) {
            true => None,
            false => Some("a URL alone is no output: write coins:URL for a store".to_owned()),
        };
        crate::spelling::lacking(COINS).or_else(bare)
    }
}

/// The beginning of an output to a store.
const COINS: &str = "coins:";

#[cfg(feature = "remote-coins")]
impl SinkArg {
    /// The URL of a store for the set.
    pub(crate) fn store_url(&self) -> Option<&str> {
        match self {
            Self::Coins(text) => text.strip_prefix(COINS),
            _ => None,
        }
    }
}

impl FromStr for SinkArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name @ ("csv" | "sqlite" | "parquet"), "-")) = text.split_once(':') {
            return Err(format!(
                "a sync writes tables to files: use {name}:FILE. For standard output, write snapshot:FILE, then run \
                 `apus snapshot export FILE --to -`"
            ));
        }
        if let Some((name, path)) = text.split_once(':')
            && !path.is_empty()
            && let Some(form) = FILE_FORMS.iter().find(|form| form.name == name)
        {
            return Ok(Self::File(form, path.into()));
        }
        match text.split_once(':') {
            Some(("utreexo", path)) if !path.is_empty() => match crate::spelling::lacking(text) {
                Some(why) => Err(why),
                None => Ok(Self::Utreexo(path.into())),
            },
            Some(("sighints", path)) if !path.is_empty() => Ok(Self::SignatureHints(path.into())),
            Some(("stats", path)) if !path.is_empty() => Ok(Self::Stats(path.into())),
            Some(("chainstate", path)) if !path.is_empty() => Ok(Self::Chainstate(path.into())),
            Some(("datadir", path)) if !path.is_empty() => Ok(Self::Datadir(path.into())),
            Some(("coins", url)) if !url.is_empty() => Ok(Self::Coins(text.to_owned())),
            Some((_, rest)) if rest.starts_with("//") => Ok(Self::Coins(text.to_owned())),
            None if text == "null" => Ok(Self::Null),
            Some(("csv" | "sqlite" | "parquet", _)) if crate::spelling::lacking(text).is_some() => {
                Err(crate::spelling::lacking(text).unwrap_or_default())
            }
            _ => {
                let files: String =
                    FILE_FORMS.iter().map(|form| format!("{}:FILE, ", form.name)).collect();
                Err(format!(
                    "use {files}utreexo:FILE, sighints:FILE, stats:FILE, chainstate:DIR, datadir:DIR, coins:URL or null"
                ))
            }
        }
    }
}

/// The help of `apus sync --out`.
pub(super) fn out_help() -> String {
    let files: String = FILE_FORMS.iter().map(|form| format!("`{}:FILE`, ", form.name)).collect();
    format!(
        "snapshot:FILE, chainstate:DIR, datadir:DIR and more\n\n\
         What to write: {files}`utreexo:FILE` (the roots of the Utreexo forest), `sighints:FILE` (hints about the \
         signatures of all scripts that are run, for `--sighints` of a later command), `stats:FILE` (the chain in numbers, \
         a row for each block: Parquet if FILE ends in .parquet, otherwise CSV; it needs datadir:DIR, or undo data in \
         --blocksdir), `chainstate:DIR` (Bitcoin Core's \
         coins), `datadir:DIR` (blocks, undo data, index and coins, for Bitcoin Core to start on; with blocks from \
         peers and hints, undo data only for the last 288 blocks and for blocks above the hints), `coins:URL` (the set \
         on Redis or PostgreSQL servers, see `--coins`) or `null`; may be repeated."
    )
}

/// Parses the only output of `apus verify`.
pub(super) fn parse_sighints(text: &str) -> Result<PathBuf, String> {
    match text.parse() {
        Ok(SinkArg::SignatureHints(path)) => Ok(path),
        _ => Err("use sighints:FILE".to_owned()),
    }
}

/// Valid values of `--dbcache`.
const MIB: RangeInclusive<u64> = 4..=1 << 20;

/// Parses an address to listen at. Refuses a port alone, which does not say whether all machines or only this one may
/// connect.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.parse::<u16>() {
        Ok(0 | 1) => "give an address, such as 0.0.0.0:8333 for all machines that can reach this machine. Without \
            --listen, Apus accepts no peers"
            .to_owned(),
        Ok(port) => format!(
            "which machines may connect? Use 127.0.0.1:{port} for this machine only, or 0.0.0.0:{port} for all \
             that can reach it"
        ),
        Err(_) => "give an address and a port, such as 0.0.0.0:8333 or [::]:8333 for all machines that can reach \
            this machine, or 127.0.0.1:8333 for this machine only"
            .to_owned(),
    })
}

/// Parses an address for browsers. Refuses a name, which may resolve to several addresses that different machines can
/// reach.
#[cfg(feature = "web")]
pub(super) fn parse_web(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, "127.0.0.1:8337")
}

/// Parses the address of a proxy.
pub(crate) fn parse_proxy(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, "127.0.0.1:9050")
}

fn parse_address(text: &str, example: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("give an IP address and a port, such as {example}"))
}

/// Parses an amount of memory in MiB.
pub(crate) fn parse_mib(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|mib| MIB.contains(mib)).ok_or_else(|| {
        format!("give a whole number of MiB, such as 2000, from {} to {}", MIB.start(), MIB.end())
    })
}

/// Parses a size on disk: a number of bytes, or of thousands, millions and so on with a letter.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let units = [('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000), ('T', 1_000_000_000_000)];
    let unit = units.iter().find(|(letter, _)| text.to_ascii_uppercase().ends_with(*letter));
    let (digits, unit) = match unit {
        Some((_, unit)) => (&text[..text.len() - 1], *unit),
        None => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "give a size, such as 64G or 500M".to_owned())
}

/// Parses the bit order of a hintsfile.
pub(super) fn parse_order(text: &str) -> Result<BitOrder, String> {
    text.parse().map_err(
        |error: apus_sync::engines::swiftsync::hints::elias_fano::UnknownBitOrder| {
            error.to_string()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_quotes_no_url_of_an_output() {
        let url = "redis://u:hidden@h/x";
        let alone: SinkArg = url.parse().unwrap();
        let why = alone.refusal().unwrap();
        assert!(why.contains("coins") && !why.contains("hidden"), "{why}");
        let named: SinkArg = format!("coins:{url}").parse().unwrap();
        assert_eq!(named.refusal().is_none(), cfg!(feature = "remote-coins"));
        #[cfg(feature = "remote-coins")]
        assert_eq!((named.store_url(), alone.store_url()), (Some(url), None));
        assert!("coins:".parse::<SinkArg>().is_err());
    }
}
