//! A real package manager upgrades and removes files with copies.

use super::helper::{Python, Replicator, add, await_state, status};
use nearside_lab::await_that;
use std::{fs, os::unix::fs::MetadataExt, process::Command};

pub(crate) const FILE: &str = "/usr/lib/nearside-lab/text.so";
const PACKAGE: &str = "nearside-lab-text";

/// Builds a version of a package with one file, whose content is the version.
fn package(version: u32) -> String {
    package_with(version, &format!("{version:06}"))
}

/// Builds a version of a package with one file of this content.
pub(crate) fn package_with(version: u32, content: &str) -> String {
    let root = format!("/tmp/package-{version}");
    let file = format!("{root}{FILE}");
    fs::create_dir_all(format!("{root}/DEBIAN")).unwrap();
    fs::create_dir_all(file.rsplit_once('/').unwrap().0).unwrap();
    let control = format!(
        "Package: {PACKAGE}\nVersion: {version}\nArchitecture: all\n\
         Maintainer: Nearside <lab@localhost>\nDescription: one file\n"
    );
    fs::write(format!("{root}/DEBIAN/control"), control).unwrap();
    fs::write(file, content).unwrap();
    let deb = format!("{root}.deb");
    dpkg("dpkg-deb", &["--root-owner-group", "--build", &root, &deb]);
    deb
}

pub(crate) fn dpkg(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_package_is_upgraded_outside_and_inside_of_domains_and_removed() {
    let deb: Vec<String> = (1..=4).map(package).collect();
    dpkg("dpkg", &["-i", &deb[0]]);
    let replicator = Replicator::start("");
    add("", &[FILE.to_owned()], "replicated");
    let mut domains: Vec<_> =
        (0..3).map(|node| Python::at_home(&format!("packaged{node}"), node)).collect();
    let mut read_by_all = |version: u32, copies: bool| {
        let original = fs::metadata(FILE).unwrap().dev().to_string();
        for domain in &mut domains {
            let read = domain.eval(&format!("open('{FILE}').read()"));
            assert_eq!(read, format!("'{version:06}'"));
            let device = domain.eval(&format!("__import__('os').stat('{FILE}').st_dev"));
            assert!(!copies || device != original, "version {version}");
        }
    };
    read_by_all(1, true);
    dpkg("dpkg", &["-i", &deb[1]]);
    read_by_all(2, false);
    await_state(FILE, "replicated");
    read_by_all(2, true);

    // Inside, the file has a copy mounted over it, which would make a rename fail with EBUSY.
    let run = |domain: &mut Python, arguments: &str| {
        let call = format!(
            "(lambda it: (it.returncode, it.stderr))(__import__('subprocess').run({arguments}, \
             capture_output=True))"
        );
        let answer = domain.eval(&call);
        assert!(answer.starts_with("(0, "), "{arguments}: {answer}");
    };
    let mut inside = Python::at_home("upgrading", 3);
    // A package manager that has been replaced meanwhile is known, too. The replicator looks into
    // one of the four namespaces a turn, and each answer takes one.
    fs::copy("/usr/bin/dpkg", "/usr/bin/dpkg.new").unwrap();
    fs::rename("/usr/bin/dpkg.new", "/usr/bin/dpkg").unwrap();
    for _ in 0..5 {
        assert!(status(FILE).is_some());
    }
    for (version, deb) in [(3, &deb[2]), (4, &deb[3])] {
        run(&mut inside, &format!("['dpkg', '-i', '{deb}']"));
        assert_eq!(inside.eval(&format!("open('{FILE}').read()")), format!("'{version:06}'"));
        read_by_all(version, false);
        await_state(FILE, "replicated");
        read_by_all(version, true);
        // The package manager has ended, so its domain has copies again.
        let original = fs::metadata(FILE).unwrap().dev().to_string();
        await_that("its domain has the copy", || {
            inside.eval(&format!("__import__('os').stat('{FILE}').st_dev")) != original
        });
    }
    run(&mut inside, &format!("['dpkg', '-r', '{PACKAGE}']"));
    assert!(!fs::exists(FILE).unwrap());
    await_that("it is away", || {
        status(FILE).is_some_and(|it| it["why"] == "no file at its place can have copies")
    });
    assert_eq!(inside.eval(&format!("__import__('os').path.exists('{FILE}')")), "False");
    replicator.stop();
}
