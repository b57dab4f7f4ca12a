//! Masks of CPUs as the kernel prints them (`%*pb` in Linux, `lib/vsprintf.c`): hexadecimal words
//! of 32 bits, the highest first. Old kernels have no lists, and many copies of another machine's
//! files have the masks alone.

use crate::id::{CpuId, CpuSet, MAX_ID};
use alloc::{format, string::String};

const WORD_BITS: u32 = 32;

/// The CPUs of a mask such as `00000000,0000ffff`.
///
/// # Errors
/// The reason why `text` is no valid mask of CPUs.
pub(super) fn parse(text: &str) -> Result<CpuSet, String> {
    let text = text.trim();
    let mut cpus = CpuSet::new();
    for (word, digits) in (0..).zip(text.rsplit(',')) {
        let is_word = (1..=8).contains(&digits.len())
            && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| is_word);
        let bits = bits.ok_or_else(|| format!("{digits:?} is no hexadecimal word of 32 bits"))?;
        for bit in (0..WORD_BITS).filter(|bit| bits & 1 << bit != 0) {
            let cpu = word * WORD_BITS + bit;
            if cpu > MAX_ID {
                return Err(format!("CPU {cpu} is above {MAX_ID}"));
            }
            cpus.insert(CpuId(cpu));
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_cpus_are_in_the_last_word() {
        let parsed = |text| parse(text).map(|cpus| cpus.to_string());
        assert_eq!(parsed("f\n"), Ok("0-3".into()));
        assert_eq!(parsed("00000000"), Ok(String::new()));
        assert_eq!(parsed("00ff00ff"), Ok("0-7,16-23".into()));
        // 0x10 in the second word: CPU 32 + 4. 0x80000001 in the first: CPUs 0 and 31.
        assert_eq!(parsed("00000000,00000010,80000001"), Ok("0,31,36".into()));
    }

    #[test]
    fn other_text_is_no_mask() {
        for text in ["", ",", "0-3", "fg", "0x3", "+1", "123456789", "1,,2"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let beyond = format!("1{}", ",00000000".repeat(2048));
        assert_eq!(parse(&beyond), Err("CPU 65536 is above 65535".into()));
        // No number of words overflows the number of a CPU.
        assert_eq!(parse("0,".repeat(1 << 16).trim_end_matches(',')), Ok(CpuSet::new()));
    }
}
