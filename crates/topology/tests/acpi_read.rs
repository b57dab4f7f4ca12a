//! The sources of tables: folders of raw tables, raw files, the text of `acpidump`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "common/acpi_builder.rs"]
mod acpi_builder;

use acpi_builder::*;
use nearside_topology::{
    acpi::{self, ReadError, Tables},
    bounded_file,
};
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
    // As in /sys/firmware/acpi/tables: other tables, one without the usual header, and folders. And
    // a file that is no table.
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
    // The last line of a dump is short; its characters must not count.
    let oem = Builder::other(b"SLIT").u64(1).raw(&[10]).build();
    let text = acpidump(&[oem]).replace(" .\n", " 0A\n");
    assert_eq!(Tables::from_bytes(text.as_bytes()).findings, []);
}

#[test]
fn a_dump_without_one_of_its_lines_is_not_used() {
    let text = acpidump(&[two_sockets().build()]);
    let gap: String = text
        .lines()
        .filter(|line| !line.contains("0040:"))
        .map(|line| format!("{line}\n"))
        .collect();
    let text = "SRAT at 0x40: read offset 0x50 in line 6 of the dump, expected bytes in \
                hexadecimal from offset 0x40 on; the table is not used";
    assert_eq!(findings_of(&gap), [text]);
}

fn findings_of(dump: &str) -> Vec<String> {
    let tables = Tables::from_bytes(dump.as_bytes());
    tables.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn tabs_in_a_dump_are_as_good_as_spaces() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump.txt");
    let text = acpidump(&two_nodes());
    let variants = [
        ("before the offset", text.replace("\n    ", "\n\t")),
        ("after the offset", text.replace(": ", ":\t")),
        ("between bytes", text.replace(" 00 00 ", "\t00\t00 ")),
        ("before the characters", text.replace("  ", "\t")),
        ("in the title", text.replace(" @ ", "\t@\t")),
    ];
    for (place, variant) in variants {
        assert_ne!(variant, text, "{place}");
        fs::write(&path, variant).unwrap();
        check(&path);
    }
}

#[test]
fn characters_after_a_tab_are_distinguished_from_bytes() {
    // The last line holds two bytes, whose characters look like one byte more.
    let table = Builder::other(b"SRAT").raw(&[0; 12]).raw(b"AB").build();
    let text = acpidump(std::slice::from_ref(&table));
    let short = text.trim_end().lines().last().unwrap();
    assert!(short.ends_with(" AB"), "{short}");
    let line = format!("{}: 41 42\tAB", short.split(':').next().unwrap());
    let tabbed = text.replace(short, &line);
    assert_eq!(findings_of(&tabbed), findings_of(&text));
    let stray = format!("{}: 41 42 AB", short.split(':').next().unwrap());
    assert_ne!(findings_of(&text.replace(short, &stray)), findings_of(&text));
}

#[test]
fn a_damaged_line_rejects_its_table_in_one_finding_and_no_other_table() {
    let dump = acpidump(&two_nodes());
    let damaged = dump.replacen("0010: ", "0010: zz ", 1);
    let findings = findings_of(&damaged);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let start = "SRAT at 0x10: read line 3 of the dump, \"0010: zz ";
    assert!(findings[0].starts_with(start), "{findings:#?}");
    assert!(findings[0].ends_with("from offset 0x10 on; the table is not used"), "{findings:#?}");
    let tables = Tables::from_bytes(damaged.as_bytes());
    assert!(tables.srat.is_none() && tables.slit.is_some() && tables.madt.is_some());

    // Behind a table's last byte, a strange line harms nothing.
    let after = dump.replacen("\n\n", "\nend of table\n\n", 1);
    let findings = findings_of(&after);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert!(findings[0].ends_with("this part is ignored, the table is still used"));
    assert!(Tables::from_bytes(after.as_bytes()).srat.is_some());
    // A table that does not matter here may be damaged.
    let other = acpidump(&[Builder::other(b"DSDT").raw(&[1; 40]).build()]);
    assert_eq!(findings_of(&format!("{}{dump}", other.replace("0010: ", "0010: zz "))), [""; 0]);
}

#[test]
fn one_raw_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("srat.bin");
    fs::write(&path, two_sockets().build()).unwrap();
    check(&path);
}

#[test]
fn errors_name_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = acpi::read(&missing).unwrap_err();
    assert!(
        matches!(error, ReadError::File { source: bounded_file::Error::Io(_), .. })
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
    let error = acpi::read(Path::new("/dev/zero")).unwrap_err().to_string();
    let expected =
        "cannot read ACPI tables from /dev/zero: it is a device, expected a regular file";
    assert_eq!(error, expected);
    fs::File::create(&path).unwrap().set_len(acpi::MAX_FILE_BYTES + 1).unwrap();
    let error = acpi::read(&path).unwrap_err().to_string();
    assert!(error.ends_with("notes.txt: it is larger than 16 MiB"), "{error}");
}
