//! The node set for the memory of a running libvirt domain, where its mode permits another one: a
//! pure function of its XML.

use nearside_libvirt::{Domain, MemoryMode};
use nearside_topology::NodeSet;

/// The node set to ask libvirt for: `wanted`, or the configured one if none is wanted.
/// `configured` is the XML with which the domain starts the next time, if it has a configuration.
///
/// # Errors
/// With the reason. libvirt 9.0 (`qemuDomainSetNumaParamsLive`, `src/qemu/qemu_driver.c`) refuses
/// every mode but `restrictive`, and a set without a mode makes the domain strict for as long as it
/// runs. It has one set for all groups of a domain.
pub(super) fn node_set(
    live: &Domain,
    configured: Option<&Domain>,
    wanted: &NodeSet,
) -> Result<NodeSet, String> {
    if live.cells.len() > 1 {
        return Err(format!(
            "libvirt has one node set for all {} cells of a running domain: the change would \
             collapse them onto the same nodes",
            live.cells.len()
        ));
    }
    if live.numatune.as_ref().is_some_and(|numatune| !numatune.memnodes.is_empty()) {
        return Err("its cell is bound to its nodes (memnode)".into());
    }
    match mode(live) {
        Some(MemoryMode::Restrictive) => {}
        Some(mode) => {
            return Err(format!(
                "libvirt changes the nodes of a running domain only if its mode is restrictive, \
                 and this one's is {mode} (numatune)"
            ));
        }
        None => {
            return Err("libvirt would make the domain strict on these nodes for as long as it \
                        runs, because its XML has no numatune: give it the mode restrictive"
                .into());
        }
    }
    let configured = configured.filter(|domain| mode(domain) == Some(MemoryMode::Restrictive));
    let own = configured.and_then(|domain| {
        let memory = domain.numatune.as_ref()?.memory.as_ref()?;
        memory.nodeset.as_ref().map(|nodes| &nodes.value)
    });
    match own {
        None => Err("its former node set could not be restored: it has no configuration that \
                     names one"
            .into()),
        Some(own) if wanted.is_empty() => Ok(own.clone()),
        Some(own) if wanted.is_subset(own) => Ok(wanted.clone()),
        Some(own) => Err(format!(
            "its operator confines its memory to {} (numatune): change that there (virsh numatune)",
            own.named()
        )),
    }
}

/// The mode of the memory as a whole; none if the XML sets none.
fn mode(domain: &Domain) -> Option<MemoryMode> {
    let memory = domain.numatune.as_ref()?.memory.as_ref()?;
    memory.mode.as_ref().map_or(Some(MemoryMode::default()), |mode| mode.value.known())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(numatune: &str, cells: u32) -> Domain {
        let cell = |id| format!("<cell id='{id}' memory='1'/>");
        let cells: String = (0..cells).map(cell).collect();
        let numa = if cells.is_empty() { cells } else { format!("<numa>{cells}</numa>") };
        let xml = format!("<domain>{numatune}<cpu>{numa}</cpu></domain>");
        Domain::read(&xml).unwrap()
    }

    fn memory(mode: &str, nodes: &str) -> String {
        format!("<numatune><memory mode='{mode}' nodeset='{nodes}'/></numatune>")
    }

    fn asked(live: &Domain, configured: Option<&Domain>, wanted: &str) -> String {
        let set = node_set(live, configured, &wanted.parse().unwrap());
        set.map_or_else(|why| why, |nodes| format!("set {nodes}"))
    }

    #[test]
    fn a_restrictive_domain_may_be_narrowed_and_widened_within_its_configuration() {
        let (live, configured) =
            (domain(&memory("restrictive", "1"), 1), domain(&memory("restrictive", "0-1"), 1));
        assert_eq!(asked(&live, Some(&configured), "0"), "set 0");
        assert_eq!(asked(&live, Some(&configured), ""), "set 0-1");
        assert!(asked(&live, Some(&configured), "2").contains("confines its memory to nodes 0-1"));
        assert!(asked(&live, None, "0").contains("could not be restored"));
        let other = domain(&memory("strict", "0-1"), 1);
        assert!(asked(&live, Some(&other), "0").contains("could not be restored"));
    }

    #[test]
    fn other_modes_cells_and_memnodes_are_refused_with_the_reason() {
        for mode in ["strict", "preferred", "interleave"] {
            let live = domain(&memory(mode, "0-1"), 0);
            let why = asked(&live, Some(&live), "0");
            assert!(why.contains(&format!("this one's is {mode}")), "{why}");
        }
        let default = domain("<numatune><memory nodeset='0'/></numatune>", 0);
        assert!(asked(&default, Some(&default), "0").contains("is strict"));
        let none = domain("", 0);
        assert!(asked(&none, Some(&none), "0").contains("no numatune"));
        let cells = domain(&memory("restrictive", "0-1"), 2);
        assert!(asked(&cells, Some(&cells), "0").contains("for all 2 cells"));
        let memnode = domain(
            "<numatune><memory mode='restrictive' nodeset='0-1'/>\
             <memnode cellid='0' mode='restrictive' nodeset='1'/></numatune>",
            1,
        );
        assert!(asked(&memnode, Some(&memnode), "0").contains("memnode"));
    }
}
