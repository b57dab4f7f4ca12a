//! `nearside completions`: completion scripts for shells.

use crate::{failure::Outcome, output};
use clap::{Command, CommandFactory};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside completions bash > /etc/bash_completion.d/nearside
  nearside completions zsh > /usr/local/share/zsh/site-functions/_nearside
  nearside completions fish > ~/.config/fish/completions/nearside.fish
  source <(nearside completions bash)                      this shell only")]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(crate) fn run<C: CommandFactory>(args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(&C::command()), "nearside", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// A command and all below it, without the commands that Nearside itself calls.
fn visible(command: &Command) -> Command {
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set()).map(visible);
    let shown = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments())
        .subcommands(commands);
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_commands_are_not_offered() {
        let hidden = Command::new("internal").hide(true);
        let arg = clap::Arg::new("verbose").long("verbose");
        let shown = Command::new("set").about("Sets").arg(arg);
        let visible = visible(&Command::new("nearside").version("1").subcommands([hidden, shown]));
        let commands: Vec<_> = visible.get_subcommands().map(Command::get_name).collect();
        assert_eq!((commands, visible.get_version()), (vec!["set"], Some("1")));
        let arguments = visible.get_subcommands().flat_map(Command::get_arguments);
        assert_eq!(arguments.map(|it| it.get_id().as_str()).collect::<Vec<_>>(), ["verbose"]);
    }
}
