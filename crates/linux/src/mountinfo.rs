//! The mount of the cgroup v2 tree to work in. Hybrid hosts and containers have several, of the
//! whole tree or of a part, and one may hide another (proc_pid_mountinfo(5)).

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// A mount of the cgroup v2 tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The group that it begins with, in the words of this process's cgroup namespace
    /// (cgroup_namespaces(7)): `/` for the whole namespace, `/docker/7` for a part of it, `/../..`
    /// for a group outside of it.
    pub(crate) begins: Vec<u8>,
}

/// A line: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    root: &'a [u8],
    point: &'a [u8],
    options: &'a [u8],
    kind: &'a [u8],
}

/// The mount to work in. A mount of the whole tree is preferred to one of a part, then a writable
/// one, then the usual place. None if no mount can be reached.
pub(crate) fn cgroup2(mountinfo: &[u8]) -> Option<Mount> {
    let lines: Vec<Line<'_>> = mountinfo.split(|&byte| byte == b'\n').filter_map(line).collect();
    let reached = lines.iter().filter(|line| line.kind == b"cgroup2" && is_reached(line, &lines));
    let best = reached.min_by_key(|line| {
        let part = match line.root {
            b"/" => 0,
            root if root.split(|&byte| byte == b'/').all(|part| part != b"..") => 1,
            _ => 2,
        };
        let place = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .iter()
            .position(|usual| line.point == usual.as_bytes());
        let is_read_only = line.options.split(|&byte| byte == b',').any(|option| option == b"ro");
        (part, is_read_only, place.unwrap_or(usize::MAX))
    })?;
    let point = OsString::from_vec(unescape(best.point)).into();
    Some(Mount { point, begins: unescape(best.root) })
}

fn line(text: &[u8]) -> Option<Line<'_>> {
    const SEPARATOR: &[u8] = b" - ";
    let at = text.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)?;
    let (mount, file_system) = (text.get(..at)?, text.get(at + SEPARATOR.len()..)?);
    let mut words = mount.split(|&byte| byte == b' ');
    Some(Line {
        id: words.next()?,
        parent: words.next()?,
        root: words.nth(1)?,
        point: words.next()?,
        options: words.next()?,
        kind: file_system.split(|&byte| byte == b' ').next()?,
    })
}

/// True if its path leads to the mount: no later mount covers it or a folder on the way to it.
fn is_reached(mount: &Line<'_>, all: &[Line<'_>]) -> bool {
    let (mut at, mut via) = (mount, mount);
    // At most as many steps as there are mounts: a cycle of parents must not loop forever.
    for _ in all {
        let hides = |other: &Line<'_>| {
            let on_top = other.parent == at.id && other.point == at.point && other.id != via.id;
            let before = other.parent == at.parent && is_above(other.point, at.point);
            other.id != at.id && (on_top || before)
        };
        if all.iter().any(hides) {
            return false;
        }
        // The file system's root has no parent in the list, or is its own parent.
        match all.iter().find(|other| other.id == at.parent && other.id != at.id) {
            Some(parent) => (at, via) = (parent, at),
            None => return true,
        }
    }
    true
}

fn is_above(folder: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(folder.strip_suffix(b"/").unwrap_or(folder))
        .is_some_and(|rest| rest.len() > 1 && rest.starts_with(b"/"))
}

/// The kernel writes blanks and a few other bytes in octal (`\040`; `mangle` in `fs/seq_file.c`).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut parts = text.split(|&byte| byte == b'\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.split_at_checked(3).and_then(|(digits, rest)| {
            let code = u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok()?;
            Some((code, rest)).filter(|(code, _)| code.is_ascii())
        });
        match code {
            Some((code, rest)) => {
                plain.push(code);
                plain.extend(rest);
            }
            None => {
                plain.push(b'\\');
                plain.extend(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                        24 23 0:22 / /sys rw,nosuid - sysfs sysfs rw\n";

    fn chosen(lines: &str) -> Option<(String, String)> {
        let mount = cgroup2(format!("{ROOT}{lines}").as_bytes())?;
        Some((mount.point.to_str().unwrap().to_owned(), String::from_utf8(mount.begins).unwrap()))
    }

    #[test]
    fn the_mount_to_work_in() {
        let cases = [
            (
                "unified",
                "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                ("/sys/fs/cgroup", "/"),
            ),
            (
                "hybrid",
                "30 24 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
                 31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 32 30 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                ("/sys/fs/cgroup/unified", "/"),
            ),
            (
                "a name with blanks",
                r"30 24 0:26 /a\134b /mnt/a\040b\043\134 rw - cgroup2 none rw",
                (r"/mnt/a b#\", r"/a\b"),
            ),
            // docker and podman: a cgroup namespace of the container's own.
            (
                "a container",
                "900 23 0:300 / /sys rw - sysfs sysfs rw\n\
                 901 900 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
                ("/sys/fs/cgroup", "/"),
            ),
            // The host's namespace, with only the container's own group bound into it.
            (
                "a part",
                "901 24 0:26 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
                ("/sys/fs/cgroup", "/docker/7"),
            ),
            // docker -v /sys/fs/cgroup:/sys/fs/cgroup, with a namespace of the container's own.
            (
                "from outside",
                "901 24 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
                ("/sys/fs/cgroup", "/../.."),
            ),
            // docker -v /sys/fs/cgroup:/host beside the container's own mount.
            (
                "the host's beside one's own",
                "900 23 0:26 /../.. /host rw - cgroup2 cgroup rw\n\
                 901 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
                ("/sys/fs/cgroup", "/"),
            ),
            (
                "bind mounts of a part and of the whole",
                "30 23 0:26 /user.slice /home/me/cg rw - cgroup2 cgroup2 rw\n\
                 31 23 0:26 / /home/me/all rw - cgroup2 cgroup2 rw\n",
                ("/home/me/all", "/"),
            ),
            (
                "where it usually is",
                "30 23 0:26 / /opt/cg rw - cgroup2 none rw\n\
                 31 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n",
                ("/sys/fs/cgroup", "/"),
            ),
            (
                "a writable one",
                "31 24 0:26 / /sys/fs/cgroup ro - cgroup2 none rw\n\
                 32 23 0:26 / /opt/cg rw - cgroup2 none rw\n",
                ("/opt/cg", "/"),
            ),
            (
                "mounted twice at one place",
                "30 24 0:26 /old /sys/fs/cgroup rw - cgroup2 a rw\n\
                 31 30 0:26 /new /sys/fs/cgroup rw - cgroup2 b rw\n",
                ("/sys/fs/cgroup", "/new"),
            ),
            (
                "hidden by a file system over it",
                "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 a rw\n\
                 31 30 0:40 / /sys/fs/cgroup rw - tmpfs b rw\n\
                 32 31 0:26 /part /sys/fs/cgroup/unified rw - cgroup2 c rw\n",
                ("/sys/fs/cgroup/unified", "/part"),
            ),
            (
                "hidden by a file system over a folder above it",
                "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 a rw\n\
                 31 24 0:40 / /sys/fs rw - tmpfs b rw\n\
                 32 23 0:26 /part /mnt rw - cgroup2 c rw\n",
                ("/mnt", "/part"),
            ),
            (
                "hidden with all that is below a covered one",
                "30 24 0:40 / /sys/fs/cgroup rw - tmpfs a rw\n\
                 31 30 0:26 / /sys/fs/cgroup/unified rw - cgroup2 b rw\n\
                 32 30 0:41 / /sys/fs/cgroup rw - tmpfs c rw\n\
                 33 23 0:26 /part /mnt rw - cgroup2 d rw\n",
                ("/mnt", "/part"),
            ),
        ];
        for (name, lines, (point, begins)) in cases {
            assert_eq!(chosen(lines), Some((point.into(), begins.into())), "{name}");
        }
    }

    #[test]
    fn names_that_are_no_text_stay_as_they_are() {
        let line = b"30 24 0:26 /\xff /mnt/a\xff\\040b rw - cgroup2 none rw\n";
        let mount = cgroup2(&[ROOT.as_bytes(), line].concat()).unwrap();
        assert_eq!(mount.point.into_os_string().into_vec(), b"/mnt/a\xff b");
        assert_eq!(mount.begins, b"/\xff");
    }

    #[test]
    fn a_root_that_was_mounted_over_another_hides_nothing_of_its_own() {
        let text = "1 1 0:1 / / rw - rootfs rootfs rw\n23 1 8:1 / / rw - ext4 a rw\n\
                    30 23 0:26 / /cg rw - cgroup2 b rw\n";
        assert_eq!(cgroup2(text.as_bytes()).unwrap().point.to_str(), Some("/cg"));
    }

    #[test]
    fn a_text_that_makes_no_sense_leads_nowhere_and_ends() {
        assert_eq!(chosen("30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        for text in ["", " - cgroup2", "1 2 3 - cgroup2 a b", "- - - -"] {
            assert_eq!(cgroup2(text.as_bytes()), None, "{text}");
        }
        let circle = "1 2 0:1 / /a rw - x x rw\n2 1 0:1 / /b rw - cgroup2 x rw\n";
        assert!(cgroup2(circle.as_bytes()).is_some());
        let nonsense = r"\9\04\777\é".as_bytes();
        assert_eq!(unescape(nonsense), nonsense);
    }
}
