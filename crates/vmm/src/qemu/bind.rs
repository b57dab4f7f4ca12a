//! Binding the cells of a command line of QEMU.

use super::{backend::Backend, line::QemuLine};
use crate::{
    error::{CommandLineError, at},
    placement::{CellPlacement, Placement, Policy, mirrored},
};
use nearside_topology::NodeSet;
use std::collections::BTreeMap;

/// A value that is appended to an argument.
enum Value {
    Nodes(NodeSet),
    Text(String),
}

/// The command line with the backends of each cell bound to its place, and notes. Every cell with
/// memory has a backend.
pub(crate) fn bind(
    line: &QemuLine,
    placement: &Placement,
) -> Result<(Vec<String>, Vec<String>), CommandLineError> {
    let mut binder = Binder {
        line,
        policy: placement.policy,
        words: line.words.clone(),
        notes: Vec::new(),
        contexts: Vec::new(),
        users: BTreeMap::new(),
    };
    for (id, (cell, place)) in line.vm.cells.iter().zip(&placement.cells).enumerate() {
        if place.memory_nodes().is_empty() {
            continue;
        }
        if let Some((name, backend)) = line.backend_of(id) {
            binder.bind(id, place, name, backend)?;
        }
        for device in &cell.devices {
            let backend = line.backends.get_key_value(&device.backend);
            if let Some((name, backend)) = backend {
                binder.bind(id, place, name, backend)?;
            }
        }
    }
    let Binder { mut words, mut notes, contexts, .. } = binder;
    if !contexts.is_empty() {
        notes.push("thread-context, which preallocates on the home, needs QEMU 7.2".into());
    }
    let distances = mirrored(placement);
    if line.vm.distances.is_empty() && line.vm.states_cells {
        for ((from, to), val) in distances {
            words.extend(["-numa".into(), format!("dist,src={from},dst={to},val={val}")]);
        }
    } else if distances.iter().any(|(pair, val)| line.vm.distances.get(pair) != Some(val)) {
        notes.push("the guest's distances are not the host's; they stay as they are".into());
    }
    if !line.names_threads {
        words.extend(["-name".into(), "debug-threads=on".into()]);
    }
    // Objects are created in order, so contexts precede the backends that name them.
    words.splice(1..1, contexts);
    Ok((words, notes))
}

/// A command line while its backends are bound.
struct Binder<'a> {
    line: &'a QemuLine,
    policy: Policy,
    words: Vec<String>,
    notes: Vec<String>,
    /// The options that make a thread-context for cells.
    contexts: Vec<String>,
    /// The cell that uses a backend.
    users: BTreeMap<&'a str, usize>,
}

impl<'a> Binder<'a> {
    /// Binds a backend of cell `id` to its place.
    fn bind(
        &mut self,
        id: usize,
        place: &CellPlacement,
        name: &'a str,
        backend: &Backend,
    ) -> Result<(), CommandLineError> {
        let home = place.memory_nodes();
        if let Some(other) = self.users.insert(name, id) {
            let why = match other == id {
                true => format!("cell {id} has the memory backend {name} twice"),
                false => format!("cells {other} and {id} have the same memory backend, {name}"),
            };
            return Err(at(&self.line.words, backend.at, why));
        }
        let mut keys: Vec<(&str, Value)> = Vec::new();
        match &backend.host_nodes {
            None => {
                if let Some(note) = first_node_only(self.policy, &home, id) {
                    self.note(note);
                }
                keys.push(("host-nodes", Value::Nodes(home.clone())));
                keys.push(("policy", Value::Text(self.policy.to_string())));
            }
            Some(nodes) if nodes.is_subset(&home) => {}
            Some(nodes) => self.note(format!(
                "cell {id}: argument {} binds its memory to {}, and its home is {}",
                backend.at,
                nodes.named(),
                home.named()
            )),
        }
        if let Some(context) = self.context(id, place, backend)? {
            keys.push(("prealloc-context", Value::Text(context)));
        }
        if !keys.is_empty() {
            self.line.check_is_argument(backend.at, &format!("memory backend {name}"))?;
        }
        if let Some(text) = self.words.get_mut(backend.at) {
            extend(text, &keys);
        }
        Ok(())
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The thread-context that preallocates a backend of cell `id`, if one shall. A preallocating
    /// thread elsewhere would touch far memory, and -mem-prealloc is for all.
    fn context(
        &mut self,
        id: usize,
        place: &CellPlacement,
        backend: &Backend,
    ) -> Result<Option<String>, CommandLineError> {
        let preallocates = backend.preallocates || self.line.words.iter().any(|w| is_prealloc(w));
        let near = preallocating_nodes(place);
        if !preallocates || backend.has_context || near.is_empty() {
            return Ok(None);
        }
        let context = format!("nearside-tc{id}");
        if self.line.objects.contains(&context) {
            let why = format!("an object is named {context}: Nearside adds one of that name");
            return Err(CommandLineError::Whole(why));
        }
        let affinity = ranges(&near, "node-affinity");
        let object = format!("thread-context,id={context}{affinity}");
        if !self.contexts.contains(&object) {
            self.contexts.extend(["-object".into(), object]);
        }
        Ok(Some(context))
    }
}

fn is_prealloc(word: &str) -> bool {
    word == "-mem-prealloc" || word == "--mem-prealloc"
}

/// The nodes whose CPUs touch the memory of a cell first: its own, if vCPUs run there.
fn preallocating_nodes(place: &CellPlacement) -> NodeSet {
    let both = place.memory_nodes().intersection(&place.cpu_nodes);
    if both.is_empty() { place.cpu_nodes.clone() } else { both }
}

// QEMU, `backends/hostmem.c`: MPOL_PREFERRED_MANY came with version 8.0.
fn first_node_only(policy: Policy, home: &NodeSet, id: usize) -> Option<String> {
    (policy == Policy::Preferred && home.len() > 1).then(|| {
        format!("cell {id}: QEMU before 8.0 prefers only the first node of {}", home.named())
    })
}

/// QEMU takes one number or range for each occurrence of a key.
fn ranges(nodes: &NodeSet, key: &str) -> String {
    nodes.to_string().split(',').map(|range| format!(",{key}={range}")).collect()
}

/// Appends keys to an object, whose own text stays.
fn extend(text: &mut String, keys: &[(&str, Value)]) {
    if text.starts_with('{') {
        let end = text.trim_end().len();
        text.truncate(end.saturating_sub(1));
        for (key, value) in keys {
            *text += &match value {
                Value::Nodes(nodes) => {
                    let numbers: Vec<_> = nodes.iter().map(|node| node.to_string()).collect();
                    format!(",\"{key}\":[{}]", numbers.join(","))
                }
                Value::Text(word) => format!(",\"{key}\":\"{word}\""),
            };
        }
        text.push('}');
        return;
    }
    // An odd comma at the end would become a literal one.
    let commas = text.len() - text.trim_end_matches(',').len();
    if commas % 2 == 1 && !keys.is_empty() {
        text.pop();
    }
    for (key, value) in keys {
        *text += &match value {
            Value::Nodes(nodes) => ranges(nodes, key),
            Value::Text(word) => format!(",{key}={word}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preference_for_several_nodes_is_noted() {
        let note = |policy, nodes: &str| first_node_only(policy, &nodes.parse().unwrap(), 1);
        let expected = "cell 1: QEMU before 8.0 prefers only the first node of nodes 0-1";
        assert_eq!(note(Policy::Preferred, "0-1").as_deref(), Some(expected));
        assert_eq!(note(Policy::Preferred, "0"), None);
        assert_eq!(note(Policy::Bind, "0-1"), None);
    }
}
