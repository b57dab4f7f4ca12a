use super::*;
use crate::model::{Cpu, Node};
use proptest::prelude::*;

/// Nodes 0, 1, 2 and 8; CPUs 0-3 on node 0, 4-7 on node 1 (5 offline), 8-11 on node 2, none on node
/// 8.
fn machine() -> Topology {
    let node = |id| Node { id: NodeId(id), ..Node::default() };
    let cpu = |id| Cpu { online: id != 5, ..Cpu::new(CpuId(id), NodeId(id / 4)) };
    Topology {
        nodes: [0, 1, 2, 8].map(node).into(),
        cpus: (0..12).map(cpu).collect(),
        ..Topology::default()
    }
}

fn nodes(text: &str) -> Result<String, String> {
    let context =
        NodeContext::of(&machine()).allowing(&NodeSet::from([NodeId(1), NodeId(2), NodeId(8)]));
    parse_nodes(text, &context).map(|set| set.to_string()).map_err(|error| error.to_string())
}

fn cpus(text: &str) -> Result<String, String> {
    let machine = machine();
    let context = CpuContext::of(&machine);
    parse_cpus(text, &context).map(|set| set.to_string()).map_err(|error| error.to_string())
}

#[test]
fn node_lists_of_every_tool_are_read() {
    let table = [
        // The kernel's own.
        ("0", "0"),
        ("0-2", "0-2"),
        ("0-1,8", "0-1,8"),
        ("0-8", "0-2,8"),
        ("N", "8"),
        ("2-N", "2,8"),
        ("0-8:1/2", "0,2,8"),
        ("1-8:2/7", "1-2,8"),
        ("0 1\t2\n", "0-2"),
        (",0,,1,", "0-1"),
        ("", ""),
        // numactl: what process may use are nodes 1, 2 and 8.
        ("all", "1-2,8"),
        ("ALL", "1-2,8"),
        ("all:1/8", "8"),
        ("!1", "2,8"),
        ("!0", "1-2,8"),
        ("!all", ""),
        ("+0", "1"),
        ("+0-1", "1-2"),
        ("+N", "8"),
        ("+0-2:1/2", "1,8"),
        ("+all", "1-2,8"),
        ("!+0-1", "8"),
        // libvirt.
        ("0-8,^1", "0,2,8"),
        ("all,^2", "1,8"),
        ("0-2,^1-2,2", "0,2"),
        ("1,^0", "1"),
    ];
    for (text, expected) in table {
        assert_eq!(nodes(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn cpu_lists_of_every_tool_are_read() {
    let table = [
        ("0-3,^2", "0-1,3"),
        ("4-7", "4,6-7"),
        ("node:1", "4,6-7"),
        ("nodes:0-1", "0-4,6-7"),
        ("nodes:0-1,^node:1", "0-3"),
        ("nodes:0-1,node:^1", "0-3"),
        ("1,nodes:1-2,^6", "1,4,7-11"),
        ("all,^nodes:0-1", "8-11"),
        ("node:8", ""),
        ("node:all", "0-4,6-11"),
        ("node:N", ""),
        ("!node:0", "4,6-11"),
        ("+4-5", "4,6"),
        ("N", "11"),
        ("0-11:1/4", "0,4,8"),
    ];
    for (text, expected) in table {
        assert_eq!(cpus(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn errors_name_the_column_the_text_and_the_expectation() {
    let table = [
        ("7", "\"7\", column 1: there is no node 7: this machine has nodes 0-2,8"),
        ("0,1-5", "\"0,1-5\", column 5: there is no node 5: this machine has nodes 0-2,8"),
        ("2-1", "\"2-1\", column 1: the range 2-1 runs backwards"),
        ("0,x", "\"0,x\", column 3: read \"x\", expected a number or \"all\""),
        ("0-", "\"0-\", column 3: read the end, expected a number"),
        ("0-,1", "\"0-,1\", column 3: read ',', expected a number"),
        ("0;1", "\"0;1\", column 2: read \";1\", expected a comma or the end"),
        ("!", "\"!\", column 2: read the end, expected a number or \"all\""),
        (
            "^1",
            "\"^1\", column 1: read \"^1\", expected something to take away from \
             first, as in all,^3",
        ),
        (
            "0-2:0/2",
            "\"0-2:0/2\", column 5: takes 0 of every 2: expected at least 1, and no more than \
             there are",
        ),
        (
            "0-2:1/0",
            "\"0-2:1/0\", column 5: takes 1 of every 0: expected at least 1, and no more than \
             there are",
        ),
        ("0-2:1", "\"0-2:1\", column 6: read the end, expected \"/\" and the size of a group"),
        (
            "+3",
            "\"+3\", column 2: there is no +3: there are only 3 allowed nodes, +0 to +2 (1-2,8)",
        ),
        ("node:1", "\"node:1\", column 1: read \"node:1\", expected a number or \"all\""),
        ("same", "\"same\", column 1: read \"same\", expected a number or \"all\""),
        ("ä", "\"ä\", column 1: read \"ä\", expected a number or \"all\""),
        ("0,é1", "\"0,é1\", column 3: read \"é1\", expected a number or \"all\""),
        (
            "99999999999",
            "\"99999999999\", column 1: read \"99999999999\", expected a number below 4294967296",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(nodes(text), Err(expected.to_string()), "{text}");
    }
    let table = [
        ("5", "\"5\", column 1: there is no CPU 5: this machine has CPUs 0-4,6-11"),
        ("0,node:7", "\"0,node:7\", column 8: there is no node 7: this machine has nodes 0-2,8"),
        (
            "+node:1",
            "\"+node:1\", column 2: read \"node:1\", expected a number: after + nothing but \
             positions can be counted",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(cpus(text), Err(expected.to_string()), "{text}");
    }
}

#[test]
fn an_empty_set_is_an_error_where_asked() {
    let machine = machine();
    let error = parse_some_nodes("0,^0", &NodeContext::of(&machine)).unwrap_err();
    assert_eq!(error.to_string(), "\"0,^0\" names no node at all");
    let error = parse_some_cpus("node:8", &CpuContext::of(&machine)).unwrap_err();
    assert_eq!(error.to_string(), "\"node:8\" names no CPU at all");
    assert_eq!(parse_some_nodes("8", &NodeContext::of(&machine)).unwrap().to_string(), "8");
}

#[test]
fn an_endless_list_is_refused() {
    let error = nodes(&"0,".repeat(40_000)).unwrap_err();
    assert_eq!(error, "the list has 80000 bytes, expected at most 65536");
}

#[test]
fn a_machine_with_nothing_allowed_answers_too() {
    let nothing = NodeContext { existing: NodeSet::new(), allowed: NodeSet::new() };
    assert_eq!(parse_nodes("all", &nothing).unwrap(), NodeSet::new());
    let told = |allowed: &str| {
        let context =
            NodeContext { allowed: allowed.parse().unwrap(), ..NodeContext::of(&machine()) };
        parse_nodes("+9", &context)
            .unwrap_err()
            .to_string()
            .split_once(": there is no +9: ")
            .unwrap()
            .1
            .to_owned()
    };
    assert_eq!(told(""), "there are no allowed nodes");
    assert_eq!(told("2"), "there is only 1 allowed node, +0 (2)");
    assert_eq!(told("0-1"), "there are only 2 allowed nodes, +0 and +1 (0-1)");
    for text in ["N", "+0", "0", "+N"] {
        assert!(parse_nodes(text, &nothing).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn printed_sets_are_read_back(numbers in proptest::collection::btree_set(0u32..1024, 0..40)) {
        let set: NodeSet = numbers.into_iter().map(NodeId).collect();
        let existing = (0..1024).map(NodeId).collect();
        let context = NodeContext { existing, allowed: set.clone() };
        prop_assert_eq!(&parse_nodes(&set.to_string(), &context).unwrap(), &set);
        prop_assert_eq!(&parse_nodes("all", &context).unwrap(), &set);
        prop_assert_eq!(parse_nodes("!all", &context).unwrap(), NodeSet::new());
    }

    #[test]
    fn any_text_gets_an_answer(text in "[!+^N:/,0-9a-z \\-]{0,24}|\\PC{0,12}") {
        let machine = machine();
        let outcome = parse_cpus(&text, &CpuContext::of(&machine));
        if let Ok(set) = outcome {
            prop_assert!(set.is_subset(&online(&machine)));
        }
        if let Err(error) = parse_nodes(&text, &NodeContext::of(&machine)) {
            prop_assert!(error.column <= text.chars().count() + 1);
        }
    }

    #[test]
    fn lists_of_the_kernel_mean_the_same_as_there(
        start in 0u32..64,
        length in 1u32..64,
        used in 1u32..9,
        more in 0u32..9,
    ) {
        let size = used + more;
        let end = start + length - 1;
        let existing = (0..128).map(NodeId).collect();
        let context = NodeContext { existing, allowed: NodeSet::new() };
        let mut expected = NodeSet::new();
        // lib/bitmap-str.c, bitmap_set_region: from each group's start, `used` bits but none past
        // the end.
        for group in (start..=end).step_by(size as usize) {
            expected.extend((group..(group + used).min(end + 1)).map(NodeId));
        }
        let parsed = parse_nodes(&format!("{start}-{end}:{used}/{size}"), &context);
        prop_assert_eq!(parsed.unwrap(), expected);
    }
}
