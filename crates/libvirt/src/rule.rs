//! The rules: names, severities, reasons and remedies. `docs/lint.md` has the same table.

use std::fmt;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// libvirt, QEMU or the kernel refuses the domain.
    Error,
    /// The domain runs, but slower or otherwise than its XML says.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// The input that a rule compares with the domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The XML alone.
    Text,
    /// The host's topology.
    Host,
    /// A placement: the rule is for [`contradictions()`](crate::contradictions()).
    Placement,
}

macro_rules! rules {
    ($($rule:ident $name:literal $severity:ident $needs:ident
       $summary:literal $why:literal $fix:literal)*) => {
        /// A rule that a domain can break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $summary] $rule,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)*];

            /// The stable name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }

            /// The weight of its findings.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$rule => Severity::$severity,)* }
            }

            /// The input beside the XML.
            pub const fn needs(self) -> Needs {
                match self { $(Self::$rule => Needs::$needs,)* }
            }

            /// The fault, in general.
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$rule => $summary,)* }
            }

            /// Why it matters.
            pub const fn why(self) -> &'static str {
                match self { $(Self::$rule => $why,)* }
            }

            /// The remedy.
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$rule => $fix,)* }
            }
        }
    };
}

rules! {
    MemnodeWithAuto "memnode-with-auto" Error Text
    "`<memnode>` beside automatic placement."
    "libvirt rejects the domain: \"Per-node binding is not compatible with automatic NUMA \
     placement\"."
    "Write placement='static' with a nodeset, or remove the `<memnode>` elements."

    MemnodeForMissingCell "memnode-for-missing-cell" Error Text
    "A `<memnode>` for a cell that does not exist."
    "libvirt rejects the domain."
    "Describe the cell in `<cpu><numa>`, or remove the `<memnode>`."

    StaticWithoutNodeset "static-without-nodeset" Error Text
    "`<numatune><memory>` with static placement and no nodeset."
    "libvirt rejects the domain."
    "Add nodeset='...' with the host's nodes, or write placement='auto'."

    AutoWithNodeset "auto-with-nodeset" Warning Text
    "A nodeset beside placement='auto'."
    "libvirt drops the nodeset and asks numad, so the memory may lie on other nodes."
    "Remove placement='auto' to keep the nodeset, or remove the nodeset."

    AutoMemoryWithPins "auto-memory-with-pins" Warning Text
    "Memory whose nodes numad chooses, and vCPUs that the XML binds."
    "numad knows neither cpuset= nor `<vcpupin>`, so the memory may lie far from the vCPUs."
    "Bind the memory with a nodeset near those CPUs, or write placement='auto' for the vCPUs and \
     remove `<vcpupin>`."

    ModeUnknownToQemu "mode-unknown-to-qemu" Error Text
    "A memory mode that neither libvirt nor QEMU's memory backends know."
    "libvirt rejects the domain. QEMU knows the policies default, preferred, bind and interleave \
     alone."
    "Write strict, preferred, interleave or restrictive."

    MixedRestrictive "mixed-restrictive" Error Text
    "The mode restrictive on `<memory>` and another mode on a `<memnode>`, or the reverse."
    "The cgroup alone enforces this mode, and for all memory. libvirt 11.3 rejects the domain; 9.0 \
     accepts a restrictive `<memnode>` below another mode, and that cell gets no policy."
    "Write mode='restrictive' on all of them, or on none."

    PreferredSeveralNodes "preferred-several-nodes" Warning Text
    "The mode preferred with more than one node, or with the nodes that numad chooses."
    "Older versions of libvirt and Linux (before 5.15) refuse this or prefer the first node alone."
    "Name one node, or use strict."

    RestrictiveCollapsesCells "restrictive-collapses-cells" Warning Text
    "The mode restrictive with cells on different nodes."
    "QEMU gets no policy for a cell, and a change of the nodeset while the domain runs puts all \
     cells on one node set."
    "Use strict, and let Nearside move the cells one by one."

    CellsWithoutMemnode "cells-without-memnode" Warning Text
    "Several cells, and some without a `<memnode>`."
    "The guest believes that the cell is one node, but its pages lie on whichever node the host \
     has free, so the guest's own placement works against the machine."
    "Add a `<memnode>` for each cell."

    PreallocationWithoutNumatune "preallocation-without-numatune" Warning Text
    "Memory that is allocated or locked at the start and bound to no node."
    "All memory will come from one node if it fits: that of the thread that touches it."
    "Bind the memory with `<numatune>`."

    HugePagesWithoutNumatune "huge-pages-without-numatune" Warning Text
    "Huge pages that are bound to no node."
    "QEMU touches all huge pages at the start, so all memory will come from one node if its pool \
     is large enough."
    "Bind the memory with `<numatune>`."

    VfioWithoutNumatune "vfio-without-numatune" Warning Text
    "A device that pins the guest's memory, and memory that is bound to no node."
    "All memory is touched and pinned at the start: it will come from one node if it fits, and \
     cannot move while the domain runs."
    "Bind the memory with `<numatune>`, near the device."

    VfioCannotMove "vfio-cannot-move" Warning Text
    "A device that pins the guest's memory, and a mode that lets pages lie elsewhere."
    "Pages that fall on another node at the start stay there while the domain runs: pinned pages \
     cannot move."
    "Use mode='strict', so that a start without enough memory fails."

    GuestMemfdCannotMove "guest-memfd-cannot-move" Warning Text
    "Private memory of a confidential guest (guest_memfd)."
    "The kernel cannot move guest_memfd, and binds it to nodes only since Linux 6.19: a bad start \
     lasts as long as the domain."
    "Make sure before the start that the home has enough free memory, and bind vCPUs and emulator \
     to its CPUs."

    HugePagesForMissingCell "huge-pages-for-missing-cell" Error Text
    "A huge page size for a cell that does not exist."
    "libvirt rejects the domain: nodeset= of `<page>` names the guest's cells, not the host's \
     nodes."
    "Name cells of `<cpu><numa>`."

    TwoDefaultHugePages "two-default-huge-pages" Error Text
    "Two sizes of huge pages for all memory."
    "libvirt rejects the domain."
    "Name cells in nodeset= for all sizes but one."

    HugePagesOverlap "huge-pages-overlap" Error Text
    "Two entries of huge pages for one cell."
    "libvirt rejects the domain, also if both sizes are equal."
    "Name each cell in one `<page>`."

    HugePagesContradictBacking "huge-pages-contradict-backing" Error Text
    "Huge pages with an anonymous source or with allocation on demand."
    "libvirt rejects the domain."
    "Remove `<source>` and `<allocation>`: huge pages imply both."

    SharedMemoryMissing "shared-memory-missing" Error Text
    "A vhost-user or virtiofs device, and memory that is not shared."
    "The device's process cannot map the guest's memory, so the start fails or the device does \
     not work."
    "Add `<access mode='shared'/>` to `<memoryBacking>`, with a source memfd or huge pages."

    CellsExceedVcpus "cells-exceed-vcpus" Error Text
    "A cell that names a vCPU which the domain does not have."
    "libvirt rejects the domain."
    "Raise `<vcpu>`, or correct cpus= of the cell."

    VcpusOutsideCells "vcpus-outside-cells" Warning Text
    "vCPUs that no cell names."
    "libvirt gives them to cell 0, which then has more vCPUs than its node was meant for."
    "Name each vCPU in one cell."

    CellWithoutOnlineVcpu "cell-without-online-vcpu" Warning Text
    "A cell none of whose vCPUs is plugged in at the start."
    "All vCPUs of the start are on other cells, so every access to this cell's memory is remote."
    "Enable a vCPU of each cell in `<vcpus>`, or number the vCPUs in turn over the cells."

    CellWithoutMemory "cell-without-memory" Error Text
    "A cell of no memory."
    "QEMU (7.2) refuses the start: a memory backend of 0 bytes cannot be made. libvirt (9.0) asks \
     for one, also where a memory device names the cell."
    "Give the cell memory, or remove it and name its vCPUs in another cell."

    VcpusWithoutMemory "vcpus-without-memory" Warning Text
    "All vCPUs of the start in cells without memory."
    "Every access to memory is remote; Linux guests may crash when memory is plugged into the cell."
    "Give the cells of the first vCPUs memory, or enable vCPUs of other cells in `<vcpus>`."

    TopologyUnlikeVcpus "topology-unlike-vcpus" Error Text
    "`<topology>` with more or fewer vCPUs than the maximum of `<vcpu>`."
    "libvirt rejects the domain: \"CPU topology doesn't match maximum vcpu count\"."
    "Make sockets, dies, clusters, cores and threads, multiplied, the maximum of `<vcpu>`."

    SocketSpansCells "socket-spans-cells" Warning Text
    "A guest's socket, or a die of it, whose vCPUs are in several cells."
    "The guest sees a last-level cache that reaches over nodes; Linux guests warn and may ignore \
     the topology."
    "Make sockets or dies of `<topology>` as large as the cells."

    MemoryMissing "memory-missing" Error Text
    "A domain without cells, and without `<memory>` or with one of 0."
    "libvirt rejects the domain."
    "Say in `<memory>` how much memory the guest has."

    MemoryUnlikeCells "memory-unlike-cells" Warning Text
    "`<memory>` that is not the sum of the cells and memory devices."
    "libvirt takes the sum and ignores `<memory>`, so the domain has another size than it says."
    "Correct `<memory>` or the cells."

    DistanceToMissingCell "distance-to-missing-cell" Error Text
    "A distance to a cell that does not exist."
    "libvirt rejects the domain."
    "Correct id= of the `<sibling>`."

    DistancesIncomplete "distances-incomplete" Warning Text
    "Distances for some pairs of cells alone."
    "The others count as 20, which may be nearer or farther than the written ones."
    "Write the distance of each pair."

    ControllerNearMissingCell "controller-near-missing-cell" Error Text
    "A PCI controller near a cell that does not exist."
    "libvirt rejects the domain."
    "Correct `<target><node>` of the controller."

    MaximumMemoryWithoutCells "maximum-memory-without-cells" Error Text
    "`<maxMemory>` in a domain without cells."
    "libvirt rejects the domain, except on POWER: QEMU would make a cell of its own."
    "Describe cells in `<cpu><numa>`, or remove `<maxMemory>`."

    MaximumMemoryBelowMemory "maximum-memory-below-memory" Error Text
    "`<maxMemory>` that is less than the memory of the start."
    "libvirt rejects the domain: the cells and memory devices count, whatever `<memory>` says."
    "Raise `<maxMemory>` to the sum of cells and memory devices, or more."

    MemoryDeviceWithoutCell "memory-device-without-cell" Error Text
    "A memory device without a cell, or with one that does not exist."
    "libvirt or QEMU rejects the device."
    "Describe cells in `<cpu><numa>`, and name one in `<target><node>`."

    MemoryDeviceWithoutMaximum "memory-device-without-maximum" Error Text
    "A memory device in a domain without `<maxMemory>`."
    "libvirt rejects the domain."
    "Add `<maxMemory slots='...'>`."

    MemoryDeviceOffCell "memory-device-off-cell" Warning Text
    "A memory device that is bound to other nodes than its cell."
    "The guest takes the device's memory for as near as the rest of the cell."
    "Name nodes of the cell's `<memnode>` in `<nodemask>`."

    VcpupinForMissingVcpu "vcpupin-for-missing-vcpu" Warning Text
    "A `<vcpupin>` for a vCPU that does not exist."
    "libvirt ignores it without a message."
    "Correct vcpu= (numbers begin with 0), or remove the `<vcpupin>`."

    VcpuschedForMissingVcpu "vcpusched-for-missing-vcpu" Error Text
    "A `<vcpusched>` for a vCPU that does not exist."
    "libvirt rejects the domain."
    "Correct vcpus= (numbers begin with 0), or raise `<vcpu>`."

    CachetuneForMissingVcpu "cachetune-for-missing-vcpu" Warning Text
    "A `<cachetune>` or `<memorytune>` for a vCPU that does not exist."
    "libvirt leaves the vCPU out without a message, and the element if no other is left."
    "Correct vcpus= (numbers begin with 0), or remove the element."

    VcpusPartlyPinned "vcpus-partly-pinned" Warning Text
    "Some vCPUs with a binding, and some without."
    "The others run anywhere, also on the CPUs of the bound ones and far from the memory."
    "Bind all vCPUs, or none."

    CpusetIgnored "cpuset-ignored" Warning Text
    "cpuset= beside placement='auto'."
    "libvirt ignores the CPUs and takes those of numad's nodes."
    "Write placement='static', or remove cpuset=."

    IothreadMissing "iothread-missing" Error Text
    "A binding, a scheduler or a device that names an iothread which does not exist."
    "libvirt rejects the domain."
    "Raise `<iothreads>` or list the number in `<iothreadids>`; numbers begin with 1."

    NodesetBeyondHost "nodeset-beyond-host" Error Host
    "A nodeset with nodes that the host does not have."
    "The domain does not start."
    "Name nodes that `nearside topology` lists."

    NodesWithoutMemory "nodes-without-memory" Warning Host
    "A nodeset with nodes that have no memory."
    "The kernel takes these nodes out of the policy; if none is left, the domain does not start."
    "Name nodes with memory that are near those CPUs."

    CpusBeyondHost "cpus-beyond-host" Error Host
    "A binding to CPUs that the host does not have, or that are offline."
    "The domain does not start if no CPU is left, and has less CPU time than meant otherwise."
    "Name CPUs that are online."

    StrictNodesetTooSmall "strict-nodeset-too-small" Error Host
    "A strict nodeset with less memory than the cells bound to it."
    "The start fails, or the kernel kills the guest when its memory fills."
    "Add nodes, make the guest smaller, or use preferred."

    HugePagesTooFew "huge-pages-too-few" Error Host
    "Fewer huge pages in the pools of the nodeset than the guest needs."
    "The start fails, although pools of other nodes may have pages."
    "Reserve pages on these nodes: /sys/devices/system/node/nodeN/hugepages."

    EmulatorpinOutsideMemnodes "emulatorpin-outside-memnodes" Warning Host
    "An emulator that may not run on the nodes of a cell's memory."
    "The emulator's threads allocate memory at the start: with huge pages the start fails, \
     otherwise every page is touched from afar."
    "Add CPUs of each `<memnode>` to `<emulatorpin>`."

    PreallocationWithoutCpus "preallocation-without-cpus" Warning Host
    "Memory that is allocated at the start and bound to nodes without CPUs."
    "libvirt 9.0 asks QEMU for threads on these nodes to allocate with, and QEMU 7.2 ends: \"The \
     nodes select no CPUs\"."
    "Name a node with CPUs, too, or leave out huge pages and mode='immediate', so that the guest \
     allocates the memory by use."

    VcpusOffMemory "vcpus-off-memory" Warning Host
    "vCPUs bound to nodes that hold none of their cell's memory."
    "Every access to memory is remote."
    "Bind vCPUs and memory of a cell to the same nodes."

    VcpusOnMoreNodesThanMemory "vcpus-on-more-nodes-than-memory" Warning Host
    "vCPUs bound to nodes with memory beyond those of their cell's memory."
    "Part of the time the vCPUs run where each access to memory is remote."
    "Bind the vCPUs to the nodes of the memory, or spread the memory as well."

    SiblingsOnDifferentCores "siblings-on-different-cores" Warning Host
    "vCPUs of one core of the guest that are bound to CPUs of different cores."
    "The guest shares work between threads of a core that is none, and puts tasks that should have \
     a core each on CPUs that share one."
    "Bind the vCPUs of a core to the CPUs of one core, or write threads='1'."

    DeviceFarFromMemory "device-far-from-memory" Warning Host
    "A host device on a node that holds none of the guest's memory."
    "Each transfer of the device crosses the link between the nodes."
    "Bind a cell to the device's node, or choose a device of the home."

    DistancesUnlikeHost "distances-unlike-host" Warning Host
    "Cells whose distances have another order than those of their nodes."
    "The guest spills memory and moves tasks to the wrong cell first."
    "Copy the host's distances."

    OperatorOverridesPlacement "operator-overrides-placement" Warning Placement
    "A binding in the XML that differs from the placement."
    "The operator's binding stays, so the domain does not get the home that was chosen."
    "Remove the binding to accept the placement, or place the domain on these nodes."
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_kebab_case() {
        let names: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        let is_kebab = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(names.iter().all(|name| is_kebab(name)), "{names:?}");
    }
}
