//! A [`Picture`] as PNG, drawn here: no system, font or library is asked.
//!
//! The same picture gives the same bytes. It looks like the SVG in a viewer that has the same font.

use super::font::{Face, Weight};
use super::picture::{Anchor, Colour, Picture, Shape, Stroke, Text};
use thiserror::Error;
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, PathBuilder, Pixmap, Rect, StrokeDash, Transform,
};

/// Pixels of a PNG for each of the SVG's, so that letters are sharp on today's screens.
const SCALE: f64 = 2.0;
/// 400 MB of memory; far more than any chart of ours that is of use.
const PIXELS_MAX: u64 = 100_000_000;

/// A picture that is too large, or empty.
#[derive(Debug, Error)]
#[error("a picture of {width} × {height} pixels cannot be made: {why}")]
pub struct PngError {
    width: u32,
    height: u32,
    why: String,
}

impl Picture {
    /// Width and height in pixels as PNG.
    pub fn png_size(&self) -> (u32, u32) {
        ((self.width * SCALE).ceil() as u32, (self.height * SCALE).ceil() as u32)
    }

    /// The bytes of a PNG file, twice as large in pixels as the SVG.
    pub fn to_png(&self) -> Result<Vec<u8>, PngError> {
        let (width, height) = self.png_size();
        let fail = |why: String| PngError { width, height, why };
        if u64::from(width) * u64::from(height) > PIXELS_MAX {
            return Err(fail("it is too large: use SVG".to_owned()));
        }
        let mut sheet = Pixmap::new(width, height).ok_or_else(|| fail("it is empty".to_owned()))?;
        sheet.fill(Color::WHITE);
        let mut easel = Easel {
            sheet,
            regular: Face::new(Weight::Regular),
            bold: Face::new(Weight::Bold),
            scale: Transform::from_scale(SCALE as f32, SCALE as f32),
        };
        self.shapes.iter().for_each(|shape| easel.shape(shape));
        easel.sheet.encode_png().map_err(|error| fail(error.to_string()))
    }
}

struct Easel {
    sheet: Pixmap,
    regular: Face,
    bold: Face,
    scale: Transform,
}

fn paint(colour: Colour) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(colour.0, colour.1, colour.2, 255);
    paint
}

impl Easel {
    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Box { x, y, width, height, colour } => {
                let [x, y, width, height] = [x, y, width, height].map(|value| *value as f32);
                if let Some(rect) = Rect::from_xywh(x, y, width, height) {
                    self.sheet.fill_rect(rect, &paint(*colour), self.scale, None);
                }
            }
            Shape::Line { points, stroke } => self.line(points, stroke),
            Shape::Dot { x, y, radius, colour } => {
                for (radius, colour) in
                    [(radius + 0.5, Colour(0xff, 0xff, 0xff)), (radius - 0.5, *colour)]
                {
                    self.circle(*x, *y, radius, colour);
                }
            }
            Shape::Text(text) => self.text(text),
        }
    }

    fn line(&mut self, points: &[(f64, f64)], stroke: &Stroke) {
        let mut path = PathBuilder::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let (x, y) = (*x as f32, *y as f32);
            if index == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
        }
        let Some(path) = path.finish() else { return };
        let dash = stroke.dash.map(|(dash, gap)| vec![dash as f32, gap as f32]);
        let round = points.len() > 2;
        let looks = tiny_skia::Stroke {
            width: stroke.width as f32,
            line_cap: if round { LineCap::Round } else { LineCap::Butt },
            line_join: if round { LineJoin::Round } else { LineJoin::Miter },
            dash: dash.and_then(|lengths| StrokeDash::new(lengths, 0.0)),
            ..tiny_skia::Stroke::default()
        };
        self.sheet.stroke_path(&path, &paint(stroke.colour), &looks, self.scale, None);
    }

    fn circle(&mut self, x: f64, y: f64, radius: f64, colour: Colour) {
        if let Some(path) = PathBuilder::from_circle(x as f32, y as f32, radius as f32) {
            let rule = FillRule::Winding;
            self.sheet.fill_path(&path, &paint(colour), rule, self.scale, None);
        }
    }

    fn text(&mut self, text: &Text) {
        let face = match text.weight {
            Weight::Regular => &self.regular,
            Weight::Bold => &self.bold,
        };
        let Some(path) = face.outline(&text.text, text.size) else { return };
        let width = face.width(&text.text, text.size);
        let shift = match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        };
        let turn = if text.upwards { -90.0 } else { 0.0 };
        let place = Transform::from_translate(shift as f32, 0.0)
            .post_concat(Transform::from_rotate(turn))
            .post_translate(text.x as f32, text.y as f32)
            .post_concat(self.scale);
        self.sheet.fill_path(&path, &paint(text.colour), FillRule::Winding, place, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::PALETTE;

    /// Width, height and pixels of red, green, blue, alpha, by another reader.
    fn decode(bytes: &[u8]) -> (u32, u32, Vec<[u8; 4]>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        let pixels = pixels.chunks_exact(4).map(|p| p.try_into().unwrap()).collect();
        (frame.width, frame.height, pixels)
    }

    #[test]
    fn a_png_has_twice_the_size_and_the_shapes_at_their_places() {
        let mut picture = Picture::new(60.0, 40.5, "shapes");
        picture.rectangle(10.0, 10.0, 20.0, 10.0, PALETTE[0]);
        picture.line(&[(0.0, 30.0), (60.0, 30.0)], Stroke::new(PALETTE[1], 2.0));
        picture.dot(50.0, 10.0, 4.0, PALETTE[2]);
        let (width, height, pixels) = decode(&picture.to_png().unwrap());
        assert_eq!((width, height), (120, 81));
        assert_eq!((width, height), picture.png_size());
        let at = |x: usize, y: usize| pixels[y * 120 + x];
        let solid = |Colour(r, g, b): Colour| [r, g, b, 255];
        assert_eq!(at(21, 21), solid(PALETTE[0]));
        assert_eq!(at(60, 60), solid(PALETTE[1]));
        assert_eq!(at(100, 20), solid(PALETTE[2]));
        assert_eq!(at(5, 5), [255; 4]);
    }

    #[test]
    fn text_is_drawn_where_it_is_anchored() {
        let inked = |anchor: Anchor, upwards: bool| {
            let mut picture = Picture::new(100.0, 100.0, "text");
            let mut text = Text::new(50.0, 50.0, "HHHH").anchor(anchor);
            text.upwards = upwards;
            picture.text(text);
            let (_, _, pixels) = decode(&picture.to_png().unwrap());
            let dark = |from: usize, to: usize, rows: std::ops::Range<usize>| {
                rows.flat_map(|y| (from..to).map(move |x| y * 200 + x))
                    .any(|at| pixels[at][0] < 100)
            };
            // Left, right, above, below the place.
            [
                dark(0, 98, 0..200),
                dark(102, 200, 0..200),
                dark(0, 200, 0..78),
                dark(0, 200, 102..200),
            ]
        };
        assert_eq!(inked(Anchor::Start, false), [false, true, false, false]);
        assert_eq!(inked(Anchor::End, false), [true, false, false, false]);
        assert_eq!(inked(Anchor::Middle, false), [true, true, false, false]);
        assert_eq!(inked(Anchor::Start, true), [true, false, true, false]);
        assert_eq!(inked(Anchor::Middle, true), [true, false, true, true]);
    }

    #[test]
    fn a_picture_without_room_or_beyond_memory_is_an_error() {
        for (width, height) in [(0.0, 10.0), (1e9, 1e9)] {
            let error = Picture::new(width, height, "no").to_png().unwrap_err();
            assert!(error.to_string().contains("cannot be made"), "{error}");
        }
    }
}
