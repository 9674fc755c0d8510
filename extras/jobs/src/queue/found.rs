//! [`JoinFound`]: what a part of the join found for segments, as pieces of objects with digests of their own.

use super::wire::{ObjectPart, ObjectRef, many, write_objects};
use apus_chain::{Reader, write_compact_size};

/// What a part of the join found for a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FoundSlice {
    /// Which of the objects it is in.
    pub(crate) object: u32,
    pub(crate) offset: u32,
    /// There is none where this is 0, and the rest means nothing.
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
}

impl FoundSlice {
    /// Where it is, by the objects that it is in one of, with its digest.
    pub(crate) fn part(&self, objects: &[ObjectRef]) -> Option<FoundPart> {
        let object = *objects.get(self.object as usize).filter(|_| self.bytes > 0)?;
        let (offset, bytes) = (u64::from(self.offset), u64::from(self.bytes));
        Some((ObjectPart { object, offset, bytes }, self.digest))
    }
}

/// What a part of the join found for all segments, in objects in which that for each lies together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinFound {
    pub(crate) objects: Vec<ObjectRef>,
    /// Which of it is each segment's; none at all where nothing was looked for.
    pub(crate) slices: Vec<FoundSlice>,
}

impl JoinFound {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write_objects(&self.objects, out);
        write_compact_size(out, self.slices.len() as u64);
        for FoundSlice { object, offset, bytes, digest } in &self.slices {
            for number in [object, offset, bytes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            if *bytes > 0 {
                out.extend_from_slice(digest);
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let objects: Vec<ObjectRef> = many(reader, ObjectRef::read)?;
        let slices = many(reader, |reader| {
            let mut number = || reader.u32().ok();
            let (object, offset, bytes) = (number()?, number()?, number()?);
            let digest = if bytes > 0 { *reader.array().ok()? } else { [0; 32] };
            let end = u64::from(offset) + u64::from(bytes);
            let fits = bytes == 0 || objects.get(object as usize).is_some_and(|it| end <= it.bytes);
            fits.then_some(FoundSlice { object, offset, bytes, digest })
        })?;
        Some(Self { objects, slices })
    }
}

/// Some of it, and its digest.
pub(crate) type FoundPart = (ObjectPart, [u8; 32]);

pub(super) fn write_parts(parts: &[FoundPart], out: &mut Vec<u8>) {
    write_compact_size(out, parts.len() as u64);
    for (ObjectPart { object, offset, bytes }, digest) in parts {
        object.write(out);
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(digest);
    }
}

pub(super) fn read_parts(reader: &mut Reader<'_>) -> Option<Vec<FoundPart>> {
    many(reader, |reader| {
        let object = ObjectRef::read(reader)?;
        let (offset, bytes) = (reader.u64().ok()?, reader.u64().ok()?);
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= object.bytes);
        let part = ObjectPart { object, offset, bytes };
        fits.then_some((part, *reader.array().ok()?))
    })
}
