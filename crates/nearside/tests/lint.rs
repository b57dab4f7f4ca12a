//! `nearside lint` as an operator uses it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../topology/tests/common/mod.rs"]
mod common;

use serde_json::Value;
use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

const CLEAN: &str = "<domain type='kvm'>
  <memory unit='GiB'>4</memory>
  <vcpu>4</vcpu>
  <numatune>
    <memory mode='strict' nodeset='9'/>
  </numatune>
</domain>
";

const TWO_CELLS: &str = "<domain type='kvm'>
  <vcpu>4</vcpu>
  <cpu>
    <numa>
      <cell id='0' cpus='0-1' memory='4' unit='GiB'/>
      <cell id='1' cpus='2-3' memory='4' unit='GiB'/>
    </numa>
  </cpu>
</domain>
";

fn lint(xml: &[u8], flags: &[&str]) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(xml).unwrap();
    lint_file(file.path(), flags)
}

fn lint_file(path: &Path, flags: &[&str]) -> Output {
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"));
    nearside.arg("lint").arg(path).args(flags).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn code_is_0_without_and_1_with_findings() {
    let output = lint(CLEAN.as_bytes(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with(": no findings\n"));
    assert!(text(&output.stderr).contains("note: rules about the host are left out"));

    let output = lint(TWO_CELLS.as_bytes(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains(":5:7: warning: no <memnode> binds cells 0-1 [cells-without-memnode]"));
    assert!(report.contains("\n  why: ") && report.contains("\n  fix: "), "{report}");
    assert!(text(&output.stderr).ends_with(": 1 finding\n"), "{}", text(&output.stderr));
}

#[test]
fn rules_about_the_host_need_a_source() {
    let root = common::unpacked("two-sockets").unwrap();
    let output = lint(CLEAN.as_bytes(), &["--sysfs", root.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(":5:36: error: the host has no node 9;"));
}

#[test]
fn an_allowed_rule_is_left_out() {
    let output = lint(TWO_CELLS.as_bytes(), &["--allow", "cells-without-memnode"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = lint(TWO_CELLS.as_bytes(), &["--allow", "no-such-rule"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("invalid value 'no-such-rule'"));
}

#[test]
fn json_and_sarif_name_rule_and_place() {
    let parse = |output: Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let json = parse(lint(TWO_CELLS.as_bytes(), &["--format", "json"]));
    let finding = &json["findings"][0];
    assert_eq!(finding["rule"], "cells-without-memnode");
    assert_eq!((&finding["line"], &finding["column"]), (&5.into(), &7.into()));
    let sarif = parse(lint(TWO_CELLS.as_bytes(), &["--format", "sarif"]));
    assert_eq!(sarif["version"], "2.1.0");
    let run = &sarif["runs"][0];
    let result = &run["results"][0];
    assert_eq!(result["ruleId"], "cells-without-memnode");
    let index = result["ruleIndex"].as_u64().unwrap() as usize;
    assert_eq!(run["tool"]["driver"]["rules"][index]["id"], "cells-without-memnode");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 5);
}

#[test]
fn malformed_files_are_refused_with_line_and_column() {
    let long = format!("<domain>{}</domain>", " ".repeat(10 << 20));
    let cases: [(&[u8], &str); 5] = [
        (b"<domain>\n  <vcpu>x</vcpu>\n</domain>", "line 2, column 9: <vcpu>: read \"x\""),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><domain/>", "line 1, column 1: a document type"),
        (b"<domain>\n<\xff/></domain>", "line 2, column 2: read the byte 0xff, expected UTF-8"),
        (long.as_bytes(), "line 1, column 1048577: the text has 10485777 bytes"),
        (b"", "line 1, column 1: not well-formed XML"),
    ];
    for (xml, expected) in cases {
        let output = lint(xml, &[]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(expected), "{expected}: {message}");
        assert!(output.stdout.is_empty());
    }
    let output = lint_file(Path::new("/no/such.xml"), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("nearside: cannot read /no/such.xml: "));
}

#[test]
fn standard_input_is_read() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(["lint", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(TWO_CELLS.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with("-:5:7: warning: "));
}
