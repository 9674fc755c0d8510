//! [`lend`]: to some program, no more processors than it has threads for.
//!
//! What the kernel and a thread that only hands on do beside one that computes would else be done on a processor that
//! is not counted, and a run with one thread would look better than it is. Where a system has no such call, and for a
//! program with as many threads as there are processors, nothing is done.

use std::io;

/// Has what this thread starts in `start` run on so many processors, the first of those that it may use itself.
///
/// Where the system does not give this thread its own processors back, what was started is dropped, so it has to be of
/// a kind that ends with that.
pub(crate) fn lend<T>(
    processors: Option<usize>,
    start: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let Some(wanted) = processors else { return start() };
    system::on_first(wanted.max(1), start)
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::io;

    pub(super) fn on_first<T>(
        wanted: usize,
        start: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let own = sched_getaffinity(None)?;
        let mut first = CpuSet::new();
        let allowed = (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor));
        allowed.take(wanted).for_each(|processor| first.set(processor));
        sched_setaffinity(None, &first)?;
        let started = start();
        sched_setaffinity(None, &own)?;
        started
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    pub(super) fn on_first<T>(_: usize, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
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
    fn seen(processors: Option<usize>) -> usize {
        let output = lend(processors, || Command::new("nproc").output()).unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn no_more_than_are_lent() {
        let all = available_parallelism().unwrap().get();
        assert_eq!(seen(Some(1)), 1);
        assert_eq!(seen(Some(usize::MAX)), all);
        assert_eq!(seen(None), all);
        assert_eq!(available_parallelism().unwrap().get(), all, "this thread has its own back");
        assert!(lend(Some(1), || Err::<(), _>(io::Error::other("no"))).is_err());
        assert_eq!(available_parallelism().unwrap().get(), all, "after a failure, too");
    }
}
