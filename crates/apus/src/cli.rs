//! [`Cli`]: the command line, which names a command and has its arguments; and what else is made of its description, which
//! are completions and manual pages.

use crate::args::{
    ChallengeArg, HintsArgs, NodeArgs, PlanArgs, ProgressArg, ReindexArgs, SnapshotArgs,
    SnapshotCommand, SyncArgs, VerifyArgs,
};
use crate::chain::{self, CHAIN, datadir_of};
#[cfg(feature = "cluster")]
use crate::cluster::{ClusterArgs, ClusterCommand};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsCommandArgs;
use crate::conf;
use crate::failure::Failure;
use crate::machine;
use crate::plot::PlotArgs;
use crate::print;
use crate::submit::SubmitArgs;
#[cfg(feature = "utreexo")]
use crate::utreexo::{UtreexoArgs, UtreexoCommand};
use apus_storage::publish_file;
use apus_sync::draft_of;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use console::Term;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  For bash, from the next shell on:
    mkdir -p ~/.local/share/bash-completion/completions
    apus completions bash > ~/.local/share/bash-completion/completions/apus

  For zsh, with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc:
    mkdir -p ~/.zfunc
    apus completions zsh > ~/.zfunc/_apus

  For fish:
    mkdir -p ~/.config/fish/completions
    apus completions fish > ~/.config/fish/completions/apus.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  For one user, read by `man apus` and `man apus-sync`:
    apus man ~/.local/share/man/man1";

/// Turns Bitcoin's block history into a validated UTXO set, as fast as the hardware allows.
#[derive(Parser)]
#[command(
    name = "apus",
    version = machine::version(),
    long_version = machine::long_version(),
    after_help = "`apus sync --help` shows examples, and `apus --help` all commands.",
    after_long_help = "\
More commands:
  submit       Judge blocks given line by line: for tests and comparisons
  completions  Write what a shell needs to complete commands and options
  man          Write manual pages, one for each command

Options can also come from the environment, --dbcache as APUS_DBCACHE, and from the file \
of --conf. The command line counts most, then the environment.

Exit codes: 0 done; 1 usage or configuration; 2 an invalid block; 3 input or output; 4 \
what was given is damaged or does not fit together, such as hints and blocks; 130 \
interrupted, progress kept.

`apus sync --help` shows examples."
)]
pub(crate) struct Cli {
    /// Take options that are not given from this file
    ///
    /// Lines such as dbcache=2000, with `[sync]` before those of one command.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) conf: Option<PathBuf>,

    /// The challenge of a signet of one's own, for --chain signet; what the bitcoin.conf of --datadir says of it
    /// is known
    #[arg(long, value_name = "HEX", hide_short_help = true, global = true)]
    pub(crate) signetchallenge: Option<ChallengeArg>,

    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Compute the UTXO set from blocks
    Sync(Box<SyncArgs>),
    /// Say what a run would take of disk, memory and time, and write nothing
    Plan(PlanArgs),
    /// Rebuild the chainstate of a stopped Bitcoin Core node
    Reindex(ReindexArgs),
    /// Check whether what a Bitcoin Core node believes is true, and change nothing
    Verify(VerifyArgs),
    /// Look at, check and convert hints for SwiftSync
    Hints(HintsArgs),
    /// Look at and verify UTXO snapshots
    Snapshot(SnapshotArgs),
    /// Make proofs of what each block spends, look at them and check them
    #[cfg(feature = "utreexo")]
    Utreexo(UtreexoArgs),
    /// Judge blocks given line by line, as a node does: a tool for tests and comparisons
    #[command(hide = true)]
    Submit(SubmitArgs),
    /// Look at coins on servers, and copy sets of coins there
    #[cfg(feature = "remote-coins")]
    Coins(CoinsCommandArgs),
    /// Share a run among machines
    #[cfg(feature = "cluster")]
    Cluster(ClusterArgs),
    /// Draw runs: height over time, and ratios between them
    Plot(PlotArgs),
    /// Write what a shell needs to complete commands and options
    #[command(hide = true, after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// For which shell; its own documentation says where the output goes
        shell: Shell,
    },
    /// Write manual pages, one for each command
    #[command(hide = true, after_help = MAN_EXAMPLES)]
    Man {
        /// Where to: a folder, which is made if it is not there
        folder: PathBuf,
    },
}

impl Cli {
    /// What the command line and the environment say, and where these name no chain, the blocks.
    pub(crate) fn read() -> Result<Self, LineError> {
        let command = Self::whole_command();
        let said = conf::with_file(&command, std::env::args_os().collect());
        let said = said.map_err(LineError::File)?;
        let of_line = |error| match said.place(&error) {
            Some(place) => LineError::Elsewhere(place, error),
            None => LineError::Line(error),
        };
        let mut matches = command.try_get_matches_from(&said.words).map_err(of_line)?;
        let signet = chain::know_signet(&matches).map_err(LineError::File)?;
        let told = chain::of_line(&matches);
        if told.is_some() || signet.is_some() {
            let mut command = Self::whole_command();
            if let Some(told) = told {
                command = with_default_chain(command, told.name());
            }
            matches = command.try_get_matches_from(&said.words).map_err(of_line)?;
        }
        chain::expect_signet(&matches, signet).map_err(LineError::File)?;
        let mut cli = Self::from_arg_matches(&matches).map_err(of_line)?;
        let renamed = cli.command.understand().map_err(LineError::File)?;
        let progress = chain::innermost(&matches).try_get_one::<ProgressArg>("progress");
        let speaks_json = matches!(progress, Ok(Some(ProgressArg::Json)));
        for text in renamed {
            match speaks_json {
                true => print::event(serde_json::json!({"event": "warning", "text": text})),
                false => print::aside(format_args!("warning: {text}")),
            }
        }
        Ok(cli)
    }

    /// The command with all that belongs to it: each option has a variable of the environment.
    pub(crate) fn whole_command() -> clap::Command {
        let command = with_headings(with_variables(Self::command()));
        // A terminal that does not say how wide it is has 80 columns, and not the 100 of help in a file.
        let unknown = io::stdout().is_terminal() && Term::stdout().size_checked().is_none();
        if unknown && std::env::var_os("COLUMNS").is_none() {
            command.term_width(80)
        } else {
            command
        }
    }
}

/// Why a line cannot be understood.
pub(crate) enum LineError {
    /// It is not as it must be; or it asks for help.
    Line(clap::Error),
    /// A value is not as it must be that stands in the environment or in a file: where, and what is wrong.
    Elsewhere(String, clap::Error),
    /// What it names is not, or does not fit the rest.
    File(Failure),
}

impl CliCommand {
    /// Takes short and old ways to say something for what they mean. Gives what to say of new names.
    fn understand(&mut self) -> Result<Vec<String>, Failure> {
        let (assume, has_hints) = match self {
            Self::Reindex(args) => {
                take_datadir(&mut args.node);
                (&mut args.connect.assume, args.hints.is_some())
            }
            Self::Verify(args) => {
                take_datadir(&mut args.node);
                (&mut args.assume, false)
            }
            Self::Plan(args) => {
                args.datadir = args.datadir.take().map(|named| datadir_of(named, args.chain));
                (&mut args.assume, args.hints.is_some())
            }
            Self::Sync(args) => {
                args.keep_for_datadir();
                (&mut args.connect.assume, args.hints.is_some())
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(ClusterArgs { command: ClusterCommand::Serve(args) }) => {
                (&mut args.sync.connect.assume, args.sync.hints.is_some())
            }
            Self::Snapshot(SnapshotArgs { command: SnapshotCommand::Verify(args) }) => {
                (&mut args.assume, false)
            }
            #[cfg(feature = "utreexo")]
            Self::Utreexo(UtreexoArgs { command: UtreexoCommand::Prove(args) }) => {
                (&mut args.assume, false)
            }
            _ => return Ok(Vec::new()),
        };
        assume.settle(has_hints)
    }
}

/// Takes a chain's own folder in a data directory for that directory.
fn take_datadir(node: &mut NodeArgs) {
    node.datadir = datadir_of(std::mem::take(&mut node.datadir), node.chain);
}

fn with_default_chain(command: clap::Command, name: &'static str) -> clap::Command {
    let told = |arg: Arg| if arg.get_id() == CHAIN { arg.default_value(name) } else { arg };
    command.mut_args(told).mut_subcommands(|inner| with_default_chain(inner, name))
}

/// Under which heading an option stands in help; under none those of all commands.
const HEADINGS: [(&str, &str); 6] = [
    (
        "Input",
        "chain signetchallenge datadir blocksdir hints hints-order proofs stopatheight from outputs stop-block",
    ),
    ("Output", "out to every replace replace-with-older prune muhash blocks report json csv"),
    ("Checks", "assumevalid engine aggregate witnesses audit"),
    (
        "Resources",
        "dbcache par workdir segment-bytes checkpoint-seconds prevout-threads coins coins-password-file \
         coins-private-line coins-timeout work scratch",
    ),
    (
        "Network",
        "connect follow proxy maxconnections v2transport listen patience nats key-file nats-creds nats-ca objects \
         ack-wait replicas give-blocks",
    ),
    ("Progress", "progress log web web-token web-stay"),
];

fn with_headings(command: clap::Command) -> clap::Command {
    let placed = |arg: Arg| {
        let long = arg.get_long().unwrap_or_default();
        let is_in = |(_, options): &&(&str, &str)| options.split(' ').any(|option| option == long);
        match HEADINGS.iter().find(is_in) {
            Some((heading, _)) => arg.help_heading(*heading),
            None => arg,
        }
    };
    command.mut_args(placed).mut_subcommands(with_headings)
}

fn with_variables(command: clap::Command) -> clap::Command {
    let named = |arg: Arg| match arg.get_long().filter(|long| !["help", "version"].contains(long)) {
        Some(long) => {
            let variable = conf::variable(long);
            let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
            let arg = if is_flag { arg.value_parser(yes_or_no) } else { arg };
            // One that is not given needs no other option, and is in the way of none.
            let says_no =
                || std::env::var(&variable).is_ok_and(|said| yes_or_no(&said) == Ok(false));
            if is_flag && says_no() {
                return arg;
            }
            // Told once for all options; beside each it would be half of the help.
            arg.env(variable).hide_env(true)
        }
        None => arg,
    };
    command.mut_args(named).mut_subcommands(with_variables)
}

fn yes_or_no(said: &str) -> Result<bool, String> {
    conf::yes_or_no(said).ok_or_else(|| "it is 1 or 0, true or false".to_owned())
}

/// Writes a shell's completions to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::whole_command(), "apus", &mut text);
    print::result(String::from_utf8_lossy(&text).trim_end())
}

/// Writes the page of a command, and those of the commands below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests;
