//! Long runs, on request: `lab/test replicas_stress`.

use super::{
    helper::{Python, Replicator, add, await_state, status},
    killing::{Random, kill_often},
    packages::{FILE, dpkg, package_with},
    sizes::small_libraries_take_their_own_size,
};
use nearside_lab::await_that;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Command,
    time::{Duration, Instant},
};

const ROUNDS: u32 = 10_000;
const KILLS: u32 = 200;

/// A file is a number of six digits, so many times. That is a multiple of the page size, which
/// `O_DIRECT` wants.
const REPEATS: usize = 8192;

/// Reads the file anew, through a mapping and through a descriptor. The last two stay with a file
/// that was renamed over, as on every kernel. A reader beside a writer may see part of the new
/// content, as on every kernel, and nothing else.
const READER: &str = "
import mmap, os, struct
held = {}
def reopen(path):
    file = open(path, 'rb', 0)
    held[path] = file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def sizes(path): return os.stat(path).st_size + os.fstat(held[path][0].fileno()).st_size
def check(path, number, is_in_place):
    expected = number.encode() * 8192
    with open(path, 'rb') as fresh:
        read = fresh.read()
        device = os.fstat(fresh.fileno()).st_dev
    if read != expected: return ('read', read[:6], len(read))
    if not is_in_place: reopen(path)
    file, mapped = held[path]
    if mapped[:] != expected: return ('mapped', mapped[:6])
    if os.pread(file.fileno(), len(expected), 0) != expected: return ('descriptor',)
    return device
def check_during(path, old, new):
    whole = {(old[:at] + new[at:]).encode() for at in range(7)}
    whole |= {(new[:at] + old[at:]).encode() for at in range(7)}
    with open(path, 'rb') as fresh: read = fresh.read()
    read = read[:len(read) // 6 * 6]
    others = {record for record, in struct.iter_unpack('6s', read)} - whole
    return min(others, default=None)
";

/// Each replaces the content in its own way.
const WRITER: &str = "
import mmap, os
refused = 0
def fill(fd, data):
    assert os.pwrite(fd, data, 0) == len(data)
    os.close(fd)
def write(path, data): fill(os.open(path, os.O_WRONLY), data)
def truncate(path, data): fill(os.open(path, os.O_WRONLY | os.O_TRUNC), data)
def shorten(path, data):
    os.truncate(path, 4096)
    write(path, data)
def direct(path, data):
    buffer = mmap.mmap(-1, len(data))
    buffer[:] = data
    fill(os.open(path, os.O_WRONLY | os.O_DIRECT), buffer)
def shared(path, data):
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, len(data)) as mapped: mapped[:] = data
    os.close(fd)
def nonblock(path, data):
    global refused
    while True:
        try: return fill(os.open(path, os.O_WRONLY | os.O_NONBLOCK), data)
        except BlockingIOError: refused += 1
def emptied(path): os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
def chmod(path, mode): os.chmod(path, mode)
def rename(path, data):
    with open(path + '.new', 'wb') as new: new.write(data)
    os.rename(path + '.new', path)
";

const WAYS_IN_PLACE: [&str; 8] =
    ["write", "truncate", "shorten", "direct", "shared", "nonblock", "emptied", "chmod"];
const WAYS: [&str; 9] =
    ["rename", "write", "truncate", "shorten", "direct", "shared", "nonblock", "emptied", "chmod"];

/// So often a package manager writes: it takes a hundred times as long as the others.
const PACKAGE_EVERY: u32 = 250;

#[test]
fn eight_readers_on_four_nodes_see_every_write_in_10_000_rounds() {
    let first = package_with(1, &"000000".repeat(REPEATS));
    dpkg("dpkg", &["-i", &first]);
    let replicator = Replicator::start("");
    add("", &[FILE.to_owned()], "replicated");
    let mut readers: Vec<_> =
        (0..8).map(|each| Python::at_home(&format!("reader{each}"), each / 2)).collect();
    for reader in &mut readers {
        reader.exec(READER);
        reader.exec(&format!("reopen('{FILE}')"));
    }
    let mut writer = Python::plain(0);
    writer.exec(WRITER);
    let (mut random, mut from_copies) = (Random(19), 0_u64);
    let (mut present, mut longest_stale) = ("000000".to_owned(), Duration::ZERO);
    let mut beside_writers = 0;
    for round in 1..=ROUNDS {
        // The other writers come at any moment of the file's life.
        if random.below(3) == 0 {
            await_state(FILE, "replicated");
            from_copies +=
                check_all(&mut readers, FILE, &present, false, &format!("before {round}"));
        }
        let before = std::mem::replace(&mut present, format!("{round:06}"));
        let way = match round.is_multiple_of(PACKAGE_EVERY) {
            true => "package",
            false => WAYS[random.below(WAYS.len() as u64) as usize],
        };
        // Those are watched in another manner.
        let is_watched = !matches!(way, "emptied" | "chmod") && random.below(2) == 0;
        if is_watched {
            let during = format!("check_during('{FILE}', '{before}', '{present}')");
            readers.iter_mut().for_each(|reader| reader.ask(&during));
        }
        if way == "package" {
            let deb = package_with(round + 1, &present.repeat(REPEATS));
            dpkg("dpkg", &["-i", &deb]);
        } else {
            let write = Write { way, path: FILE, shown: FILE, number: &present };
            let stale = write.make(&mut writer, &mut readers, &mut random);
            longest_stale = longest_stale.max(stale);
        }
        let is_in_place = !matches!(way, "rename" | "package");
        let when = format!("round {round}, {way}");
        if is_watched {
            beside_writers += readers.len();
            for answer in readers.iter_mut().map(Python::answer) {
                assert_eq!(answer, "None", "{when}");
            }
        }
        from_copies += check_all(&mut readers, FILE, &present, is_in_place, &when);
    }
    let collapses = status(FILE).map(|it| it["collapses"].to_string());
    println!(
        "{ROUNDS} rounds, {from_copies} of {} reads from copies, {beside_writers} beside writers, \
         {} opens with O_NONBLOCK refused once, {collapses:?} collapses since the last rename; \
         after a truncation without write access all readers saw the empty file within \
         {longest_stale:?}",
        u64::from(ROUNDS) * 8,
        writer.eval("refused"),
    );
    assert!(from_copies > u64::from(ROUNDS), "{from_copies}");
    replicator.stop();
}

/// All readers read a file at once, and all see this number. Returns how many read a copy.
fn check_all(
    readers: &mut [Python],
    path: &str,
    number: &str,
    is_in_place: bool,
    when: &str,
) -> u64 {
    let is_in_place = if is_in_place { "True" } else { "False" };
    let original = fs::metadata(path).unwrap().dev();
    for reader in &mut *readers {
        reader.ask(&format!("check('{path}', '{number}', {is_in_place})"));
    }
    let answers = readers.iter_mut().map(Python::answer).enumerate();
    let devices = answers.map(|(each, answer)| {
        answer.parse::<u64>().unwrap_or_else(|_| panic!("{when}, reader {each}: {answer}"))
    });
    devices.filter(|device| *device != original).count() as u64
}

/// One replacement of the content by this number.
struct Write<'a> {
    way: &'a str,
    path: &'a str,
    /// The path that readers open.
    shown: &'a str,
    number: &'a str,
}

impl Write<'_> {
    /// Returns how long readers saw the former content of an emptied file.
    fn make(&self, writer: &mut Python, readers: &mut [Python], random: &mut Random) -> Duration {
        let Self { way, path, shown, number } = self;
        let mut call = |call: &str| assert_eq!(writer.eval(call), "None", "{way} {path} {number}");
        let data = format!("b'{number}' * {REPEATS}");
        let mut stale = Duration::ZERO;
        match *way {
            // No lease tells of it before it is done. The other writers do not return before the
            // copies are gone.
            "emptied" => {
                call(&format!("emptied('{path}')"));
                let began = Instant::now();
                await_all(readers, &format!("sizes('{shown}')"), "0");
                stale = began.elapsed();
                call(&format!("write('{path}', {data})"));
            }
            "chmod" => {
                let mode = 0o600 + random.below(0o200);
                call(&format!("chmod('{path}', {mode})"));
                let question = format!("os.stat('{shown}').st_mode & 0o7777");
                await_all(readers, &question, &mode.to_string());
                call(&format!("write('{path}', {data})"));
            }
            _ => call(&format!("{way}('{path}', {data})")),
        }
        stale
    }
}

/// Asks all readers at once, until each has given this answer.
fn await_all(readers: &mut [Python], question: &str, expected: &str) {
    await_that(&format!("{question} is {expected}"), || {
        readers.iter_mut().for_each(|reader| reader.ask(question));
        let answers: Vec<_> = readers.iter_mut().map(Python::answer).collect();
        answers.iter().all(|answer| answer == expected)
    });
}

const OVERLAY: &str = "/tmp/overlay-stress";
const OVERLAY_ROUNDS: u32 = 10_000;

/// File `below` is in the lower layer alone, `above` in both. The latter is also written through
/// the overlay.
#[test]
fn readers_of_an_overlay_see_every_write_to_its_layers_in_10_000_rounds() {
    let folders = ["lower", "upper", "work", "shown"].map(|name| format!("{OVERLAY}/{name}"));
    folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    let first = "000000".repeat(REPEATS);
    for file in ["lower/below", "lower/above", "upper/above"] {
        fs::write(format!("{OVERLAY}/{file}"), &first).unwrap();
    }
    let options =
        format!("lowerdir={OVERLAY}/lower,upperdir={OVERLAY}/upper,workdir={OVERLAY}/work");
    let mount = ["-t", "overlay", "overlay", "-o", &options, &folders[3]];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    let shown = ["below", "above"].map(|name| format!("{OVERLAY}/shown/{name}"));
    let replicator = Replicator::start("");
    add("", &shown, "replicated");
    let mut readers: Vec<_> =
        (0..4).map(|node| Python::at_home(&format!("overlaid{node}"), node)).collect();
    for reader in &mut readers {
        reader.exec(READER);
        shown.iter().for_each(|path| reader.exec(&format!("reopen('{path}')")));
    }
    let mut writer = Python::plain(0);
    writer.exec(WRITER);
    let (mut random, mut from_copies) = (Random(23), 0_u64);
    let mut longest_stale = Duration::ZERO;
    let mut present = shown.each_ref().map(|path| (path.clone(), "000000".to_owned()));
    for round in 1..=OVERLAY_ROUNDS {
        let written = ["lower/below", "upper/above", "shown/above"][random.below(3) as usize];
        let (path, number) = &mut present[usize::from(written != "lower/below")];
        if random.below(3) == 0 {
            await_state(path, "replicated");
            from_copies += check_all(&mut readers, path, number, false, &format!("before {round}"));
        }
        *number = format!("{round:06}");
        // A mounted overlay need not show files that others rename in its layers.
        let ways = if written == "shown/above" { &WAYS[..] } else { &WAYS_IN_PLACE[..] };
        let way = ways[random.below(ways.len() as u64) as usize];
        let write = Write { way, path: &format!("{OVERLAY}/{written}"), shown: path, number };
        longest_stale = longest_stale.max(write.make(&mut writer, &mut readers, &mut random));
        let when = format!("round {round}, {way} {written}");
        from_copies += check_all(&mut readers, path, number, way != "rename", &when);
    }
    println!(
        "{OVERLAY_ROUNDS} rounds, {from_copies} reads from copies; after a truncation without \
         write access all readers saw the empty file within {longest_stale:?}"
    );
    assert!(from_copies > u64::from(OVERLAY_ROUNDS) / 2, "{from_copies}");
    replicator.stop();
    drop(readers);
    assert!(Command::new("umount").arg(&folders[3]).status().unwrap().success());
}

#[test]
fn files_open_run_and_can_be_written_after_200_kills() {
    kill_often(KILLS);
}

#[test]
fn a_thousand_small_libraries_take_their_own_size_on_each_node() {
    small_libraries_take_their_own_size(1_000);
}
