//! For tests: the kernel's answers to questions that the decisions also answered natively.

use crate::{
    attach::{check_host, leave_out_operations, open},
    error::Error,
    skeleton::types,
};
use libbpf_rs::{ProgramInput, btf::Btf, skel::OpenSkel};
use nearside_credit::{Cap, Grant, Group, Trial};

/// Runs the trials in the kernel's build of the decisions and writes the answers into them.
/// Attaches nothing.
pub fn try_in_kernel(trials: &mut [Trial]) -> Result<(), Error> {
    check_host()?;
    let mut open = open()?;
    let kernel =
        Btf::from_vmlinux().map_err(|e| Error::bpf("reading the kernel's type information", e))?;
    leave_out_operations(&mut open, &kernel);
    let mut skeleton = open.load().map_err(|e| Error::bpf("loading the BPF program", e))?;
    let most = skeleton.maps.bss_data.as_deref().map_or(1, |data| data.trials.len());
    for some in trials.chunks_mut(most) {
        let data = skeleton.maps.bss_data.as_deref_mut().ok_or(Error::Object)?;
        for (slot, trial) in data.trials.iter_mut().zip(some.iter()) {
            *slot = to_kernel(trial);
        }
        let result = skeleton.progs.nearside_try.test_run(ProgramInput::default());
        result.map_err(|e| Error::bpf("running the test program", e))?;
        let data = skeleton.maps.bss_data.as_deref().ok_or(Error::Object)?;
        for (trial, slot) in some.iter_mut().zip(&data.trials) {
            from_kernel(trial, slot);
        }
    }
    Ok(())
}

fn to_kernel(trial: &Trial) -> types::credit_trial {
    let Trial { decision, params, group, grant, cap, arguments, answer } = *trial;
    types::credit_trial {
        decision,
        params: crate::attach::tuning(params),
        group: types::credit_group {
            vtime: group.vtime,
            front: group.front,
            share: group.share,
            runnable: group.runnable,
            reserved: group.reserved,
        },
        grant: types::credit_grant {
            tag: grant.tag,
            reserved: grant.reserved,
            slice: grant.slice,
            slice_ns: grant.slice_ns,
        },
        cap: types::credit_cap {
            quota_ns: cap.quota_ns,
            period_ns: cap.period_ns,
            burst_ns: cap.burst_ns,
            start_ns: cap.start_ns,
            budget_ns: cap.budget_ns,
        },
        arguments,
        answer,
    }
}

fn from_kernel(trial: &mut Trial, slot: &types::credit_trial) {
    let types::credit_group { vtime, front, share, runnable, reserved } = slot.group;
    trial.group = Group { vtime, front, share, runnable, reserved };
    let types::credit_grant { tag, reserved, slice, slice_ns } = slot.grant;
    trial.grant = Grant { tag, reserved, slice, slice_ns };
    trial.cap = Cap {
        quota_ns: slot.cap.quota_ns,
        period_ns: slot.cap.period_ns,
        burst_ns: slot.cap.burst_ns,
        start_ns: slot.cap.start_ns,
        budget_ns: slot.cap.budget_ns,
    };
    trial.answer = slot.answer;
}
