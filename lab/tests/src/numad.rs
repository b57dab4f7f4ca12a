//! Nearside as libvirt's numad, in a guest of the lab.

use crate::{command::nearside, files::read, libvirt::modular_root};
use std::{fs, os::unix::fs::PermissionsExt};

const PROGRAM: &str = "/usr/bin/numad";
/// The questions, each with its answer.
const ANSWERS: &str = "/tmp/numad.answers";
/// The remarks, of which libvirt reports few.
const REMARKS: &str = "/tmp/numad.remarks";

/// `/usr/bin/numad` in libvirt's root, until it is dropped. It notes the questions and answers.
#[derive(Debug)]
pub struct Numad {
    path: String,
}

impl Numad {
    /// Installs it. An emulated answer takes longer than a real host may wait for, so it has ten
    /// minutes.
    pub fn install(flags: &str) -> Self {
        let mut program = nearside().get_program().to_str().unwrap().to_owned();
        let root = modular_root().unwrap_or_default();
        if !root.is_empty() {
            // That root has neither a shell nor Nearside.
            fs::copy(&program, format!("{root}/usr/bin/nearside")).unwrap();
            fs::copy("/bin/busybox", format!("{root}/usr/bin/busybox")).unwrap();
            program = "/usr/bin/nearside".into();
        }
        let shell = if root.is_empty() { "/bin/busybox" } else { "/usr/bin/busybox" };
        let script = format!(
            "#!{shell} sh
answer=$({program} numad {flags} --within 600 \"$@\" 2>>{REMARKS})
status=$?
echo \"$*: $answer\" >>{ANSWERS}
if [ $status = 0 ]; then echo \"$answer\"; fi
exit $status
"
        );
        let path = format!("{root}{PROGRAM}");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(ANSWERS, "").unwrap();
        fs::write(REMARKS, "").unwrap();
        Self { path }
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

/// Removes the reservations of answers, which would last for a minute.
pub fn lapse_reservations() {
    for record in fs::read_dir("/run/nearside/domains").unwrap().flatten() {
        if record.file_name().to_string_lossy().starts_with("reservation+numad-") {
            // The term of some may have ended.
            let _ = fs::remove_file(record.path());
        }
    }
}

impl Drop for Numad {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
