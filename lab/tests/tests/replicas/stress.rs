//! Long runs, on request: `lab/test replicas_stress`. The rounds of readers and writers run on a
//! host without a guest, too, on the nodes that it has: `make replicas-stress`.

use super::{
    helper::{Python, Replicator, add, nodes, status},
    killing::{Random, kill_often},
    packages::{FILE, dpkg, package_with},
    sizes::small_libraries_take_their_own_size,
};
use nearside_lab::await_that;
use std::{fs, os::unix::fs::MetadataExt, process::Command};

const ROUNDS: u32 = 10_000;
const KILLS: u32 = 200;

/// A file is a number of six digits, so many times. That is a multiple of the page size, which
/// `O_DIRECT` wants.
const REPEATS: usize = 8192;

/// Reads the file anew, through a mapping and through a descriptor. The last two stay with a file
/// that was renamed over, as on every kernel. A reader beside a writer may see part of the new
/// content, as on every kernel, and nothing else. Of a file that is renamed over it sees the former
/// content or the new one. A page that its file has lost cannot be written to a pipe (`EFAULT`), so
/// a look at it does not end the reader with `SIGBUS`.
const READER: &str = "
import mmap, os, struct, time
held = {}
def reopen(path):
    file = open(path, 'rb', 0)
    held[path] = file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def sizes(path): return os.stat(path).st_size + os.fstat(held[path][0].fileno()).st_size
into = os.pipe()
def maps_content(path):
    try: os.write(into[1], memoryview(held[path][1])[:1])
    except OSError: return False
    return os.read(into[0], 1) != b''
def last_stale(path):
    first, stale = time.monotonic(), 0
    while True:
        began = time.monotonic()
        if sizes(path) == 0 and not maps_content(path): return stale
        if began - first > 600: return 'it is stale for 600 s'
        stale = began
        time.sleep(0.001)
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
def check_during(path, old, new, is_in_place):
    whole = {(old[:at] + new[at:]).encode() for at in range(7)}
    whole |= {(new[:at] + old[at:]).encode() for at in range(7)}
    with open(path, 'rb') as fresh: read = fresh.read()
    if read in (old.encode() * 8192, new.encode() * 8192): return None
    if not is_in_place: return ('torn', len(read), read[:6], read[-6:])
    read = read[:len(read) // 6 * 6]
    others = {record for record, in struct.iter_unpack('6s', read)} - whole
    return min(others, default=None)
";

/// Each replaces the content in its own way.
const WRITER: &str = "
import mmap, os, time
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
        except BlockingIOError:
            refused += 1
            time.sleep(0.001)
def emptied(path):
    began = time.monotonic()
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))
    return began
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
const PACKAGE_EVERY: u32 = 50 * FILES as u32;

/// Eight readers, two on each of four nodes, a writer, and what the readers have seen so far.
struct Crowd {
    readers: Vec<Python>,
    writer: Python,
    random: Random,
    reads: usize,
    from_copies: usize,
    beside_writers: usize,
    /// The longest time from the start of a call that empties a file to the start of a reader's
    /// last look that showed its former content.
    longest_stale_s: f64,
}

impl Crowd {
    /// The readers' domains have this name and a number.
    fn of(name: &str, files: &[String], seed: u64) -> Self {
        let nodes = nodes();
        let reader = |each: u32| Python::at_home(&format!("{name}{each}"), each / 2 % nodes);
        let mut readers: Vec<_> = (0..8).map(reader).collect();
        for reader in &mut readers {
            reader.exec(READER);
            files.iter().for_each(|path| reader.exec(&format!("reopen('{path}')")));
        }
        let mut writer = Python::plain(0);
        writer.exec(WRITER);
        let (reads, from_copies, beside_writers) = (0, 0, 0);
        let (random, longest_stale_s) = (Random(seed), 0.0);
        Self { readers, writer, random, reads, from_copies, beside_writers, longest_stale_s }
    }

    /// One of these.
    fn any<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.below(of.len() as u64) as usize]
    }

    /// In each third round on average, all readers see copies before the writer comes. In the
    /// others it comes at any moment of the file's life.
    fn may_await_copies(&mut self, path: &str, number: &str) {
        if self.random.below(3) == 0 {
            let original = fs::metadata(path).unwrap().dev();
            self.await_all(&format!("os.stat('{path}').st_dev == {original}"), "False");
            self.check(path, number, false, &format!("after {number}"));
        }
    }

    /// Writes, with readers beside the writer half of the time, and all readers read afterwards.
    fn see(&mut self, write: &Write<'_>) {
        let Write { way, path, shown, before, number } = *write;
        // Those two are watched in another manner.
        let is_watched = !matches!(way, "emptied" | "chmod") && self.random.below(2) == 0;
        if is_watched {
            let in_place = python_bool(write.is_in_place());
            let during = format!("check_during('{shown}', '{before}', '{number}', {in_place})");
            self.readers.iter_mut().for_each(|reader| reader.ask(&during));
        }
        self.make(write);
        let when = format!("round {number}, {way} {path}");
        if is_watched {
            self.beside_writers += self.readers.len();
            for answer in self.readers.iter_mut().map(Python::answer) {
                assert_eq!(answer, "None", "{when}");
            }
        }
        self.check(shown, number, write.is_in_place(), &when);
    }

    fn make(&mut self, write: &Write<'_>) {
        let Write { way, path, shown, number, .. } = *write;
        let data = format!("b'{number}' * {REPEATS}");
        match way {
            // No lease tells of it before it is done. The other writers do not return before the
            // copies are gone.
            "emptied" => {
                let seconds = |answer: String| {
                    answer.parse::<f64>().unwrap_or_else(|_| panic!("{path}: {answer}"))
                };
                let look = format!("last_stale('{shown}')");
                let emptied = seconds(self.writer.eval(&format!("emptied('{path}')")));
                self.readers.iter_mut().for_each(|reader| reader.ask(&look));
                for stale in self.readers.iter_mut().map(Python::answer).map(seconds) {
                    self.longest_stale_s = self.longest_stale_s.max(stale - emptied);
                }
                self.call(&format!("write('{path}', {data})"));
            }
            "chmod" => {
                let mode = 0o600 + self.random.below(0o200);
                self.call(&format!("chmod('{path}', {mode})"));
                self.await_all(&format!("os.stat('{shown}').st_mode & 0o7777"), &mode.to_string());
                self.call(&format!("write('{path}', {data})"));
            }
            "package" => {
                let version = number.parse::<u32>().unwrap() + 1;
                dpkg("dpkg", &["-i", &package_with(version, &number.repeat(REPEATS))]);
            }
            _ => self.call(&format!("{way}('{path}', {data})")),
        }
    }

    fn call(&mut self, call: &str) {
        assert_eq!(self.writer.eval(call), "None", "{call}");
    }

    /// All readers read a file at once, and all see this number.
    fn check(&mut self, path: &str, number: &str, is_in_place: bool, when: &str) {
        let is_in_place = python_bool(is_in_place);
        let original = fs::metadata(path).unwrap().dev();
        for reader in &mut self.readers {
            reader.ask(&format!("check('{path}', '{number}', {is_in_place})"));
        }
        for (each, reader) in self.readers.iter_mut().enumerate() {
            let answer = reader.answer();
            let device: u64 =
                answer.parse().unwrap_or_else(|_| panic!("{when}, reader {each}: {answer}"));
            self.from_copies += usize::from(device != original);
        }
        self.reads += self.readers.len();
    }

    /// Asks all readers at once, until each has given this answer.
    fn await_all(&mut self, question: &str, expected: &str) {
        await_that(&format!("{question} is {expected}"), || {
            self.readers.iter_mut().for_each(|reader| reader.ask(question));
            let answers: Vec<_> = self.readers.iter_mut().map(Python::answer).collect();
            answers.iter().all(|answer| answer == expected)
        });
    }

    /// After each thousand rounds, tells what was seen, which is that of copies often enough.
    fn may_tell(&mut self, rounds: u32) {
        if !rounds.is_multiple_of(1_000) {
            return;
        }
        let Self { reads, from_copies, beside_writers, longest_stale_s, .. } = *self;
        println!(
            "{rounds} rounds, {from_copies} of {reads} reads from copies, {beside_writers} beside \
             writers, {} attempts with O_NONBLOCK refused; the last look that showed the content \
             from before a truncation without write access began {:.1} ms after it",
            self.writer.eval("refused"),
            1e3 * longest_stale_s,
        );
        assert!(from_copies > rounds as usize, "{from_copies}");
    }
}

/// One replacement of the content by a number.
struct Write<'a> {
    way: &'a str,
    path: &'a str,
    /// The path that readers open.
    shown: &'a str,
    /// The number until then.
    before: &'a str,
    /// That of the round.
    number: &'a str,
}

impl Write<'_> {
    /// Whether the file stays the same one.
    fn is_in_place(&self) -> bool {
        !matches!(self.way, "rename" | "package")
    }
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// Rounds take the files by turns, so the copies of one return while others are written.
const FILES: usize = 6;

/// The first is a package's.
#[test]
fn eight_readers_on_four_nodes_see_every_write_in_10_000_rounds() {
    let mut present = vec!["000000".to_owned(); FILES];
    dpkg("dpkg", &["-i", &package_with(1, &present[0].repeat(REPEATS))]);
    let mut files = vec![FILE.to_owned()];
    files.extend((1..FILES).map(|each| format!("{FILE}.{each}")));
    files[1..].iter().for_each(|path| fs::write(path, present[0].repeat(REPEATS)).unwrap());
    let replicator = Replicator::start("");
    add("", &files, "replicated");
    let mut crowd = Crowd::of("reader", &files, 19);
    for round in 1..=ROUNDS {
        let file = round as usize % FILES;
        let path = &files[file];
        crowd.may_await_copies(path, &present[file]);
        let before = std::mem::replace(&mut present[file], format!("{round:06}"));
        let way = match file == 0 && round.is_multiple_of(PACKAGE_EVERY) {
            true => "package",
            false => crowd.any(&WAYS),
        };
        let (before, number) = (&before, &present[file]);
        crowd.see(&Write { way, path, shown: path, before, number });
        crowd.may_tell(round);
    }
    let collapses = status(FILE).map(|it| it["collapses"].to_string());
    println!("{collapses:?} collapses since the last rename");
    replicator.stop();
}

const OVERLAY: &str = "/tmp/overlay-stress";
const OVERLAY_ROUNDS: u32 = 10_000;

/// Mounts an overlay of files of this content. The first half of the files is in the lower layer
/// alone, the others are in both. Returns their names.
fn mount_overlay(content: &str) -> Vec<String> {
    let folders = ["lower", "upper", "work", "shown"].map(|name| format!("{OVERLAY}/{name}"));
    folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    let name = |each| format!("{}{each}", if each < FILES / 2 { "below" } else { "above" });
    let names: Vec<_> = (0..FILES).map(name).collect();
    for name in &names {
        fs::write(format!("{OVERLAY}/lower/{name}"), content).unwrap();
    }
    for name in &names[FILES / 2..] {
        fs::write(format!("{OVERLAY}/upper/{name}"), content).unwrap();
    }
    let options =
        format!("lowerdir={OVERLAY}/lower,upperdir={OVERLAY}/upper,workdir={OVERLAY}/work");
    let mount = ["-t", "overlay", "overlay", "-o", &options, &folders[3]];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    names
}

/// Files in both layers are also written through the overlay.
#[test]
fn readers_of_an_overlay_see_every_write_to_its_layers_in_10_000_rounds() {
    let mut present = vec!["000000".to_owned(); FILES];
    let names = mount_overlay(&present[0].repeat(REPEATS));
    let files: Vec<_> = names.iter().map(|name| format!("{OVERLAY}/shown/{name}")).collect();
    let replicator = Replicator::start("");
    add("", &files, "replicated");
    let mut crowd = Crowd::of("overlaid", &files, 23);
    for round in 1..=OVERLAY_ROUNDS {
        let file = round as usize % FILES;
        let shown = &files[file];
        let layer = match file < FILES / 2 {
            true => "lower",
            false => crowd.any(&["upper", "shown"]),
        };
        crowd.may_await_copies(shown, &present[file]);
        let before = std::mem::replace(&mut present[file], format!("{round:06}"));
        // A mounted overlay need not show files that others rename in its layers.
        let way = crowd.any(if layer == "shown" { &WAYS } else { &WAYS_IN_PLACE });
        let path = &format!("{OVERLAY}/{layer}/{}", names[file]);
        let (before, number) = (&before, &present[file]);
        crowd.see(&Write { way, path, shown, before, number });
        crowd.may_tell(round);
    }
    replicator.stop();
    drop(crowd);
    assert!(Command::new("umount").arg(format!("{OVERLAY}/shown")).status().unwrap().success());
}

#[test]
fn files_open_run_and_can_be_written_after_200_kills() {
    kill_often(KILLS);
}

#[test]
fn a_thousand_small_libraries_take_their_own_size_on_each_node() {
    small_libraries_take_their_own_size(1_000);
}

#[test]
fn an_attacker_cannot_redirect_a_bind_in_100_000_rounds() {
    crate::racing::attacked(100_000);
}
