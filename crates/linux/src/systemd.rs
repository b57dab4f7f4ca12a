//! Domains as scopes of systemd, which owns the cgroup tree on hosts that it runs
//! (`org.freedesktop.systemd1(5)`).
//!
//! The caller holds the lock on the records. So every request has a time limit, after which it has
//! failed.

use crate::error::Error;
use async_io::Timer;
use futures_lite::{StreamExt, future};
use nearside_policy::Limits;
use nearside_topology::{Id, IdSet};
use std::{future::Future, path::Path, time::Duration};
use zbus::{
    Connection, Proxy,
    zvariant::{OwnedObjectPath, Value},
};

/// The slice that holds Nearside's scopes.
pub const SLICE: &str = "nearside.slice";

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const JOB: &str = "org.freedesktop.systemd1.Job";

/// The bus error for a unit that exists already.
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
/// The bus error for a property that is read-only or unknown (`bus_unit_set_properties` in
/// `src/core/dbus-unit.c`).
const NO_PROPERTY: &str = "org.freedesktop.DBus.Error.PropertyReadOnly";

/// The longest waits for systemd.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// For the result of a request.
    answer: Duration,
    /// For systemd to collect a scope whose processes have ended.
    collect: Duration,
    /// For the cancellation of a job.
    cancel: Duration,
}

const TIMEOUTS: Timeouts = Timeouts {
    answer: Duration::from_secs(30),
    collect: Duration::from_secs(10),
    cancel: Duration::from_secs(1),
};

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd {
    manager: Proxy<'static>,
    timeouts: Timeouts,
}

type Property<'a> = (&'a str, Value<'a>);

impl Systemd {
    /// Whether systemd runs this machine (`sd_booted(3)`).
    pub fn runs(root: &Path) -> bool {
        root.join("run/systemd/system").is_dir()
    }

    /// Connects over the system bus.
    pub fn connect() -> Result<Self, Error> {
        let connected = async { Self::over(Connection::system().await?, TIMEOUTS).await };
        within(TIMEOUTS.answer, "connect over the system bus", connected)
    }

    async fn over(connection: Connection, timeouts: Timeouts) -> zbus::Result<Self> {
        let manager = Proxy::new_owned(connection, NAME, PATH, MANAGER).await?;
        // systemd sends signals only to connections that have subscribed.
        manager.call::<_, _, ()>("Subscribe", &()).await?;
        Ok(Self { manager, timeouts })
    }

    /// The scope of a domain.
    pub fn unit(domain: &str) -> String {
        format!("nearside-{domain}.scope")
    }

    /// Creates the scope of a domain around this process, and waits until it exists.
    pub fn start_scope(&self, domain: &str, limits: Limits) -> Result<(), Error> {
        let unit = Self::unit(domain);
        let what = format!("start {unit}");
        let mut job = None;
        let ended = within(
            self.timeouts.answer,
            &what,
            self.start(&unit, properties(domain, limits), &mut job),
        );
        if let Some(job) = job {
            // After the cancellation, systemd does not move this process, which continues without
            // it. Its answer does not matter.
            let _ = within(self.timeouts.cancel, "cancel", self.cancel(job));
        }
        match ended?.as_str() {
            "done" => Ok(()),
            result => Err(Error::Systemd { what, why: format!("the job ended as {result}") }),
        }
    }

    /// The result of the job that starts `unit`; `job` is set while the job is under way.
    async fn start(
        &self,
        unit: &str,
        properties: Vec<Property<'_>>,
        job: &mut Option<OwnedObjectPath>,
    ) -> zbus::Result<String> {
        let mut removed =
            self.manager.receive_signal_with_args("UnitRemoved", &[(0, unit)]).await?;
        let mut ended = self.manager.receive_signal_with_args("JobRemoved", &[(2, unit)]).await?;
        let auxiliary: Vec<(&str, Vec<Property<'_>>)> = Vec::new();
        let arguments = (unit, "fail", properties, auxiliary);
        let started: OwnedObjectPath = loop {
            match self.manager.call("StartTransientUnit", &arguments).await {
                // The scope of a domain of that name has just ended; systemd will collect it soon.
                Err(zbus::Error::MethodError(name, message, reply))
                    if name.as_str() == UNIT_EXISTS =>
                {
                    if timely(self.timeouts.collect, removed.next()).await.flatten().is_none() {
                        return Err(zbus::Error::MethodError(name, message, reply));
                    }
                }
                answer => break answer?,
            }
        };
        *job = Some(started.clone());
        while let Some(signal) = ended.next().await {
            let body = signal.body();
            let (_, path, _, result): (u32, OwnedObjectPath, String, String) =
                body.deserialize()?;
            if path == started {
                *job = None;
                return Ok(result);
            }
        }
        Err(zbus::Error::Failure("the bus was closed".into()))
    }

    async fn cancel(&self, job: OwnedObjectPath) -> zbus::Result<()> {
        Proxy::new(self.manager.connection(), NAME, job, JOB)
            .await?
            .call_noreply("Cancel", &())
            .await
    }

    /// Sets one of a unit's sets (`AllowedCPUs=`, `AllowedMemoryNodes=`) and waits until systemd
    /// has written it. False if systemd does not know the property, which came with version 244.
    pub fn set<T: Id>(&self, unit: &str, property: &str, set: &IdSet<T>) -> Result<bool, Error> {
        within(self.timeouts.answer, &format!("set {property} of {unit}"), async {
            // For this boot only, because the unit ends with the domain.
            let arguments = (unit, true, vec![(property, Value::from(bytes(set)))]);
            match self.manager.call::<_, _, ()>("SetUnitProperties", &arguments).await {
                Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NO_PROPERTY => {
                    return Ok(false);
                }
                answer => answer?,
            }
            // systemd answers before it writes its cgroups, but it writes them before it reads the
            // next message (`manager_loop` in `src/core/manager.c`). So an answer to any second
            // message proves the write.
            let peer =
                Proxy::new(self.manager.connection(), NAME, PATH, "org.freedesktop.DBus.Peer")
                    .await?;
            peer.call::<_, _, ()>("Ping", &()).await?;
            Ok(true)
        })
    }
}

fn properties(domain: &str, limits: Limits) -> Vec<Property<'static>> {
    let mut properties = vec![
        ("Description", Value::from(format!("Nearside domain {domain}"))),
        ("Slice", Value::from(SLICE)),
        // The domain's processes may make groups below their own.
        ("Delegate", Value::from(true)),
        ("CollectMode", Value::from("inactive-or-failed")),
        ("PIDs", Value::from(vec![std::process::id()])),
    ];
    properties
        .extend(limits.cpus.map(|cpus| ("CPUQuotaPerSecUSec", Value::from((cpus * 1e6) as u64))));
    properties.extend(limits.memory_bytes.map(|bytes| ("MemoryMax", Value::from(bytes))));
    properties
}

/// The result of `answer`, or an error after the time limit.
fn within<T>(
    timeout: Duration,
    what: &str,
    answer: impl Future<Output = zbus::Result<T>>,
) -> Result<T, Error> {
    let failed = |why| Error::Systemd { what: what.into(), why };
    match async_io::block_on(timely(timeout, answer)) {
        Some(answer) => answer.map_err(|error| failed(error.to_string())),
        None => Err(failed(format!(
            "no answer within {} s: see `systemctl status` and the journal",
            timeout.as_secs()
        ))),
    }
}

async fn timely<T>(timeout: Duration, answer: impl Future<Output = T>) -> Option<T> {
    let too_late = async {
        Timer::after(timeout).await;
        None
    };
    future::or(async { Some(answer.await) }, too_late).await
}

/// A set as systemd's bus interface takes it: bytes, with the lowest number in the lowest bit of
/// the first byte.
fn bytes<T: Id>(set: &IdSet<T>) -> Vec<u8> {
    let length = set.iter().next_back().map_or(0, |last| last.number() as usize / 8 + 1);
    let mut bytes = vec![0; length];
    for id in set.iter() {
        bytes[id.number() as usize / 8] |= 1 << (id.number() % 8);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{CpuId, CpuSet};
    use std::{
        os::unix::net::UnixStream,
        sync::mpsc::{Receiver, Sender, channel},
    };
    use zbus::{connection::Builder, object_server::SignalEmitter, zvariant::OwnedValue};

    const JOB_PATH: &str = "/org/freedesktop/systemd1/job/7";
    /// Longer than any test may take: reached only if an expected event never comes.
    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(50);

    /// A fake systemd at the other end of a connection without a bus.
    struct Fake {
        /// The result of a job; none if it never ends.
        ends: Option<&'static str>,
        /// Number of starts that find the unit existing, and whether it is collected after each.
        exists: u32,
        is_collected: bool,
        /// Whether it knows cpusets.
        has_cpusets: bool,
        is_subscribed: bool,
        told: Sender<String>,
    }

    #[derive(Debug, zbus::DBusError)]
    #[zbus(prefix = "org.freedesktop.systemd1")]
    enum Fault {
        #[zbus(error)]
        ZBus(zbus::Error),
        UnitExists(String),
    }

    type Properties = Vec<(String, OwnedValue)>;

    #[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
    impl Fake {
        fn subscribe(&mut self) -> zbus::fdo::Result<()> {
            match std::mem::replace(&mut self.is_subscribed, true) {
                true => Err(zbus::fdo::Error::Failed("Client is already subscribed.".into())),
                false => Ok(()),
            }
        }

        async fn start_transient_unit(
            &mut self,
            #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
            unit: &str,
            _mode: &str,
            _properties: Properties,
            _auxiliary: Vec<(String, Properties)>,
        ) -> Result<OwnedObjectPath, Fault> {
            let path = OwnedObjectPath::try_from(JOB_PATH).map_err(zbus::Error::from)?;
            if self.exists > 0 {
                self.exists -= 1;
                if self.is_collected {
                    Self::unit_removed(&emitter, "another.scope", &path).await?;
                    Self::unit_removed(&emitter, unit, &path).await?;
                }
                return Err(Fault::UnitExists(format!("Unit {unit} was already loaded.")));
            }
            if let Some(result) = self.ends {
                // Sent even before the answer: the signals are received from the beginning.
                Self::job_removed(
                    &emitter,
                    6,
                    "/another/job".try_into().map_err(zbus::Error::from)?,
                    unit,
                    "failed",
                )
                .await?;
                Self::job_removed(&emitter, 7, path.clone(), unit, result).await?;
            }
            Ok(path)
        }

        fn set_unit_properties(
            &self,
            unit: &str,
            _runtime: bool,
            properties: Properties,
        ) -> zbus::fdo::Result<()> {
            let told = format!("{unit} {}", properties[0].0);
            self.told.send(told).map_err(|error| zbus::fdo::Error::Failed(error.to_string()))?;
            match self.has_cpusets {
                true => Ok(()),
                false => Err(zbus::fdo::Error::PropertyReadOnly(
                    "Cannot set property, or unknown property.".into(),
                )),
            }
        }

        #[zbus(signal)]
        async fn job_removed(
            emitter: &SignalEmitter<'_>,
            id: u32,
            job: OwnedObjectPath,
            unit: &str,
            result: &str,
        ) -> zbus::Result<()>;

        #[zbus(signal)]
        async fn unit_removed(
            emitter: &SignalEmitter<'_>,
            id: &str,
            unit: &OwnedObjectPath,
        ) -> zbus::Result<()>;
    }

    struct FakeJob(Sender<String>);

    #[zbus::interface(name = "org.freedesktop.systemd1.Job")]
    impl FakeJob {
        fn cancel(&self) -> zbus::fdo::Result<()> {
            self.0
                .send("cancelled".into())
                .map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
        }
    }

    /// A connection to a fake, the requests it receives, and the fake's own end of the connection.
    fn systemd(
        timeouts: Timeouts,
        change: impl FnOnce(&mut Fake),
    ) -> (Systemd, Receiver<String>, Connection) {
        let (told, tells) = channel();
        let mut fake = Fake {
            ends: Some("done"),
            exists: 0,
            is_collected: true,
            has_cpusets: true,
            is_subscribed: false,
            told: told.clone(),
        };
        change(&mut fake);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = async {
            let server =
                Builder::async_io_unix_stream(theirs).server(zbus::Guid::generate())?.p2p();
            server.serve_at(PATH, fake)?.serve_at(JOB_PATH, FakeJob(told))?.build().await
        };
        let client = async {
            Systemd::over(Builder::async_io_unix_stream(ours).p2p().build().await?, timeouts).await
        };
        let (server, client) = async_io::block_on(future::zip(server, client));
        (client.unwrap(), tells, server.unwrap())
    }

    const LONG_TIMEOUTS: Timeouts = Timeouts { answer: LONG, collect: LONG, cancel: LONG };

    fn start(systemd: &Systemd) -> Result<(), String> {
        systemd.start_scope("web", Limits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_scope_is_there_when_its_job_is_done() {
        let (systemd, told, server) = systemd(LONG_TIMEOUTS, |_| {});
        assert_eq!(start(&systemd), Ok(()));
        assert_eq!(start(&systemd), Ok(()), "once more over the same connection");
        drop((systemd, server));
        assert_eq!(told.iter().count(), 0, "nothing was cancelled");
    }

    #[test]
    fn a_failed_job_is_reported_in_systemds_words() {
        let (systemd, _told, _server) = systemd(LONG_TIMEOUTS, |fake| fake.ends = Some("timeout"));
        assert_eq!(
            start(&systemd).unwrap_err(),
            "systemd: start nearside-web.scope: the job ended as timeout"
        );
    }

    #[test]
    fn a_job_that_does_not_end_is_given_up_and_cancelled() {
        let (systemd, told, _server) =
            systemd(Timeouts { answer: SHORT, ..LONG_TIMEOUTS }, |fake| fake.ends = None);
        let said = start(&systemd).unwrap_err();
        assert!(said.contains("start nearside-web.scope: no answer within"), "{said}");
        assert_eq!(told.recv().unwrap(), "cancelled");
    }

    #[test]
    fn the_scope_of_a_domain_that_has_just_ended_is_waited_for() {
        let (systemd, _told, _server) = systemd(LONG_TIMEOUTS, |fake| fake.exists = 2);
        assert_eq!(start(&systemd), Ok(()));
    }

    #[test]
    fn a_unit_of_that_name_that_stays_is_named() {
        let (systemd, _told, _server) =
            systemd(Timeouts { collect: SHORT, ..LONG_TIMEOUTS }, |fake| {
                (fake.exists, fake.is_collected) = (1, false);
            });
        let said = start(&systemd).unwrap_err();
        assert!(said.contains("Unit nearside-web.scope was already loaded"), "{said}");
    }

    #[test]
    fn a_systemd_without_cpusets_sets_nothing() {
        for has_cpusets in [true, false] {
            let (systemd, told, _server) =
                systemd(LONG_TIMEOUTS, |fake| fake.has_cpusets = has_cpusets);
            let set = systemd
                .set("nearside-web.scope", "AllowedCPUs", &CpuSet::from([CpuId(3)]))
                .unwrap();
            assert_eq!(
                (set, told.recv().unwrap().as_str()),
                (has_cpusets, "nearside-web.scope AllowedCPUs")
            );
        }
    }

    #[test]
    fn a_silent_systemd_times_out() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let connected = async {
            Systemd::over(Builder::async_io_unix_stream(ours).p2p().build().await?, LONG_TIMEOUTS)
                .await
        };
        let said = within(SHORT, "connect", connected).unwrap_err().to_string();
        assert!(said.contains("connect: no answer within"), "{said}");
    }

    #[test]
    fn sets_travel_as_bytes_with_the_lowest_number_first() {
        assert_eq!(bytes(&CpuSet::from([CpuId(0), CpuId(3), CpuId(9)])), [0b1001, 0b10]);
        assert_eq!(bytes(&CpuSet::new()), [0_u8; 0]);
    }
}
