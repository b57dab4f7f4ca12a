//! The texts that all commands share: help, usage errors, manual pages, completion.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use std::process::{Command, Output};

const COMMANDS: [&str; 16] = [
    "run",
    "exec",
    "set",
    "list",
    "show",
    "why",
    "stat",
    "top",
    "topology",
    "place",
    "lint",
    "numad",
    "simulate",
    "doctor",
    "completions",
    "man",
];

fn nearside(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(arguments)
        .env("COLUMNS", "80")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_command_has_help_with_examples_that_fits_80_columns() {
    for command in COMMANDS {
        for flag in ["-h", "--help"] {
            let output = nearside(&[command, flag]);
            let help = text(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{command}");
            assert!(
                help.contains("Usage: nearside ") && help.contains("\nExamples:\n  "),
                "{help}"
            );
            assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        }
    }
    let help = text(&nearside(&["help"]).stdout);
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn usage_errors_are_on_standard_error_and_begin_as_all_errors_do() {
    let cases: [(&[&str], i32, &str); 11] = [
        (&[], 2, "nearside: no command\n"),
        (
            &["docter"],
            2,
            "nearside: unrecognized subcommand 'docter'\n\n  tip: a similar subcommand exists: \
             'doctor'",
        ),
        (&["list", "--nods"], 2, "tip: a similar argument exists: '--nodes'"),
        (&["list", "--format", "xml"], 2, "[possible values: text, json]"),
        (&["run", "--", "true"], 125, "--memory <SIZE>"),
        // A flag before the command belongs to Nearside; it is not taken for the name of a command.
        (
            &["run", "--memory", "1M", "--polcy", "strict", "--", "true"],
            125,
            "similar argument exists: '--policy'",
        ),
        (&["run", "--memory", "-1", "--", "true"], 125, "invalid value '-1' for '--memory <SIZE>'"),
        (&["run", "--memory", "1M", "--", ""], 127, "nearside: \"\": command not found\n"),
        (
            &["run", "--memory", "1M", "--", "/"],
            126,
            "nearside: /: cannot be executed: it is a folder\n",
        ),
        (&["exec", "db", "--nosuch"], 125, "unexpected argument '--nosuch'"),
        (
            &["set", "db", "--nodes", "0", "--move-memory", "--rate", "0"],
            2,
            "invalid value '0' for '--rate <BYTES/S>'",
        ),
    ];
    for (arguments, code, expected) in cases {
        let output = nearside(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(
            message.starts_with("nearside: ") && message.contains(expected),
            "{arguments:?}: {message}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    assert!(nearside(&["man", folder.path().to_str().unwrap()]).status.success());
    for command in COMMANDS {
        let page =
            std::fs::read_to_string(folder.path().join(format!("nearside-{command}.1"))).unwrap();
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES", ".SH \"SEE ALSO\""] {
            assert!(page.contains(section), "{command}: {section}");
        }
    }
    assert!(folder.path().join("nearside.1").exists());
    let output = nearside(&["man", "/no/such/folder"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with("nearside: /no/such/folder"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn bash_loads_the_completion() {
    let binary = env!("CARGO_BIN_EXE_nearside");
    let script = format!(
        "source <({binary} completions bash) && COMP_WORDS=(nearside place --pol) COMP_CWORD=2 && \
         _nearside nearside --pol place && echo \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "--policy", "{}", text(&output.stderr));
}
