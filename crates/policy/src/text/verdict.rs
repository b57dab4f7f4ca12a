//! Where one file belongs, from its users alone.

use super::{FileId, TextFile};
use crate::{ByNode, total};
use nearside_topology::NodeSet;

/// Where a file belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// On these nodes, the home of all that execute it: one node has all of it, several share it.
    Near(NodeSet),
    /// Several nodes execute it, so copies would pay.
    Copies(Candidate),
    /// Several nodes execute it, and no domain at home on one node would use a copy.
    Shared,
    /// A user has no home yet.
    NoHome,
}

/// A file that would pay copies: several nodes execute it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub file: FileId,
    /// Its path, as `process` sees it.
    pub path: String,
    /// A process that maps it.
    pub process: i32,
    /// The nodes on which a copy would be used: the homes of one node.
    pub nodes: NodeSet,
    /// The domains at home there.
    pub domains: Vec<String>,
    /// Its text by node, in bytes.
    pub bytes: ByNode,
    /// Bytes of text off the home, added up over these domains.
    pub off_home_bytes: u64,
}

/// Where `file` belongs.
pub fn verdict(file: &TextFile) -> Verdict {
    let homes: Option<Vec<&NodeSet>> = file.users.values().map(Option::as_ref).collect();
    let Some(homes) = homes.filter(|homes| !homes.iter().any(|home| home.is_empty())) else {
        return Verdict::NoHome;
    };
    let Some((first, others)) = homes.split_first() else { return Verdict::NoHome };
    if !file.is_busy_outside && others.iter().all(|home| home == first) {
        return Verdict::Near((*first).clone());
    }
    match candidate(file) {
        Some(candidate) => Verdict::Copies(candidate),
        None => Verdict::Shared,
    }
}

fn candidate(file: &TextFile) -> Option<Candidate> {
    let bytes = file.bytes();
    let all = total(&bytes);
    let narrow = file.users.iter().filter_map(|(domain, home)| {
        let home = home.as_ref().filter(|home| home.len() == 1)?;
        Some((domain, home.first()?))
    });
    let mut candidate = Candidate {
        file: file.id,
        path: file.path.clone(),
        process: file.process,
        nodes: NodeSet::new(),
        domains: Vec::new(),
        bytes: ByNode::new(),
        off_home_bytes: 0,
    };
    for (domain, node) in narrow {
        let off = all.saturating_sub(bytes.get(&node).copied().unwrap_or(0));
        candidate.off_home_bytes = candidate.off_home_bytes.saturating_add(off);
        candidate.nodes.insert(node);
        candidate.domains.push(domain.clone());
    }
    candidate.bytes = bytes;
    (!candidate.domains.is_empty()).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Run;
    use nearside_topology::NodeId;

    const KIB: u64 = 1 << 10;

    fn set(list: &str) -> NodeSet {
        list.parse().unwrap()
    }

    /// 64 KiB on node 0, then 16 KiB on node 2.
    fn file(users: &[(&str, Option<&str>)], is_busy_outside: bool) -> TextFile {
        let run = |start, end, node| Run { start: start * KIB, end: end * KIB, node: NodeId(node) };
        TextFile {
            path: "/usr/bin/db".into(),
            runs: vec![run(4, 68, 0), run(68, 84, 2)],
            users: users.iter().map(|(name, home)| ((*name).to_owned(), home.map(set))).collect(),
            is_busy_outside,
            ..TextFile::default()
        }
    }

    #[test]
    fn users_on_one_node_have_it_there_and_users_on_several_need_copies() {
        type Row<'a> = (&'a [(&'a str, Option<&'a str>)], bool, Result<&'a str, &'a str>);
        let table: [Row<'_>; 9] = [
            (&[("a", Some("2"))], false, Ok("2")),
            (&[("a", Some("2")), ("b", Some("2"))], false, Ok("2")),
            (&[("a", Some("0-1"))], false, Ok("0-1")),
            (&[("a", Some("2")), ("b", Some("3"))], false, Err("copies")),
            (&[("a", Some("2")), ("b", Some("2-3"))], false, Err("copies")),
            (&[("a", Some("0-1")), ("b", Some("2-3"))], false, Err("shared")),
            (&[("a", Some("2"))], true, Err("copies")),
            (&[("a", Some("2")), ("b", None)], false, Err("no home")),
            (&[], false, Err("no home")),
        ];
        for (users, busy, expected) in table {
            let found = verdict(&file(users, busy));
            let found = match &found {
                Verdict::Near(nodes) => Ok(nodes.to_string()),
                Verdict::Copies(_) => Err("copies"),
                Verdict::Shared => Err("shared"),
                Verdict::NoHome => Err("no home"),
            };
            assert_eq!(found, expected.map(str::to_owned), "{users:?}");
        }
    }

    #[test]
    fn a_candidate_counts_the_bytes_off_each_home() {
        let users = [("a", Some("2")), ("b", Some("3")), ("wide", Some("0-1"))];
        let Verdict::Copies(candidate) = verdict(&file(&users, false)) else { panic!() };
        assert_eq!(candidate.nodes, set("2-3"));
        assert_eq!(candidate.domains, ["a", "b"]);
        assert_eq!(candidate.off_home_bytes, (64 + 80) * KIB);
    }
}
