//! The `apus` program: reads the command line, runs the pipeline, tells people what happened.
//!
//! This is the only place that prints. Progress goes to standard error, results to standard output,
//! and the exit code says which kind of ending it was: 0 done, 1 usage or configuration, 2 an invalid
//! block, 3 input or output, 4 damaged or wrong data, 130 interrupted with progress kept.

mod allocator;
mod args;
mod aside;
mod chain;
mod cli;
#[cfg(feature = "cluster")]
mod cluster;
mod coins;
mod conf;
#[cfg_attr(not(feature = "web"), allow(dead_code, reason = "only the page shows all of it"))]
mod course;
mod documents;
mod failure;
mod files;
mod hints;
mod interrupt;
mod log;
mod machine;
#[cfg(feature = "web")]
mod metrics;
mod node;
mod options;
#[cfg(feature = "web")]
mod page;
mod peers;
mod places;
mod plan;
mod plot;
mod print;
mod reindex;
mod render;
mod report;
mod scripts;
mod snapshot;
mod spelling;
mod submit;
mod sync;
mod unpack;
mod utreexo;
mod verify;
mod version;
#[cfg_attr(not(feature = "web"), allow(dead_code, reason = "only the page shows all of it"))]
mod watched;
mod witnesses;
mod workdir;

use cli::{Cli, Command, ReadError};
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    machine::begin();
    allocator::begin();
    apus_sync::ask_for_open_files();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(ReadError::File(failure)) => {
            let code = failure.code;
            print::ending(&Err(failure));
            return ExitCode::from(code);
        }
        Err(ReadError::Elsewhere(place, error)) => {
            let text = error.render().to_string();
            print::aside(text.replacen("error: ", &format!("error: {place}: "), 1).trim_end());
            return ExitCode::from(failure::USAGE);
        }
        Err(ReadError::Line(error)) => {
            // Asking for help is no mistake; anything else is one of usage.
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
        Command::Sync(args) => sync::command(&args),
        Command::Plan(args) => plan::command(&args),
        Command::Reindex(args) => reindex::command(&args),
        Command::Verify(args) => verify::command(&args),
        Command::Hints(args) => hints::command(&args),
        Command::Snapshot(args) => snapshot::command(&args),
        Command::Utreexo(args) => utreexo::command(&args),
        Command::Submit(args) => submit::command(&args),
        #[cfg(feature = "remote-coins")]
        Command::Coins(args) => coins::command(&args),
        #[cfg(feature = "cluster")]
        Command::Cluster(args) => cluster::command(&args),
        Command::Plot(args) => plot::command(&args),
        Command::Completions { shell } => documents::completions(shell),
        Command::Man { folder } => documents::manual(&folder),
    };
    print::ending(&result);
    #[cfg(feature = "web")]
    page::end(&result);
    result.map_or_else(|Failure { code, .. }| ExitCode::from(code), |()| ExitCode::SUCCESS)
}
