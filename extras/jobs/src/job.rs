//! [`JobKey`]: what one job of a run is about, by which its answer is known.
//!
//! A run has steps. Jobs of the first are segments of blocks; where coins are joined with spends, those of the second are
//! parts of the join, and those of the third are segments again, judged with what the join found.

use apus_chain::HeightRange;
use std::fmt::{Display, Formatter};

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobStep {
    /// Blocks, each by itself.
    Blocks,
    /// Coins with the spends that take them.
    Join,
    /// Blocks with the coins that they spend.
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

    /// The byte that stands for it.
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

/// For what a job is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobCopy {
    /// To be done.
    First,
    /// To be done by a machine that has nothing to do, while another one is slow at it.
    Again,
    /// To be done once more by a machine that did not answer it, whose answer is compared.
    Audit,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The step.
    pub step: JobStep,
    /// Heights; of a join the number of its part, and the next one.
    pub range: HeightRange,
}

impl JobKey {
    /// A segment of the first step.
    pub const fn blocks(range: HeightRange) -> Self {
        Self { step: JobStep::Blocks, range }
    }

    /// A part of the join.
    pub const fn join(part: u32) -> Self {
        Self { step: JobStep::Join, range: HeightRange::new(part, part + 1) }
    }

    /// A segment of the last step.
    pub const fn connect(range: HeightRange) -> Self {
        Self { step: JobStep::Connect, range }
    }

    /// Its name: lower-case letters, digits and hyphens.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.step.name(), self.range.start, self.range.end)
    }

    /// The job of a name; none where that is no job's.
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
    fn jobs_are_known_by_their_names() {
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
    fn people_are_told_what_a_job_is() {
        let told =
            [JobKey::blocks(HeightRange::new(1, 5)), JobKey::join(7)].map(|it| it.to_string());
        assert_eq!(told, ["blocks 1 to 4", "part 7 of the join"]);
    }
}
