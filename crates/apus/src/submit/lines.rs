//! [`Lines`]: lines of a stream, none of them longer than what there is memory for.

use std::io::{self, BufRead};

/// Greatest length of a line in bytes: twice the bytes of a block of four million, and as much
/// again for blocks that are to be refused for being too long.
pub(super) const LINE_BYTES_MAX: usize = 16_000_000;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line that fits.
    Text(Vec<u8>),
    /// A line that does not. It was read over.
    TooLong,
}

/// Reads a stream line by line.
pub(super) struct Lines<R> {
    input: R,
    bytes_max: usize,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most `bytes_max` bytes.
    pub(super) fn new(input: R, bytes_max: usize) -> Self {
        Self { input, bytes_max }
    }

    /// The next line, none at the end. A last line may lack its end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line>> {
        let mut text = Vec::new();
        let mut fits = true;
        let mut any = false;
        loop {
            let part = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if part.is_empty() && !any {
                return Ok(None);
            }
            any = true;
            let end = part.iter().position(|&byte| byte == b'\n');
            let content = &part[..end.unwrap_or(part.len())];
            fits &= text.len() + content.len() <= self.bytes_max;
            match fits {
                true => text.extend_from_slice(content),
                false => text = Vec::new(),
            }
            let (used, last) = (content.len() + usize::from(end.is_some()), part.is_empty());
            self.input.consume(used);
            if last || end.is_some() {
                return Ok(Some(if fits { Line::Text(text) } else { Line::TooLong }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    /// All lines, `None` for those that are too long.
    fn lines(input: &[u8], buffer: usize) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, input), 4);
        std::iter::from_fn(|| lines.next().unwrap())
            .map(|line| match line {
                Line::Text(text) => Some(text),
                Line::TooLong => None,
            })
            .collect()
    }

    #[test]
    fn lines_end_where_they_end_however_they_arrive() {
        let text = |text: &str| Some(text.as_bytes().to_vec());
        for buffer in 1..9 {
            assert_eq!(lines(b"", buffer), []);
            assert_eq!(lines(b"\n", buffer), [text("")]);
            assert_eq!(lines(b"ab\n\ncdef", buffer), [text("ab"), text(""), text("cdef")]);
            assert_eq!(
                lines(b"abcde\nabcd\nabcdefghi\nx\n", buffer),
                [None, text("abcd"), None, text("x")]
            );
        }
    }
}
