//! libvirt's own schema accepts every valid domain of `domains/`, and every completion.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use nearside_libvirt::{Domain, complete};
use std::{
    io::Write,
    process::{Command, Output},
};

/// The answer of `virt-xml-validate` to a domain; none if the program is not installed.
fn validated(xml: &[u8]) -> Option<Output> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(xml).unwrap();
    match Command::new("virt-xml-validate").arg(file.path()).arg("domain").output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("virt-xml-validate: {error}"),
    }
}

#[test]
fn libvirts_schema_accepts_valid_domains_and_all_completions() {
    let mut count = 0;
    for (name, bytes) in common::domains() {
        // Contradictory domains are not completed in earnest, and Debian 12's schema is older than
        // some elements. libvirt reads some texts that its schema refuses.
        if ["bad-", "malformed-", "newer-", "loose-"].iter().any(|kind| name.starts_with(kind)) {
            continue;
        }
        let domain = Domain::from_bytes(&bytes).unwrap();
        let placement = common::placement(&name, &domain);
        let completed = complete(&domain, &placement);
        let placed = common::placed(&domain, &placement);
        let texts = [("as it is", &bytes[..]), ("completed", completed.as_bytes())];
        for (what, xml) in texts.into_iter().chain([("placed", placed.text().as_bytes())]) {
            let Some(output) = validated(xml) else {
                eprintln!(
                    "skipped: no virt-xml-validate (packages libvirt-clients, libxml2-utils)"
                );
                return;
            };
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{name} {what}: {errors}");
            count += 1;
        }
    }
    println!("validated {count} texts");
    assert!(count >= 180);
}
