//! [`Queue`]: what waits for its batch, and when a batch is due. No threads, no clock of its own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What bounds batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Of a full batch.
    pub(super) size: usize,
    /// How long the first of a batch waits for others.
    pub(super) deadline: Duration,
    /// How many may wait, at least a full batch.
    pub(super) waiting_max: usize,
}

/// Why a batch is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It is full.
    Size,
    /// A producer's block is complete.
    Complete,
    /// All producers wait.
    Idle,
    /// Its first one has waited long enough.
    Deadline,
}

/// Whether there is something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// A batch, now.
    Now(Cause),
    /// At that time, unless something happens before.
    At(Instant),
    /// Only once something happens.
    Never,
}

/// Items in the order in which they came.
pub(super) struct Queue<T> {
    limits: Limits,
    items: VecDeque<(T, Instant)>,
    /// Of the items, how many are of blocks that are complete, with those before them.
    complete: usize,
    producers: usize,
    waiting: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, items: VecDeque::new(), complete: 0, producers: 0, waiting: 0 }
    }

    /// How many more items may wait.
    pub(super) fn room(&self) -> usize {
        self.limits.waiting_max.saturating_sub(self.items.len())
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// How many full batches wait.
    pub(super) fn full_batches(&self) -> usize {
        self.items.len() / self.limits.size
    }

    pub(super) fn push(&mut self, item: T, now: Instant) {
        self.items.push_back((item, now));
    }

    /// All that waits is to go. Whether anything does.
    pub(super) fn complete(&mut self) -> bool {
        self.complete = self.items.len();
        self.complete > 0
    }

    /// A producer more.
    pub(super) fn open(&mut self) {
        self.producers += 1;
    }

    /// A producer less, which leaves nothing that more could come to. Whether anything waits.
    pub(super) fn shut(&mut self) -> bool {
        self.producers -= 1;
        self.complete()
    }

    /// A producer begins to wait for what it handed in.
    pub(super) fn wait_begins(&mut self) {
        self.waiting += 1;
    }

    /// So many do not wait any more.
    pub(super) fn wait_ends(&mut self, count: usize) {
        self.waiting -= count;
    }

    /// Whether a batch is due.
    pub(super) fn due(&self, now: Instant) -> Due {
        let Some((_, first)) = self.items.front() else { return Due::Never };
        let deadline = first.checked_add(self.limits.deadline);
        if self.items.len() >= self.limits.size {
            Due::Now(Cause::Size)
        } else if self.complete > 0 {
            Due::Now(Cause::Complete)
        } else if self.waiting >= self.producers {
            Due::Now(Cause::Idle)
        } else {
            match deadline {
                Some(deadline) if deadline <= now => Due::Now(Cause::Deadline),
                Some(deadline) => Due::At(deadline),
                None => Due::Never,
            }
        }
    }

    /// Takes the items of the next batch, which is due, and how long the first of them waited.
    pub(super) fn take(&mut self, now: Instant) -> (Vec<T>, Duration) {
        let count = self.items.len().min(self.limits.size);
        let waited = self.items.front().map(|(_, came)| now.saturating_duration_since(*came));
        self.complete = self.complete.saturating_sub(count);
        let items = self.items.drain(..count).map(|(item, _)| item).collect();
        (items, waited.unwrap_or_default())
    }

    /// Takes all that waits.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.complete = 0;
        self.items.drain(..).map(|(item, _)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queue(size: usize) -> (Queue<u32>, Instant) {
        let mut queue = Queue::new(Limits { size, deadline: 10 * MS, waiting_max: 2 * size });
        queue.open();
        (queue, Instant::now())
    }

    fn push(queue: &mut Queue<u32>, items: std::ops::Range<u32>, now: Instant) {
        items.for_each(|item| queue.push(item, now));
    }

    #[test]
    fn a_full_batch_is_due_at_once_and_no_other() {
        let (mut queue, start) = queue(100);
        assert_eq!(queue.due(start), Due::Never);
        push(&mut queue, 0..99, start);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        push(&mut queue, 99..100, start);
        assert_eq!(queue.due(start), Due::Now(Cause::Size));
        push(&mut queue, 100..130, start);
        assert_eq!((queue.room(), queue.full_batches(), queue.len()), (70, 1, 130));
        assert_eq!(queue.take(start).0, (0..100).collect::<Vec<_>>());
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
    }

    #[test]
    fn the_deadline_is_that_of_the_first() {
        let (mut queue, start) = queue(3);
        push(&mut queue, 0..1, start);
        push(&mut queue, 1..5, start + 4 * MS);
        let (first, waited) = queue.take(start + 5 * MS);
        assert_eq!((first, waited), (vec![0, 1, 2], 5 * MS));
        // The next one's first came later.
        assert_eq!(queue.due(start + 13 * MS), Due::At(start + 14 * MS));
        assert_eq!(queue.due(start + 14 * MS), Due::Now(Cause::Deadline));
        assert_eq!(queue.take(start + 15 * MS), (vec![3, 4], 11 * MS));
        assert_eq!(queue.due(start + 99 * MS), Due::Never);
    }

    #[test]
    fn the_end_of_a_block_sends_what_came_before_it() {
        let (mut queue, start) = queue(4);
        assert!(!queue.complete(), "nothing is there");
        push(&mut queue, 0..6, start);
        assert!(queue.complete());
        push(&mut queue, 6..7, start);
        assert_eq!(queue.due(start), Due::Now(Cause::Size));
        assert_eq!(queue.take(start).0.len(), 4);
        // What joined later goes along, and what comes then is no part of it.
        assert_eq!(queue.due(start), Due::Now(Cause::Complete));
        assert_eq!(queue.take(start).0, [4, 5, 6]);
        push(&mut queue, 7..8, start);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
    }

    #[test]
    fn where_all_wait_nothing_is_waited_for() {
        let (mut queue, start) = queue(4);
        queue.open();
        push(&mut queue, 0..1, start);
        queue.wait_begins();
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        queue.wait_begins();
        assert_eq!(queue.due(start), Due::Now(Cause::Idle));
        queue.wait_ends(1);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        assert!(queue.shut());
        assert_eq!(queue.due(start), Due::Now(Cause::Complete), "one that goes adds nothing");
        assert_eq!(queue.drain(), [0]);
        assert_eq!(queue.due(start), Due::Never);
    }

    #[test]
    fn a_deadline_beyond_all_time_never_comes() {
        let limits = Limits { size: 4, deadline: Duration::MAX, waiting_max: 4 };
        let (mut queue, start) = (Queue::new(limits), Instant::now());
        queue.open();
        push(&mut queue, 0..1, start);
        assert_eq!(queue.due(start), Due::Never);
    }
}
