//! `apus bench run`.

use crate::failure::Failure;
use clap::Args;

#[derive(Args)]
pub(crate) struct RunArgs {}

pub(crate) fn command(_args: &RunArgs) -> Result<(), Failure> {
    Err(Failure::usage("not built yet"))
}
