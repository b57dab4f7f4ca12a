//! `nearside lint`: contradictions and traps in the XML of a libvirt domain.

use crate::{
    failure::{Failure, Outcome},
    output,
    source::TopologySource,
    vm::file::DomainFile,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nearside_libvirt::{Rule, lint, render};
use std::path::PathBuf;

/// Find contradictions and NUMA traps in the XML of a libvirt domain
///
/// Without a topology source only the XML itself is checked. docs/lint.md has the rules.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside lint vm.xml
  nearside lint vm.xml --sysfs /                      against this host, too
  virsh dumpxml vm | nearside lint - --sysfs /
  nearside lint vm.xml --format sarif > vm.sarif
  nearside lint vm.xml --allow cells-without-memnode

Exit codes:
  0  no findings
  1  findings, or the file cannot be read
  2  invalid command line")]
pub(crate) struct Args {
    /// File with the domain's XML (1 MiB at most); - is standard input
    file: PathBuf,

    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Leave this rule out (repeatable)
    #[arg(long, value_name = "RULE", value_parser = rules(), hide_possible_values = true)]
    allow: Vec<Rule>,

    #[command(flatten)]
    source: TopologySource,
}

/// The output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A paragraph for each finding
    Text,
    /// JSON for programs (docs/formats.md)
    Json,
    /// SARIF 2.1.0 for code hosts and editors
    Sarif,
}

fn rules() -> impl TypedValueParser<Value = Rule> {
    let names = Rule::ALL.iter().map(|rule| rule.name());
    PossibleValuesParser::new(names).try_map(|name| {
        let rule = Rule::ALL.iter().find(|rule| rule.name() == name);
        rule.copied().ok_or_else(|| format!("there is no rule {name}"))
    })
}

pub(crate) fn run(args: &Args) -> Outcome {
    let DomainFile { name, domain } = DomainFile::read(&args.file)?;
    let host = match args.source.is_this_host() {
        true => None,
        false => {
            let (topology, notes) = args.source.read_with_notes()?;
            output::note(notes);
            Some(topology)
        }
    };
    let mut findings = lint(&domain, host.as_ref());
    findings.retain(|finding| !args.allow.contains(&finding.rule));
    if host.is_none() && args.format == Format::Text {
        output::note(["rules about the host are left out; --sysfs / applies them to this one"]);
    }
    let report = match args.format {
        Format::Text => Ok(render::text(&name, &findings)),
        Format::Json => render::json(&name, &findings),
        Format::Sarif => render::sarif(&name, &findings),
    };
    output::print(&report.map_err(|error| Failure::could_not(format_args!("JSON: {error}")))?)?;
    match findings.len() {
        0 => Ok(()),
        1 => Err(Failure::could_not(format_args!("{name}: 1 finding"))),
        count => Err(Failure::could_not(format_args!("{name}: {count} findings"))),
    }
}
