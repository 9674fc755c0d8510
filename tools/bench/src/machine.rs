//! [`BenchMachine`]: the machine that was measured, as far as numbers depend on it.
//!
//! A value that the system does not report is absent rather than guessed.

use apus_hash::Sha256Kernel;
use serde::{Deserialize, Serialize};
use std::fs;

/// A machine and its system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchMachine {
    /// Operating system and processor family.
    pub platform: String,
    /// The system's version.
    pub system: Option<String>,
    /// The processor's name.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// The SHA-256 kernel in use.
    pub sha256: String,
    /// Average number of programs that wanted a core, over the last minute.
    pub load: Option<f64>,
}

impl BenchMachine {
    /// This machine.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let system = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Self {
            platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            system: system.map(|version| version.trim().to_owned()),
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&meminfo, "MemTotal").and_then(kilobytes),
            sha256: Sha256Kernel::current().name().to_owned(),
            load: load(&fs::read_to_string("/proc/loadavg").unwrap_or_default()),
        }
    }

    /// Whether other programs were running, if that is known.
    pub fn is_busy(&self) -> bool {
        self.load.is_some_and(|load| load > LOAD_MAX)
    }
}

/// An idle machine is below this load.
const LOAD_MAX: f64 = 0.3;

/// The value after `name` and a colon.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.trim_start().strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// The first of the three averages.
fn load(loadavg: &str) -> Option<f64> {
    loadavg.split(' ').next()?.parse().ok()
}

/// A size in /proc's notation, in bytes.
fn kilobytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_parsed() {
        let text = "model\t\t: 17\nmodel name\t: AMD EPYC \nMemTotal:       24 kB\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "MemTotal").and_then(kilobytes), Some(24_576));
        assert_eq!(field(text, "MemFree"), None);
        assert_eq!(kilobytes("24"), None);
        assert_eq!(load("5.15 7.12 5.55 3/211 16121"), Some(5.15));
        assert_eq!(load(""), None);
    }

    #[test]
    fn there_is_a_core_and_a_kernel() {
        let here = BenchMachine::here();
        assert!(here.cores >= 1);
        assert_eq!(here.sha256, Sha256Kernel::current().name());
    }
}
