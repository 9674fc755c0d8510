//! [`csv`]: the points of runs for other programs.

use super::course::{Measure, Run};
use std::fmt::Write;

/// One line a point, `label,seconds,height`, after a line with these names; by another measure the last
/// column is that. Quoted as RFC 4180 says. Runs of many blocks are thinned as they are for pictures.
pub fn csv(runs: &[Run], measure: Measure) -> String {
    let mut out = format!("label,seconds,{}\n", measure.name());
    for run in runs {
        let label = quoted(&run.label);
        for point in run.points() {
            writeln!(out, "{label},{},{}", point.seconds, point.height)
                .expect("a string takes all that is written");
        }
    }
    out
}

fn quoted(text: &str) -> String {
    let plain = !text.contains([',', '"', '\n', '\r']);
    if plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Point;

    #[test]
    fn labels_are_quoted_where_they_must_be() {
        let point = |seconds, height| Point { seconds, height };
        let mut plain = Run::new(vec![point(0.0, 0), point(0.25, 7)], 0);
        plain.label = "plain".to_owned();
        let mut odd = Run::new(vec![point(1e-6, 1)], 0);
        odd.label = "a \"b\", c".to_owned();
        let text = "label,seconds,height\nplain,0,0\nplain,0.25,7\n\"a \"\"b\"\", c\",0.000001,1\n";
        let runs = [plain, odd];
        assert_eq!(csv(&runs, Measure::Height), text);
        let by_bytes = text.replace("seconds,height", "seconds,bytes");
        assert_eq!(csv(&runs, Measure::Bytes), by_bytes);
    }
}
