use super::*;
use apus_chain::Txid;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

const RUN: RunId = RunId([7; 32]);

fn object() -> impl Strategy<Value = ObjectRef> {
    (any::<[u8; 32]>(), 1u64 << 20..1 << 24).prop_map(|(digest, bytes)| ObjectRef { digest, bytes })
}

fn pieces() -> impl Strategy<Value = Vec<RecordPiece>> {
    vec((any::<[u64; 2]>(), any::<u32>(), any::<[u8; 32]>()), 0..5).prop_map(|pieces| {
        let mut ends: Vec<u64> = pieces.iter().flat_map(|(ends, ..)| *ends).collect();
        ends.sort_unstable();
        let (ends, _) = ends.as_chunks();
        let pieces = ends.iter().zip(pieces);
        let pieces = pieces.map(|([first, last], (_, bytes, digest))| RecordPiece {
            first: *first,
            last: *last,
            bytes: bytes >> 16,
            digest,
        });
        pieces.collect()
    })
}

fn slice() -> impl Strategy<Value = Slice> {
    (0u64..1 << 19, vec((0u32..1 << 16, any::<[u8; 32]>()), 0..4))
        .prop_map(|(offset, pieces)| Slice { offset, pieces })
}

fn existed() -> impl Strategy<Value = BTreeMap<Height, Vec<OutPoint>>> {
    let outpoint =
        (any::<[u8; 32]>(), any::<u32>()).prop_map(|(id, vout)| OutPoint { txid: Txid(id), vout });
    btree_map(any::<u32>(), vec(outpoint, 1..3), 0..3)
}

fn run_objects() -> impl Strategy<Value = RunObjects> {
    (any::<u64>(), any::<u32>(), any::<[u8; 16]>(), vec(object(), 0..3)).prop_map(
        |(bytes, sections, checksum, objects)| RunObjects { bytes, sections, checksum, objects },
    )
}

/// Checks that a value decodes only for its own job, and not if truncated.
fn round_trips<S: Sent + PartialEq + std::fmt::Debug>(sent: &S) {
    let key = JobKey::join(3);
    let bytes = sent.to_bytes(RUN, key);
    assert_eq!(S::from_bytes(&bytes, RUN, key).as_ref(), Ok(sent));
    assert!(any_reads_as_sent(&bytes, RUN, key));
    let other = S::from_bytes(&bytes, RUN, JobKey::join(4));
    assert_eq!(other.unwrap_err(), WireError::OtherJob { what: S::WHAT });
    let other = S::from_bytes(&bytes, RunId([8; 32]), key).unwrap_err();
    assert!(matches!(other, WireError::OtherRun { .. }), "{other}");
    for length in (0..bytes.len()).rev().take(200) {
        assert!(S::from_bytes(&bytes[..length], RUN, key).is_err(), "{length}");
    }
    let more = [&bytes[..], &[0]].concat();
    assert!(S::from_bytes(&more, RUN, key).is_err());
}

proptest! {
    #[test]
    fn payloads_and_results_round_trip(
        (records, own) in (object(), object()),
        (made, spent) in (pieces(), pieces()),
        sources in vec((object(), slice(), slice()), 0..4),
        (from, until) in (any::<u64>(), any::<Option<u64>>()),
        existed in existed(),
        (coins, places) in (run_objects(), run_objects()),
        answers in vec(object(), 1..4),
        slices in vec((any::<prop::sample::Index>(), 0u32..1 << 18, 0u32..1 << 18, any::<[u8; 32]>()), 0..5),
        numbers in any::<[u64; 4]>(),
    ) {
        let bytes = made.iter().chain(&spent).map(|piece| u64::from(piece.bytes)).sum();
        let records = ObjectRef { bytes, ..records };
        let leaves = numbers[3];
        round_trips(&FirstPassDone { records, own, made, spent, leaves, partial: SegmentSummary::default() });
        let source = |(at, (records, made, spent)): (usize, _)| {
            let range = HeightRange::new(10 * at as u32, 10 * at as u32 + 9);
            JoinSource { range, records, made, spent }
        };
        let sources = sources.into_iter().enumerate().map(source).collect();
        round_trips(&JoinPayload { from, until, sources });
        let [coins_left, transactions, amount, bogosize] = numbers;
        let totals =
            CoinTotals { coins: coins_left, transactions, amount: u128::from(amount) << 9, bogosize };
        let mut muhash = MuHash::default();
        muhash.insert(&from.to_le_bytes());
        let slice = |(object, offset, bytes, digest): (prop::sample::Index, u32, u32, [u8; 32])| {
            let object = object.index(answers.len()) as u32;
            FoundSlice { object, offset, bytes, digest: if bytes > 0 { digest } else { [0; 32] } }
        };
        let slices: Vec<FoundSlice> = slices.into_iter().map(slice).collect();
        let found = JoinFound { objects: answers, slices };
        let parts: Vec<FoundPart> =
            found.slices.iter().filter_map(|slice| slice.part(&found.objects)).collect();
        let forest = until.map(|first| ForestPayload { first, leaves: parts.clone() });
        let undo_from = from as u32;
        let undo = found.objects.clone();
        round_trips(&ConnectPayload { own, answers: parts, existed: existed.clone(), forest, undo_from });
        let none = JoinFound::default();
        for (answers, leaves) in [(found.clone(), none), (found.clone(), found)] {
            let (coins, places, existed) = (coins.clone(), places.clone(), existed.clone());
            let muhash = muhash.clone();
            round_trips(&JoinDone { totals, muhash, existed, coins, places, answers, leaves });
        }
        let fragment = until.map(|first| {
            let mut fragment = Fragment::new(first >> 1).unwrap();
            fragment.push_empty(bogosize % 1000).unwrap();
            fragment
        });
        round_trips(&ConnectDone { blocks: from, bytes: amount, fragment, undo });
    }

    #[test]
    fn any_bytes_are_read_or_refused(any in vec(any::<u8>(), 0..200), done: bool) {
        let key = JobKey::join(3);
        let mut bytes = begin(if done { DONE_MAGIC } else { PAYLOAD_MAGIC });
        bytes.extend_from_slice(&RUN.0);
        write_key(key, &mut bytes);
        bytes.extend(any);
        any_reads_as_sent(&bytes, RUN, key);
    }
}

/// A slice that ends after its object is refused.
#[test]
fn a_slice_that_ends_after_its_object_is_refused() {
    let records = ObjectRef { digest: [1; 32], bytes: 100 };
    let is_valid = |offset: u64, bytes: u32| {
        let made = Slice { offset, pieces: vec![(bytes, [2; 32])] };
        let source =
            JoinSource { range: HeightRange::new(1, 2), records, made, spent: Slice::default() };
        let payload = JoinPayload { from: 0, until: None, sources: vec![source] };
        let bytes = payload.to_bytes(RUN, JobKey::join(0));
        JoinPayload::from_bytes(&bytes, RUN, JobKey::join(0)).is_ok()
    };
    assert!(is_valid(0, 100) && is_valid(40, 60));
    assert!(!is_valid(0, 101) && !is_valid(41, 60) && !is_valid(u64::MAX, 1));
}
