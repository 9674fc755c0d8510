//! `apus bench chain`.

use crate::failure::Failure;
use clap::Args;

#[derive(Args)]
pub(crate) struct ChainArgs {}

pub(crate) fn command(_args: &ChainArgs) -> Result<(), Failure> {
    Err(Failure::usage("not built yet"))
}
