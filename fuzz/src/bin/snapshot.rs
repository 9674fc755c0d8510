//! A UTXO snapshot: accepted ones are written back as the same bytes.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_chain::{HashSerialized3, UtxoStats};
use apus_datadir::snapshot::{
    SnapshotError, SnapshotHeader, SnapshotReader, SnapshotWriter, snapshot_info, write_group,
};
use apus_testkit::chain::ModelCoin;
use apus_testkit::oracle::coin_bytes;
use bitcoin::{Amount, ScriptBuf, TxOut};
use libfuzzer_sys::fuzz_target;
use std::io::Read;

type Group = (apus_chain::Txid, Vec<(u32, Vec<u8>)>);

fuzz_target!(|data: &[u8]| {
    let info = SnapshotReader::new(data, None).and_then(|reader| snapshot_info(reader, false));
    let read = SnapshotReader::new(Drip(data), None).and_then(read);
    assert_eq!(info.is_ok(), read.is_ok(), "the way the bytes arrive matters");
    let (Ok(info), Ok((header, groups, stats, hash))) = (info, read) else { return };
    assert_eq!((info.stats.coins, info.bytes), (header.coins, data.len() as u64));
    assert_eq!((info.stats, info.hash_serialized_3), (stats, hash.finish()));

    let mut writer = SnapshotWriter::new(Vec::new(), header).expect("memory");
    let mut bytes = Vec::new();
    for (txid, coins) in &groups {
        bytes.clear();
        let mut coins: Vec<_> = coins.iter().map(|(vout, coin)| (*vout, &coin[..])).collect();
        // Any order is accepted.
        coins.reverse();
        write_group(&mut bytes, txid, &mut coins).expect("it was read");
        writer.write_groups(&bytes).expect("it was read in this order");
    }
    assert!(writer.finish().expect("all coins were written") == data);
});

fn read<R: Read>(
    mut reader: SnapshotReader<R>,
) -> Result<(SnapshotHeader, Vec<Group>, UtxoStats, HashSerialized3), SnapshotError> {
    let (mut groups, mut stats) = (Vec::<Group>::new(), UtxoStats::default());
    let mut hash = HashSerialized3::new();
    while let Some(next) = reader.next_coin()? {
        let coin = next.coin.as_ref();
        let script_pubkey = ScriptBuf::from_bytes(coin.script.to_vec());
        let output = TxOut { value: Amount::from_sat(coin.amount), script_pubkey };
        let oracle = ModelCoin { output, height: coin.height, coinbase: coin.coinbase };
        assert_eq!(next.bytes, coin_bytes(&oracle));
        stats.push(&next.outpoint, coin);
        hash.push(&next.outpoint, coin);
        let (txid, stored) = (next.outpoint.txid, (next.outpoint.vout, next.bytes.to_vec()));
        match groups.last_mut() {
            Some((last, coins)) if *last == txid => coins.push(stored),
            _ => groups.push((txid, vec![stored])),
        }
    }
    Ok((*reader.header(), groups, stats, hash))
}

/// Returns seven bytes at a time.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(7);
        self.0.read(&mut buffer[..count])
    }
}
