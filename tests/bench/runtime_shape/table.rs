//! The result: a line per measure, a column per shape, each with its ratio to the first shape.

use std::io::{self, Write};

use crate::server::Shape;

/// Values by measure, shape and round, and remarks in their order.
#[derive(Default)]
pub(crate) struct Table {
    lines: Vec<Line>,
    remarks: Vec<String>,
}

struct Line {
    name: String,
    /// By shape, in the order of [`Shape::ALL`]; a value per round.
    values: [Vec<f64>; Shape::ALL.len()],
}

impl Table {
    pub(crate) fn add(&mut self, shape: Shape, name: &str, value: f64) {
        let place = self.lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            self.lines.push(Line {
                name: name.to_owned(),
                values: Default::default(),
            });
            self.lines.len() - 1
        });
        self.lines[place].values[shape as usize].push(value);
    }

    pub(crate) fn remark(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }

    /// Medians over the rounds; a ratio is the median of the ratios within each round; `±` is how far apart the
    /// rounds of shape (a) were, a measure of the machine's unrest.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for remark in &self.remarks {
            writeln!(out, "# {remark}")?;
        }
        writeln!(
            out,
            "\n(a) one multi-thread runtime   (b) a runtime per core, SO_REUSEPORT"
        )?;
        writeln!(
            out,
            "(c) a runtime per core, one shared socket   (d) a runtime per core, handed to the fewest\n"
        )?;
        writeln!(
            out,
            "{:<50} {:>9} {:>5} {:>17} {:>17} {:>17}",
            "median", "(a)", "±%", "(b)", "(c)", "(d)"
        )?;
        for line in &self.lines {
            let [base, others @ ..] = &line.values;
            write!(
                out,
                "{:<50} {:>9} {:>5.0}",
                line.name,
                figure(median(base.clone())),
                unrest(base)
            )?;
            for other in others {
                let ratios = other.iter().zip(base).map(|(value, base)| value / base).collect();
                write!(out, " {:>9} ×{:<6.2}", figure(median(other.clone())), median(ratios))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The span of the values in per cent of their median.
fn unrest(values: &[f64]) -> f64 {
    let high = values.iter().copied().fold(f64::MIN, f64::max);
    let low = values.iter().copied().fold(f64::MAX, f64::min);
    (high - low) / median(values.to_vec()) * 100.0
}

fn figure(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}
