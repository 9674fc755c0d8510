//! Encodings of LevelDB's files: numbers, checksums, logs, blocks (LevelDB `doc/log_format.md`,
//! `doc/table_format.md`).

/// Length of a log's block.
pub(super) const LOG_BLOCK: usize = 32 << 10;
const LOG_HEAD: usize = 7;

pub(super) const FULL: u8 = 1;
pub(super) const FIRST: u8 = 2;
pub(super) const MIDDLE: u8 = 3;
pub(super) const LAST: u8 = 4;

pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Computes a CRC32C as LevelDB stores it.
pub(super) fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    (!sum).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Makes a key with its tag.
pub(super) fn internal(key: &[u8], sequence: u64, kind: u8) -> Vec<u8> {
    [key, &(sequence << 8 | u64::from(kind)).to_le_bytes()].concat()
}

/// A log or a manifest, from its first byte.
#[derive(Clone, Default)]
pub(super) struct LogBytes(pub(super) Vec<u8>);

impl LogBytes {
    /// Adds a record, in as many fragments as needed.
    pub(super) fn push(&mut self, mut record: &[u8]) {
        let mut first = true;
        loop {
            let room = self.room();
            let (data, rest) = record.split_at(record.len().min(room));
            let kind = match (first, rest.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            self.fragment(kind, data);
            if rest.is_empty() {
                return;
            }
            (record, first) = (rest, false);
        }
    }

    /// Adds one fragment, which must fit.
    pub(super) fn fragment(&mut self, kind: u8, data: &[u8]) {
        let data = &data[..data.len().min(self.room())];
        let sum = masked_crc(&[&[kind], data].concat());
        self.0.extend_from_slice(&sum);
        self.0.extend_from_slice(&(data.len() as u16).to_le_bytes());
        self.0.push(kind);
        self.0.extend_from_slice(data);
    }

    /// Adds zeros up to the end of the block.
    pub(super) fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(LOG_BLOCK), 0);
    }

    /// Returns how many bytes fit into the block after a head.
    fn room(&mut self) -> usize {
        if LOG_BLOCK - self.0.len() % LOG_BLOCK < LOG_HEAD {
            self.pad();
        }
        LOG_BLOCK - self.0.len() % LOG_BLOCK - LOG_HEAD
    }
}

/// A block of a table: its entries, and the restart points, where whole keys are.
#[derive(Default)]
pub(super) struct TableBlock {
    pub(super) entries: Vec<u8>,
    pub(super) restarts: Vec<u32>,
}

impl TableBlock {
    /// Makes a block of keys and values; every `interval`th key is whole.
    pub(super) fn new(pairs: &[(Vec<u8>, Vec<u8>)], interval: usize) -> Self {
        let mut block = Self::default();
        let mut before: &[u8] = &[];
        for (at, (key, value)) in pairs.iter().enumerate() {
            let mut shared = key.iter().zip(before).take_while(|(a, b)| a == b).count();
            if at % interval == 0 {
                block.restarts.push(block.entries.len() as u32);
                shared = 0;
            }
            put_varint(&mut block.entries, shared as u64);
            put_varint(&mut block.entries, (key.len() - shared) as u64);
            put_varint(&mut block.entries, value.len() as u64);
            block.entries.extend_from_slice(&key[shared..]);
            block.entries.extend_from_slice(value);
            before = key;
        }
        if pairs.is_empty() {
            block.restarts.push(0);
        }
        block
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.entries.clone();
        for restart in &self.restarts {
            bytes.extend_from_slice(&restart.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        bytes
    }
}
