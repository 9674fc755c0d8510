//! `apus plot`.

use crate::failure::Failure;
use clap::Args;

#[derive(Args)]
pub(crate) struct PlotArgs {}

pub(crate) fn command(_args: &PlotArgs) -> Result<(), Failure> {
    Err(Failure::usage("not built yet"))
}
