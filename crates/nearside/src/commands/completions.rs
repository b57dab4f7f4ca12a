//! `nearside completions`: completion scripts for shells.

use crate::{failure::Outcome, output};
use clap::CommandFactory;

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
    clap_complete::generate(args.shell, &mut C::command(), "nearside", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
