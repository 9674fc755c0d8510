//! [`alone`]: what so many callers take without a batcher, who wait for an answer and are woken by it.

use std::sync::{Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A caller, until it has its answer.
#[derive(Default)]
struct Caller {
    answered: Mutex<bool>,
    woken: Condvar,
}

/// Time from when the first of so many callers begins to when the last one was woken, in milliseconds. They begin
/// together, and a thread that one of them wakes as it begins wakes each of them, a pause after that.
pub(super) fn alone(callers: usize, pause: Duration) -> f64 {
    let waiting: Vec<Caller> = (0..callers).map(|_| Caller::default()).collect();
    let (ready, asked) = (Barrier::new(callers), Caller::default());
    let (waiting, ready, asked) = (&waiting, &ready, &asked);
    let times = thread::scope(|scope| {
        scope.spawn(move || {
            asked.wait();
            thread::sleep(pause);
            waiting.iter().for_each(Caller::wake);
        });
        let call = move |caller: &Caller| {
            ready.wait();
            let begun = Instant::now();
            asked.wake();
            caller.wait();
            (begun, Instant::now())
        };
        let threads: Vec<_> =
            waiting.iter().map(|caller| scope.spawn(move || call(caller))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Vec<(Instant, Instant)>>()
    });
    let (begun, ended) = (times.iter().map(|it| it.0).min(), times.iter().map(|it| it.1).max());
    let took = ended.zip(begun).map(|(ended, begun)| ended - begun);
    took.unwrap_or_default().as_secs_f64() * 1e3
}

impl Caller {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let waits = self.woken.wait_while(self.lock(), |answered| !*answered);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    /// Many may wake the same one: the first of them does.
    fn wake(&self) {
        let first = !std::mem::replace(&mut *self.lock(), true);
        if first {
            self.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_wait_for_the_pause() {
        for callers in [1, 5] {
            let took = alone(callers, Duration::from_millis(2));
            assert!(took >= 2.0, "{took} ms for {callers}");
        }
    }
}
