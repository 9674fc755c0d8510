//! The key of a cluster: where it is looked for, and how it comes to be.
//!
//! Machines of one user find it in the same place by themselves, so the first command needs no more than the queue; for other
//! machines the file is copied. It is never on a command line, where others could read it.

use super::args::KeyArgs;
use crate::failure::Failure;
use crate::print::{self, hex};
use apus_cluster::ClusterKey;
use apus_storage::{create_private_dir, publish_new_private_file};
use std::env;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
