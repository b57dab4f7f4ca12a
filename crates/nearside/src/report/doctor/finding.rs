//! One line of the doctor: a property of the host, how good it is, and how to improve it.

use serde::Serialize;

/// One property of the host.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Its short title.
    pub(crate) topic: &'static str,
    pub(crate) state: State,
    /// The observed value.
    pub(crate) found: String,
    /// The consequence.
    pub(crate) follows: Option<String>,
    /// A way to improve it.
    pub(crate) advice: Option<String>,
    /// True if it prevents the start of domains.
    pub(crate) stops_run: bool,
}

/// The quality of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Everything works.
    Ok,
    /// Something works less well.
    Limited,
    /// Something does not work.
    Missing,
}

impl Finding {
    pub(super) fn new(topic: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { topic, state, found: found.into(), follows: None, advice: None, stops_run: false }
    }

    pub(super) fn ok(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Ok, found)
    }

    pub(super) fn limited(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Limited, found)
    }

    pub(super) fn missing(topic: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, State::Missing, found)
    }

    pub(super) fn so(self, follows: impl Into<String>) -> Self {
        Self { follows: Some(follows.into()), ..self }
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    pub(super) fn stops_run(self) -> Self {
        Self { stops_run: true, ..self }
    }
}
