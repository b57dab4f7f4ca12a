//! `nearside export`: the intent of a virtual machine, to place it on another machine.

use crate::{
    failure::Outcome,
    output,
    source::TopologySource,
    vm::{file::DomainFile, request::request, shape::exported},
};
use std::path::PathBuf;

/// Print the sizes and the shape of a libvirt domain as JSON, to place it on another machine
///
/// The shape is that of its bindings (`<numatune>`): nodes a cell, shared nodes, distances. If
/// Nearside wrote them, it is the shape that `place --libvirt` chose, also where a migration has
/// cost a part of it. `nearside place --intent` reads it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside export vm > vm.json                        a domain that libvirt runs on this host
  nearside export vm.xml > vm.json                    on the host that the file is for
  nearside place --intent vm.json                     on another one
  virsh dumpxml vm | nearside export -

Exit codes:
  0  done
  1  the file, the domain or the machine cannot be read
  2  invalid command line")]
pub(crate) struct Args {
    /// File with the domain's XML (1 MiB at most); - is standard input. If there is no such file,
    /// the running domain of this name, or of the cgroup with this path
    #[arg(value_name = "DOMAIN")]
    domain: PathBuf,

    #[command(flatten)]
    source: TopologySource,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let file = DomainFile::read_or_running(&args.domain)?;
    let (host, notes) = args.source.read_with_notes()?;
    output::note(notes);
    let request = request(&file.domain, None, None, &host);
    output::note(request.notes.iter().map(|note| format!("{}: {note}", file.name)));
    output::print(&output::json(&exported(&file.domain, &request, &host))?)
}
