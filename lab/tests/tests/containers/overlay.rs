//! Files of an overlay, to which somebody may write below it.

use super::helper::{Python, Replicator, add, await_state, status};
use nearside_lab::{await_that, run, stderr, words};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    process::Command,
};

/// Mounts an overlay of these layers, the topmost first, and returns its folder.
fn mounted(name: &str, lower: &str) -> String {
    let folder = format!("/tmp/{name}");
    for part in ["upper", "work", "shown"] {
        fs::create_dir_all(format!("{folder}/{part}")).unwrap();
    }
    let options = format!("lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work");
    mount(&options, &format!("{folder}/shown"), "/");
    folder
}

fn mount(options: &str, point: &str, from: &str) {
    let mut command = Command::new("mount");
    command.args(["-t", "overlay", "overlay", "-o", options, point]).current_dir(from);
    assert!(command.status().unwrap().success(), "{options}");
}

fn write_into(path: &str, content: &str) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(content.as_bytes(), 0).unwrap();
}

#[test]
fn writers_in_a_layer_collapse_the_copies_of_all_overlays_above() {
    for layer in ["/tmp/empty", "/tmp/image"] {
        fs::create_dir_all(layer).unwrap();
    }
    fs::write("/tmp/image/text", "000000").unwrap();
    let folders = ["one", "two"].map(|name| mounted(name, "/tmp/empty:/tmp/image"));
    let texts = folders.each_ref().map(|folder| format!("{folder}/shown/text"));
    let replicator = Replicator::start("");
    add("", &texts, "replicated");
    let mut reader = Python::at_home("reader", 2);
    let mut read = |text: &str| reader.eval(&format!("open('{text}').read()"));
    assert_eq!(texts.each_ref().map(|text| read(text)), ["'000000'", "'000000'"]);

    write_into("/tmp/image/text", "000001");
    assert_eq!(texts.each_ref().map(|text| read(text)), ["'000001'", "'000001'"]);
    for text in &texts {
        assert_eq!(status(text).unwrap()["collapses"], 1);
        await_state(text, "replicated");
    }

    // The first writer through an overlay brings the file to the upper layer of that overlay alone.
    write_into(&texts[0], "000002");
    assert_eq!(texts.each_ref().map(|text| read(text)), ["'000002'", "'000001'"]);
    await_state(&texts[0], "replicated");
    assert_eq!(status(&texts[1]).unwrap()["collapses"], 1);
    write_into(&format!("{}/upper/text", folders[0]), "000003");
    assert_eq!(texts.each_ref().map(|text| read(text)), ["'000003'", "'000001'"]);
    await_state(&texts[0], "replicated");
    assert_eq!(texts.each_ref().map(|text| read(text)), ["'000003'", "'000001'"]);
    replicator.stop();
}

#[test]
fn copies_follow_the_mode_of_the_file_in_a_layer() {
    fs::create_dir_all("/tmp/layer-with-mode").unwrap();
    fs::write("/tmp/layer-with-mode/text", "000000").unwrap();
    let text = format!("{}/shown/text", mounted("with-mode", "/tmp/layer-with-mode"));
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&text), "replicated");
    let mut reader = Python::at_home("mode", 2);
    reader.exec(&format!("import os\ndef now(): return os.stat('{text}')"));
    let device = fs::metadata(&text).unwrap().dev();
    assert_ne!(reader.eval("now().st_dev"), device.to_string(), "it is a copy");
    fs::set_permissions("/tmp/layer-with-mode/text", fs::Permissions::from_mode(0o640)).unwrap();
    await_that("the copy has the mode", || reader.eval("oct(now().st_mode)") == "'0o100640'");
    assert_ne!(reader.eval("now().st_dev"), device.to_string(), "it is a copy");
    replicator.stop();
}

#[test]
fn an_overlay_whose_layers_cannot_be_found_has_no_copies() {
    for part in ["relative/lower", "relative/lowest", "relative/shown", "empty-layer"] {
        fs::create_dir_all(format!("/tmp/{part}")).unwrap();
    }
    fs::write("/tmp/relative/lower/text", "text").unwrap();
    mount("lowerdir=lower:lowest", "/tmp/relative/shown", "/tmp/relative");
    let replicator = Replicator::start("");
    let output = run(["replicate", "add", "/tmp/relative/shown/text"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("relative path"), "{}", stderr(&output));

    // One that is mounted over its layer: others may write to that by another name.
    fs::create_dir_all("/tmp/covered").unwrap();
    fs::write("/tmp/covered/text", "text").unwrap();
    mount("lowerdir=/tmp/empty-layer:/tmp/covered", "/tmp/covered", "/");
    let output = run(["replicate", "add", "/tmp/covered/text"]);
    assert_eq!(output.status.code(), Some(1));
    let why = "the overlay is mounted over /tmp/covered";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    replicator.stop();
}

#[test]
fn a_mount_that_the_host_shares_gets_no_copies() {
    let folder = "/tmp/everybodys";
    fs::create_dir_all(folder).unwrap();
    for arguments in [vec!["-t", "tmpfs", "tmpfs", folder], vec!["--make-shared", folder]] {
        assert!(Command::new("mount").args(arguments).status().unwrap().success());
    }
    let text = format!("{folder}/text");
    fs::write(&text, "000000").unwrap();
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&text), "replicated");
    let mut sharing = Python::unshared(1, "unchanged");
    let attach = format!("replicate attach {} --node 1", sharing.child.id());
    assert!(run(words(&attach)).status.success());
    let mounts = |process: &str| {
        let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
        mounts.matches("nearside-text").count()
    };
    assert_eq!((mounts(&sharing.child.id().to_string()), mounts("1")), (0, 0));
    assert_eq!(sharing.eval(&format!("open('{text}').read()")), "'000000'");
    replicator.stop();
}
