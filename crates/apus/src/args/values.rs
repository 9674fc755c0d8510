//! Values of options that are more than a word or a number.

use crate::unpack::InputFile;
use apus_sync::OutputKind;
use apus_sync::engines::swiftsync::hints::BitOrder;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The challenge of a signet, in hexadecimal digits.
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
            "the challenge of a signet is a script in hexadecimal digits, two for each byte"
                .to_owned()
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
    /// The file, whatever it is.
    pub(crate) fn input(&self) -> &InputFile {
        match self {
            Self::File(input) | Self::Snapshot(input) => input,
        }
    }

    /// The file as the user calls it.
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
            None if text.is_empty() => Err("name a file".to_owned()),
            None => Ok(Self::File(text.into())),
        }
    }
}

/// `DIR` or `peer:HOST[:PORT]`.
#[cfg(feature = "utreexo")]
#[derive(Clone)]
pub(crate) enum ProofsArg {
    Folder(PathBuf),
    /// An address: which port is meant where none is named depends on the network.
    Peer(String),
}

#[cfg(feature = "utreexo")]
impl ProofsArg {
    /// The peer's address.
    pub(crate) const fn address(&self) -> Option<&str> {
        match self {
            Self::Peer(address) => Some(address.as_str()),
            Self::Folder(_) => None,
        }
    }
}

#[cfg(feature = "utreexo")]
impl FromStr for ProofsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("peer:") {
            Some("") => Err("peer: needs the address of a bridge node".to_owned()),
            Some(address) => Ok(Self::Peer(address.to_owned())),
            None if text.is_empty() => Err("name a folder, or a peer".to_owned()),
            None => Ok(Self::Folder(text.into())),
        }
    }
}

/// What the program knows of a file that a run makes of its set; [`FILE_FORMS`] has all.
#[derive(Debug)]
pub(crate) struct FileForm {
    pub(crate) kind: OutputKind,
    /// What stands before the colon in `--out`, and what the report calls it.
    pub(crate) name: &'static str,
    /// What a plan calls it.
    pub(crate) planned: &'static str,
    /// What the last lines of a run call it.
    pub(crate) written: &'static str,
    /// Bytes of a coin, about.
    pub(crate) coin_bytes: u64,
    /// What a coin takes of one core, in seconds, beside what a run takes in any case.
    pub(crate) coin_seconds: f64,
}

/// A UTXO snapshot.
pub(crate) static SNAPSHOT: FileForm = FileForm {
    kind: OutputKind::Snapshot,
    name: "snapshot",
    planned: "the snapshot",
    written: "a UTXO snapshot",
    // With a txid for each transaction: 43 where a transaction has many, 70 on a chain of the first years.
    coin_bytes: 60,
    // So little that what a run takes in any case has room for it.
    coin_seconds: 0.0,
};

/// A hintsfile.
static HINTS: FileForm = FileForm {
    kind: OutputKind::Hints,
    name: "hints",
    planned: "hints",
    written: "hints",
    coin_bytes: 1,
    coin_seconds: 0.0,
};

/// All files that a run makes of its set: what `--out` takes, its help, `apus plan` and the report go by them.
static FILE_FORMS: [&FileForm; 2] = [&SNAPSHOT, &HINTS];

/// A file out of [`FILE_FORMS`], `utreexo:FILE`, `chainstate:DIR`, `datadir:DIR` or `null`.
#[derive(Clone)]
pub(crate) enum SinkArg {
    File(&'static FileForm, PathBuf),
    Utreexo(PathBuf),
    Chainstate(PathBuf),
    Datadir(PathBuf),
    Null,
}

impl SinkArg {
    /// The file or folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(_, path)
            | Self::Utreexo(path)
            | Self::Chainstate(path)
            | Self::Datadir(path) => Some(path),
            Self::Null => None,
        }
    }
}

impl FromStr for SinkArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, path)) = text.split_once(':')
            && !path.is_empty()
            && let Some(form) = FILE_FORMS.into_iter().find(|form| form.name == name)
        {
            return Ok(Self::File(form, path.into()));
        }
        match text.split_once(':') {
            Some(("utreexo", path)) if !path.is_empty() => match crate::spelling::lacking(text) {
                Some(why) => Err(why),
                None => Ok(Self::Utreexo(path.into())),
            },
            Some(("chainstate", path)) if !path.is_empty() => Ok(Self::Chainstate(path.into())),
            Some(("datadir", path)) if !path.is_empty() => Ok(Self::Datadir(path.into())),
            None if text == "null" => Ok(Self::Null),
            _ => {
                let files: String =
                    FILE_FORMS.iter().map(|form| format!("{}:FILE, ", form.name)).collect();
                Err(format!("use {files}utreexo:FILE, chainstate:DIR, datadir:DIR or null"))
            }
        }
    }
}

/// The help of `apus sync --out`.
pub(super) fn out_help() -> String {
    let files: String = FILE_FORMS.iter().map(|form| format!("`{}:FILE`, ", form.name)).collect();
    format!(
        "snapshot:FILE, chainstate:DIR, datadir:DIR and more\n\n\
         What to write: {files}`utreexo:FILE` (the roots of the Utreexo forest), `chainstate:DIR` (Bitcoin Core's \
         coins), `datadir:DIR` (blocks, index, coins, and undo data of all blocks without hints, for Bitcoin Core to \
         start on) or `null`; may be given more than once."
    )
}

/// What `--dbcache` may be.
const MIB: RangeInclusive<u64> = 4..=1 << 20;

/// An address to listen at. A port alone could mean all machines or this one alone, which are
/// far apart, so it is refused.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.parse::<u16>() {
        Ok(0 | 1) => "name where to listen, as 0.0.0.0:8333 for all machines that can reach this \
                      one; without --listen no peer is let in"
            .to_owned(),
        Ok(port) => format!(
            "which machines is it for? 127.0.0.1:{port} is for this one alone, 0.0.0.0:{port} for \
             all that can reach it"
        ),
        Err(_) => "an address and a port are needed, as 0.0.0.0:8333 or [::]:8333 for all \
                   machines that can reach this one, 127.0.0.1:8333 for itself alone"
            .to_owned(),
    })
}

/// An address for browsers. A name is refused: it may stand for several addresses, and who reaches which of them can
/// be far apart.
#[cfg(feature = "web")]
pub(super) fn parse_web(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, "127.0.0.1:8337")
}

/// The address of a proxy.
pub(crate) fn parse_proxy(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, "127.0.0.1:9050")
}

fn parse_address(text: &str, example: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("an IP address and a port are needed, as {example}"))
}

/// Memory in MiB.
pub(crate) fn parse_mib(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|mib| MIB.contains(mib)).ok_or_else(|| {
        format!("a whole number of MiB is needed, as 2000, from {} to {}", MIB.start(), MIB.end())
    })
}

/// The bit order of a hintsfile.
pub(super) fn parse_order(text: &str) -> Result<BitOrder, String> {
    text.parse().map_err(
        |error: apus_sync::engines::swiftsync::hints::elias_fano::UnknownBitOrder| {
            error.to_string()
        },
    )
}
