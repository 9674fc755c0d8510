//! [`Face`]: the letters of pictures, from a small font in the program, so that a picture needs none
//! of the system's and looks the same everywhere.
//!
//! The font has the widths of Arial, so that text in an SVG takes the same room with the fonts that
//! viewers have. Letters that it lacks are boxes in a PNG. It has Latin-1 and some punctuation;
//! there is no shaping and no kerning.

use tiny_skia::{Path, PathBuilder};
use ttf_parser::{GlyphId, OutlineBuilder};

/// What an SVG asks for: fonts of the same widths first.
pub(super) const FAMILY: &str = "Arimo, Arial, 'Liberation Sans', Helvetica, sans-serif";

static REGULAR: &[u8] = include_bytes!("font/Arimo-Regular.ttf");
static BOLD: &[u8] = include_bytes!("font/Arimo-Bold.ttf");

/// How heavy letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Regular,
    Bold,
}

/// A parsed font.
pub(super) struct Face(ttf_parser::Face<'static>);

impl Face {
    pub(super) fn new(weight: Weight) -> Self {
        let bytes = match weight {
            Weight::Regular => REGULAR,
            Weight::Bold => BOLD,
        };
        Self(ttf_parser::Face::parse(bytes, 0).expect("a font that tests read"))
    }

    fn glyph(&self, letter: char) -> GlyphId {
        self.0.glyph_index(letter).unwrap_or(GlyphId(0))
    }

    fn advance(&self, glyph: GlyphId) -> f64 {
        f64::from(self.0.glyph_hor_advance(glyph).unwrap_or(0))
    }

    fn units(&self) -> f64 {
        f64::from(self.0.units_per_em())
    }

    /// Width of a line of text.
    pub(super) fn width(&self, text: &str, size: f64) -> f64 {
        let units: f64 = text.chars().map(|letter| self.advance(self.glyph(letter))).sum();
        units * size / self.units()
    }

    /// Outlines of a line of text whose base line begins at the origin; y grows downwards. None if
    /// there is nothing to see.
    pub(super) fn outline(&self, text: &str, size: f64) -> Option<Path> {
        let scale = size / self.units();
        let mut pen = Pen { path: PathBuilder::new(), x: 0.0, scale };
        for letter in text.chars() {
            let glyph = self.glyph(letter);
            self.0.outline_glyph(glyph, &mut pen);
            pen.x += self.advance(glyph) * scale;
        }
        pen.path.finish()
    }
}

/// Width of a line of text.
pub(super) fn width(text: &str, size: f64, weight: Weight) -> f64 {
    Face::new(weight).width(text, size)
}

/// The text, cut with an ellipsis to what fits.
pub(super) fn fit(text: &str, size: f64, weight: Weight, width_max: f64) -> String {
    let face = Face::new(weight);
    if face.width(text, size) <= width_max {
        return text.to_owned();
    }
    let room = width_max - face.width("…", size);
    let mut taken = 0.0;
    let fits = |letter: &char| {
        taken += face.width(letter.encode_utf8(&mut [0; 4]), size);
        taken <= room
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    cut.truncate(cut.trim_end().len());
    cut + "…"
}

struct Pen {
    path: PathBuilder,
    x: f64,
    scale: f64,
}

impl Pen {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        let place = |value: f64| value as f32;
        (place(self.x + f64::from(x) * self.scale), place(-f64::from(y) * self.scale))
    }
}

impl OutlineBuilder for Pen {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_weights_have_every_letter_that_pictures_use() {
        for weight in [Weight::Regular, Weight::Bold] {
            let face = Face::new(weight);
            for letter in (' '..='~').chain("×·–—…≈≤≥µ±“”".chars()) {
                assert_ne!(face.glyph(letter), GlyphId(0), "{letter}");
            }
        }
    }

    #[test]
    fn widths_add_up_and_grow_with_the_size() {
        // Digits are all as wide as each other: 1,139 of 2,048 units, as in Arial.
        let one = width("0", 2048.0, Weight::Regular);
        assert_eq!(one, 1139.0);
        assert_eq!(width("123", 2048.0, Weight::Regular), 3.0 * one);
        assert_eq!(width("123", 1024.0, Weight::Regular), 1.5 * one);
        assert_eq!(width("", 12.0, Weight::Bold), 0.0);
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        let cut = fit("a name that is far too long", 12.0, Weight::Regular, 60.0);
        assert!(cut.ends_with('…') && cut.starts_with("a nam"), "{cut}");
        assert!(width(&cut, 12.0, Weight::Regular) <= 60.0);
        assert_eq!(fit("short", 12.0, Weight::Regular, 60.0), "short");
        assert_eq!(fit("short", 12.0, Weight::Regular, 0.0), "…");
    }

    #[test]
    fn letters_have_outlines_and_blanks_have_none() {
        let face = Face::new(Weight::Regular);
        let bounds = face.outline("Hg", 100.0).unwrap().bounds();
        assert!(bounds.top() < -60.0 && bounds.bottom() > 10.0, "{bounds:?}");
        assert!(face.outline("  ", 100.0).is_none());
        assert!(face.outline("漢", 100.0).is_some(), "a box for what the font lacks");
    }
}
