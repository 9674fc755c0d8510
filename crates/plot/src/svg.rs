//! A [`Picture`] as SVG: text stays text, and nothing is loaded from elsewhere.
//!
//! The same picture gives the same bytes. Whatever a label holds, the file is well-formed XML.

use super::font::{FAMILY, Weight};
use super::picture::{Anchor, Colour, Picture, Shape, Stroke, Text};
use std::fmt::{self, Display, Write};

impl Picture {
    /// The text of an SVG file.
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        self.write_svg(&mut svg).expect("a string takes all that is written");
        svg
    }

    fn write_svg(&self, svg: &mut String) -> fmt::Result {
        let (width, height) = (Number(self.width), Number(self.height));
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"{FAMILY}\">"
        )?;
        writeln!(svg, "<title>{}</title>", Escaped(&self.title))?;
        writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
        for shape in &self.shapes {
            write_shape(svg, shape)?;
        }
        writeln!(svg, "</svg>")
    }
}

fn write_shape(svg: &mut String, shape: &Shape) -> fmt::Result {
    match shape {
        Shape::Box { x, y, width, height, colour } => writeln!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"/>",
            Number(*x),
            Number(*y),
            Number(*width),
            Number(*height)
        ),
        Shape::Line { points, stroke } => write_line(svg, points, stroke),
        Shape::Dot { x, y, radius, colour } => writeln!(
            svg,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{colour}\" stroke=\"#ffffff\"/>",
            Number(*x),
            Number(*y),
            Number(*radius)
        ),
        Shape::Text(text) => write_text(svg, text),
    }
}

fn write_line(svg: &mut String, points: &[(f64, f64)], stroke: &Stroke) -> fmt::Result {
    svg.push_str("<path d=\"");
    for (index, (x, y)) in points.iter().enumerate() {
        let step = if index == 0 { 'M' } else { 'L' };
        write!(svg, "{step}{} {}", Number(*x), Number(*y))?;
    }
    let Stroke { colour, width, dash } = stroke;
    write!(svg, "\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"", Number(*width))?;
    if let Some((dash, gap)) = dash {
        write!(svg, " stroke-dasharray=\"{} {}\"", Number(*dash), Number(*gap))?;
    }
    if points.len() > 2 {
        svg.push_str(" stroke-linejoin=\"round\" stroke-linecap=\"round\"");
    }
    svg.push_str("/>\n");
    Ok(())
}

fn write_text(svg: &mut String, text: &Text) -> fmt::Result {
    let (x, y) = (Number(text.x), Number(text.y));
    let (size, colour) = (Number(text.size), text.colour);
    write!(svg, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{colour}\"")?;
    match text.anchor {
        Anchor::Start => {}
        Anchor::Middle => svg.push_str(" text-anchor=\"middle\""),
        Anchor::End => svg.push_str(" text-anchor=\"end\""),
    }
    if text.weight == Weight::Bold {
        svg.push_str(" font-weight=\"bold\"");
    }
    if text.upwards {
        write!(svg, " transform=\"rotate(-90 {x} {y})\"")?;
    }
    writeln!(svg, ">{}</text>", Escaped(&text.text))
}

impl Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// A coordinate with at most two decimals.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded first, so that no zero is negative.
        let rounded = (self.0 * 100.0).round() / 100.0 + 0.0;
        write!(f, "{rounded}")
    }
}

/// Text for XML, in elements and attributes alike.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;"),
                '<' => f.write_str("&lt;"),
                '>' => f.write_str("&gt;"),
                '"' => f.write_str("&quot;"),
                // XML 1.0 has no way to write these.
                '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}'),
                _ => f.write_char(letter),
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::INK;
    use proptest::prelude::*;

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let nodes = document.descendants().filter(|node| node.has_tag_name("text"));
        nodes.map(|node| node.text().unwrap_or_default().to_owned()).collect()
    }

    proptest! {
        #[test]
        fn any_label_comes_back_from_well_formed_xml(label in any::<String>()) {
            let mut picture = Picture::new(100.0, 50.0, &label);
            picture.text(Text::new(1.0, 2.0, label.as_str()));
            let lost = |c: char| c < ' ' || c == '\u{fffe}' || c == '\u{ffff}';
            let kept: String =
                label.chars().map(|c| if lost(c) { '\u{fffd}' } else { c }).collect();
            prop_assert_eq!(texts(&picture.to_svg()), [kept]);
        }

        #[test]
        fn coordinates_are_short_and_close(value in -1e5..1e5) {
            let text = Number(value).to_string();
            let back: f64 = text.parse().unwrap();
            prop_assert!((back - value).abs() <= 0.005_001, "{}", text);
            prop_assert!(text.split('.').nth(1).is_none_or(|decimals| decimals.len() <= 2));
            prop_assert!(text != "-0");
        }
    }

    #[test]
    fn every_shape_has_its_element() {
        let mut picture = Picture::new(100.0, 50.0, "all");
        picture.rectangle(1.0, 2.0, 3.0, 4.005, INK);
        picture.line(&[(0.0, 0.0), (1.0, 1.0)], Stroke::new(INK, 1.5).dashed(2.0, 3.0));
        picture.dot(5.0, 6.0, 2.5, INK);
        picture.text(Text::new(7.0, 8.0, "up").upwards().bold().anchor(Anchor::End));
        let svg = picture.to_svg();
        for part in [
            "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4.01\" fill=\"#22262b\"/>",
            "<path d=\"M0 0L1 1\" fill=\"none\"",
            "stroke-width=\"1.5\" stroke-dasharray=\"2 3\"",
            "<circle cx=\"5\" cy=\"6\" r=\"2.5\"",
            "text-anchor=\"end\" font-weight=\"bold\" transform=\"rotate(-90 7 8)\">up</text>",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }
}
