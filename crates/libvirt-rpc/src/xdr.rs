//! XDR (RFC 4506), as far as libvirt's protocol uses it: big-endian words of four bytes.
//!
//! Every length is bounded by the description of its field and by the bytes that are there, before
//! anything is allocated.

use crate::error::Garbled;

/// Writes the arguments of a call.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.u32(value.cast_unsigned())
    }

    /// `opaque[N]`: bytes without their number.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes.extend(&[0; 3][..padding(bytes.len())]);
        self
    }

    /// `opaque<>`: the number of bytes, and the bytes.
    pub(crate) fn opaque(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).fixed(bytes)
    }

    pub(crate) fn string(self, text: &str) -> Self {
        self.opaque(text.as_bytes())
    }

    /// `string *`: a string that is there.
    pub(crate) fn some_string(self, text: &str) -> Self {
        self.u32(1).string(text)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads an answer.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Garbled> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(Garbled::Short)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*word))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Garbled> {
        self.u32().map(u32::cast_signed)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Garbled> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(Garbled::Short)?;
        self.rest = rest;
        Ok(u64::from_be_bytes(*word))
    }

    /// `opaque[N]`. `N` has to be a multiple of four, as all of libvirt's are.
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Garbled::Short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// The number of a list's members, of which each takes at least `least_bytes`.
    pub(crate) fn count(&mut self, at_most: u32, least_bytes: usize) -> Result<usize, Garbled> {
        let count = self.u32()?;
        if count > at_most {
            return Err(Garbled::TooMany { count, at_most });
        }
        let count = count as usize;
        match count.checked_mul(least_bytes) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(Garbled::Short),
        }
    }

    /// `opaque<at_most>`.
    pub(crate) fn opaque(&mut self, at_most: u32) -> Result<&'a [u8], Garbled> {
        let length = self.count(at_most, 1)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Garbled::Short)?;
        self.rest = rest.get(padding(length)..).ok_or(Garbled::Short)?;
        Ok(bytes)
    }

    /// `string<at_most>`. Bytes that are not UTF-8 are replaced in messages, and refused elsewhere.
    pub(crate) fn string(&mut self, at_most: u32) -> Result<&'a str, Garbled> {
        std::str::from_utf8(self.opaque(at_most)?).map_err(|_| Garbled::NotUtf8)
    }

    /// `string *`: whether there is one, and the string.
    pub(crate) fn optional_text(&mut self, at_most: u32) -> Result<Option<String>, Garbled> {
        match self.u32()? {
            0 => Ok(None),
            1 => Ok(Some(String::from_utf8_lossy(self.opaque(at_most)?).into_owned())),
            other => Err(Garbled::Unknown { what: "presence of a string", value: other }),
        }
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), Garbled> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Garbled::Long { left }),
        }
    }
}

/// The zero bytes after a field of this length.
fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_padded_to_words_of_four_bytes() {
        let bytes = Writer::default().string("ab").fixed(&[7; 4]).i32(-1).opaque(&[]).into_bytes();
        assert_eq!(
            bytes,
            [0, 0, 0, 2, b'a', b'b', 0, 0, 7, 7, 7, 7, 255, 255, 255, 255, 0, 0, 0, 0]
        );
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.string(2), Ok("ab"));
        assert_eq!(reader.fixed(), Ok([7; 4]));
        assert_eq!(reader.i32(), Ok(-1));
        assert_eq!(reader.opaque(0), Ok(&[][..]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_read() {
        let huge = [255; 4];
        assert_eq!(
            Reader::new(&huge).opaque(16),
            Err(Garbled::TooMany { count: u32::MAX, at_most: 16 })
        );
        assert_eq!(Reader::new(&huge).opaque(u32::MAX), Err(Garbled::Short));
        assert_eq!(Reader::new(&huge).count(u32::MAX, 24), Err(Garbled::Short));
        // The padding is missing.
        assert_eq!(Reader::new(&[0, 0, 0, 1, b'a', 0, 0]).string(9), Err(Garbled::Short));
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0xff, 0, 0, 0]).string(9), Err(Garbled::NotUtf8));
        assert_eq!(Reader::new(&[0; 3]).u32(), Err(Garbled::Short));
        assert_eq!(Reader::new(&[0; 7]).u64(), Err(Garbled::Short));
        assert_eq!(Reader::new(&[0; 5]).end(), Err(Garbled::Long { left: 5 }));
        let neither = [0, 0, 0, 2];
        assert!(matches!(
            Reader::new(&neither).optional_text(9),
            Err(Garbled::Unknown { value: 2, .. })
        ));
    }
}
