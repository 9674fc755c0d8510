//! One message at a time: [`Sha256`], [`sha256`], [`sha256d`].
//!
//! Invariant: how the bytes are cut into updates never changes the digest. Many messages are
//! faster in [`sha256d_many`](crate::sha256d_many).

use crate::digest::bytes_of;
use crate::kernel::Engine;
use crate::rounds::INITIAL;
use crate::single::Single;

/// SHA-256 of a message that arrives in parts.
#[derive(Clone, Debug)]
pub struct Sha256 {
    kernel: Single,
    state: [u32; 8],
    /// The bytes of the block not yet full; how many they are follows from `len`.
    pending: [u8; 64],
    len: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// Starts an empty message.
    pub fn new() -> Self {
        Self::with(Engine::current().single)
    }

    pub(crate) fn with(kernel: Single) -> Self {
        Self { kernel, state: INITIAL, pending: [0; 64], len: 0 }
    }

    /// Appends bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        let used = (self.len % 64) as usize;
        self.len = self.len.wrapping_add(data.len() as u64);
        if used > 0 {
            let (now, later) = data.split_at(data.len().min(64 - used));
            self.pending[used..used + now.len()].copy_from_slice(now);
            if used + now.len() < 64 {
                return;
            }
            self.kernel.compress(&mut self.state, &[self.pending]);
            data = later;
        }
        let (blocks, rest) = data.as_chunks();
        self.kernel.compress(&mut self.state, blocks);
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// The digest of everything appended.
    pub fn finalize(mut self) -> [u8; 32] {
        let used = (self.len % 64) as usize;
        let mut tail = [[0; 64]; 2];
        tail[0][..used].copy_from_slice(&self.pending[..used]);
        tail[0][used] = 0x80;
        let blocks = if used < 56 { 1 } else { 2 };
        tail[blocks - 1][56..].copy_from_slice(&self.len.wrapping_mul(8).to_be_bytes());
        self.kernel.compress(&mut self.state, &tail[..blocks]);
        bytes_of(&self.state)
    }
}

/// SHA-256 of one message.
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(data);
    hash.finalize()
}

/// SHA-256 of the SHA-256 of one message: Bitcoin's hash of headers and transactions.
pub fn sha256d(data: &[u8]) -> [u8; 32] {
    sha256(&sha256(data))
}
