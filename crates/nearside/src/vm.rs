//! Virtual machines as libvirt describes them: from the XML of a domain to a request for homes, and
//! from the homes to the XML's bindings.

pub(crate) mod complete;
pub(crate) mod file;
pub(crate) mod incoming;
pub(crate) mod memory;
mod placement;
pub(crate) mod request;
pub(crate) mod shape;
