//! Elements, attributes and their values, with their places.

use crate::{
    elements::written_name,
    list,
    position::{Located, Span, on_one_line},
    size::unit_bytes,
};
use nearside_topology::{Id, IdSet};
use std::{borrow::Cow, collections::BTreeSet, fmt::Display, ops::RangeInclusive, str::FromStr};

pub(super) type Node<'a, 'input> = roxmltree::Node<'a, 'input>;

/// A fault at a byte of the text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) problem: String,
}

pub(super) type Read<T> = Result<T, Fault>;

pub(super) fn fault(at: usize, problem: impl Into<String>) -> Fault {
    Fault { at, problem: problem.into() }
}

/// The text of an attribute or an element.
#[derive(Debug, Clone)]
pub(super) struct Value<'a> {
    /// Its text; entities are resolved.
    pub(super) text: Cow<'a, str>,
    /// Its name for messages, such as `vcpu=`.
    pub(super) name: String,
    pub(super) span: Span,
}

impl Value<'_> {
    pub(super) fn owned(self) -> Located<String> {
        Located { value: self.text.into_owned(), span: self.span }
    }

    /// The text without the blanks behind it.
    pub(super) fn trimmed(self) -> Located<String> {
        let Self { text, span, .. } = self;
        let value = text.trim_end_matches(is_blank).to_owned();
        let cut = text.len() - value.len();
        Located { value, span: Span { start: span.start, end: span.end - cut.min(span.end) } }
    }

    pub(super) fn located<T>(&self, value: T) -> Located<T> {
        Located { value, span: self.span }
    }

    /// The fault "name: read TEXT, expected ...".
    pub(super) fn unexpected(&self, expected: impl Display) -> Fault {
        // Such a text may be a megabyte long.
        let head: String = self.text.chars().take(40).collect();
        let mut shown = on_one_line(&head);
        if self.text.chars().nth(40).is_some() {
            shown.push_str("...");
        }
        fault(self.span.start, format!("{}: read \"{shown}\", expected {expected}", self.name))
    }
}

/// Whether an element has this name and no namespace. Metadata of other programs may use the same
/// names in namespaces of their own.
pub(super) fn is_named(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
}

pub(super) fn children<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| is_named(*child, name))
}

/// The elements with this name in all sections of one name. libvirt reads `./cputune/vcpupin` from
/// a second `<cputune>`, too.
pub(super) fn in_sections<'a, 'input>(
    node: Node<'a, 'input>,
    section: &'static str,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    children(node, section).flat_map(move |section| children(section, name))
}

/// The first child with this name. The schema allows only one, and libvirt reads the first.
pub(super) fn child<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> Option<Node<'a, 'input>> {
    children(node, name).next()
}

/// The first element below `node` along these names.
pub(super) fn descend<'a, 'input>(
    node: Node<'a, 'input>,
    names: &[&'static str],
) -> Option<Node<'a, 'input>> {
    names.iter().try_fold(node, |node, name| child(node, name))
}

/// The span of an element's start tag. Only its start shows in messages, so the end is that of the
/// last attribute, or of the name.
pub(super) fn tag(node: Node<'_, '_>) -> Span {
    let start = node.range().start;
    let name_end = start + 1 + written_name(node).len();
    let end = node.attributes().map(|attribute| attribute.range().end).max().unwrap_or(name_end);
    Span { start, end: end.min(node.range().end) }
}

pub(super) fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Option<Value<'a>> {
    let attribute = node.attribute_node(name).filter(|it| it.namespace().is_none())?;
    Some(Value {
        text: attribute.value().into(),
        name: format!("{name}="),
        span: attribute.range_value().into(),
    })
}

/// The value of an attribute that is as good as absent where it is empty
/// (`virXPathString`, `src/util/virxml.c`).
pub(super) fn filled<'a>(node: Node<'a, '_>, name: &str) -> Option<Value<'a>> {
    attribute(node, name).filter(|value| !value.text.is_empty())
}

/// The first child with this name, if it has text: an empty one is as good as absent.
pub(super) fn filled_child<'a, 'input>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> Option<Node<'a, 'input>> {
    child(node, name).filter(|child| has_text(*child))
}

pub(super) fn has_text(node: Node<'_, '_>) -> bool {
    node.children().any(|child| child.text().is_some_and(|it| child.is_text() && !it.is_empty()))
}

pub(super) fn required<'a>(node: Node<'a, '_>, name: &str) -> Read<Value<'a>> {
    attribute(node, name).ok_or_else(|| {
        let element = node.tag_name().name();
        fault(node.range().start, format!("<{element}> has no {name}=, which it needs"))
    })
}

/// The text of an element without the blanks in front; comments in it do not count. Blanks behind
/// a number are a fault.
pub(super) fn text_of<'a>(node: Node<'a, '_>) -> Value<'a> {
    let texts: Vec<_> = node.children().filter(|child| child.is_text()).collect();
    let name = format!("<{}>", node.tag_name().name());
    match texts.as_slice() {
        [only] => {
            let whole = only.text().unwrap_or_default();
            let text = whole.trim_start_matches(is_blank);
            // Blanks are the same bytes in the source unless they are character references.
            let blanks = whole.len() - text.len();
            let Span { start, end } = only.range().into();
            let start = (start + blanks).min(end);
            let span = Span { start, end: (start + text.len()).min(end) };
            Value { text: text.into(), name, span }
        }
        texts => {
            let text: String = texts.iter().filter_map(roxmltree::Node::text).collect();
            let text = text.trim_start_matches(is_blank).to_owned().into();
            Value { text, name, span: tag(node) }
        }
    }
}

/// The blanks of `isspace` in C's locale, as far as XML can have them.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// A number's digits as `strtoul` finds them: blanks and a plus sign may stand in front, nothing
/// behind (`virStrToLong_uip`, `src/util/virstring.c`).
pub(super) fn digits(text: &str) -> &str {
    let text = text.trim_start_matches(is_blank);
    text.strip_prefix('+').unwrap_or(text)
}

/// A whole number within `range`.
pub(super) fn number<T>(value: Value<'_>, range: RangeInclusive<T>) -> Read<Located<T>>
where
    T: FromStr + PartialOrd + Display,
{
    let text = digits(&value.text);
    let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|number| are_digits && range.contains(number)) {
        Some(number) => Ok(value.located(number)),
        None => {
            let (low, high) = (range.start(), range.end());
            Err(value.unexpected(format_args!("a whole number from {low} to {high}")))
        }
    }
}

/// The number of a thing of the guest.
pub(super) fn id<T: Id>(value: Value<'_>) -> Read<Located<T>> {
    let Located { value, span } = number(value, 0..=list::MAX_NUMBER)?;
    Ok(Located { value: T::new(value), span })
}

/// One of some words.
pub(super) fn word<T: Copy>(value: Value<'_>, words: &[(&str, T)]) -> Read<Located<T>> {
    match words.iter().find(|(word, _)| *word == value.text) {
        Some(&(_, meaning)) => Ok(value.located(meaning)),
        None => {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            Err(value.unexpected(known.join(", ")))
        }
    }
}

pub(super) const YES_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];

/// `memAccess=` and `<access mode=...>`.
pub(super) const SHARED: [(&str, bool); 2] = [("shared", true), ("private", false)];

/// A list that names at least one number.
pub(super) fn list<T: Id>(value: Value<'_>) -> Read<Located<IdSet<T>>> {
    let all = list_or_none(value.clone())?;
    match all.value.is_empty() {
        true => Err(fault(all.span.start, format!("{} names no {}", value.name, T::WHAT))),
        false => Ok(all),
    }
}

/// A list that may take away all numbers that it names, as `^0` does.
pub(super) fn list_or_none<T: Id>(value: Value<'_>) -> Read<Located<IdSet<T>>> {
    match list::parse(&value.text) {
        Ok(set) => Ok(value.located(set)),
        Err((offset, problem)) => {
            let Span { start, end } = value.span;
            // Character references make the source longer than the value.
            let at = if end - start == value.text.len() { start + offset } else { start };
            Err(fault(at, format!("{} {problem}", value.name)))
        }
    }
}

/// A size of memory in bytes. Without a unit, or with an empty one, libvirt counts KiB.
pub(super) fn size(value: Value<'_>, unit: Option<Value<'_>>) -> Read<Located<u64>> {
    let unit_bytes = match unit.filter(|unit| !unit.text.is_empty()) {
        None => 1024,
        Some(unit) => unit_bytes(&unit.text)
            .ok_or_else(|| unit.unexpected("a unit such as KiB, MiB or GiB"))?,
    };
    let Located { value: count, span } = number(value.clone(), 0..=u64::MAX)?;
    match count.checked_mul(unit_bytes).filter(|bytes| i64::try_from(*bytes).is_ok()) {
        Some(value) => Ok(Located { value, span }),
        None => Err(value.unexpected("less than 8 EiB")),
    }
}

/// The text of an element as a size; its attribute `unit` applies.
pub(super) fn size_of(node: Node<'_, '_>) -> Read<Located<u64>> {
    size(text_of(node), attribute(node, "unit"))
}

/// Refuses a number that was stated before.
pub(super) fn once<T: Id + Ord>(
    seen: &mut BTreeSet<T>,
    id: &Located<T>,
    element: &str,
) -> Read<()> {
    match seen.insert(id.value) {
        true => Ok(()),
        false => {
            let what = T::WHAT;
            let problem = format!("{what} {} has more than one {element}, expected one", id.value);
            Err(fault(id.span.start, problem))
        }
    }
}
