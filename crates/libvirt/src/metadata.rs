//! Nearside's element in a domain's `<metadata>`: the intent, and the values that Nearside wrote
//! (docs/adr/0017-migration.md).

mod written;

use crate::{
    complete::{Edit, Element, Layout, apply, layout},
    domain::Domain,
    elements::{is_blank, is_own, removal},
    intent::{Intent, IntentError},
    position::Span,
};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};
pub(crate) use written::SECTIONS;
pub use written::Written;

/// The namespace of the element. libvirt keeps one element of each namespace.
pub const NAMESPACE: &str = "urn:nearside:libvirt";

/// The element's name, with the prefix that Nearside declares in it.
const ELEMENT: &str = "nearside:domain";
const LOCAL_NAME: &str = "domain";

/// The content of the element, as JSON (`docs/formats.md` describes the keys).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// The intent at the time when the domain was placed. A migration keeps it.
    pub intent: Intent,
    /// The values of the XML that are Nearside's own.
    pub wrote: Written,
}

impl Metadata {
    /// The metadata in a domain's XML; none if Nearside has written none.
    ///
    /// # Errors
    /// If the element's text is no intent, or one of another version.
    pub fn of(domain: &Domain) -> Result<Option<Self>, IntentError> {
        let Ok(document) = Document::parse(domain.text()) else { return Ok(None) };
        let Some(element) = element(&document) else { return Ok(None) };
        let texts = element.children().filter(Node::is_text).filter_map(|it| it.text());
        let json: String = texts.collect();
        let metadata: Self = serde_json::from_str(&json)?;
        metadata.intent.check()?;
        Ok(Some(metadata))
    }

    /// The text of `domain` with this metadata, in place of earlier metadata.
    ///
    /// # Errors
    /// If the metadata cannot be written as JSON.
    pub fn write_to(&self, domain: &Domain) -> Result<String, IntentError> {
        let json = serde_json::to_string(self)?;
        let text = domain.text();
        let Ok(document) = Document::parse(text) else { return Ok(text.into()) };
        let new = Element::with_text(ELEMENT, [("xmlns:nearside", NAMESPACE.into())], plain(&json));
        let edits = match element(&document) {
            Some(old) => {
                let Span { start, end } = old.range().into();
                vec![Edit { start, end, text: new.written("", "", layout::quote(text)) }]
            }
            None => {
                Layout::new(text, document.root_element()).add_to_section("metadata", vec![new])
            }
        };
        Ok(apply(text, edits))
    }

    /// The text of `domain` without the metadata.
    pub fn remove_from(domain: &Domain) -> String {
        let text = domain.text();
        let Ok(document) = Document::parse(text) else { return text.into() };
        let Some(element) = element(&document) else { return text.into() };
        let section = element
            .parent()
            .filter(|section| section.children().all(|it| it == element || is_blank(it)));
        apply(text, vec![removal(text, section.unwrap_or(element))])
    }
}

/// Nearside's element.
fn element<'a, 'input>(document: &'a Document<'input>) -> Option<Node<'a, 'input>> {
    let mut sections = document.root_element().children().filter(|it| is_own(*it, "metadata"));
    let name = (NAMESPACE, LOCAL_NAME);
    sections.next()?.children().find(|it| it.is_element() && it.has_tag_name(name))
}

/// JSON without characters that XML would have to escape. They occur in its strings alone.
fn plain(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' => plain += &format!("\\u{:04x}", u32::from(c)),
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests;
