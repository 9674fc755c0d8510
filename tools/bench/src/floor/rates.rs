//! [`Rate`] and [`Limits`]: what the machine was seen to do, as numbers.
//!
//! The structs are part of the JSON contract (`docs/formats/bench.md`). They say nothing of how a
//! rate was measured; that is [`measure`](super::measure).

use serde::{Deserialize, Serialize};

/// Units per second, of one thread and of all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Of one thread while the others rest.
    pub one_thread: f64,
    /// Of all threads at once.
    pub all_threads: f64,
}

impl Rate {
    /// The greater of two, for one thread and for all of them.
    #[must_use]
    pub fn best(self, other: Self) -> Self {
        Self {
            one_thread: self.one_thread.max(other.one_thread),
            all_threads: self.all_threads.max(other.all_threads),
        }
    }

    /// How many times faster all threads are than one.
    pub fn scaling(self) -> f64 {
        self.all_threads / self.one_thread
    }
}

/// Compressions per second of one SHA-256 kernel, for the shapes of this work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelRates {
    /// Its name, as in `APUS_SHA256`.
    pub kernel: String,
    /// Double SHA-256 of messages of all lengths that transactions of a block have.
    pub transactions: Rate,
    /// The same for messages of one length: no lane ever waits for another.
    pub transactions_of_one_length: Rate,
    /// Double SHA-256 of 64 bytes: an inner node of a merkle tree, counted as 3 compressions.
    pub merkle_nodes: Rate,
    /// Outpoints behind a key whose state is known: 1 compression each.
    pub outpoints: Rate,
    /// One long message, whose blocks have to wait for each other.
    pub stream: Rate,
}

impl KernelRates {
    /// The greater rate of each shape.
    #[must_use]
    fn best(&self, other: &Self) -> Self {
        Self {
            kernel: "best".to_owned(),
            transactions: self.transactions.best(other.transactions),
            transactions_of_one_length: self
                .transactions_of_one_length
                .best(other.transactions_of_one_length),
            merkle_nodes: self.merkle_nodes.best(other.merkle_nodes),
            outpoints: self.outpoints.best(other.outpoints),
            stream: self.stream.best(other.stream),
        }
    }
}

/// What one machine can do of each kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// How many threads "all" are.
    pub threads: usize,
    /// Copying memory that no cache of a core's own holds, in bytes.
    pub copy_large: Rate,
    /// Copying memory that stays in the second-level cache, in bytes.
    pub copy_cached: Rate,
    /// Reading block files that are in the page cache, in bytes.
    pub read: Rate,
    /// Undoing the XOR of block files in cache, in bytes.
    pub obfuscation: Rate,
    /// Finding all parts of blocks, in bytes of blocks.
    pub parse: Rate,
    /// Putting coins into a MuHash, in coins.
    pub muhash: Rate,
    /// Writing to a file in the page cache, in bytes.
    pub write: Rate,
    /// Every SHA-256 kernel of the machine, the fastest first.
    pub kernels: Vec<KernelRates>,
}

impl Limits {
    /// The best rate of each shape by any kernel. The two shapes of transactions count as one.
    pub fn best_kernel(&self) -> Option<KernelRates> {
        let mut best = self.kernels.iter().cloned().reduce(|best, other| best.best(&other))?;
        best.transactions = best.transactions.best(best.transactions_of_one_length);
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(one_thread: f64) -> Rate {
        Rate { one_thread, all_threads: 2.0 * one_thread }
    }

    fn kernel(name: &str, rates: [f64; 5]) -> KernelRates {
        let [a, b, c, d, e] = rates.map(rate);
        KernelRates {
            kernel: name.to_owned(),
            transactions: a,
            transactions_of_one_length: b,
            merkle_nodes: c,
            outpoints: d,
            stream: e,
        }
    }

    #[test]
    fn the_best_of_each_shape_counts_whichever_kernel_it_was() {
        let limits = Limits {
            threads: 2,
            copy_large: rate(1.0),
            copy_cached: rate(1.0),
            read: rate(1.0),
            obfuscation: rate(1.0),
            parse: rate(1.0),
            muhash: rate(1.0),
            write: rate(1.0),
            kernels: vec![
                kernel("lanes", [5.0, 7.0, 8.0, 9.0, 1.0]),
                kernel("single", [6.0, 4.0, 3.0, 3.0, 2.0]),
            ],
        };
        let best = limits.best_kernel().unwrap();
        assert_eq!(best, kernel("best", [7.0, 7.0, 8.0, 9.0, 2.0]));
        assert_eq!(best.outpoints.scaling(), 2.0);
        assert_eq!(Limits { kernels: Vec::new(), ..limits }.best_kernel(), None);
    }
}
