//! Typed parameters (`remote_typed_param`, `src/remote/remote_protocol.x`).

use crate::{
    error::Garbled,
    message::MAX_STRING,
    xdr::{Reader, Writer},
};

/// `REMOTE_DOMAIN_NUMA_PARAMETERS_MAX`.
pub(crate) const MAX_COUNT: u32 = 16;

/// `VIR_DOMAIN_NUMA_MODE` and `VIR_DOMAIN_NUMA_NODESET`, `include/libvirt/libvirt-domain.h`.
pub(crate) const MODE: &str = "numa_mode";
pub(crate) const NODESET: &str = "numa_nodeset";

/// `VIR_TYPED_PARAM_STRING`, `include/libvirt/libvirt-common.h.in`.
const STRING: u32 = 7;

/// The value of a parameter. Kinds that no parameter of interest has are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// `int`.
    Int(i32),
    /// A string.
    Text(String),
    /// Another kind.
    Other,
}

/// Reads a list of parameters.
pub(crate) fn read_all(reader: &mut Reader<'_>) -> Result<Vec<(String, Parameter)>, Garbled> {
    // The shortest parameter: no name, its kind, a word.
    let count = reader.count(MAX_COUNT, 12)?;
    (0..count)
        .map(|_| {
            let name = reader.string(MAX_STRING)?.to_owned();
            let value = match reader.u32()? {
                1 => Parameter::Int(reader.i32()?),
                // Unsigned, and boolean.
                2 | 6 => reader.u32().map(|_| Parameter::Other)?,
                // Long, unsigned long, double.
                3..=5 => reader.u64().map(|_| Parameter::Other)?,
                STRING => Parameter::Text(reader.string(MAX_STRING)?.to_owned()),
                value => return Err(Garbled::Unknown { what: "kind of a parameter", value }),
            };
            Ok((name, value))
        })
        .collect()
}

/// Adds a list of one parameter: the node set.
pub(crate) fn write_nodeset(writer: Writer, nodes: &str) -> Writer {
    writer.u32(1).string(NODESET).u32(STRING).string(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_other_kinds_are_skipped() {
        let bytes = Writer::default()
            .u32(4)
            .string("a")
            .u32(2)
            .u32(9)
            .string("b")
            .u32(5)
            .u32(0)
            .u32(0)
            .string(MODE)
            .u32(1)
            .i32(3)
            .string(NODESET)
            .u32(7)
            .string("0-1")
            .into_bytes();
        let mut reader = Reader::new(&bytes);
        let read = read_all(&mut reader).unwrap();
        assert_eq!(reader.end(), Ok(()));
        let values: Vec<_> = read.into_iter().map(|(_, value)| value).collect();
        let text = Parameter::Text("0-1".into());
        assert_eq!(values, [Parameter::Other, Parameter::Other, Parameter::Int(3), text]);
    }

    #[test]
    fn more_parameters_than_the_protocol_allows_are_refused() {
        let many = Writer::default().u32(17).into_bytes();
        let refused = read_all(&mut Reader::new(&many));
        assert_eq!(refused, Err(Garbled::TooMany { count: 17, at_most: 16 }));
        let unknown = Writer::default().u32(1).string("a").u32(8).u32(0).into_bytes();
        assert!(matches!(
            read_all(&mut Reader::new(&unknown)),
            Err(Garbled::Unknown { value: 8, .. })
        ));
    }
}
