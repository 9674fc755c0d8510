//! `apus completions` and `apus man`: what else is made of the command line's own description.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::print;
use apus_storage::publish_file;
use apus_sync::draft_of;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io;
use std::path::Path;

/// Writes a shell's completions to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::whole_command(), "apus", &mut text);
    print::result(String::from_utf8_lossy(&text).trim_end())
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below, folder)?;
    }
    let (page, mut text) = (Man::new(command.clone()), Vec::new());
    page.render(&mut text)?;
    let path = folder.join(page.get_filename());
    publish_file(&path, &draft_of(&path), &text)
}

/// Writes the manual's pages into a folder, which is made if it is not there, in place of those of the same names.
pub(crate) fn manual(folder: &Path) -> Result<(), Failure> {
    let mut whole = Cli::whole_command().disable_help_subcommand(true);
    whole.build();
    std::fs::create_dir_all(folder)
        .and_then(|()| write_pages(&whole, folder))
        .map_err(|error| Failure::io(folder, error))?;
    print::result(format_args!(
        "the manual is in {}: `man -l {}`",
        folder.display(),
        folder.join("apus.1").display()
    ))
}
