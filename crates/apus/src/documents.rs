//! `apus completions` and `apus man`: what else is made of the command line's own description.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print;
use clap_complete::Shell;
use std::path::Path;

/// Writes a shell's completions to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::whole_command(), "apus", &mut text);
    print::result(String::from_utf8_lossy(&text).trim_end())
}

/// Writes the manual's pages into a folder, which is made if it is not there, in place of those of the same names.
pub(crate) fn manual(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| Failure::io(folder, error))?;
    clap_mangen::generate_to(Cli::whole_command(), folder)
        .map_err(|error| Failure::io(folder, error))?;
    print::result(format_args!(
        "the manual is in {}: `man -l {}`",
        folder.display(),
        folder.join("apus.1").display()
    ))
}
