//! [`Picture`]: shapes on a white sheet, before they become a file.
//!
//! Coordinates are pixels of an SVG at its natural size; y grows downwards. Every coordinate is
//! finite: charts make them from numbers that they have checked. What shapes mean is for charts.

use super::font::Weight;

/// A colour: red, green, blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

/// Text.
pub(super) const INK: Colour = Colour(0x22, 0x26, 0x2b);
/// Text that matters less.
pub(super) const GREY: Colour = Colour(0x68, 0x6f, 0x78);
/// Frames and ticks.
pub(super) const FRAME: Colour = Colour(0xb4, 0xba, 0xc2);
/// Lines of a grid.
pub(super) const GRID: Colour = Colour(0xe9, 0xec, 0xef);

/// Colours that people with any kind of colour vision tell apart, after Okabe and Ito. Their yellow
/// is too light for lines on white.
pub(super) const PALETTE: [Colour; 7] = [
    Colour(0x00, 0x72, 0xb2),
    Colour(0xd5, 0x5e, 0x00),
    Colour(0x00, 0x9e, 0x73),
    Colour(0xcc, 0x79, 0xa7),
    Colour(0xe6, 0x9f, 0x00),
    Colour(0x56, 0xb4, 0xe9),
    Colour(0x3c, 0x40, 0x46),
];

/// A line's looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stroke {
    pub(super) colour: Colour,
    pub(super) width: f64,
    /// Lengths of a dash and of the gap after it; none for a line without gaps.
    pub(super) dash: Option<(f64, f64)>,
}

impl Stroke {
    pub(super) fn new(colour: Colour, width: f64) -> Self {
        Self { colour, width, dash: None }
    }

    pub(super) fn dashed(self, dash: f64, gap: f64) -> Self {
        Self { dash: Some((dash, gap)), ..self }
    }
}

/// Which end of a line of text its place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A line of text. Its place is on the base line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Text {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
    pub(super) size: f64,
    pub(super) colour: Colour,
    pub(super) weight: Weight,
    pub(super) anchor: Anchor,
    /// Read from below to above.
    pub(super) upwards: bool,
}

impl Text {
    pub(super) fn new(x: f64, y: f64, text: impl Into<String>) -> Self {
        Self {
            x,
            y,
            text: text.into(),
            size: 12.0,
            colour: INK,
            weight: Weight::Regular,
            anchor: Anchor::Start,
            upwards: false,
        }
    }

    pub(super) fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    pub(super) fn colour(self, colour: Colour) -> Self {
        Self { colour, ..self }
    }

    pub(super) fn bold(self) -> Self {
        Self { weight: Weight::Bold, ..self }
    }

    pub(super) fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(super) fn upwards(self) -> Self {
        Self { upwards: true, ..self }
    }
}

/// Something drawn.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// A filled rectangle.
    Box { x: f64, y: f64, width: f64, height: f64, colour: Colour },
    /// A line through these points.
    Line { points: Vec<(f64, f64)>, stroke: Stroke },
    /// A filled circle with a white edge.
    Dot { x: f64, y: f64, radius: f64, colour: Colour },
    /// A line of text.
    Text(Text),
}

/// A picture, to be written as SVG or PNG.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Named to readers who cannot see it.
    pub(super) title: String,
    pub(super) shapes: Vec<Shape>,
}

impl Picture {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self { width, height, title: title.to_owned(), shapes: Vec::new() }
    }

    pub(super) fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: Colour) {
        self.shapes.push(Shape::Box { x, y, width, height, colour });
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        self.shapes.push(Shape::Line { points: points.to_vec(), stroke });
    }

    pub(super) fn dot(&mut self, x: f64, y: f64, radius: f64, colour: Colour) {
        self.shapes.push(Shape::Dot { x, y, radius, colour });
    }

    pub(super) fn text(&mut self, text: Text) {
        self.shapes.push(Shape::Text(text));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::font::width;

    /// All that is drawn lies on the sheet.
    pub(crate) fn assert_inside(picture: &Picture) {
        for shape in &picture.shapes {
            for (x, y) in extent(shape) {
                assert!((0.0..=picture.width).contains(&x), "x of {shape:?}");
                assert!((0.0..=picture.height).contains(&y), "y of {shape:?}");
            }
        }
    }

    /// Points that a shape reaches.
    fn extent(shape: &Shape) -> Vec<(f64, f64)> {
        match shape {
            Shape::Box { x, y, width, height, .. } => vec![(*x, *y), (x + width, y + height)],
            Shape::Line { points, .. } => points.clone(),
            Shape::Dot { x, y, radius, .. } => {
                vec![(x - radius, y - radius), (x + radius, y + radius)]
            }
            Shape::Text(text) => {
                let long = width(&text.text, text.size, text.weight);
                let from = match text.anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => -long / 2.0,
                    Anchor::End => -long,
                };
                let end = |along: f64| match text.upwards {
                    true => (text.x, text.y - along),
                    false => (text.x + along, text.y),
                };
                vec![end(from), end(from + long)]
            }
        }
    }
}
