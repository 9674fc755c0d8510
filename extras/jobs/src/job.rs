//! [`JobKey`]: identifies a job of a run and its answer.
//!
//! A run has up to three steps. In the first, each job is a segment of blocks. Engines that join outputs with spends
//! add two more: in the second step, each job is a part of the join; in the third, each job connects a segment with
//! the coins that the join found.

use apus_chain::HeightRange;
use std::fmt::{Display, Formatter};

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobStep {
    /// The first pass over blocks.
    Blocks,
    /// The join of outputs with the inputs that spend them.
    Join,
    /// Connecting the blocks with the coins that they spend.
    Connect,
}

impl JobStep {
    const ALL: [Self; 3] = [Self::Blocks, Self::Join, Self::Connect];

    const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Join => "join",
            Self::Connect => "connect",
        }
    }

    /// The byte that encodes the step in messages.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Blocks => 0,
            Self::Join => 1,
            Self::Connect => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.code() == code)
    }
}

/// Why a job is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobCopy {
    /// The job is new.
    First,
    /// Another machine is slow at the job, and an idle one may be faster.
    Again,
    /// A second machine repeats the job, and the two answers are compared.
    Audit,
}

/// The identity of a job: its step and its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The step.
    pub step: JobStep,
    /// The heights; for a part of the join, the part's number and the next one.
    pub range: HeightRange,
}

impl JobKey {
    /// The first pass over a segment.
    pub const fn blocks(range: HeightRange) -> Self {
        Self { step: JobStep::Blocks, range }
    }

    /// A part of the join.
    pub const fn join(part: u32) -> Self {
        Self { step: JobStep::Join, range: HeightRange::new(part, part + 1) }
    }

    /// Connecting a segment.
    pub const fn connect(range: HeightRange) -> Self {
        Self { step: JobStep::Connect, range }
    }

    /// The name of the job: lower-case letters, digits and hyphens.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.step.name(), self.range.start, self.range.end)
    }

    /// Parses a job's name; `None` if it is invalid.
    pub fn from_name(name: &str) -> Option<Self> {
        let (step, range) = name.split_once('-')?;
        let step = JobStep::ALL.into_iter().find(|it| it.name() == step)?;
        let (start, end) = range.split_once('-')?;
        let (start, end): (u32, u32) = (start.parse().ok()?, end.parse().ok()?);
        if start >= end {
            return None;
        }
        let key = Self { step, range: HeightRange::new(start, end) };
        (key.name() == name).then_some(key)
    }
}

impl Display for JobKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let HeightRange { start, end } = self.range;
        match self.step {
            JobStep::Blocks => write!(f, "blocks {start} to {}", end - 1),
            JobStep::Join => write!(f, "part {start} of the join"),
            JobStep::Connect => write!(f, "blocks {start} to {} with their coins", end - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_round_trip() {
        for key in [
            JobKey::blocks(HeightRange::new(1, 900_000)),
            JobKey::join(0),
            JobKey::connect(HeightRange::new(5, 6)),
        ] {
            assert_eq!(JobKey::from_name(&key.name()), Some(key));
            assert_eq!(JobStep::from_code(key.step.code()), Some(key.step));
        }
        for other in [
            "",
            "blocks",
            "blocks-1",
            "blocks-5-5",
            "blocks-9-5",
            "joins-1-2",
            "join-1-2-3",
            "join-01-2",
        ] {
            assert_eq!(JobKey::from_name(other), None, "{other}");
        }
        assert_eq!(JobStep::from_code(3), None);
    }

    #[test]
    fn display_is_readable() {
        let shown =
            [JobKey::blocks(HeightRange::new(1, 5)), JobKey::join(7)].map(|it| it.to_string());
        assert_eq!(shown, ["blocks 1 to 4", "part 7 of the join"]);
    }
}
