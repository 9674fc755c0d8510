//! Numbers and times as people read them on a picture and in a table.

use super::course::Run;
use apus_sync::numbers::group_digits;

/// A number with so many decimals, its integer part in groups.
pub(super) fn decimal(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let zero = text.bytes().all(|byte| byte == b'0' || byte == b'.');
    let sign = if value < 0.0 && !zero { "−" } else { "" };
    format!("{sign}{}{rest}", group_digits(whole))
}

/// A number with as many decimals as three digits need.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    decimal(value, (2 - magnitude).clamp(0, 9) as usize)
}

/// A value on an axis whose ticks are `step` apart: with the decimals of the step.
pub(super) fn tick(value: f64, step: f64) -> String {
    if value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0);
    decimal(value, decimals as usize)
}

/// A time, in its two largest units.
pub(super) fn duration(seconds: f64) -> String {
    // Rounded first: no minute has 60 seconds.
    if seconds < 0.999_5 {
        format!("{} ms", number(seconds * 1e3))
    } else if seconds < 59.95 {
        format!("{} s", number(seconds))
    } else if seconds < 3_599.5 {
        let rounded = seconds.round();
        format!("{} min {:02} s", (rounded / 60.0).floor(), rounded % 60.0)
    } else {
        let rounded = (seconds / 60.0).round();
        let hours = (rounded / 60.0).floor();
        format!("{} h {:02} min", group_digits(&hours.to_string()), rounded % 60.0)
    }
}

/// A run's whole time, as far as its clock knows it.
pub fn total(run: &Run) -> String {
    if run.total_seconds < run.resolution_seconds {
        return format!("< {}", duration(run.resolution_seconds));
    }
    duration(run.total_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_all_they_need() {
        for (value, text) in [
            (0.0, "0"),
            (0.001_234, "0.00123"),
            (0.5, "0.500"),
            (9.996, "10.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234_567.8, "1,234,568"),
            (-0.004, "−0.00400"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(decimal(-0.004, 2), "0.00");
        assert_eq!(decimal(-1_000.0, 1), "−1,000.0");
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0.0, "0 ms"),
            (0.000_25, "0.250 ms"),
            (0.087, "87.0 ms"),
            (0.999_4, "999 ms"),
            (0.999_6, "1.000 s"),
            (12.34, "12.3 s"),
            (59.96, "1 min 00 s"),
            (83.0, "1 min 23 s"),
            (3_599.4, "59 min 59 s"),
            (3_599.6, "1 h 00 min"),
            (30_932.61, "8 h 36 min"),
            (360_000.0, "100 h 00 min"),
        ] {
            assert_eq!(duration(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn ticks_have_the_decimals_of_their_step() {
        assert_eq!(tick(0.30000000000000004, 0.1), "0.3");
        assert_eq!(tick(200_000.0, 50_000.0), "200,000");
        assert_eq!(tick(1.5, 0.5), "1.5");
        assert_eq!(tick(-1e-17, 0.1), "0");
    }
}
