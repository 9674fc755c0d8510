//! [`run`]: a program from start to end, with what it took as the system tells.
//!
//! Wall time is measured around the whole process, so that starting and cleaning up count. While it
//! runs this thread sleeps and looks: so often that the end is noticed within a few thousandths of the time that
//! it took, and no more often, since each look takes a processor from the program. No program outlives the call.

use crate::error::{BenchError, ErrorKind, go_on};
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

/// The shortest and the longest between two looks whether a program has ended.
const LOOK_EVERY: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(100)];

/// How much of the time that a program took until then may pass until the next look.
const LOOK_AFTER: u32 = 500;

/// How often a program is asked whether it is ready.
const READY_EVERY: Duration = Duration::from_millis(20);

/// How long a program that was asked to stop may take.
const STOP_WAIT: Duration = Duration::from_secs(300);

/// So much of what a failed program said is told.
const SAID_BYTES_MAX: u64 = 2_000;

/// How long is waited for what a failed program said: something that it started may still be there and
/// have its standard error.
const SAID_WAIT: Duration = Duration::from_secs(10);

/// What a program took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// From before it was started until it was gone.
    pub wall_seconds: f64,
    /// Of all its threads, in user and system mode.
    pub cpu_seconds: f64,
    /// Its greatest resident memory. None where it is no more than what this process had when it
    /// started the other: systems count that in.
    pub rss_peak_bytes: Option<u64>,
}

/// Runs `command` to its end, at most for `limit`. The end of what it says on standard error is kept
/// in memory, since a disk that is full may be what it says; standard output goes nowhere.
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
        BenchError::new(ErrorKind::Io, format_args!("{program} cannot be run: {error}"))
    };
    let own_peak = rss_peak_bytes().unwrap_or(0);
    let start = Instant::now();
    let (mut child, said) = spawn(processors, command).map_err(failed)?;
    let mut end = None;
    while !child.has_ended().map_err(failed)? {
        if interrupt.load(Ordering::Relaxed) {
            end = Some(BenchError::interrupted());
        } else if start.elapsed() > limit {
            let seconds = limit.as_secs();
            let message =
                format!("{program} was stopped since it took more than {seconds} seconds");
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
    // A terminal tells both of us.
    if interrupt.load(Ordering::Relaxed) {
        return Err(BenchError::interrupted());
    }
    if !used.status.success() {
        let said = said.recv_timeout(SAID_WAIT).unwrap_or_default();
        // Apus's own exit codes pass through.
        let kind = match used.status.code() {
            Some(1) => ErrorKind::Usage,
            Some(2) => ErrorKind::Invalid,
            Some(4) => ErrorKind::Wrong,
            _ => ErrorKind::Io,
        };
        return Err(BenchError::new(
            kind,
            format_args!("{program} ended with {}: {said}", used.status),
        ));
    }
    let peak = used.rusage.maxrss;
    Ok(Usage {
        wall_seconds,
        cpu_seconds: (used.rusage.utime + used.rusage.stime).as_secs_f64(),
        rss_peak_bytes: (peak > own_peak).then_some(peak),
    })
}

/// Starts a program that goes on, and waits at most for `wait` until it is `ready`.
pub(crate) fn start<T>(
    command: &mut Command,
    wait: Duration,
    interrupt: &AtomicBool,
    mut ready: impl FnMut() -> Option<T>,
) -> Result<(RunningProgram, T), BenchError> {
    let program = name(command);
    let failed = |error: io::Error| {
        BenchError::new(ErrorKind::Io, format_args!("{program} cannot be run: {error}"))
    };
    let (mut child, said) = spawn(None, command).map_err(failed)?;
    let begun = Instant::now();
    loop {
        go_on(interrupt)?;
        if let Some(ready) = ready() {
            return Ok((child, ready));
        }
        if child.has_ended().map_err(failed)? || begun.elapsed() > wait {
            child.stop().map_err(failed)?;
            let said = said.recv_timeout(SAID_WAIT).unwrap_or_default();
            let message = format!("{program} is not ready: {said}");
            return Err(BenchError::new(ErrorKind::Io, message));
        }
        sleep(READY_EVERY);
    }
}

/// A program that says nothing but on standard error, and the end of that.
fn spawn(
    processors: Option<Range<usize>>,
    command: &mut Command,
) -> io::Result<(RunningProgram, Receiver<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = lend(processors, || command.spawn().map(RunningProgram))?;
    let pipe = child.0.stderr.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
    Ok((child, hear(pipe)?))
}

/// Takes in what a program says, so that it never waits, and gives the end of it when that is all.
fn hear(mut pipe: ChildStderr) -> io::Result<Receiver<String>> {
    let (told, said) = channel();
    let hear = move || {
        let (mut end, mut piece) = (Vec::new(), [0; 1024]);
        loop {
            match pipe.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => break,
                Ok(read) => end.extend_from_slice(&piece[..read]),
            }
            end.drain(..end.len().saturating_sub(SAID_BYTES_MAX as usize));
        }
        // A program that ended well is not asked.
        let _ = told.send(String::from_utf8_lossy(&end).trim().to_owned());
    };
    thread::Builder::new().name("said".to_owned()).spawn(hear)?;
    Ok(said)
}

fn name(command: &Command) -> String {
    Path::new(command.get_program())
        .file_name()
        .map_or_else(|| "the program".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A program under way. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct RunningProgram(Child);

impl RunningProgram {
    /// Whether it has ended; it can still be asked what it took.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.0)), options)?.is_some())
    }

    /// Asks it politely to stop, and kills it if that is of no use.
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
        // It was waited for already, as usual, or this is where it goes.
        if let Ok(ended) = self.has_ended() {
            let _ = if ended { Ok(()) } else { self.0.kill() };
            let _ = self.0.wait();
        }
    }
}

/// Greatest memory of this process so far.
fn rss_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

// ---- processors ----
//
// What the kernel and a thread that only hands on do beside one that computes would else be done on a processor that
// is not counted, and a run with one thread would look better than it is. Where a system has no such call, and for a
// program with as many threads as there are processors, nothing is done.

/// Has what this thread starts in `start` run on some processors, counted among those that it may use itself; on the
/// last ones, where there are not as many.
///
/// Where the system does not give this thread its own processors back, what was started is dropped, so it has to be of
/// a kind that ends with that.
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
    fn what_a_program_took() {
        let usage =
            shell("sleep 0.2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done", LONG, false);
        let usage = usage.unwrap();
        assert!(usage.wall_seconds >= 0.2, "{usage:?}");
        assert!(usage.cpu_seconds > 0.0 && usage.cpu_seconds < usage.wall_seconds, "{usage:?}");
    }

    #[test]
    fn memory_is_the_programs_own() {
        // More than this process ever had.
        let megabytes = 64 + rss_peak_bytes().unwrap() / 1_000_000;
        let script = format!("x=$(head -c {megabytes}000000 /dev/zero | tr '\\0' x); :");
        let usage = shell(&script, LONG, false).unwrap();
        assert!(usage.rss_peak_bytes.unwrap() > megabytes * 1_000_000, "{usage:?}");
        assert_eq!(shell(":", LONG, false).unwrap().rss_peak_bytes, None);
    }

    #[test]
    fn failures_say_what_the_program_said() {
        let error = shell("echo first; echo second >&2; exit 2", LONG, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "sh ended with exit status: 2: second");
        let error = shell("kill -9 $$", LONG, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let folder = tempfile::tempdir().unwrap();
        let mut gone = Command::new(folder.path().join("gone"));
        let stop = AtomicBool::new(false);
        let error = run(&mut gone, LONG, &stop).unwrap_err();
        assert!(error.to_string().starts_with("gone cannot be run: "), "{error}");
    }

    /// More than a pipe holds: a caller that does not listen would wait for it forever.
    #[test]
    fn of_much_that_is_said_the_end_is_told() {
        let script = "i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done >&2; exit 3";
        let error = shell(script, LONG, false).unwrap_err();
        let said = error.to_string();
        assert!(
            said.ends_with("line 29999") && (said.len() as u64) < SAID_BYTES_MAX + 50,
            "{said}"
        );
    }

    #[test]
    fn what_takes_too_long_or_is_interrupted_is_stopped() {
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

    /// What a program sees of them.
    fn seen(processors: Option<Range<usize>>) -> usize {
        let output = lend(processors, || Command::new("nproc").output()).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn no_more_than_are_lent() {
        let all = available_parallelism().unwrap().get();
        assert_eq!(seen(Some(0..1)), 1);
        assert_eq!(seen(Some(0..usize::MAX)), all);
        assert_eq!(seen(Some(all..all + 1)), 1);
        assert_eq!(seen(None), all);
        assert_eq!(available_parallelism().unwrap().get(), all, "this thread has its own back");
        assert!(lend(Some(0..1), || Err::<(), _>(io::Error::other("no"))).is_err());
        assert_eq!(available_parallelism().unwrap().get(), all, "after a failure, too");
    }
}
