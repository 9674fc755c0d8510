//! [`TableFormat`] and [`TableColumns`]: the file formats of a table, and its columns.

use crate::address::{AddressKinds, write_address};
use apus_chain::ScriptType;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of the table.
#[cfg(any(feature = "parquet", feature = "sqlite"))]
pub(crate) const TABLE: &str = "utxos";

/// A file format for a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFormat {
    /// Comma-separated values: text, with a header line.
    Csv,
    /// An SQLite database.
    Sqlite,
    /// Apache Parquet.
    Parquet,
}

impl TableFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Csv, Self::Sqlite, Self::Parquet];

    /// Returns the format's name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Sqlite => "sqlite",
            Self::Parquet => "parquet",
        }
    }

    /// Returns the path of the second file that a table at `path` has: the [facts](crate::TableFacts) of a CSV.
    pub fn facts_path(self, path: &Path) -> Option<PathBuf> {
        let mut facts = path.as_os_str().to_owned();
        facts.push(".json");
        (self == Self::Csv).then(|| facts.into())
    }

    /// Returns whether this build writes the format.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Csv => true,
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Parquet => cfg!(feature = "parquet"),
        }
    }
}

impl fmt::Display for TableFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TableFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| "the formats are csv, sqlite and parquet".to_owned())
    }
}

/// The columns of a table beyond Core's, and the form of txids and scripts. By default, the table is Core's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableColumns {
    /// Txids and scripts as bytes, not as hexadecimal digits. Txids have the order of bytes in which they are shown.
    /// CSV has no bytes.
    pub raw: bool,
    /// The column `type`: the script's type, as Core names it.
    pub kind: bool,
    /// The column `address`: null for scripts without address.
    pub address: bool,
}

/// The values of the columns that are computed from a script.
pub(crate) struct ScriptColumns {
    columns: TableColumns,
    kinds: AddressKinds,
    address: Vec<u8>,
}

impl ScriptColumns {
    pub(crate) fn new(columns: TableColumns, kinds: AddressKinds) -> Self {
        Self { columns, kinds, address: Vec::new() }
    }

    /// Returns the names of the table's columns, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let TableColumns { kind, address, .. } = self.columns;
        let core = ["txid", "vout", "value", "coinbase", "height", "scriptpubkey"];
        core.into_iter().chain(kind.then_some("type")).chain(address.then_some("address"))
    }

    /// Whether txids and scripts are bytes.
    #[cfg(any(feature = "parquet", feature = "sqlite"))]
    pub(crate) fn raw(&self) -> bool {
        self.columns.raw
    }

    /// Whether the table has the column `type`.
    #[cfg(feature = "parquet")]
    pub(crate) fn has_kind(&self) -> bool {
        self.columns.kind
    }

    /// Whether the table has the column `address`.
    pub(crate) fn has_address(&self) -> bool {
        self.columns.address
    }

    /// Computes the type and the address of a script. Each is `None` if the table lacks the column; the address also if
    /// the script has none.
    pub(crate) fn of(&mut self, script: &[u8]) -> (Option<ScriptType>, Option<&str>) {
        let TableColumns { kind, address, .. } = self.columns;
        if !kind && !address {
            return (None, None);
        }
        let of_script = ScriptType::of(script);
        self.address.clear();
        let has_address =
            address && write_address(&mut self.address, self.kinds, of_script, script);
        let address =
            has_address.then(|| str::from_utf8(&self.address).expect("addresses are ASCII"));
        (kind.then_some(of_script), address)
    }
}
