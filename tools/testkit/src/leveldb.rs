//! LevelDB folders that are sound and folders that lie, and what Bitcoin Core's LevelDB makes of them.
//!
//! A [`LevelDbFolder`] is made of a history of writes, in one of the many shapes that LevelDB gives it, and may
//! then tell [lies](Lie): it is built from its parts, with right checksums, so that nothing but its meaning
//! is wrong. An [`Oracle`] is LevelDB itself, which opens a folder as a node does. All of it comes from a seed.

mod folder;
mod format;
mod lies;
mod oracle;
mod parts;
mod table;

pub use folder::{Write, hide};
pub use lies::{AmongTables, InBatches, InEdits, InFiles, InRecords, InTable, Lie};
pub use oracle::{Oracle, OracleAnswer};
pub use parts::LevelDbFolder;
