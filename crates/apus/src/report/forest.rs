//! [`Forest`]: the Utreexo forest in a report.

use crate::report::grouped;
use apus_utreexo::Roots;
use serde::Serialize;
use std::fmt;

/// What there is to say of the Utreexo forest at the stop block.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Forest {
    /// How many leaves there have ever been.
    pub(crate) leaves: u64,
    /// Highest tree first, in the order of their bytes; zeros where all leaves of the tree are deleted.
    pub(crate) roots: Vec<String>,
}

impl Forest {
    pub(super) fn of(roots: &Roots) -> Self {
        Self {
            leaves: roots.leaves(),
            roots: roots.hashes().iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {}", "utreexo leaves", grouped(self.leaves))?;
        let names = ["utreexo roots"].into_iter().chain(std::iter::repeat(""));
        names.zip(&self.roots).try_for_each(|(name, root)| writeln!(f, "{name:<18} {root}"))
    }
}
