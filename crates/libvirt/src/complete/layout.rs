//! Where new elements go in the operator's text, and how they are indented.

use super::{edit::Edit, elements::Element};
use crate::elements::written_name;
use roxmltree::Node;
use std::collections::BTreeMap;

/// The elements of a domain up to `<numatune>`, in the order in which libvirt writes them
/// (`virDomainDefFormatInternalSetRootName`, `src/conf/domain_conf.c`).
const ORDER: [&str; 17] = [
    "name",
    "uuid",
    "genid",
    "title",
    "description",
    "metadata",
    "maxMemory",
    "memory",
    "currentMemory",
    "blkiotune",
    "memtune",
    "memoryBacking",
    "vcpu",
    "vcpus",
    "iothreads",
    "iothreadids",
    "cputune",
];

/// The order in `<cputune>`.
const PINS: [&str; 3] = ["vcpupin", "emulatorpin", "iothreadpin"];
/// The order in `<numatune>`.
const BINDINGS: [&str; 2] = ["memory", "memnode"];

/// The operator's text with its habits.
pub(crate) struct Layout<'a, 'input> {
    text: &'input str,
    root: Node<'a, 'input>,
    // The quote around attributes.
    quote: char,
    // The indentation of one level.
    step: &'input str,
    // The end of a line.
    newline: &'static str,
}

impl<'a, 'input> Layout<'a, 'input> {
    pub(crate) fn new(text: &'input str, root: Node<'a, 'input>) -> Self {
        let first = elements(root).next();
        let outer = indentation(text, root.range().start).unwrap_or_default();
        let inner = first.and_then(|first| indentation(text, first.range().start));
        let step = inner.and_then(|inner| inner.strip_prefix(outer)).filter(|it| !it.is_empty());
        let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
        Self { text, root, quote: quote(text), step: step.unwrap_or("  "), newline }
    }

    /// Adds elements to a section below `<domain>`, which is made if it is missing.
    pub(crate) fn add_to_section(&self, name: &'static str, added: Vec<Element>) -> Vec<Edit> {
        if added.is_empty() {
            return Vec::new();
        }
        let order: &[&str] = match name {
            "cputune" => &PINS,
            "numatune" => &BINDINGS,
            _ => &[],
        };
        if let Some(section) = elements(self.root).find(|it| it.tag_name().name() == name) {
            return self.add(section, added, order);
        }
        let section = Element::with_children(name, added);
        self.add(self.root, vec![section], &ORDER)
    }

    /// Adds distances to the cells whose start tags begin at these bytes.
    pub(super) fn add_to_cells(&self, added: Vec<(usize, Element)>) -> Vec<Edit> {
        if added.is_empty() {
            return Vec::new();
        }
        let elements = self.root.descendants().filter(Node::is_element);
        let by_start: BTreeMap<_, _> = elements.map(|it| (it.range().start, it)).collect();
        let cells = added.into_iter().filter_map(|(start, it)| Some((*by_start.get(&start)?, it)));
        cells.flat_map(|(cell, distances)| self.add(cell, vec![distances], &[])).collect()
    }

    /// Adds elements to `parent`, each behind the last child that `order` puts before it. The place
    /// of each name is looked up once: thousands of elements may be added beside thousands.
    fn add(&self, parent: Node<'a, 'input>, added: Vec<Element>, order: &[&str]) -> Vec<Edit> {
        if elements(parent).next().is_none() {
            return vec![self.fill(parent, &added)];
        }
        let mut places: BTreeMap<&str, (usize, String)> = BTreeMap::new();
        let edit = |element: &Element| {
            let place = places.entry(element.name());
            let (at, line) = place.or_insert_with(|| self.place(parent, element.name(), order));
            let text = element.written(line, self.step_of(line), self.quote);
            Edit::insert(*at, format!("{line}{text}"))
        };
        added.iter().map(edit).collect()
    }

    /// Where an element goes into a parent with children, and the begin of its line.
    fn place(&self, parent: Node<'a, 'input>, name: &str, order: &[&str]) -> (usize, String) {
        let rank = |name: &str| order.iter().position(|it| *it == name);
        // A new section is missing in ORDER only if it is the last, <numatune>.
        let own = rank(name).unwrap_or(order.len());
        let before = |it: &Node<'_, '_>| rank(it.tag_name().name()).is_some_and(|it| it <= own);
        let after = |it: &Node<'_, '_>| rank(it.tag_name().name()).is_some_and(|it| it > own);
        let first_after = elements(parent).find(after);
        let neighbour = elements(parent).filter(before).last().or_else(|| match first_after {
            Some(next) => elements_before(next).next(),
            None => elements(parent).last(),
        });
        match neighbour {
            Some(neighbour) => self.behind(neighbour),
            None => self.before_all(parent),
        }
    }

    /// The begin of a line with this indentation; empty if the text around is on one line.
    fn line(&self, indentation: Option<&str>) -> String {
        indentation.map(|it| format!("{}{it}", self.newline)).unwrap_or_default()
    }

    fn step_of(&self, line: &str) -> &str {
        if line.is_empty() { "" } else { self.step }
    }

    fn behind(&self, neighbour: Node<'_, '_>) -> (usize, String) {
        let line = self.line(indentation(self.text, neighbour.range().start));
        let end = neighbour.range().end;
        // A comment behind the neighbour belongs to it.
        let at = if line.is_empty() { end } else { end_of_line(self.text, end).unwrap_or(end) };
        (at, line)
    }

    /// Behind the parent's start tag, so that comments above its first child stay there.
    fn before_all(&self, parent: Node<'_, '_>) -> (usize, String) {
        let first = elements(parent).next().map(|first| first.range().start);
        let line = self.line(first.and_then(|first| indentation(self.text, first)));
        let end = parent.first_child().map_or(parent.range().end, |child| child.range().start);
        let at = if line.is_empty() { end } else { end_of_line(self.text, end).unwrap_or(end) };
        (at, line)
    }

    /// The first children of an element that has none.
    fn fill(&self, parent: Node<'_, '_>, added: &[Element]) -> Edit {
        let range = parent.range();
        let outer = self.line(indentation(self.text, range.start));
        let step = self.step_of(&outer);
        let inner = format!("{outer}{step}");
        let children: String =
            added.iter().map(|it| inner.clone() + &it.written(&inner, step, self.quote)).collect();
        let whole = self.text.get(range.clone()).unwrap_or_default();
        if whole.ends_with("/>") {
            let end = format!("</{}>", written_name(parent));
            let start = range.end - 2;
            return Edit { start, end: range.end, text: format!(">{children}{outer}{end}") };
        }
        // Behind the content, which is blanks and comments, and in front of the end tag's line.
        let end_tag = range.start + whole.rfind("</").unwrap_or(whole.len());
        let content = self.text.get(range.start..end_tag).unwrap_or_default();
        let at = range.start + content.trim_end().len();
        let own_line = content.get(content.trim_end().len()..).is_some_and(|it| it.contains('\n'));
        Edit::insert(at, if own_line { children } else { children + &outer })
    }
}

/// The children of `node` that are libvirt's elements.
fn elements<'a, 'input>(node: Node<'a, 'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(|it| it.is_element() && it.tag_name().namespace().is_none())
}

/// libvirt's elements in front of `node`, the nearest first.
fn elements_before<'a, 'input>(node: Node<'a, 'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    let before = node.prev_siblings().skip(1);
    before.filter(|it| it.is_element() && it.tag_name().namespace().is_none())
}

/// The quote that the text's first attribute has.
pub(crate) fn quote(text: &str) -> char {
    let begin = text.find("<domain").unwrap_or(0);
    let first = text.get(begin..).and_then(|text| text.find(['\'', '"']).map(|at| (text, at)));
    match first.and_then(|(text, at)| text.get(at..)) {
        Some(text) if text.starts_with('"') => '"',
        _ => '\'',
    }
}

/// The blanks in front of `at` if there is nothing else in its line.
fn indentation(text: &str, at: usize) -> Option<&str> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |newline| newline + 1);
    let before = text.get(start..at)?;
    let is_first_line = start == 0;
    (before.chars().all(|c| c == ' ' || c == '\t') && !is_first_line).then_some(before)
}

/// The end of the line of `at` if only blanks and comments follow there.
fn end_of_line(text: &str, at: usize) -> Option<usize> {
    let mut end = at;
    loop {
        let rest = text.get(end..)?;
        let next = rest.trim_start_matches([' ', '\t']);
        if next.starts_with('\n') || next.starts_with("\r\n") {
            return Some(end);
        }
        let comment = next.strip_prefix("<!--")?;
        let length = comment.find("-->")?;
        if comment.get(..length)?.contains('\n') {
            return None;
        }
        end += rest.len() - next.len() + "<!---->".len() + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_to_the_end_of_the_line_are_passed() {
        assert_eq!(end_of_line("  \nx", 0), Some(0));
        assert_eq!(end_of_line(" <!-- a --> <!-- b -->  \r\nx", 0), Some(22));
        assert_eq!(end_of_line(" <!-- a --><x/>\n", 0), None);
        assert_eq!(end_of_line(" <!-- a\n -->\n", 0), None);
        assert_eq!(end_of_line("", 0), None);
    }

    #[test]
    fn only_blanks_are_indentation() {
        assert_eq!(indentation("a\n \t<b/>", 4), Some(" \t"));
        assert_eq!(indentation("a\n <b/><c/>", 7), None);
        assert_eq!(indentation("<b/>", 0), None);
    }
}
