//! The plan of a sync by mergesync: continues an earlier start's, or changes it for a chain with another end.

use super::MergeWork;
use super::base_set::BaseSet;
use super::makes_hashes;
use crate::engines::mergesync::FirstPass;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::SyncError;
use crate::pass::{self, expect_same};
use crate::progress::Event;
use crate::request::Source;
use crate::source::without_undo;
use crate::warning::Warning;
use crate::workdir::names::BASE;
use crate::workdir::plan::{NO_HINTS, Plan, RunIdentity};
use crate::workdir::record::Record as ConnectedBlock;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{Height, HeightRange};
use apus_storage::Storage;
use std::collections::HashSet;

/// What a start continues from.
pub(super) struct MergePlan<'a> {
    pub(super) workdir: Workdir<'a>,
    pub(super) plan: Plan,
    /// The set up to which all blocks are validated.
    pub(super) base: BaseSet,
    /// The finished segments above it.
    pub(super) done: SegmentsOf<FirstPass>,
}

impl<'a> MergeWork<'a> {
    /// Continues the plan in the work folder, or makes one. If that plan had another end, reuses its results
    /// for this chain.
    pub(super) fn plan(&self, end: Height) -> Result<MergePlan<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let earlier = Workdir::read_plan(request.env.workdir)?;
        if earlier.is_none() && ConnectedBlock::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("by another engine"));
        }
        let identity = RunIdentity {
            network: request.env.params.network,
            first: 1,
            stop: end,
            stop_hash: dir.chain().hash(end).copied().unwrap_or_default(),
            hints: NO_HINTS,
            aggregate: AggregateKind::None,
            // Part of the plan, because the machines' answers depend on it.
            assumed: if request.env.is_shared { pass::last_assumed(request, dir, end) } else { 0 },
            unseen: pass::leave_witnesses(
                request,
                dir,
                earlier.as_ref().map(|plan| plan.identity.unseen),
            ),
            // An earlier start's choice to number coins holds until the end.
            numbered: request.index().is_some()
                || makes_hashes(request)
                || earlier.as_ref().is_some_and(|plan| plan.identity.numbered),
            muhash: request.muhash || earlier.as_ref().is_some_and(|plan| plan.identity.muhash),
        };
        // On another chain, or a shorter one, fewer witnesses may be skipped.
        let may_leave_witnesses = pass::may_leave_witnesses(request, dir);
        let of_other_end = |earlier: &Plan| {
            let RunIdentity { stop, stop_hash, assumed, unseen, .. } = earlier.identity;
            let unseen = if may_leave_witnesses { unseen } else { identity.unseen };
            RunIdentity { stop, stop_hash, assumed, unseen, ..identity.clone() }
        };
        if let Some(earlier) = &earlier {
            expect_same(request, Some(earlier), &of_other_end(earlier))?;
        }
        if let Some(earlier) = earlier.as_ref().filter(|earlier| earlier.identity != identity)
            && ConnectedBlock::read(request.env.workdir)?.is_some()
        {
            // A later phase already continued from its coins.
            expect_same(request, Some(earlier), &identity)?;
        }
        let base = match earlier {
            Some(_) => self.base(&identity)?,
            None => BaseSet::default(),
        };
        let mut found = match earlier {
            Some(earlier) if earlier.identity != identity => {
                self.change(&earlier, identity, base)?
            }
            earlier => {
                let segments =
                    pass::segments(request, dir, earlier.as_ref(), end, self.under_way());
                let (workdir, plan, done) = pass::begin_or_resume::<FirstPass>(
                    request,
                    earlier,
                    identity,
                    segments,
                    base.at.height,
                )?;
                MergePlan { workdir, plan, base, done }
            }
        };
        found.drop_useless_segments(request.env.workdir)?;
        Ok(found)
    }

    /// The set from which an earlier start would continue, if this chain can continue from it, too.
    ///
    /// # Errors
    /// If its blocks were validated in another way than this sync asks for.
    fn base(&self, identity: &RunIdentity) -> Result<BaseSet, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let Some(base) = BaseSet::read(request.env.workdir)? else { return Ok(BaseSet::default()) };
        let height = base.at.height;
        let refuse = |what: String| Err(request.env.other_run(what));
        let is_on_chain = dir.chain().hash(height) == Some(&base.at.hash);
        let tip = dir.chain().tip_height();
        if matches!(request.source, Source::Files { .. }) && height > tip {
            return refuse(format!(
                "that is at block {height} already, while these files end at block {tip}: some may still be missing, \
                 or a reorganisation made the chain shorter"
            ));
        }
        if is_on_chain && height > identity.stop {
            return refuse(format!("that is at block {height} already"));
        }
        if request.env.is_shared || request.index().is_some() {
            return refuse("in batches of blocks".to_owned());
        }
        if identity.numbered != base.numbered {
            return refuse("for other outputs".to_owned());
        }
        let below = HeightRange::new(1, height + 1);
        if is_on_chain && dir.archive().is_some() && !without_undo(dir, below).is_empty() {
            return refuse("that did not keep all blocks".to_owned());
        }
        let assumed = self.checks.last_assumed().unwrap_or_default();
        let is_as_strict = assumed >= base.assumed && identity.unseen >= base.unseen;
        if !is_as_strict && base.options != BaseSet::options_of(request) {
            return refuse(format!("with scripts assumed valid up to block {}", base.assumed));
        }
        if is_on_chain && is_as_strict {
            return Ok(base);
        }
        request.env.observer.event(Event::Warning(Warning::BaseLeft { at: base.at }));
        base.remove(request.env.workdir)?;
        Ok(BaseSet::default())
    }

    /// Number of segments in memory at a time, including those whose blocks are still being read.
    pub(super) fn under_way(&self) -> usize {
        pass::open_max::<FirstPass>(self.dir, self.request.env.threads)
    }

    /// Makes a plan for another end. It keeps the earlier plan's segments that are on this chain and skipped as
    /// many witnesses as this sync does.
    fn change(
        &self,
        earlier: &Plan,
        identity: RunIdentity,
        base: BaseSet,
    ) -> Result<MergePlan<'a>, SyncError> {
        let (request, dir) = (self.request, self.dir);
        let (_, mut done) = Workdir::resume::<FirstPass>(request.env.workdir, earlier)?;
        let (unseen, before) = (identity.unseen, earlier.identity.unseen);
        let as_now = |range: HeightRange| {
            unseen == before || range.end <= unseen + 1 || range.start > before
        };
        done.retain(|done| {
            let is_within =
                done.range.start > base.at.height && done.range.end <= identity.stop + 1;
            is_within && as_now(done.range) && done.partial.is_of(dir.chain())
        });
        // The blocks of the base are divided, too: if it is lost, they are processed again.
        let (mut segments, mut next) = (Vec::new(), 1);
        let at_base = HeightRange::new(base.at.height + 1, base.at.height + 1);
        let at_end = HeightRange::new(identity.stop + 1, identity.stop + 1);
        let kept = done.iter().map(|done| done.range);
        for range in [at_base].into_iter().chain(kept).chain([at_end]) {
            let below = HeightRange::new(next, range.start);
            segments.extend(pass::divided(request, dir, below, self.under_way()));
            segments.extend((!range.is_empty()).then_some(range));
            next = range.end;
        }
        let plan = Plan { identity, secret: earlier.secret.clone(), segments };
        let workdir = Workdir::change(request.env.workdir, &plan, &done)?;
        if !done.is_empty() || base.at.height > 0 {
            pass::report_resumed(request, &plan, &done, base.at.height);
        }
        Ok(MergePlan { workdir, plan, base, done })
    }
}

impl MergePlan<'_> {
    /// Removes segments that the base covers, because a crash interrupted their removal, and those above a base that was
    /// lost: they would have to share one batch with all blocks below them.
    fn drop_useless_segments(&mut self, storage: &dyn Storage) -> Result<(), SyncError> {
        let base = self.base.at.height;
        let is_lost = base == 0 && BaseSet::was_made(storage)?;
        let is_useless = |done: &mut FinishedRange<_>| is_lost || done.range.start <= base;
        let useless: Vec<_> = self.done.extract_if(.., is_useless).collect();
        let names: Vec<String> = useless.iter().flat_map(FinishedRange::names).collect();
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        if !names.is_empty() {
            self.workdir.remove_files(&names)?;
        }
        if is_lost { self.workdir.remove_files(&HashSet::from([BASE])) } else { Ok(()) }
    }
}
