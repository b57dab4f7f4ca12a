//! Shares, grants, charges and caps, as in `groups.h` and the timer of `main.bpf.c`.

use super::{ANYWHERE, MAX_THROTTLED_NS, Machine, TICK_NS, Work};
use nearside_credit::{self as credit, ONE, WEIGHT};

impl Machine {
    /// A group and those it is nested in, inner ones first.
    pub(super) fn path(&self, group: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(group), |&group| self.parents[group])
    }

    /// The weights of a group's active children and of its own tasks; of the outermost groups
    /// without one.
    fn weights(&self, group: Option<usize>) -> u64 {
        let own =
            if group.is_some_and(|group| self.groups[group].runnable > 0) { WEIGHT } else { 0 };
        let children = (0..self.groups.len()).filter(|&child| self.parents[child] == group);
        own + children
            .filter(|&child| self.weights(Some(child)) > 0)
            .map(|child| self.weights[child])
            .sum::<u64>()
    }

    fn share(&mut self, group: usize) {
        let mut share = credit::share(ONE, WEIGHT, self.weights(Some(group)));
        for level in self.path(group) {
            share = credit::share(share, self.weights[level], self.weights(self.parents[level]));
        }
        self.groups[group].share = share;
    }

    /// The part of a slice that the caps leave, or the group whose cap leaves none.
    fn take_caps(&mut self, group: usize, mut slice_ns: u64, force: bool) -> Result<u64, usize> {
        let path: Vec<usize> = self.path(group).collect();
        for &level in &path {
            credit::refill(&self.params, &mut self.caps[level], self.time_ns);
            let mut left = self.caps[level];
            slice_ns = match credit::take(&self.params, &mut left, slice_ns) {
                0 if !force => return Err(level),
                0 => self.params.slice_min_ns,
                got => got,
            };
        }
        for level in path {
            credit::settle_cap(&mut self.caps[level], 0, slice_ns);
        }
        Ok(slice_ns)
    }

    /// Grants the task a slice, or gives the group whose cap refuses it.
    pub(super) fn grant(&mut self, task: usize, woken: bool, force: bool) -> Result<(), usize> {
        let group = self.tasks[task].group;
        self.share(group);
        let slice_ns = credit::slice(&self.params, self.tasks[task].weight);
        let slice_ns = self.take_caps(group, slice_ns, force)?;
        let state = &mut self.groups[group];
        let tag = credit::tag(&self.params, state, self.now_v, woken);
        let own_now = match state.runnable {
            0 | 1 => self.tasks[task].own,
            _ => self.own_now[group],
        };
        let own = credit::own_rejoins(&self.params, own_now, self.tasks[task].own);
        let lead = match woken {
            true => credit::own_lead(&self.params, state, self.now_v, tag, own_now, own),
            false => 0,
        };
        let uses_ns = credit::uses(slice_ns, self.tasks[task].runs_ns, woken);
        let grant = credit::reserve(state, tag, slice_ns, uses_ns);
        self.tasks[task].grant = grant;
        self.tasks[task].leads = lead > 0;
        self.tasks[task].own = own;
        self.tasks[task].place =
            tag.wrapping_sub(lead).wrapping_add(credit::own_lag(&self.params, own_now, own));
        self.own_now[group] = credit::own_now(own_now, own, uses_ns, slice_ns);
        Ok(())
    }

    /// Charges the running task. Returns whether it still wants to run.
    pub(super) fn charge(&mut self, cpu: usize, task: usize) -> bool {
        let node = self.node_of(cpu);
        let state = &mut self.tasks[task];
        let used_ns = self.time_ns - state.since_ns;
        state.since_ns = self.time_ns;
        state.used_ns += used_ns;
        state.ran_ns += used_ns;
        state.by_node_ns[node] += used_ns;
        state.own += credit::own_charge(used_ns, state.weight);
        let (group, taken_ns) = (state.group, state.grant.slice_ns);
        credit::settle(&mut self.groups[group], &state.grant, used_ns);
        for level in self.path(group).collect::<Vec<_>>() {
            credit::settle_cap(&mut self.caps[level], taken_ns, used_ns);
        }
        let state = &mut self.tasks[task];
        let Work::Naps(burn_ns, sleep_ns) = state.work else { return true };
        state.left_ns -= used_ns;
        if state.left_ns > 0 {
            return true;
        }
        state.left_ns = burn_ns;
        let is_first = !state.has_slept;
        state.runs_ns = credit::runs(&self.params, state.runs_ns, state.ran_ns, is_first);
        state.has_slept = true;
        state.ran_ns = 0;
        self.groups[group].runnable -= 1;
        self.sleeping.insert((self.time_ns + sleep_ns, task));
        false
    }

    /// Tasks that wait for a cap continue in order of arrival, until one is refused.
    pub(super) fn timer(&mut self) {
        self.timer_ns = self.time_ns + TICK_NS;
        for level in self.throttled.keys().copied().collect::<Vec<_>>() {
            self.release(level);
        }
        self.throttled.retain(|_, waiting| !waiting.is_empty());
    }

    fn release(&mut self, level: usize) {
        let mut refused = false;
        let mut waiting = std::mem::take(self.throttled.entry(level).or_default());
        while let Some(&task) = waiting.front() {
            let too_long = self.time_ns - self.tasks[task].queued_ns > MAX_THROTTLED_NS;
            if refused && !too_long {
                break;
            }
            self.asked += 1;
            match self.grant(task, false, too_long) {
                Ok(()) => {
                    waiting.pop_front();
                    self.released += 1;
                    self.tasks[task].queued_ns = self.time_ns;
                    self.send(task, ANYWHERE, false);
                }
                Err(other) if other == level => {
                    refused = true;
                    self.timer_ns = self.next_period(self.tasks[task].group, self.timer_ns);
                }
                Err(other) => {
                    waiting.pop_front();
                    self.throttled.entry(other).or_default().push_back(task);
                    self.timer_ns = self.next_period(self.tasks[task].group, self.timer_ns);
                }
            }
        }
        // None is throttled meanwhile: nothing that runs stops.
        self.throttled.insert(level, waiting);
    }

    /// When the first cap above the group starts its next period, no later than `next_ns`.
    fn next_period(&self, group: usize, next_ns: u64) -> u64 {
        let caps = self.path(group).map(|level| self.caps[level]).filter(|cap| cap.quota_ns > 0);
        let ends = caps.map(|cap| cap.start_ns + cap.period_ns);
        ends.filter(|&end_ns| end_ns > self.time_ns).fold(next_ns, u64::min)
    }
}
