//! The XML of a domain from a file, standard input or libvirt.

use crate::{domains, failure::Failure, printable::printable};
use nearside_libvirt::{Domain, Finding};
use nearside_topology::bounded_file;
use std::{
    io::{self, Read},
    path::Path,
};

/// A file is read beyond the bound of a domain, so that the message has the place of the bound.
const MAX_READ_BYTES: u64 = 16 << 20;

/// A domain and the name of its file for messages.
pub(crate) struct DomainFile {
    pub(crate) name: String,
    pub(crate) domain: Domain,
}

impl DomainFile {
    /// Reads the domain at `path`; `-` is standard input.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let name = printable(&path.display().to_string());
        let bytes = read(path)
            .map_err(|error| Failure::could_not(format_args!("cannot read {name}: {error}")))?;
        let domain = Domain::from_bytes(&bytes)
            .map_err(|error| Failure::could_not(format_args!("{name}: {error}")))?;
        Ok(Self { name, domain })
    }

    /// Reads the file with this name or, if there is none, the domain that runs on this host: by
    /// its name in libvirt, or by the path of its cgroup (`nearside list`).
    pub(crate) fn read_or_running(name: &Path) -> Result<Self, Failure> {
        if name == Path::new("-") || name.exists() {
            return Self::read(name);
        }
        let shown = printable(&name.display().to_string());
        let domain = running(name).map_err(|why| {
            Failure::could_not(format_args!("there is no file {shown}, and no such domain: {why}"))
        })?;
        Ok(Self { name: shown, domain })
    }

    /// The findings, one a line; those of one rule are counted after ten.
    pub(crate) fn lines(&self, findings: &[Finding]) -> Vec<String> {
        let first = Finding::first_of_each_rule(findings).into_iter();
        let lines = first.flat_map(|(finding, left_out)| {
            let more = Finding::more_of_this_rule(left_out);
            [Some(self.line(finding)), more.map(|more| format!("{more} [{}]", finding.rule))]
        });
        lines.flatten().collect()
    }

    /// A finding in one line: `FILE:LINE:COLUMN: message`.
    fn line(&self, finding: &Finding) -> String {
        let (start, rule) = (finding.start, finding.rule);
        format!("{}:{}:{}: {} [{rule}]", self.name, start.line, start.column, finding.message)
    }
}

fn running(name: &Path) -> Result<Domain, String> {
    let name = &*domains::name_given(name.into());
    let host = domains::open_host().map_err(|failure| failure.message().to_owned())?;
    if !name.starts_with('/') {
        return host.libvirt_domain_named(name);
    }
    let (group, _) = domains::find(&host, name).map_err(|failure| failure.message().to_owned())?;
    host.libvirt_domain(&group)
}

/// All bytes of a regular file or of standard input, up to a bound.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return Ok(bounded_file::read(path, MAX_READ_BYTES)?);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_READ_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_READ_BYTES {
        true => Err(bounded_file::Error::TooLarge { max_bytes: MAX_READ_BYTES }.into()),
        false => Ok(bytes),
    }
}
