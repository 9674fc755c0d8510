//! [`RunSpec`]: the description of a run, which a machine reads before it takes a job.
//!
//! ```text
//! 8     41 50 55 53 53 50 45 43   "APUSSPEC"
//! 4     version
//! 1     pass: 0 SwiftSync with hints, 1 the same with undo data, 2 mergesync, 3 utreexo, 4 mergesync with undo data
//! 40    the headers, an object
//! …     the plan, as in a work folder, with the secret and ending with a SHA-256
//! ```
//!
//! The SHA-256 of all these bytes names the run.

use super::wire::{ObjectRef, WireError, begin, open};
use apus_hash::sha256;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::workdir::plan::Plan;
use std::fmt::{Debug, Display, Formatter};

/// First bytes of a run's description.
const MAGIC: &[u8; 8] = b"APUSSPEC";

const WHAT: &str = "the description of the run";

/// Maximum length of a description. A queue must accept it in one message and return it in base64, both within 1 MB.
const SPEC_BYTES_MAX: usize = 700_000;

/// SHA-256 of a run's description, which covers everything that its results depend on. Does not reveal the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId(pub [u8; 32]);

impl RunId {
    /// The first half of the id in hexadecimal, which names streams, subjects and folders.
    pub fn name(&self) -> String {
        self.0[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses such a name; the second half of the id is zeros.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut id = [0; 32];
        let (pairs, rest) = name.as_bytes().as_chunks::<2>();
        if pairs.len() != 16 || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(pairs) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(id)).filter(|id| id.name() == name)
    }

    /// The id of a description.
    pub fn of(spec: &[u8]) -> Self {
        Self(sha256(spec))
    }
}

impl Display for RunId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

impl Debug for RunId {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunId({self})")
    }
}

/// The name of the pass with proofs.
const UTREEXO: &str = "utreexo";

/// The pass of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// SwiftSync with hints only.
    SwiftSync,
    /// SwiftSync with undo data, which each machine has next to its blocks.
    Fully,
    /// mergesync: both passes over the blocks, and the join between them.
    MergeSync,
    /// mergesync with the undo data of all blocks.
    MergeSyncKept,
    /// utreexo, defined outside this crate: validates block ranges from the roots before them, with proofs that each
    /// machine has or requests.
    Utreexo,
}

impl PassKind {
    const fn code(self) -> u8 {
        match self {
            Self::SwiftSync => 0,
            Self::Fully => 1,
            Self::MergeSync => 2,
            Self::Utreexo => 3,
            Self::MergeSyncKept => 4,
        }
    }

    /// The outside pass with this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        (name == UTREEXO).then_some(Self::Utreexo)
    }

    /// The name of an outside pass.
    pub(crate) const fn outside(self) -> Option<&'static str> {
        match self {
            Self::Utreexo => Some(UTREEXO),
            _ => None,
        }
    }

    /// Whether the pass has no aggregate that must balance.
    const fn is_without_hints(self) -> bool {
        matches!(self, Self::MergeSync | Self::MergeSyncKept | Self::Utreexo)
    }

    /// Describes to the user how the pass validates blocks.
    pub(crate) const fn by(self) -> &'static str {
        match self {
            Self::SwiftSync => "with hints",
            Self::Fully => "with hints and undo data",
            Self::MergeSync => "by joining spends with coins",
            Self::MergeSyncKept => "by joining spends with coins, with undo data",
            Self::Utreexo => "with proofs of spent coins",
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::SwiftSync),
            1 => Some(Self::Fully),
            2 => Some(Self::MergeSync),
            3 => Some(Self::Utreexo),
            4 => Some(Self::MergeSyncKept),
            _ => None,
        }
    }
}

/// The description of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunSpec {
    pub(crate) pass: PassKind,
    /// The identity, secret and segments of the run.
    pub(crate) plan: Plan,
    /// The headers of the blocks 1 to the stop height, 80 bytes each.
    pub(crate) headers: ObjectRef,
}

impl RunSpec {
    /// Encodes it; `None` if it is too long for a message.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut out = begin(MAGIC);
        out.push(self.pass.code());
        self.headers.write(&mut out);
        out.extend_from_slice(&self.plan.to_bytes());
        (out.len() <= SPEC_BYTES_MAX).then_some(out)
    }

    /// Decodes it.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let damaged = || WireError::Damaged { what: WHAT };
        let mut reader = open(bytes, MAGIC, WHAT)?;
        let code = reader.u8().map_err(|_| damaged())?;
        let pass = PassKind::from_code(code).ok_or_else(|| {
            WireError::Unfit(format!(
                "{WHAT} asks for pass {code}, which this program does not know"
            ))
        })?;
        let headers = ObjectRef::read(&mut reader).ok_or_else(damaged)?;
        let rest = reader.take(reader.remaining()).map_err(|_| damaged())?;
        let plan = Plan::from_bytes(rest).ok_or_else(damaged)?;
        let is_full = plan.identity.aggregate == AggregateKind::Coins;
        let fits = is_full == (pass == PassKind::Fully)
            && (!pass.is_without_hints() || plan.identity.aggregate == AggregateKind::None)
            && headers.bytes == 80 * u64::from(plan.identity.stop);
        if fits { Ok(Self { pass, plan, headers }) } else { Err(damaged()) }
    }
}

/// Public facts about a run, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDescription {
    /// Core's name of the chain.
    pub chain: &'static str,
    /// The height of the requested UTXO set.
    pub stop_height: u32,
    /// Number of segments.
    pub segments: usize,
    /// Whether all rules are checked.
    pub full: bool,
    /// Describes to the user how blocks are validated.
    pub by: &'static str,
    /// The name of the pass if it is an outside pass.
    pub outside: Option<&'static str>,
}

/// Decodes the public facts of a description; `None` if another version of the program wrote it.
pub fn describe_run(spec: &[u8]) -> Option<RunDescription> {
    let RunSpec { pass, plan, .. } = RunSpec::from_bytes(spec).ok()?;
    Some(RunDescription {
        chain: plan.identity.network.name(),
        stop_height: plan.identity.stop,
        segments: plan.segments.len(),
        full: pass != PassKind::SwiftSync,
        by: pass.by(),
        outside: pass.outside(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::WIRE_VERSION;
    use apus_chain::{BlockHash, HeightRange, Network};
    use apus_sync::engines::swiftsync::aggregate::{AggregateKind, Secret};
    use apus_sync::workdir::plan::RunIdentity;

    pub(in crate::queue) fn spec() -> RunSpec {
        let identity = RunIdentity {
            network: Network::Regtest,
            first: 1,
            stop: 8,
            stop_hash: BlockHash([1; 32]),
            hints: [2; 32],
            aggregate: AggregateKind::Sha256,
            assumed: 0,
            unseen: 7,
            numbered: false,
            muhash: false,
        };
        let segments = vec![HeightRange::new(1, 5), HeightRange::new(5, 9)];
        let plan = Plan { identity, secret: Secret([0xa7; 32]), segments };
        let headers = ObjectRef { digest: [3; 32], bytes: 640 };
        RunSpec { pass: PassKind::SwiftSync, plan, headers }
    }

    #[test]
    fn descriptions_round_trip_and_truncated_ones_are_refused() {
        let spec = spec();
        let bytes = spec.to_bytes().unwrap();
        assert_eq!(RunSpec::from_bytes(&bytes), Ok(spec));
        for length in 0..bytes.len() {
            assert!(RunSpec::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        let mut newer = bytes.clone();
        newer[8] = WIRE_VERSION as u8 + 1;
        let error = RunSpec::from_bytes(&newer).unwrap_err().to_string();
        let expected =
            format!("version {}, but this program speaks version {WIRE_VERSION}", WIRE_VERSION + 1);
        assert!(error.contains(&expected), "{error}");
        for place in 13..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 0x10;
            assert_ne!(RunId::of(&other), RunId::of(&bytes));
            // Any digest of headers is valid.
            let is_digest = (13..45).contains(&place);
            assert_eq!(RunSpec::from_bytes(&other).is_ok(), is_digest, "{place}");
        }
    }

    #[test]
    fn an_unknown_pass_is_named() {
        let mut bytes = spec().to_bytes().unwrap();
        bytes[12] = 77;
        let error = RunSpec::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("asks for pass 77"), "{error}");
    }

    #[test]
    fn the_secret_is_never_shown() {
        let spec = spec();
        let shown = format!("{spec:?} {:?}", RunId::of(&spec.to_bytes().unwrap()));
        assert!(!shown.contains("a7a7") && !shown.contains("167"), "{shown}");
    }

    #[test]
    fn too_many_segments_do_not_fit() {
        let mut spec = spec();
        spec.plan.segments = (1..250_000).map(|at| HeightRange::new(at, at + 1)).collect();
        assert_eq!(spec.to_bytes(), None);
    }
}
