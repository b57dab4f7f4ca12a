//! `-smp`: the vCPUs and their topology (QEMU, `hw/core/machine-smp.c`).

use crate::{
    grammar::Keys,
    model::{VcpuId, VcpuSet},
};

/// The most vCPUs of a virtual machine that is read.
const MAX_VCPUS: u64 = 65_535;

/// The vCPUs and their topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Smp {
    pub(crate) vcpus: u32,
    pub(crate) max_vcpus: u32,
    pub(crate) sockets: u32,
    /// All levels between sockets and cores.
    pub(crate) clusters: u32,
    pub(crate) cores: u32,
    pub(crate) threads: u32,
    /// Whether the operator states the number of sockets.
    pub(crate) states_sockets: bool,
    /// Whether the operator states any of the topology.
    pub(crate) states_topology: bool,
}

/// Levels between sockets and cores that some machine knows.
const MIDDLE: [&str; 5] = ["dies", "clusters", "modules", "books", "drawers"];

impl Smp {
    pub(crate) fn read(keys: &Keys) -> Result<Self, String> {
        let number = |key: &str| match keys.number(key)? {
            Some(0) => Err(format!("{key}=0: expected at least 1")),
            number => Ok(number.map(u64::from)),
        };
        let too_many = || format!("more than {MAX_VCPUS} vCPUs");
        let mut clusters = 1_u64;
        for key in MIDDLE {
            clusters = clusters.saturating_mul(number(key)?.unwrap_or(1));
        }
        let (cpus, max) = (number("cpus")?, number("maxcpus")?);
        let (sockets, cores) = (number("sockets")?, number("cores")?);
        let threads = number("threads")?.unwrap_or(1);
        let product = |sockets: u64, cores: u64| {
            sockets.saturating_mul(clusters).saturating_mul(cores).saturating_mul(threads)
        };
        let known_max = max.or_else(|| {
            let implied = product(sockets.unwrap_or(1), cores.unwrap_or(1));
            cpus.map(|cpus| {
                cpus.max(if sockets.is_some() && cores.is_some() { implied } else { 0 })
            })
        });
        // Machines since QEMU 6.2 prefer cores over sockets.
        let (sockets, cores) = match (sockets, cores, known_max) {
            (Some(sockets), Some(cores), _) => (sockets, cores),
            (Some(sockets), None, max) => {
                (sockets, max.unwrap_or(1).checked_div(product(sockets, 1)).unwrap_or(1).max(1))
            }
            (None, Some(cores), max) => {
                (max.unwrap_or(1).checked_div(product(1, cores)).unwrap_or(1).max(1), cores)
            }
            (None, None, max) => {
                (1, max.unwrap_or(1).checked_div(product(1, 1)).unwrap_or(1).max(1))
            }
        };
        let max = known_max.unwrap_or_else(|| product(sockets, cores));
        let cpus = cpus.unwrap_or(max);
        if cpus > max {
            return Err(format!("{cpus} vCPUs are more than maxcpus={max}"));
        }
        if max > MAX_VCPUS {
            return Err(too_many());
        }
        if product(sockets, cores) != max {
            return Err(format!(
                "sockets, cores and threads give {} vCPUs, not {max}",
                product(sockets, cores)
            ));
        }
        let small = |number: u64| u32::try_from(number).map_err(|_| too_many());
        let levels = MIDDLE.iter().chain(&["sockets", "cores", "threads"]);
        Ok(Self {
            vcpus: small(cpus)?,
            max_vcpus: small(max)?,
            sockets: small(sockets)?,
            clusters: small(clusters)?,
            cores: small(cores)?,
            threads: small(threads)?,
            states_sockets: keys.get("sockets").is_some(),
            states_topology: levels.into_iter().any(|key| keys.get(key).is_some()),
        })
    }

    /// vCPUs of a socket.
    pub(crate) fn per_socket(&self) -> u32 {
        self.clusters * self.cores * self.threads
    }

    /// The vCPUs that the keys of `-numa cpu` name. Threads are numbered fastest.
    pub(crate) fn matching(&self, keys: &Keys) -> Result<VcpuSet, String> {
        let (socket, core, thread) =
            (keys.number("socket-id")?, keys.number("core-id")?, keys.number("thread-id")?);
        if let Some(key) = ["die-id", "cluster-id", "module-id"]
            .into_iter()
            .find(|key| keys.get(key).is_some_and(|id| id != "0"))
        {
            return Err(format!("vCPUs cannot be found by {key}: use cpus= of -numa node"));
        }
        let is_it = |vcpu: &u32| {
            let at_core = vcpu / self.threads;
            let is = |wanted: Option<u32>, number: u32| wanted.is_none_or(|id| id == number);
            is(socket, vcpu / self.per_socket())
                && is(core, at_core % (self.clusters * self.cores))
                && is(thread, vcpu % self.threads)
        };
        Ok((0..self.max_vcpus).filter(is_it).map(VcpuId).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::qemu_keys;

    #[test]
    fn missing_levels_follow_from_the_others() {
        for (text, expected) in [
            ("4", (4, 4, 1, 4, 1)),
            ("4,sockets=2", (4, 4, 2, 2, 1)),
            ("2,maxcpus=8,sockets=2,cores=2,threads=2", (2, 8, 2, 2, 2)),
            ("sockets=2,cores=3", (6, 6, 2, 3, 1)),
            ("8,threads=2", (8, 8, 1, 4, 2)),
            ("", (1, 1, 1, 1, 1)),
        ] {
            let smp = Smp::read(&qemu_keys(text, "cpus")).unwrap();
            let read = (smp.vcpus, smp.max_vcpus, smp.sockets, smp.cores, smp.threads);
            assert_eq!(read, expected, "{text}");
        }
        for text in ["0", "x", "4,maxcpus=2", "5,sockets=2", "4000000000", "99999"] {
            assert!(Smp::read(&qemu_keys(text, "cpus")).is_err(), "{text}");
        }
    }

    #[test]
    fn numa_cpu_names_vcpus_by_socket_and_core() {
        let smp = Smp::read(&qemu_keys("8,sockets=2,cores=2,threads=2", "cpus")).unwrap();
        let of = |text: &str| smp.matching(&qemu_keys(text, "type")).unwrap().to_string();
        assert_eq!(of("cpu,socket-id=1"), "4-7");
        assert_eq!(of("cpu,socket-id=0,core-id=1"), "2-3");
        assert_eq!(of("cpu,socket-id=0,core-id=1,thread-id=1"), "3");
    }
}
