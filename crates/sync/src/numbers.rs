//! Formats numbers for people, in the same way in every text of the program.

/// Formats a number with its digits grouped by three.
pub fn grouped(number: u64) -> String {
    group_digits(&number.to_string())
}

/// Groups digits by three, from the right.
pub fn group_digits(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats bytes for people, in the largest decimal unit that keeps the number at 1 or above. Numbers from 100 on have
/// no decimals.
pub fn bytes(count: u64) -> String {
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    for unit in ["kB", "MB", "GB"] {
        match value {
            ..99.95 => return format!("{value:.1} {unit}"),
            ..999.5 => return format!("{value:.0} {unit}"),
            _ => value /= 1000.0,
        }
    }
    format!("{value:.2} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_from_the_right() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345, "12,345"),
            (123_456, "123,456"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(group_digits("0012"), "0,012");
    }

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_500), "1.5 kB");
        assert_eq!(bytes(999_949), "1.0 MB");
        assert_eq!(bytes(99_940_000), "99.9 MB");
        assert_eq!(bytes(99_960_000), "100 MB");
        assert_eq!(bytes(602_249_216), "602 MB");
        assert_eq!(bytes(999_600_000), "1.0 GB");
        assert_eq!(bytes(750_000_000_000), "750 GB");
        assert_eq!(bytes(7_500_000_000_000), "7.50 TB");
    }
}
