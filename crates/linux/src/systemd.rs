//! Domains as scopes of systemd, which owns the cgroup tree where it runs (`org.freedesktop.systemd1(5)`).

use crate::error::Error;
use nearside_policy::Limits;
use nearside_topology::{Id, IdSet};
use std::{path::Path, time::Duration};
use zbus::{
    blocking::{Connection, Proxy},
    zvariant::{OwnedObjectPath, Value},
};

/// The slice that holds Nearside's scopes.
pub const SLICE: &str = "nearside.slice";

/// The bus error for a unit that is there already.
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// How long systemd is given to collect a scope whose processes have ended: 2 s in all.
const COLLECTED_TRIES: u32 = 20;
const COLLECTED_PAUSE: Duration = Duration::from_millis(100);

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd {
    manager: Proxy<'static>,
}

type Property<'a> = (&'a str, Value<'a>);

impl Systemd {
    /// Whether systemd runs this machine (`sd_booted(3)`).
    pub fn runs(root: &Path) -> bool {
        root.join("run/systemd/system").is_dir()
    }

    /// Connects over the system bus.
    pub fn connect() -> Result<Self, Error> {
        let failed =
            |error: zbus::Error| Error::Systemd { what: "connect over the system bus".into(), why: error.to_string() };
        let connection = Connection::system().map_err(failed)?;
        let manager = Proxy::new(
            &connection,
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
        );
        Ok(Self { manager: manager.map_err(failed)? })
    }

    /// The scope of a domain.
    pub fn unit(domain: &str) -> String {
        format!("nearside-{domain}.scope")
    }

    /// Makes the scope of a domain around this process, and waits until it is there.
    pub fn start_scope(&self, domain: &str, limits: Limits) -> Result<(), Error> {
        let unit = Self::unit(domain);
        let failed = |error: zbus::Error| Error::Systemd { what: format!("start {unit}"), why: error.to_string() };
        self.manager.call::<_, _, ()>("Subscribe", &()).map_err(failed)?;
        let mut removed = self.manager.receive_signal("JobRemoved").map_err(failed)?;
        let mut properties: Vec<Property<'_>> = vec![
            ("Description", Value::from(format!("Nearside domain {domain}"))),
            ("Slice", Value::from(SLICE)),
            // The domain's own processes may make groups below theirs.
            ("Delegate", Value::from(true)),
            ("CollectMode", Value::from("inactive-or-failed")),
            ("PIDs", Value::from(vec![std::process::id()])),
        ];
        if let Some(cpus) = limits.cpus {
            properties.push(("CPUQuotaPerSecUSec", Value::from((cpus * 1e6) as u64)));
        }
        if let Some(bytes) = limits.memory_bytes {
            properties.push(("MemoryMax", Value::from(bytes)));
        }
        let auxiliary: Vec<(&str, Vec<Property<'_>>)> = Vec::new();
        let start = || self.manager.call("StartTransientUnit", &(unit.as_str(), "fail", &properties, &auxiliary));
        let mut tries = 0;
        let job: OwnedObjectPath = loop {
            match start() {
                // The scope of a domain of that name that has just ended: systemd collects it in its own time.
                Err(zbus::Error::MethodError(name, ..)) if name.as_str() == UNIT_EXISTS && tries < COLLECTED_TRIES => {
                    tries += 1;
                    std::thread::sleep(COLLECTED_PAUSE);
                }
                started => break started.map_err(failed)?,
            }
        };
        for signal in &mut removed {
            let body = signal.body();
            let (_, path, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize().map_err(failed)?;
            if path == job {
                return match result.as_str() {
                    "done" => Ok(()),
                    _ => {
                        Err(Error::Systemd { what: format!("start {unit}"), why: format!("the job ended as {result}") })
                    }
                };
            }
        }
        Err(Error::Systemd { what: format!("start {unit}"), why: "the bus was closed".into() })
    }

    /// Allows a unit these CPUs only (`AllowedCPUs=`).
    pub fn set_cpus<T: Id>(&self, unit: &str, cpus: &IdSet<T>) -> Result<(), Error> {
        self.set(unit, vec![("AllowedCPUs", Value::from(bytes(cpus)))])
    }

    /// Allows a unit memory on these nodes only (`AllowedMemoryNodes=`).
    pub fn set_memory_nodes<T: Id>(&self, unit: &str, nodes: &IdSet<T>) -> Result<(), Error> {
        self.set(unit, vec![("AllowedMemoryNodes", Value::from(bytes(nodes)))])
    }

    fn set(&self, unit: &str, properties: Vec<Property<'_>>) -> Result<(), Error> {
        let names: Vec<_> = properties.iter().map(|(name, _)| *name).collect();
        let what = format!("set {} of {unit}", names.join(", "));
        // For this boot only: the unit is as short-lived as the domain.
        let call = self.manager.call::<_, _, ()>("SetUnitProperties", &(unit, true, properties));
        call.map_err(|error| Error::Systemd { what, why: error.to_string() })
    }
}

/// A set as systemd's bus interface takes it: bytes, the lowest number in the lowest bit of the first.
fn bytes<T: Id>(set: &IdSet<T>) -> Vec<u8> {
    let length = set.iter().next_back().map_or(0, |last| last.number() as usize / 8 + 1);
    let mut bytes = vec![0; length];
    for id in set.iter() {
        bytes[id.number() as usize / 8] |= 1 << (id.number() % 8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{CpuId, CpuSet};

    #[test]
    fn sets_travel_as_bytes_with_the_lowest_number_first() {
        assert_eq!(bytes(&CpuSet::from([CpuId(0), CpuId(3), CpuId(9)])), [0b1001, 0b10]);
        assert_eq!(bytes(&CpuSet::new()), [0_u8; 0]);
    }
}
