//! The changes that are made to a valid domain, one by one.

/// The parts of the domain that change, in the order of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Memory,
    CurrentMemory,
    MaximumMemory,
    Backing,
    Vcpu,
    Iothreads,
    Numatune,
    Cputune,
    Cpu,
    Devices,
}

impl Part {
    pub(crate) const ALL: [Self; 10] = [
        Self::Memory,
        Self::CurrentMemory,
        Self::MaximumMemory,
        Self::Backing,
        Self::Vcpu,
        Self::Iothreads,
        Self::Numatune,
        Self::Cputune,
        Self::Cpu,
        Self::Devices,
    ];

    /// Its text in the domain without a change.
    pub(crate) fn plain(self) -> &'static str {
        match self {
            Self::Memory => "<memory unit='MiB'>256</memory>",
            Self::Vcpu => "<vcpu>4</vcpu>",
            Self::Iothreads => "<iothreads>2</iothreads>",
            Self::Cpu => PLAIN_CPU,
            Self::CurrentMemory
            | Self::MaximumMemory
            | Self::Backing
            | Self::Numatune
            | Self::Cputune
            | Self::Devices => "",
        }
    }
}

const PLAIN_CPU: &str = "<cpu><numa><cell id='0' cpus='0-1' memory='128' unit='MiB'/>\
                         <cell id='1' cpus='2-3' memory='128' unit='MiB'/></numa></cpu>";

/// A text for one part.
#[derive(Debug, Clone)]
pub(crate) struct Mutation {
    pub(crate) part: Part,
    pub(crate) text: String,
}

/// Spellings of a number, and numbers near the bounds of types.
fn numbers(number: u32) -> Vec<String> {
    let mut spellings = vec![
        format!("+{number}"),
        format!("0{number}"),
        format!(" {number}"),
        format!("{number} "),
        format!("\n{number}"),
        format!("{number}&#10;"),
        format!("&#10;&#9;{number}"),
        format!("\u{a0}{number}"),
        format!("{number}\u{a0}"),
        format!("-{number}"),
        format!("+-{number}"),
        format!("- {number}"),
        format!("{number}x"),
        format!("0x{number}"),
        format!("{number}.0"),
        format!("{number}e0"),
    ];
    // The wraps of 32 and of 64 bits around the number, too.
    let near = ["", "+", "-0", "0", "1", "2", "3", "5", "255", "256", "65536"];
    let far = [
        "16383",
        "16384",
        "2147483648",
        "4294967295",
        "4294967296",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "-18446744073709551615",
        "99999999999999999999999",
    ];
    spellings.extend(near.into_iter().chain(far).map(str::to_owned));
    spellings.push((u64::from(number) + (1 << 32)).to_string());
    spellings.push(format!("{}", u128::from(number) + (1 << 64)));
    spellings
}

/// The same for counts of threads. A count may not lie below 2³² and far above what a machine has,
/// nor wrap to such a number.
fn counts(number: u32) -> Vec<String> {
    let far = ["2147483648", "4294967295"];
    let mut counts = numbers(number);
    counts.retain(|text| !far.contains(&text.as_str()) && *text != format!("-{number}"));
    counts
}

const LISTS: [&str; 32] = [
    "0",
    "1",
    "0-1",
    "0,1",
    "1-0",
    "0,,1",
    "",
    " ",
    "all",
    "^0",
    "0,^0",
    "0-1,^1",
    "^1,0-1",
    "0-3,^1-2",
    "0 - 1",
    " 0",
    "0 ",
    "0&#10;",
    "+0",
    "00",
    "0-",
    "-1",
    "0-1,",
    ",0",
    "0;1",
    "0x1",
    "1-1",
    "0-16383",
    "16384",
    "4294967296",
    "0\u{a0}",
    "0,0,0-1",
];

const UNITS: [&str; 22] = [
    "b", "byte", "bytes", "k", "K", "KB", "KiB", "kib", "MB", "mib", "GiB", "TB", "PiB", "EiB",
    "E", "", " ", " KiB", "KiB ", "pages", "Kibi", "ZiB",
];

const MODES: [&str; 9] = [
    "strict",
    "preferred",
    "interleave",
    "restrictive",
    "preferred-many",
    "bind",
    "Strict",
    "",
    " strict",
];

const PLACEMENTS: [&str; 5] = ["static", "auto", "", "numad", "Auto"];

/// All mutations.
pub(crate) fn all() -> Vec<Mutation> {
    let mut all = Vec::new();
    let mut add = |part: Part, texts: Vec<String>| {
        all.extend(texts.into_iter().map(|text| Mutation { part, text }));
    };
    add(Part::Memory, memory("memory"));
    add(Part::CurrentMemory, memory("currentMemory"));
    add(Part::MaximumMemory, maximum_memory());
    add(Part::Backing, backing());
    add(Part::Vcpu, vcpus());
    add(Part::Iothreads, iothreads());
    add(Part::Numatune, numatune());
    add(Part::Cputune, cputune());
    add(Part::Cpu, cells());
    add(Part::Cpu, distances());
    add(Part::Cpu, topologies());
    add(Part::Cpu, sections_of_cpu());
    add(Part::Devices, devices());
    all
}

/// `text` with each of `values` in place of `@`.
fn with<T: AsRef<str>>(text: &str, values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(|value| text.replace('@', value.as_ref())).collect()
}

fn memory(element: &str) -> Vec<String> {
    let whole = |value: &str| format!("<{element}{value}</{element}>");
    let mut texts = with(&whole(" unit='MiB'>@"), numbers(256));
    texts.extend(with(&whole(">@"), numbers(262_144)));
    texts.extend(with(&whole(" unit='@'>256"), UNITS));
    texts.extend(with(&whole(" unit='@'>0"), UNITS));
    texts.extend(with(&whole("@"), [" unit='MiB'><!-- c -->256", "><![CDATA[262144]]>", ">"]));
    let one = whole(" unit='MiB'>256");
    texts.extend([String::new(), format!("{one}{one}"), one.replace("MiB'>256", "GiB'>1")]);
    texts
}

fn maximum_memory() -> Vec<String> {
    let mut texts = with("<maxMemory slots='4' unit='MiB'>@</maxMemory>", numbers(1024));
    texts.extend(with("<maxMemory slots='@' unit='MiB'>1024</maxMemory>", numbers(4)));
    texts.extend(with("<maxMemory slots='4' unit='@'>1048576</maxMemory>", UNITS));
    texts.push("<maxMemory unit='MiB'>1024</maxMemory>".into());
    texts.push("<maxMemory slots='4' unit='MiB'>1024</maxMemory>".repeat(2));
    texts
}

fn backing() -> Vec<String> {
    let pages =
        |text: &str| format!("<memoryBacking><hugepages>{text}</hugepages></memoryBacking>");
    let mut texts = with(&pages("<page size='2' unit='MiB' nodeset='@'/>"), LISTS);
    texts.extend(with(&pages("<page size='@' unit='KiB'/>"), numbers(2048)));
    texts.extend(with(&pages("<page size='2' unit='@'/>"), UNITS));
    let (all, large) = ("<page size='2' unit='MiB'/>", "<page size='1' unit='GiB'/>");
    let of = |list: &str| format!("<page size='2' unit='MiB' nodeset='{list}'/>");
    let (cell_0, cell_1) = (of("0"), of("1"));
    texts.extend(with(
        &pages("@"),
        [
            "",
            all,
            "<page/>",
            "<page unit='MiB'/>",
            &all.repeat(2),
            &format!("{all}{large}"),
            &format!("{cell_0}{cell_1}"),
            &cell_0.repeat(2),
            &format!("{}{cell_1}", of("0-1")),
            &format!("{cell_0}{large}"),
            &format!("{large}{cell_1}"),
            &format!("<page size='4' unit='KiB'/>{cell_1}"),
            &format!("{cell_0}{}", of("2")),
        ],
    ));
    let backing = "<memoryBacking>@</memoryBacking>";
    texts.extend(with(
        backing,
        [
            "<locked/>",
            "<nosharepages/>",
            "<locked/><locked/>",
            "<hugepages/><hugepages/>",
            "<hugepages/><source type='anonymous'/>",
            "<hugepages/><source type='memfd'/>",
            "<hugepages/><source type='file'/>",
            "<hugepages/><allocation mode='ondemand'/>",
            "<hugepages/><allocation mode='immediate'/>",
            "<hugepages/><access mode='shared'/>",
        ],
    ));
    for (element, words) in [
        ("<source type='@'/>", ["anonymous", "file", "memfd", "", "File"]),
        ("<allocation mode='@'/>", ["immediate", "ondemand", "on demand", "", "none"]),
        ("<access mode='@'/>", ["shared", "private", "", "Shared", "both"]),
    ] {
        texts.extend(with(&backing.replace('@', element), words));
    }
    texts.push(with(backing, ["<locked/>"])[0].repeat(2));
    texts
}

fn vcpus() -> Vec<String> {
    let mut texts = with("<vcpu>@</vcpu>", counts(4));
    texts.extend(with("<vcpu current='@'>4</vcpu>", numbers(2)));
    texts.extend(with("<vcpu cpuset='@'>4</vcpu>", LISTS));
    texts.extend(with("<vcpu placement='@'>4</vcpu>", PLACEMENTS));
    texts.extend(with("<vcpu placement='@' cpuset='0'>4</vcpu>", PLACEMENTS));
    let of = |listed: &str| format!("<vcpu current='2'>4</vcpu><vcpus>{listed}</vcpus>");
    let rest = "<vcpu id='1' enabled='yes'/><vcpu id='2' enabled='no'/><vcpu id='3' enabled='no'/>";
    let first = "<vcpu id='0' enabled='yes' hotpluggable='no'/>";
    texts.extend(with(&of(&format!("<vcpu id='@' enabled='yes'/>{rest}")), numbers(0)));
    texts.extend(with(
        &of(&format!("<vcpu id='0' enabled='yes' hotpluggable='@'/>{rest}")),
        ["no", "yes", "", "on"],
    ));
    texts.extend(with(
        &of(&format!("{first}{rest}").replacen("'2'", "'2' hotpluggable='@'", 1)),
        ["no", "yes", "", "on"],
    ));
    texts
        .extend(with(&of(&format!("{first}{rest}").replacen("/>", " order='@'/>", 1)), numbers(1)));
    texts.extend(with(&of(&format!("<vcpu id='0' enabled='@'/>{rest}")), ["no", "", "on", "YES"]));
    texts.extend([
        String::new(),
        "<vcpu/>".into(),
        "<vcpu></vcpu>".into(),
        "<vcpu><!-- c -->4</vcpu>".into(),
        "<vcpu>4<!-- c --></vcpu>".into(),
        "<vcpu><a/>4</vcpu>".into(),
        "<vcpu>4</vcpu><vcpu>2</vcpu>".into(),
        of(""),
        of(first),
        of(&format!("{first}{rest}")),
        of(&format!("{first}{rest}{rest}")),
        of(&format!("{first}{}", rest.replace("'1' enabled='yes'", "'1' enabled='no'"))),
        of(&format!("{first}{}", rest.replace("'no'", "'yes'"))),
        of(&format!("{first}{rest}")).replace(" current='2'", ""),
        of(&format!("{first}{rest}")).replace("current='2'", "current='3'"),
    ]);
    texts
}

fn iothreads() -> Vec<String> {
    let mut texts = with("<iothreads>@</iothreads>", counts(2));
    let ids = "<iothreads>2</iothreads><iothreadids>@</iothreadids>";
    texts.extend(with(&ids.replace('@', "<iothread id='@'/>"), numbers(1)));
    texts.extend(with(
        ids,
        [
            "",
            "<iothread/>",
            "<iothread id='1'/><iothread id='1'/>",
            "<iothread id='7'/><iothread id='9'/>",
            "<iothread id='1'/><iothread id='2'/><iothread id='3'/>",
        ],
    ));
    texts.extend([
        String::new(),
        "<iothreads/>".into(),
        "<iothreads>2</iothreads><iothreads>3</iothreads>".into(),
        "<iothreadids><iothread id='4'/></iothreadids>".into(),
        "<iothreadids><iothread id='4'/></iothreadids>".repeat(2),
        "<iothreadids><iothread id='4'/></iothreadids><iothreadids><iothread id='5'/>\
         </iothreadids>"
            .into(),
    ]);
    texts
}

fn numatune() -> Vec<String> {
    let whole = |text: &str| format!("<numatune>{text}</numatune>");
    let memory = "<memory mode='strict' nodeset='0'/>";
    let node = |cell: &str, nodes: &str| {
        format!("<memnode cellid='{cell}' mode='strict' nodeset='{nodes}'/>")
    };
    let mut texts = with(&whole("<memory mode='strict' nodeset='@'/>"), LISTS);
    texts.extend(with(&whole("<memory nodeset='@'/>"), LISTS));
    texts.extend(with(&whole(&node("0", "@")), LISTS));
    texts.extend(with(&whole(&node("@", "0")), numbers(1)));
    texts.extend(with(&whole(&format!("{}{}", node("0", "0"), node("@", "0"))), numbers(1)));
    texts.extend(with(&whole("<memory placement='@'/>"), PLACEMENTS));
    texts.extend(with(&whole("<memory placement='@' nodeset='0'/>"), PLACEMENTS));
    texts.extend(with(&whole(&format!("<memory placement='@'/>{}", node("0", "0"))), PLACEMENTS));
    let vcpu = "<memory mode='@' placement='auto'/>";
    texts.extend(with(&whole(vcpu), MODES));
    for mode in MODES {
        texts.push(whole(&format!("<memory mode='{mode}' nodeset='0'/>")));
        texts.push(whole(&format!("<memory mode='{mode}'/>")));
        texts.push(whole(&format!("<memory mode='{mode}' nodeset='0-1'/>")));
        for other in MODES {
            let memnode = format!("<memnode cellid='0' mode='{other}' nodeset='0'/>");
            texts.push(whole(&format!("<memory mode='{mode}' nodeset='0'/>{memnode}")));
            let second = format!("<memnode cellid='1' mode='{mode}' nodeset='1'/>");
            texts.push(whole(&format!("{memnode}{second}")));
        }
    }
    texts.extend(with(
        &whole("@"),
        [
            "",
            "<memory/>",
            "<memnode/>",
            "<memnode cellid='0'/>",
            "<memnode nodeset='0'/>",
            "<memnode cellid='0' nodeset='0'/>",
            &node("0", "0").repeat(2),
            &format!("{}{}", node("0", "0"), node("1", "0-1")),
            &format!("{}{}", node("0", "0"), node("0", "1")),
            &format!("{}{memory}", node("0", "0")),
            &memory.repeat(2),
            &format!("{memory}<memory mode='interleave' nodeset='1'/>"),
            &format!("{memory}{}", node("2", "0")),
        ],
    ));
    texts.push(whole(memory).repeat(2));
    texts.push(format!("<numatune/>{}", whole(memory)));
    texts
}

fn cputune() -> Vec<String> {
    let whole = |text: &str| format!("<cputune>{text}</cputune>");
    let mut texts = Vec::new();
    for (element, thread) in [("vcpupin", "vcpu"), ("iothreadpin", "iothread")] {
        let pin = |id: &str, cpus: &str| format!("<{element} {thread}='{id}' cpuset='{cpus}'/>");
        texts.extend(with(&whole(&pin("@", "0")), numbers(1)));
        texts.extend(with(&whole(&pin("1", "@")), LISTS));
        texts.push(whole(&pin("1", "0")).repeat(2));
        texts.push(format!("{}{}", whole(&pin("1", "0")), whole(&pin("2", "0"))));
        texts.extend(with(
            &whole("@"),
            [
                &pin("1", "0").repeat(2),
                &format!("{}{}", pin("1", "0"), pin("1", "1")),
                &format!("{}{}", pin("9", "0"), pin("9", "0")),
                &format!("<{element}/>"),
                &format!("<{element} {thread}='1'/>"),
                &format!("<{element} cpuset='0'/>"),
            ],
        ));
    }
    for (element, threads) in [("vcpusched", "vcpus"), ("iothreadsched", "iothreads")] {
        let of = |list: &str, more: &str| {
            format!("<{element} {threads}='{list}' scheduler='batch'{more}/>")
        };
        texts.extend(with(&whole(&of("@", "")), LISTS));
        texts.push(whole(&of("1", "").repeat(2)));
        texts.push(whole(&format!("{}{}", of("1", ""), of("1-2", ""))));
        texts.push(whole(&of("2-9", "")));
        texts.push(whole(&format!("<{element} scheduler='batch'/>")));
    }
    texts.extend(with(&whole("<emulatorpin cpuset='@'/>"), LISTS));
    let emulator = "<emulatorpin cpuset='0'/>";
    texts.extend(with(&whole("@"), ["", "<emulatorpin/>", &emulator.repeat(2)]));
    texts.push(whole(emulator).repeat(2));
    let cache = "<cachetune vcpus='@'><cache id='0' level='3' type='both' size='3' unit='MiB'/>\
                 </cachetune>";
    texts.extend(with(&whole(cache), LISTS));
    let bandwidth = "<memorytune vcpus='@'><node id='0' bandwidth='60'/></memorytune>";
    texts.extend(with(&whole(bandwidth), LISTS));
    texts
}

fn cells() -> Vec<String> {
    let whole = |text: &str| format!("<cpu><numa>{text}</numa></cpu>");
    let second = "<cell id='1' cpus='2-3' memory='128' unit='MiB'/>";
    let first = |attributes: &str| format!("<cell {attributes}/>{second}");
    let mut texts = with(&whole(&first("id='@' cpus='0-1' memory='128' unit='MiB'")), numbers(0));
    texts.extend(with(
        &whole(&format!(
            "<cell id='@' cpus='0-1' memory='131072'/>{}",
            second.replace("'1'", "'0'")
        )),
        numbers(1),
    ));
    texts.extend(with(&whole(&first("id='0' cpus='@' memory='128' unit='MiB'")), LISTS));
    texts.extend(with(&whole(&first("id='0' cpus='0-1' memory='@' unit='MiB'")), numbers(128)));
    texts.extend(with(&whole(&first("id='0' cpus='0-1' memory='128' unit='@'")), UNITS));
    for (attribute, words) in
        [("memAccess", ["shared", "private", "", "Shared"]), ("discard", ["yes", "no", "", "Yes"])]
    {
        let text = format!("id='0' cpus='0-1' memory='131072' {attribute}='@'");
        texts.extend(with(&whole(&first(&text)), words));
    }
    let cell = |id: &str, cpus: &str| {
        let part = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!(" {name}='{value}'"),
        };
        format!("<cell{}{} memory='64' unit='MiB'/>", part("id", id), part("cpus", cpus))
    };
    let shapes: [&[(&str, &str)]; 22] = [
        &[],
        &[("", "")],
        &[("0", "")],
        &[("0", "0-3")],
        &[("1", "0-3")],
        &[("", "0-1"), ("", "2-3")],
        &[("0", "0-1"), ("", "2-3")],
        &[("", "0-1"), ("1", "2-3")],
        &[("1", "0-1"), ("", "2-3")],
        &[("", "0-1"), ("0", "2-3")],
        &[("1", "0-1"), ("0", "2-3")],
        &[("0", "0-1"), ("2", "2-3")],
        &[("0", "0-1"), ("0", "2-3")],
        &[("2", "0-1"), ("1", "2"), ("0", "3")],
        &[("0", "0-1"), ("3", "2"), ("1", "3")],
        &[("0", "0-2"), ("1", "2-3")],
        &[("0", "0-1"), ("1", "3")],
        &[("0", "0-1"), ("1", "2-4")],
        &[("0", ""), ("1", "0-3")],
        &[("0", "0-3"), ("1", "")],
        &[("0", ""), ("1", "")],
        &[("0", "0-1"), ("1", "2"), ("2", "3")],
    ];
    for shape in shapes {
        texts.push(whole(&shape.iter().map(|(id, cpus)| cell(id, cpus)).collect::<String>()));
    }
    texts.push(whole("<cell id='0' cpus='0-3'/>"));
    texts.push(whole(&first("id='0' cpus='0-1' memory='0'")));
    texts.push(whole("<cell id='0' cpus='0-3' memory='0'/>"));
    texts
}

/// Distances that libvirt takes. Not every version of it recovers from others.
fn distances() -> Vec<String> {
    let whole = |first: &str, second: &str| {
        let cell = |id: u32, cpus: &str, distances: &str| {
            format!("<cell id='{id}' cpus='{cpus}' memory='131072'>{distances}</cell>")
        };
        format!("<cpu><numa>{}{}</numa></cpu>", cell(0, "0-1", first), cell(1, "2-3", second))
    };
    let of = |siblings: &str| format!("<distances>{siblings}</distances>");
    let to = |id: &str, value: &str| format!("<sibling id='{id}' value='{value}'/>");
    let mut texts = with(&whole(&of(&to("@", "21")), ""), ["+1", "01", " 1", "&#10;1"]);
    texts.extend(with(&whole(&of(&to("1", "@")), ""), ["11", "+20", "020", " 20", "254", "255"]));
    texts.extend(with(&whole(&of(&to("0", "@")), ""), ["10", "+10", "010", "\n10"]));
    texts.extend([
        whole(&of(&to("1", "20").repeat(2)), ""),
        whole(&of(&(to("1", "20") + &to("1", "30"))), ""),
        whole(&of(&to("1", "20")), &of(&to("0", "30"))),
        whole(&of(&to("1", "20")).repeat(2), ""),
        whole(&(of(&to("0", "10")) + &of(&to("1", "20"))), ""),
        whole(&of(&(to("0", "10") + &to("1", "21"))), &of(&(to("0", "21") + &to("1", "10")))),
        whole("", &of(&to("0", "33"))),
    ]);
    texts
}

fn topologies() -> Vec<String> {
    let whole = |topology: &str| PLAIN_CPU.replacen("<cpu>", &format!("<cpu>{topology}"), 1);
    let mut texts = with(&whole("<topology sockets='@' cores='2' threads='1'/>"), numbers(2));
    texts
        .extend(with(&whole("<topology sockets='2' dies='@' cores='2' threads='1'/>"), numbers(1)));
    let of = |[sockets, dies, cores, threads]: [u32; 4]| {
        format!("<topology sockets='{sockets}' dies='{dies}' cores='{cores}' threads='{threads}'/>")
    };
    let counts = [
        [4, 1, 1, 1],
        [1, 4, 1, 1],
        [1, 2, 2, 1],
        [1, 1, 1, 4],
        [1, 1, 1, 1],
        [2, 2, 2, 1],
        [8, 1, 1, 1],
        [65_536, 1, 65_536, 1],
        [65_536, 65_536, 65_536, 65_536],
    ];
    texts.extend(counts.map(|counts| whole(&of(counts))));
    texts.extend(with(
        &whole("@"),
        [
            "<topology/>",
            "<topology sockets='4'/>",
            "<topology sockets='2' cores='2'/>",
            "<topology cores='4' threads='1'/>",
            "<topology sockets='4' cores='1' threads='1'/><topology sockets='1' cores='1' \
             threads='1'/>",
        ],
    ));
    texts
}

/// Two of an element in and around `<cpu>`.
fn sections_of_cpu() -> Vec<String> {
    let cell = |id: u32, cpus: &str| format!("<cell id='{id}' cpus='{cpus}' memory='131072'/>");
    let (first, second) = (cell(0, "0-1"), cell(1, "2-3"));
    let topology = "<topology sockets='4' cores='1' threads='1'/>";
    let numa = |cells: &str| format!("<numa>{cells}</numa>");
    let cpu = |text: &str| format!("<cpu>{text}</cpu>");
    vec![
        String::new(),
        "<cpu/>".into(),
        cpu("<numa/>"),
        PLAIN_CPU.repeat(2),
        cpu(&numa(&first)) + &cpu(&numa(&second)),
        cpu(&numa(&second)) + &cpu(&numa(&first)),
        cpu(&numa(&first)) + &cpu(&numa(&cell(0, "2-3"))),
        cpu(&numa(&cell(0, "0-3"))) + "<cpu/>",
        format!("<cpu/>{PLAIN_CPU}"),
        cpu("<numa/>") + PLAIN_CPU,
        PLAIN_CPU.to_owned() + &cpu("<numa/>"),
        cpu(&(numa(&first) + &numa(&second))),
        cpu(&(numa("") + &numa(&first))),
        cpu(&(numa(&(first.clone() + &second)) + "<numa/>")),
        cpu(topology) + PLAIN_CPU,
        cpu(&topology.replace("'4'", "'3'")) + PLAIN_CPU,
        PLAIN_CPU.to_owned() + &cpu(topology),
        PLAIN_CPU.to_owned() + &cpu(&topology.replace("'4'", "'3'")),
        PLAIN_CPU.replace("<cpu>", "<cpu mode='maximum'>"),
        PLAIN_CPU.replace("<cpu>", "<cpu mode='custom'><model>qemu64</model>"),
    ]
}

fn devices() -> Vec<String> {
    let device = |model: &str, more: &str, target: &str| {
        format!("<memory model='{model}'>{more}<target>{target}</target></memory>")
    };
    let of = |size: &str, node: &str| format!("<size unit='MiB'>{size}</size>{node}");
    let node = |cell: &str| format!("<node>{cell}</node>");
    let mut texts = with(&device("dimm", "", &of("128", &node("@"))), numbers(1));
    texts.extend(with(&device("dimm", "", &of("@", &node("0"))), numbers(128)));
    let source = "<source><nodemask>@</nodemask></source>";
    texts.extend(with(&device("dimm", source, &of("128", &node("0"))), LISTS));
    let source = "<source><pagesize unit='KiB'>@</pagesize></source>";
    texts.extend(with(&device("dimm", source, &of("128", &node("0"))), numbers(2048)));
    texts.extend(with(&device("@", "", &of("128", &node("0"))), ["", "DIMM", "sgx", "virtio"]));
    texts.push(device("dimm", "", &of("128", "")));
    texts.push(device("dimm", "", &node("0")));
    texts.push("<memory/>".into());
    texts.push(device("dimm", "", &of("128", &node("0"))).repeat(2));
    let controllers = "<controller type='pci' index='1' model='pci-expander-bus'>\
                       <target busNr='64'><node>@</node></target></controller>";
    texts.extend(with(controllers, numbers(1)));
    let disk = "<disk type='file' device='disk'><driver name='qemu' type='raw' iothread='@'/>\
                <source file='/none'/><target dev='vda' bus='virtio'/></disk>";
    texts.extend(with(disk, numbers(1)));
    texts
}
