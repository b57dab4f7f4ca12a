//! Nearside as libvirt's numad, in a guest of the lab.

use crate::{command::nearside, files::read};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

const PROGRAM: &str = "/usr/bin/numad";
/// The questions, each with its answer.
const ANSWERS: &str = "/tmp/numad.answers";
/// The remarks, of which libvirt reports few.
const REMARKS: &str = "/tmp/numad.remarks";

/// `/usr/bin/numad`, until it is dropped. It notes the questions and answers.
#[derive(Debug)]
pub struct Numad(());

impl Numad {
    /// Installs it. An emulated answer takes longer than a real host may wait for, so it has ten
    /// minutes.
    pub fn install(flags: &str) -> Self {
        let program = nearside().get_program().to_str().unwrap().to_owned();
        let script = format!(
            "#!/bin/busybox sh
answer=$({program} numad {flags} --within 600 \"$@\" 2>>{REMARKS})
status=$?
echo \"$*: $answer\" >>{ANSWERS}
if [ $status = 0 ]; then echo \"$answer\"; fi
exit $status
"
        );
        fs::write(PROGRAM, script).unwrap();
        fs::set_permissions(PROGRAM, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(ANSWERS, "").unwrap();
        fs::write(REMARKS, "").unwrap();
        Self(())
    }

    /// The questions so far, each with its answer: `-w 1:64: 2`.
    pub fn answers(&self) -> Vec<String> {
        read(ANSWERS).lines().map(|line| line.trim().to_owned()).collect()
    }

    /// The remarks so far.
    pub fn remarks(&self) -> Vec<String> {
        read(REMARKS).lines().map(str::to_owned).collect()
    }
}

impl Drop for Numad {
    fn drop(&mut self) {
        let _ = fs::remove_file(Path::new(PROGRAM));
    }
}
