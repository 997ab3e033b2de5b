//! The result: a line per measure, a column per proxy, and ours by the better peer.

use std::fmt::Write as _;

use crate::proxy::Kind;

/// Values by measure and proxy, one a round.
#[derive(Default)]
pub(crate) struct Table {
    lines: Vec<Line>,
}

struct Line {
    name: &'static str,
    values: [Vec<f64>; Kind::ALL.len()],
}

impl Table {
    pub(crate) fn add(&mut self, kind: Kind, name: &'static str, value: f64) {
        let place = self.lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            self.lines.push(Line {
                name,
                values: Default::default(),
            });
            self.lines.len() - 1
        });
        self.lines[place].values[kind as usize].push(value);
    }

    /// Medians with their ranges. A ratio is the median of the ratios within each round.
    pub(crate) fn text(&self, kinds: &[Kind]) -> String {
        let mut text = String::from("| measure |");
        for kind in kinds {
            let _ = write!(text, " {} |", kind.name());
        }
        text.push_str(" ours by nginx | ours by haproxy |\n|---|");
        text.push_str(&"---|".repeat(kinds.len() + 2));
        text.push('\n');
        for line in &self.lines {
            let _ = write!(text, "| {} |", line.name);
            for kind in kinds {
                let _ = write!(text, " {} |", shown(&line.values[*kind as usize]));
            }
            for peer in [Kind::Nginx, Kind::HaProxy] {
                let pairs = line.values[Kind::Ours as usize].iter().zip(&line.values[peer as usize]);
                let ratios: Vec<_> = pairs.map(|(ours, peer)| ours / peer).collect();
                let is_ratio = ratios.iter().all(|ratio| ratio.is_finite());
                let _ = write!(text, " {} |", if is_ratio { shown(&ratios) } else { String::new() });
            }
            text.push('\n');
        }
        text
    }
}

/// The median, and the range around it.
fn shown(values: &[f64]) -> String {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let digits = |value: f64| {
        if value.abs() < 10.0 {
            format!("{value:.2}")
        } else {
            format!("{value:.0}")
        }
    };
    match values.as_slice() {
        [] => String::new(),
        [first, .., last] => {
            let median = values[values.len() / 2];
            format!("{} ({}–{})", digits(median), digits(*first), digits(*last))
        }
        [only] => digits(*only),
    }
}
