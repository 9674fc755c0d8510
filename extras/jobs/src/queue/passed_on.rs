//! [`rest_of_passed_on`]: how long a job rests that a machine leaves to others.
//!
//! It is another time for each job. A server offers jobs in the order in which their rests end, to machines in the order in
//! which they ask. Of two machines, each of which passes on what is for the other, each would be offered its own job for
//! ever if both jobs rested equally long.

use apus_sync::random::random_bytes;
use std::time::Duration;

/// The shortest rest, and by how much the longest is longer, in milliseconds.
const SHORTEST_MS: u64 = 100;
const SPREAD_MS: u64 = 400;

/// A random time. Where the system gives no random numbers it is the shortest.
pub fn rest_of_passed_on() -> Duration {
    let random = random_bytes().map_or(0, u64::from_le_bytes);
    Duration::from_millis(SHORTEST_MS) + Duration::from_micros(random % (SPREAD_MS * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_do_not_rest_in_step() {
        let mut rests: Vec<Duration> = (0..64).map(|_| rest_of_passed_on()).collect();
        rests.sort_unstable();
        let [shortest, longest] = [rests[0], rests[63]];
        assert!(shortest >= Duration::from_millis(100) && longest < Duration::from_millis(500));
        assert!(longest - shortest > Duration::from_millis(100), "{shortest:?} to {longest:?}");
    }
}
