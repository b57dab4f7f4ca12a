//! Plain tables that fit the width of a terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// The width of reports in columns.
pub(crate) const WIDTH: usize = 96;

/// The alignment of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Left,
    Right,
}

/// A table below an indented title; empty if it has no rows.
pub(crate) fn table(title: &str, columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let body = laid_out(columns, rows, ContentArrangement::Dynamic);
    format!("\n{title}\n{body}")
}

/// A table whose cells are never broken, so that they can be searched and copied; only headings if
/// it has no rows.
pub(crate) fn listing(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    laid_out(columns, rows, ContentArrangement::Disabled)
}

fn laid_out(
    columns: &[(&str, Side)],
    rows: &[Vec<String>],
    arrangement: ContentArrangement,
) -> String {
    let cell = |text: &str, side| {
        Cell::new(text).set_alignment(match side {
            Side::Left => CellAlignment::Left,
            Side::Right => CellAlignment::Right,
        })
    };
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(arrangement)
        .set_width(WIDTH as u16);
    table.set_header(columns.iter().map(|&(name, side)| cell(name, side)));
    for row in rows {
        table.add_row(row.iter().zip(columns).map(|(text, &(_, side))| cell(text, side)));
    }
    table.lines().map(|line| format!(" {}\n", line.trim_end())).collect()
}

/// Words joined by blanks and broken into lines of `WIDTH` columns that leave room for an indent.
pub(crate) fn wrapped(words: &[String], indent: usize) -> String {
    wrapped_to(WIDTH, words, indent)
}

/// The same for another width.
pub(crate) fn wrapped_to(width: usize, words: &[String], indent: usize) -> String {
    let mut text = String::new();
    let mut used = indent;
    for (index, word) in words.iter().enumerate() {
        let length = word.chars().count();
        if index > 0 && used + 1 + length > width {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if index > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text
}

/// A list of numbers, broken after commas into lines of `WIDTH` columns that leave room for an
/// indent.
pub(crate) fn broken(list: &str, indent: usize) -> String {
    let mut text = String::new();
    let mut used = indent;
    for range in list.split_inclusive(',') {
        if used > indent && used + range.len() > WIDTH {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        }
        text.push_str(range);
        used += range.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_broken_after_commas() {
        assert_eq!(broken("CPUs 1-7,9-15", 11), "CPUs 1-7,9-15");
        let list: Vec<String> = (10..60).map(|cpu| (2 * cpu).to_string()).collect();
        let text = broken(&list.join(","), 11);
        assert_eq!(text.replace("\n           ", ""), list.join(","));
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("           ")));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    }

    #[test]
    fn long_lines_are_broken_and_indented() {
        let words: Vec<String> = (0..40).map(|n| format!("eth{n:02}")).collect();
        let text = wrapped(&words, 10);
        assert!(text.lines().count() > 1);
        assert!(
            text.lines()
                .skip(1)
                .all(|line| line.starts_with("          eth") && line.len() <= WIDTH)
        );
        assert_eq!(text.split_whitespace().count(), 40);
    }
}
