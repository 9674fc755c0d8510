//! Numbers that follow from runs: spreads, rates, ratios.

use super::matrix::Subject;
use super::record::{Counts, Measured, OneRun, OutputCost, Ratio, Scaling};
use crate::floor::ChainFloor;
use crate::stats::Spread;

/// What all runs of one subject come to; none if there is none.
pub(super) fn measured(
    subject: &Subject,
    arguments: Vec<String>,
    runs: Vec<OneRun>,
    counts: &Counts,
) -> Option<Measured> {
    let spread = |of: fn(&OneRun) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
    let wall_seconds = spread(|run| run.wall_seconds)?;
    Some(Measured {
        subject: subject.clone(),
        arguments,
        wall_seconds,
        cpu_seconds: spread(|run| run.cpu_seconds)?,
        rss_peak_bytes: runs.iter().filter_map(|run| run.rss_peak_bytes).max(),
        bytes_per_second: counts.bytes as f64 / wall_seconds.median,
        ns_per_transaction: wall_seconds.median * 1e9 / counts.transactions.max(1) as f64,
        blocks_per_second: Some(counts.blocks as f64 / wall_seconds.median),
        headers_share: headers_share(&runs),
        over_floor: None,
        runs,
    })
}

/// The part of all work that one thread does before the others begin: none where no run tells of it.
fn headers_share(runs: &[OneRun]) -> Option<f64> {
    let share = |run: &OneRun| {
        let headers = run.phases.iter().find(|phase| phase.phase == "headers")?;
        (run.cpu_seconds > 0.0).then(|| headers.wall_seconds / run.cpu_seconds)
    };
    Some(Spread::of(&runs.iter().filter_map(share).collect::<Vec<_>>())?.median)
}

/// Notes how far each subject is from the floor for as many threads, where that is known:
/// `threads` is what the floor calls all of them.
pub(super) fn over_floor(measured: &mut [Measured], floor: &ChainFloor, threads: usize) {
    for measured in measured {
        let Subject::Apus { aggregate, par, .. } = &measured.subject else { continue };
        let Some(of) = aggregate.as_deref().and_then(|kind| floor.of(kind)) else { continue };
        let floor_ms = match *par {
            1 => of.run.one_thread_ms,
            par if par == threads => of.run.all_threads_ms,
            _ => continue,
        };
        measured.over_floor = Some(measured.wall_seconds.median * 1e3 / floor_ms);
    }
}

/// Each subject of Apus against bitcoind with the same memory that skips or runs scripts like it.
pub(super) fn ratios(measured: &[Measured]) -> Vec<Ratio> {
    let nodes = || measured.iter().filter(|it| matches!(it.subject, Subject::Bitcoind { .. }));
    let mut ratios = Vec::new();
    for apus in measured.iter().filter(|it| matches!(it.subject, Subject::Apus { .. })) {
        let alike = |subject: &Subject| (subject.dbcache_mib(), subject.validation());
        for node in nodes().filter(|node| alike(&node.subject) == alike(&apus.subject)) {
            ratios.extend(ratio(apus, node));
        }
    }
    ratios
}

fn ratio(apus: &Measured, node: &Measured) -> Option<Ratio> {
    let times_faster = times_as_long(node, apus)?;
    Some(Ratio { apus: apus.subject.clone(), bitcoind: node.subject.clone(), times_faster })
}

/// Wall time of one subject over that of another; none where they have no round in common.
fn times_as_long(one: &Measured, other: &Measured) -> Option<Spread> {
    let rounds: Vec<f64> = other
        .runs
        .iter()
        .filter_map(|run| {
            let beside = one.runs.iter().find(|beside| beside.round == run.round)?;
            Some(beside.wall_seconds / run.wall_seconds)
        })
        .collect();
    let Spread { min, max, .. } = Spread::of(&rounds)?;
    let median = one.wall_seconds.median / other.wall_seconds.median;
    // Medians may be of different rounds, so their ratio can lie outside of any round's.
    Some(Spread { median, min: min.min(median), max: max.max(median) })
}

/// Each subject that writes something against the same that writes nothing, and hints out of a snapshot against those
/// out of a hintsfile.
pub(super) fn outputs(measured: &[Measured]) -> Vec<OutputCost> {
    let cost = |it: &Measured| {
        let plainer = it.subject.plainer().filter(|plainer| *plainer != it.subject)?;
        let plainer = measured.iter().find(|other| other.subject == plainer)?;
        let over_null = times_as_long(it, plainer)?;
        Some(OutputCost { subject: it.subject.clone(), over_null })
    };
    measured.iter().filter_map(cost).collect()
}

/// Each subject with more than one thread against the same with one.
pub(super) fn scaling(measured: &[Measured]) -> Vec<Scaling> {
    let mut found = Vec::new();
    for many in measured {
        let Subject::Apus { par: threads @ 2.., .. } = many.subject else { continue };
        let single = with_one_thread(&many.subject);
        if let Some(one) = measured.iter().find(|it| Some(&it.subject) == single.as_ref()) {
            let one_seconds = one.wall_seconds.median;
            let beside: Vec<f64> =
                many.runs.iter().filter_map(|run| run.side_by_side_seconds).collect();
            found.push(Scaling {
                subject: many.subject.clone(),
                threads,
                times_faster: one_seconds / many.wall_seconds.median,
                side_by_side: Spread::of(&beside)
                    .map(|beside| threads as f64 * one_seconds / beside.median),
            });
        }
    }
    found
}

pub(super) fn with_one_thread(subject: &Subject) -> Option<Subject> {
    let mut single = subject.clone();
    match &mut single {
        Subject::Apus { par, .. } => *par = 1,
        Subject::Bitcoind { .. } => return None,
    }
    Some(single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::{FloorOf, Times, Work};
    use crate::run::matrix::{SNAPSHOT_HINTS, Validation};
    use crate::run::report::PhaseTime;
    use crate::run::testing::{roots, utxo};

    const COUNTS: Counts =
        Counts { blocks: 10, transactions: 1_000, inputs: 1, outputs: 1, bytes: 1_000_000 };

    fn apus(aggregate: &str, par: usize) -> Subject {
        Subject::Apus {
            engine: "e".to_owned(),
            validation: Validation::Assumevalid,
            aggregate: Some(aggregate.to_owned()),
            par,
            dbcache_mib: 450,
            output: "null".to_owned(),
        }
    }

    fn of(subject: Subject, walls: &[f64]) -> Measured {
        let run = |(round, wall_seconds): (u32, &f64)| OneRun {
            round,
            wall_seconds: *wall_seconds,
            cpu_seconds: 2.0 * wall_seconds,
            rss_peak_bytes: (round != 1).then_some(u64::from(round)),
            phases: Vec::new(),
            connect_seconds: None,
            side_by_side_seconds: (wall_seconds < &1.0).then_some(1.25),
        };
        measured(&subject, Vec::new(), (1..).zip(walls).map(run).collect(), &COUNTS).unwrap()
    }

    #[test]
    fn rates_are_of_the_median_and_memory_of_the_worst() {
        let measured = of(apus("a", 1), &[0.1, 0.4, 0.2]);
        assert_eq!(measured.wall_seconds, Spread { median: 0.2, min: 0.1, max: 0.4 });
        assert_eq!(measured.cpu_seconds.median, 0.4);
        assert_eq!(measured.rss_peak_bytes, Some(3));
        assert_eq!(measured.bytes_per_second, 5_000_000.0);
        assert_eq!(measured.ns_per_transaction, 200_000.0);
        assert_eq!(super::measured(&apus("a", 1), Vec::new(), Vec::new(), &COUNTS), None);
    }

    #[test]
    fn ratios_are_of_the_same_memory_and_of_rounds_side_by_side() {
        let node =
            |dbcache_mib| Subject::Bitcoind { validation: Validation::Assumevalid, dbcache_mib };
        let all = [
            of(apus("a", 1), &[1.0, 2.0, 1.0]),
            of(node(450), &[20.0, 30.0, 40.0]),
            of(node(900), &[1.0, 1.0, 1.0]),
        ];
        let ratios = ratios(&all);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].bitcoind, node(450));
        assert_eq!(ratios[0].times_faster, Spread { median: 30.0, min: 15.0, max: 40.0 });
    }

    #[test]
    fn runs_with_scripts_are_compared_with_runs_with_scripts() {
        let both = [Validation::Assumevalid, Validation::Full];
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 450 };
        let mut all: Vec<Measured> = both.map(|it| of(utxo(it), &[1.0])).into();
        all.extend(both.map(|it| of(node(it), &[2.0])));
        let found: Vec<_> = ratios(&all).into_iter().map(|it| (it.apus, it.bitcoind)).collect();
        assert_eq!(found, both.map(|it| (utxo(it), node(it))));
    }

    #[test]
    fn an_output_is_compared_with_none() {
        let all = [
            of(crate::run::testing::apus("sha256", 2), &[1.0, 2.0]),
            of(roots(), &[1.5, 2.2]),
            of(crate::run::testing::apus("sha256", 1), &[4.0]),
        ];
        let [cost] = &outputs(&all)[..] else { panic!("{:?}", outputs(&all)) };
        assert_eq!(cost.subject, roots());
        assert!((cost.over_null.median - 3.7 / 3.0).abs() < 1e-9, "{cost:?}");
        assert_eq!((cost.over_null.min, cost.over_null.max), (1.1, 1.5));
        assert!(outputs(&all[1..]).is_empty());
        let file = of(crate::run::testing::apus("sha256", 2), &[2.0]);
        let mut snapshot = file.clone();
        if let Subject::Apus { engine, .. } = &mut snapshot.subject {
            SNAPSHOT_HINTS.clone_into(engine);
        }
        let found = outputs(&[file, snapshot.clone()]);
        assert_eq!((found.len(), &found[0].subject), (1, &snapshot.subject));
    }

    #[test]
    fn the_part_of_headers_is_of_all_work() {
        let mut measured = of(apus("a", 1), &[2.0, 2.0, 2.0]);
        assert_eq!((measured.blocks_per_second, measured.headers_share), (Some(5.0), None));
        for (run, wall_seconds) in measured.runs.iter_mut().zip([0.5, 1.0, 2.0]) {
            run.phases = vec![PhaseTime { phase: "headers".to_owned(), wall_seconds }];
        }
        assert_eq!(headers_share(&measured.runs), Some(0.25));
    }

    #[test]
    fn scaling_compares_what_differs_in_threads_alone() {
        let all = [
            of(apus("a", 1), &[1.0]),
            of(apus("a", 2), &[0.5]),
            of(apus("b", 2), &[0.1]),
            of(apus("a", 4), &[0.25]),
        ];
        let found: Vec<_> =
            scaling(&all).iter().map(|it| (it.threads, it.times_faster, it.side_by_side)).collect();
        assert_eq!(found, [(2, 2.0, Some(1.6)), (4, 4.0, Some(3.2))]);
    }

    #[test]
    fn the_floor_is_that_of_the_same_threads_and_proof() {
        let times = |one_thread_ms, all_threads_ms| Times { one_thread_ms, all_threads_ms };
        let run = times(100.0, 50.0);
        let floor = ChainFloor {
            work: Work::default(),
            items: Vec::new(),
            floors: vec![FloorOf { aggregate: "a".to_owned(), validation: run, run }],
        };
        let mut all = [
            of(apus("a", 1), &[0.15]),
            of(apus("a", 2), &[0.10]),
            of(apus("a", 3), &[0.1]),
            of(apus("b", 1), &[0.1]),
            of(utxo(Validation::Assumevalid), &[0.1]),
        ];
        over_floor(&mut all, &floor, 2);
        let found: Vec<Option<f64>> = all.iter().map(|it| it.over_floor).collect();
        assert_eq!(found, [Some(1.5), Some(2.0), None, None, None]);
    }
}
