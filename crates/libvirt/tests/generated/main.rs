//! Generated domains: libvirt and Nearside agree on which of them are none. `make libvirt-xml`.
//!
//! Each mutation of a valid domain is tried alone, then random pairs of them. virsh defines each in
//! a real libvirtd, and Nearside reads and lints it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod known;
mod mutations;

#[path = "../common/mod.rs"]
mod common;

#[path = "../../../../scripts/libvirtd.rs"]
#[allow(dead_code, reason = "other tests take more of it")]
mod libvirtd;

use libvirtd::Libvirtd;
use mutations::{Mutation, Part};
use nearside_libvirt::{Domain, Severity, complete, lint};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

/// The random pairs without `NEARSIDE_XML_PAIRS`.
const PAIRS: usize = 4_000;

/// The first state of the random numbers without `NEARSIDE_XML_SEED`.
const SEED: u64 = 0x6e65_6172_7369_6465;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// A generated domain.
struct Sample {
    mutations: Vec<Mutation>,
    xml: String,
}

impl Sample {
    fn new(mutations: Vec<Mutation>) -> Self {
        let mut xml = "<domain type='qemu'><name>generated</name>\
                       <uuid>8f3b7f0e-5d3c-4b53-9d76-6c1f6f1f0a11</uuid>"
            .to_owned();
        for part in Part::ALL {
            let of_part = || mutations.iter().filter(|mutation| mutation.part == part);
            let text: String = match of_part().count() {
                0 => part.plain().into(),
                _ => of_part().map(|mutation| mutation.text.as_str()).collect(),
            };
            match part {
                // The elements of libvirt have an order of their own, which it does not insist on.
                Part::Cpu => xml += "<os><type arch='x86_64' machine='pc'>hvm</type></os>",
                Part::Devices => xml += "<devices>",
                _ => {}
            }
            xml += &text;
        }
        Self { mutations, xml: xml + "</devices></domain>" }
    }

    fn shown(&self) -> String {
        let texts: Vec<_> = self.mutations.iter().map(|it| format!("{:?}", it.text)).collect();
        texts.join("\n         and ")
    }
}

/// The answer of Nearside to a domain.
struct Judgement {
    /// That libvirt rejects it.
    refuses: bool,
    /// That it has an error, if only a start shows it.
    warns: bool,
    /// The reading's fault, or the names of the broken rules.
    reason: String,
}

fn judge(xml: &str) -> Judgement {
    let domain = match Domain::read(xml) {
        Ok(domain) => domain,
        Err(error) => return Judgement { refuses: true, warns: true, reason: error.problem },
    };
    let findings = lint(&domain, None);
    let errors = || findings.iter().filter(|finding| finding.severity() == Severity::Error);
    // Other errors are those of a start, or of newer versions, as their reasons say.
    let refuses = errors().any(|finding| finding.why().starts_with("libvirt rejects"));
    let names: BTreeSet<_> = errors().map(|finding| finding.rule.name()).collect();
    let reason = names.into_iter().collect::<Vec<_>>().join(", ");
    Judgement { refuses, warns: errors().next().is_some(), reason }
}

/// Whether libvirt takes each of the samples: its error for those that it refuses.
fn defined(libvirt: &Libvirtd, samples: &[Sample], folder: &Path) -> Vec<Option<String>> {
    let mut commands = String::new();
    for (at, sample) in samples.iter().enumerate() {
        let file = folder.join(format!("{at}.xml"));
        fs::write(&file, &sample.xml).unwrap();
        writeln!(commands, "define {}", file.display()).unwrap();
    }
    let (out, errors) = libvirt.virsh_commands(&commands);
    // "Failed to define domain from FILE", then the reason, which may have several lines.
    let mut refused: BTreeMap<usize, String> = BTreeMap::new();
    for error in errors.split("error: Failed to define domain from ").skip(1) {
        let (file, reason) = error.split_once('\n').unwrap();
        assert!(
            !reason.contains("End of file while reading"),
            "{}",
            died(samples, file, &libvirt.log())
        );
        refused.insert(number_of(file), reason.trim_start_matches("error: ").trim().to_owned());
    }
    let taken = out.lines().filter_map(|line| line.split(" defined from ").nth(1));
    let taken: BTreeSet<_> = taken.map(number_of).collect();
    for (at, sample) in samples.iter().enumerate() {
        let is_answered = taken.contains(&at) != refused.contains_key(&at);
        let error = refused.get(&at);
        assert!(is_answered, "libvirtd does not answer: {error:?} to {}", sample.shown());
    }
    (0..samples.len()).map(|at| refused.remove(&at)).collect()
}

fn died(samples: &[Sample], file: &str, log: &str) -> String {
    let last: Vec<_> = log.lines().rev().take(3).collect();
    format!("libvirtd dies of {}: {last:?}", samples[number_of(file)].shown())
}

/// The number in a sample's file name.
fn number_of(file: &str) -> usize {
    Path::new(file.trim()).file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

/// A message without the values that differ from domain to domain.
fn class(message: &str) -> String {
    let mut class = String::new();
    let mut quote = None;
    for c in message.chars().take(200) {
        match (quote, c) {
            (Some(open), c) if c == open => {
                quote = None;
                class.push_str("...");
                class.push(c);
            }
            (Some(_), _) => {}
            (None, '"' | '\'') => {
                quote = Some(c);
                class.push(c);
            }
            (None, c) if c.is_ascii_digit() => {
                if !class.ends_with('#') {
                    class.push('#');
                }
            }
            (None, c) => class.push(c),
        }
    }
    class
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value:?} is no whole number")))
}

/// The samples, and libvirt's answers.
fn answered() -> Vec<(Sample, Option<String>)> {
    let seed = variable("NEARSIDE_XML_SEED").unwrap_or(SEED);
    let pairs = variable("NEARSIDE_XML_PAIRS").map_or(PAIRS, |pairs| pairs as usize);
    let mutations = mutations::all();
    println!("{} mutations, {pairs} pairs, NEARSIDE_XML_SEED={seed}", mutations.len());
    let libvirt = Libvirtd::start();
    let folder = tempfile::tempdir().unwrap();
    let answers = |samples: &[Sample]| defined(&libvirt, samples, folder.path());
    let mut samples = vec![Sample::new(Vec::new())];
    samples.extend(mutations.iter().map(|mutation| Sample::new(vec![mutation.clone()])));
    let mut all = answers(&samples);
    assert_eq!(all[0], None, "libvirt refuses the domain without a mutation");
    // Most pairs are of mutations that libvirt takes alone: the others hide their partner.
    let taken = mutations.iter().zip(&all[1..]).filter(|(_, answer)| answer.is_none());
    let taken: Vec<_> = taken.map(|(mutation, _)| mutation).collect();
    let mut random = Random(seed);
    let mut any = |at: usize| match at % 4 {
        0 => mutations[random.below(mutations.len())].clone(),
        _ => taken[random.below(taken.len())].clone(),
    };
    let pairs: Vec<_> = (0..pairs).map(|at| Sample::new(vec![any(at), any(at)])).collect();
    all.extend(answers(&pairs));
    samples.into_iter().chain(pairs).zip(all).collect()
}

#[test]
#[ignore = "needs root, and libvirtd and QEMU, and takes a minute: make libvirt-xml"]
fn libvirt_and_lint_refuse_the_same_domains() {
    let answered = answered();
    let mut differences: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused = 0;
    for (sample, answer) in &answered {
        refused += usize::from(answer.is_some());
        let judgement = judge(&sample.xml);
        let agree = match answer {
            None => !judgement.refuses,
            Some(_) => judgement.warns,
        };
        if agree {
            continue;
        }
        if let Some(reason) = known::reason(&sample.xml, answer.as_deref(), &judgement.reason) {
            *known.entry(reason).or_default() += 1;
            continue;
        }
        let difference = match answer {
            None => format!("libvirt takes it; Nearside: {}", class(&judgement.reason)),
            Some(error) => format!("libvirt: {}; Nearside takes it", class(error)),
        };
        let whole = answer.as_deref().unwrap_or(&judgement.reason);
        let example = || format!("{}\n         -> {whole}", sample.shown());
        differences.entry(difference).or_insert_with(|| (0, example())).0 += 1;
    }
    println!("{} domains, {refused} of them refused by libvirt", answered.len());
    for (reason, count) in &known {
        println!("{count} known differences: {reason}");
    }
    for (difference, (count, example)) in &differences {
        println!("{count} times: {difference}\n         {example}");
    }
    assert!(differences.is_empty(), "{} kinds of differences", differences.len());
}

/// As `nearside place --libvirt` completes those in which it finds no error.
#[test]
#[ignore = "needs root, and libvirtd and QEMU, and takes a minute: make libvirt-xml"]
fn libvirt_takes_the_domains_that_are_completed() {
    let is_placed =
        |(sample, answer): &(Sample, Option<String>)| answer.is_none() && !judge(&sample.xml).warns;
    let completed: Vec<_> = answered()
        .into_iter()
        .filter(is_placed)
        .map(|(sample, _)| {
            let domain = Domain::read(&sample.xml).unwrap();
            Sample { xml: complete(&domain, &common::placement("generated", &domain)), ..sample }
        })
        .collect();
    let libvirt = Libvirtd::start();
    let folder = tempfile::tempdir().unwrap();
    let mut refused: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (sample, error) in completed.iter().zip(defined(&libvirt, &completed, folder.path())) {
        let Some(error) = error else { continue };
        let example = || format!("{}\n         -> {error}", sample.shown());
        refused.entry(class(&error)).or_insert_with(|| (0, example())).0 += 1;
    }
    println!("{} completed domains", completed.len());
    assert!(!completed.is_empty());
    for (error, (count, example)) in &refused {
        println!("{count} times: {error}\n         {example}");
    }
    assert!(refused.is_empty(), "{} kinds of refusals", refused.len());
}
