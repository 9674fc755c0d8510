//! [`lend`]: to some program, no more processors than it has threads for.
//!
//! What the kernel and a thread that only hands on do beside one that computes would else be done on a processor that
//! is not counted, and a run with one thread would look better than it is. Where a system has no such call, and for a
//! program with as many threads as there are processors, nothing is done.

use core::ops::Range;
use std::io;

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
