//! The daemon's configuration: a TOML file in which every key has a default.
//! `packaging/nearside.toml` explains each key.

use crate::size::parse_size;
use nearside_linux::watch::Patterns;
use nearside_policy::Tuning;
use nearside_topology::{
    bounded_file::{self, MAX_TEXT_BYTES},
    type_words::in_plain_words,
};
use serde::{Deserialize, Deserializer, de};
use std::{
    fmt, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

/// Path of the configuration unless the command line names another.
pub const DEFAULT_PATH: &str = "/etc/nearside/daemon.toml";

/// Path of the daemon's socket unless the configuration names another.
pub const DEFAULT_SOCKET: &str = "/run/nearside/api.socket";

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Length of an interval of the control loop.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// Patterns of cgroups that are domains although `nearside run` did not start them.
    #[serde(deserialize_with = "found")]
    pub found: Patterns,
    /// Condition on which the scheduler is attached.
    pub scheduler: Scheduler,
    /// Bound on moving pages from one node to another, in bytes per second.
    #[serde(rename = "rate", deserialize_with = "rate")]
    pub rate_bytes_per_s: u64,
    /// Whether text moves to the home that alone executes it.
    pub move_text: bool,
    /// Whether the daemon asks the replicator for copies of text that several nodes execute.
    pub replicate_text: bool,
    /// The API.
    pub api: Api,
    /// The record of changes.
    pub audit: Audit,
    /// Constants of the control loop.
    pub tuning: TuningKeys,
}

/// The API: its socket, and the groups that may use it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Path of the socket.
    #[serde(deserialize_with = "absolute")]
    pub socket: PathBuf,
    /// Members of this group may read, besides root.
    #[serde(deserialize_with = "group")]
    pub read_group: Option<String>,
    /// Members of this group may change, too.
    #[serde(deserialize_with = "group")]
    pub admin_group: Option<String>,
}

/// The audit log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Path of the file.
    #[serde(deserialize_with = "absolute")]
    pub log: PathBuf,
}

/// The constants of the control loop that an operator may change ([`Tuning`] explains them).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TuningKeys {
    /// See [`Tuning::idle_sample_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub idle_sample_intervals: u64,
    /// See [`Tuning::threshold_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub threshold_intervals: u64,
    /// See [`Tuning::review_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub review_intervals: u64,
    /// See [`Tuning::cooldown_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub cooldown_intervals: u64,
    /// See [`Tuning::steady_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub steady_intervals: u64,
    /// See [`Tuning::horizon_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub horizon_intervals: u64,
    /// [`Tuning::contention_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub contention_percent: u64,
    /// [`Tuning::min_gain_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub minimum_gain_percent: u64,
    /// [`Tuning::memory_stall_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub memory_stall_percent: u64,
}

/// Condition on which the scheduler is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Always, also on a machine of one node.
    On,
    /// While there are at least two nodes with CPUs, and a domain.
    #[default]
    Auto,
    /// Never: CPU affinity serves instead.
    Off,
}

impl Default for Config {
    fn default() -> Self {
        let tuning = Tuning::default();
        Self {
            interval: Duration::from_nanos(tuning.interval_ns),
            found: Patterns::default(),
            scheduler: Scheduler::default(),
            rate_bytes_per_s: tuning.rate_bytes_per_s,
            move_text: true,
            replicate_text: false,
            api: Api::default(),
            audit: Audit::default(),
            tuning: TuningKeys::default(),
        }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self { socket: DEFAULT_SOCKET.into(), read_group: None, admin_group: None }
    }
}

impl Default for Audit {
    fn default() -> Self {
        Self { log: "/var/log/nearside/audit.log".into() }
    }
}

const PPM_PER_PERCENT: u64 = 10_000;

impl Default for TuningKeys {
    fn default() -> Self {
        let tuning = Tuning::default();
        Self {
            idle_sample_intervals: tuning.idle_sample_intervals,
            threshold_intervals: tuning.threshold_intervals,
            review_intervals: tuning.review_intervals,
            cooldown_intervals: tuning.cooldown_intervals,
            steady_intervals: tuning.steady_intervals,
            horizon_intervals: tuning.horizon_intervals,
            contention_percent: tuning.contention_ppm / PPM_PER_PERCENT,
            minimum_gain_percent: tuning.min_gain_ppm / PPM_PER_PERCENT,
            memory_stall_percent: tuning.memory_stall_ppm / PPM_PER_PERCENT,
        }
    }
}

impl Config {
    /// Reads the file at `path`, a regular file of at most 1 MiB. If there is none, and
    /// `must_exist` is false, all keys have their defaults.
    ///
    /// # Errors
    /// The fault of the file, in one line.
    pub fn read(path: &Path, must_exist: bool) -> Result<Self, Error> {
        match bounded_file::read_text(path, MAX_TEXT_BYTES) {
            Ok(text) => Self::parse(path, &text),
            Err(bounded_file::Error::Io(error))
                if error.kind() == io::ErrorKind::NotFound && !must_exist =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(Error { path: path.into(), line: None, what: error.to_string() }),
        }
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// The fault of the text, in one line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::at(path, text, &error))
    }

    /// The constants of the control loop.
    pub fn tuning(&self) -> Tuning {
        let TuningKeys {
            idle_sample_intervals,
            threshold_intervals,
            review_intervals,
            cooldown_intervals,
            steady_intervals,
            horizon_intervals,
            contention_percent,
            minimum_gain_percent,
            memory_stall_percent,
        } = self.tuning;
        Tuning {
            interval_ns: u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX),
            rate_bytes_per_s: self.rate_bytes_per_s,
            idle_sample_intervals,
            threshold_intervals,
            review_intervals,
            cooldown_intervals,
            steady_intervals,
            horizon_intervals,
            contention_ppm: contention_percent * PPM_PER_PERCENT,
            min_gain_ppm: minimum_gain_percent * PPM_PER_PERCENT,
            memory_stall_ppm: memory_stall_percent * PPM_PER_PERCENT,
            ..Tuning::default()
        }
    }

    /// Reads the file again, as [`read`](Self::read) does. The result is the configuration in force
    /// from then on, and a note if a key keeps its former value until a restart.
    ///
    /// # Errors
    /// The fault of the file, in one line.
    pub fn reloaded(&self, path: &Path, must_exist: bool) -> Result<(Self, Option<String>), Error> {
        let new = Self::read(path, must_exist)?;
        if new.api.socket == self.api.socket {
            return Ok((new, None));
        }
        let socket = &self.api.socket;
        let note = format!(
            "{}: api.socket changes with a restart; until then it stays {}",
            path.display(),
            socket.display()
        );
        let api = Api { socket: socket.clone(), ..new.api.clone() };
        Ok((Self { api, ..new }, Some(note)))
    }
}

/// A fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    path: PathBuf,
    /// The line's number and text.
    line: Option<(usize, String)>,
    what: String,
}

impl Error {
    fn at(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let line = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            let number = before.matches('\n').count();
            (number + 1, text.lines().nth(number).unwrap_or_default().trim().to_owned())
        });
        let what = in_plain_words(&error.message().replace('\n', ", "), "a table");
        Self { path: path.into(), line, what }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((number, line)) = &self.line {
            write!(f, ", line {number}")?;
            if !line.is_empty() {
                write!(f, " (`{line}`)")?;
            }
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Error {}

fn found<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Patterns, D::Error> {
    let patterns: Vec<String> = typed(deserializer, "[\"machine.slice/*\"]")?;
    Patterns::parse(patterns).map_err(de::Error::custom)
}

/// Shorter intervals would leave no time for other work, longer ones would not follow any load.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(600);

/// A value of the key. A value of another type is an error with an example.
fn typed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    example: &str,
) -> Result<T, D::Error> {
    let with_example = |error: D::Error| {
        de::Error::custom(format!("{}, as in {example}", error.to_string().trim_end()))
    };
    T::deserialize(deserializer).map_err(with_example)
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text: String = typed(deserializer, "\"2s\"")?;
    parse_interval(&text).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is no interval: expected from 10ms to 600s, as in \"2s\" or \"500ms\""
        ))
    })
}

fn parse_interval(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let interval = match &text[digits..] {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    INTERVALS.contains(&interval).then_some(interval)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text: String = typed(deserializer, "\"1G\"")?;
    match parse_size(&text) {
        Ok(0) => Err(de::Error::custom(
            "a rate of 0 would keep all memory off its home: expected at least 1",
        )),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(de::Error::custom(format!("{text:?}: {why}"))),
    }
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path: PathBuf = typed(deserializer, "\"/var/log/nearside/audit.log\"")?;
    match path.is_absolute() && path.file_name().is_some() {
        true => Ok(path),
        false => Err(de::Error::custom(format!("{path:?}: expected the absolute path of a file"))),
    }
}

/// An empty string stands for no group: TOML has no null.
fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name: String = typed(deserializer, "\"libvirt\"")?;
    Ok(Some(name).filter(|name| !name.is_empty()))
}

fn intervals<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(deserializer, 1..=1_000_000)
}

fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(deserializer, 1..=100)
}

fn within<'de, D: Deserializer<'de>>(
    deserializer: D,
    range: RangeInclusive<u64>,
) -> Result<u64, D::Error> {
    let number = i64::deserialize(deserializer)?;
    u64::try_from(number).ok().filter(|number| range.contains(number)).ok_or_else(|| {
        de::Error::custom(format!(
            "{number}: expected a whole number from {} to {}",
            range.start(),
            range.end()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../packaging/nearside.toml");

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("daemon.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_file_has_the_defaults() {
        assert_eq!(parse(EXAMPLE), Ok(Config::default()));
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(Config::default().tuning(), Tuning::default());
    }

    #[test]
    fn the_example_file_has_every_key() {
        let keys = |text: &str| {
            text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count()
        };
        // Debug prints one field a line, those of the three tables included.
        let fields = format!("{:#?}", Config::default());
        let fields =
            fields.lines().filter(|line| line.contains(": ") && !line.ends_with(" {")).count();
        assert_eq!(keys(EXAMPLE), fields);
    }

    #[test]
    fn every_kind_of_key_can_be_set() {
        let text = "interval = \"500ms\"\nfound = [\"machine.slice/*\"]\n\
                    scheduler = \"off\"\nrate = \"200M\"\nmove_text = false\n\
                    replicate_text = true\n\
                    [api]\nsocket = \"/run/x\"\nread_group = \"ops\"\nadmin_group = \"adm\"\n\
                    [audit]\nlog = \"/var/log/x\"\n\
                    [tuning]\nidle_sample_intervals = 4\ncontention_percent = 20\n";
        let config = parse(text).unwrap();
        assert_eq!(config.interval, Duration::from_millis(500));
        assert_eq!((config.scheduler, config.rate_bytes_per_s), (Scheduler::Off, 200 << 20));
        assert!(!config.move_text && Config::default().move_text);
        assert!(config.replicate_text && !Config::default().replicate_text);
        assert_eq!(config.api.read_group.as_deref(), Some("ops"));
        let tuning = config.tuning();
        assert_eq!((tuning.interval_ns, tuning.idle_sample_intervals), (500_000_000, 4));
        assert_eq!((tuning.contention_ppm, tuning.min_gain_ppm), (200_000, 50_000));
    }

    #[test]
    fn a_fault_is_named_with_line_key_and_expectation() {
        let cases = [
            (
                "\nintervall = \"2s\"",
                "daemon.toml, line 2 (`intervall = \"2s\"`): unknown field `intervall`, expected",
            ),
            (
                "interval = \"2\"",
                "line 1 (`interval = \"2\"`): \"2\" is no interval: expected from 10ms to 600s",
            ),
            (
                "interval = 2",
                "(`interval = 2`): invalid type: integer `2`, expected a string, as in \"2s\"",
            ),
            ("found = \"a\"", "expected a list, as in [\"machine.slice/*\"]"),
            (
                "[audit]\nlog = 1",
                "line 2 (`log = 1`): invalid type: integer `1`, expected a path, as in \"/",
            ),
            ("rate = \"1X\"", "(`rate = \"1X\"`): \"1X\": \"X\" is no unit"),
            ("rate = \"0\"", "expected at least 1"),
            ("scheduler = \"yes\"", "unknown value `yes`, expected one of `on`, `auto`, `off`"),
            ("found = [\"*\"]", "it has to begin with a name"),
            ("found = [\n  \"a\",\n  \"a//b\",\n]", "line 1 (`found = [`): \"a//b\" is no pattern"),
            (
                "[api]\nsocket = \"run/x\"",
                "line 2 (`socket = \"run/x\"`): \"run/x\": expected the absolute path",
            ),
            ("[api]\nport = 80", "unknown field `port`"),
            ("[tuning]\nthreshold_intervals = 0", "0: expected a whole number from 1 to"),
            ("[tuning]\ncontention_percent = 101", "101: expected a whole number from 1 to 100"),
            ("[tuning]\nreview_intervals = -1", "-1: expected"),
            ("interval = ", "line 1"),
            ("[api", "line 1"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_only_if_it_was_named() {
        let missing = Path::new("/nonexistent/daemon.toml");
        assert_eq!(Config::read(missing, false), Ok(Config::default()));
        assert!(
            Config::read(missing, true)
                .unwrap_err()
                .to_string()
                .starts_with("/nonexistent/daemon.toml: ")
        );
    }

    #[test]
    fn a_bad_file_is_refused_and_a_good_one_changes_all_but_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.toml");
        let old = parse("rate = \"5M\"").unwrap();
        let reload = |config: &Config, text: &str| {
            std::fs::write(&path, text).unwrap();
            config.reloaded(&path, true)
        };
        let error = reload(&old, "rate = \"fast\"").unwrap_err().to_string();
        assert!(error.contains("daemon.toml, line 1"), "{error}");

        let other = "rate = \"6M\"\n[api]\nsocket = \"/run/other\"\nread_group = \"ops\"";
        let (new, note) = reload(&old, other).unwrap();
        assert_eq!((new.rate_bytes_per_s, new.api.read_group.as_deref()), (6 << 20, Some("ops")));
        assert_eq!((&new.api.socket, note.is_some()), (&old.api.socket, true));
        assert_eq!(reload(&new, "rate = \"6M\"").unwrap().1, None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(new.reloaded(&path, false).unwrap(), (Config::default(), None));
        assert!(new.reloaded(&path, true).is_err());
    }

    /// A read of a FIFO without a writer would never return.
    #[test]
    fn only_a_regular_file_of_at_most_1_mib_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), mode).unwrap();
        let comments = |bytes: u64| format!("#{}", "x".repeat(bytes as usize - 1));
        std::fs::write(path("largest"), comments(MAX_TEXT_BYTES)).unwrap();
        std::fs::write(path("larger"), comments(MAX_TEXT_BYTES + 1)).unwrap();
        std::fs::write(path("latin1"), b"# \xe4").unwrap();
        assert_eq!(Config::read(&path("largest"), true), Ok(Config::default()));
        for (name, expected) in [
            ("fifo", "fifo: it is a FIFO, expected a regular file"),
            ("larger", "larger: it is larger than 1 MiB"),
            ("latin1", "latin1: it is not UTF-8: "),
        ] {
            for error in [
                Config::read(&path(name), false).unwrap_err(),
                Config::default().reloaded(&path(name), false).unwrap_err(),
            ] {
                assert!(error.to_string().contains(expected), "{error}");
            }
        }
    }
}
