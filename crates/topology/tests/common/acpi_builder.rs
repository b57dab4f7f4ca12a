//! Builds ACPI tables byte by byte, so that a test shows the content of its tables and no fixture
//! is an opaque blob.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary includes this file and uses its own part of it"
)]

pub const GIB: u64 = 1 << 30;

/// Flags of SRAT entries.
pub const ENABLED: u32 = 1;
pub const HOT_PLUGGABLE: u32 = 2;
pub const NON_VOLATILE: u32 = 4;

/// A table under construction: everything but the length and the checksum.
#[derive(Clone)]
pub struct Builder(Vec<u8>);

impl Builder {
    fn new(signature: &[u8; 4], revision: u8) -> Self {
        let mut bytes = signature.to_vec();
        bytes.extend([0; 4]);
        bytes.extend([revision, 0]);
        bytes.extend(b"NEAR  NEARSIDE\x01\0\0\0NEAR\x01\0\0\0");
        Self(bytes)
    }

    pub fn srat(revision: u8) -> Self {
        Self::new(b"SRAT", revision).u32(1).raw(&[0; 8])
    }

    pub fn slit(localities: u64, distances: &[u8]) -> Self {
        Self::new(b"SLIT", 1).u64(localities).raw(distances)
    }

    pub fn madt() -> Self {
        Self::new(b"APIC", 6).u32(0xfee0_0000).u32(1)
    }

    pub fn hmat(revision: u8) -> Self {
        Self::new(b"HMAT", revision).u32(0)
    }

    pub fn other(signature: &[u8; 4]) -> Self {
        Self::new(signature, 1)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    // SRAT

    /// Type 0.
    pub fn apic(self, pxm: u32, apic_id: u8, flags: u32) -> Self {
        let [low, high @ ..] = pxm.to_le_bytes();
        self.raw(&[0, 16, low, apic_id]).u32(flags).raw(&[0]).raw(&high).u32(0)
    }

    /// Type 1.
    pub fn memory(self, pxm: u32, start: u64, length_bytes: u64, flags: u32) -> Self {
        self.raw(&[1, 40]).u32(pxm).u16(0).u64(start).u64(length_bytes).u32(0).u32(flags).u64(0)
    }

    /// Type 2.
    pub fn x2apic(self, pxm: u32, apic_id: u32, flags: u32) -> Self {
        self.raw(&[2, 24, 0, 0]).u32(pxm).u32(apic_id).u32(flags).u64(0)
    }

    /// Type 3.
    pub fn gicc(self, pxm: u32, uid: u32, flags: u32) -> Self {
        self.raw(&[3, 18]).u32(pxm).u32(uid).u32(flags).u32(0)
    }

    /// Type 4.
    pub fn its(self, pxm: u32, its: u32) -> Self {
        self.raw(&[4, 12]).u32(pxm).u16(0).u32(its)
    }

    /// Type 5 with a PCI handle.
    pub fn initiator(self, pxm: u32, [segment, bus, devfn]: [u8; 3], flags: u32) -> Self {
        self.raw(&[5, 32, 0, 1])
            .u32(pxm)
            .raw(&[segment, 0, bus, devfn])
            .raw(&[0; 12])
            .u32(flags)
            .u32(0)
    }

    /// Type 6 with an ACPI handle.
    pub fn port(self, pxm: u32, hid: &[u8; 8], uid: u32, flags: u32) -> Self {
        self.raw(&[6, 32, 0, 0]).u32(pxm).raw(hid).u32(uid).u32(0).u32(flags).u32(0)
    }

    /// Type 7.
    pub fn rintc(self, pxm: u32, uid: u32, flags: u32) -> Self {
        self.raw(&[7, 20, 0, 0]).u32(pxm).u32(uid).u32(flags).u32(0)
    }

    // MADT

    pub fn madt_apic(self, apic_id: u8, enabled: bool) -> Self {
        self.raw(&[0, 8, apic_id, apic_id]).u32(enabled.into())
    }

    pub fn madt_x2apic(self, apic_id: u32, enabled: bool) -> Self {
        self.raw(&[9, 16, 0, 0]).u32(apic_id).u32(enabled.into()).u32(apic_id)
    }

    pub fn madt_gicc(self, uid: u32, enabled: bool) -> Self {
        self.raw(&[11, 82, 0, 0]).u32(0).u32(uid).u32(enabled.into()).raw(&[0; 66])
    }

    pub fn madt_core_pic(self, core_id: u32, enabled: bool) -> Self {
        self.raw(&[17, 15, 1]).u32(core_id + 100).u32(core_id).u32(enabled.into())
    }

    pub fn madt_rintc(self, uid: u32, enabled: bool) -> Self {
        self.raw(&[24, 36, 1, 0]).u32(enabled.into()).u64(uid.into()).u32(uid).raw(&[0; 16])
    }

    // HMAT

    /// Type 0; flag 1 says that the initiator counts, flag 2 (revision 1) that the memory does.
    pub fn attachment(self, flags: u16, initiator: u32, memory: u32) -> Self {
        self.u32(0).u32(40).u16(flags).u16(0).u32(initiator).u32(memory).u32(0).u64(0).u64(0)
    }

    /// Type 1; `kind` is the hierarchy and the data type.
    pub fn locality(
        self,
        kind: [u8; 2],
        base_unit: u64,
        initiators: &[u32],
        targets: &[u32],
        entries: &[u16],
    ) -> Self {
        let length = 32 + 4 * (initiators.len() + targets.len()) + 2 * entries.len();
        let head = self.u32(1).u32(length as u32).raw(&kind).u16(0);
        let head =
            head.u32(initiators.len() as u32).u32(targets.len() as u32).u32(0).u64(base_unit);
        let lists = initiators.iter().chain(targets).fold(head, |table, &pxm| table.u32(pxm));
        entries.iter().fold(lists, |table, &entry| table.u16(entry))
    }

    /// Type 2, direct-mapped and write-back, with one SMBIOS handle.
    pub fn cache(self, memory: u32, size_bytes: u64, level: u32, line_bytes: u32) -> Self {
        let attributes = 1 | level << 4 | 1 << 8 | 1 << 12 | line_bytes << 16;
        self.u32(2).u32(34).u32(memory).u32(0).u64(size_bytes).u32(attributes).u16(0).u16(1).u16(7)
    }

    /// The finished table.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        set_checksum(&mut bytes);
        bytes
    }
}

/// Makes the checksum of a table right again after a test has changed a byte.
pub fn set_checksum(table: &mut [u8]) {
    table[9] = 0;
    table[9] = 0u8.wrapping_sub(table.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte)));
}

/// Two sockets with two CPUs and 4 GiB each, by the machine's usual table: the smallest machine
/// worth a test.
pub fn two_sockets() -> Builder {
    Builder::srat(3)
        .apic(0, 0, ENABLED)
        .apic(0, 1, ENABLED)
        .apic(1, 2, ENABLED)
        .apic(1, 3, ENABLED)
        .memory(0, 0, 4 * GIB, ENABLED)
        .memory(1, 4 * GIB, 4 * GIB, ENABLED)
}

/// Tables as the text of `acpidump`.
pub fn acpidump(tables: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for table in tables {
        text += &format!("{} @ 0x000000007FFE1A2B\n", String::from_utf8_lossy(&table[..4]));
        for (line, bytes) in table.chunks(16).enumerate() {
            let hexadecimal: String = bytes.iter().map(|byte| format!("{byte:02X} ")).collect();
            let plain: String =
                bytes.iter().map(|&b| if b.is_ascii_graphic() { b as char } else { '.' }).collect();
            text += &format!("    {:04X}: {hexadecimal:48} {plain}\n", line * 16);
        }
        text += "\n";
    }
    text
}
