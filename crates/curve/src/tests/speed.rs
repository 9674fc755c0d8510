//! Prints the time of field operations; run with `--release -- --ignored --nocapture`.

use crate::field::{FieldVector, square_root};
use std::hint::black_box;
use std::time::Instant;

/// The least time of many short runs, per element: the machine may be busy.
#[inline(always)]
fn least(lanes: usize, count: usize, mut run: impl FnMut()) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..4000 {
        let start = Instant::now();
        run();
        least = least.min(start.elapsed().as_nanos() as f64 / (count * lanes) as f64);
    }
    least
}

#[inline(always)]
fn time<F: FieldVector>(name: &str) {
    let b = F::splat(&[11, 5, 7, 9]);
    let mut v = [b.square(), b.mul(&b), b, b];
    let l = F::LANES;
    let m = least(l, 200, || {
        for _ in 0..200 {
            v[0] = v[0].mul(&b)
        }
    });
    let s = least(l, 200, || {
        for _ in 0..200 {
            v[0] = v[0].square()
        }
    });
    let m4 = least(l, 200, || {
        for _ in 0..50 {
            for x in &mut v {
                *x = x.mul(&b)
            }
        }
    });
    let s4 = least(l, 200, || {
        for _ in 0..50 {
            for x in &mut v {
                *x = x.square()
            }
        }
    });
    let p = least(l, 200, || {
        for _ in 0..200 {
            v[0] = F::sum_of_products(&v[0], &b, &b, &b)
        }
    });
    let r = least(l, 5, || {
        for _ in 0..5 {
            v[1] = square_root(&v[1])
        }
    });
    black_box(&v);
    println!(
        "{name}: mul {m:.2} square {s:.2}; independent {m4:.2} {s4:.2}; sum {p:.2} root {r:.0}"
    );
}

#[target_feature(enable = "avx2,bmi2")]
fn time_avx2() {
    time::<crate::avx2::FieldAvx2>("avx2");
}

#[test]
#[ignore]
#[allow(unsafe_code)]
fn field_operations() {
    time::<crate::portable::Element>("portable");
    if is_x86_feature_detected!("avx2") {
        // SAFETY: detected.
        unsafe { time_avx2() };
    }
}
