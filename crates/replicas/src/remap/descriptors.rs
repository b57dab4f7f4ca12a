//! Descriptors of a process as `/proc/PID/fdinfo` shows them (`seq_show` in `fs/proc/fd.c`).

/// An open descriptor of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number.
    pub number: u32,
    /// The place of the next read, in bytes.
    pub offset_bytes: u64,
    /// The flags of `open(2)`, without `O_CLOEXEC`.
    pub flags: i32,
    /// True if `execve` closes it.
    pub close_on_exec: bool,
    /// True if the process holds a lock through it (`flock`, `fcntl`), which belongs to the file
    /// that it is open on.
    pub locked: bool,
}

impl Descriptor {
    /// True if no write can go through it.
    pub fn is_read_only(&self) -> bool {
        self.flags & libc::O_PATH != 0 || self.flags & libc::O_ACCMODE == libc::O_RDONLY
    }
}

/// Reads `/proc/PID/fdinfo/NUMBER`; `None` if it has no valid offset or flags.
pub fn fdinfo(number: u32, text: &[u8]) -> Option<Descriptor> {
    let (mut offset, mut flags, mut locked) = (None, None, false);
    for line in text.split(|&byte| byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        match line.split_once(':') {
            Some(("pos", value)) => offset = Some(value.trim().parse().ok()?),
            Some(("flags", value)) => flags = Some(i32::from_str_radix(value.trim(), 8).ok()?),
            Some(("lock", _)) => locked = true,
            _ => {}
        }
    }
    let flags = flags?;
    Some(Descriptor {
        number,
        offset_bytes: offset?,
        flags: flags & !libc::O_CLOEXEC,
        close_on_exec: flags & libc::O_CLOEXEC != 0,
        locked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_gives_offset_flags_and_locks() {
        let text = b"pos:\t4096\nflags:\t02100000\nmnt_id:\t28\nino:\t7\n\
            lock:\t1: FLOCK  ADVISORY  READ 77 fe:01:7 0 EOF\n";
        let descriptor = fdinfo(5, text).unwrap();
        assert_eq!((descriptor.number, descriptor.offset_bytes), (5, 4096));
        assert!(descriptor.close_on_exec && descriptor.is_read_only() && descriptor.locked);
        let open = |flags: &str| fdinfo(0, format!("pos:\t0\nflags:\t{flags}\n").as_bytes());
        assert!(!open("0100001").unwrap().is_read_only());
        assert!(!open("0100002").unwrap().is_read_only());
        assert!(open("010000000").unwrap().is_read_only(), "O_PATH");
        assert_eq!(open("0100002").unwrap().flags & libc::O_ACCMODE, libc::O_RDWR);
    }

    #[test]
    fn other_texts_are_no_descriptor() {
        for text in ["", "pos:\t1", "flags:\t0", "pos:\tx\nflags:\t0", "pos:\t0\nflags:\t9"] {
            assert_eq!(fdinfo(0, text.as_bytes()), None, "{text}");
        }
        assert_eq!(fdinfo(0, b"pos:\t-1\nflags:\t0"), None);
        assert_eq!(fdinfo(0, b"\xff:\npos"), None);
    }
}
