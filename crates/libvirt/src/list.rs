//! Lists of numbers as libvirt reads them: `1-4,^3` (`virBitmapParse`, `src/util/virbitmap.c`).
//!
//! `nearside_topology::grammar` is wider (`all`, `!`, `N`), and it checks numbers against a machine
//! that need not be known here. A list that libvirt refuses must be refused here.

use crate::position::on_one_line;
use nearside_topology::{Id, IdSet};

/// The highest number that libvirt takes (`VIR_DOMAIN_CPUMASK_LEN`, `src/conf/domain_conf.h`, is
/// one more).
pub(crate) const MAX_NUMBER: u32 = 16_383;

/// The offset of the first wrong byte, and the fault.
pub(crate) type Wrong = (usize, String);

/// Reads a list with at least one item.
pub(crate) fn parse<T: Id>(text: &str) -> Result<IdSet<T>, Wrong> {
    let mut list = List { text, at: 0 };
    let mut set = IdSet::new();
    list.skip_blanks();
    loop {
        let start = list.at;
        let exclude = list.take('^');
        let first = list.number()?;
        list.skip_blanks();
        match (exclude, list.rest().starts_with('-')) {
            (true, true) => {
                let message = "reads ^ before a range, expected one number after ^";
                return Err((start, message.into()));
            }
            (true, false) => {
                set.remove(T::new(first));
            }
            (false, false) => {
                set.insert(T::new(first));
            }
            (false, true) => {
                list.take('-');
                list.skip_blanks();
                let last = list.number()?;
                if last < first {
                    return Err((start, format!("the range {first}-{last} runs backwards")));
                }
                set.insert_range(T::new(first), T::new(last));
                list.skip_blanks();
            }
        }
        let more = list.take(',');
        list.skip_blanks();
        match (more, list.rest().is_empty()) {
            // A comma at the end is accepted there, too.
            (_, true) => return Ok(set),
            (true, false) => {}
            (false, false) => return Err(list.unexpected("a comma or the end")),
        }
    }
}

struct List<'a> {
    text: &'a str,
    // Byte offset of the next character.
    at: usize,
}

impl List<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_blanks(&mut self) {
        // `g_ascii_isspace`: a no-break space is none.
        let after = self.rest().trim_start_matches([' ', '\t', '\r', '\n']);
        self.at += self.rest().len() - after.len();
    }

    fn take(&mut self, sign: char) -> bool {
        let there = self.rest().starts_with(sign);
        self.at += if there { sign.len_utf8() } else { 0 };
        there
    }

    fn number(&mut self) -> Result<u32, Wrong> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest.get(..end).unwrap_or_default();
        if digits.is_empty() {
            return Err(self.unexpected("a number"));
        }
        // Digits alone fail only where the number is too large.
        match digits.parse::<u32>() {
            Ok(number) if number <= MAX_NUMBER => {
                self.at += end;
                Ok(number)
            }
            _ => Err((self.at, format!("{digits} is above {MAX_NUMBER}, the highest number"))),
        }
    }

    fn unexpected(&self, expected: &str) -> Wrong {
        let read = match self.rest().chars().next() {
            Some(c) => format!("\"{}\"", on_one_line(c.encode_utf8(&mut [0; 4]))),
            None => "the end".into(),
        };
        (self.at, format!("read {read}, expected {expected}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeSet;

    #[test]
    fn lists_are_read_as_libvirt_reads_them() {
        let cases = [
            ("0", "0"),
            ("1-4,^3", "1-2,4"),
            ("0,^0", ""),
            ("^0", ""),
            (" 0 - 3 , ^2", "0-1,3"),
            ("0,2,", "0,2"),
            ("4,0-1", "0-1,4"),
            // Items count from left to right.
            ("^1,0-1", "0-1"),
            ("16383", "16383"),
        ];
        for (text, expected) in cases {
            let set: NodeSet = parse(text).unwrap();
            assert_eq!(set.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn malformed_lists_name_the_place() {
        let cases = [
            ("", 0, "read the end, expected a number"),
            ("a", 0, "read \"a\", expected a number"),
            ("0,,1", 2, "read \",\", expected a number"),
            ("0 1", 2, "read \"1\", expected a comma or the end"),
            ("0-", 2, "read the end, expected a number"),
            ("3-1", 0, "the range 3-1 runs backwards"),
            ("0-3,^1-2", 4, "reads ^ before a range, expected one number after ^"),
            ("0,^ 1", 3, "read \" \", expected a number"),
            ("0\u{a0}", 1, "read \"\\u{a0}\", expected a comma or the end"),
            ("+0", 0, "read \"+\", expected a number"),
            ("all", 0, "read \"a\", expected a number"),
            ("4294967296", 0, "4294967296 is above 16383, the highest number"),
        ];
        for (text, at, message) in cases {
            assert_eq!(
                parse::<nearside_topology::NodeId>(text),
                Err((at, message.into())),
                "{text}"
            );
        }
    }
}
