//! Where tables may be: folders of raw tables, raw files, the text of `acpidump`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "common/acpi_builder.rs"]
mod acpi_builder;

use acpi_builder::*;
use nearside_topology::acpi::{self, ReadError, Tables};
use std::{fs, path::Path};

fn two_nodes() -> [Vec<u8>; 3] {
    let madt = (0..4).fold(Builder::madt(), |madt, id| madt.madt_apic(id, true));
    [two_sockets().build(), Builder::slit(2, &[10, 21, 21, 10]).build(), madt.build()]
}

fn check(path: &Path) {
    let tables = acpi::read(path).unwrap();
    assert_eq!(tables.source, path.display().to_string());
    let (machine, findings) = acpi::topology(&tables);
    assert_eq!(findings, []);
    assert_eq!((machine.nodes.len(), machine.cpus.len(), machine.memory_bytes()), (2, 4, 8 * GIB));
    assert_eq!(machine.source, tables.source);
}

#[test]
fn a_folder_of_raw_tables_under_any_names() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    for (name, table) in ["a.dat", "whatever", "1"].iter().zip(two_nodes()) {
        put(name, &table);
    }
    // As in /sys/firmware/acpi/tables: other tables, one without the usual header, and folders. And a stranger.
    put("DSDT", &Builder::other(b"DSDT").raw(&[1; 100]).build());
    put("FACS", b"FACS\x40\0\0\0");
    put("README", b"tables of machine 17\n");
    fs::create_dir(folder.path().join("dynamic")).unwrap();
    check(folder.path());
}

#[test]
fn a_dump_from_any_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.txt");
    let text = acpidump(&two_nodes());
    let lower: String = text
        .lines()
        .map(|line| match line.split_once(':') {
            Some((offset, rest)) => {
                format!("  {}:{}\n", offset.trim().to_lowercase(), rest.to_lowercase())
            }
            None => format!("{line}\n"),
        })
        .collect();
    for variant in
        [text.clone(), text.replace('\n', "\r\n"), lower, format!("# a remark\n\n{text}the end\n")]
    {
        fs::write(&path, variant).unwrap();
        check(&path);
        check(folder.path());
    }
}

#[test]
fn characters_that_look_like_numbers_are_not_read_as_bytes() {
    // The last line of a dump is short; what it holds as characters must not count.
    let oem = Builder::other(b"SLIT").u64(1).raw(&[10]).build();
    let text = acpidump(&[oem]).replace(" .\n", " 0A\n");
    assert_eq!(Tables::from_bytes(text.as_bytes()).findings, []);
}

#[test]
fn a_dump_with_a_line_missing_is_not_used() {
    let text = acpidump(&[two_sockets().build()]);
    let gap: String = text
        .lines()
        .filter(|line| !line.contains("0040:"))
        .map(|line| format!("{line}\n"))
        .collect();
    let findings = Tables::from_bytes(gap.as_bytes()).findings;
    let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "SRAT at 0x40: read offset 0x50 in line 6 of the dump, expected bytes in hexadecimal from offset 0x40 on; \
         this part is ignored, the table is still used",
            "SRAT at 0x4: read a length of 192 bytes, expected at most the 64 bytes there are; the table is not used",
        ]
    );
}

#[test]
fn one_raw_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("srat.bin");
    fs::write(&path, two_sockets().build()).unwrap();
    check(&path);
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = acpi::read(&missing).unwrap_err();
    assert!(
        matches!(error, ReadError::Io { .. })
            && error.to_string().contains(missing.to_str().unwrap()),
        "{error}"
    );

    assert!(matches!(acpi::read(folder.path()), Err(ReadError::NoTable { .. })));
    let path = folder.path().join("notes.txt");
    for content in
        [&b""[..], b"nothing of interest here, but more than a header's worth of it\n", &[0; 100]]
    {
        fs::write(&path, content).unwrap();
        assert!(matches!(acpi::read(&path), Err(ReadError::NoTable { .. })));
    }
    #[cfg(target_os = "linux")]
    assert!(matches!(acpi::read(Path::new("/dev/zero")), Err(ReadError::TooLarge { .. })));
}
