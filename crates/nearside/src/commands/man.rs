//! `nearside man`: manual pages, made from the texts of `--help`.

use crate::failure::{Failure, Outcome};
use clap::{Command, CommandFactory};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};
use std::{fs, io, path::PathBuf};

/// Write the manual pages into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside man /usr/local/share/man/man1
  nearside man . && man ./nearside-run.1")]
pub(crate) struct Args {
    /// The folder; it must exist
    folder: PathBuf,
}

pub(crate) fn run<C: CommandFactory>(args: &Args) -> Outcome {
    let failed = |path: PathBuf| {
        move |error| Failure::could_not(format_args!("{}: {error}", path.display()))
    };
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    for command in with_subcommands(&command) {
        let path =
            args.folder.join(format!("{}.1", command.get_display_name().unwrap_or("nearside")));
        page(command).and_then(|page| fs::write(&path, page)).map_err(failed(path))?;
    }
    Ok(())
}

/// A command and all below it, without hidden ones.
fn with_subcommands(command: &Command) -> Vec<&Command> {
    let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
    std::iter::once(command).chain(visible.flat_map(with_subcommands)).collect()
}

/// The manual page of one command. The parts after its help (`Examples:` and so on) become
/// sections.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .source(concat!("nearside ", env!("CARGO_PKG_VERSION")))
        .manual("Nearside");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let usage = command.clone().render_usage().to_string();
    section("SYNOPSIS", [usage.trim_start_matches("Usage: ")]).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for part in behind.split("\n\n").filter(|part| !part.is_empty()) {
        let (title, lines) = part.split_once(":\n").unwrap_or(("NOTES", part));
        section(
            &title.to_uppercase(),
            lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)),
        )
        .to_writer(&mut page)?;
    }
    if !command.has_subcommands() {
        section("SEE ALSO", ["nearside(1)"]).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Lines without filling.
fn section<'a>(title: &str, lines: impl IntoIterator<Item = &'a str>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]).control("nf", []);
    for line in lines {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_commands_have_pages_and_hidden_ones_have_none() {
        let sub = Command::new("replicate").subcommand(Command::new("add"));
        let hidden = Command::new("internal").hide(true);
        let mut command = Command::new("nearside").subcommand(sub).subcommand(hidden);
        command = command.disable_help_subcommand(true);
        command.build();
        let names = with_subcommands(&command).into_iter().map(Command::get_display_name);
        let names: Vec<_> = names.map(Option::unwrap_or_default).collect();
        assert_eq!(names, ["", "nearside-replicate", "nearside-replicate-add"]);
    }

    #[test]
    fn a_page_has_the_sections_of_the_help() {
        let command = Command::new("run")
            .about("Runs")
            .after_help("Examples:\n  run -x\n\nExit codes:\n  0  fine");
        let page = String::from_utf8(page(&command).unwrap()).unwrap();
        for expected in [
            ".SH SYNOPSIS\n.nf\nrun\n.fi\n",
            ".SH EXAMPLES\n.nf\nrun \\-x\n",
            ".SH \"EXIT CODES\"\n.nf\n0  fine\n",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }
}
