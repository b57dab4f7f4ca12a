#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod calls;
mod connection;
mod error;
mod mask;
mod message;
mod parameter;
mod transport;
mod xdr;

pub use calls::{DomainHandle, MAX_VCPUS, NumaParameters, SOCKETS};
pub use connection::Connection;
pub use error::{Error, Garbled};
pub use transport::Transport;
