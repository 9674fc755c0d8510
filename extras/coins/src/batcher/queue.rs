//! [`LookUpQueue`]: what waits for its batch, and when a batch is due. No threads, no clock of its own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What bounds batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
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

/// Some items that came together, of which the first can be taken alone.
pub(super) trait Cut {
    /// How many there are.
    fn len(&self) -> usize;

    /// Takes the first `count` of them, or all where there are fewer.
    #[must_use]
    fn cut(&mut self, count: usize) -> Self;
}

/// Items in the order in which they came.
pub(super) struct LookUpQueue<T> {
    limits: BatchLimits,
    /// None of them is empty.
    portions: VecDeque<(T, Instant)>,
    /// How many items they are.
    items: usize,
    /// Of the items, how many are of blocks that are complete, with those before them.
    complete: usize,
    producers: usize,
    waiting: usize,
}

impl<T: Cut> LookUpQueue<T> {
    pub(super) fn new(limits: BatchLimits) -> Self {
        Self { limits, portions: VecDeque::new(), items: 0, complete: 0, producers: 0, waiting: 0 }
    }

    /// How many more items may wait.
    pub(super) fn room(&self) -> usize {
        self.limits.waiting_max.saturating_sub(self.items)
    }

    pub(super) fn len(&self) -> usize {
        self.items
    }

    /// How many full batches wait.
    pub(super) fn full_batches(&self) -> usize {
        self.items / self.limits.size
    }

    pub(super) fn push(&mut self, portion: T, now: Instant) {
        if portion.len() > 0 {
            self.items += portion.len();
            self.portions.push_back((portion, now));
        }
    }

    /// All that waits is to go. Whether anything does.
    pub(super) fn complete(&mut self) -> bool {
        self.complete = self.items;
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
        let Some((_, first)) = self.portions.front() else { return Due::Never };
        let deadline = first.checked_add(self.limits.deadline);
        if self.items >= self.limits.size {
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
        let first = self.portions.front();
        let waited = first.map(|(_, came)| now.saturating_duration_since(*came));
        let mut left = self.items.min(self.limits.size);
        self.items -= left;
        self.complete = self.complete.saturating_sub(left);
        let mut taken = Vec::new();
        while left > 0
            && let Some((portion, _)) = self.portions.front_mut()
        {
            let some = portion.cut(left);
            left -= some.len();
            taken.push(some);
            if portion.len() == 0 {
                self.portions.pop_front();
            }
        }
        (taken, waited.unwrap_or_default())
    }

    /// Takes all that waits.
    pub(super) fn drain(&mut self) -> Vec<T> {
        (self.complete, self.items) = (0, 0);
        self.portions.drain(..).map(|(portion, _)| portion).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    impl Cut for std::ops::Range<u32> {
        fn len(&self) -> usize {
            ExactSizeIterator::len(self)
        }

        fn cut(&mut self, count: usize) -> Self {
            let end = self.end.min(self.start + count as u32);
            std::mem::replace(&mut self.start, end)..end
        }
    }

    fn queue(size: usize) -> (LookUpQueue<std::ops::Range<u32>>, Instant) {
        let mut queue =
            LookUpQueue::new(BatchLimits { size, deadline: 10 * MS, waiting_max: 2 * size });
        queue.open();
        (queue, Instant::now())
    }

    fn push(
        queue: &mut LookUpQueue<std::ops::Range<u32>>,
        items: std::ops::Range<u32>,
        now: Instant,
    ) {
        queue.push(items, now);
    }

    /// The items of a batch.
    fn take(queue: &mut LookUpQueue<std::ops::Range<u32>>, now: Instant) -> (Vec<u32>, Duration) {
        let (portions, waited) = queue.take(now);
        assert!(portions.iter().all(|portion| !portion.is_empty()));
        (portions.into_iter().flatten().collect(), waited)
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
        assert_eq!(take(&mut queue, start).0, (0..100).collect::<Vec<_>>());
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
    }

    #[test]
    fn the_deadline_is_that_of_the_first() {
        let (mut queue, start) = queue(3);
        push(&mut queue, 0..1, start);
        push(&mut queue, 1..5, start + 4 * MS);
        let (first, waited) = take(&mut queue, start + 5 * MS);
        assert_eq!((first, waited), (vec![0, 1, 2], 5 * MS));
        // The next one's first came later.
        assert_eq!(queue.due(start + 13 * MS), Due::At(start + 14 * MS));
        assert_eq!(queue.due(start + 14 * MS), Due::Now(Cause::Deadline));
        assert_eq!(take(&mut queue, start + 15 * MS), (vec![3, 4], 11 * MS));
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
        assert_eq!(take(&mut queue, start).0.len(), 4);
        // What joined later goes along, and what comes then is no part of it.
        assert_eq!(queue.due(start), Due::Now(Cause::Complete));
        assert_eq!(take(&mut queue, start).0, [4, 5, 6]);
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
        assert!(queue.drain().into_iter().flatten().eq([0]));
        assert_eq!(queue.due(start), Due::Never);
    }

    #[test]
    fn a_deadline_beyond_all_time_never_comes() {
        let limits = BatchLimits { size: 4, deadline: Duration::MAX, waiting_max: 4 };
        let (mut queue, start) = (LookUpQueue::new(limits), Instant::now());
        queue.open();
        push(&mut queue, 0..1, start);
        assert_eq!(queue.due(start), Due::Never);
    }
}
