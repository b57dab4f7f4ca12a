//! Cells and backends that a command line of QEMU does not state yet.

use super::line::QemuLine;
use crate::{
    error::{CommandLineError, at},
    model::{VcpuId, VcpuSet},
    split::{memory_shares, shares},
};

/// The command line with its vCPUs and memory in `count` cells, which are not bound yet.
pub(crate) fn split(line: &QemuLine, count: u32) -> Result<Vec<String>, CommandLineError> {
    let words = &line.words;
    if let Some(node) = line.nodes.first() {
        return Err(at(words, node.at, "the command line has cells, so --cells cannot split it"));
    }
    if let Some(backend) = line.machine_backend.as_ref().and_then(|id| line.backends.get(id)) {
        let why = "memory in one backend cannot be split: leave it out, or state the cells";
        return Err(at(words, backend.at, why));
    }
    refuse_mem_path(line)?;
    let smp_fault = |why: String| match line.smp_at {
        Some(number) => at(words, number, why),
        None => CommandLineError::Whole(format!("{why} (there is no -smp)")),
    };
    let smp = &line.smp;
    if smp.vcpus != smp.max_vcpus {
        return Err(smp_fault(format!(
            "--cells needs maxcpus={}: vCPUs that are plugged in later belong to cells that \
             -numa node states",
            smp.vcpus
        )));
    }
    let (unit, name) = match (smp.states_sockets, smp.states_topology) {
        (true, _) => (smp.per_socket(), "socket"),
        (false, true) => (smp.threads, "core"),
        (false, false) => (1, "vCPU"),
    };
    let units = smp.vcpus / unit.max(1);
    if units < count {
        return Err(smp_fault(format!(
            "{units} {name}{} cannot be split into {count} cells",
            if units == 1 { "" } else { "s" }
        )));
    }
    let sizes = memory_shares(line.vm.bytes, count.into()).map_err(CommandLineError::Whole)?;
    let mut completed = words.clone();
    if let Some(number) = line.smp_at.filter(|_| !smp.states_topology) {
        // A socket that spans cells misinforms the guest, and QEMU warns of it.
        let sockets = if smp.vcpus.is_multiple_of(count) { count } else { smp.vcpus };
        let topology = format!("sockets={sockets},cores={},threads=1", smp.vcpus / sockets);
        // QEMU merges -smp with those of -machine and of files.
        match completed.get_mut(number).filter(|_| is_smp(&words[number - 1])) {
            Some(text) => *text += &format!(",{topology}"),
            None => completed.extend(["-smp".into(), topology]),
        }
    }
    let mut first = 0;
    for (id, (units, bytes)) in (0_u32..).zip(shares(units.into(), count.into()).iter().zip(sizes))
    {
        let end = first + u32::try_from(*units).unwrap_or(0) * unit;
        let vcpus: VcpuSet = (first..end).map(VcpuId).collect();
        first = end;
        completed.extend(backend(line, id, bytes)?);
        let node = format!("node,nodeid={id},cpus={vcpus},memdev=nearside-ram{id}");
        completed.extend(["-numa".into(), node]);
    }
    Ok(completed)
}

/// The command line with a memory backend for each cell that has memory.
pub(crate) fn with_backends(line: &QemuLine) -> Result<Vec<String>, CommandLineError> {
    let mut completed = line.words.clone();
    if line.nodes.is_empty() {
        if line.machine_backend.is_none() {
            refuse_mem_path(line)?;
            completed.extend(backend(line, 0, line.vm.bytes)?);
            completed.extend(["-machine".into(), "memory-backend=nearside-ram0".into()]);
        }
        return Ok(completed);
    }
    if let Some(node) = line.nodes.iter().find(|node| node.mem_bytes.is_some()) {
        let why = "memory without a backend cannot be bound: replace mem= by memdev= and -object";
        return Err(at(&line.words, node.at, why));
    }
    if line.nodes.iter().any(|node| node.memdev.is_some()) {
        return Ok(completed);
    }
    refuse_mem_path(line)?;
    let sizes = memory_shares(line.vm.bytes, line.nodes.len() as u64);
    let sizes = sizes.map_err(CommandLineError::Whole)?;
    for (id, (node, bytes)) in (0..).zip(line.nodes.iter().zip(sizes)) {
        completed.extend(backend(line, id, bytes)?);
        line.check_is_argument(node.at, &format!("cell {id}"))?;
        if let Some(text) = completed.get_mut(node.at) {
            *text += &format!(",memdev=nearside-ram{id}");
        }
    }
    Ok(completed)
}

fn is_smp(word: &str) -> bool {
    word == "-smp" || word == "--smp"
}

fn refuse_mem_path(line: &QemuLine) -> Result<(), CommandLineError> {
    let why = "-mem-path does not go with bound memory: use -object memory-backend-file,mem-path=";
    line.mem_path_at.map_or(Ok(()), |number| Err(at(&line.words, number, why)))
}

fn backend(line: &QemuLine, id: u32, bytes: u64) -> Result<[String; 2], CommandLineError> {
    let name = format!("nearside-ram{id}");
    if line.objects.contains(&name) {
        let why = format!("an object is named {name}: Nearside adds one of that name");
        return Err(CommandLineError::Whole(why));
    }
    Ok(["-object".into(), format!("memory-backend-ram,id={name},size={bytes}")])
}
