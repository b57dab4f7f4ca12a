//! Sizes as people type them.

use std::str::FromStr;

/// A number of bytes, read from `4G`, `512M`, `1.5GiB` or plain bytes.
///
/// K, M, G, T and P are powers of 1024, whether or not `i` or `B` follows and in either case; a part of a byte counts as
/// a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidSize {
    #[error("expected a number and a unit, such as 512M, 4G or 1.5GiB")]
    Malformed,
    #[error("\"{0}\" is no unit: expected K, M, G, T or P (powers of 1024), or none for bytes")]
    Unit(String),
    #[error("more than 2^64 - 1 bytes")]
    TooLarge,
}

// More digits than this are beyond a byte of any size that fits.
const MOST_DECIMALS: usize = 15;

impl FromStr for Size {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let text = text.trim();
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let unit_bytes: u128 = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            "p" | "pb" | "pib" => 1 << 50,
            _ if number.is_empty() => return Err(InvalidSize::Malformed),
            _ => return Err(InvalidSize::Unit(unit.trim().into())),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || decimals.contains('.') || number.ends_with('.') || decimals.len() > MOST_DECIMALS {
            return Err(InvalidSize::Malformed);
        }
        // Only digits are left, so all that can fail is the range.
        let digits: u128 = format!("{whole}{decimals}").parse().map_err(|_| InvalidSize::TooLarge)?;
        let bytes = digits.checked_mul(unit_bytes).ok_or(InvalidSize::TooLarge)?;
        let bytes = bytes.div_ceil(10_u128.pow(decimals.len() as u32));
        u64::try_from(bytes).map(Self).map_err(|_| InvalidSize::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_type_them() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("4gb", 4 << 30),
            ("1.5GiB", 3 << 29),
            (" 2 T ", 2 << 40),
            ("0.1K", 103),
            ("16383P", 16383 << 50),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_why() {
        for text in ["", "G", ".5G", "5.G", "1.2.3G", "-1", "1.0000000000000001G", "1e9"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!("16384P".parse::<Size>(), Err(InvalidSize::TooLarge));
        assert_eq!("99999999999999999999999999999999999999999".parse::<Size>(), Err(InvalidSize::TooLarge));
        assert_eq!("4X".parse::<Size>(), Err(InvalidSize::Unit("X".into())));
    }
}
