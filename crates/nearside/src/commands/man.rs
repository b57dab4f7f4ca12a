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
    for (command, codes) in with_subcommands(&command, None) {
        let path =
            args.folder.join(format!("{}.1", command.get_display_name().unwrap_or("nearside")));
        page(command, codes.as_deref())
            .and_then(|page| fs::write(&path, page))
            .map_err(failed(path))?;
    }
    Ok(())
}

/// A command and all below it, without hidden ones, each with its exit codes. One that tells none
/// has those of the command above it.
fn with_subcommands(command: &Command, above: Option<String>) -> Vec<(&Command, Option<String>)> {
    let codes = parts(command).into_iter().find(|part| part.starts_with(CODES)).or(above);
    let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
    let below = visible.flat_map(|it| with_subcommands(it, codes.clone())).collect::<Vec<_>>();
    std::iter::once((command, codes)).chain(below).collect()
}

/// The first line of the part about exit codes.
const CODES: &str = "Exit codes:\n";

/// The parts after the help of a command, such as its examples.
fn parts(command: &Command) -> Vec<String> {
    let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    behind.split("\n\n").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The manual page of one command. The parts after its help (`Examples:` and so on) become
/// sections.
fn page(command: &Command, codes: Option<&str>) -> io::Result<Vec<u8>> {
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
    let own = parts(command);
    let own = own.iter().map(String::as_str).filter(|part| !part.starts_with(CODES));
    for part in own.chain(codes) {
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
        let pages = with_subcommands(&command, None).into_iter();
        let names: Vec<_> =
            pages.map(|(it, _)| it.get_display_name().unwrap_or_default()).collect();
        assert_eq!(names, ["", "nearside-replicate", "nearside-replicate-add"]);
    }

    #[test]
    fn a_command_without_exit_codes_has_those_of_the_command_above_it() {
        let sub = Command::new("replicate")
            .after_help("Examples:\n  add x\n\nExit codes:\n  3  partly")
            .subcommand(Command::new("add"));
        let mut command = Command::new("nearside")
            .after_help("Exit codes:\n  0  done")
            .subcommands([sub, Command::new("list")]);
        command = command.disable_help_subcommand(true);
        command.build();
        let codes: Vec<_> =
            with_subcommands(&command, None).into_iter().map(|(_, codes)| codes.unwrap()).collect();
        let of = |line: &str| format!("{CODES}{line}");
        assert_eq!(codes, [of("  0  done"), of("  3  partly"), of("  3  partly"), of("  0  done")]);
    }

    #[test]
    fn a_page_has_the_sections_of_the_help() {
        let command = Command::new("run")
            .about("Runs")
            .after_help("Examples:\n  run -x\n\nExit codes:\n  0  fine");
        let codes = format!("{CODES}  0  fine");
        let page = String::from_utf8(page(&command, Some(&codes)).unwrap()).unwrap();
        for expected in [
            ".SH SYNOPSIS\n.nf\nrun\n.fi\n",
            ".SH EXAMPLES\n.nf\nrun \\-x\n",
            ".SH \"EXIT CODES\"\n.nf\n0  fine\n",
        ] {
            assert_eq!(page.matches(expected).count(), 1, "{expected}\n{page}");
        }
    }
}
