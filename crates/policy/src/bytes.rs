//! Amounts in messages.

use std::fmt;

/// An amount of memory, which prints in the largest unit that keeps it at 1 or more: `512 MiB`,
/// `15.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, name) = match self.0 {
            0..0x400 => return f.pad(&format!("{} bytes", self.0)),
            0x400..0x10_0000 => (10, "KiB"),
            0x10_0000..0x4000_0000 => (20, "MiB"),
            0x4000_0000..0x100_0000_0000 => (30, "GiB"),
            0x100_0000_0000..0x4_0000_0000_0000 => (40, "TiB"),
            0x4_0000_0000_0000..0x1000_0000_0000_0000 => (50, "PiB"),
            _ => (60, "EiB"),
        };
        let unit = 1_u64 << shift;
        match self.0 % unit {
            0 => f.pad(&format!("{} {name}", self.0 / unit)),
            _ => f.pad(&format!("{:.1} {name}", self.0 as f64 / unit as f64)),
        }
    }
}

/// How many of something there are: `1 vCPU`, `4 nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, what) = self;
        write!(f, "{number} {what}{}", if *number == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_largest_unit_that_keeps_them_at_1() {
        let cases = [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (2 << 20, "2 MiB"),
            (1 << 30, "1 GiB"),
            (31 << 29, "15.5 GiB"),
            (3 << 39, "1.5 TiB"),
            (1 << 50, "1 PiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(
            [0, 1, 2].map(|n| Count(n, "vCPU").to_string()),
            ["0 vCPUs", "1 vCPU", "2 vCPUs"]
        );
    }
}
