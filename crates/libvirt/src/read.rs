//! The reader: domain XML in, [`Domain`] out.
//!
//! Elements that have nothing to do with NUMA are skipped unread. Values that libvirt's own parser
//! refuses are errors; settings that contradict each other are findings of
//! [`lint()`](crate::lint()).

mod cpu;
mod devices;
mod numatune;
mod xml;

use crate::{
    domain::{Domain, MaxMemory},
    elements::written_name,
    position::{Lines, Position, on_one_line},
};
use roxmltree::{Document, ParsingOptions};
use xml::{
    Fault, Read, attribute, child, fault, filled, filled_child, number, size_of, tag, text_of,
};

/// A longer text is refused. libvirt's own bound for a domain over its RPC is 4 MiB
/// (`REMOTE_STRING_MAX`); a domain has a few thousand bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// A text that is no domain: the first fault, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {problem}")]
pub struct ReadError {
    /// The place of the fault.
    pub position: Position,
    /// The value read and the value expected.
    pub problem: String,
}

impl Domain {
    /// Reads the XML of a domain.
    ///
    /// # Errors
    /// If the text is longer than [`MAX_BYTES`], is not well-formed, has a document type or
    /// entities, is no `<domain>`, or has a value that libvirt refuses.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        let lines = Lines::of(text);
        read(text, lines.clone()).map_err(|Fault { at, problem }| ReadError {
            position: lines.position(text, at),
            problem,
        })
    }

    /// The same for bytes that should be UTF-8.
    ///
    /// # Errors
    /// As [`Domain::read`], and if the bytes are not UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error)).and_then(Self::read)
    }
}

fn not_utf8(bytes: &[u8], error: std::str::Utf8Error) -> ReadError {
    let valid = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
    let position = Lines::of(&valid).position(&valid, valid.len());
    let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
    ReadError { position, problem: format!("read the byte {byte:#04x}, expected UTF-8") }
}

fn read(text: &str, lines: Lines) -> Read<Domain> {
    if text.len() > MAX_BYTES {
        let problem = format!("the text has {} bytes, expected at most {MAX_BYTES}", text.len());
        return Err(fault(MAX_BYTES, problem));
    }
    if let Some(at) = too_many_attributes(text) {
        return Err(fault(at, format!("an element has more than {MAX_ATTRIBUTES} attributes")));
    }
    if let Some((at, _)) = text.match_indices("xmlns").nth(MAX_NAMESPACES) {
        return Err(fault(at, format!("the text has more than {MAX_NAMESPACES} namespaces")));
    }
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| not_well_formed(text, &error))?;
    let root = document.root_element();
    // libvirt compares the root's name without its prefix. The elements in it need to have none.
    if root.tag_name().name() != "domain" || root.default_namespace().is_some() {
        let name = written_name(root);
        let problem = format!("read <{name}>, expected <domain> without a namespace of its own");
        return Err(fault(root.range().start, problem));
    }
    let memory = filled_child(root, "memory").map(size_of).transpose()?;
    let current_memory = filled_child(root, "currentMemory").map(size_of).transpose()?;
    let devices = child(root, "devices");
    let vcpus = cpu::vcpus(root)?;
    Ok(Domain {
        span: tag(root),
        kind: attribute(root, "type").map(xml::Value::owned),
        name: child(root, "name").map(|name| text_of(name).trimmed()),
        architecture: child(root, "os")
            .and_then(|os| attribute(child(os, "type")?, "arch"))
            .map(xml::Value::owned),
        memory,
        current_memory,
        max_memory: max_memory(root)?,
        cpu_topology: cpu::topology(root)?,
        cells: cpu::cells(root)?,
        backing: numatune::backing(root)?,
        numatune: numatune::numatune(root)?,
        pins: cpu::pins(root, &vcpus)?,
        vcpus,
        iothreads: cpu::iothreads(root, devices)?,
        host_devices: devices.map(devices::host_devices).transpose()?.unwrap_or_default(),
        memory_devices: devices.map(devices::memory_devices).transpose()?.unwrap_or_default(),
        shared_memory: devices.map(devices::shared_memory).unwrap_or_default(),
        controller_cells: devices.map(devices::controller_cells).transpose()?.unwrap_or_default(),
        memory_sharers: devices.map(devices::memory_sharers).unwrap_or_default(),
        launch_security: child(root, "launchSecurity")
            .and_then(|security| attribute(security, "type"))
            .map(xml::Value::owned),
        text: text.to_owned(),
        lines,
    })
}

/// The most attributes of an element. libvirt knows some twenty of one element; the parser compares
/// each with all others.
const MAX_ATTRIBUTES: usize = 256;

/// The most declarations of namespaces. A domain has a few: one for `<qemu:commandline>`, and one
/// for each program with metadata. Each element that declares one costs the parser the square of
/// those around it.
const MAX_NAMESPACES: usize = 256;

/// Where an element with too many attributes begins. Every attribute has an equals sign with a
/// quote after it.
fn too_many_attributes(text: &str) -> Option<usize> {
    let mut at = 0;
    for element in text.split_inclusive('<') {
        let signs = element.match_indices('=').filter(|(sign, _)| {
            let after = element.get(sign + 1..).unwrap_or_default();
            after.trim_start().starts_with(['"', '\''])
        });
        if signs.take(MAX_ATTRIBUTES + 1).count() > MAX_ATTRIBUTES {
            return Some(at);
        }
        at += element.len();
    }
    None
}

/// The parser's error, with a byte in place of its row and column.
fn not_well_formed(text: &str, error: &roxmltree::Error) -> Fault {
    let place = error.pos();
    let line_start = match place.row {
        0 | 1 => 0,
        row => {
            let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
            ends.map(|(at, _)| at + 1).nth(row as usize - 2).unwrap_or(text.len())
        }
    };
    let line = text.get(line_start..).unwrap_or_default();
    let column = (place.col as usize).saturating_sub(1);
    let at = line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
    let problem = match error {
        roxmltree::Error::DtdDetected => {
            "a document type or entities are not accepted; remove <!DOCTYPE ...>".into()
        }
        error => {
            let message = error.to_string();
            let place = format!(" at {place}");
            let message = message.strip_suffix(&place).unwrap_or(&message);
            format!("not well-formed XML: {}", on_one_line(message))
        }
    };
    fault(line_start + at, problem)
}

/// A size and a number of slots, or neither (`virDomainDefPostParseMemory`,
/// `src/conf/domain_postparse.c`).
fn max_memory(root: xml::Node<'_, '_>) -> Read<Option<MaxMemory>> {
    let Some(element) = child(root, "maxMemory") else { return Ok(None) };
    let bytes = filled_child(root, "maxMemory").map(size_of).transpose()?;
    let bytes = bytes.filter(|bytes| bytes.value > 0);
    let slots = filled(element, "slots").map(|slots| number(slots, 0..=u32::MAX));
    match (bytes, slots.transpose()?.filter(|slots| slots.value > 0)) {
        (Some(bytes), slots @ Some(_)) => Ok(Some(MaxMemory { bytes, slots })),
        (None, None) => Ok(None),
        _ => Err(fault(element.range().start, "<maxMemory> needs a size and slots=, both above 0")),
    }
}

#[cfg(test)]
mod tests;
