//! [`Message`] is the bytes to hash, and [`PaddedMessage`] the blocks that a hash function processes.
//!
//! A [`Message`] has up to three pieces, of any length including zero. The blocks of a [`PaddedMessage`] are
//! the concatenated pieces followed by the padding of FIPS 180-4, 5.1. Only blocks that cross a border
//! between pieces are copied.

/// A message in up to three pieces, hashed as their concatenation.
///
/// A segwit transaction without its witness has three pieces: version, inputs and outputs, lock time.
/// A message in one piece is `Message::from(bytes)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a>(pub [&'a [u8]; 3]);

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // The second piece is the long one: kernels read its whole blocks without joining.
        Self([&[], bytes, &[]])
    }
}

/// A message as a hash function processes it: whole blocks, padding included. A block has 64 bytes in
/// SHA-256, 128 in SHA-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaddedMessage<'a, const BLOCK: usize = 64> {
    pieces: [&'a [u8]; 3],
    len: usize,
    /// The number of bytes already hashed: whole blocks, which only count towards the length.
    before: usize,
}

impl<'a, const BLOCK: usize> PaddedMessage<'a, BLOCK> {
    /// The empty message.
    pub(crate) const EMPTY: Self = Self { pieces: [&[]; 3], len: 0, before: 0 };

    #[inline]
    pub(crate) fn new(message: &Message<'a>) -> Self {
        Self::after(0, message)
    }

    /// Creates the end of a message whose first `blocks` blocks are already hashed.
    #[inline]
    pub(crate) fn after(blocks: usize, message: &Message<'a>) -> Self {
        let pieces = message.0;
        let len = pieces[0].len() + pieces[1].len() + pieces[2].len();
        Self { pieces, len, before: blocks * BLOCK }
    }

    /// Returns the number of blocks, which have room for the bytes, one mark, and the length in an eighth of
    /// a block.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        (self.len + BLOCK / 8) / BLOCK + 1
    }

    /// Returns the length in bytes, without padding and without the bytes already hashed.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the length in bits for the padding. It is below 2^64 because the bytes are in memory.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        (self.before + self.len) as u64 * 8
    }

    /// Returns the pieces; any of them may be empty.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pieces(&self) -> [&'a [u8]; 3] {
        self.pieces
    }

    /// Returns the whole blocks from `block` on that lie in one piece; empty if that block does not.
    #[inline]
    fn run(&self, block: usize) -> &'a [[u8; BLOCK]] {
        let mut start = block * BLOCK;
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

    /// Returns at least one block from `block` on: as many as lie in one piece, or one assembled in `buffer`.
    #[inline]
    pub(crate) fn blocks_from<'b>(
        &self,
        block: usize,
        buffer: &'b mut [u8; BLOCK],
    ) -> &'b [[u8; BLOCK]]
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
    #[inline]
    fn fill(&self, block: usize, out: &mut [u8; BLOCK]) {
        let is_done = match block {
            0 => self.fill_first(out),
            _ => self.fill_tail(block, out),
        };
        if !is_done {
            self.fill_any(block, out);
        }
    }

    /// Writes the first block of a transaction without its witness: the first four bytes and the bytes after
    /// them. Returns false if the message does not begin with a piece of that length. Constant lengths need
    /// no branches and no calls.
    #[inline]
    fn fill_first(&self, out: &mut [u8; BLOCK]) -> bool {
        let [head, body, _] = self.pieces;
        let (Ok(head), true) = (<[u8; 4]>::try_from(head), body.len() >= BLOCK - 4) else {
            return false;
        };
        out[..4].copy_from_slice(&head);
        out[4..].copy_from_slice(&body[..BLOCK - 4]);
        true
    }

    /// Writes the block in which the second piece ends, followed by four bytes or none. Returns false for
    /// any other block. It always copies the same number of bytes, some from before the block, however
    /// much of the piece is left.
    #[inline]
    fn fill_tail(&self, block: usize, out: &mut [u8; BLOCK]) -> bool {
        let [head, body, tail] = self.pieces;
        let passed = (block * BLOCK).checked_sub(head.len());
        let left = passed.and_then(|passed| body.len().checked_sub(passed));
        let (Some(left), Some(last)) = (left, body.last_chunk::<BLOCK>()) else { return false };
        let mut around = [*last, [0; BLOCK]];
        match <[u8; 4]>::try_from(tail) {
            Ok(tail) => around[1][..4].copy_from_slice(&tail),
            Err(_) if tail.is_empty() => {}
            Err(_) => return false,
        }
        around[1][tail.len()] = 0x80;
        let Some(from) = BLOCK.checked_sub(left) else { return false };
        out.copy_from_slice(&around.as_flattened()[from..from + BLOCK]);
        if block + 1 == self.blocks() {
            out[BLOCK - 8..].copy_from_slice(&self.bits().to_be_bytes());
        }
        true
    }

    /// Writes any block.
    fn fill_any(&self, block: usize, out: &mut [u8; BLOCK]) {
        *out = [0; BLOCK];
        let (first, mut start) = (block * BLOCK, 0);
        for piece in self.pieces {
            let end = start + piece.len();
            if start < first + BLOCK && first < end {
                let (from, to) = (first.max(start), end.min(first + BLOCK));
                out[from - first..to - first].copy_from_slice(&piece[from - start..to - start]);
            }
            start = end;
        }
        if (first..first + BLOCK).contains(&self.len) {
            out[self.len - first] = 0x80;
        }
        if block + 1 == self.blocks() {
            // SHA-512 has a length field of twice the width, but its upper half is always zero.
            out[BLOCK - 8..].copy_from_slice(&self.bits().to_be_bytes());
        }
    }
}
