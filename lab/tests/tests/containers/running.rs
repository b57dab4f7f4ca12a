//! Containers of one image run from copies, are upgraded inside, and are removed.

use super::{
    helper::{PYTHON, Replicator, text_of},
    podman::{Container, Podman, SHARED, done},
};
use nearside_lab::{await_that, json, run, stderr, words};
use serde_json::Value;
use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt};

/// A file of a package, whose content is the version.
const FILE: &str = "/usr/lib/nearside-lab/text.so";

/// The command of a container of Python.
const TEXT: [&str; 5] = [
    PYTHON,
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libm.so.6",
    "/usr/lib/x86_64-linux-gnu/libz.so.1",
    "/usr/lib/x86_64-linux-gnu/libexpat.so.1",
];
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

fn status(image: &str, path: &str) -> Option<Value> {
    let report = json("replicate status");
    let mut files = report["files"].as_array().unwrap().iter();
    files.find(|it| it["path"] == path && it["image"] == image).cloned()
}

/// Gives files of a container copies on a node.
fn add(image: &str, node: u32) {
    let flags = format!("replicate add --image {image} --nodes {node}");
    let output = run(words(&flags).chain(TEXT).chain([LOADER, FILE]));
    assert!(output.status.success(), "{}", stderr(&output));
    for path in TEXT.into_iter().chain([FILE]) {
        await_copy(image, path);
    }
}

fn await_copy(image: &str, path: &str) {
    let is_replicated = |it: Value| it["state"] == "replicated";
    await_that(&format!("{path} has a copy"), || status(image, path).is_some_and(is_replicated));
}

/// 99 % of the text lie on the node, under the paths of the container.
fn assert_local(container: &mut Container, node: u32) {
    // It executes some of it.
    let work = "len(str([repr(it) for it in vars(__builtins__).values()])) + 0.5 ** 0.5 > 99";
    assert_eq!(container.python.eval(work), "True");
    let (pages, paths) = text_of(container.process, "");
    let all: u64 = pages.values().sum();
    let local = pages.get(&node).copied().unwrap_or(0);
    assert!(all > 50 && local * 100 >= all * 99, "node {node}: {pages:?} of {paths:?}");
    for path in TEXT {
        assert!(paths.iter().any(|it| it == path), "{path} in {paths:?}");
    }
}

fn assert_confined(container: &Container) {
    let profile = fs::read_to_string(format!("/proc/{}/attr/current", container.process)).unwrap();
    assert!(profile.starts_with("containers-default"), "{profile}");
    assert!(profile.trim_end().ends_with("(enforce)"), "{profile}");
}

fn read(container: &mut Container) -> String {
    container.python.eval(&format!("open('{FILE}').read()"))
}

/// A package with the next version of the file. Returns its path.
fn package() -> String {
    let root = "/tmp/package";
    fs::create_dir_all(format!("{root}/DEBIAN")).unwrap();
    fs::create_dir_all(format!("{root}{}", FILE.rsplit_once('/').unwrap().0)).unwrap();
    let control = "Package: nearside-lab-text\nVersion: 2\nArchitecture: all\n\
                   Maintainer: Nearside <lab@localhost>\nDescription: one file\n";
    fs::write(format!("{root}/DEBIAN/control"), control).unwrap();
    fs::write(format!("{root}{FILE}"), "000002").unwrap();
    let deb = format!("{SHARED}/text.deb");
    done(&format!("dpkg-deb --root-owner-group -Znone --build {root} {deb}"));
    deb
}

/// Mounts of copies or below podman's folders, seen by the host.
fn mounts() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/1/mountinfo").unwrap();
    let is_left = |line: &&str| line.contains("nearside-text") || line.contains("/merged ");
    mounts.lines().filter(is_left).map(str::to_owned).collect()
}

/// The devices of the executable mappings of a path, as `maps` shows them.
fn mapped_on(container: &Container, path: &str) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", container.process)).unwrap();
    let lines = maps.lines().filter(|line| line.contains(" r-xp ") && line.ends_with(path));
    lines.map(|line| line.split(' ').nth(3).unwrap().to_owned()).collect()
}

#[test]
fn containers_run_from_copies_of_their_node_until_they_are_removed() {
    let podman = Podman::with_image(&[(FILE, "000001")]);
    let replicator = Replicator::start("--budget 200M");
    // Node 0 reads the image first: the page cache of both lies there.
    let create = |name, node, flags: &[&str]| {
        let image = podman.create(name, node, flags);
        for path in TEXT.into_iter().chain([LOADER]) {
            done(&format!("taskset --cpu-list 0 cat {image}/{path}"));
        }
        add(&image, node);
        image
    };
    let one_image = create("one", 1, &[]);
    let mut one = podman.start("one", true);
    // The first process runs from the copies, although nothing in it was exchanged: it is under
    // seccomp.
    assert_eq!(nearside_lab::status(one.process, "Seccomp"), "2");
    assert_local(&mut one, 1);
    let copy = &status(&one_image, PYTHON).unwrap()["copies"]["1"];
    assert_eq!((&copy["users"], &copy["namespaces"]), (&1.into(), &1.into()));

    // Without hook and seccomp, on request.
    let three_image = create("three", 3, &["--security-opt", "seccomp=unconfined"]);
    let mut three = podman.start("three", false);
    assert_eq!(status(&three_image, PYTHON).unwrap()["copies"]["3"]["users"], 0);
    let report = json(&format!("replicate attach {}", three.process));
    assert_eq!((&report["processes"], &report["copies"]), (&1.into(), &7.into()), "{report}");
    assert_local(&mut three, 3);
    for container in [&one, &three] {
        assert_confined(container);
    }

    // An upgrade in one of them.
    assert_eq!((read(&mut one), read(&mut three)), ("'000001'".into(), "'000001'".into()));
    let deb = package();
    podman.run(&["exec", "one", "dpkg", "--force-bad-path", "--install", &deb]);
    assert_eq!((read(&mut one), read(&mut three)), ("'000002'".into(), "'000001'".into()));
    await_copy(&one_image, FILE);
    let original = fs::metadata(format!("{one_image}{FILE}")).unwrap().dev().to_string();
    let device = format!("__import__('os').stat('{FILE}').st_dev");
    await_that("the container has copies again", || one.python.eval(&device) != original);
    // The answer comes when all copies are bound, and its processes have them.
    assert!(status(&one_image, FILE).is_some());
    assert_eq!(read(&mut one), "'000002'");
    assert_local(&mut one, 1);
    assert_local(&mut three, 3);

    // A writer: the process under seccomp returns to the original before it goes on.
    let [libc, libm] = [TEXT[1], TEXT[2]];
    let copies = mapped_on(&one, libc);
    assert_eq!(mapped_on(&one, libm), copies);
    let writer = fs::OpenOptions::new().write(true).open(format!("{one_image}{libm}")).unwrap();
    assert!(mapped_on(&one, libm).is_disjoint(&copies), "{copies:?}");
    assert_eq!(mapped_on(&one, libc), copies);
    drop(writer);
    await_copy(&one_image, libm);
    for container in [&one, &three] {
        assert_confined(container);
    }

    podman.run(&["rm", "--force", "--time", "0", "one", "three"]);
    await_that("their files are forgotten", || {
        json("replicate status")["files"].as_array().unwrap().is_empty()
    });
    assert_eq!(mounts(), Vec::<String>::new());
    podman.end();
    replicator.stop();
}
