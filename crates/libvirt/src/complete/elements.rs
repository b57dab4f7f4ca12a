//! New elements, as text.

/// An element to add. Values are numbers, lists and words, so none needs escaping; nor does the
/// text.
#[derive(Debug, Clone)]
pub(crate) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Element>,
    text: String,
}

impl Element {
    pub(super) fn new<const N: usize>(
        name: &'static str,
        attributes: [(&'static str, String); N],
    ) -> Self {
        Self::with_text(name, attributes, String::new())
    }

    pub(crate) fn with_text<const N: usize>(
        name: &'static str,
        attributes: [(&'static str, String); N],
        text: String,
    ) -> Self {
        Self { name, attributes: attributes.into(), children: Vec::new(), text }
    }

    pub(super) fn with_children(name: &'static str, children: Vec<Self>) -> Self {
        Self { name, attributes: Vec::new(), children, text: String::new() }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The element's text. `line` begins each further line with the element's own indentation, and
    /// `step` is added for each level; both are empty in a text on one line.
    pub(crate) fn written(&self, line: &str, step: &str, quote: char) -> String {
        let mut text = format!("<{}", self.name);
        for (name, value) in &self.attributes {
            text += &format!(" {name}={quote}{value}{quote}");
        }
        if self.children.is_empty() && self.text.is_empty() {
            return text + "/>";
        }
        text.push('>');
        if !self.text.is_empty() {
            return text + &self.text + &format!("</{}>", self.name);
        }
        let inner = format!("{line}{step}");
        for child in &self.children {
            text += &inner;
            text += &child.written(&inner, step, quote);
        }
        text + line + &format!("</{}>", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_indented_by_a_step() {
        let sibling = Element::new("sibling", [("id", "0".into()), ("value", "10".into())]);
        let element = Element::with_children("distances", vec![sibling]);
        assert_eq!(
            element.written("\n  ", "\t", '"'),
            "<distances>\n  \t<sibling id=\"0\" value=\"10\"/>\n  </distances>"
        );
        assert_eq!(
            element.written("", "", '\''),
            "<distances><sibling id='0' value='10'/></distances>"
        );
    }
}
