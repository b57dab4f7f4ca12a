//! Placement: which set of nodes becomes a domain's home.

use crate::{CostModel, Decision, Observation, Refusal, Request};

/// The home for `request` on the machine as observed: the candidate with the least slow-down; among equals the one
/// with more free memory afterwards, then the one with the lowest numbers.
pub fn place(request: &Request, observation: &Observation, model: &CostModel) -> Result<Decision, Refusal> {
    let _ = (observation, model);
    if request.vcpus == 0 {
        return Err(Refusal::NoVcpus);
    }
    Err(Refusal::NoMemory)
}
