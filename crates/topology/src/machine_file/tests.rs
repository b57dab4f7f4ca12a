use super::*;
use crate::id::CpuSet;

const PLAIN: &str = "insn_ps = 400 # one a cycle
distance = [[10, 20], [20, 10]]
latency_ns = [[90, 160], [161.6, 91]]
[cache]
kib = 256
ways = 4
[[node]]
cpus = 2
memory_mib = 512
bandwidth_mb_per_s = 1500
[[node]]
cpus = 3
memory_mib = 1024
";

const LINKED: &str = "insn_ps = 400
distance = [[10, 20, 30], [20, 10, 20], [30, 20, 10]]
latency_ns = [80, 90, 100]
[cache]
kib = 256
ways = 4
prefetch = 4
[last_level]
kib = 1024
ways = 16
ns = 15
[[node]]
cpus = 1
memory_mib = 512
bandwidth_mb_per_s = 3000
[[node]]
cpus = 1
memory_mib = 512
[[node]]
cpus = 2
memory_mib = 512
[[link]]
between = [0, \"hub\"]
latency_ns = 10
bandwidth_mb_per_s = 2000
[[link]]
between = [\"hub\", 1]
latency_ns = 20
[[link]]
between = [\"hub\", 2]
latency_ns = 30
[[link]]
between = [0, 2]
latency_ns = 100
";

fn machine(text: &str) -> Topology {
    parse("m.toml", text).unwrap().topology
}

fn costs(text: &str) -> Costs {
    parse("m.toml", text).unwrap().costs
}

fn figures(machine: &Topology, from: u32, to: u32) -> (Option<u64>, Option<u64>) {
    let of_pair = machine.performance(NodeId(from), NodeId(to)).unwrap();
    assert_eq!(of_pair.read_latency_ns, of_pair.write_latency_ns);
    (of_pair.read_latency_ns, of_pair.read_bandwidth_mb_s)
}

#[test]
fn a_table_of_latencies_is_taken_as_it_is() {
    let machine = machine(&format!("description = \"a\\nsmall one\"\n{PLAIN}"));
    assert_eq!(machine.source, "m.toml (a small one)");
    assert_eq!(
        machine.nodes.iter().map(|node| node.memory_bytes >> 20).collect::<Vec<_>>(),
        [512, 1024]
    );
    assert_eq!(machine.cpus_of(NodeId(1)), CpuSet::from([CpuId(2), CpuId(3), CpuId(4)]));
    assert_eq!(machine.cpu(CpuId(4)).unwrap().last_level_cache, None);
    assert_eq!(machine.distances.get(NodeId(0), NodeId(1)), 20);
    assert_eq!(
        (figures(&machine, 0, 1), figures(&machine, 1, 0)),
        ((Some(160), None), (Some(162), Some(1500)))
    );
}

#[test]
fn latencies_add_up_over_links_and_the_narrowest_limits() {
    let linked = machine(LINKED);
    assert_eq!(figures(&linked, 0, 0), (Some(80), Some(3000)));
    // The direct link of 100 ns is the longer way.
    assert_eq!(figures(&linked, 0, 2), (Some(140), Some(2000)));
    assert_eq!(
        (figures(&linked, 2, 0), figures(&linked, 1, 2)),
        ((Some(120), Some(2000)), (Some(150), None))
    );
    assert_eq!(linked.cpu(CpuId(3)).unwrap().last_level_cache, Some(CpuId(2)));
    let routed = machine(&format!("{LINKED}[[route]]\nbetween = [2, 0]\nvia = []\n"));
    assert_eq!(
        (figures(&routed, 0, 2), figures(&routed, 2, 0)),
        ((Some(200), None), (Some(180), Some(3000)))
    );
}

#[test]
fn costs_are_the_files_own_numbers() {
    let plain = costs(PLAIN);
    assert_eq!((plain.description.as_str(), plain.insn_ps), ("", 400));
    assert_eq!(plain.latency_ns, [[90.0, 160.0], [161.6, 91.0]]);
    assert_eq!(plain.memory_bandwidth_mb_per_s, [1500.0, 0.0]);
    assert_eq!(plain.cache, Cache { bytes: 256 << 10, ways: 4, prefetch: 1 });
    assert_eq!((plain.last_level, plain.remote_cache), (None, None));
    assert_eq!((plain.links, plain.routes), (vec![], vec![]));
    let linked = costs(LINKED);
    assert_eq!(linked.cache.prefetch, 4);
    let last_level = LastLevel { bytes: 1 << 20, ways: 16, latency_ns: 15.0 };
    assert_eq!(linked.last_level, Some(last_level));
    let remote = "[remote_cache]\nkib = 4096\nways = 4\nns = 80\n[last_level]";
    let remote_cache = LastLevel { bytes: 4 << 20, ways: 4, latency_ns: 80.0 };
    assert_eq!(costs(&LINKED.replace("[last_level]", remote)).remote_cache, Some(remote_cache));
    // Ends stand in the file's order. The hub is the first switch, so it is point 3.
    let ends: Vec<_> = linked.links.iter().map(|link| link.between).collect();
    assert_eq!(ends, [[0, 3], [3, 1], [3, 2], [0, 2]]);
    let bandwidths: Vec<_> = linked.links.iter().map(|link| link.bandwidth_mb_per_s).collect();
    assert_eq!(bandwidths, [2000.0, 0.0, 0.0, 0.0]);
    assert_eq!(linked.latency_ns[0], [80.0, 120.0, 140.0]);
    assert_eq!(linked.routes, [vec![0, 3, 1], vec![0, 3, 2], vec![1, 3, 2]]);
    let stated = costs(&format!("{LINKED}[[route]]\nbetween = [2, 0]\nvia = []\n"));
    assert_eq!(stated.routes[1], [0, 2]);
}

/// Four nodes in a ring. 0-1-2 and 0-3-2 take equally long.
const RING: &str = "insn_ps = 400
distance = [[10, 20, 30, 20], [20, 10, 20, 30], [30, 20, 10, 20], [20, 30, 20, 10]]
latency_ns = [90, 90, 90, 90]
cache = { kib = 256, ways = 4 }
node = [
  { cpus = 1, memory_mib = 256 },
  { cpus = 1, memory_mib = 256 },
  { cpus = 1, memory_mib = 256 },
  { cpus = 1, memory_mib = 256 },
]
[[link]]
between = [0, 1]
latency_ns = 10
[[link]]
between = [1, 2]
latency_ns = 20
[[link]]
between = [2, 3]
latency_ns = 20
[[link]]
between = [3, 0]
latency_ns = 10
";

#[test]
fn among_equal_routes_fewer_links_win_then_earlier_points() {
    assert_eq!(costs(RING).routes[1], [0, 1, 2]);
    let direct = format!("{RING}[[link]]\nbetween = [0, 2]\nlatency_ns = 30\n");
    assert_eq!(costs(&direct).routes[1], [0, 2]);
    // Latency counts before links.
    let slower = format!("{RING}[[link]]\nbetween = [0, 2]\nlatency_ns = 30.5\n");
    assert_eq!(costs(&slower).routes[1], [0, 1, 2]);
}

#[test]
fn a_machine_has_at_most_1024_links() {
    let stem = RING.split("[[link]]").next().unwrap();
    let links: String =
        (0..1024).map(|i| format!("[[link]]\nbetween = [0, \"s{i}\"]\nlatency_ns = 1\n")).collect();
    let text = format!("{stem}{links}[[link]]\nbetween = [0, 1]\nlatency_ns = 1\n");
    let line = stem.lines().count() + 3 * 1024 + 2;
    let expected = format!("m.toml:{line}: link.between: at most 1024 links are expected");
    assert_eq!(parse("m.toml", &text).unwrap_err().to_string(), expected);
}

#[test]
fn strings_of_several_lines_do_not_shift_line_numbers() {
    let shifted = |description: &str, line: usize| {
        let broken = PLAIN.replace("cpus = 3", "cpus = 0");
        let error = parse("m.toml", &format!("description = {description}\n{broken}"));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("m.toml:{line}: node.cpus: ")), "{error}");
    };
    shifted("\"a\"", 13);
    shifted("\"\"\"\n[[node]] \\\"\"\" # [\n[cache]\nways = 4\n\"\"\"", 17);
    shifted("'''\n[[node]]\ncpus = 1 [\\'''", 15);
    shifted("\"a\u{2028}b\"", 13);
}

#[test]
fn mistakes_are_named_with_line_and_key() {
    let route =
        |between: &str, via: &str| format!("{LINKED}[[route]]\nbetween = {between}\nvia = {via}\n");
    let cases = [
        (
            PLAIN.replace("400 #", "0 #"),
            "m.toml:1: insn_ps: a whole number from 1 to 1000000 ps is expected, not 0",
        ),
        (PLAIN.replace("insn_ps", "cycle_ps"), "m.toml:1: unknown field `cycle_ps`"),
        (PLAIN.replace("insn_ps", "#"), "m.toml:1: missing field `insn_ps`"),
        (PLAIN.replace("insn_ps = 400", "insn_ps = "), "m.toml:1: "),
        (PLAIN.replace("ways = 4\n", ""), "m.toml:4: missing field `ways`"),
        (PLAIN.replace("cpus = 3", "cpus = true"), "m.toml:12: node.cpus: a whole number"),
        (
            PLAIN.replace("= 1500", "= \"fast\""),
            "m.toml:10: node.bandwidth_mb_per_s: a number from 1 to 1000000 MB/s, or 0 for \
             unlimited, is expected, not \"fast\"",
        ),
        (PLAIN.replace("= 1500", "= nan"), "m.toml:10: node.bandwidth_mb_per_s: a number"),
        (PLAIN.replace("= 1500", "= 0.5"), "m.toml:10: node.bandwidth_mb_per_s: a number"),
        (PLAIN.replace("[cache]", "[[cache]]"), "m.toml:4: "),
        (
            PLAIN.replace("[cache]", "[remote_cache]\nkib = 250\nways = 4\nns = 9\n[cache]"),
            "m.toml:5: remote_cache.kib: a power of two of sets",
        ),
        (
            PLAIN.replace("[cache]", "[remote_cache]\nkib = 256\nways = 4\nns = -9\n[cache]"),
            "m.toml:7: remote_cache.ns: a number",
        ),
        (PLAIN.split("[[node]]").next().unwrap().into(), "m.toml:1: node: 1 to 64 tables"),
        (
            PLAIN.replace("[cache]\nkib = 256\nways = 4\n", "cache = { kib = 256, ways = 99 }\n"),
            "m.toml:4: cache.ways: a whole number from 1 to 64 ways is expected, not 99",
        ),
        (
            PLAIN.replace("[cache]\nkib = 256\nways = 4\n", "cache.kib = 256\ncache.ways = 99\n"),
            "m.toml:5: cache.ways: a whole number",
        ),
        (LINKED.replace("latency_ns = 20\n", ""), "m.toml:26: missing field `latency_ns`"),
        (
            LINKED.replace("= 2000", "= 0.5"),
            "m.toml:25: link.bandwidth_mb_per_s: a number from 1 to 1000000 MB/s",
        ),
        (LINKED.replace("[0, 2]", "7"), "m.toml:33: link.between: a list is expected, not 7"),
        (
            LINKED.replace("[0, 2]", "[0, true]"),
            "m.toml:33: link.between: a node from 0 to 2 or the name of a switch is expected",
        ),
        (PLAIN.replace("kib = 256", "kib = 250"), "m.toml:5: cache.kib: a power of two of sets"),
        (
            PLAIN.replace("cpus = 3", "cpus = 3.0"),
            "m.toml:12: node.cpus: a whole number from 1 to 4096 CPUs is expected, not 3.0",
        ),
        (
            PLAIN.replace("cpus = 3", "cpus = 4095"),
            "m.toml:12: node.cpus: at most 4096 CPUs in all are expected, not 4097",
        ),
        (PLAIN.replace("cpus = 3", "cpu = 3"), "m.toml:12: unknown field `cpu`"),
        (
            PLAIN.replace("mib = 1024", "mib = 12"),
            "m.toml:13: node.memory_mib: a whole number from 128 to 1000000000 MiB",
        ),
        (
            PLAIN.replace("= 1500", "= -1"),
            "m.toml:10: node.bandwidth_mb_per_s: a number from 1 to 1000000 MB/s, or 0 for \
             unlimited, is expected, not -1",
        ),
        (
            PLAIN.replace("161.6", "nan"),
            "m.toml:3: latency_ns: for node 0, a number from 0.001 to 1000000 ns is expected, \
             not nan",
        ),
        (PLAIN.replace("[[90, 160], ", "["), "m.toml:3: latency_ns: 2 rows are expected"),
        (
            PLAIN.replace("[[10, 20]", "[[10, 20.0]"),
            "m.toml:2: distance: for node 1, 10 to itself, 11 to 254 elsewhere, is expected, \
             not 20.0",
        ),
        (
            PLAIN.replace("[20, 10]]", "[20, 11]]"),
            "m.toml:2: distance: for node 1, 10 to itself, 11 to 254 elsewhere, is expected, \
             not 11",
        ),
        (PLAIN.replace("ways = 4", "ways = 4 4"), "m.toml:6: ways: "),
        (PLAIN.replace("[[node]]", "[[knot]]"), "m.toml:7: unknown field `knot`"),
        ("[cache".into(), "m.toml:1: "),
        (
            PLAIN.replace("[cache]\nkib = 256\nways = 4", "cache = 4"),
            "m.toml:4: cache: invalid type: integer `4`, expected a table [cache]",
        ),
        (
            LINKED.replace("[\"hub\", 1]", "[\"hub\", 3]"),
            "m.toml:27: link.between: a node from 0 to 2 or the name of a switch is expected, \
             not 3",
        ),
        (
            LINKED.replace("[0, 2]", "[\"hub\", 0]"),
            "m.toml:33: link.between: there is a link between these two already",
        ),
        (
            LINKED.replace("[0, 2]", "[0, 0]"),
            "m.toml:33: link.between: two different ends are expected",
        ),
        (
            LINKED.replace("[\"hub\", 1]", "[\"island\", 1]"),
            "m.toml:32: link.between: no link leads from node 0 to node 1",
        ),
        (
            LINKED.replace("[80, 90, 100]", "[80, 90]"),
            "m.toml:3: latency_ns: 3 numbers are expected, one for each node, not 2",
        ),
        (route("[0, \"hub\"]", "[]"), "m.toml:36: route.between: two different nodes are expected"),
        (route("[0, 1]", "[]"), "m.toml:37: route.via: there is no link between node 0 and node 1"),
        (route("[0, 1]", "[\"hub\", 0]"), "m.toml:37: route.via: the route passes node 0 twice"),
        (
            route("[0, 1]", "[\"bridge\"]"),
            "m.toml:37: route.via: a node from 0 to 2 or the name of a switch is expected",
        ),
        (
            route("[0, 1]", "[\"hub\"]") + "[[route]]\nbetween = [1, 0]\nvia = []\n",
            "m.toml:39: route.between: there is a route between",
        ),
    ];
    for (text, expected) in cases {
        let error = parse("m.toml", &text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\ninstead of\n{expected}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn errors_name_the_file_and_the_reason() {
    let error = |path: &str| read(Path::new(path)).unwrap_err().to_string();
    assert!(error("/no/such.toml").starts_with("cannot read the machine file /no/such.toml: "));
    let device = "cannot read the machine file /dev/zero: it is a device, expected a regular file";
    assert_eq!(error("/dev/zero"), device);
}

#[test]
fn the_labs_machines_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/machines");
    let load = |name: &str| read(&folder.join(name).with_extension("toml")).unwrap().topology;
    let sizes = |machine: &Topology| (machine.nodes.len(), machine.cpus.len());
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let machine = read(&entry.unwrap().path()).unwrap().topology;
        assert_eq!(machine.performance.len(), machine.nodes.len().pow(2));
        files += 1;
    }
    assert!(files >= 12, "{files}");
    assert_eq!(sizes(&load("wildfire-gs320")), (8, 32));
    assert_eq!(sizes(&load("epyc-nps4")), (8, 128));
    // Two half links to the package's hub, and between packages one more: 113 + 6 + 6, and 95.
    let epyc = load("epyc-nps4-small");
    assert_eq!(
        (figures(&epyc, 0, 3).0, figures(&epyc, 0, 4)),
        (Some(125), (Some(220), Some(3200)))
    );
}
