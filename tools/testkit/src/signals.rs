//! Signals to processes that tests started, each by its number.

use std::fs;
use std::process::{Command, Stdio};

/// The processes that a process started.
pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let listed = listed.unwrap_or_default();
    listed.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

/// Sends a signal to a process that may be gone.
pub(crate) fn signal(process: u32, name: &str) {
    let mut command = Command::new("kill");
    command.args([format!("-{name}"), process.to_string()]);
    let _ = command.stderr(Stdio::null()).status();
}
