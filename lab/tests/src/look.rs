//! Figures of `nearside stat` that belong together.

use crate::command::json;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::PathBuf};

/// One sample of nodes and domains by `nearside stat`.
///
/// Figures of one sample can be compared to the byte. Those of two samples cannot: page cache,
/// slabs and the kernel's lists of free pages for each CPU change by tens of MiB.
#[derive(Debug)]
pub struct Look(Value);

impl Look {
    /// Takes a sample while promises come and go, which [`take`](Self::take) would compare with
    /// records of another instant.
    pub fn passing() -> Self {
        Self(json("stat --interval 0"))
    }

    /// Takes a sample and checks it: bytes available for claims on a node are the allocatable ones
    /// less its domains' outstanding claims and the reservations. One that a domain has taken over
    /// no longer counts the memory that the domain holds.
    pub fn take() -> Self {
        let look = Self(json("stat --interval 0"));
        let records = reservations();
        let has_owners = records.iter().any(|record| record["lifetime"]["cgroup"].is_object());
        let reserved: Vec<_> =
            records.iter().map(|record| &record["subject"]["reservation"]).collect();
        let (allocatable, owed) =
            (look.nodes("allocatable_bytes"), look.nodes("outstanding_bytes"));
        for (node, available) in look.nodes("available_bytes").into_iter().enumerate() {
            let pools = look.0["nodes"][node]["huge_pages"].as_array().unwrap().iter();
            let owed_in_huge_pages: u64 =
                pools.map(|pool| pool["outstanding_bytes"].as_u64().unwrap()).sum();
            let of_domain = |domain: &Value| {
                domain["outstanding_bytes"][node.to_string()].as_u64().unwrap_or(0)
            };
            let of_domains: u64 = look.each_domain().map(of_domain).sum();
            let of_reservations: u64 =
                reserved.iter().filter_map(|it| it["bytes"][node.to_string()].as_u64()).sum();
            let (owed_there, at_most) =
                (owed[node] + owed_in_huge_pages, of_domains + of_reservations);
            assert!(
                owed_there == at_most || has_owners && owed_there < at_most,
                "{owed_there} of {at_most} on node {node} in {look:?}"
            );
            assert_eq!(
                available,
                allocatable[node].saturating_sub(owed[node]),
                "node {node} in {look:?}"
            );
        }
        look
    }

    /// A figure of every node.
    pub fn nodes(&self, figure: &str) -> Vec<u64> {
        let nodes = self.0["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| node[figure].as_u64().unwrap_or_else(|| panic!("no {figure} in {node}")))
            .collect()
    }

    /// A figure of a domain, in bytes by node; nodes without any are left out.
    pub fn domain(&self, name: &str, figure: &str) -> BTreeMap<u32, u64> {
        by_node(&self.domain_named(name)[figure])
    }

    /// A domain's claim, in bytes by node.
    pub fn claim(&self, name: &str) -> BTreeMap<u32, u64> {
        by_node(&self.domain_named(name)["claim"]["bytes"])
    }

    /// The claims of all domains, in bytes by node.
    pub fn claimed_bytes(&self) -> [u64; 4] {
        let claims = self.names().into_iter().flat_map(|name| self.claim(name));
        claims.fold([0; 4], |mut sums, (node, bytes)| {
            sums[node as usize] += bytes;
            sums
        })
    }

    /// The names of the domains.
    pub fn names(&self) -> Vec<&str> {
        self.each_domain().map(|domain| domain["name"].as_str().unwrap()).collect()
    }

    /// Asserts that no domain runs and no claim is outstanding.
    pub fn assert_nothing_is_promised(&self) {
        assert_eq!(self.names(), [""; 0]);
        for figure in ["outstanding_bytes", "claimed_vcpus"] {
            assert!(self.nodes(figure).iter().all(|&amount| amount == 0), "{figure}: {self:?}");
        }
    }

    /// No node owes more than it has.
    pub fn assert_nothing_is_promised_twice(&self) {
        let pairs =
            self.nodes("allocatable_bytes").into_iter().zip(self.nodes("outstanding_bytes"));
        assert!(pairs.clone().all(|(has, owes)| owes <= has), "{pairs:?} in {self:?}");
    }

    fn domain_named(&self, name: &str) -> &Value {
        let domain = self.each_domain().find(|domain| domain["name"] == name);
        domain.unwrap_or_else(|| panic!("no domain {name} in {self:?}"))
    }

    fn each_domain(&self) -> impl Iterator<Item = &Value> {
        self.0["domains"].as_array().unwrap().iter()
    }
}

/// The records of reservations: each lasts for a term, or as long as the cgroup that has taken it
/// over.
pub fn reservations() -> Vec<Value> {
    let Ok(folder) = fs::read_dir("/run/nearside/domains") else { return Vec::new() };
    let is_one = |path: &PathBuf| path.to_string_lossy().contains("/reservation+");
    let records = folder.flatten().map(|entry| entry.path()).filter(is_one);
    // One that ends meanwhile is gone.
    let record = |path: PathBuf| serde_json::from_slice(&fs::read(path).ok()?).ok();
    records.filter_map(record).collect()
}

/// A quantity by node as Nearside prints it; nodes without any are left out.
pub fn by_node(bytes: &Value) -> BTreeMap<u32, u64> {
    let each = bytes.as_object().unwrap_or_else(|| panic!("not by node: {bytes}")).iter();
    let numbers = each.map(|(node, bytes)| (node.parse().unwrap(), bytes.as_u64().unwrap()));
    numbers.filter(|(_, bytes)| *bytes > 0).collect()
}

/// Bytes available for claims on each node, as `nearside stat` shows them. The next sample may
/// differ by some MiB.
pub fn available_bytes() -> Vec<u64> {
    Look::take().nodes("available_bytes")
}
