//! Undo data of blocks, as machines that judged these leave them: records that follow one another by ascending height, in
//! objects that each hold whole records.

use super::wire::WireError;
use apus_chain::{CoinSum, Reader};

const WHAT: &str = "what is left of undo data";

/// What is kept of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentUndo<'u> {
    /// Core's form (`undo.h`, `CBlockUndo`).
    pub(crate) undo: &'u [u8],
    /// The sum of all coins that it spends, under the run's key.
    pub(crate) spent: CoinSum,
}

impl<'u> SentUndo<'u> {
    /// Appends the byte form.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.undo.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.spent.to_bytes());
        out.extend_from_slice(self.undo);
    }

    /// The records that these bytes are.
    pub(crate) fn all(bytes: &'u [u8]) -> Result<Vec<Self>, WireError> {
        let (mut reader, mut all) = (Reader::new(bytes), Vec::new());
        while reader.remaining() > 0 {
            all.push(Self::read(&mut reader).ok_or(WireError::Damaged { what: WHAT })?);
        }
        Ok(all)
    }

    fn read(reader: &mut Reader<'u>) -> Option<Self> {
        let length = reader.u32().ok()?;
        let spent = CoinSum::from_bytes(*reader.array().ok()?);
        Some(Self { undo: reader.take(length as usize).ok()?, spent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_read_back(all in vec((vec(any::<u8>(), 0..50), any::<[u8; 8]>()), 0..6)) {
            let record = |(undo, sum): &'_ (Vec<u8>, [u8; 8])| (undo.clone(), CoinSum::from_bytes(*sum));
            let all: Vec<(Vec<u8>, CoinSum)> = all.iter().map(record).collect();
            let records: Vec<_> = all.iter().map(|(undo, spent)| SentUndo { undo, spent: *spent }).collect();
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for record in &records {
                record.write(&mut bytes);
                ends.push(bytes.len());
            }
            prop_assert_eq!(SentUndo::all(&bytes), Ok(records.clone()));
            for length in 0..bytes.len() {
                prop_assert_eq!(SentUndo::all(&bytes[..length]).is_ok(), ends.contains(&length));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            let _ = SentUndo::all(&bytes);
        }
    }
}
