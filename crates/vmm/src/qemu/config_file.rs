//! Files of `-readconfig` (QEMU, `util/qemu-config.c`: `qemu_config_foreach`).

use crate::grammar::Keys;

/// A section: the options of a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// The line that begins it.
    pub(super) line: usize,
    /// Its name as written, `device "disk"`.
    pub(super) name: String,
    pub(super) group: String,
    pub(super) keys: Keys,
}

impl Section {
    /// The option of the command line that states the same; none if it is not about memory, vCPUs,
    /// cells or their monitor.
    pub(super) fn option(&self) -> Option<&'static str> {
        Some(match self.group.as_str() {
            "chardev" => "chardev",
            "device" => "device",
            "machine" => "machine",
            "memory" => "m",
            "mon" => "mon",
            "name" => "name",
            "numa" => "numa",
            "object" => "object",
            "overcommit" => "overcommit",
            "smp-opts" => "smp",
            _ => return None,
        })
    }
}

/// Reads the sections of a file.
pub(super) fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let fault = |why: &str| format!("line {number} ({line:?}): {why}");
        let words = line.trim();
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        if let Some(rest) = words.strip_prefix('[') {
            let name = rest.strip_suffix(']').ok_or_else(|| fault("expected [GROUP \"ID\"]"))?;
            sections.push(section(number, name));
            continue;
        }
        let pair = words.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let quoted = |value: &str| {
            let inner = value.strip_prefix('"')?.strip_suffix('"')?;
            (!inner.contains('"')).then(|| inner.to_owned())
        };
        let pair = pair.and_then(|(key, value)| Some((key.to_owned(), quoted(value)?)));
        let pair = pair.ok_or_else(|| fault("expected KEY = \"VALUE\""))?;
        let last = sections.last_mut().ok_or_else(|| fault("expected a section before it"))?;
        last.keys.0.push(pair);
    }
    Ok(sections)
}

fn section(line: usize, name: &str) -> Section {
    let (group, id) = match name.split_once(char::is_whitespace) {
        Some((group, id)) => (group, Some(id.trim().trim_matches('"'))),
        None => (name, None),
    };
    let keys = id.map(|id| ("id".to_owned(), id.to_owned()));
    let keys = Keys(keys.into_iter().collect());
    Section { line, name: name.into(), group: group.into(), keys }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_groups_names_and_values() {
        let text = "# made by hand\n\n[device \"ehci\"]\n  driver = \"ich9-usb-ehci1\"\n\
                    \tbus=\"pcie.0\"\n[machine]\n  kernel = \"\"\n";
        let read = sections(text).unwrap();
        let groups: Vec<_> = read.iter().map(|it| (it.line, it.group.as_str())).collect();
        assert_eq!(groups, [(3, "device"), (6, "machine")]);
        let device = &read[0].keys;
        let values = ["id", "driver", "bus"].map(|key| device.get(key).unwrap());
        assert_eq!(values, ["ehci", "ich9-usb-ehci1", "pcie.0"]);
        assert_eq!(read[1].keys.get("kernel"), Some(""));
    }

    #[test]
    fn a_fault_has_its_line() {
        for (text, why) in [
            ("driver = \"a\"", "line 1 (\"driver = \\\"a\\\"\"): expected a section before it"),
            ("[a]\nb = c", "line 2 (\"b = c\"): expected KEY = \"VALUE\""),
            ("[a]\nb = \"c\" d = \"e\"", "expected KEY"),
            ("[a", "line 1 (\"[a\"): expected [GROUP \"ID\"]"),
        ] {
            let error = sections(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
