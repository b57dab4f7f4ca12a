//! The crate's findings about each command line of `lines/`, as snapshots, and rules for all.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use common::{lines, placement, read};
use nearside_vmm::{CommandLine, complete, shell_lines};
use proptest::prelude::*;

fn report(text: &str) -> String {
    let line = match read(text) {
        Ok(line) => line,
        Err(error) => return format!("not read: {error}\n"),
    };
    let read = format!("{:#?}\n\n", line.vm());
    match complete(&line, &placement(line.vm())) {
        Ok(completed) => {
            let notes: String =
                completed.notes.iter().map(|note| format!("note: {note}\n")).collect();
            read + &notes + &shell_lines(&completed.words)
        }
        Err(error) => format!("{read}not completed: {error}\n"),
    }
}

#[test]
fn command_lines_are_read_and_completed() {
    for (name, text) in lines() {
        insta::assert_snapshot!(name, report(&text), &text);
    }
}

/// Whether `words` has each of the operator's words in order, as it is or with keys appended.
fn keeps(operators: &[String], words: &[String]) -> bool {
    let mut words = words.iter();
    operators.iter().all(|own| {
        let stem = own.strip_suffix('}').unwrap_or(own);
        words.any(|word| word.starts_with(stem))
    })
}

fn check(line: &CommandLine, kept: &[String]) {
    let placement = placement(line.vm());
    let Ok(once) = complete(line, &placement) else { return };
    let again = CommandLine::read(&once.words).unwrap();
    assert_eq!(complete(&again, &placement).unwrap().words, once.words, "idempotent");
    let is_cloud = kept[0].contains("cloud");
    assert!(is_cloud || keeps(kept, &once.words), "{:?}", once.words);
    let (before, after) = (&line.vm().cells, &again.vm().cells);
    for ((before, after), place) in before.iter().zip(after).zip(&placement.cells) {
        let expected = before.host_nodes.clone().or(Some(place.memory_nodes()));
        assert_eq!(after.host_nodes, expected, "{:?}", once.words);
        assert_eq!((&after.vcpus, after.bytes), (&before.vcpus, before.bytes));
        for (before, after) in before.devices.iter().zip(&after.devices) {
            let expected = before.host_nodes.clone().or(Some(place.memory_nodes()));
            assert_eq!(after.host_nodes, expected);
            assert_eq!((&after.backend, after.bytes), (&before.backend, before.bytes));
        }
    }
}

#[test]
fn completing_is_idempotent_keeps_arguments_and_has_the_placement() {
    let mut count = 0;
    for (_, text) in lines() {
        let Ok(line) = read(&text) else { continue };
        let operators = text.split_once('\n').filter(|(first, _)| first.starts_with("--cells"));
        let words = operators.map_or(text.as_str(), |(_, words)| words);
        let kept: Vec<_> = words.split_whitespace().map(String::from).collect();
        check(&line, &kept);
        count += 1;
    }
    assert!(count >= 15, "{count}");
}

proptest! {
    #[test]
    fn any_sizes_are_split_and_completed(
        vcpus in 1_u32..40, mib in 1_u64..9000, cells in 1_u32..6, has_prealloc: bool,
        name in "[a-z,=]{0,8}", is_cloud: bool,
    ) {
        let mut words = match is_cloud {
            true => vec!["cloud-hypervisor".into(), "--cpus".into(), format!("boot={vcpus}"),
                "--memory".into(), format!("size={mib}M")],
            false => vec!["kvm".into(), "-name".into(), name, "-smp".into(), vcpus.to_string(),
                "-m".into(), mib.to_string()],
        };
        if has_prealloc && !is_cloud {
            words.push("-mem-prealloc".into());
        }
        let line = CommandLine::read(&words).unwrap();
        prop_assert_eq!(line.vm().bytes, mib << 20);
        check(&line, &words);
        if let Ok(split) = line.split(cells) {
            let vm = split.vm();
            prop_assert_eq!(vm.cells.len() as u32, cells);
            prop_assert_eq!(vm.cells.iter().map(|cell| cell.bytes).sum::<u64>(), mib << 20);
            let all_vcpus: usize = vm.cells.iter().map(|cell| cell.vcpus.len()).sum();
            prop_assert_eq!(all_vcpus as u32, vcpus);
            check(&split, &words);
        } else {
            prop_assert!(vcpus < cells || mib / 2 < u64::from(cells));
        }
    }

    #[test]
    fn no_words_cause_a_panic(words in proptest::collection::vec("[ -~é]{0,30}", 0..8)) {
        let options = ["-smp", "-m", "-object", "-numa", "-device", "-machine", "-name"];
        let mut line = vec!["kvm".to_owned()];
        for (option, word) in options.iter().zip(&words) {
            line.extend([(*option).to_owned(), word.clone()]);
        }
        if let Ok(line) = CommandLine::read(&line) {
            check(&line, line.words());
        }
    }

    #[test]
    fn small_sizes_are_completed_or_refused(
        sizes in proptest::collection::vec(0_u64..3, 5), has_backend: bool, has_cells: bool,
    ) {
        let mib = |number: usize| format!("{}M", sizes[number]);
        let mut qemu = format!("kvm -smp 2 -m {}", mib(0));
        if has_backend {
            qemu += &format!(
                " -object memory-backend-ram,id=a,size={} -object memory-backend-ram,id=b,size={}",
                mib(1), mib(2),
            );
        }
        qemu += match (has_backend, has_cells) {
            (true, true) => " -numa node,memdev=a -numa node,memdev=b",
            (false, true) => " -numa node -numa node",
            (true, false) => " -machine memory-backend=a",
            (false, false) => "",
        };
        let mut cloud = format!("cloud-hypervisor --cpus boot=2 --memory size={}", mib(0));
        if has_backend {
            cloud += &format!(" --memory-zone id=a,size={} id=b,size={}", mib(1), mib(2));
        }
        if has_backend && has_cells {
            cloud += " --numa guest_numa_id=0,cpus=0,memory_zones=a \
                      guest_numa_id=1,cpus=1,memory_zones=b";
        }
        for text in [qemu, cloud] {
            let words: Vec<_> = text.split_whitespace().map(String::from).collect();
            if let Ok(line) = CommandLine::read(&words) {
                check(&line, &words);
            }
        }
    }
}
