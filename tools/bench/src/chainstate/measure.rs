//! [`measure`]: all parts, round after round, each a process of its own.
//!
//! A process has its own peak of memory and a fresh heap. A slow minute of the machine meets all
//! parts, and the order is turned round after each round.

use super::part::Done;
use super::{Chainstate, ChainstateError, MeasuredPart, Part, Place, VERSION};
use crate::machine::Machine;
use crate::process;
use crate::stats::Spread;
use std::fmt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longer than any part should take.
const LIMIT: Duration = Duration::from_secs(3600);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where.
    pub place: Place,
    /// Coins of the set.
    pub coins: u64,
    /// How often.
    pub rounds: u32,
}

/// What is being done.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The set is made up.
    Making,
    /// A part ended.
    Ran {
        /// From 1.
        round: u32,
        /// How many there are.
        of: u32,
        /// Which.
        part: Part,
        /// How long it took.
        seconds: f64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Making => f.write_str("a set of coins is made up"),
            Self::Ran { round, of, part, seconds } => {
                write!(f, "round {round} of {of}: {}: {seconds:.3} s", part.name())
            }
        }
    }
}

/// One part's rounds.
#[derive(Default)]
struct Rounds {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    rss_peak_bytes: Option<u64>,
}

/// Measures, and removes everything that was made for it. `command` gives the command that does a
/// part by [`part`](super::part()).
pub fn measure(
    plan: &Plan,
    machine: Machine,
    command: &dyn Fn(Part) -> Command,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(Event),
) -> Result<Chainstate, ChainstateError> {
    let found = all(plan, machine, command, interrupt, each);
    let cleared = plan.place.clear();
    let found = found?;
    cleared.map(|()| found)
}

fn all(
    plan: &Plan,
    machine: Machine,
    command: &dyn Fn(Part) -> Command,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(Event),
) -> Result<Chainstate, ChainstateError> {
    let run = |part: Part| -> Result<(process::Usage, Done), ChainstateError> {
        plan.place.prepare(part)?;
        let mut command = command(part);
        let usage = process::run(&mut command, LIMIT, interrupt)?;
        Ok((usage, plan.place.read_told()?))
    };
    each(Event::Making);
    let (_, made) = run(Part::Make)?;
    let mut order = Part::MEASURED.map(|part| (part, Rounds::default()));
    // The first round begins with the writing; a later one may copy what the last one wrote.
    let mut chainstate_bytes = 0;
    for round in 0..plan.rounds {
        for (part, rounds) in &mut order {
            let (usage, done) = run(*part)?;
            if *part == Part::Write {
                chainstate_bytes = done.bytes;
            }
            compare(*part, &done, &made, chainstate_bytes)?;
            let (round, of, seconds) = (round + 1, plan.rounds, done.seconds);
            each(Event::Ran { round, of, part: *part, seconds });
            rounds.wall.push(done.seconds);
            rounds.cpu.push(usage.cpu_seconds);
            rounds.rss_peak_bytes = rounds.rss_peak_bytes.max(usage.rss_peak_bytes);
        }
        if round + 1 < plan.rounds {
            order.reverse();
        }
    }
    order.sort_by_key(|(part, _)| Part::MEASURED.iter().position(|other| other == part));
    Ok(Chainstate {
        version: VERSION,
        machine,
        coins: made.coins,
        set_bytes: made.bytes,
        chainstate_bytes,
        rounds: plan.rounds,
        parts: measured(&order),
    })
}

/// Holds what a part led to against what was made up.
fn compare(
    part: Part,
    done: &Done,
    made: &Done,
    chainstate_bytes: u64,
) -> Result<(), ChainstateError> {
    let different = |what| Err(ChainstateError::Different { part: part.name(), what });
    if part != Part::Copy && done.coins != made.coins {
        return different("number of coins");
    }
    if done.hash_serialized_3.is_some() && done.hash_serialized_3 != made.hash_serialized_3 {
        return different("hash_serialized_3");
    }
    if done.bytes != chainstate_bytes {
        return different("number of bytes");
    }
    Ok(())
}

fn measured(parts: &[(Part, Rounds)]) -> Vec<MeasuredPart> {
    let copy = parts.iter().find(|(part, _)| *part == Part::Copy);
    let copy: &[f64] = copy.map_or(&[], |(_, rounds)| &rounds.wall);
    let of = |(part, rounds): &(Part, Rounds)| {
        let ratios: Vec<f64> = rounds.wall.iter().zip(copy).map(|(it, copy)| it / copy).collect();
        let (wall_seconds, cpu_seconds) = (Spread::of(&rounds.wall)?, Spread::of(&rounds.cpu)?);
        let median = wall_seconds.median / Spread::of(copy)?.median;
        Some(MeasuredPart {
            part: *part,
            wall_seconds,
            cpu_seconds,
            rss_peak_bytes: rounds.rss_peak_bytes,
            over_copy: Spread { median, ..Spread::of(&ratios)? },
        })
    };
    parts.iter().filter_map(of).collect()
}

#[cfg(test)]
pub(crate) use tests::small;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chainstate::{part, table};
    use std::cell::RefCell;

    /// Does the parts in this process, where the command that runs is one that does nothing.
    fn measure_here(
        coins: u64,
        spoil: impl Fn(Part, &Place),
    ) -> Result<Chainstate, ChainstateError> {
        let folder = tempfile::tempdir().unwrap();
        let (plan, interrupt) =
            (Plan { place: Place::new(folder.path()), coins, rounds: 2 }, AtomicBool::new(false));
        let failed = RefCell::new(None);
        let command = |it: Part| {
            spoil(it, &plan.place);
            if let Err(error) = part(&plan.place, it, coins, &interrupt) {
                failed.borrow_mut().get_or_insert(error);
                return Command::new("false");
            }
            Command::new("true")
        };
        let mut told = Vec::new();
        let mut tell = |event: Event| told.push(event.to_string());
        let found = measure(&plan, Machine::here(), &command, &interrupt, &mut tell);
        assert_eq!(told[0], "a set of coins is made up");
        if found.is_ok() {
            assert!(told[1].starts_with("round 1 of 2: write: "), "{told:?}");
            assert!(told[6].starts_with("round 2 of 2: write: "), "{told:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something stays");
        match failed.into_inner() {
            Some(error) => Err(error),
            None => found,
        }
    }

    /// The result of a measurement without much to do.
    pub(crate) fn small() -> Chainstate {
        measure_here(2_000, |_, _| ()).unwrap()
    }

    #[test]
    fn everything_is_measured_and_compared() {
        let found = small();
        assert_eq!((found.coins, found.rounds), (2_000, 2));
        assert!(found.chainstate_bytes > found.set_bytes && found.set_bytes > 2_000 * 40);
        let parts: Vec<Part> = found.parts.iter().map(|it| it.part).collect();
        assert_eq!(parts, Part::MEASURED);
        for it in &found.parts {
            assert!(it.wall_seconds.min > 0.0, "{it:?}");
            if it.part == Part::Copy {
                assert_eq!(it.over_copy, Spread { median: 1.0, min: 1.0, max: 1.0 });
            }
        }
        let text = table(&found).text();
        for words in ["2,000 coins", "write", "copy", "check"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    /// A chainstate with a coin too few is a good one, but not the one that was made up.
    #[test]
    fn another_set_gives_no_numbers() {
        let other = |it, place: &Place| {
            if it == Part::Check {
                let interrupt = AtomicBool::new(false);
                part(place, Part::Make, 1_999, &interrupt).unwrap();
                std::fs::remove_dir_all(place.chainstate()).unwrap();
                std::fs::create_dir(place.chainstate()).unwrap();
                part(place, Part::Write, 0, &interrupt).unwrap();
            }
        };
        let error = measure_here(2_000, other).unwrap_err();
        assert!(matches!(error, ChainstateError::Different { part: "check", .. }), "{error}");
    }

    #[test]
    fn damage_ends_it() {
        let damage = |it, place: &Place| {
            if it == Part::Check {
                let path = place.chainstate().join("000003.ldb");
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[1000] ^= 1;
                std::fs::write(path, bytes).unwrap();
            }
        };
        let error = measure_here(2_000, damage).unwrap_err();
        assert!(matches!(error, ChainstateError::ReadBack(_)), "{error}");
    }
}
