//! Tables that fill a width: columns that may be cut share the space that the others leave.

use crate::report::table::Side;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Style},
    text::Span,
};

/// Blanks between two columns.
const GAP: usize = 2;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) side: Side,
    /// The minimum width, so that the column keeps its place while figures change.
    pub(super) least: usize,
    /// Whether the column may be cut.
    pub(super) is_cut: bool,
}

/// A rating shown as a colour, beside a number that says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mood {
    #[default]
    Plain,
    Good,
    Fair,
    Bad,
}

impl Mood {
    pub(super) fn style(self, colours: bool) -> Style {
        match self {
            _ if !colours => Style::new(),
            Self::Plain => Style::new(),
            Self::Good => Style::new().fg(Color::Green),
            Self::Fair => Style::new().fg(Color::Yellow),
            Self::Bad => Style::new().fg(Color::Red),
        }
    }
}

/// The content of a column.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) mood: Mood,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), mood: Mood::Plain }
    }
}

/// The width of each column, so that all fit into `width` if possible.
pub(super) fn widths(columns: &[Column], rows: &[Vec<Cell>], width: usize) -> Vec<usize> {
    let longest = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| columns_of(&cell.text)).max()
    };
    let natural = |(number, column): (usize, &Column)| {
        longest(number).unwrap_or(0).max(column.least).max(column.title.len())
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(natural).collect();
    let gaps = GAP * columns.len().saturating_sub(1);
    let firm: usize = widths
        .iter()
        .zip(columns)
        .filter(|(_, column)| !column.is_cut)
        .map(|(width, _)| width)
        .sum();
    let mut left = width.saturating_sub(gaps + firm);
    // A column that needs less than an equal part leaves the rest to the others.
    let mut cut: Vec<usize> = (0..columns.len()).filter(|&column| columns[column].is_cut).collect();
    cut.sort_by_key(|&column| widths[column]);
    for (done, &column) in cut.iter().enumerate() {
        widths[column] = widths[column].min(left / (cut.len() - done));
        left -= widths[column];
    }
    widths
}

/// Width of a text in columns of a terminal.
pub(super) fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Writes a row into the line `area`.
pub(super) fn write_row(
    buffer: &mut Buffer,
    area: Rect,
    columns: &[Column],
    widths: &[usize],
    row: &[Cell],
    colours: bool,
) {
    let mut x = 0;
    for ((cell, column), &width) in row.iter().zip(columns).zip(widths) {
        let blank = width.saturating_sub(columns_of(&cell.text));
        let at = match column.side {
            Side::Left => x,
            Side::Right => x + blank,
        };
        write(buffer, area, at, width.min(x + width - at), &cell.text, cell.mood.style(colours));
        x += width + GAP;
    }
}

/// Writes a text at column `x` of the line `area`. A text wider than `width` is cut and ends with
/// `~`.
pub(super) fn write(
    buffer: &mut Buffer,
    area: Rect,
    x: usize,
    width: usize,
    text: &str,
    style: Style,
) {
    let area = area.intersection(buffer.area);
    let width = width.min(usize::from(area.width).saturating_sub(x));
    if area.height == 0 || width == 0 {
        return;
    }
    let at = area.x + x as u16;
    let fits = columns_of(text) <= width;
    let (end, _) =
        buffer.set_stringn(at, area.y, text, if fits { width } else { width - 1 }, style);
    if !fits {
        buffer.set_stringn(end, area.y, "~", 1, style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(least: usize, is_cut: bool) -> Column {
        Column { title: "", side: Side::Left, least, is_cut }
    }

    fn row(lengths: &[usize]) -> Vec<Cell> {
        lengths.iter().map(|&length| Cell::new("x".repeat(length))).collect()
    }

    #[test]
    fn cut_columns_share_the_remaining_width() {
        let columns = [column(5, false), column(0, true), column(0, true), column(0, true)];
        let rows = [row(&[3, 4, 20, 30]), row(&[7, 2, 1, 1])];
        assert_eq!(widths(&columns, &rows, 100), [7, 4, 20, 30], "all fit");
        assert_eq!(widths(&columns, &rows, 50), [7, 4, 16, 17], "the short one is whole");
        assert_eq!(widths(&columns, &rows, 20), [7, 2, 2, 3]);
        assert_eq!(widths(&columns, &rows, 5), [7, 0, 0, 0]);
        assert_eq!(widths(&columns, &[], 100), [5, 0, 0, 0]);
    }

    fn written(width: usize, x: usize, text: &str) -> String {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
        write(&mut buffer, Rect::new(0, 0, 8, 1), x, width, text, Style::new());
        buffer.content.iter().map(|cell| cell.symbol()).collect()
    }

    #[test]
    fn cut_text_ends_with_a_tilde_and_control_characters_are_not_written() {
        assert_eq!(written(5, 0, "short"), "short   ");
        assert_eq!(written(5, 0, "longer"), "long~   ");
        assert_eq!(written(9, 4, "longer"), "    lon~");
        assert_eq!(written(5, 9, "beyond"), "        ");
        assert!(!written(8, 0, "\x1b[2J").contains('\x1b'));
        // A character of two columns is not halved.
        assert!(written(4, 0, "a漢字b").starts_with("a漢"));
        write(&mut Buffer::empty(Rect::ZERO), Rect::new(0, 3, 8, 1), 0, 8, "nowhere", Style::new());
    }
}
