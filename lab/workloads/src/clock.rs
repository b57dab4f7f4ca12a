//! The modelled clock, and work of a known length: instructions that the plugin in `lab/numatime`
//! gives a meaning.
#![allow(unsafe_code)]

use std::arch::{asm, x86_64::__rdtscp};

/// How long [`work`] takes.
pub const STEP_NS: u64 = 5_000;

/// Now, in nanoseconds (the modelled TSC runs at 1 GHz), and the CPU this runs on, in one
/// instruction.
pub fn sample() -> (u64, usize) {
    let mut aux = 0;
    // SAFETY: the guest's CPU has RDTSCP (lab/modelled.py), which writes `aux` alone.
    let now_ns = unsafe { __rdtscp(&raw mut aux) };
    // Linux keeps the CPU in the lower 12 bits: arch/x86/include/asm/segment.h, VDSO_CPUNODE_BITS.
    (now_ns, (aux & 0xfff) as usize)
}

/// Now, in nanoseconds.
pub fn now_ns() -> u64 {
    sample().0
}

/// One instruction that takes [`STEP_NS`]: `NUMATIME_BURN(5)`.
pub fn work() {
    // SAFETY: nopl, which reads and changes nothing.
    unsafe {
        asm!(".byte 0x0f, 0x1f, 0x80", ".long 0x4e554e05", options(nomem, nostack, preserves_flags))
    };
}

/// The plugin reports all its counters, under this number: `NUMATIME_MARK(ID)` of
/// `lab/numatime/guest/numatime.h`.
pub fn mark<const ID: u8>() {
    // SAFETY: as above.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x80",
            ".long 0x4e554d00 + {id}",
            id = const ID,
            options(nostack, preserves_flags)
        )
    };
}
