//! `apus cluster`: its options and its help.

#[cfg(feature = "utreexo")]
use crate::args::ProofsArg;
use crate::args::{SyncArgs, parse_listen, parse_mib, parse_proxy};
use crate::failure::Failure;
use crate::print::{self, hex};
use apus_cluster::ClusterKey;
use apus_storage::{create_private_dir, publish_new_private_file};
use clap::{ArgGroup, Args, Subcommand};
use std::env;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const CLUSTER_HELP: &str = "\
docs/cluster.md has all of it on one page, from a queue to a finished run.
Workers are trusted: let none take part that is not yours.";

#[derive(Args)]
#[command(after_help = CLUSTER_HELP)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Do a run as `apus sync` does, with its segments given to other machines
    Serve(Box<ServeArgs>),
    /// Do segments of a run for another machine
    Work(WorkArgs),
    /// Show the runs that go on, how far they are and who is at them
    Status(StatusArgs),
    /// Print settings of a NATS server that lets in those alone who have the key of the cluster
    #[command(after_help = NATS_CONF_HELP)]
    NatsConf(KeyArgs),
}

const NATS_CONF_HELP: &str = "\
Examples:
  A queue that only machines with the key may use; no secret stands in the file:
    apus cluster nats-conf > nats.conf
    nats-server -c nats.conf -js -sd /var/lib/nats";

/// The key of the cluster.
#[derive(Args)]
pub(crate) struct KeyArgs {
    /// File with the key that all machines of the cluster have and nobody else: what they send each other is sealed with it.
    /// The coordinator makes it where it is not there. ~/.config/apus/cluster.key if not given, or the key itself
    /// in the environment variable APUS_CLUSTER_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Where the queue is.
#[derive(Args)]
pub(crate) struct LinkArgs {
    /// The NATS server, as nats://HOST:PORT or tls://HOST:PORT; several of a cluster with commas between. It
    /// has no user and no password in it
    #[arg(long, value_name = "URL")]
    pub(crate) nats: String,

    #[command(flatten)]
    pub(crate) key: KeyArgs,

    /// File with credentials for the server, as NATS makes them, where it does not go by the key
    #[arg(long, value_name = "FILE.creds")]
    pub(crate) nats_creds: Option<PathBuf>,

    /// File with the certificates of those who may sign the server's, for tls:// where it is not one of those
    /// that this system knows
    #[arg(long, value_name = "FILE.pem")]
    pub(crate) nats_ca: Option<PathBuf>,
}

/// Where the objects are.
#[derive(Args)]
pub(crate) struct ObjectsArgs {
    /// What is too large for a message: a folder that all machines see, or s3://BUCKET/FOLDER, with
    /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT in the environment
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) objects: String,
}

const SERVE_HELP: &str = "\
Examples:
  A queue, on a machine that all others reach, which lets in those alone who
  have the key:
    apus cluster nats-conf > nats.conf
    nats-server -c nats.conf -js -sd /var/lib/nats

  A run whose segments are for all that ask for them; it writes what `apus sync`
  would:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --out snapshot:utxo.dat

  The same without hints, under every rule, by joining spends with coins:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --out snapshot:utxo.dat \\
         --out hints:main.hints

  The same on two threads of this machine as well, so that it needs no second
  process:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --work 2 --blocksdir ~/.bitcoin/blocks --out snapshot:utxo.dat

  With blocks for workers that have none:
    apus cluster serve --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --give-blocks 10.0.0.1:8399 --blocksdir ~/.bitcoin/blocks \\
         --out snapshot:utxo.dat
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --connect 10.0.0.1:8399

  By hints with every rule and script checked, where each worker has undo data
  beside its blocks:
    apus cluster serve --nats tls://queue.lan:4222 --key-file apus.key \\
         --objects /mnt/shared/apus --blocksdir ~/.bitcoin/blocks \\
         --hints main.hints --assumevalid 0 --out snapshot:utxo.dat

All options of `apus sync` are here, and the run ends as there, with its table,
report and exit code. Of the engines, swiftsync is shared, by hints and with
undo data, mergesync, and utreexo, for which each worker has proofs of its own.
Interrupted or killed, it goes on where it was when the same command is given
again; what machines answered meanwhile counts.";

#[derive(Args)]
#[command(after_long_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) sync: SyncArgs,

    #[command(flatten)]
    pub(crate) link: LinkArgs,

    #[command(flatten)]
    pub(crate) objects: ObjectsArgs,

    /// A job goes to another machine when the one that has it gave no sign of life for so many seconds
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ack_wait: u16,

    /// Have so many of a hundred jobs done twice, by two machines, and compare what they leave; a difference ends
    /// the run and names both
    #[arg(long, value_name = "PERCENT", hide_short_help = true, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) audit: u8,

    /// Of a cluster of NATS servers, how many have each stream: one less may die. 3 if not given, and 1 where there is
    /// one server alone
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) replicas: Option<u8>,

    /// Hand blocks and headers to workers that connect here, by Bitcoin's own protocol, while the run lasts: they name this
    /// address by --connect. Others that reach it get them as well. Takes some 300 MB more for the main chain
    #[arg(long, value_name = "IP:PORT", value_parser = parse_listen)]
    pub(crate) give_blocks: Option<SocketAddr>,

    /// Do jobs here, too, on so many threads, as a worker would that has the same folder of blocks. They have half of
    /// --dbcache for records that are joined, besides what the run itself has, and 64 MiB each at least
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) work: u16,

    /// For --work: folder for records that are joined, of which each thread may need two gigabytes; that of the
    /// system for temporary files if not given
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) scratch: Option<PathBuf>,
}

/// Where blocks come from without a folder of them.
#[derive(Args)]
pub(crate) struct WorkPeersArgs {
    /// Without a folder of blocks: ask this node for the blocks of each job, by name or address, and `:PORT` if it is
    /// not the usual one; may be given more than once. Headers come with the run, and nothing is kept
    #[arg(long, value_name = "NODE", conflicts_with = "blocksdir")]
    pub(crate) connect: Vec<String>,

    /// Go through this SOCKS5 proxy, as of Tor, to nodes that are asked for blocks or proofs: names are not looked up
    /// here
    #[arg(long, value_name = "IP:PORT", requires = ASKED, value_parser = parse_proxy)]
    pub(crate) proxy: Option<SocketAddr>,

    /// Use the encrypted transport (BIP-324) with nodes that have it: 1 or 0
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) v2transport: u8,

    /// Give a job back after so many seconds in which no node sent anything useful
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
}

const WORK_HELP: &str = "\
Examples:
  On a machine that is to help, with blocks of its own or in a folder that all
  see:
    apus cluster work --nats tls://queue.lan:4222 --key-file apus.key \\
         --objects /mnt/shared/apus --blocksdir /mnt/shared/blocks

  Where the run goes by proofs, each worker has them as well, or a bridge node
  to ask:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir /mnt/shared/blocks --proofs /mnt/shared/proofs

  With two of its cores, and for any run to come:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --par 2 --stay

  Without any blocks: a node of yours is asked for those of each job:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --connect 10.0.0.2

A machine waits for a run, does segments of the newest one until it has ended,
and ends as well. It keeps nothing. Interrupted, it gives its jobs back at once;
killed, they go to others when its signs of life are missed.";

/// Nodes that a worker asks for something.
const ASKED: &str = "asked";
const ASKED_BY: &[&str] =
    if cfg!(feature = "utreexo") { &["connect", "proofs"] } else { &["connect"] };

#[derive(Args)]
#[command(after_help = WORK_HELP)]
#[command(group = ArgGroup::new(ASKED).args(ASKED_BY.iter().copied()).multiple(true))]
pub(crate) struct WorkArgs {
    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only; jobs whose blocks it lacks go to
    /// other machines
    #[arg(long, value_name = "DIR", required_unless_present = "connect")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// Where proofs of what blocks spend come from, for runs of the engine utreexo: a folder with files of them, of which
    /// some may be missing, or `peer:` and the address of a bridge node, which may be given more than once
    #[cfg(feature = "utreexo")]
    #[arg(long, value_name = "DIR|peer:HOST[:PORT]")]
    pub(crate) proofs: Vec<ProofsArg>,

    /// Folder for records that are joined, of which each thread may need two gigabytes; that of the system for
    /// temporary files if not given
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) scratch: Option<PathBuf>,

    /// Threads, each of which does a job at a time; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    /// Memory for records that are joined, in MiB, shared by all threads; each has 64 at least. What finds no
    /// room in it goes to --scratch
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = parse_mib)]
    pub(crate) dbcache: u64,

    /// By what this machine is known; its own name and the number of the process if not given
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Stay when the run has ended, and wait for the next
    #[arg(long)]
    pub(crate) stay: bool,

    #[command(flatten)]
    pub(crate) peers: WorkPeersArgs,

    #[command(flatten)]
    pub(crate) link: LinkArgs,

    #[command(flatten)]
    pub(crate) objects: ObjectsArgs,
}

const STATUS_HELP: &str = "\
Examples:
  How far each run is, and which machines are at it:
    apus cluster status --nats nats://127.0.0.1:4222

  The same for a program:
    apus cluster status --nats nats://127.0.0.1:4222 --json";

#[derive(Args)]
#[command(after_help = STATUS_HELP)]
pub(crate) struct StatusArgs {
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) link: LinkArgs,
}

// ---- the key ----

/// Where the key itself may stand, as 64 hexadecimal digits.
const KEY: &str = "APUS_CLUSTER_KEY";

/// No file with a key is longer.
const FILE_BYTES_MAX: u64 = 200;

/// What is done where there is no key yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKey {
    /// It is made.
    Made,
    /// It comes from where the coordinator is.
    Copied,
}

/// The key of this machine.
///
/// Machines of one user find it in the same place by themselves; for others the file is copied. It is never on a command line,
/// where other users could read it.
pub(super) fn key(args: &KeyArgs, no_key: NoKey) -> Result<ClusterKey, Failure> {
    let given = env::var(KEY).ok().filter(|text| !text.is_empty());
    if let (None, Some(text)) = (&args.key_file, given) {
        return ClusterKey::from_hex(&text).ok_or_else(|| no_digits(KEY));
    }
    let path = args.key_file.clone().or_else(usual_place).ok_or_else(|| {
        Failure::usage(format!(
            "HOME is not set, so there is no usual place for the key of the cluster: name its file by --key-file, or give the \
             key by the environment variable {KEY}"
        ))
    })?;
    match File::open(&path) {
        Ok(file) => read(&path, file),
        Err(error) if error.kind() == ErrorKind::NotFound => match no_key {
            NoKey::Made => make(&path),
            NoKey::Copied => Err(Failure::usage(format!(
                "{}: the key of the cluster is not there: copy that file from the coordinator's machine, or name it by \
                 --key-file",
                path.display()
            ))),
        },
        Err(error) => Err(Failure::io(&path, error)),
    }
}

fn no_digits(place: impl std::fmt::Display) -> Failure {
    Failure::usage(format!(
        "{place}: a key of a cluster has 64 hexadecimal digits: make one by openssl rand -hex 32"
    ))
}

/// Where the key is unless something else is said.
fn usual_place() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("apus/cluster.key"))
}

fn read(path: &Path, file: File) -> Result<ClusterKey, Failure> {
    expect_private(path, &file)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| Failure::io(path, error))?;
    ClusterKey::from_hex(&text).ok_or_else(|| no_digits(path.display()))
}

/// Who reads the key is one of the machines, for all others.
fn expect_private(path: &Path, file: &File) -> Result<(), Failure> {
    let mode = file.metadata().map_err(|error| Failure::io(path, error))?.permissions().mode();
    match mode & 0o027 {
        0 => Ok(()),
        _ => Err(Failure::usage(format!(
            "{}: others on this machine can read or change the key of the cluster: chmod 600 {0}, and make a new key if they \
             may have read it",
            path.display()
        ))),
    }
}

/// Makes a key. Another process may do so at the same time, and then that one's counts.
fn make(path: &Path) -> Result<ClusterKey, Failure> {
    let failed = |error| Failure::io(path, error);
    let mut secret = [0_u8; 32];
    getrandom::fill(&mut secret).map_err(|error| Failure::io(path, error))?;
    let draft = path.with_extension(format!("key.{}.tmp", std::process::id()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        create_private_dir(folder).map_err(failed)?;
    }
    if publish_new_private_file(path, &draft, format!("{}\n", hex(&secret)).as_bytes())
        .map_err(failed)?
    {
        let place = path.display();
        print::aside(format_args!(
            "{place}: the key of the cluster, made just now; other machines that take part need a copy of this file"
        ));
    }
    read(path, File::open(path).map_err(failed)?)
}
