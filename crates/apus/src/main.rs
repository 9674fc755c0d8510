//! The `apus` program: reads the command line, runs the pipeline and reports the result.
//!
//! No library crate prints. Progress goes to standard error, results go to standard output. Exit codes: 0 success, 1
//! usage or configuration, 2 an invalid block, 3 input or output, 4 damaged or wrong data, 130 interrupted with
//! progress kept.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod allocator;
mod args;
#[cfg(feature = "utreexo")]
mod by_proofs;
mod cli;
#[cfg(feature = "cluster")]
mod cluster;
mod coins;
mod conf;
#[cfg_attr(not(feature = "web"), allow(dead_code, reason = "only the web page shows all of it"))]
mod estimate;
mod extra_engine;
mod failure;
mod files;
mod hints;
mod index;
mod machine;
mod node;
#[cfg(feature = "web")]
mod page;
mod peers;
mod plan;
mod plot;
mod print;
mod reindex;
mod render;
mod report;
mod snapshot;
mod spelling;
#[cfg_attr(not(feature = "web"), allow(dead_code, reason = "only the web page shows all of it"))]
mod status;
mod submit;
mod sync;
#[cfg(feature = "tables")]
mod tables;
mod unpack;
#[cfg(feature = "utreexo")]
mod utreexo;
#[cfg_attr(not(feature = "utreexo"), path = "utreexo_outputs/nothing.rs")]
mod utreexo_outputs;
mod verify;
mod workdir;

use crate::cli::{Cli, CliCommand, LineError};
use crate::failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    machine::begin();
    allocator::begin();
    apus_sync::ask_for_open_files();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(LineError::File(failure)) => {
            let code = failure.code;
            print::ending(&Err(failure));
            return ExitCode::from(code);
        }
        Err(LineError::EnvOrFile(place, error)) => {
            let text = error.render().to_string();
            print::aside(text.replacen("error: ", &format!("error: {place}: "), 1).trim_end());
            return ExitCode::from(failure::USAGE);
        }
        Err(LineError::Line(error)) => {
            // A request for help is not a mistake; everything else is a usage error.
            let code = if error.use_stderr() { failure::USAGE } else { 0 };
            match spelling::advice(&error, std::env::args_os()) {
                Some(advice) => print::aside(format_args!(
                    "error: {advice}\n\nFor more information, try '--help'."
                )),
                None => {
                    let _ = error.print();
                }
            }
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        CliCommand::Sync(args) => sync::command(&args),
        CliCommand::Plan(args) => plan::command(&args),
        CliCommand::Reindex(args) => reindex::command(&args),
        CliCommand::Index(args) => index::command(&args),
        CliCommand::Verify(args) => verify::command(&args),
        CliCommand::Hints(args) => hints::command(&args),
        CliCommand::Snapshot(args) => snapshot::command(&args),
        #[cfg(feature = "utreexo")]
        CliCommand::Utreexo(args) => utreexo::command(&args),
        CliCommand::Submit(args) => submit::command(&args),
        #[cfg(feature = "remote-coins")]
        CliCommand::Coins(args) => coins::command(&args),
        #[cfg(feature = "cluster")]
        CliCommand::Cluster(args) => cluster::command(&args),
        CliCommand::Plot(args) => plot::command(&args),
        CliCommand::Completions { shell } => cli::completions(shell),
        CliCommand::Man { folder } => cli::manual(&folder),
    };
    print::ending(&result);
    #[cfg(feature = "web")]
    page::end(&result);
    result.map_or_else(|Failure { code, .. }| ExitCode::from(code), |()| ExitCode::SUCCESS)
}
