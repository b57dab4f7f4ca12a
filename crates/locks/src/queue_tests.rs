//! The queue by itself: in many orders of its atomic operations under loom (`make loom`), else one
//! operation after the other, on random arrivals.

#[cfg(loom)]
mod many_orders {
    use super::super::*;
    use loom::{cell::UnsafeCell, model::Builder, sync::Arc, thread};

    struct Counted {
        queue: Queue,
        count: UnsafeCell<u32>,
    }

    // SAFETY: the count is touched by the holder of the lock alone, which loom checks.
    unsafe impl Sync for Counted {}

    /// A thread comes, has its turn, and leaves.
    fn come(counted: &Counted, node: u32, most: u32, leaves: bool) {
        if counted.queue.take_free() {
            return have_turn(counted, node, most);
        }
        let waiter = Waiter::on(node);
        // SAFETY: it stays in this function until `take` has returned.
        let has_lock = unsafe { counted.queue.enter(&waiter) };
        if leaves {
            waiter.leave_cpu(|_, _| ());
        }
        go_on(counted, &waiter, has_lock, most);
    }

    /// A thread that has entered has its turn, and leaves.
    fn go_on(counted: &Counted, waiter: &Waiter, mut has_lock: bool, most: u32) {
        while !has_lock {
            spin();
            has_lock = waiter.is_granted();
        }
        counted.queue.take(waiter);
        have_turn(counted, waiter.node, most);
    }

    fn have_turn(counted: &Counted, node: u32, most: u32) {
        // SAFETY: this thread holds the lock.
        counted.count.with_mut(|count| unsafe { *count += 1 });
        // SAFETY: it holds the lock.
        unsafe { counted.queue.release(|| node, Order { most, is_near_first: false }) };
    }

    /// The main thread, on node 0, holds the lock, and waiters on the nodes `entered` have entered.
    /// Their threads, and others that come at any time from nodes `coming`, have a turn each. The
    /// main thread has `turns` more. Those that come leave their CPU once, if `leave` is true.
    #[derive(Clone, Copy)]
    struct Scene {
        entered: &'static [u32],
        coming: &'static [u32],
        turns: usize,
        most: u32,
        preemptions: usize,
        leave: bool,
    }

    fn all_have_their_turns(scene: Scene) {
        let Scene { entered, coming, turns, most, preemptions, leave } = scene;
        let mut builder = Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        builder.check(move || {
            let counted = Arc::new(Counted { queue: Queue::default(), count: UnsafeCell::new(0) });
            assert!(counted.queue.take_free());
            let mut threads = Vec::new();
            for node in entered {
                let waiter = Box::new(Waiter::on(*node));
                // SAFETY: it stays in its box until its thread has taken the lock.
                assert!(!unsafe { counted.queue.enter(&waiter) });
                let counted = counted.clone();
                threads.push(thread::spawn(move || go_on(&counted, &waiter, false, most)));
            }
            for node in coming {
                let counted = counted.clone();
                threads.push(thread::spawn(move || come(&counted, *node, most, leave)));
            }
            have_turn(&counted, 0, most);
            (0..turns).for_each(|_| come(&counted, 0, most, leave));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(!counted.queue.is_held());
            // SAFETY: no other thread is left.
            let count = counted.count.with(|count| unsafe { *count });
            assert_eq!(count as usize, 1 + entered.len() + coming.len() + turns);
        });
    }

    const SCENE: Scene =
        Scene { entered: &[], coming: &[], turns: 0, most: 1, preemptions: 3, leave: false };

    #[test]
    fn two_threads_exclude_each_other_and_both_end() {
        all_have_their_turns(Scene { coming: &[0], turns: 1, ..SCENE });
        all_have_their_turns(Scene { coming: &[1], turns: 1, ..SCENE });
    }

    #[test]
    fn a_thread_that_leaves_its_cpu_has_its_turn() {
        all_have_their_turns(Scene { coming: &[0], turns: 1, leave: true, ..SCENE });
        let beside = Scene { entered: &[1], coming: &[0], preemptions: 1, ..SCENE };
        all_have_their_turns(Scene { leave: true, ..beside });
    }

    #[test]
    fn a_waiter_that_is_passed_over_has_its_turn() {
        all_have_their_turns(Scene { entered: &[1, 0], ..SCENE });
        all_have_their_turns(Scene { entered: &[1, 0], most: 0, ..SCENE });
    }

    /// With more preemptions loom tries ever longer waits of the one thread beside the other.
    #[test]
    fn a_thread_that_comes_beside_a_waiter_has_its_turn() {
        all_have_their_turns(Scene { entered: &[1], coming: &[0], preemptions: 1, ..SCENE });
        all_have_their_turns(Scene {
            entered: &[1],
            coming: &[0],
            most: 0,
            preemptions: 2,
            ..SCENE
        });
        all_have_their_turns(Scene { coming: &[1, 0], preemptions: 1, ..SCENE });
    }
}

#[cfg(not(loom))]
mod one_after_the_other {
    use super::super::*;
    use proptest::{prelude::*, sample::Index};
    use std::{collections::VecDeque, rc::Rc};

    /// Threads that wait or hold, each with its node, as the queue sees them and in order of their
    /// arrival.
    #[derive(Default)]
    struct Crowd {
        queue: Option<Queue>,
        waiting: VecDeque<Thread>,
        holder: Option<Thread>,
    }

    struct Thread {
        name: usize,
        node: u32,
        waiter: Rc<Waiter>,
        /// Others that got the lock while it waited, and the waiters ahead of it when it came.
        bypassed: usize,
        ahead: usize,
    }

    impl Crowd {
        fn queue(&mut self) -> &Queue {
            self.queue.get_or_insert_with(Queue::new)
        }

        fn enter(&mut self, name: usize, node: u32) {
            let waiter = Rc::new(Waiter::on(node));
            // SAFETY: it stays in its place until it has taken the lock.
            let has_lock = unsafe { self.queue().enter(&waiter) };
            let ahead = self.waiting.len();
            let thread = Thread { name, node, waiter, bypassed: 0, ahead };
            match has_lock {
                true => self.hold(thread),
                false => self.waiting.push_back(thread),
            }
        }

        fn hold(&mut self, thread: Thread) {
            assert!(self.holder.is_none(), "two hold the lock");
            self.queue().take(&thread.waiter);
            self.waiting.iter_mut().for_each(|other| other.bypassed += 1);
            self.holder = Some(thread);
        }

        /// The holder leaves. Returns its successor's name.
        fn release(&mut self, most: u32) -> Option<usize> {
            self.release_to(Order { most, is_near_first: false })
        }

        fn release_to(&mut self, order: Order) -> Option<usize> {
            let holder = self.holder.take()?;
            // SAFETY: it holds the lock.
            let next = unsafe { self.queue().take_next(|| holder.node, order) };
            if let Some(next) = next.filter(|next| !next.grant_if_ready()) {
                assert!(next.grant().is_some(), "it has to be woken");
            }
            let granted: Vec<_> = (0..self.waiting.len())
                .filter(|at| self.waiting[*at].waiter.is_granted())
                .collect();
            match granted[..] {
                [] => {
                    assert!(self.waiting.is_empty(), "a waiter was forgotten");
                    assert!(!self.queue().is_held());
                    None
                }
                [at] => {
                    let next = self.waiting.remove(at)?;
                    let bound = (next.ahead + 1) * (order.most as usize + 1);
                    assert!(next.bypassed <= bound, "{} others, not {bound}", next.bypassed);
                    let name = next.name;
                    self.hold(next);
                    Some(name)
                }
                _ => panic!("{} have the lock", granted.len()),
            }
        }
    }

    fn set_away(waiter: &Waiter, is_away: bool) {
        match is_away {
            true => waiter.turn(WAITS, AWAY),
            false => waiter.turn(AWAY, WAITS),
        };
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// `None` is a release, a number the node of one that arrives.
        #[test]
        fn all_get_the_lock_within_the_bound(
            steps in prop::collection::vec(prop::option::weighted(0.55, 0_u32..4), 1..300),
            most in 0_u32..6,
        ) {
            let mut crowd = Crowd::default();
            for (name, step) in steps.into_iter().enumerate() {
                match step {
                    Some(node) => crowd.enter(name, node),
                    None => _ = crowd.release(most),
                }
            }
            while crowd.release(most).is_some() {}
        }

        /// .. whatever CPUs their waiters leave and come back to.
        #[test]
        fn all_get_the_lock_within_the_bound_while_some_are_away(
            steps in prop::collection::vec((0_u32..4, 0_u8..8, any::<Index>()), 1..300),
            most in 0_u32..6,
            is_near_first: bool,
        ) {
            let (mut crowd, order) = (Crowd::default(), Order { most, is_near_first });
            for (name, (node, what, which)) in steps.into_iter().enumerate() {
                match what {
                    0..3 => crowd.enter(name, node),
                    3..6 => {
                        if !crowd.waiting.is_empty() {
                            let waiter = &which.get(crowd.waiting.make_contiguous()).waiter;
                            set_away(waiter, what < 5);
                        }
                    }
                    _ => _ = crowd.release_to(order),
                }
            }
            while crowd.release_to(order).is_some() {}
        }

        #[test]
        fn without_hand_offs_the_order_is_that_of_arrival(
            nodes in prop::collection::vec(0_u32..4, 2..40),
        ) {
            let mut crowd = Crowd::default();
            nodes.iter().enumerate().for_each(|(name, node)| crowd.enter(name, *node));
            for name in 1..nodes.len() {
                prop_assert_eq!(crowd.release(0), Some(name));
            }
        }
    }

    #[test]
    fn waiters_of_the_holders_node_come_first_and_then_the_oldest() {
        let mut crowd = Crowd::default();
        // The holder is on node 0.
        for (name, node) in [0, 1, 2, 0, 1, 0, 0].into_iter().enumerate() {
            crowd.enter(name, node);
        }
        let order: Vec<_> = std::iter::from_fn(|| crowd.release(2)).collect();
        // Two hand-offs on node 0. Then 1, and 4 on its node; then the oldest again.
        assert_eq!(order, [3, 5, 1, 4, 2, 6]);
    }

    #[test]
    fn waiters_that_have_left_their_cpu_come_after_others_within_the_bound() {
        let mut crowd = Crowd::default();
        for (name, node) in [0, 0, 1, 0, 1, 1].into_iter().enumerate() {
            crowd.enter(name, node);
        }
        [0, 1, 4].into_iter().for_each(|at| set_away(&crowd.waiting[at].waiter, true));
        // 3 is ready on the holder's node, and then 4 on any. The oldest is due afterwards.
        assert_eq!(crowd.release(2), Some(3));
        assert_eq!(crowd.release(2), Some(4));
        assert_eq!(crowd.release(2), Some(1));
        // 2 has come back, 5 has not.
        set_away(&crowd.waiting[0].waiter, false);
        assert_eq!(crowd.release(2), Some(2));
        assert_eq!(crowd.release(2), Some(5), "none is ready");
        assert_eq!(crowd.release(2), None);
    }

    #[test]
    fn near_waiters_come_first_while_they_are_away_too_if_the_order_says_so() {
        let (mut crowd, order) = (Crowd::default(), Order { most: 2, is_near_first: true });
        for (name, node) in [0, 1, 0, 1, 0].into_iter().enumerate() {
            crowd.enter(name, node);
        }
        [0, 1].into_iter().for_each(|at| set_away(&crowd.waiting[at].waiter, true));
        // 2 is away on node 0. Then the oldest is due, 1, which is away, too.
        assert_eq!(crowd.release_to(order), Some(2));
        assert_eq!(crowd.release_to(order), Some(4));
        assert_eq!(crowd.release_to(order), Some(1));
        assert_eq!(crowd.release_to(order), Some(3));
    }

    #[test]
    fn a_release_looks_at_so_many_waiters_and_no_more() {
        let mut crowd = Crowd::default();
        crowd.enter(0, 0);
        // The first 64 are away. The one behind them is ready.
        for name in 1..=LOOKS {
            crowd.enter(name, 0);
            set_away(&crowd.waiting[name - 1].waiter, true);
        }
        crowd.enter(LOOKS + 1, 0);
        assert_eq!(crowd.release(9), Some(1), "the oldest");
        assert_eq!(crowd.release(9), Some(LOOKS + 1), "it is the 64th now");
        assert_eq!(crowd.release(9), Some(2));
    }

    /// Two threads of node 0 that come back at once, and one of node 1 (a machine of 2001: the CPUs
    /// near to a lock see it free first).
    fn turns_of_the_remote_thread(mut next: impl FnMut(&mut Crowd) -> Option<usize>) -> usize {
        let mut crowd = Crowd::default();
        [(0, 0), (1, 0), (2, 1)].into_iter().for_each(|(name, node)| crowd.enter(name, node));
        let (mut turns, mut holder) = (0, 0);
        for _ in 0..10_000 {
            let next = next(&mut crowd).unwrap();
            turns += usize::from(next == 2);
            crowd.enter(holder, u32::from(holder == 2));
            holder = next;
        }
        turns
    }

    #[test]
    fn a_remote_thread_is_not_starved() {
        let turns = turns_of_the_remote_thread(|crowd| crowd.release(64));
        assert_eq!(turns, 10_000 / 66);
    }

    /// The bound prevents this: with it out of reach, the lock is as unfair as one that any near
    /// CPU takes first.
    #[test]
    fn without_a_bound_a_remote_thread_starves() {
        assert_eq!(turns_of_the_remote_thread(|crowd| crowd.release(u32::MAX)), 0);
    }
}
