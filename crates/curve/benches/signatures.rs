//! Verifies ECDSA signatures with each kernel and with libsecp256k1. An item is a signature.
//!
//! The order of a round is: libsecp256k1, then the kernels, so that one busy machine slows all.

use apus_curve::{Kernel, SignatureCheck, Verifier};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use secp256k1::{Message, PublicKey, SECP256K1, SecretKey, ecdsa::Signature};

fn main() {
    divan::main();
}

const COUNTS: [usize; 3] = [1024, 256, 16];

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

fn measure(bencher: Bencher, kernel: Kernel, count: usize) {
    if !Kernel::available().contains(&kernel) {
        return;
    }
    let all = signed(count);
    let ders: Vec<_> = all.iter().map(|it| it.signature.serialize_der()).collect();
    let keys: Vec<[u8; 33]> = all.iter().map(|it| it.key.serialize()).collect();
    let mut verifier = Verifier::new(kernel);
    let mut proven = Vec::with_capacity(count);
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let check = |i: usize| SignatureCheck::ecdsa(&keys[i], &all[i].message, &ders[i]);
        let checks: Vec<SignatureCheck> = (0..count).filter_map(check).collect();
        proven.clear();
        verifier.verify(black_box(&checks), &mut proven);
        assert!(proven.iter().all(|proven| *proven));
    });
}

#[divan::bench(args = COUNTS)]
fn avx512_ifma(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx512Ifma, count);
}

#[divan::bench(args = COUNTS)]
fn avx2(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Avx2, count);
}

#[divan::bench(args = COUNTS)]
fn portable(bencher: Bencher, count: usize) {
    measure(bencher, Kernel::Portable, count);
}
