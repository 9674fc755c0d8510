//! Tests flushes that stop at each step, and writers that do not know that they were replaced.

use super::*;
use apus_chain::{CoinRef, Txid};
use apus_engine::utxo::Changes;
use apus_engine::utxo::store::{EachChange, UndoRecord};
use apus_testkit::redis::RedisCluster;

fn outpoint(number: u8) -> OutPoint {
    OutPoint { txid: Txid([number.wrapping_mul(67); 32]), vout: u32::from(number) }
}

/// The coin under each name from 0 to 19 at a height: some stay, some change, some disappear.
fn coin_at(number: u8, height: u32) -> Option<CoinBytes> {
    let made = if number.is_multiple_of(3) { height } else { 1 };
    let gone = height > 1 && number.is_multiple_of(4);
    let coin = CoinRef { height: made, coinbase: false, amount: 9, script: &[] };
    (height > 0 && !gone).then(|| CoinBytes::new(coin))
}

struct To(u32);

impl Changes for To {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let mut names: Vec<_> = (0..20).map(|number| (outpoint(number), number)).collect();
        names.sort_unstable();
        names.iter().try_for_each(|(at, number)| each(at, coin_at(*number, self.0).as_ref()))
    }
}

fn block(height: u32) -> KnownBlock {
    KnownBlock { height, hash: BlockHash([height as u8; 32]) }
}

fn with_flush<T>(height: u32, act: impl FnOnce(&Flush<'_>) -> T) -> T {
    let undo = [UndoRecord { block: block(height), bytes: vec![height as u8; 100].into() }];
    act(&Flush { tip: block(height), changes: &To(height), undo: &undo, undo_from: 1 })
}

fn options() -> ClusterOptions {
    let lease = Duration::from_millis(300);
    ClusterOptions { bucket_bits: 5, lease, ..ClusterOptions::default() }
}

fn open(cluster: &RedisCluster, name: &str) -> ClusterStore {
    let place: ClusterUrl = cluster.url(name).parse().unwrap();
    ClusterStore::open(&place, Network::Regtest, &options()).unwrap()
}

/// Checks a store's contents at a height.
fn expect(store: &ClusterStore, height: u32) {
    assert_eq!(store.tip().unwrap(), Some(block(height)));
    let names: Vec<_> = (0..20).map(outpoint).collect();
    let coins: Vec<_> = (0..20).map(|number| coin_at(number, height)).collect();
    assert_eq!(store.get_many(&names).unwrap(), coins);
    let mut listed = 0;
    let count = |_: &OutPoint, _: &CoinBytes| {
        listed += 1;
        Ok(())
    };
    let mut count = count;
    store.for_each(&mut count).unwrap();
    assert_eq!(listed, coins.iter().flatten().count());
    for at in 1..=3 {
        let undo = (at <= height).then(|| vec![at as u8; 100]);
        assert_eq!(store.undo(&block(at).hash).unwrap(), undo, "{at}");
    }
}

/// Checks that no chunks are left, and no flush that could have some.
fn expect_clean(cluster: &RedisCluster, name: &str) {
    for port in cluster.ports() {
        for pattern in [format!("{name}:w:*"), format!("{name}:flushes")] {
            assert_eq!(cluster.tell(port, &format!("KEYS {pattern}")).unwrap(), "*0\r\n");
        }
    }
}

/// How far a flush gets.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Until {
    Announced,
    WrittenAhead,
    Recorded,
    HalfApplied,
    Applied,
    Done,
}

/// Performs the steps of [`ClusterStore::write`] up to `until`.
fn write_until(store: &ClusterStore, height: u32, until: Until) {
    let to = &store.connections;
    let token = RandomId::random(store.place()).unwrap();
    wal::announce(to, &token).unwrap();
    if until == Until::Announced {
        return;
    }
    let chunks = with_flush(height, |flush| store.write_ahead(to, &token, flush)).unwrap();
    if until == Until::WrittenAhead {
        return;
    }
    let before = store.record.get().unwrap();
    let pending = PendingFlush { token, chunks };
    let epoch = before.epoch + 1;
    let next = ClusterRecord { epoch, tip: Some(block(height)), pending: Some(pending), ..before };
    before.replace_by(&next, to).unwrap();
    if until == Until::HalfApplied {
        // Change half of the names; some existed before and some did not.
        let mut changes = Vec::new();
        let coins: Vec<_> = (0..20).map(|number| coin_at(number, height)).collect();
        for number in (0..20).step_by(2) {
            let coin = coins[usize::from(number)].as_ref().map(CoinBytes::as_bytes);
            changes.push(StoreChange::Coin(outpoint(number), coin));
        }
        apply::apply(to, store.buckets, epoch, &changes).unwrap();
    }
    if until >= Until::Applied {
        apply::chunks(to, store.buckets, epoch, &pending).unwrap();
    }
    if until == Until::Done {
        next.replace_by(&ClusterRecord { pending: None, ..next }, to).unwrap();
    }
}

#[test]
fn an_interrupted_flush_takes_effect_completely_or_not_at_all() {
    let cluster = RedisCluster::start();
    let ends = [
        (Until::Announced, 1),
        (Until::WrittenAhead, 1),
        (Until::Recorded, 2),
        (Until::HalfApplied, 2),
        (Until::Applied, 2),
        (Until::Done, 2),
    ];
    for (number, (until, height)) in ends.into_iter().enumerate() {
        let name = format!("until-{number}");
        let store = open(&cluster, &name);
        with_flush(1, |flush| store.write(flush)).unwrap();
        expect(&store, 1);
        expect_clean(&cluster, &name);
        write_until(&store, 2, until);
        drop(store);
        // Open it twice, to check that the second opening does not repeat the work of the first.
        for _ in 0..2 {
            let store = open(&cluster, &name);
            expect(&store, height);
            expect_clean(&cluster, &name);
        }
        let store = open(&cluster, &name);
        with_flush(height + 1, |flush| store.write(flush)).unwrap();
        expect(&store, height + 1);
    }
    a_writer_that_was_replaced_changes_nothing(&cluster);
    a_writer_whose_store_was_opened_changes_nothing(&cluster);
    leftovers_are_removed_if_any_part_is_missing(&cluster);
    a_half_filled_store_is_emptied(&cluster);
}

fn a_writer_that_was_replaced_changes_nothing(cluster: &RedisCluster) {
    let stale = open(cluster, "stale");
    with_flush(1, |flush| stale.write(flush)).unwrap();
    let before = stale.record.get().unwrap();
    // It stops in the middle of applying; its lease expires, and another writer takes over.
    write_until(&stale, 2, Until::HalfApplied);
    let to = &stale.connections;
    let (_, pending) = match ClusterRecord::read(to, Network::Regtest).unwrap() {
        Some(ClusterRecord { epoch, pending: Some(pending), .. }) => (epoch, pending),
        other => panic!("{other:?}"),
    };
    let chunk: Option<Vec<u8>> =
        to.ask(redis::cmd("GET").arg(to.keys.chunk(&pending.token, 0))).unwrap();
    let chunk = chunk.unwrap();
    to.ask::<()>(redis::cmd("DEL").arg(to.keys.lease())).unwrap();
    // The stale writer may renew its lease once more before the other one takes it.
    let other = open(cluster, "stale");
    with_flush(3, |flush| other.write(flush)).unwrap();
    expect(&other, 3);

    // The stale writer wakes up. It can neither record a flush nor apply one, although it still has its changes.
    let next = ClusterRecord { epoch: before.epoch + 1, tip: Some(block(9)), ..before };
    assert!(matches!(before.replace_by(&next, to), Err(StoreError::InUse { .. })));
    let changes = wal::changes(&chunk).unwrap();
    let late = apply::apply(to, stale.buckets, before.epoch + 1, &changes);
    assert!(matches!(late, Err(StoreError::InUse { .. })));
    assert!(with_flush(2, |flush| stale.write(flush)).is_err());
    // Nor can one that was about to empty the store.
    for bucket in stale.buckets.all() {
        let (mut empty, key) = (redis::cmd("EVAL"), to.keys.coins(bucket as u16));
        to.ask::<u8>(empty.arg(fill::EMPTY).arg(1).arg(&key).arg(buckets::EPOCH).arg(0)).unwrap();
    }
    expect(&other, 3);
    drop(stale);
    // The stale writer did not release the other writer's lease.
    with_flush(4, |flush| other.write(flush)).unwrap();
    assert_eq!(other.tip().unwrap(), Some(block(4)));
}

/// Another writer opens the store, writes nothing and leaves while this one writes ahead.
fn a_writer_whose_store_was_opened_changes_nothing(cluster: &RedisCluster) {
    let stale = open(cluster, "opened");
    with_flush(1, |flush| stale.write(flush)).unwrap();
    let to = &stale.connections;
    let away = || to.ask::<()>(redis::cmd("DEL").arg(to.keys.lease())).unwrap();
    let token = RandomId::random(stale.place()).unwrap();
    wal::announce(to, &token).unwrap();
    let chunks = with_flush(2, |flush| stale.write_ahead(to, &token, flush)).unwrap();
    away();
    drop(open(cluster, "opened"));
    expect_clean(cluster, "opened");

    let before = stale.record.get().unwrap();
    let pending = Some(PendingFlush { token, chunks });
    let next = ClusterRecord { epoch: before.epoch + 1, tip: Some(block(2)), pending, ..before };
    assert!(matches!(before.replace_by(&next, to), Err(StoreError::InUse { .. })));
    // A flush that the stale writer starts now fails too, and leaves no chunks.
    assert!(with_flush(2, |flush| stale.write(flush)).is_err());
    expect_clean(cluster, "opened");
    drop(stale);
    let store = open(cluster, "opened");
    expect(&store, 1);
    with_flush(2, |flush| store.write(flush)).unwrap();
    expect(&store, 2);
}

/// A removal of several chunks stopped after some of them.
fn leftovers_are_removed_if_any_part_is_missing(cluster: &RedisCluster) {
    let store = open(cluster, "left");
    with_flush(1, |flush| store.write(flush)).unwrap();
    let to = &store.connections;
    let token = RandomId::random(store.place()).unwrap();
    wal::announce(to, &token).unwrap();
    for number in [0, 1, 2, 999, 1000, 1003, 2999] {
        wal::write(to, &token, number, b"chunk").unwrap();
    }
    drop(store);
    expect(&open(cluster, "left"), 1);
    expect_clean(cluster, "left");
}

/// The first flush stops after its coins, before the record names the block. Its writer continues later.
fn a_half_filled_store_is_emptied(cluster: &RedisCluster) {
    let stale = open(cluster, "half");
    let before = stale.record.get().unwrap();
    let (to, epoch) = (&stale.connections, before.epoch + 1);
    let pending = Some(fill::pending(stale.place()).unwrap());
    let begun = ClusterRecord { epoch, pending, ..before };
    before.replace_by(&begun, to).unwrap();
    let filled = |flush: &Flush<'_>| fill::fill((to, to), stale.buckets, epoch, flush, &|| Ok(()));
    with_flush(1, filled).unwrap();
    to.ask::<()>(redis::cmd("DEL").arg(to.keys.lease())).unwrap();
    let store = open(cluster, "half");
    assert_eq!(store.tip().unwrap(), None);
    let mut coins = 0;
    store
        .for_each(&mut |_, _| {
            coins += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!((coins, store.undo(&block(1).hash).unwrap()), (0, None));
    // The stale writer can neither add coins nor complete its record.
    assert!(matches!(with_flush(1, filled), Err(StoreError::InUse { .. })));
    let done = ClusterRecord { tip: Some(block(1)), pending: None, ..begun };
    assert!(matches!(begun.replace_by(&done, to), Err(StoreError::InUse { .. })));
    with_flush(1, |flush| store.write(flush)).unwrap();
    expect(&store, 1);
}
