//! Pictures as SVG text. Labelled boxes need only a few shapes, titles for hovering, and text that
//! stays text (searchable, copyable); a plotting library draws charts instead.

use std::fmt::{Display, Write};

/// The position of a text relative to its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture in progress. Lengths are in pixels.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    body: String,
}

impl Picture {
    /// A filled box; `stroke` may be `none`. The title appears on hovering.
    pub(crate) fn rect(
        &mut self,
        at: (f64, f64),
        size: (f64, f64),
        fill: &str,
        stroke: &str,
        title: impl Display,
    ) {
        let ((x, y), (width, height)) = (at, size);
        let stroke = if stroke == "none" { String::new() } else { format!(" stroke=\"{stroke}\"") };
        let title = match escaped(title) {
            title if title.is_empty() => "/>".to_string(),
            title => format!("><title>{title}</title></rect>"),
        };
        _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             rx=\"2\" fill=\"{fill}\"{stroke}{title}"
        );
    }

    /// A line of text whose baseline begins, is centred or ends at a point; cut to `width`.
    pub(crate) fn text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        style: Style,
        width: f64,
        text: impl Display,
    ) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let Style { size, fill, bold } = style;
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let text = escaped(fitting(&text.to_string(), width, size));
        _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             fill=\"{fill}\"{weight}>{text}</text>"
        );
    }

    /// The whole picture.
    pub(crate) fn finish(self, width: f64, height: f64, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans, Verdana, \
             sans-serif\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" \
             fill=\"#ffffff\"/>\n{}</svg>\n",
            escaped(title),
            self.body,
        )
    }
}

/// The style of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) size: f64,
    pub(crate) fill: &'static str,
    pub(crate) bold: bool,
}

/// The estimated width of a text in an average sans-serif font; no font is at hand to measure it.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.62
}

fn fitting(text: &str, width: f64, size: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_string();
    }
    let room = (width / (size * 0.62)) as usize;
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    format!("{}\u{2026}", kept.trim_end())
}

fn escaped(text: impl Display) -> String {
    let mut escaped = String::new();
    for c in text.to_string().chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            // XML 1.0 cannot represent the other control characters.
            c if c.is_control() && !matches!(c, '\t' | '\n' | '\r') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_escaped() {
        let style = Style { size: 10.0, fill: "#000", bold: false };
        let mut picture = Picture::default();
        picture.text((0.0, 0.0), Anchor::Start, style, 1000.0, "<eth0> & \u{1b}\"x\"");
        assert!(
            picture
                .finish(1.0, 1.0, "t")
                .contains(">&lt;eth0&gt; &amp; \u{fffd}&quot;x&quot;</text>")
        );
    }

    #[test]
    fn text_is_cut_to_its_width() {
        assert_eq!(fitting("abcdefghij", 31.0, 10.0), "abcd\u{2026}");
        assert_eq!(fitting("abc", 31.0, 10.0), "abc");
    }
}
