//! Arguments of `apus snapshot export` and `apus snapshot find`.

use crate::unpack::InputFile;
use apus_chain::Network;
use apus_tables::{KeyRange, TableFormat};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// The set to read, and its chain.
#[derive(Args)]
pub(crate) struct SetArgs {
    /// Snapshot file, chainstate folder, or data directory of a node
    #[arg(value_name = "SNAPSHOT|CHAINSTATE|DATADIR")]
    pub(crate) set: InputFile,

    /// Which chain: main, test, testnet4, signet or regtest. By default, Apus detects it. A chainstate without the
    /// node's blocks beside it does not say its chain: then give it, and Apus cannot check it
    #[arg(long)]
    pub(crate) chain: Option<Network>,
}

const EXPORT_HELP: &str = "\
The table `utxos` has a row for each coin: txid, vout, value in satoshi,
coinbase (0 or 1), height, scriptpubkey. The page docs/tables.md has queries.

Examples:
  An SQLite database, for the queries of Bitcoin Core's utxo_to_sqlite.py:
    apus snapshot export utxo.dat --to sqlite:utxos.sqlite

  A Parquet file with types and addresses, from a stopped node:
    apus snapshot export ~/.bitcoin --to parquet:utxos.parquet --type --address

  CSV for another program:
    apus snapshot export utxo.dat --to - | head";

#[derive(Args)]
#[command(after_long_help = EXPORT_HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) set: SetArgs,

    /// Table to write: csv:FILE, sqlite:FILE or parquet:FILE; or - for CSV to standard output
    #[arg(long, value_name = "TABLE")]
    pub(crate) to: ExportTarget,

    /// Replace an existing table, which stays until the new one is complete
    #[arg(long)]
    pub(crate) replace: bool,

    /// Write txids and scripts as bytes: SQLite then takes half the space. Not for CSV
    #[arg(long)]
    pub(crate) raw: bool,

    /// Add the column `type`, with Bitcoin Core's names of script types
    #[arg(long = "type")]
    pub(crate) kind: bool,

    /// Add the column `address`
    #[arg(long)]
    pub(crate) address: bool,
}

/// `FORMAT:FILE`, or `-`.
#[derive(Clone)]
pub(crate) enum ExportTarget {
    Table(TableFormat, PathBuf),
    /// CSV to standard output.
    Stream,
}

impl FromStr for ExportTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "use csv:FILE, sqlite:FILE, parquet:FILE or -".to_owned();
        match text.split_once(':') {
            None if text == "-" => Ok(Self::Stream),
            Some(("csv", "-")) => Ok(Self::Stream),
            Some((_, "" | "-")) | None => Err(expected()),
            Some((format, path)) => {
                let format: TableFormat = format.parse().map_err(|_| expected())?;
                if let Some(why) = crate::spelling::lacking(format.name()) {
                    return Err(why);
                }
                Ok(Self::Table(format, path.into()))
            }
        }
    }
}

const FIND_HELP: &str = "\
Finds coins as Bitcoin Core's scantxoutset does, also without a node. It takes
addresses, scripts in hexadecimal digits, and output descriptors: addr(), raw(),
pk(), pkh(), wpkh(), combo(), multi(), sortedmulti(), sh(), wsh(), tr(), rawtr().
Put descriptors in quotes. A `*` in a descriptor stands for the indices of
--range.

Examples:
  apus snapshot find utxo.dat bc1q…
  apus snapshot find ~/.bitcoin 'wpkh(xpub…/0/*)' --range 5000 --json
  apus snapshot find utxo.dat --from addresses.txt";

#[derive(Args)]
#[command(after_long_help = FIND_HELP)]
pub(crate) struct FindArgs {
    #[command(flatten)]
    pub(crate) set: SetArgs,

    /// Addresses, scripts and descriptors to find
    #[arg(value_name = "ADDRESS|SCRIPT|DESCRIPTOR", required_unless_present = "from")]
    pub(crate) queries: Vec<String>,

    /// File with more of them, one per line. Apus ignores empty lines, and lines that begin with #
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,

    /// Indices for `*` in descriptors: the last, or [FIRST-LAST]
    #[arg(long, value_name = "RANGE", default_value = "1000")]
    pub(crate) range: KeyRange,

    /// Print JSON with the fields of scantxoutset
    #[arg(long)]
    pub(crate) json: bool,
}
