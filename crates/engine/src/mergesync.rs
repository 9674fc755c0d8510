//! mergesync: every rule, with blocks in any order, without hints and without trust.
//!
//! Three steps. [`Gather`] goes over the blocks, in any order, and writes down which coins each one makes
//! and which it wants from blocks below, sorted by outpoint. A [`Join`] of both kinds pairs each spend
//! with the coin that was there: this is where double spends, spends of nothing and repeated
//! transactions come out, in the order of the chain, whatever the order of the blocks was. With its
//! answers a block can be [judged](Judge::block) on its own, by the very rules that connect blocks one
//! after the other. Where no script is run, what the block [claims](Claims) of its coins is mostly enough, and so are
//! coins [without scripts](BareCoin). The coins that no spend took are the set.
//!
//! What is true of a block depends on blocks below it alone, also where some block above is
//! invalid. So the lowest block that is refused is the one that a node would have stopped at, and the
//! reason is the one that the node gives.
//!
//! On request each coin carries the number of its leaf in the Utreexo forest ([`NumberedCoin`]), so that the
//! second walk knows what a block [spends and adds](BlockLeaves) there.
//!
//! Nothing here is keyed and nothing is left to chance: outpoints are compared whole. Where records
//! lie, who does the segments, and in how much memory runs are merged, is the driver's business.

mod answers;
mod asked;
mod bare;
mod claims;
mod fingerprint;
mod gather;
mod join;
mod judge;
mod leaves;
mod ledger;
mod numbered;
mod partial;
mod record;
mod seen;

pub use answers::Answers;
pub use asked::Asked;
pub use bare::BareCoin;
pub use claims::Claims;
pub use fingerprint::{Fingerprint, FingerprintKey};
pub use gather::{Gather, GatherError, GatherSegment};
pub use join::{Join, JoinSink};
pub use judge::{Judge, JudgeError, Judged, Kept, Refused};
pub use leaves::{BlockLeaves, SpentLeaf};
pub use numbered::NumberedCoin;
pub use partial::{Gathered, Overlap};
pub use record::{AnswerRecord, MadeCoin, MadeRecord, SpentRecord};
pub use seen::SeenBlock;
