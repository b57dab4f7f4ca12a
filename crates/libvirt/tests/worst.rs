//! Times of the longest texts that are read (docs/performance/domain-xml.md). They assert nothing.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

mod common;

use nearside_libvirt::{
    Domain, Keep, MAX_BYTES, Metadata, complete, contradictions, lint, operators, render, strip,
};
use std::{fmt::Write, fs, path::PathBuf, time::Instant};

/// The most cells that are placed (`nearside_policy::MAX_CELLS`).
const PLACED_CELLS: usize = 128;

/// As many of `unit` as make the text `MAX_BYTES` long, each with its number in place of `@`.
fn filled(begin: &str, unit: &str, end: &str) -> String {
    let mut text = begin.to_owned();
    for number in 0.. {
        let unit = unit.replace('@', &u32::to_string(&number));
        if text.len() + unit.len() + end.len() > MAX_BYTES {
            break;
        }
        text += &unit;
    }
    text + end
}

/// Elements in each other, as many as fit.
fn nested(begin: &str, open: &str, close: &str) -> String {
    let around = begin.len() + "</domain>".len();
    let count = (MAX_BYTES - around) / (open.len() + close.len());
    format!("{begin}{}{}</domain>", open.repeat(count), close.repeat(count))
}

/// Cells with a distance to each other, in part of the text.
fn cells(count: u32) -> String {
    let mut text = "<cpu><numa>".to_owned();
    for id in 0..count {
        write!(text, "<cell id='{id}' cpus='{id}' memory='1'><distances>").unwrap();
        for to in 0..count {
            let value = if id == to { 10 } else { 20 };
            write!(text, "<sibling id='{to}' value='{value}'/>").unwrap();
        }
        text += "</distances></cell>";
    }
    text + "</numa></cpu>"
}

fn texts() -> Vec<(&'static str, String)> {
    let domain = "<domain type='kvm'><name>a</name><memory>1048576</memory><vcpu>16383</vcpu>";
    let in_domain = |begin: &str, unit: &str, end: &str| {
        filled(&format!("{domain}{begin}"), unit, &format!("{end}</domain>"))
    };
    let namespaces: String = (0..200).map(|at| format!(" xmlns:n{at}='http://n/{at}'")).collect();
    let attributes: String = (0..250).map(|at| format!(" a{at}='1'")).collect();
    let pin = "<vcpupin vcpu='@' cpuset='0-1'/>";
    let two = "<cpu><numa><cell id='0' cpus='0-8000' memory='1'/>\
               <cell id='1' cpus='8001-16382' memory='1'/></numa></cpu>";
    let spread: String = (0..16_383).step_by(2).map(|vcpu| format!("{vcpu},")).collect();
    vec![
        ("16,383 bound vCPUs, then missing ones", in_domain("<cputune>", pin, "</cputune>")),
        ("the same in two cells", in_domain(&format!("{two}<cputune>"), pin, "</cputune>")),
        (
            "one binding to each CPU list of 8,192 items",
            in_domain("<cputune>", &format!("<vcpupin vcpu='@' cpuset='{spread}'/>"), "</cputune>"),
        ),
        (
            "a binding of each vCPU to all CPUs",
            in_domain("<cputune>", "<vcpupin vcpu='@' cpuset='0-16383'/>", "</cputune>"),
        ),
        (
            "shares of all vCPUs, with parts",
            in_domain(
                "<cputune>",
                "<memorytune vcpus='0-16382'><node id='0' bandwidth='9'/></memorytune>",
                "</cputune>",
            ),
        ),
        (
            "shares of one vCPU each",
            in_domain("<cputune>", "<cachetune vcpus='@'><monitor/></cachetune>", "</cputune>"),
        ),
        (
            "schedulers of one vCPU each",
            in_domain("<cputune>", "<vcpusched vcpus='@' scheduler='idle'/>", "</cputune>"),
        ),
        (
            "shares of all vCPUs",
            in_domain("<cputune>", "<memorytune vcpus='0-16382'/>", "</cputune>"),
        ),
        ("listed vCPUs", in_domain("<vcpus>", "<vcpu id='0' enabled='yes'/>", "</vcpus>")),
        ("iothreads", in_domain("<iothreadids>", "<iothread id='1@'/>", "</iothreadids>")),
        ("sections", in_domain("", "<cputune/><vcpus/><memoryBacking/>", "")),
        (
            "pages",
            in_domain(
                "<memoryBacking><hugepages>",
                "<page size='2048'/>",
                "</hugepages></memoryBacking>",
            ),
        ),
        (
            "host devices",
            in_domain(
                "<devices>",
                "<hostdev type='pci'><source><address bus='1'/></source></hostdev>",
                "</devices>",
            ),
        ),
        (
            "PCI controllers",
            in_domain(
                "<devices>",
                "<controller type='pci'><target><node>7</node></target></controller>",
                "</devices>",
            ),
        ),
        (
            "disks with iothreads",
            in_domain(
                "<iothreads>16383</iothreads><devices>",
                "<disk><driver iothread='1@'/><source dev='/dev/a@'/></disk>",
                "</devices>",
            ),
        ),
        ("cells with distances", filled(&format!("{domain}{}", cells(170)), "<a/>", "</domain>")),
        ("1,024 cells", {
            let cell = |id| format!("<cell id='{id}' cpus='{id}' memory='1'/>");
            let cells: String = (0..1024).map(cell).collect();
            let memnode = |id| format!("<memnode cellid='{id}' nodeset='0-1'/>");
            let memnodes: String = (0..1024).map(memnode).collect();
            in_domain(
                &format!("<numatune>{memnodes}</numatune><cpu><numa>{cells}</numa></cpu>"),
                "<a/>",
                "",
            )
        }),
        ("elements in each other", nested(domain, "<a>", "</a>")),
        ("elements in each other, blanks", nested(domain, "<a>\n", "</a>")),
        (
            "elements below 200 namespaces",
            filled(&format!("<domain{namespaces}>"), "<n1:a/>", "</domain>"),
        ),
        (
            "declarations of namespaces in each other",
            filled(
                &(domain.to_owned()
                    + &(0..250).map(|at| format!("<a xmlns:n{at}='u{at}'>")).collect::<String>()),
                "<n0:a/>",
                &("</a>".repeat(250) + "</domain>"),
            ),
        ),
        ("attributes", in_domain("", &format!("<a{attributes}/>"), "")),
        (
            "attributes below 200 namespaces",
            filled(
                &format!("<domain{namespaces}>"),
                &format!("<a{}/>", attributes.replace(" a", " n7:a")),
                "</domain>",
            ),
        ),
        ("character references", in_domain("<name>", "&#10;", "</name>")),
        ("references in an attribute", in_domain("<a b='", "&lt;", "'/>")),
        ("a number of a megabyte", in_domain("<currentMemory>", "0", "</currentMemory>")),
        (
            "a list of a megabyte",
            in_domain("<cputune><emulatorpin cpuset='", "1,", "'/></cputune>"),
        ),
        ("one item, many comments", in_domain("<title>", "<!-- -->a", "</title>")),
        ("lines", in_domain("", "\n", "")),
        ("no end", filled(domain, "<a ", "")),
        ("open quotes", filled(domain, "<a b=\"", "")),
        ("equals signs", filled(domain, "= ", "")),
        ("processing instructions", in_domain("", "<?a b?>", "")),
        ("CDATA", in_domain("<title>", "<![CDATA[a]]>", "</title>")),
        ("elements of metadata", in_domain("<metadata>", "<a xmlns=''/>", "</metadata>")),
    ]
}

/// The work of `nearside lint` and `nearside place --libvirt` on a text, without the placement.
/// Returns the bytes that they write.
fn run(name: &str, text: &str) -> usize {
    let Ok(domain) = Domain::read(text) else { return 0 };
    let host = common::host();
    let findings = lint(&domain, Some(&host));
    let printed = [
        render::text("vm.xml", &findings).len(),
        render::json("vm.xml", &findings).unwrap().len(),
        render::sarif("vm.xml", &findings).unwrap().len(),
    ];
    let printed: usize = printed.iter().sum();
    if domain.cells.len() > PLACED_CELLS {
        return printed;
    }
    let placement = common::placement(name, &domain);
    if let Ok(Some(metadata)) = Metadata::of(&domain) {
        operators(&domain, &metadata, Keep::Nothing);
        strip(&domain, &metadata, Keep::Nothing).unwrap();
    }
    let completed = complete(&domain, &placement);
    let against = contradictions(&domain, &placement);
    let _ = Domain::read(&completed).map(|completed| Metadata::remove_from(&completed).len());
    let against = render::text("vm.xml", &against).len();
    printed + completed.len() + against
}

#[test]
#[ignore = "a measurement"]
fn longest_texts() {
    let folder = std::env::var_os("NEARSIDE_TEXTS").map(PathBuf::from);
    for (name, text) in texts() {
        if let Some(folder) = &folder {
            fs::write(folder.join(format!("{}.xml", name.replace(' ', "-"))), &text).unwrap();
        }
        let began = Instant::now();
        let read = Domain::read(&text);
        let read_ms = began.elapsed().as_millis();
        let began = Instant::now();
        let written = run(name, &text);
        let all_ms = began.elapsed().as_millis();
        let how = read.map_or_else(|error| error.problem, |_| "read".into());
        println!(
            "{all_ms:>6} ms, {read_ms:>5} ms to read, {written} bytes written: {name} ({how})"
        );
    }
}
