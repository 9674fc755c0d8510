//! Sound and inconsistent LevelDB folders, and Bitcoin Core's LevelDB reading them.
//!
//! A [`LevelDbFolder`] is made from a history of writes, in one of the many shapes that LevelDB produces, and
//! may then contain [lies](Lie): it is built from its parts, with right checksums, so that only its meaning is
//! wrong. An [`Oracle`] is LevelDB itself, which opens a folder like a node does. A seed determines everything.

mod folder;
mod format;
mod lies;
mod oracle;
mod parts;
mod table;

pub use folder::{Write, disorder, hide};
pub use lies::{AmongTables, InBatches, InEdits, InFiles, InRecords, InTable, Lie};
pub use oracle::{Oracle, OracleAnswer};
pub use parts::LevelDbFolder;
