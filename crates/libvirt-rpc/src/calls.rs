//! The calls that Nearside makes, with arguments and answers by `src/remote/remote_protocol.x`.

use crate::{
    connection::{Connection, Procedure},
    error::{Error, Garbled},
    mask,
    message::MAX_STRING,
    parameter::{self, Parameter},
    transport,
    xdr::{Reader, Writer},
};
use nearside_libvirt::{IothreadId, VcpuId};
use nearside_topology::CpuSet;
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

/// The sockets of the daemons that run QEMU, the modular one first.
pub const SOCKETS: [&str; 2] = ["/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"];

/// The connection's name of the host's own QEMU.
const SYSTEM: &str = "qemu:///system";

const AUTH_LIST: Procedure = Procedure { number: 66, name: "list of authentications" };
const OPEN: Procedure = Procedure { number: 1, name: "open" };
const LIST_DOMAINS: Procedure = Procedure { number: 273, name: "list of domains" };
const LOOKUP_BY_ID: Procedure = Procedure { number: 22, name: "domain by number" };
const LOOKUP_BY_NAME: Procedure = Procedure { number: 23, name: "domain by name" };
const LOOKUP_BY_UUID: Procedure = Procedure { number: 24, name: "domain by UUID" };
const XML: Procedure = Procedure { number: 14, name: "XML of a domain" };
const IS_PERSISTENT: Procedure = Procedure { number: 151, name: "persistence of a domain" };
const VCPU_PINS: Procedure = Procedure { number: 230, name: "CPUs of vCPUs" };
const PIN_VCPU: Procedure = Procedure { number: 225, name: "CPUs for a vCPU" };
const EMULATOR_PIN: Procedure = Procedure { number: 280, name: "CPUs of the emulator" };
const PIN_EMULATOR: Procedure = Procedure { number: 279, name: "CPUs for the emulator" };
const IOTHREADS: Procedure = Procedure { number: 351, name: "CPUs of iothreads" };
const PIN_IOTHREAD: Procedure = Procedure { number: 352, name: "CPUs for an iothread" };
const NUMA_PARAMETERS: Procedure = Procedure { number: 255, name: "NUMA parameters" };
const SET_NUMA_PARAMETERS: Procedure = Procedure { number: 254, name: "new NUMA parameters" };

/// `VIR_DOMAIN_AFFECT_LIVE`: the running domain, not its configuration.
const LIVE: u32 = 1;
/// `VIR_TYPED_PARAM_STRING_OKAY`: the answer may have strings.
const STRINGS: u32 = 4;
/// `VIR_DOMAIN_XML_INACTIVE`.
const INACTIVE: u32 = 2;
/// `VIR_CONNECT_LIST_DOMAINS_ACTIVE`.
const ACTIVE: u32 = 1;
/// `REMOTE_AUTH_NONE`, `_SASL` and `_POLKIT`.
const AUTH_NAMES: [&str; 3] = ["nothing", "SASL", "polkit"];

// The protocol's bounds.
const MAX_AUTHS: u32 = 20;
const MAX_DOMAINS: u32 = 16_384;
const MAX_IOTHREADS: u32 = 16_384;
const MAX_MASKS: u32 = 8_388_608;

/// The most vCPUs whose CPUs can be asked for: as many masks of full length as an answer may have.
pub const MAX_VCPUS: u32 = MAX_MASKS / mask::MAX_BYTES;

/// A domain as libvirt names it (`remote_nonnull_domain`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainHandle {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its number while it runs, -1 otherwise.
    pub id: i32,
}

impl DomainHandle {
    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.id >= 0
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Garbled> {
        Ok(Self {
            name: reader.string(MAX_STRING)?.to_owned(),
            uuid: reader.fixed()?,
            id: reader.i32()?,
        })
    }

    fn write(&self) -> Writer {
        Writer::default().string(&self.name).fixed(&self.uuid).i32(self.id)
    }
}

/// The mode and node set of a running domain's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaParameters {
    /// `virDomainNumatuneMemMode`; none if libvirt says nothing.
    pub mode: Option<i32>,
    /// The node set as libvirt writes it, empty if it sets none.
    pub nodeset: String,
}

impl Connection {
    /// Connects to the first of these sockets on which a daemon listens, and opens the host's own
    /// QEMU. Each call may take `within`.
    ///
    /// # Errors
    /// If no daemon listens, if it demands authentication, or if a call fails.
    pub fn open<P: AsRef<Path>>(sockets: &[P], within: Duration) -> Result<Self, Error> {
        for path in sockets.iter().map(AsRef::as_ref) {
            match transport::connect_to(path, within) {
                Ok(stream) => {
                    let mut connection = Self::over(Box::new(stream), within);
                    connection.open_system()?;
                    return Ok(connection);
                }
                // A socket remains when its daemon was killed.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(Error::TimedOut { call: "connect", within });
                }
                Err(source) => return Err(Error::Connect { path: path.into(), source }),
            }
        }
        let tried = sockets.iter().map(|path| PathBuf::from(path.as_ref())).collect();
        Err(Error::Absent { tried })
    }

    /// Opens the host's own QEMU on a new connection.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_system(&mut self) -> Result<(), Error> {
        let auths = self.ask(AUTH_LIST, &[], |reader| {
            let count = reader.count(MAX_AUTHS, 4)?;
            (0..count).map(|_| reader.u32()).collect::<Result<Vec<_>, _>>()
        })?;
        // libvirt demands nothing of root (`remoteDispatchAuthList`, `remote_daemon_dispatch.c`).
        if !auths.is_empty() && !auths.contains(&0) {
            let names = auths.iter().map(|&auth| {
                let name = AUTH_NAMES.get(auth as usize);
                name.map_or_else(|| format!("method {auth}"), ToString::to_string)
            });
            return Err(Error::Authentication { by: names.collect::<Vec<_>>().join(" or ") });
        }
        self.command(OPEN, &Writer::default().some_string(SYSTEM).u32(0).into_bytes())
    }

    /// The running domains.
    ///
    /// # Errors
    /// If the call fails.
    pub fn running_domains(&mut self) -> Result<Vec<DomainHandle>, Error> {
        // The first argument asks for the domains and not for their number alone.
        let arguments = Writer::default().i32(1).u32(ACTIVE).into_bytes();
        self.ask(LIST_DOMAINS, &arguments, |reader| {
            // The shortest domain has an empty name, a UUID and a number.
            let count = reader.count(MAX_DOMAINS, 24)?;
            let domains = (0..count).map(|_| DomainHandle::read(reader)).collect();
            reader.u32()?;
            domains
        })
    }

    /// The running domain with this number.
    ///
    /// # Errors
    /// If the call fails; [`Error::is_no_domain`] if there is none.
    pub fn domain_by_id(&mut self, id: i32) -> Result<DomainHandle, Error> {
        self.ask(LOOKUP_BY_ID, &Writer::default().i32(id).into_bytes(), DomainHandle::read)
    }

    /// The domain with this name, running or not.
    ///
    /// # Errors
    /// As [`domain_by_id`](Self::domain_by_id).
    pub fn domain_by_name(&mut self, name: &str) -> Result<DomainHandle, Error> {
        if name.len() > MAX_STRING as usize {
            return Err(Error::TooLong { what: "the name of a domain" });
        }
        let arguments = Writer::default().string(name).into_bytes();
        self.ask(LOOKUP_BY_NAME, &arguments, DomainHandle::read)
    }

    /// The domain with this UUID, running or not.
    ///
    /// # Errors
    /// As [`domain_by_id`](Self::domain_by_id).
    pub fn domain_by_uuid(&mut self, uuid: [u8; 16]) -> Result<DomainHandle, Error> {
        self.ask(LOOKUP_BY_UUID, &Writer::default().fixed(&uuid).into_bytes(), DomainHandle::read)
    }

    /// The XML of a domain as it runs now.
    ///
    /// # Errors
    /// If the call fails.
    pub fn xml(&mut self, domain: &DomainHandle) -> Result<String, Error> {
        self.xml_with(domain, 0)
    }

    /// The XML with which a domain starts the next time. A running domain without a configuration
    /// has none; libvirt then answers with the XML as it runs now.
    ///
    /// # Errors
    /// If the call fails.
    pub fn configured_xml(&mut self, domain: &DomainHandle) -> Result<String, Error> {
        self.xml_with(domain, INACTIVE)
    }

    fn xml_with(&mut self, domain: &DomainHandle, flags: u32) -> Result<String, Error> {
        self.ask(XML, &domain.write().u32(flags).into_bytes(), |reader| {
            reader.string(MAX_STRING).map(str::to_owned)
        })
    }

    /// Whether a domain has a configuration that stays when it ends.
    ///
    /// # Errors
    /// If the call fails.
    pub fn is_persistent(&mut self, domain: &DomainHandle) -> Result<bool, Error> {
        self.ask(IS_PERSISTENT, &domain.write().into_bytes(), |reader| Ok(reader.i32()? != 0))
    }

    /// The CPUs of each of the first `vcpus` vCPUs of a running domain. A vCPU without a binding
    /// may run on all CPUs of the host.
    ///
    /// # Errors
    /// If the call fails, or for more than [`MAX_VCPUS`].
    pub fn vcpu_pins(&mut self, domain: &DomainHandle, vcpus: u32) -> Result<Vec<CpuSet>, Error> {
        if vcpus > MAX_VCPUS {
            return Err(Error::TooLong { what: "the number of vCPUs" });
        }
        let arguments = domain.write().u32(vcpus).u32(mask::MAX_BYTES).u32(LIVE).into_bytes();
        self.ask(VCPU_PINS, &arguments, |reader| {
            let masks = reader.opaque(MAX_MASKS)?;
            let count = reader.u32()?;
            if count > vcpus {
                return Err(Garbled::TooMany { count, at_most: vcpus });
            }
            // libvirt sends room for all that were asked for, whatever their number turns out to
            // be.
            let length = count as usize * mask::MAX_BYTES as usize;
            let garbled = Garbled::Masks { bytes: masks.len(), masks: count };
            mask::cpus_of_each(masks.get(..length).ok_or(garbled)?, count)
        })
    }

    /// Binds a vCPU of a running domain.
    ///
    /// # Errors
    /// If libvirt refuses, or the call fails.
    pub fn pin_vcpu(
        &mut self,
        domain: &DomainHandle,
        vcpu: VcpuId,
        cpus: &CpuSet,
    ) -> Result<(), Error> {
        let arguments = domain.write().u32(vcpu.0).opaque(&mask_of(cpus)?).u32(LIVE);
        self.command(PIN_VCPU, &arguments.into_bytes())
    }

    /// The CPUs of the emulator's threads of a running domain.
    ///
    /// # Errors
    /// If the call fails.
    pub fn emulator_pin(&mut self, domain: &DomainHandle) -> Result<CpuSet, Error> {
        let arguments = domain.write().u32(mask::MAX_BYTES).u32(LIVE).into_bytes();
        self.ask(EMULATOR_PIN, &arguments, |reader| {
            let cpus = mask::cpus(reader.opaque(mask::MAX_BYTES)?);
            reader.i32()?;
            Ok(cpus)
        })
    }

    /// Binds the emulator's threads of a running domain.
    ///
    /// # Errors
    /// If libvirt refuses, or the call fails.
    pub fn pin_emulator(&mut self, domain: &DomainHandle, cpus: &CpuSet) -> Result<(), Error> {
        let arguments = domain.write().opaque(&mask_of(cpus)?).u32(LIVE);
        self.command(PIN_EMULATOR, &arguments.into_bytes())
    }

    /// The iothreads of a running domain with their CPUs.
    ///
    /// # Errors
    /// If the call fails.
    pub fn iothread_pins(
        &mut self,
        domain: &DomainHandle,
    ) -> Result<Vec<(IothreadId, CpuSet)>, Error> {
        self.ask(IOTHREADS, &domain.write().u32(LIVE).into_bytes(), |reader| {
            let count = reader.count(MAX_IOTHREADS, 8)?;
            let pin = |reader: &mut Reader<'_>| {
                Ok((IothreadId(reader.u32()?), mask::cpus(reader.opaque(mask::MAX_BYTES)?)))
            };
            let pins = (0..count).map(|_| pin(reader)).collect::<Result<_, _>>()?;
            reader.u32()?;
            Ok(pins)
        })
    }

    /// Binds an iothread of a running domain.
    ///
    /// # Errors
    /// If libvirt refuses, or the call fails.
    pub fn pin_iothread(
        &mut self,
        domain: &DomainHandle,
        iothread: IothreadId,
        cpus: &CpuSet,
    ) -> Result<(), Error> {
        let arguments = domain.write().u32(iothread.0).opaque(&mask_of(cpus)?).u32(LIVE);
        self.command(PIN_IOTHREAD, &arguments.into_bytes())
    }

    /// The mode and node set of a running domain's memory.
    ///
    /// # Errors
    /// If the call fails.
    pub fn numa_parameters(&mut self, domain: &DomainHandle) -> Result<NumaParameters, Error> {
        let asked = domain.write().u32(parameter::MAX_COUNT).u32(LIVE | STRINGS).into_bytes();
        let parameters = self.ask(NUMA_PARAMETERS, &asked, |reader| {
            let parameters = parameter::read_all(reader)?;
            reader.i32()?;
            Ok(parameters)
        })?;
        let mut answer = NumaParameters { mode: None, nodeset: String::new() };
        for (name, value) in parameters {
            match (name.as_str(), value) {
                (parameter::MODE, Parameter::Int(mode)) => answer.mode = Some(mode),
                (parameter::NODESET, Parameter::Text(nodeset)) => answer.nodeset = nodeset,
                _ => {}
            }
        }
        Ok(answer)
    }

    /// Gives the memory of a running domain another node set.
    ///
    /// # Errors
    /// If libvirt refuses (it changes the set of a `restrictive` domain only), or the call fails.
    pub fn set_numa_nodeset(&mut self, domain: &DomainHandle, nodes: &str) -> Result<(), Error> {
        let arguments = parameter::write_nodeset(domain.write(), nodes).u32(LIVE);
        self.command(SET_NUMA_PARAMETERS, &arguments.into_bytes())
    }
}

fn mask_of(cpus: &CpuSet) -> Result<Vec<u8>, Error> {
    mask::of(cpus).ok_or(Error::TooLong { what: "the number of a CPU" })
}
