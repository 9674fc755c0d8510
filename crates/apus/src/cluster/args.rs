//! Arguments of `apus cluster`, its help, and the cluster key.

#[cfg(feature = "utreexo")]
use crate::args::ProofsArg;
use crate::args::{SignatureArgs, SyncArgs, parse_listen, parse_mib, parse_proxy};
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
docs/cluster.md covers everything on one page, from a queue to a finished run.
Workers are trusted: only use machines of your own.";

#[derive(Args)]
#[command(after_help = CLUSTER_HELP)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Run `apus sync`, with other machines processing its segments
    Serve(Box<ServeArgs>),
    /// Process segments for the sync of another machine
    Work(Box<WorkArgs>),
    /// Show active runs, their progress and their workers
    Status(StatusArgs),
    /// Remove a run whose coordinator will not return
    Forget(ForgetArgs),
    /// Print settings for a NATS server that accepts only machines with the key of the cluster
    #[command(after_help = NATS_CONF_HELP)]
    NatsConf(KeyArgs),
}

const NATS_CONF_HELP: &str = "\
Examples:
  A queue for machines with the key only; the file contains no secret:
    apus cluster nats-conf > nats.conf
    nats-server -c nats.conf -js -sd /var/lib/nats";

/// Option for the cluster key.
#[derive(Args)]
pub(crate) struct KeyArgs {
    /// File with the key that all machines of the cluster, and no others, share: it seals their messages. The
    /// coordinator creates it if it is missing. By default ~/.config/apus/cluster.key, or the key itself in the
    /// environment variable APUS_CLUSTER_KEY
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Options for the queue.
#[derive(Args)]
pub(crate) struct LinkArgs {
    /// NATS server, as nats://HOST:PORT or tls://HOST:PORT; separate several servers of a NATS cluster with commas.
    /// Leave user and password out of the URL
    #[arg(long, value_name = "URL")]
    pub(crate) nats: String,

    #[command(flatten)]
    pub(crate) key: KeyArgs,

    /// File with credentials for the server, in NATS's format, if the server does not use the key
    #[arg(long, value_name = "FILE.creds")]
    pub(crate) nats_creds: Option<PathBuf>,

    /// File with the certificates of the authority behind a tls:// server, if this system does not trust it already
    #[arg(long, value_name = "FILE.pem")]
    pub(crate) nats_ca: Option<PathBuf>,
}

/// Option for the objects.
#[derive(Args)]
pub(crate) struct ObjectsArgs {
    /// Place for data too large for a message: a folder that all machines see, or s3://BUCKET/FOLDER, with
    /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT in the environment
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) objects: String,
}

const SERVE_HELP: &str = "\
Examples:
  A queue, on a machine that all others reach, only for machines with the
  key:
    apus cluster nats-conf > nats.conf
    nats-server -c nats.conf -js -sd /var/lib/nats

  A run whose segments go to the machines that ask for them; it writes what
  `apus sync` would:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --hints main.hints \\
         --out snapshot:utxo.dat

  The same without hints, by every rule, joining spends with coins:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --out snapshot:utxo.dat \\
         --out hints:main.hints

  The same with two threads of this machine, so that it needs no second
  process:
    apus cluster serve --nats nats://127.0.0.1:4222 --objects /mnt/shared/apus \\
         --work 2 --blocksdir ~/.bitcoin/blocks --out snapshot:utxo.dat

  With blocks for workers that have no blocks:
    apus cluster serve --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --give-blocks 10.0.0.1:8399 --blocksdir ~/.bitcoin/blocks \\
         --out snapshot:utxo.dat
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --connect 10.0.0.1:8399

  With hints and with every rule and script checked, if each worker has undo
  data next to its blocks:
    apus cluster serve --nats tls://queue.lan:4222 --key-file apus.key \\
         --objects /mnt/shared/apus --blocksdir ~/.bitcoin/blocks \\
         --hints main.hints --assumevalid 0 --out snapshot:utxo.dat

All options of `apus sync` work here, and the run ends as there, with its table,
report and exit code. Machines can share the engines swiftsync (with hints, also
with undo data), mergesync, and utreexo (if each worker has its own proofs).
Interrupted or killed runs resume: rerun the same command. Work that machines
finished meanwhile counts.";

#[derive(Args)]
#[command(after_long_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) sync: SyncArgs,

    #[command(flatten)]
    pub(crate) link: LinkArgs,

    #[command(flatten)]
    pub(crate) objects: ObjectsArgs,

    /// Give a job to another machine after this many seconds without a heartbeat from its worker
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ack_wait: u16,

    /// Percentage of jobs to run twice, on two machines, and cross-check; a difference ends the run and names both
    /// machines
    #[arg(long, value_name = "PERCENT", hide_short_help = true, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) audit: u8,

    /// Number of servers in a NATS cluster that hold each stream. The run continues while more than half of them are
    /// up. By default 3, and 1 with a single server
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) replicas: Option<u8>,

    /// Serve blocks and headers to workers that connect here, with Bitcoin's own protocol, until the run ends: workers
    /// use this address in --connect. Anyone who can reach the address can download blocks. Needs about 300 MB more
    /// memory for the main chain
    #[arg(long, value_name = "IP:PORT", value_parser = parse_listen)]
    pub(crate) give_blocks: Option<SocketAddr>,

    /// Also process jobs here, on this many threads, like a worker with the same folder of blocks. The threads get half
    /// of --dbcache for joined records, in addition to the run's own memory, and at least 64 MiB each
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) work: u16,

    /// For --work: folder for joined records, up to two gigabytes per thread; by default the system's folder for
    /// temporary files
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub(crate) scratchdir: Option<PathBuf>,
}

/// The source of a worker's blocks without a folder.
#[derive(Args)]
pub(crate) struct WorkPeersArgs {
    /// Get the blocks of each job from this node instead of a folder: a name or an address, with `:PORT` if the port is
    /// not the default; may be repeated. Headers come from the coordinator, and the worker keeps no blocks
    #[arg(long, value_name = "NODE", conflicts_with = "blocksdir")]
    pub(crate) connect: Vec<String>,

    /// Connect through this SOCKS5 proxy, such as Tor, to the nodes that serve blocks or proofs. The proxy resolves
    /// host names
    #[arg(long, value_name = "IP:PORT", requires = ASKED, value_parser = parse_proxy)]
    pub(crate) proxy: Option<SocketAddr>,

    /// Use the encrypted transport (BIP-324) with nodes that support it: 1 or 0
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) v2transport: u8,

    /// Give a job back after this many seconds without a requested block from any node
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
}

const WORK_HELP: &str = "\
Examples:
  On a machine that helps, with its own blocks or blocks in a folder that all
  machines see:
    apus cluster work --nats tls://queue.lan:4222 --key-file apus.key \\
         --objects /mnt/shared/apus --blocksdir /mnt/shared/blocks

  For a run with proofs, each worker needs them as well, or a bridge node to
  request them from:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir /mnt/shared/blocks --proofs /mnt/shared/proofs

  With two cores, and for all future runs:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --blocksdir ~/.bitcoin/blocks --par 2 --stay

  Without any blocks; the blocks of each job come from a node of yours:
    apus cluster work --nats nats://10.0.0.1:4222 --objects /mnt/shared/apus \\
         --connect 10.0.0.2

A worker waits for a run, does segments of the newest one until that run ends,
and then ends, too. It keeps nothing. If you interrupt it, it gives its jobs
back at once; if it is killed, they go to others when its signs of life stop.";

/// Argument group of the nodes that a worker requests blocks or proofs from.
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

    /// Source of proofs of spent coins, for runs of the engine utreexo: a folder with proof files, some of which may be
    /// missing, or `peer:` and the address of a bridge node, which may be repeated, or `peers` for those among the nodes
    /// that give the blocks
    #[cfg(feature = "utreexo")]
    #[arg(long, value_name = "DIR|peer:HOST[:PORT]|peers")]
    pub(crate) proofs: Vec<ProofsArg>,

    /// Folder for joined records, up to two gigabytes per thread; by default the system's folder for
    /// temporary files
    #[arg(long, alias = "scratch", value_name = "DIR", hide_short_help = true)]
    pub(crate) scratchdir: Option<PathBuf>,

    /// Threads, each with one job at a time; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    #[command(flatten)]
    pub(crate) signatures: SignatureArgs,

    /// Memory for joined records, in MiB, shared by all threads, at least 64 per thread. The rest goes to
    /// --scratchdir
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = parse_mib)]
    pub(crate) dbcache: u64,

    /// Name of this machine; by default its host name and the number of the process
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Wait for the next run when a run has ended
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
  The progress of each run, and its workers:
    apus cluster status --nats nats://127.0.0.1:4222

  The same for programs:
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

const FORGET_HELP: &str = "\
Examples:
  A run that `apus cluster status` shows without a sign of life from its
  coordinator, and its objects:
    apus cluster forget 3f9a --nats nats://127.0.0.1:4222 \\
         --objects /mnt/shared/apus

The coordinator's work folder stays. The command that started the run would
resume it from there.";

#[derive(Args)]
#[command(after_help = FORGET_HELP)]
pub(crate) struct ForgetArgs {
    /// The run: the first digits of its name, as `apus cluster status` shows it
    #[arg(value_name = "RUN")]
    pub(crate) run: String,

    #[command(flatten)]
    pub(crate) link: LinkArgs,

    /// The place of its objects, as for `apus cluster serve`. Without it, the objects stay
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) objects: Option<String>,
}

// ---- the key ----

/// Environment variable for the key itself, as 64 hexadecimal digits.
const KEY: &str = "APUS_CLUSTER_KEY";

/// Maximum length of a key file, in bytes.
const FILE_BYTES_MAX: u64 = 200;

/// What to do if there is no key yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPolicy {
    /// Create the key.
    Made,
    /// Tell the user to copy the key from the coordinator.
    Copied,
}

/// Returns the cluster key of this machine.
///
/// Processes of one user share the key in its default place; on other machines the user copies the file. The key is
/// never on a command line, where other users could read it.
pub(super) fn key(args: &KeyArgs, no_key: KeyPolicy) -> Result<ClusterKey, Failure> {
    let given = env::var(KEY).ok().filter(|text| !text.is_empty());
    if let (None, Some(text)) = (&args.key_file, given) {
        return ClusterKey::from_hex(&text).ok_or_else(|| not_a_key(KEY));
    }
    let path = args.key_file.clone().or_else(default_place).ok_or_else(|| {
        Failure::usage(format!(
            "HOME is not set, so the cluster key has no default place: give the key's file with --key-file, or set \
             the key in the environment variable {KEY}"
        ))
    })?;
    match File::open(&path) {
        Ok(file) => read(&path, file),
        Err(error) if error.kind() == ErrorKind::NotFound => match no_key {
            KeyPolicy::Made => make(&path),
            KeyPolicy::Copied => Err(Failure::usage(format!(
                "{}: no cluster key here: copy the file from the coordinator's machine, or use another one with \
                 --key-file",
                path.display()
            ))),
        },
        Err(error) => Err(Failure::io(&path, error)),
    }
}

fn not_a_key(place: impl std::fmt::Display) -> Failure {
    Failure::usage(format!(
        "{place}: a cluster key has 64 hexadecimal digits: make one with openssl rand -hex 32"
    ))
}

/// Returns the key's default path: in the user's configuration folder.
fn default_place() -> Option<PathBuf> {
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
    ClusterKey::from_hex(&text).ok_or_else(|| not_a_key(path.display()))
}

/// Fails if others can read the key: anyone who has it can pose as any machine of the cluster.
fn expect_private(path: &Path, file: &File) -> Result<(), Failure> {
    let mode = file.metadata().map_err(|error| Failure::io(path, error))?.permissions().mode();
    match mode & 0o027 {
        0 => Ok(()),
        _ => Err(Failure::usage(format!(
            "{}: other users of this machine can read or change the cluster key: run chmod 600 {0}. Make a new key \
             if others may have read it",
            path.display()
        ))),
    }
}

/// Creates a key. If another process does so at the same time, one of the two keys wins.
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
            "{place}: created the cluster key; other machines that take part need a copy of this file"
        ));
    }
    read(path, File::open(path).map_err(failed)?)
}
