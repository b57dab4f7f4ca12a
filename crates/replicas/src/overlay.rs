//! The layers of an overlay, as the options of its mount name them
//! (`Documentation/filesystems/overlayfs.rst`).

use crate::{
    file_system::host_root,
    mountinfo::{Mount, mounts, unescaped},
    walk::{FILE, Links, is_silent, walk},
};
use nearside_linux::escape;
use rustix::fs::{Mode, open};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// Whether an overlay can be looked at: none of its layers lies on a file system that may not
/// answer. Their paths are those of the host.
///
/// # Errors
/// Why not.
pub(crate) fn check_layers(overlay: &Mount) -> Result<(), String> {
    let hosts = mounts(&fs::read("/proc/1/mountinfo").unwrap_or_default());
    if !hosts.iter().any(|mount| mount.device == overlay.device) {
        return Err("the host has not mounted the overlay".into());
    }
    let text = |error: rustix::io::Errno| io::Error::from(error).to_string();
    let root = open("/", FILE, Mode::empty()).map_err(text)?;
    let mountinfo = || fs::read("/proc/thread-self/mountinfo");
    for layer in layers(&overlay.options)? {
        match walk(&root, &layer, Links::Followed, host_root(), mountinfo) {
            Err(error) if is_silent(&error) => {
                return Err(format!("{}: {error}", escape::text(&layer)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The folders of an overlay's options, the topmost first.
pub(crate) fn layers(options: &[u8]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = unescaped(&option[at + 1..]);
        match &option[..at] {
            b"upperdir" => _ = found.splice(..0, split(&value, None)),
            b"lowerdir" => found.extend(split(&value, Some(b':'))),
            b"lowerdir+" | b"datadir+" => found.push(value),
            _ => {}
        }
    }
    match found.iter().find(|layer| !layer.is_absolute()) {
        Some(layer) => Err(format!("the layer {} has a relative path", escape::text(layer))),
        None if found.is_empty() => Err("its mount names none".into()),
        None => Ok(found),
    }
}

/// Paths with a separator between them, in which a backslash takes the meaning from what follows.
/// Two separators come before layers of data.
fn split(value: &Path, separator: Option<u8>) -> Vec<PathBuf> {
    let mut paths = vec![Vec::new()];
    let mut bytes = value.as_os_str().as_bytes().iter();
    while let Some(byte) = bytes.next() {
        match (byte, paths.last_mut()) {
            (b'\\', Some(path)) => path.push(*bytes.next().unwrap_or(byte)),
            (byte, _) if Some(*byte) == separator => paths.push(Vec::new()),
            (_, Some(path)) => path.push(*byte),
            (_, None) => {}
        }
    }
    paths.retain(|path| !path.is_empty());
    paths.into_iter().map(|path| PathBuf::from(OsString::from_vec(path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_are_read_from_the_options_of_the_mount() {
        let table: [(&str, &[&str]); 6] = [
            ("rw,lowerdir=/a:/b,upperdir=/u,workdir=/w,uuid=on", &["/u", "/a", "/b"]),
            ("ro,lowerdir+=/a:x,lowerdir+=/b,datadir+=/d", &["/a:x", "/b", "/d"]),
            ("ro,lowerdir=/a::/d", &["/a", "/d"]),
            // A colon is escaped for overlayfs, whose backslash and commas are for mountinfo.
            (r"ro,lowerdir=/a\134:x:/b\054y\040z", &["/a:x", "/b,y z"]),
            (r"rw,upperdir=/u\134\134:v,lowerdir=/a", &[r"/u\:v", "/a"]),
            (r"rw,lowerdir=/a\134", &[r"/a\"]),
        ];
        for (options, expected) in table {
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(layers(options.as_bytes()), Ok(expected), "{options}");
        }
        for options in ["rw", "rw,lowerdir=", "rw,lowerdir=l/A:l/B,upperdir=1/diff", "upperdir="] {
            assert!(layers(options.as_bytes()).is_err(), "{options}");
        }
    }

    proptest! {
        #[test]
        fn escaped_paths_are_read_as_they_were(names: Vec<Vec<u8>>, rest: Vec<u8>) {
            let names: Vec<_> = names.into_iter().filter(|name| !name.contains(&0)).collect();
            let path = |name: &[u8]| PathBuf::from(OsString::from_vec([b"/", name].concat()));
            let mut options = b"rw,lowerdir=".to_vec();
            for name in &names {
                options.extend(b"/");
                for byte in name {
                    if b":\\".contains(byte) {
                        options.extend(b"\\134");
                    }
                    options.extend(format!("\\{byte:03o}").bytes());
                }
                options.extend(b":");
            }
            let expected: Vec<_> = names.iter().map(|name| path(name)).collect();
            prop_assert_eq!(layers(&options).unwrap_or_default(), expected);
            // The rest of any mount's options is no reason to panic.
            let _ = layers(&[options, b",upperdir=".into(), rest].concat());
        }
    }
}
