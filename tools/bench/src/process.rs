//! [`run`]: runs a program to its end, and returns its resource usage as the system reports it.
//!
//! Wall time covers the whole process, including start and cleanup. This thread sleeps and polls: often
//! enough to notice the end within a few thousandths of the elapsed time, and no more often, because each
//! poll takes a processor from the program. No program outlives the call.

use crate::error::{BenchError, ErrorKind, check_interrupt};
use core::ops::Range;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// The shortest and the longest interval between two polls for a program's end.
const LOOK_EVERY: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(100)];

/// The polling interval is at most this fraction of the time elapsed so far.
const LOOK_AFTER: u32 = 500;

/// Interval between polls for readiness.
const READY_EVERY: Duration = Duration::from_millis(20);

/// Time limit for a program that was asked to stop.
const STOP_WAIT: Duration = Duration::from_secs(300);

/// Maximum length of a failed program's output in an error.
const OUTPUT_BYTES_MAX: u64 = 2_000;

/// Time limit for reading a failed program's output: one of its child processes may still hold its standard
/// error.
const OUTPUT_WAIT: Duration = Duration::from_secs(10);

/// Resource usage of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Wall time from before the program starts until it is gone.
    pub wall_seconds: f64,
    /// Processor time of all its threads, in user and system mode.
    pub cpu_seconds: f64,
    /// Its peak resident memory. `None` if it is not above this process's own peak when it started the
    /// program: systems count that in.
    pub rss_peak_bytes: Option<u64>,
}

/// Runs `command` to its end, at most for `limit`. Keeps the end of its standard error in memory, since a
/// full disk may be the problem; discards standard output.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    interrupt: &AtomicBool,
) -> Result<Usage, BenchError> {
    run_on(None, command, limit, interrupt)
}

/// The same on some [processors](lend).
pub(crate) fn run_on(
    processors: Option<Range<usize>>,
    command: &mut Command,
    limit: Duration,
    interrupt: &AtomicBool,
) -> Result<Usage, BenchError> {
    let program = name(command);
    let failed = |error: io::Error| {
        BenchError::new(ErrorKind::Io, format_args!("cannot run {program}: {error}"))
    };
    let own_peak = rss_peak_bytes().unwrap_or(0);
    let start = Instant::now();
    let (mut child, output) = spawn(processors, command).map_err(failed)?;
    let mut end = None;
    while !child.has_ended().map_err(failed)? {
        if interrupt.load(Ordering::Relaxed) {
            end = Some(BenchError::interrupted());
        } else if start.elapsed() > limit {
            let seconds = limit.as_secs();
            let message = format!("{program} was stopped: it took more than {seconds} seconds");
            end = Some(BenchError::new(ErrorKind::Io, message));
        }
        if end.is_some() {
            child.stop().map_err(failed)?;
            break;
        }
        let [shortest, longest] = LOOK_EVERY;
        sleep((start.elapsed() / LOOK_AFTER).clamp(shortest, longest));
    }
    let wall_seconds = start.elapsed().as_secs_f64();
    let used = child.0.wait4().map_err(failed)?;
    if let Some(error) = end {
        return Err(error);
    }
    // A terminal signals both processes.
    if interrupt.load(Ordering::Relaxed) {
        return Err(BenchError::interrupted());
    }
    if !used.status.success() {
        let output = output.recv_timeout(OUTPUT_WAIT).unwrap_or_default();
        // Apus's own exit codes pass through.
        let kind = match used.status.code() {
            Some(1) => ErrorKind::Usage,
            Some(2) => ErrorKind::Invalid,
            Some(4) => ErrorKind::Wrong,
            _ => ErrorKind::Io,
        };
        return Err(BenchError::new(
            kind,
            format_args!("{program} ended with {}: {output}", used.status),
        ));
    }
    let peak = used.rusage.maxrss;
    Ok(Usage {
        wall_seconds,
        cpu_seconds: (used.rusage.utime + used.rusage.stime).as_secs_f64(),
        rss_peak_bytes: (peak > own_peak).then_some(peak),
    })
}

/// Starts a long-running program, and waits at most for `wait` until it is `ready`.
pub(crate) fn start<T>(
    command: &mut Command,
    wait: Duration,
    interrupt: &AtomicBool,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<(RunningProgram, T), BenchError> {
    let program = name(command);
    let failed = |error: io::Error| {
        BenchError::new(ErrorKind::Io, format_args!("cannot run {program}: {error}"))
    };
    let (mut child, output) = spawn(None, command).map_err(failed)?;
    let begun = Instant::now();
    loop {
        check_interrupt(interrupt)?;
        if let Some(ready) = ready() {
            return Ok((child, ready));
        }
        if child.has_ended().map_err(failed)? || begun.elapsed() > wait {
            child.stop().map_err(failed)?;
            let output = output.recv_timeout(OUTPUT_WAIT).unwrap_or_default();
            let message = format!("{program} is not ready: {output}");
            return Err(BenchError::new(ErrorKind::Io, message));
        }
        sleep(READY_EVERY);
    }
}

/// Starts a program with only its standard error captured; returns it and a receiver of the output's end.
fn spawn(
    processors: Option<Range<usize>>,
    command: &mut Command,
) -> io::Result<(RunningProgram, Receiver<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = lend(processors, || command.spawn().map(RunningProgram))?;
    let pipe = child.0.stderr.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
    Ok((child, collect_stderr(pipe)?))
}

/// Reads a program's output, so that it never blocks, and sends the end of it when it is complete.
fn collect_stderr(mut pipe: ChildStderr) -> io::Result<Receiver<String>> {
    let (sender, output) = channel();
    let collect_stderr = move || {
        let (mut end, mut piece) = (Vec::new(), [0; 1024]);
        loop {
            match pipe.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => break,
                Ok(read) => end.extend_from_slice(&piece[..read]),
            }
            end.drain(..end.len().saturating_sub(OUTPUT_BYTES_MAX as usize));
        }
        // For a successful program there is no receiver any more.
        let _ = sender.send(String::from_utf8_lossy(&end).trim().to_owned());
    };
    thread::Builder::new().name("output".to_owned()).spawn(collect_stderr)?;
    Ok(output)
}

fn name(command: &Command) -> String {
    Path::new(command.get_program())
        .file_name()
        .map_or_else(|| "the program".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RunningProgram(Child);

impl RunningProgram {
    /// Whether it has ended; its usage can still be read.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.0)), options)?.is_some())
    }

    /// Asks it to stop, and kills it if it does not.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        if self.has_ended()? {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.0), Signal::TERM)?;
        let asked = Instant::now();
        while !self.has_ended()? {
            if asked.elapsed() > STOP_WAIT {
                return self.0.kill();
            }
            sleep(LOOK_EVERY[0]);
        }
        Ok(())
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Usually the program has ended already; otherwise kill it here.
        if let Ok(ended) = self.has_ended() {
            let _ = if ended { Ok(()) } else { self.0.kill() };
            let _ = self.0.wait();
        }
    }
}

/// Peak memory of this process so far.
fn rss_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

// ---- processors ----
//
// A sync also causes work in the kernel and in threads that only pass data on. On another, uncounted
// processor that work would make a single-threaded run look better than it is. Without such a system call,
// and for a program with as many threads as there are processors, this does nothing.

/// Calls `start` so that programs it starts run on some of the processors that this thread may use, counted
/// from its first; on the last ones if there are too few.
///
/// If the system does not restore this thread's own processors, the started program is dropped, so dropping
/// it must end it.
pub(crate) fn lend<T>(
    processors: Option<Range<usize>>,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let Some(wanted) = processors else { return start() };
    system::on(wanted, start)
}

#[cfg(target_os = "linux")]
mod system {
    use core::ops::Range;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::io;

    pub(super) fn on<T>(
        wanted: Range<usize>,
        start: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let own = sched_getaffinity(None)?;
        let allowed = || (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor));
        let wanted_count = wanted.len().max(1);
        let first = wanted.start.min(allowed().count().saturating_sub(wanted_count));
        let mut lent = CpuSet::new();
        allowed().skip(first).take(wanted_count).for_each(|processor| lent.set(processor));
        sched_setaffinity(None, &lent)?;
        let started = start();
        sched_setaffinity(None, &own)?;
        started
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use core::ops::Range;
    use std::io;

    pub(super) fn on<T>(_: Range<usize>, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        start()
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration, interrupt: bool) -> Result<Usage, BenchError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(&mut command, limit, &AtomicBool::new(interrupt))
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn a_programs_usage_is_measured() {
        let usage =
            shell("sleep 0.2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done", LONG, false);
        let usage = usage.unwrap();
        assert!(usage.wall_seconds >= 0.2, "{usage:?}");
        assert!(usage.cpu_seconds > 0.0 && usage.cpu_seconds < usage.wall_seconds, "{usage:?}");
    }

    #[test]
    fn peak_memory_excludes_the_parents_own() {
        // More than this process ever had.
        let megabytes = 64 + rss_peak_bytes().unwrap() / 1_000_000;
        let script = format!("x=$(head -c {megabytes}000000 /dev/zero | tr '\\0' x); :");
        let usage = shell(&script, LONG, false).unwrap();
        assert!(usage.rss_peak_bytes.unwrap() > megabytes * 1_000_000, "{usage:?}");
        assert_eq!(shell(":", LONG, false).unwrap().rss_peak_bytes, None);
    }

    #[test]
    fn failures_include_the_programs_output() {
        let error = shell("echo first; echo second >&2; exit 2", LONG, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "sh ended with exit status: 2: second");
        let error = shell("kill -9 $$", LONG, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let folder = tempfile::tempdir().unwrap();
        let mut gone = Command::new(folder.path().join("gone"));
        let stop = AtomicBool::new(false);
        let error = run(&mut gone, LONG, &stop).unwrap_err();
        assert!(error.to_string().starts_with("cannot run gone: "), "{error}");
    }

    /// More than a pipe holds: the program would block forever if no one read it.
    #[test]
    fn long_output_is_cut_to_its_end() {
        let script = "i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done >&2; exit 3";
        let error = shell(script, LONG, false).unwrap_err();
        let output = error.to_string();
        assert!(
            output.ends_with("line 29999") && (output.len() as u64) < OUTPUT_BYTES_MAX + 50,
            "{output}"
        );
    }

    #[test]
    fn programs_are_stopped_at_the_limit_or_an_interrupt() {
        let begun = Instant::now();
        let error = shell("exec sleep 50", Duration::from_millis(50), false).unwrap_err();
        assert!(error.to_string().contains("took more than"), "{error}");
        let error = shell("exec sleep 50", LONG, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert!(begun.elapsed() < Duration::from_secs(40));
    }
}

#[cfg(test)]
mod processors_tests {
    use super::*;
    use std::process::Command;
    use std::thread::available_parallelism;

    /// The number of processors that a program sees.
    fn seen(processors: Option<Range<usize>>) -> usize {
        let output = lend(processors, || Command::new("nproc").output()).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_program_sees_only_lent_processors() {
        let all = available_parallelism().unwrap().get();
        assert_eq!(seen(Some(0..1)), 1);
        assert_eq!(seen(Some(0..usize::MAX)), all);
        assert_eq!(seen(Some(all..all + 1)), 1);
        assert_eq!(seen(None), all);
        assert_eq!(
            available_parallelism().unwrap().get(),
            all,
            "this thread has its own processors back"
        );
        assert!(lend(Some(0..1), || Err::<(), _>(io::Error::other("no"))).is_err());
        assert_eq!(available_parallelism().unwrap().get(), all, "after a failure, too");
    }
}
