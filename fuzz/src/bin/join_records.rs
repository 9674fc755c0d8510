//! Records that segments leave for a join: accepted records are written back as the same bytes. And a join of
//! any records, valid chains or not, has the same result as moving a set of coins from block to block. The
//! first byte of an input selects the test.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_chain::{
    Ancestry, BlockHash, Height, HeightRange, Network, OutPoint, Params, Reader, Txid,
};
use apus_sync::engines::mergesync::{
    Join, JoinSink, OutputCoin, OutputRecord, PrevoutRecord, SegmentPrevouts, SegmentSummary,
    SpendRecord, SpendSummary, StrippedCoin,
};
use apus_sync::engines::pass::PartialResult;
use core::convert::Infallible;
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((0..128, data)) => read(data),
        Some((_, data)) => join(data),
        None => {}
    }
});

/// A chain whose blocks are one second apart.
struct Seconds;

impl Ancestry for Seconds {
    fn hash(&self, _: Height) -> Option<BlockHash> {
        None
    }

    fn median_time_past(&self, height: Height) -> Option<u32> {
        Some(height)
    }
}

/// Reads arbitrary bytes as a spend summary, with any coins.
fn check_summary(data: &[u8]) {
    let mut rest = data;
    while let Some((claims, after)) = SpendSummary::read(rest) {
        assert!(after.len() < rest.len());
        rest = after;
        let coins = || data.chunks(9);
        if let Some(claims) = claims
            && claims.allowed(Params::of(Network::Main), 500_000, &Seconds, coins())
        {
            // If the summary is allowed, all coins could be read, and none creates money.
            let bare = coins().filter_map(StrippedCoin::read);
            assert!(bare.map(|coin| coin.value()).all(|coin| apus_chain::money_range(coin.amount)));
        }
    }
}

fn read(data: &[u8]) {
    check_summary(data);
    let mut out = Vec::new();
    if let Some((record, rest)) = OutputRecord::read(data) {
        let coins: Vec<OutputCoin<'_>> = record.coins().collect();
        assert!(coins.is_sorted_by(|a, b| a.vout < b.vout));
        OutputRecord::write(&mut out, &record.txid, record.height, |out| {
            coins.iter().for_each(|coin| coin.write(out));
        });
        assert!([&out[..], rest].concat() == data);
    }
    out.clear();
    if let Some((record, rest)) = SpendRecord::read(data) {
        record.write(&mut out);
        assert!([&out[..], rest].concat() == data);
    }
    out.clear();
    if let Some((record, rest)) = PrevoutRecord::read(data) {
        record.write(&mut out);
        assert!([&out[..], rest].concat() == data);
    }
    let (one, other) = data.split_at(data.len() / 2);
    // In records that can be read, no place has two coins.
    if SegmentPrevouts::read(HeightRange::new(0, Height::MAX), &[one, other]).is_some() {
        let mut places = BTreeSet::new();
        for run in [one, other] {
            let mut rest = run;
            while let Some((record, after)) = PrevoutRecord::read(rest) {
                assert!(places.insert((record.height, record.place)));
                rest = after;
            }
            assert!(rest.is_empty());
        }
    }
    let mut reader = Reader::new(data);
    if let Some(gathered) = SegmentSummary::read(&mut reader) {
        out.clear();
        gathered.write(&mut out);
        assert!(out == data[..reader.position()]);
    }
}

/// Coins by transaction and height, then by output; each with its index and bytes.
type Made = BTreeMap<(Txid, Height), BTreeMap<u32, (u32, Vec<u8>)>>;

#[derive(Debug, Default, PartialEq)]
struct Found {
    answers: BTreeMap<(Height, u32, OutPoint), Vec<u8>>,
    survivors: BTreeMap<OutPoint, (Height, u32, Vec<u8>)>,
    existed: BTreeMap<(Height, OutPoint), u32>,
    overwritten: BTreeMap<(OutPoint, Height), Vec<u8>>,
    /// Spends whose prevouts the current join of output records looks for. Their positions in blocks are arbitrary
    /// here.
    spends: BTreeMap<(Height, u32), BTreeSet<OutPoint>>,
}

impl JoinSink for Found {
    type Error = Infallible;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), Infallible> {
        // The coin begins with its outpoint.
        let outpoint = OutPoint { txid: Txid([coin[0]; 32]), vout: u32::from(coin[1]) };
        assert!(self.spends[&(height, place)].contains(&outpoint));
        assert!(self.answers.insert((height, place, outpoint), coin.to_vec()).is_none());
        Ok(())
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), Infallible> {
        assert!(self.survivors.last_key_value().is_none_or(|(last, _)| last < outpoint));
        self.survivors.insert(*outpoint, (height, index, coin.to_vec()));
        Ok(())
    }

    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        coin: &[u8],
    ) -> Result<(), Infallible> {
        assert!(self.overwritten.insert((*outpoint, height), coin.to_vec()).is_none());
        Ok(())
    }

    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), Infallible> {
        *self.existed.entry((height, *outpoint)).or_default() += 1;
        Ok(())
    }
}

/// Joins records of few transactions, outputs and heights, so that they coincide.
fn join(data: &[u8]) {
    let (mut made, mut spent) = (Made::new(), BTreeSet::new());
    for entry in data.as_chunks::<4>().0 {
        let [kind, name, height, number] = *entry;
        let (txid, vout) = (Txid([name >> 2 & 7; 32]), u32::from(name & 3));
        let (height, number) = (Height::from(height & 15), u32::from(number));
        match kind & 3 {
            0 | 1 => {
                let own = kind & 7 == 5;
                let coin = if own { vec![] } else { vec![txid.0[0], vout as u8, number as u8] };
                made.entry((txid, height)).or_default().insert(vout, (number, coin));
            }
            _ => drop(spent.insert((OutPoint { txid, vout }, height, number))),
        }
    }
    let wanted = by_the_set(&made, &spent);
    let mut found = Found::default();
    for (outpoint, height, place) in &spent {
        found.spends.entry((*height, *place)).or_default().insert(*outpoint);
    }
    let txids: BTreeSet<Txid> =
        made.keys().map(|key| key.0).chain(spent.iter().map(|it| it.0.txid)).collect();
    let mut join = Join::new(&mut found);
    for txid in txids {
        for ((_, height), coins) in made.iter().filter(|(key, _)| key.0 == txid) {
            let mut record = Vec::new();
            OutputRecord::write(&mut record, &txid, *height, |out| {
                for (vout, (index, coin)) in coins {
                    OutputCoin { vout: *vout, index: *index, coin }.write(out);
                }
            });
            let (record, _) = OutputRecord::read(&record).expect("it was written");
            let Ok(()) = join.made(&record);
        }
        for &(outpoint, height, place) in spent.iter().filter(|it| it.0.txid == txid) {
            let Ok(()) = join.spent(&SpendRecord { outpoint, height, place });
        }
    }
    let Ok(_) = join.finish();
    found.spends.clear();
    assert_eq!(found, wanted);
}

/// Computes the result with a set, block by block: a block's spends first, then its outputs.
fn by_the_set(made: &Made, spent: &BTreeSet<(OutPoint, Height, u32)>) -> Found {
    let (mut set, mut found) = (BTreeMap::new(), Found::default());
    for height in 0..16 {
        let before: BTreeSet<OutPoint> = set.keys().copied().collect();
        let mut spends: Vec<(u32, OutPoint)> =
            spent.iter().filter(|it| it.1 == height).map(|it| (it.2, it.0)).collect();
        spends.sort_unstable();
        for (place, outpoint) in spends {
            if let Some((_, _, coin)) = set.remove(&outpoint) {
                found.answers.insert((height, place, outpoint), coin);
            }
        }
        for ((txid, _), coins) in made.iter().filter(|(key, _)| key.1 == height) {
            for (vout, (index, coin)) in coins {
                let outpoint = OutPoint { txid: *txid, vout: *vout };
                if before.contains(&outpoint) {
                    *found.existed.entry((height, outpoint)).or_default() += 1;
                }
                if !coin.is_empty()
                    && let Some((lost, _, coin)) =
                        set.insert(outpoint, (height, *index, coin.clone()))
                {
                    found.overwritten.insert((outpoint, lost), coin);
                }
            }
        }
    }
    found.survivors = set;
    found
}
