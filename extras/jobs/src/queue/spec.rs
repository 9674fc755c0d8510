//! [`RunSpec`]: what a machine has to know of a run before it takes a job of it.
//!
//! ```text
//! 8     41 50 55 53 53 50 45 43   "APUSSPEC"
//! 4     version
//! 1     pass: 0 SwiftSync by hints, 1 the same with undo data, 2 mergesync, 3 utreexo, 4 mergesync that leaves undo data
//! 40    the headers, an object
//! …     the plan, as in a work folder, with the secret and a SHA-256 at its end
//! ```
//!
//! The run is named by SHA-256 of all of it.

use super::wire::{ObjectRef, WireError, begin, open};
use apus_hash::sha256;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::workdir::plan::Plan;
use std::fmt::{Debug, Display, Formatter};

/// First bytes of a run's description.
const MAGIC: &[u8; 8] = b"APUSSPEC";

const WHAT: &str = "the description of the run";

/// What a queue takes in one message and gives back in base64, both within a megabyte.
const SPEC_BYTES_MAX: usize = 700_000;

/// SHA-256 of a run's description: of all that its results depend on. Tells nothing of the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId(pub [u8; 32]);

impl RunId {
    /// Its first half, which names streams, subjects and folders.
    pub fn name(&self) -> String {
        self.0[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The run of such a name, as far as it tells: the other half is nothing.
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

    /// Of a description.
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

/// By what machines know the pass by proofs.
const UTREEXO: &str = "utreexo";

/// Which pass does the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// SwiftSync by hints alone.
    SwiftSync,
    /// SwiftSync with undo data, which each machine has beside its blocks.
    Fully,
    /// mergesync: both walks over the blocks, and the join between them.
    MergeSync,
    /// The same, with the undo data of all blocks.
    MergeSyncKept,
    /// utreexo, which is not known here: ranges from the roots before them, by proofs that each machine has or asks for.
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

    /// The pass from outside that has this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        (name == UTREEXO).then_some(Self::Utreexo)
    }

    /// The name of a pass from outside.
    pub(crate) const fn outside(self) -> Option<&'static str> {
        match self {
            Self::Utreexo => Some(UTREEXO),
            _ => None,
        }
    }

    /// Whether no sums are to balance.
    const fn is_without_hints(self) -> bool {
        matches!(self, Self::MergeSync | Self::MergeSyncKept | Self::Utreexo)
    }

    /// By what it does blocks, for people.
    pub(crate) const fn by(self) -> &'static str {
        match self {
            Self::SwiftSync => "by hints",
            Self::Fully => "by hints and undo data",
            Self::MergeSync => "by joining spends with coins",
            Self::MergeSyncKept => "by joining spends with coins, with undo data",
            Self::Utreexo => "by proofs of what is spent",
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

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunSpec {
    pub(crate) pass: PassKind,
    /// What is computed, under which secret, in which segments.
    pub(crate) plan: Plan,
    /// The headers of the blocks 1 to the stop height, 80 bytes each.
    pub(crate) headers: ObjectRef,
}

impl RunSpec {
    /// The byte form; none where a queue has no room for it.
    pub(crate) fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut out = begin(MAGIC);
        out.push(self.pass.code());
        self.headers.write(&mut out);
        out.extend_from_slice(&self.plan.to_bytes());
        (out.len() <= SPEC_BYTES_MAX).then_some(out)
    }

    /// Reads the byte form.
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

/// What a run is, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDescription {
    /// Core's name of the chain.
    pub chain: &'static str,
    /// The height whose set is wanted.
    pub stop_height: u32,
    /// How many segments it has.
    pub segments: usize,
    /// Whether all rules are checked.
    pub full: bool,
    /// By what its blocks are done, for people.
    pub by: &'static str,
    /// The name of the pass, where it is one from outside.
    pub outside: Option<&'static str>,
}

/// Says what a run is; none where another version of the program made it.
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
    fn a_description_is_read_back_or_refused_by_name() {
        let spec = spec();
        let bytes = spec.to_bytes().unwrap();
        assert_eq!(RunSpec::from_bytes(&bytes), Ok(spec));
        for length in 0..bytes.len() {
            assert!(RunSpec::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        let mut newer = bytes.clone();
        newer[8] = WIRE_VERSION as u8 + 1;
        let told = RunSpec::from_bytes(&newer).unwrap_err().to_string();
        let expected =
            format!("version {}, and this program speaks version {WIRE_VERSION}", WIRE_VERSION + 1);
        assert!(told.contains(&expected), "{told}");
        for place in 13..bytes.len() {
            let mut other = bytes.clone();
            other[place] ^= 0x10;
            assert_ne!(RunId::of(&other), RunId::of(&bytes));
            // Another digest of headers is another description.
            let is_digest = (13..45).contains(&place);
            assert_eq!(RunSpec::from_bytes(&other).is_ok(), is_digest, "{place}");
        }
    }

    #[test]
    fn a_pass_that_is_not_known_is_named() {
        let mut bytes = spec().to_bytes().unwrap();
        bytes[12] = 77;
        let told = RunSpec::from_bytes(&bytes).unwrap_err().to_string();
        assert!(told.contains("asks for pass 77"), "{told}");
    }

    #[test]
    fn the_secret_is_never_shown() {
        let spec = spec();
        let shown = format!("{spec:?} {:?}", RunId::of(&spec.to_bytes().unwrap()));
        assert!(!shown.contains("a7a7") && !shown.contains("167"), "{shown}");
    }

    #[test]
    fn too_many_segments_have_no_room() {
        let mut spec = spec();
        spec.plan.segments = (1..250_000).map(|at| HeightRange::new(at, at + 1)).collect();
        assert_eq!(spec.to_bytes(), None);
    }
}
