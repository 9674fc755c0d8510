//! `apus bench floor`.

use crate::failure::Failure;
use clap::Args;

#[derive(Args)]
pub(crate) struct FloorArgs {}

pub(crate) fn command(_args: &FloorArgs) -> Result<(), Failure> {
    Err(Failure::usage("not built yet"))
}
