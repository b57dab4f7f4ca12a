//! Sizes on the command line.

/// Parses a size in bytes: a number, perhaps with a fraction, and a unit K, M, G, T or P in powers
/// of 1,024 (`512M`, `1.5GiB`, `2048`).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_number = || "expected a number and a unit, as in 512M or 1.5G".to_owned();
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(no_number());
    }
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "ki" | "kb" | "kib" => 10,
        "m" | "mi" | "mb" | "mib" => 20,
        "g" | "gi" | "gb" | "gib" => 30,
        "t" | "ti" | "tb" | "tib" => 40,
        "p" | "pi" | "pb" | "pib" => 50,
        _ => {
            return Err(format!(
                "{unit:?} is no unit: expected K, M, G, T or P (powers of 1024), as in 512M or 1.5G"
            ));
        }
    };
    let too_large = || "larger than 64 bits".to_owned();
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let bytes = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(bytes);
    }
    if shift == 0 {
        return Err("less than one byte".into());
    }
    let parts: u128 = fraction.parse().map_err(|_| no_number())?;
    let extra = (parts << shift) / 10_u128.pow(fraction.len() as u32);
    bytes.checked_add(extra as u64).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_fractions() {
        let cases = [
            ("0", 0),
            ("2048", 2048),
            ("512M", 512 << 20),
            ("4g", 4 << 30),
            ("4Gi", 4 << 30),
            ("1.5GiB", 3 << 29),
            (" 2 TB ", 2 << 40),
            ("0.25k", 256),
            ("16777215T", 16_777_215 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "1.2.3G",
            "-1G",
            "1X",
            "1.5",
            "16777216T",
            "99999999999999999999",
            ".5G",
            "1 2G",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
