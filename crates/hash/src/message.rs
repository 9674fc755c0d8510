//! [`Message`]: bytes to hash, in up to three pieces, and its view as padded blocks.
//!
//! Invariant: the blocks of a [`Padded`] are the concatenated pieces followed by the
//! padding of FIPS 180-4, 5.1.1, whatever the pieces' lengths (empty ones included). Nothing is
//! copied except blocks that lie across a border.

/// A message in up to three pieces, hashed as their concatenation.
///
/// This is the shape of a segwit transaction without its witness: version, inputs and outputs,
/// lock time. A message in one piece is `Message::from(bytes)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a>(pub [&'a [u8]; 3]);

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // The second piece is the one that kernels read whole blocks of without joining.
        Self([&[], bytes, &[]])
    }
}

/// A message as SHA-256 sees it: whole blocks, padding included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padded<'a> {
    pieces: [&'a [u8]; 3],
    len: usize,
}

impl<'a> Padded<'a> {
    /// The message of no bytes.
    pub(crate) const EMPTY: Self = Self { pieces: [&[]; 3], len: 0 };

    #[inline]
    pub(crate) fn new(message: &Message<'a>) -> Self {
        let pieces = message.0;
        Self { pieces, len: pieces[0].len() + pieces[1].len() + pieces[2].len() }
    }

    /// How many blocks there are: room for the bytes, one mark and eight bytes of length.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        (self.len + 8) / 64 + 1
    }

    /// Its length in bytes, padding not counted.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pieces, of which any may be empty.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pieces(&self) -> [&'a [u8]; 3] {
        self.pieces
    }

    /// The whole blocks from `block` on that lie in one piece; empty if that block does not.
    #[inline]
    fn run(&self, block: usize) -> &'a [[u8; 64]] {
        let mut start = block * 64;
        for piece in self.pieces {
            if let Some(rest) = piece.get(start..).filter(|rest| !rest.is_empty()) {
                return rest.as_chunks().0;
            }
            match start.checked_sub(piece.len()) {
                Some(past) => start = past,
                None => break,
            }
        }
        &[]
    }

    /// At least one block from `block` on: as many as lie in one piece, or one put together in
    /// `buffer`.
    #[inline]
    pub(crate) fn blocks_from<'b>(&self, block: usize, buffer: &'b mut [u8; 64]) -> &'b [[u8; 64]]
    where
        'a: 'b,
    {
        let run = self.run(block);
        if !run.is_empty() {
            return run;
        }
        self.fill(block, buffer);
        core::slice::from_ref(buffer)
    }

    /// Writes block `block`, padding included.
    fn fill(&self, block: usize, out: &mut [u8; 64]) {
        *out = [0; 64];
        let (first, mut start) = (block * 64, 0);
        for piece in self.pieces {
            let end = start + piece.len();
            if start < first + 64 && first < end {
                let (from, to) = (first.max(start), end.min(first + 64));
                out[from - first..to - first].copy_from_slice(&piece[from - start..to - start]);
            }
            start = end;
        }
        if (first..first + 64).contains(&self.len) {
            out[self.len - first] = 0x80;
        }
        if block + 1 == self.blocks() {
            let (_, length) = out.split_at_mut(56);
            length.copy_from_slice(&(self.len as u64 * 8).to_be_bytes());
        }
    }
}
