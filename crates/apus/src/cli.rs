//! [`Cli`]: the command line with its commands and their arguments. Completions and manual pages are generated from it.

use crate::args::IndexArgs;
use crate::args::{
    ChallengeArg, HintsArgs, NodeArgs, PlanArgs, ReindexArgs, SinkArg, SnapshotArgs,
    SnapshotCommand, SyncArgs, VerifyArgs,
};
#[cfg(feature = "cluster")]
use crate::cluster::{ClusterArgs, ClusterCommand};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsCommandArgs;
use crate::failure::Failure;
use crate::node::{NodeConf, of_datadir};
use crate::plot::PlotArgs;
use crate::submit::SubmitArgs;
#[cfg(feature = "utreexo")]
use crate::utreexo::{UtreexoArgs, UtreexoCommand};
use crate::{conf, machine, print};
use apus_chain::{Network, Params};
use apus_datadir::{chain_folder, network_of};
use apus_storage::publish_file;
use apus_sync::draft_of;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
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
  For one user, so that `man apus` and `man apus-sync` find them:
    apus man ~/.local/share/man/man1";

/// Turns Bitcoin's block history into a validated UTXO set, as fast as the hardware allows.
#[derive(Parser)]
#[command(
    name = "apus",
    version = machine::version(),
    long_version = machine::long_version(),
    after_help = "`apus sync --help` shows examples, `apus --help` lists all commands.",
    after_long_help = "\
More commands:
  submit       Validate blocks given line by line: for tests and comparisons
  completions  Write shell completions of commands and options
  man          Write manual pages, one per command

Options can also come from the environment (--dbcache as APUS_DBCACHE) and from the file \
of --conf. The command line takes precedence, then the environment.

Exit codes: 0 done; 1 usage or configuration; 2 an invalid block; 3 input or output; 4 \
damaged input, or input that does not fit together, such as hints and blocks; 130 \
interrupted, progress kept.

`apus sync --help` shows examples."
)]
pub(crate) struct Cli {
    /// Read further options from this file
    ///
    /// One option per line, such as dbcache=2000. A line such as `[sync]` begins the options of one command.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) conf: Option<PathBuf>,

    /// Challenge of a custom signet, for --chain signet. With --datadir, Apus finds the challenge in the node's
    /// bitcoin.conf
    #[arg(long, value_name = "HEX", hide_short_help = true, global = true)]
    pub(crate) signetchallenge: Option<ChallengeArg>,

    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Compute the UTXO set from blocks
    Sync(Box<SyncArgs>),
    /// Estimate disk, memory and time of a sync; write nothing
    Plan(PlanArgs),
    /// Rebuild the chainstate of a stopped Bitcoin Core node
    Reindex(ReindexArgs),
    /// Make the optional indexes of a stopped Bitcoin Core node
    Index(IndexArgs),
    /// Audit a Bitcoin Core node's data directory; change nothing
    Verify(VerifyArgs),
    /// Inspect, check and convert hints for SwiftSync
    Hints(HintsArgs),
    /// Inspect and verify UTXO snapshots
    Snapshot(SnapshotArgs),
    /// Make, inspect and check proofs of each block's spent coins
    #[cfg(feature = "utreexo")]
    Utreexo(UtreexoArgs),
    /// Validate blocks from standard input, one per line, as a node does: for tests and comparisons
    #[command(hide = true)]
    Submit(SubmitArgs),
    /// Look up coins on servers, and copy sets of coins there
    #[cfg(feature = "remote-coins")]
    Coins(CoinsCommandArgs),
    /// Share a sync among machines
    #[cfg(feature = "cluster")]
    Cluster(ClusterArgs),
    /// Plot syncs: height over time, and their speed ratios
    Plot(PlotArgs),
    /// Write shell completions of commands and options
    #[command(hide = true, after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell; see its documentation for where to put the output
        shell: Shell,
    },
    /// Write manual pages, one per command
    #[command(hide = true, after_help = MAN_EXAMPLES)]
    Man {
        /// Folder for the pages; Apus creates it if it is missing
        folder: PathBuf,
    },
}

impl Cli {
    /// Reads the command line and the environment. If they name no chain, detects it from the blocks.
    pub(crate) fn read() -> Result<Self, LineError> {
        let command = Self::whole_command();
        let parsed = conf::with_file(&command, std::env::args_os().collect());
        let parsed = parsed.map_err(LineError::File)?;
        let of_line = |error| match parsed.place(&error) {
            Some(place) => LineError::EnvOrFile(place, error),
            None => LineError::Line(error),
        };
        let mut matches = command.try_get_matches_from(&parsed.words).map_err(of_line)?;
        let signet = know_signet(&matches).map_err(LineError::File)?;
        let found = chain_of_line(&matches);
        if found.is_some() || signet.is_some() {
            let mut command = Self::whole_command();
            if let Some(chain) = found {
                command = with_default_chain(command, chain.name());
            }
            matches = command.try_get_matches_from(&parsed.words).map_err(of_line)?;
        }
        expect_signet(&matches, signet).map_err(LineError::File)?;
        let mut cli = Self::from_arg_matches(&matches).map_err(of_line)?;
        cli.command.normalize().map_err(LineError::File)?;
        Ok(cli)
    }

    /// Returns the clap command with headings, and with an environment variable for each option.
    pub(crate) fn whole_command() -> clap::Command {
        let command = with_headings(with_variables(Self::command()));
        // A terminal that does not report its width gets 80 columns, not the 100 of help in a file.
        let unknown = io::stdout().is_terminal() && Term::stdout().size_checked().is_none();
        if unknown && std::env::var_os("COLUMNS").is_none() {
            command.term_width(80)
        } else {
            command
        }
    }
}

/// Why Apus cannot use a command line.
pub(crate) enum LineError {
    /// The line itself is invalid, or requests help.
    Line(clap::Error),
    /// A value in the environment or in a file is invalid. Has the value's place, and the error.
    EnvOrFile(String, clap::Error),
    /// The line names something that is missing or contradicts the rest.
    File(Failure),
}

impl CliCommand {
    /// Translates short spellings, and checks what options say of each other.
    fn normalize(&mut self) -> Result<(), Failure> {
        let (assume, has_hints) = match self {
            Self::Reindex(args) => {
                take_datadir(&mut args.node);
                (&args.connect.assume, args.hints.is_some())
            }
            Self::Verify(args) => {
                take_datadir(&mut args.node);
                (&args.assume, false)
            }
            Self::Index(args) => {
                take_datadir(&mut args.node);
                return Ok(());
            }
            Self::Plan(args) => {
                expect_outputs(&args.out)?;
                args.datadir = args.datadir.take().map(|named| datadir_of(named, args.chain));
                (&args.assume, args.hints.is_some())
            }
            Self::Sync(args) => {
                expect_outputs(&args.out)?;
                args.keep_for_datadir();
                (&args.connect.assume, args.hints.is_some())
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(ClusterArgs { command: ClusterCommand::Serve(args) }) => {
                expect_outputs(&args.sync.out)?;
                (&args.sync.connect.assume, args.sync.hints.is_some())
            }
            Self::Snapshot(SnapshotArgs { command: SnapshotCommand::Verify(args) }) => {
                (&args.assume, false)
            }
            #[cfg(feature = "utreexo")]
            Self::Utreexo(UtreexoArgs { command: UtreexoCommand::Prove(args) }) => {
                (&args.assume, false)
            }
            _ => return Ok(()),
        };
        assume.expect_hints(has_hints)
    }
}

/// Refuses outputs that clap accepts only because it would quote them.
fn expect_outputs(outputs: &[SinkArg]) -> Result<(), Failure> {
    let refusal = outputs.iter().find_map(SinkArg::refusal);
    refusal.map_or(Ok(()), |why| Err(Failure::usage(format!("the value of --out: {why}"))))
}

/// If the user named a chain's folder within a data directory, uses the data directory.
fn take_datadir(node: &mut NodeArgs) {
    node.datadir = datadir_of(std::mem::take(&mut node.datadir), node.chain);
}

fn with_default_chain(command: clap::Command, name: &'static str) -> clap::Command {
    let set_default = |arg: Arg| if arg.get_id() == CHAIN { arg.default_value(name) } else { arg };
    command.mut_args(set_default).mut_subcommands(|inner| with_default_chain(inner, name))
}

/// Headings of options in help. Options that all commands have get no heading.
const HEADINGS: [(&str, &str); 6] = [
    (
        "Input",
        "chain signetchallenge datadir blocksdir hints hints-order proofs roots stopatheight from range outputs \
         stop-block",
    ),
    (
        "Output",
        "out to every index index-for replace replace-with-older prune muhash blocks report json csv raw type address",
    ),
    ("Checks", "assumevalid engine aggregate witnesses audit"),
    (
        "Resources",
        "dbcache par workdir segment-bytes checkpoint-seconds prevout-threads coins coins-password-file \
         coins-private-line coins-timeout work scratch scratchdir",
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
            // A flag with the value no counts as absent: it requires no other option and conflicts with none.
            let says_no =
                || std::env::var(&variable).is_ok_and(|value| yes_or_no(&value) == Ok(false));
            if is_flag && says_no() {
                return arg;
            }
            // The help explains the variables once. Repeated for each option, they would be half of the text.
            arg.env(variable).hide_env(true)
        }
        None => arg,
    };
    command.mut_args(named).mut_subcommands(with_variables)
}

fn yes_or_no(value: &str) -> Result<bool, String> {
    conf::yes_or_no(value).ok_or_else(|| "use 1 or 0, true or false".to_owned())
}

/// Writes a shell's completions to standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::whole_command(), "apus", &mut text);
    print::result(String::from_utf8_lossy(&text).trim_end())
}

/// Writes the manual page of a command, and the pages of the commands below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands() {
        write_pages(below, folder)?;
    }
    let (page, mut text) = (Man::new(command.clone()), Vec::new());
    page.render(&mut text)?;
    let path = folder.join(page.get_filename());
    publish_file(&path, &draft_of(&path), &text)
}

/// Writes the manual pages into a folder, which it creates if missing. Overwrites pages with the same names.
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

// ---- the chain of a command line ----

/// clap's name for the chain option.
const CHAIN: &str = "chain";

/// clap's name for the option with a signet's challenge.
const CHALLENGE: &str = "signetchallenge";

/// Returns the arguments of the innermost command.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    let mut command = matches;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    command
}

/// Returns the folder that an option names; `None` if the command lacks the option, or the line does not set it.
fn folder<'a>(command: &'a ArgMatches, name: &str) -> Option<&'a PathBuf> {
    command.try_get_one::<PathBuf>(name).ok().flatten()
}

/// Registers the signet whose challenge is on the command line, or else in the configuration of the node in --datadir.
fn know_signet(matches: &ArgMatches) -> Result<Option<Network>, Failure> {
    let command = innermost(matches);
    let given = command.try_get_one::<ChallengeArg>(CHALLENGE).ok().flatten();
    let challenge = match (given, folder(command, "datadir")) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(datadir)) => challenge_of(datadir)?,
        (None, None) => None,
    };
    let known = challenge.map(|challenge| Params::know_signet(&challenge.0));
    known.transpose().map_err(Failure::usage)
}

/// Reads the challenge from a node's configuration; `datadir` may also be a chain's folder in the data directory.
fn challenge_of(datadir: &Path) -> Result<Option<ChallengeArg>, Failure> {
    let datadir = datadir_of(datadir.to_owned(), Network::Signet);
    let Some(digits) = NodeConf::read(&datadir)?.signet_challenge()? else { return Ok(None) };
    let wrong = |what| {
        let setting = format!("the node's configuration has {CHALLENGE}={digits}: {what}");
        Failure::io(&datadir, setting)
    };
    digits.parse().map(Some).map_err(wrong)
}

/// Fails if the line has a challenge but another chain than its signet.
fn expect_signet(matches: &ArgMatches, signet: Option<Network>) -> Result<(), Failure> {
    let command = innermost(matches);
    let chain = command.try_get_one::<Network>(CHAIN).ok().flatten();
    match (command.try_contains_id(CHALLENGE).unwrap_or_default(), chain) {
        (true, Some(chain)) if Some(*chain) != signet => Err(Failure::usage(format!(
            "--{CHALLENGE} needs --chain signet, and this is about the chain {chain}"
        ))),
        _ => Ok(()),
    }
}

/// Detects the chain from the blocks that the line names; `None` if it names a chain or no blocks.
fn chain_of_line(matches: &ArgMatches) -> Option<Network> {
    let command = innermost(matches);
    let has_chain = command.try_contains_id(CHAIN).is_ok();
    if !has_chain || command.value_source(CHAIN) != Some(ValueSource::DefaultValue) {
        return None;
    }
    match (folder(command, "blocksdir"), folder(command, "datadir")) {
        (_, Some(datadir)) => of_datadir(datadir),
        (Some(blocksdir), None) => network_of(blocksdir).ok()?,
        (None, None) => None,
    }
}

/// Returns the data directory around a chain's folder such as `node/regtest`, which a user may name instead; otherwise
/// `named`.
fn datadir_of(named: PathBuf, chain: Network) -> PathBuf {
    if chain_folder(&named, chain).join("blocks").is_dir() || !named.join("blocks").is_dir() {
        return named;
    }
    let Ok(whole) = std::path::absolute(&named) else { return named };
    match (chain.data_folder(), whole.parent()) {
        (Some(folder), Some(around)) if whole.ends_with(folder) => match named.parent() {
            // Keep the user's spelling if it contains the parent.
            Some(short) if !short.as_os_str().is_empty() && named.ends_with(folder) => short.into(),
            _ => around.to_owned(),
        },
        _ => named,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod chain_tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_chains_own_folder_leads_to_the_data_directory() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        fs::create_dir_all(path("node/regtest/blocks")).unwrap();
        fs::create_dir_all(path("copy/blocks")).unwrap();
        let of = |name: &str, chain| datadir_of(path(name), chain);
        assert_eq!(of("node/regtest", Network::Regtest), path("node"));
        assert_eq!(of("node/regtest/", Network::Regtest), path("node"));
        assert_eq!(of("node", Network::Regtest), path("node"));
        for chain in [Network::Main, Network::Signet] {
            assert_eq!(of("node/regtest", chain), path("node/regtest"));
        }
        assert_eq!(of("copy", Network::Regtest), path("copy"));
        assert_eq!(of("nowhere", Network::Main), path("nowhere"));
    }

    #[test]
    fn the_blocks_determine_a_data_directorys_chain() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        let file = |folder: &str, chain: Network| {
            fs::create_dir_all(path(folder)).unwrap();
            let record = [&chain.magic()[..], &[0; 100]].concat();
            fs::write(path(folder).join("blk00000.dat"), record).unwrap();
        };
        assert_eq!(of_datadir(sandbox.path()), None);
        file("regtest/blocks", Network::Regtest);
        for folder in ["", "regtest"] {
            assert_eq!(of_datadir(&path(folder)), Some(Network::Regtest), "{folder}");
        }
        file("signet/blocks", Network::Signet);
        assert_eq!(of_datadir(sandbox.path()), None, "either could be meant");
        file("blocks", Network::Main);
        assert_eq!(of_datadir(sandbox.path()), Some(Network::Main));
    }
}
