//! Guests in groups, and the memory of their cells.

use super::handle::Host;
use crate::{
    cgroup::Cgroup,
    error::Error,
    guest::{Guest, GuestCell, Unknown, guest},
    migrate::Extent,
};
use nearside_policy::PartId;
use nearside_topology::Topology;

impl Host {
    /// The guest in a group, by its cells; none if the group has neither a QEMU domain of libvirt
    /// nor a QEMU with cells.
    ///
    /// # Errors
    /// With the reason, if libvirt or QEMU cannot be asked about it.
    pub fn guest(&self, group: &Cgroup, topology: &Topology) -> Option<Result<Guest, Unknown>> {
        guest(&self.actuators, &self.monitors, &self.tree, &self.proc(), group, topology)
    }

    /// The same, and remembers its cells: changes of one cell need not ask again while the same
    /// QEMU runs.
    ///
    /// # Errors
    /// As [`guest`](Self::guest); then the last look stays remembered.
    pub fn look_at_guest(
        &mut self,
        group: &Cgroup,
        topology: &Topology,
    ) -> Option<Result<Guest, Unknown>> {
        let seen = self.guest(group, topology);
        self.looks.keep(group.path(), seen.as_ref());
        seen
    }

    /// Asks monitors of QEMU in threads of their own from now on: a guest can make its monitor
    /// hang. A later [`guest`](Self::guest) has the answer.
    pub fn ask_monitors_beside(&mut self) {
        self.monitors.ask_beside();
    }

    /// Forgets what it has learnt about domains and groups that have ended. `lives` takes a
    /// domain's name, which is the path of its group if a pattern found it.
    pub fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.looks.keep_only(&lives);
        self.walks.keep_only(lives);
    }

    /// The cells of the guest that a part belongs to.
    pub(super) fn cells_of(
        &self,
        id: &PartId,
        group: &Cgroup,
        topology: &Topology,
    ) -> Result<Vec<GuestCell>, Error> {
        if let Some(cells) = self.looks.remembered(group.path(), &self.proc()) {
            return Ok(cells.to_vec());
        }
        match self.guest(group, topology) {
            Some(Ok(guest)) => Ok(guest.cells),
            Some(Err(why)) => Err(Error::Refused(format!("{id}: {why}"))),
            None => Ok(Vec::new()),
        }
    }

    /// The memory of a part in its group.
    ///
    /// # Errors
    /// If it is a cell whose memory is unknown.
    pub(super) fn extent(
        &self,
        id: &PartId,
        group: &Cgroup,
        topology: &Topology,
    ) -> Result<Extent, Error> {
        let Some(cell) = id.cell() else { return Ok(Extent::Group) };
        Extent::of_cell(&self.cells_of(id, group, topology)?, cell).ok_or_else(|| {
            Error::Refused(format!("{id}: its memory cannot be told from that of other cells"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{guest::Addresses, made::Made};
    use nearside_policy::CellId;
    use std::fs;

    const GROUP: &str = "/vm";
    const QEMU: i32 = 7;
    const MIB: u64 = 1 << 20;

    impl Made {
        fn vm(&self) -> Cgroup {
            self.host().tree().group(GROUP).unwrap()
        }

        /// Lets a QEMU with a cell at each of these addresses, of 32 MiB each, run in the group
        /// alone. Its thread after the first runs a vCPU of cell 0.
        fn runs_qemu(&self, process: i32, start_ticks: u64, cells: [u64; 2]) {
            let vcpu = process + 1;
            let cmdline = "qemu-system-x86_64\0-smp\x002,maxcpus=2\0-m\x0064M\0\
                 -object\0memory-backend-ram,id=ram-node0,size=32M\0\
                 -object\0memory-backend-ram,id=ram-node1,size=32M\0\
                 -numa\0node,nodeid=0,cpus=0,memdev=ram-node0\0\
                 -numa\0node,nodeid=1,cpus=1,memdev=ram-node1\0";
            let stat = |it: i32| {
                let unused = |fields| "0 ".repeat(fields);
                format!("{it} (qemu) S {}2 0 {start_ticks} {}\n", unused(16), unused(30))
            };
            let of = |address: u64| (address, address + 32 * MIB);
            // The first backend lies highest.
            let (maps, numa_maps) = [cells[1], cells[0]].map(of).iter().fold(
                (String::new(), String::new()),
                |(maps, numa), (start, end)| {
                    let maps = format!("{maps}{start:x}-{end:x} rw-p 00000000 00:00 0 \n");
                    let numa = format!("{numa}{start:x} default anon=1 N0=1 kernelpagesize_kB=4\n");
                    (maps, numa)
                },
            );
            for (file, text) in [
                ("cmdline", cmdline),
                ("stat", &stat(process)),
                ("maps", &maps),
                ("numa_maps", &numa_maps),
            ] {
                self.file(&format!("proc/{process}/{file}"), text);
            }
            self.file(&format!("proc/{vcpu}/status"), &format!("Tgid:\t{process}\n"));
            for (thread, comm) in [(process, "qemu"), (vcpu, "CPU 0/TCG")] {
                let folder = format!("proc/{thread}/task/{thread}");
                self.file(&format!("{folder}/cgroup"), &format!("0::{GROUP}\n"));
                self.file(&format!("{folder}/comm"), &format!("{comm}\n"));
                self.file(&format!("{folder}/stat"), &stat(thread));
            }
            self.file("cg/vm/cgroup.procs", &format!("{process}\n"));
            self.file("cg/vm/cgroup.threads", &format!("{process}\n{vcpu}\n"));
        }
    }

    /// The memory of cell 0: all but that of cell 1.
    fn extent(host: &Host, made: &Made) -> Result<Extent, String> {
        let id = PartId::cell_of(GROUP, CellId(0));
        let extent = host.extent(&id, &made.vm(), &host.topology().unwrap());
        extent.map_err(|error| error.to_string())
    }

    fn without(process: i32, start: u64) -> Result<Extent, String> {
        let range = start..start + 32 * MIB;
        Ok(Extent::Without(vec![Addresses { process, range }]))
    }

    /// A host that has looked at a guest.
    fn looked() -> (Made, Host) {
        let made = Made::of("cpuset memory", 2, 4096, 4096);
        made.runs_qemu(QEMU, 100, [0x800_0000, 0x400_0000]);
        let mut host = made.host();
        let topology = host.topology().unwrap();
        let seen = host.look_at_guest(&made.vm(), &topology).unwrap().unwrap();
        assert_eq!(seen.cells[0].thread_numbers.len(), 1, "{seen:?}");
        (made, host)
    }

    #[test]
    fn a_look_is_remembered_while_its_qemu_runs() {
        let (made, mut host) = looked();
        // Nothing of it is read again.
        for file in ["cmdline", "maps", "numa_maps"] {
            fs::remove_file(made.path(&format!("proc/{QEMU}/{file}"))).unwrap();
        }
        assert_eq!(extent(&host, &made), without(QEMU, 0x400_0000));
        host.keep_only(|name| name != GROUP);
        assert!(extent(&host, &made).is_err(), "the group has ended");
    }

    #[test]
    fn another_qemu_in_the_same_group_is_looked_at_anew() {
        for (process, start_ticks) in [(QEMU, 200), (17, 200), (17, 100)] {
            let (made, host) = looked();
            fs::remove_dir_all(made.path(&format!("proc/{QEMU}"))).unwrap();
            made.runs_qemu(process, start_ticks, [0x4800_0000, 0x4400_0000]);
            assert_eq!(extent(&host, &made), without(process, 0x4400_0000));
        }
    }

    #[test]
    fn memory_of_a_qemu_that_has_ended_is_not_moved() {
        let (made, host) = looked();
        let stat = made.path(&format!("proc/{QEMU}/stat"));
        let text = fs::read_to_string(&stat).unwrap();
        made.file("cg/vm/cgroup.procs", "");
        fs::write(&stat, text.replace(" S ", " Z ")).unwrap();
        let refused = extent(&host, &made).unwrap_err();
        assert!(refused.contains("cannot be told from that of other cells"), "{refused}");
        fs::remove_dir_all(made.path(&format!("proc/{QEMU}"))).unwrap();
        assert_eq!(extent(&host, &made), Err(refused));
    }
}
