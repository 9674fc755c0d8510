//! [`Seeds`]: asks the network's seeds for addresses, and again whenever there is none left to try.

use super::guard::Guard;
use super::{Shared, unix_time};
use crate::addresses::{resolve_seeds, seeds_by_name};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long seeds may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seeds are asked again when addresses have been missing for so long, in milliseconds.
const DRY_MS: u64 = 60_000;

/// And for so long after they were asked often: they are other people's machines.
const DRY_MS_MAX: u64 = 960_000;

/// With so many peers the seeds need not be asked for more.
const ENOUGH_PEERS: usize = 4;

/// When to ask.
#[derive(Debug)]
struct Rhythm {
    was_asked: bool,
    dry_since: Option<u64>,
    wait_ms: u64,
}

impl Rhythm {
    const NEW: Self = Self { was_asked: false, dry_since: None, wait_ms: DRY_MS };

    /// Whether the seeds are to be asked now: first of all, and then when there was no address to
    /// try for long.
    fn is_due(&mut self, is_dry: bool, now: u64) -> bool {
        if !std::mem::replace(&mut self.was_asked, true) {
            return true;
        }
        if !is_dry {
            (self.dry_since, self.wait_ms) = (None, DRY_MS);
            return false;
        }
        let since = *self.dry_since.get_or_insert(now);
        let due = now.saturating_sub(since) >= self.wait_ms;
        if due {
            self.dry_since = Some(now);
            self.wait_ms = (self.wait_ms * 2).min(DRY_MS_MAX);
        }
        due
    }
}

/// See the module.
pub(super) struct Seeds {
    rhythm: Rhythm,
    sender: Sender<Vec<SocketAddr>>,
    answers: Receiver<Vec<SocketAddr>>,
}

impl Seeds {
    pub(super) fn new() -> Self {
        let (sender, answers) = channel();
        Self { rhythm: Rhythm::NEW, sender, answers }
    }

    /// Takes what they answered, and asks them if that is due.
    pub(super) fn step(&mut self, shared: &Arc<Shared>, now: u64) {
        let mut state = shared.lock();
        while let Ok(found) = self.answers.try_recv() {
            state.book.add_from_dns(&found, unix_time());
        }
        let outbound = state.peers.values().filter(|peer| !peer.is_inbound());
        let connected = outbound.filter(|peer| peer.handle.is_some()).count();
        let is_dry = connected < ENOUGH_PEERS.min(shared.options.outbound)
            && state.book.ready_count(unix_time()) == 0;
        if !self.rhythm.is_due(is_dry, now) {
            return;
        }
        let network = shared.options.params.network;
        if shared.options.proxy.is_some() {
            // Names go to the proxy: the seeds are nodes as well, and know others. The book tries
            // them again by itself.
            for seed in seeds_by_name(network) {
                state.book.add_user(seed, unix_time());
            }
            return;
        }
        drop(state);
        let (sender, of_thread) = (self.sender.clone(), Arc::clone(shared));
        // On a thread of its own: names may take long. Without it, what is remembered has to do.
        let _ = std::thread::Builder::new().name("seeds".to_owned()).spawn(move || {
            let _guard = Guard(&of_thread);
            let (found, _) = resolve_seeds(network, PATIENCE);
            // The network may have ended meanwhile.
            let _ = sender.send(found);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which the seeds are asked, a look each second.
    fn asked(seconds: u64, is_dry: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut rhythm = Rhythm::NEW;
        (0..seconds).filter(|now| rhythm.is_due(is_dry(*now), now * 1000)).collect()
    }

    #[test]
    fn seeds_are_asked_at_first_and_when_addresses_ran_out() {
        assert_eq!(asked(10_000, |_| false), [0]);
        // From 1 on, at first after one minute, then after two, and so on.
        let times = [0, 61, 181, 421, 901, 1861, 2821, 3781];
        assert_eq!(asked(4000, |_| true), times);
        // Every two minutes there is one for a moment.
        assert_eq!(asked(300, |now| now % 120 < 100), [0, 61, 180]);
        assert_eq!(asked(1000, |now| now % 50 > 0), [0]);
    }
}
