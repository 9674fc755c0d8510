//! Pools whose signature checks are deferred and proven by libsecp256k1.

use apus_engine::script::{
    Interpreter, RParity, RecordedCheck, ScriptFailure, ScriptPool, SignatureKind, SignatureMode,
    SignatureProver, signature_prover,
};
use bitcoin::secp256k1::ecdsa::Signature;
use bitcoin::secp256k1::{Message, PublicKey, Secp256k1, VerifyOnly, XOnlyPublicKey, schnorr};
use std::sync::Arc;

/// Proves every valid signature, or leaves out some of them.
pub(crate) struct Libsecp256k1 {
    secp: Secp256k1<VerifyOnly>,
    /// Of this many valid signatures, one is not proven on average; 0: all are.
    refuses: u64,
    random: u64,
}

impl Libsecp256k1 {
    pub(crate) fn new(refuses: u64) -> Self {
        Self { secp: Secp256k1::verification_only(), refuses, random: 1 }
    }

    fn is_valid(&self, check: &RecordedCheck) -> Option<bool> {
        let message = Message::from_digest(*check.hash());
        Some(match check.kind() {
            SignatureKind::Ecdsa => {
                let key = PublicKey::from_slice(check.key()).ok()?;
                let mut signature = Signature::from_der_lax(check.signature()).ok()?;
                // As Core does (`pubkey.cpp`, `CPubKey::Verify`).
                signature.normalize_s();
                self.secp.verify_ecdsa(&message, &signature, &key).is_ok()
            }
            SignatureKind::Schnorr => {
                let key = XOnlyPublicKey::from_slice(check.key()).ok()?;
                let signature = schnorr::Signature::from_slice(check.signature()).ok()?;
                self.secp.verify_schnorr(&signature, &message, &key).is_ok()
            }
        })
    }

    fn is_refused(&mut self) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        self.refuses > 0 && (self.random >> 33).is_multiple_of(self.refuses)
    }
}

impl SignatureProver for Libsecp256k1 {
    fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
        for check in checks {
            let is_proven = self.is_valid(check) == Some(true) && !self.is_refused();
            proven.push(is_proven.then_some(RParity::Even));
        }
        0
    }
}

/// Returns a pool with two threads and this prover.
pub(crate) fn pool_with(
    interpreter: Arc<dyn Interpreter>,
    mode: SignatureMode,
    refuses: u64,
) -> ScriptPool {
    let new_prover = move || -> Box<dyn SignatureProver> { Box::new(Libsecp256k1::new(refuses)) };
    ScriptPool::with_prover(2, interpreter, mode, Arc::new(new_prover)).unwrap()
}

/// Returns a pool with our prover; `None` if this machine has none for the mode.
pub(crate) fn our_pool(
    interpreter: Arc<dyn Interpreter>,
    mode: SignatureMode,
) -> Option<ScriptPool> {
    Some(ScriptPool::with_prover(2, interpreter, mode, signature_prover(mode)?.new_prover).unwrap())
}

/// The pools whose verdicts must be the same: without deferral, and in shadow mode with a prover
/// that proves all valid signatures, with one that leaves out a third, and with ours.
pub(crate) struct Pools([ScriptPool; 4]);

impl Pools {
    pub(crate) fn new(interpreter: &Arc<dyn Interpreter>) -> Self {
        let interpreter = || Arc::clone(interpreter);
        Self([
            ScriptPool::with_interpreter(2, interpreter()).unwrap(),
            pool_with(interpreter(), SignatureMode::Shadow, 0),
            pool_with(interpreter(), SignatureMode::Shadow, 3),
            our_pool(interpreter(), SignatureMode::Shadow).unwrap(),
        ])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ScriptPool> {
        self.0.iter()
    }

    /// Returns the verdict of all pools.
    pub(crate) fn verdict(
        &self,
        run: impl Fn(&ScriptPool) -> Result<(), ScriptFailure>,
    ) -> Result<(), ScriptFailure> {
        let verdict = run(&self.0[0]);
        for pool in &self.0[1..] {
            assert_eq!(run(pool), verdict, "with deferred signature checks");
        }
        verdict
    }
}
