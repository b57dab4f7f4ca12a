//! `nearside export`: the intent of a virtual machine, to place it on another machine.

use crate::{
    failure::Outcome,
    output,
    source::TopologySource,
    vm::{file::DomainFile, request::request, shape::intent},
};
use std::path::PathBuf;

/// Print the sizes and the shape of a libvirt domain as JSON, to place it on another machine
///
/// The shape is that of its bindings (`<numatune>`): nodes a cell, shared nodes, distances.
/// `nearside place --intent` reads it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside export vm.xml > vm.json                    on the host that it runs on
  nearside place --intent vm.json                     on another one
  virsh dumpxml vm | nearside export -

Exit codes:
  0  done
  1  the file or the machine cannot be read
  2  invalid command line")]
pub(crate) struct Args {
    /// File with the domain's XML (1 MiB at most); - is standard input
    file: PathBuf,

    #[command(flatten)]
    source: TopologySource,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let file = DomainFile::read(&args.file)?;
    let (host, notes) = args.source.read_with_notes()?;
    output::note(notes);
    let request = request(&file.domain, None, None, &host);
    output::note(request.notes.iter().map(|note| format!("{}: {note}", file.name)));
    output::print(&output::json(&intent(&file.domain, &request, &host))?)
}
