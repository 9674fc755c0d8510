//! Facts from the system: the process's use of resources, the machine, the program's version, and whether the user has
//! interrupted it.
//!
//! On a system without /proc, numbers are absent rather than wrong.

use crate::failure::{Failure, INTERRUPTED, IO};
use apus_chain::{Params, utc};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, for reports.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// The operating system and the processor family.
    pub(crate) platform: String,
    /// The processor's name.
    pub(crate) cpu: Option<String>,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// The SHA-256 kernel in use.
    pub(crate) sha256: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, name)| name.trim().to_owned());
        Self {
            platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            cpu,
            cores: cores(),
            sha256: apus_sync::sha256_kernel(),
        }
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The number of threads that `--par` asks for; 0 means one per core.
pub(crate) fn threads(par: u16) -> usize {
    match par {
        0 => cores(),
        threads => threads.into(),
    }
}

/// Returns the seconds since 1970 on the machine's clock.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

/// Returns the seconds since 1970, for comparing with block times.
///
/// # Errors
/// If the clock is behind the chain's assumed-valid block: a sync would mistake an old block for the tip.
pub(crate) fn clock(params: &Params) -> Result<i64, Failure> {
    expect_after(now(), params)
}

fn expect_after(now: i64, params: &Params) -> Result<i64, Failure> {
    let known = i64::from(params.default_assume_valid_time);
    if now >= known {
        return Ok(now);
    }
    let failure = Failure::new(
        IO,
        format!(
            "this machine's clock says {}, but Bitcoin Core's assumed-valid block of chain {} is from {}: \
             set the clock, then rerun the command",
            utc(now),
            params.network,
            utc(known)
        ),
    );
    Err(Failure { class: "clock", ..failure })
}

/// Reads a field of /proc/self/status that is in kB, and converts it to bytes.
fn status_bytes(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Memory available to programs, in bytes.
pub(crate) fn available_bytes() -> Option<u64> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes that this process has read from disks so far, not counting what came from the page cache.
pub(crate) fn disk_read_bytes() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// Idle time and total time of all the machine's processors so far, in clock ticks.
pub(crate) fn idle_of_all() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user, nice, system, idle, iowait, irq, softirq, steal. The later fields are already included in the first two.
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace();
    let times: Option<Vec<u64>> = fields.take(8).map(|field| field.parse().ok()).collect();
    let times = times.filter(|times| times.len() >= 5)?;
    Some((times[3] + times[4], times.iter().sum()))
}

/// Memory in use, in bytes.
pub(crate) fn rss_bytes() -> Option<u64> {
    status_bytes("VmRSS")
}

/// Peak memory so far, in bytes.
pub(crate) fn rss_peak_bytes() -> Option<u64> {
    status_bytes("VmHWM")
}

/// Processor time of this process when the program began.
static BEFORE: OnceLock<f64> = OnceLock::new();

/// Records the processor time that the process used before it executed this program: `cargo run` and shells `exec`
/// programs in their own process.
pub(crate) fn begin() {
    BEFORE.get_or_init(process_cpu_seconds);
}

/// Processor time of all the program's threads so far, user and system, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    process_cpu_seconds() - BEFORE.get().copied().unwrap_or_default()
}

fn process_cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// The flag that signals set, once the handlers are registered.
static WATCHED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Returns a flag that SIGINT (Ctrl-C) and SIGTERM set. A second signal ends the program at once.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, Failure> {
    // Register the handlers only once: otherwise the first signal would count as the second.
    if let Some(interrupt) = WATCHED.get() {
        return Ok(Arc::clone(interrupt));
    }
    let interrupt = Arc::clone(WATCHED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        let exit = i32::from(INTERRUPTED);
        let register = || {
            signal_hook::flag::register_conditional_shutdown(signal, exit, Arc::clone(&interrupt))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupt))
        };
        register().map_err(|error| Failure::usage(format!("cannot watch for signals: {error}")))?;
    }
    Ok(interrupt)
}

/// Whether SIGINT or SIGTERM has arrived, including after the end of the sync.
pub(crate) fn was_interrupted() -> bool {
    WATCHED.get().is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
}

/// Commit that the program was built from, if the build set it.
const COMMIT: Option<&str> = option_env!("APUS_COMMIT");

/// The optional features that were built in.
fn features() -> Vec<&'static str> {
    let built_in = [
        ("kernel", cfg!(feature = "kernel")),
        ("cluster", cfg!(feature = "cluster")),
        ("descriptors", cfg!(feature = "descriptors")),
        ("parquet", cfg!(feature = "parquet")),
        ("remote-coins", cfg!(feature = "remote-coins")),
        ("s3", cfg!(feature = "s3")),
        ("sqlite", cfg!(feature = "sqlite")),
        ("tables", cfg!(feature = "tables")),
        ("utreexo", cfg!(feature = "utreexo")),
        ("web", cfg!(feature = "web")),
    ];
    built_in.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect()
}

/// The program's version, for reports.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Program {
    /// The version number.
    pub(crate) apus: &'static str,
    /// The commit of the build.
    pub(crate) commit: Option<&'static str>,
    /// The optional features that were built in.
    pub(crate) features: Vec<&'static str>,
}

impl Program {
    pub(crate) fn this() -> Self {
        Self { apus: version(), commit: COMMIT, features: features() }
    }
}

/// Returns the version number alone.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns the version with commit, features, platform and SHA-256 kernel, for bug reports.
pub(crate) fn long_version() -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(|| {
        let Machine { platform, sha256, .. } = Machine::here();
        let features = features();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        let commit = COMMIT.unwrap_or("unknown");
        format!(
            "{}\ncommit    {commit}\nfeatures  {features}\nplatform  {platform}\nSHA-256   {sha256}",
            version()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Network;

    #[test]
    fn a_clock_behind_the_assumed_valid_block_is_an_error() {
        let main = Params::of(Network::Main);
        let known = i64::from(main.default_assume_valid_time);
        assert_eq!(expect_after(known, main).unwrap(), known);
        for now in [0, known - 1] {
            let failure = expect_after(now, main).unwrap_err();
            assert_eq!((failure.code, failure.class), (IO, "clock"));
            assert!(failure.message.contains("set the clock"), "{}", failure.message);
        }
        assert_eq!(expect_after(0, Params::of(Network::Regtest)).unwrap(), 0);
    }
}
