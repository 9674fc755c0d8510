//! [`Position`]: the position of a node in the forest, and its number.
//!
//! Numbers count row by row from the leaves up, each row as if it were full (BIP-181, draft). So the number
//! of a node above the leaves depends on how many rows are counted: proofs count [`PROOF_ROWS`] rows,
//! regardless of the forest, and the BIP's text counts the rows of the forest, [`forest_rows`]. Leaves have the
//! same number in both.

/// Rows above the leaves that position numbers in proofs count: those of the largest forest.
pub const PROOF_ROWS: u32 = 63;

/// The most leaves a forest can have: positions of nodes must fit in 64 bits (BIP-181, draft).
pub const LEAVES_MAX: u64 = 1 << 63;

/// A place among the nodes of one height.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The height; leaves are at 0.
    pub row: u32,
    /// Index among the nodes of that height, from 0.
    pub place: u64,
}

impl Position {
    /// Decodes a number in a forest with `rows` rows above its leaves, at most 63.
    pub fn of_number(number: u64, rows: u32) -> Option<Self> {
        let unused = PROOF_ROWS.checked_sub(rows)?;
        // A number has one bit more than there are rows, and one leading 1 for each row below its own.
        let row = (number << unused).leading_ones();
        let fits = number.leading_zeros() >= unused && row <= rows;
        let places = u64::MAX.checked_shr(row + 1).unwrap_or(0) >> unused;
        fits.then_some(Self { row, place: number & places })
    }

    /// Its number in a forest with `rows` rows above its leaves; `None` if the position is outside.
    pub fn number(self, rows: u32) -> Option<u64> {
        let unused = PROOF_ROWS.checked_sub(rows)?;
        let ones = !u64::MAX.checked_shr(self.row)?;
        let is_inside = self.row <= rows && self.place >> (rows - self.row) == 0;
        is_inside.then_some(ones >> unused | self.place)
    }

    /// Whether all leaves below it are among the first `leaves`, so that it is a root or below one.
    pub(crate) fn is_in(self, leaves: u64) -> bool {
        // The shift drops the leaves that do not fill a node of that row.
        self.place < leaves >> self.row
    }

    /// Whether it is a root of a forest of `leaves` leaves.
    pub(crate) fn is_root(self, leaves: u64) -> bool {
        let nodes = leaves >> self.row;
        nodes & 1 == 1 && self.place == nodes - 1
    }
}

/// Rows above the leaves of the smallest perfect tree with room for `leaves` leaves.
pub fn forest_rows(leaves: u64) -> u32 {
    u64::BITS - leaves.saturating_sub(1).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the number of a position by counting the rows before it one by one.
    fn counted(position: Position, rows: u32) -> u128 {
        let before: u128 = (0..position.row).map(|row| 1 << (rows - row)).sum();
        before + u128::from(position.place)
    }

    /// A number of rows, and a position in a forest of that many rows.
    fn inside() -> impl Strategy<Value = (u32, Position)> {
        let row = (0u32..=PROOF_ROWS).prop_flat_map(|rows| (Just(rows), 0..=rows));
        row.prop_flat_map(|(rows, row)| {
            let last = (1u64 << (rows - row)) - 1;
            let place = prop_oneof![Just(0), Just(last), 0..=last];
            (Just(rows), place.prop_map(move |place| Position { row, place }))
        })
    }

    proptest! {
        #[test]
        fn numbers_count_row_by_row((rows, position) in inside()) {
            let number = position.number(rows).unwrap();
            prop_assert_eq!(u128::from(number), counted(position, rows));
            prop_assert_eq!(Position::of_number(number, rows), Some(position));
            let behind = Position { place: 1 << (rows - position.row), ..position };
            prop_assert_eq!(behind.number(rows), None);
            let fixed = position.number(PROOF_ROWS).unwrap();
            prop_assert_eq!(fixed == number, rows == PROOF_ROWS || position.row == 0);
            prop_assert_eq!(Position::of_number(fixed, PROOF_ROWS), Some(position));
        }

        #[test]
        fn a_number_is_a_position_or_invalid(shift in 0u32..64, number: u64, rows in 0u32..70) {
            let number = number >> shift;
            let inside = rows <= 63 && u128::from(number) < (2 << rows) - 1;
            let position = Position::of_number(number, rows);
            prop_assert_eq!(position.is_some(), inside);
            if let Some(position) = position {
                prop_assert_eq!(position.number(rows), Some(number));
            }
        }
    }

    /// Positions from the BIP's figure of eight leaves, and at the ends of the largest forest.
    #[test]
    fn known_positions_have_their_numbers() {
        for (rows, row, place, number) in [
            (3, 0, 7, 7),
            (3, 1, 0, 8),
            (3, 2, 1, 13),
            (3, 3, 0, 14),
            (63, 1, 0, 1 << 63),
            (63, 62, 1, u64::MAX - 2),
            (63, 63, 0, u64::MAX - 1),
        ] {
            assert_eq!(Position::of_number(number, rows), Some(Position { row, place }));
        }
        for (number, rows) in [(15, 3), (16, 3), (1, 0), (u64::MAX, 63), (0, 64)] {
            assert_eq!(Position::of_number(number, rows), None, "{number} of {rows}");
        }
        let above = Position { row: 64, place: 0 };
        assert_eq!((above.number(63), above.number(64)), (None, None));
    }

    #[test]
    fn rows_of_a_forest() {
        for (leaves, rows) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 63, 63)] {
            assert_eq!(forest_rows(leaves), rows, "{leaves}");
        }
    }

    #[test]
    fn positions_in_a_forest_of_seven_leaves() {
        let all = (0..4).flat_map(|row| (0..8).map(move |place| Position { row, place }));
        let of = |keep: fn(Position) -> bool| -> Vec<(u32, u64)> {
            all.clone().filter(|at| keep(*at)).map(|at| (at.row, at.place)).collect()
        };
        assert_eq!(of(|at| at.is_root(7)), [(0, 6), (1, 2), (2, 0)]);
        let inside: Vec<_> =
            (0..7).map(|place| (0, place)).chain([(1, 0), (1, 1), (1, 2), (2, 0)]).collect();
        assert_eq!(of(|at| at.is_in(7)), inside);
        let largest = Position { row: 63, place: 0 };
        assert!(
            largest.is_in(1 << 63) && largest.is_root(1 << 63) && !largest.is_in((1 << 63) - 1)
        );
    }
}
