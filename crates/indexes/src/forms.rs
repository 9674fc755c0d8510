//! [`IndexKind`]: an index by Core's name. [`IndexForm`]: the form of it that a version of the node reads.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An optional index, by the name of Core's option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexKind {
    /// `-txindex`: the place of each transaction.
    TxIndex,
    /// `-blockfilterindex`: the compact filter of each block (BIP-157, BIP-158).
    BlockFilterIndex,
    /// `-coinstatsindex`: the statistics of the UTXO set after each block.
    CoinStatsIndex,
    /// `-txospenderindex`: the transaction that spends each output; since version 31.
    TxoSpenderIndex,
}

impl IndexKind {
    /// All indexes.
    pub const ALL: [Self; 4] =
        [Self::TxIndex, Self::BlockFilterIndex, Self::CoinStatsIndex, Self::TxoSpenderIndex];

    /// Returns the name of Core's option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TxIndex => "txindex",
            Self::BlockFilterIndex => "blockfilterindex",
            Self::CoinStatsIndex => "coinstatsindex",
            Self::TxoSpenderIndex => "txospenderindex",
        }
    }

    /// Returns whether it is made from the coins that blocks spend, and so needs the node's undo data.
    pub const fn needs_undo(self) -> bool {
        matches!(self, Self::BlockFilterIndex | Self::CoinStatsIndex)
    }
}

impl Display for IndexKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for IndexKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("use {}, or all", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A version of Bitcoin Core that indexes are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeVersion {
    /// Version 29 and earlier.
    V29,
    /// Version 30.
    V30,
    /// Version 31.
    V31,
    /// Core's master branch since August 2026.
    Master,
}

impl NodeVersion {
    const ALL: [(&'static str, Self); 4] =
        [("29", Self::V29), ("30", Self::V30), ("31", Self::V31), ("master", Self::Master)];
}

impl FromStr for NodeVersion {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, version)| version).ok_or("use 29, 30, 31 or master")
    }
}

impl Display for NodeVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.into_iter().find(|(_, version)| version == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// A form of an index: what is in one folder below `indexes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IndexForm {
    /// txindex with whole txids, of all versions up to 31. Later ones start on it too, and add new blocks in
    /// their own form.
    TxIndex,
    /// txindex with salted prefixes of txids (Core's pull request 35531), which takes 40 percent of the bytes.
    /// Earlier versions do not see it.
    TxIndexV2,
    /// blockfilterindex.
    BlockFilter,
    /// coinstatsindex since version 30.
    CoinStats,
    /// coinstatsindex up to version 29.
    CoinStatsOld,
    /// txospenderindex.
    TxoSpender,
}

impl IndexForm {
    /// All forms.
    pub const ALL: [Self; 6] = [
        Self::TxIndex,
        Self::TxIndexV2,
        Self::BlockFilter,
        Self::CoinStats,
        Self::CoinStatsOld,
        Self::TxoSpender,
    ];

    /// Returns the forms of `kinds` that a version of the node starts on without building anything again; without
    /// a version, the forms that every version starts on.
    ///
    /// Every version starts on the older form of txindex, but not on the newer one.
    ///
    /// # Errors
    /// The first of `kinds` that the version does not know.
    pub fn of(kinds: &[IndexKind], version: Option<NodeVersion>) -> Result<Vec<Self>, IndexKind> {
        let mut forms = Vec::new();
        for &kind in kinds {
            match (kind, version) {
                (IndexKind::TxIndex, Some(NodeVersion::Master)) => forms.push(Self::TxIndexV2),
                (IndexKind::TxIndex, _) => forms.push(Self::TxIndex),
                (IndexKind::BlockFilterIndex, _) => forms.push(Self::BlockFilter),
                (IndexKind::CoinStatsIndex, None) => {
                    forms.extend([Self::CoinStatsOld, Self::CoinStats]);
                }
                (IndexKind::CoinStatsIndex, Some(NodeVersion::V29)) => {
                    forms.push(Self::CoinStatsOld);
                }
                (IndexKind::CoinStatsIndex, Some(_)) => forms.push(Self::CoinStats),
                (IndexKind::TxoSpenderIndex, Some(NodeVersion::V29 | NodeVersion::V30)) => {
                    return Err(kind);
                }
                (IndexKind::TxoSpenderIndex, _) => forms.push(Self::TxoSpender),
            }
        }
        forms.sort_unstable();
        forms.dedup();
        Ok(forms)
    }

    /// Returns the index.
    pub const fn kind(self) -> IndexKind {
        match self {
            Self::TxIndex | Self::TxIndexV2 => IndexKind::TxIndex,
            Self::BlockFilter => IndexKind::BlockFilterIndex,
            Self::CoinStats | Self::CoinStatsOld => IndexKind::CoinStatsIndex,
            Self::TxoSpender => IndexKind::TxoSpenderIndex,
        }
    }

    /// Returns the name of its folder in `indexes`.
    pub const fn folder(self) -> &'static str {
        match self {
            Self::TxIndex | Self::TxIndexV2 => "txindex",
            Self::BlockFilter => "blockfilter",
            Self::CoinStats => "coinstatsindex",
            Self::CoinStatsOld => "coinstats",
            Self::TxoSpender => "txospenderindex",
        }
    }

    /// Returns the path of the database in its folder; empty if it is the folder itself.
    pub const fn database(self) -> &'static str {
        match self {
            Self::TxIndex | Self::TxIndexV2 => "",
            Self::BlockFilter => "basic/db",
            Self::CoinStats | Self::CoinStatsOld | Self::TxoSpender => "db",
        }
    }

    /// Returns the key of the best block. Keys with a name begin with its length.
    pub(crate) const fn best_block_key(self) -> &'static [u8] {
        match self {
            Self::TxIndexV2 => b"\x0dbest_block_v2",
            _ => b"B",
        }
    }

    /// Returns whether Core gives the database bloom filters. A node opens it either way.
    pub const fn has_bloom_filters(self) -> bool {
        !matches!(self, Self::TxIndexV2 | Self::TxoSpender)
    }
}

/// Returns the folder of a form in a node's folder for its chain.
pub fn index_folder(folder: &Path, form: IndexForm) -> PathBuf {
    folder.join("indexes").join(form.folder())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_gets_what_it_starts_on() {
        use IndexForm as Form;
        let of = |version: &str| {
            let version = version.parse().ok();
            let mut kinds = IndexKind::ALL.to_vec();
            while let Err(unknown) = IndexForm::of(&kinds, version) {
                kinds.retain(|kind| *kind != unknown);
            }
            IndexForm::of(&kinds, version).unwrap()
        };
        let (filter, new, old) = (Form::BlockFilter, Form::CoinStats, Form::CoinStatsOld);
        assert_eq!(of("29"), [Form::TxIndex, filter, old]);
        assert_eq!(of("30"), [Form::TxIndex, filter, new]);
        assert_eq!(of("31"), [Form::TxIndex, filter, new, Form::TxoSpender]);
        assert_eq!(of("master"), [Form::TxIndexV2, filter, new, Form::TxoSpender]);
        assert_eq!(of("any"), [Form::TxIndex, filter, new, old, Form::TxoSpender]);
    }

    #[test]
    fn names_are_those_of_cores_options() {
        for kind in IndexKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("txospender".parse::<IndexKind>().unwrap_err().contains("txospenderindex"));
        for version in ["29", "30", "31", "master"] {
            assert_eq!(version.parse::<NodeVersion>().unwrap().to_string(), version);
        }
        assert!("28".parse::<NodeVersion>().is_err());
    }
}
