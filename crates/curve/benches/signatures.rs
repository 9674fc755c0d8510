//! Verifies ECDSA signatures with each kernel and with libsecp256k1. An item is a signature.
//!
//! The order of a round is: libsecp256k1, then the kernels, so that one busy machine slows all.

use apus_curve::{Kernel, Parity, SignatureCheck, Verifier};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use secp256k1::{Message, PublicKey, SECP256K1, SecretKey, ecdsa::Signature};

fn main() {
    divan::main();
}

const COUNTS: [usize; 3] = [1024, 256, 16];
const HINTED_COUNTS: [usize; 3] = [4096, 1024, 256];

/// A signature with its key and message.
struct Signed {
    key: PublicKey,
    message: [u8; 32],
    signature: Signature,
}

fn signed(count: usize) -> Vec<Signed> {
    let sign = |i: usize| {
        let bytes = apus_hash::sha256(&i.to_le_bytes());
        let secret = SecretKey::from_slice(&bytes).expect("a digest below the order");
        let message = apus_hash::sha256(&bytes);
        let signature = SECP256K1.sign_ecdsa(&Message::from_digest(message), &secret);
        Signed { key: secret.public_key(SECP256K1), message, signature }
    };
    (0..count).map(sign).collect()
}

#[divan::bench(args = COUNTS)]
fn libsecp256k1(bencher: Bencher, count: usize) {
    let all = signed(count);
    let keys: Vec<[u8; 33]> = all.iter().map(|it| it.key.serialize()).collect();
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        all.iter().zip(&keys).all(|(it, key)| {
            let message = Message::from_digest(it.message);
            let key = PublicKey::from_slice(black_box(key)).expect("a key");
            SECP256K1.verify_ecdsa(&message, &it.signature, &key).is_ok()
        })
    });
}

/// Whether signatures come with hints, and are proven by one sum.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hints {
    None,
    All,
}

fn measure(bencher: Bencher, kernel: Kernel, hints: Hints, count: usize) {
    if !Kernel::available().contains(&kernel) {
        return;
    }
    let all = signed(count);
    let ders: Vec<_> = all.iter().map(|it| it.signature.serialize_der()).collect();
    let keys: Vec<[u8; 33]> = all.iter().map(|it| it.key.serialize()).collect();
    let check = |i: usize| {
        SignatureCheck::ecdsa(&keys[i], &all[i].message, &ders[i]).expect("a valid signature")
    };
    let mut verifier = Verifier::new(kernel);
    let mut proven = Vec::with_capacity(count);
    verifier.verify(&(0..count).map(check).collect::<Vec<_>>(), &mut proven);
    let hint: Vec<Option<Parity>> =
        proven.iter().map(|it| it.filter(|_| hints == Hints::All)).collect();
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let checks: Vec<SignatureCheck> = (0..count).map(|i| check(i).with_hint(hint[i])).collect();
        proven.clear();
        verifier.verify(black_box(&checks), &mut proven);
        assert!(proven.iter().all(Option::is_some));
    });
}

#[divan::bench(args = COUNTS)]
fn avx512_ifma(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx512Ifma, Hints::None, count);
}

#[divan::bench(args = COUNTS)]
fn avx2(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx2, Hints::None, count);
}

#[divan::bench(args = COUNTS)]
fn portable(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Portable, Hints::None, count);
}

#[divan::bench(args = HINTED_COUNTS)]
fn avx512_ifma_with_hints(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx512Ifma, Hints::All, count);
}

#[divan::bench(args = HINTED_COUNTS)]
fn avx2_with_hints(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx2, Hints::All, count);
}

#[divan::bench(args = HINTED_COUNTS)]
fn portable_with_hints(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Portable, Hints::All, count);
}
