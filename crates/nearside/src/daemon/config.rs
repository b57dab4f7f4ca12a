//! What the daemon goes by: a file in TOML in which everything has a default. `packaging/nearside.toml` explains each key.

use crate::size::parse_size;
use nearside_linux::watch::Patterns;
use nearside_policy::Tuning;
use serde::{Deserialize, Deserializer, de};
use std::{
    fmt, fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where the configuration is unless the command line names another file.
pub const DEFAULT_PATH: &str = "/etc/nearside/daemon.toml";

/// Where the daemon listens unless that names another path.
pub const DEFAULT_SOCKET: &str = "/run/nearside/api.socket";

/// All of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How long an interval of the control loop is.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// Patterns of cgroups that are domains although `nearside run` did not start them.
    #[serde(deserialize_with = "found")]
    pub found: Patterns,
    /// When the scheduler is attached.
    pub scheduler: Scheduler,
    /// Pages move from one node to another not faster than this.
    #[serde(rename = "rate", deserialize_with = "rate")]
    pub rate_bytes_per_s: u64,
    /// The API.
    pub api: Api,
    /// The record of changes.
    pub audit: Audit,
    /// When the loop acts.
    pub tuning: Patience,
}

/// Who may ask and where.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// The socket.
    #[serde(deserialize_with = "absolute")]
    pub socket: PathBuf,
    /// Members of this group may read, besides root.
    #[serde(deserialize_with = "group")]
    pub read_group: Option<String>,
    /// Members of this group may change, too.
    #[serde(deserialize_with = "group")]
    pub admin_group: Option<String>,
}

/// Where changes are recorded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// The file.
    #[serde(deserialize_with = "absolute")]
    pub log: PathBuf,
}

/// The constants of the control loop that an operator may want otherwise ([`Tuning`] says what they mean).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Patience {
    /// See [`Tuning::idle_look_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub idle_look_intervals: u64,
    /// See [`Tuning::patience_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub patience_intervals: u64,
    /// See [`Tuning::weigh_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub weigh_intervals: u64,
    /// See [`Tuning::minimum_stay_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub minimum_stay_intervals: u64,
    /// See [`Tuning::steady_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub steady_intervals: u64,
    /// See [`Tuning::horizon_intervals`].
    #[serde(deserialize_with = "intervals")]
    pub horizon_intervals: u64,
    /// [`Tuning::trouble_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub trouble_percent: u64,
    /// [`Tuning::minimum_gain_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub minimum_gain_percent: u64,
    /// [`Tuning::memory_stall_ppm`] in percent.
    #[serde(deserialize_with = "percent")]
    pub memory_stall_percent: u64,
}

/// When the scheduler is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheduler {
    /// Always; on a machine of one node, too.
    On,
    /// Where there are at least two nodes with CPUs and a domain.
    #[default]
    Auto,
    /// Never: CPU affinity stands in.
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
            api: Api::default(),
            audit: Audit::default(),
            tuning: Patience::default(),
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

impl Default for Patience {
    fn default() -> Self {
        let tuning = Tuning::default();
        Self {
            idle_look_intervals: tuning.idle_look_intervals,
            patience_intervals: tuning.patience_intervals,
            weigh_intervals: tuning.weigh_intervals,
            minimum_stay_intervals: tuning.minimum_stay_intervals,
            steady_intervals: tuning.steady_intervals,
            horizon_intervals: tuning.horizon_intervals,
            trouble_percent: tuning.trouble_ppm / PPM_PER_PERCENT,
            minimum_gain_percent: tuning.minimum_gain_ppm / PPM_PER_PERCENT,
            memory_stall_percent: tuning.memory_stall_ppm / PPM_PER_PERCENT,
        }
    }
}

impl Config {
    /// The configuration in the file at `path`; all defaults where there is no such file and nobody asked for it.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn read(path: &Path, must_exist: bool) -> Result<Self, Error> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {
                Ok(Self::default())
            }
            Err(error) => Err(Error { path: path.into(), line: None, what: error.to_string() }),
        }
    }

    /// The same from the file's text; `path` is for messages.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::at(path, text, &error))
    }

    /// What the control loop goes by.
    pub fn tuning(&self) -> Tuning {
        let Patience {
            idle_look_intervals,
            patience_intervals,
            weigh_intervals,
            minimum_stay_intervals,
            steady_intervals,
            horizon_intervals,
            trouble_percent,
            minimum_gain_percent,
            memory_stall_percent,
        } = self.tuning;
        Tuning {
            interval_ns: u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX),
            rate_bytes_per_s: self.rate_bytes_per_s,
            idle_look_intervals,
            patience_intervals,
            weigh_intervals,
            minimum_stay_intervals,
            steady_intervals,
            horizon_intervals,
            trouble_ppm: trouble_percent * PPM_PER_PERCENT,
            minimum_gain_ppm: minimum_gain_percent * PPM_PER_PERCENT,
            memory_stall_ppm: memory_stall_percent * PPM_PER_PERCENT,
            ..Tuning::default()
        }
    }

    /// What is in force after the file was read again, and what to tell. What only a restart can change stays as it was.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn reloaded(&self, path: &Path, text: &str) -> Result<(Self, Option<String>), Error> {
        let new = Self::parse(path, text)?;
        if new.api.socket == self.api.socket {
            return Ok((new, None));
        }
        let socket = &self.api.socket;
        let told = format!(
            "{}: api.socket changes with a restart; it stays {} till then",
            path.display(),
            socket.display()
        );
        let api = Api { socket: socket.clone(), ..new.api.clone() };
        Ok((Self { api, ..new }, Some(told)))
    }
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    path: PathBuf,
    /// Its number, and what it says.
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
        Self { path: path.into(), line, what: error.message().replace('\n', ", ") }
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

/// Shorter ones would leave no time for anything else, longer ones would not follow any load.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(600);

/// A value of the key; what is of another type is answered with an example.
fn typed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    example: &str,
) -> Result<T, D::Error> {
    let told = |error: D::Error| {
        de::Error::custom(format!("{}, as in {example}", error.to_string().trim_end()))
    };
    T::deserialize(deserializer).map_err(told)
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
            "with a rate of 0 nothing would ever come home: expected at least 1",
        )),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(de::Error::custom(format!("{text:?}: {why}"))),
    }
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path: PathBuf = typed(deserializer, "\"/var/log/nearside/audit.log\"")?;
    match path.is_absolute() && path.file_name().is_some() {
        true => Ok(path),
        false => Err(de::Error::custom(format!("{path:?}: expected the path of a file from / on"))),
    }
}

/// Nobody's group is written as an empty text: TOML has no null.
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
    fn the_example_is_what_holds_without_it() {
        assert_eq!(parse(EXAMPLE), Ok(Config::default()));
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(Config::default().tuning(), Tuning::default());
    }

    #[test]
    fn the_example_has_every_key() {
        let keys = |text: &str| {
            text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#')).count()
        };
        // Debug lists the fields, one a line, with those of three tables.
        let fields = format!("{:#?}", Config::default());
        let fields =
            fields.lines().filter(|line| line.contains(": ") && !line.ends_with(" {")).count();
        assert_eq!(keys(EXAMPLE), fields);
    }

    #[test]
    fn a_file_says_all_that_can_be_said() {
        let text = "interval = \"500ms\"\nfound = [\"machine.slice/*\"]\nscheduler = \"off\"\nrate = \"200M\"\n\
                    [api]\nsocket = \"/run/x\"\nread_group = \"ops\"\nadmin_group = \"adm\"\n\
                    [audit]\nlog = \"/var/log/x\"\n[tuning]\nidle_look_intervals = 4\ntrouble_percent = 20\n";
        let config = parse(text).unwrap();
        assert_eq!(config.interval, Duration::from_millis(500));
        assert_eq!((config.scheduler, config.rate_bytes_per_s), (Scheduler::Off, 200 << 20));
        assert_eq!(config.api.read_group.as_deref(), Some("ops"));
        let tuning = config.tuning();
        assert_eq!((tuning.interval_ns, tuning.idle_look_intervals), (500_000_000, 4));
        assert_eq!((tuning.trouble_ppm, tuning.minimum_gain_ppm), (200_000, 50_000));
    }

    #[test]
    fn what_is_wrong_is_named_with_line_key_and_what_was_expected() {
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
            ("found = \"a\"", "expected a sequence, as in [\"machine.slice/*\"]"),
            (
                "[audit]\nlog = 1",
                "line 2 (`log = 1`): invalid type: integer `1`, expected path string, as in \"/var/",
            ),
            ("rate = \"1X\"", "(`rate = \"1X\"`): \"1X\": \"X\" is no unit"),
            ("rate = \"0\"", "expected at least 1"),
            ("scheduler = \"yes\"", "unknown variant `yes`, expected one of `on`, `auto`, `off`"),
            ("found = [\"*\"]", "it has to begin with a name"),
            ("found = [\n  \"a\",\n  \"a//b\",\n]", "line 1 (`found = [`): \"a//b\" is no pattern"),
            (
                "[api]\nsocket = \"run/x\"",
                "line 2 (`socket = \"run/x\"`): \"run/x\": expected the path",
            ),
            ("[api]\nport = 80", "unknown field `port`"),
            ("[tuning]\npatience_intervals = 0", "0: expected a whole number from 1 to"),
            ("[tuning]\ntrouble_percent = 101", "101: expected a whole number from 1 to 100"),
            ("[tuning]\nweigh_intervals = -1", "-1: expected"),
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
    fn a_file_that_is_not_there_is_no_error_unless_it_was_named() {
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
        let path = Path::new("daemon.toml");
        let old = parse("rate = \"5M\"").unwrap();
        let error = old.reloaded(path, "rate = \"fast\"").unwrap_err().to_string();
        assert!(error.starts_with("daemon.toml"), "{error}");

        let other = "rate = \"6M\"\n[api]\nsocket = \"/run/other\"\nread_group = \"ops\"";
        let (new, told) = old.reloaded(path, other).unwrap();
        assert_eq!((new.rate_bytes_per_s, new.api.read_group.as_deref()), (6 << 20, Some("ops")));
        assert_eq!((&new.api.socket, told.is_some()), (&old.api.socket, true));
        assert_eq!(new.reloaded(path, "rate = \"6M\"").unwrap().1, None);
    }
}
