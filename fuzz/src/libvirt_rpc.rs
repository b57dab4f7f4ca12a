//! A libvirt daemon that answers anything.

use nearside_libvirt::{IothreadId, VcpuId};
use nearside_libvirt_rpc::{Connection, DomainHandle, Transport};
use nearside_topology::{CpuId, CpuSet};
use std::{io, time::Duration};

/// A stream with these bytes to read.
#[derive(Debug)]
struct Answers {
    left: Vec<u8>,
    read: usize,
}

impl Transport for Answers {
    fn read(&mut self, into: &mut [u8], _: Duration) -> io::Result<usize> {
        let left = self.left.get(self.read..).unwrap_or_default();
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        self.read += count;
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        Ok(bytes.len())
    }
}

/// Puts the header of the awaited reply before each piece of the input, so that the fuzzer reaches
/// the readers of payloads, and then reads the input as it is.
pub fn libvirt_rpc(input: &[u8]) {
    let (&status, payload) = input.split_first().unwrap_or((&0, &[]));
    for (procedure, call) in (0_usize..).zip(PROCEDURES) {
        let mut bytes = Vec::new();
        for word in [payload.len() as u32 + 28, 0x2000_8086, 1, call, 1, 1, u32::from(status & 1)] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(payload);
        ask(procedure, bytes);
        ask(procedure, input.to_vec());
    }
}

/// The numbers of the calls below.
const PROCEDURES: [u32; 9] = [66, 273, 22, 14, 230, 280, 351, 255, 225];

fn ask(procedure: usize, answers: Vec<u8>) {
    let answers = Box::new(Answers { left: answers, read: 0 });
    let mut libvirt = Connection::over(answers, Duration::from_secs(60));
    let domain = DomainHandle { name: "vm".into(), uuid: [0; 16], id: 1 };
    let cpus = CpuSet::from([CpuId(1)]);
    match procedure {
        0 => drop(libvirt.open_system()),
        1 => drop(libvirt.running_domains()),
        2 => drop(libvirt.domain_by_id(1)),
        3 => drop(libvirt.xml(&domain)),
        4 => {
            if let Ok(pins) = libvirt.vcpu_pins(&domain, 3) {
                assert!(pins.len() <= 3);
            }
        }
        5 => drop(libvirt.emulator_pin(&domain)),
        6 => drop(libvirt.iothread_pins(&domain)),
        7 => drop(libvirt.numa_parameters(&domain)),
        _ => {
            drop(libvirt.pin_vcpu(&domain, VcpuId(0), &cpus));
            drop(libvirt.pin_emulator(&domain, &cpus));
            drop(libvirt.pin_iothread(&domain, IothreadId(1), &cpus));
        }
    }
}
