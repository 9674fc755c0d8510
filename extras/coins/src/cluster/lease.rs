//! [`ClusterLease`]: says that a writer is there, for as long as it renews it.
//!
//! It is for people: a second writer learns that there is one, and does no work in vain. What keeps the
//! coins right where a lease failed is told in [`cluster`](super).

use super::connections::ClusterConnections;
use super::servers::Servers;
use crate::store::RandomId;
use apus_engine::utxo::StoreError;
use redis::{RedisResult, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Lets it last for longer where it is still this writer's, or there is none.
const RENEW: &str = "\
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";

const GIVE_BACK: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// What the writer and the thread that renews share.
struct LeaseState {
    connections: Arc<ClusterConnections>,
    key: String,
    token: RandomId,
    lasts: Duration,
    lost: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

/// See the module. Given back as it is dropped.
pub(super) struct ClusterLease {
    shared: Arc<LeaseState>,
    thread: Option<JoinHandle<()>>,
}

impl ClusterLease {
    /// Takes it, after waiting as long as it may take for one to go that is not renewed any more.
    pub(super) fn take(
        connections: &Arc<ClusterConnections>,
        lasts: Duration,
    ) -> Result<Self, StoreError> {
        let place = || connections.place().to_owned();
        let (token, started) = (RandomId::random(connections.place())?, Instant::now());
        let shared = Arc::new(LeaseState {
            connections: Arc::clone(connections),
            key: connections.keys.lease(),
            token,
            lasts,
            lost: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        while !connections.run(|to| shared.renew(to))? {
            // A little more than it lasts: clocks differ.
            if started.elapsed() > lasts + lasts / 4 {
                return Err(StoreError::InUse { place: place() });
            }
            thread::sleep(LOOK.min(lasts));
        }
        let renewing = Arc::clone(&shared);
        let thread = thread::Builder::new().name("coins-lease".to_owned());
        let thread = thread.spawn(move || renewing.serve()).map_err(|error| {
            StoreError::io(connections.place(), format!("cannot start a thread: {error}"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Fails where another writer has it.
    pub(super) fn expect_held(&self) -> Result<(), StoreError> {
        if self.shared.lost.load(Ordering::Relaxed) {
            return Err(StoreError::InUse { place: self.shared.connections.place().to_owned() });
        }
        Ok(())
    }
}

impl LeaseState {
    /// Whether it is this writer's for its time from now on.
    fn renew(&self, to: &mut Servers) -> RedisResult<bool> {
        let mut renew = cmd("EVAL");
        renew.arg(RENEW).arg(1).arg(&self.key).arg(&self.token.0);
        let renewed: u8 = to.ask(renew.arg(self.lasts.as_millis().max(1) as u64))?;
        Ok(renewed == 1)
    }

    fn serve(&self) {
        let every = self.lasts / 3;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let waited = self.end.wait_timeout_while(ended, every, |ended| !*ended);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *ended {
                return;
            }
            drop(ended);
            // What the servers do not answer decides nothing: a write would fail, too. The next time
            // comes soon enough to try again.
            if matches!(self.connections.once(every, |to| self.renew(to)), Ok(false)) {
                self.lost.store(true, Ordering::Relaxed);
                return;
            }
            ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ClusterLease {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.end.notify_all();
        if let Some(thread) = self.thread.take() {
            // Nothing in it panics.
            let _ = thread.join();
        }
        // Where that fails it goes by itself.
        let _ = self.shared.connections.once(self.shared.lasts, |to| {
            let mut give_back = cmd("EVAL");
            give_back.arg(GIVE_BACK).arg(1).arg(&self.shared.key).arg(&self.shared.token.0);
            to.ask::<()>(&give_back)
        });
    }
}
