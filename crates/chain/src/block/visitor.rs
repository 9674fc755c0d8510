//! [`Visitor`]: is shown the parts of a block while they are read.
//!
//! Who reads a block touches every length in it, one after the other, and mostly waits for memory. What looks at each
//! input and output meanwhile costs little; a walk of its own through a megabyte that has left the nearest cache costs as much
//! as the reading. A visitor judges nothing while it is shown things: of the bytes it isn't known yet whether they are a block.

use super::TxView;
use crate::outpoint::OutPoint;

/// Is shown each transaction of a block when all its inputs and outputs were.
pub(crate) trait Visitor {
    /// An input of the transaction that is being read.
    fn input(&mut self, outpoint: &[u8; OutPoint::SIZE], script_sig: &[u8], sequence: u32);

    /// An output of it, with its amount in satoshis as the bytes have it.
    fn output(&mut self, value: i64, script: &[u8]);

    /// The transaction, after its inputs and outputs.
    fn transaction(&mut self, tx: &TxView<'_>);
}

/// Looks at nothing.
impl Visitor for () {
    #[inline]
    fn input(&mut self, _: &[u8; OutPoint::SIZE], _: &[u8], _: u32) {}

    #[inline]
    fn output(&mut self, _: i64, _: &[u8]) {}

    #[inline]
    fn transaction(&mut self, _: &TxView<'_>) {}
}
