//! The figures of a scenario, each beside its requirement.

use crate::judge::Verdict;
use serde::Serialize;

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Required {
    AtLeast(f64),
    AtMost(f64),
    /// The largest distance from 0.
    Within(f64),
    /// No requirement: the figure is only reported.
    Stated,
}

/// The result of a scenario.
#[derive(Debug)]
pub(crate) struct Result {
    pub(crate) figures: Vec<Figure>,
    /// The data behind the figures.
    pub(crate) verdicts: Vec<Verdict>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// `None`: the event never came.
    pub(crate) value: Option<f64>,
    pub(crate) required: Required,
    pub(crate) met: Option<bool>,
}

pub(crate) fn figure(
    name: impl Into<String>,
    unit: &'static str,
    value: impl Into<Option<f64>>,
    required: Required,
) -> Figure {
    let value = value.into();
    let met = match required {
        Required::Stated => None,
        Required::AtLeast(least) => Some(value.is_some_and(|value| value >= least)),
        Required::AtMost(most) => Some(value.is_some_and(|value| value <= most)),
        Required::Within(far) => Some(value.is_some_and(|value| value.abs() <= far)),
    };
    Figure { name: name.into(), unit, value, required, met }
}
