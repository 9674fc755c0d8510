//! [`Command`]: the name of a message, as it stands in the message header.

use std::fmt;

/// Bytes of a name in the message header (Core `protocol.h`, `MESSAGE_TYPE_SIZE`).
pub const COMMAND_BYTES: usize = 12;

/// The name of a message: up to 12 printable bytes, filled up with zeros.
///
/// Any 12 bytes may come from a peer. Those that are no name have no [`Command::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command([u8; COMMAND_BYTES]);

impl Command {
    /// What stands for a message whose name is not known, as for an unassigned short id of BIP-324.
    pub const NONE: Self = Self([0; COMMAND_BYTES]);

    /// The command of this name, cut off after 12 bytes.
    #[must_use]
    pub const fn new(name: &str) -> Self {
        let name = name.as_bytes();
        let mut bytes = [0; COMMAND_BYTES];
        let mut at = 0;
        while at < name.len() && at < COMMAND_BYTES {
            bytes[at] = name[at];
            at += 1;
        }
        Self(bytes)
    }

    /// These bytes of a message header, whatever they are.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes for a message header.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        self.0
    }

    /// The name, if the bytes are one: printable ASCII, then only zeros (Core `protocol.cpp`,
    /// `CMessageHeader::IsMessageTypeValid`).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(COMMAND_BYTES);
        let (name, rest) = self.0.split_at(len);
        let printable = name.iter().all(|byte| (b' '..=b'~').contains(byte));
        (len > 0 && printable && rest.iter().all(|&byte| byte == 0))
            .then(|| str::from_utf8(name).ok())
            .flatten()
    }
}

impl fmt::Display for Command {
    /// The name; of bytes that are none, what they are, with escapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        write!(f, "{}", self.0[..len].escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_printable_and_end_with_zeros() {
        assert_eq!(Command::new("block").name(), Some("block"));
        assert_eq!(Command::new("twelve bytes").name(), Some("twelve bytes"));
        assert_eq!(Command::new("twelve bytes more").name(), Some("twelve bytes"));
        assert_eq!(Command::NONE.name(), None);
        assert_eq!(Command::from_bytes(*b"block\0\0\0\0\0\0x").name(), None);
        assert_eq!(Command::from_bytes(*b"bl\x1bck\0\0\0\0\0\0\0").name(), None);
        assert_eq!(Command::from_bytes(*b"bl\x7fck\0\0\0\0\0\0\0").name(), None);
    }

    proptest! {
        #[test]
        fn no_byte_of_a_name_reaches_a_terminal_raw(bytes: [u8; 12]) {
            let shown = Command::from_bytes(bytes).to_string();
            prop_assert!(shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{:?}", shown);
            prop_assert_eq!(Command::from_bytes(bytes).to_bytes(), bytes);
        }
    }
}
