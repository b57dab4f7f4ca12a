use super::*;

fn reservation(name: &str, mib: &[u64]) -> Reservation {
    Reservation { name: name.into(), bytes: by_node(mib), ..Reservation::default() }
}

fn reserving(name: &str, mib: &[u64], seen: &Observation) -> Transaction {
    Transaction::reserving(reservation(name, mib), Until::Seconds(60), seen)
}

fn releasing(name: &str, seen: &Observation) -> Transaction {
    Transaction::new(vec![step(Action::Release { name: name.into() })], seen)
}

#[test]
fn a_reservation_needs_its_memory_and_its_name() {
    let seen = machine(&[300, 100], Vec::new());
    let transaction = reserving("numad-1", &[300], &seen);
    assert_eq!(transaction.needs.memory, [(PageSize::Base, by_node(&[300]))]);
    assert_eq!(transaction.check(&seen), Ok(()));
    let other = |name: &str, mib: &[u64]| {
        let mut fresh = seen.clone();
        fresh.reservations.push(reservation(name, mib));
        transaction.check(&fresh).unwrap_err().to_string()
    };
    let memory = "node 0 has 299 MiB available by now and 300 MiB are needed";
    assert_eq!(other("numad-2", &[1]), memory);
    assert_eq!(other("numad-1", &[0, 1]), "a reservation named numad-1 exists by now");
    let [Step { action, reason }] = &transaction.steps[..] else { panic!("one step") };
    assert_eq!(action.to_string(), "reserve node 0: 300 MiB as numad-1 for 60 s");
    assert_eq!(reason.to_string(), "reserves it; available before: 300 MiB on node 0");
}

#[test]
fn a_reservation_that_replaces_another_may_take_its_memory() {
    let mut seen = machine(&[300, 100], Vec::new());
    seen.reservations.push(reservation("text", &[250, 100]));
    let larger = reserving("text", &[300], &seen);
    assert_eq!(larger.needs.memory, [(PageSize::Base, by_node(&[300]))]);
    assert_eq!(larger.check(&seen), Ok(()));
    assert_eq!(seen.clone().after(&larger).reservations, [reservation("text", &[300])]);
    let too_large = reserving("text", &[301], &seen);
    assert!(matches!(too_large.check(&seen), Err(Unmet::Memory { .. })));
    // The memory of the former one is in use by now.
    let filled = machine(&[50, 0], Vec::new());
    let filled = Observation { reservations: seen.reservations.clone(), ..filled };
    assert!(matches!(reserving("text", &[250], &filled).check(&filled), Err(Unmet::Memory { .. })));
    assert_eq!(reserving("text", &[50], &filled).check(&filled), Ok(()));
}

#[test]
fn a_reservation_ends_only_as_it_was_seen() {
    let mut seen = machine(&[300], Vec::new());
    let gone = seen.clone();
    seen.reservations.push(reservation("numad-1", &[250]));
    let mut adopted = seen.clone();
    adopted.reservations[0].owner = Some("/machine.slice/db.scope".into());
    let release = releasing("numad-1", &seen);
    let replace = reserving("numad-1", &[100], &seen);
    for transaction in [&release, &replace] {
        let unmet = |fresh| transaction.check(fresh).unwrap_err().to_string();
        assert_eq!(transaction.check(&seen), Ok(()));
        assert_eq!(unmet(&gone), "reservation numad-1 has ended");
        let owned = "reservation numad-1 belongs to /machine.slice/db.scope by now";
        assert_eq!(unmet(&adopted), owned);
    }
    // The reservation of a domain that runs is not replaced.
    let taken = Err(Unmet::ReservationTaken("numad-1".into()));
    assert_eq!(reserving("numad-1", &[100], &adopted).check(&adopted), taken);
    assert_eq!(seen.clone().after(&release), gone);
    assert_eq!(release.steps[0].action.to_string(), "end reservation numad-1");
}

#[test]
fn a_domain_goes_where_a_reservation_ends_in_the_same_transaction() {
    let mut seen = machine(&[0, 100], vec![part("a", 0, &[100], &[100])]);
    seen.reservations.push(reservation("text", &[0, 100]));
    let alone = Transaction::new(going("a", 1, &[0, 100]), &seen);
    assert!(matches!(alone.check(&seen), Err(Unmet::Memory { .. })));
    let release = step(Action::Release { name: "text".into() });
    let both = [vec![release], going("a", 1, &[0, 100])].concat();
    let both = Transaction::new(both, &seen);
    assert_eq!(both.check(&seen), Ok(()));
    let subjects: Vec<_> = both.subjects().iter().map(ToString::to_string).collect();
    assert_eq!(subjects, ["a", "reservation text"]);
    assert_eq!(both.parts().len(), 1);
    let after = seen.after(&both);
    assert_eq!((after.reservations.len(), &after.parts[0].home), (0, &Some(home(1))));
}

#[test]
fn a_reservation_is_adopted_or_put_off_only_as_it_was_seen() {
    let mut seen = machine(&[0, 100], vec![part("a", 0, &[100], &[100])]);
    let gone = seen.clone();
    seen.reservations.push(reservation("numad-1", &[0, 100]));
    let owner = "/machine.slice/db.scope";
    let (name, cgroup) = ("numad-1".to_owned(), CgroupId(7));
    let adopt = Action::Adopt { name: name.clone(), owner: owner.into(), cgroup };
    let adopted = seen.clone().after(&Transaction::new(vec![step(adopt.clone())], &seen));
    let expected = Reservation { owner: Some(owner.into()), ..reservation("numad-1", &[0, 100]) };
    assert_eq!(adopted.reservations, [expected]);
    for (action, text) in [
        (adopt, "give reservation numad-1 to /machine.slice/db.scope"),
        (Action::PutOff { name }, "put off the end of reservation numad-1"),
    ] {
        assert_eq!(action.to_string(), text);
        let transaction = Transaction::new(vec![step(action.clone())], &seen);
        let unmet = |fresh| transaction.check(fresh).unwrap_err().to_string();
        assert_eq!(transaction.check(&seen), Ok(()));
        assert_eq!(unmet(&gone), "reservation numad-1 has ended");
        assert_eq!(unmet(&adopted), format!("reservation numad-1 belongs to {owner} by now"));
        // It stays, so that its name is taken.
        let wanted = reservation("numad-1", &[0, 1]);
        let reserve = step(Action::Reserve { reservation: wanted, until: Until::Seconds(60) });
        let both = Transaction::new(vec![step(action.clone()), reserve], &seen);
        assert_eq!(both.check(&seen), Err(Unmet::ReservationTaken("numad-1".into())));
        // Nor does a domain in the same transaction get its memory.
        let both = [vec![step(action)], going("a", 1, &[0, 100])].concat();
        let both = Transaction::new(both, &seen);
        assert!(matches!(both.check(&seen), Err(Unmet::Memory { .. })));
    }
}

/// The memory of a reservation is in use, and the reservation stays.
fn fill(seen: &mut Observation, name: &str) {
    let bytes = seen.reservation(name).map(|it| it.bytes.clone()).unwrap_or_default();
    for node in &mut seen.topology.nodes {
        let free = &mut node.state.as_mut().unwrap().free_bytes;
        *free = free.saturating_sub(bytes.get(&node.id).copied().unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Reservations are made, replaced, filled and ended, half of them by a decision from the first
    /// observation. One that is made never promises memory twice.
    #[test]
    fn reservations_never_overcommit_a_node(
        start in machines(),
        changes in proptest::collection::vec(
            (0..4_usize, proptest::array::uniform4(0..300_u64), 0..4_u32, any::<bool>()),
            1..20,
        ),
    ) {
        let mut now = start.clone();
        for (number, mib, change, is_late) in changes {
            let seen = if is_late { &start } else { &now };
            let name = format!("r{number}");
            let ends = change == 0;
            if change == 1 {
                fill(&mut now, &name);
                continue;
            }
            let transaction = match ends {
                true => releasing(&name, seen),
                false => reserving(&name, &mib, seen),
            };
            if transaction.check(&now).is_ok() {
                let expected = (!ends).then(|| reservation(&name, &mib));
                now = now.after(&transaction);
                prop_assert_eq!(now.reservation(&name).cloned(), expected);
                prop_assert!(now.reservations.iter().filter(|it| it.name == name).count() <= 1);
                if ends {
                    continue;
                }
            } else {
                continue;
            }
            for node in now.topology.nodes.iter().filter(|node| mib[node.id.0 as usize] > 0) {
                let free = node.state.as_ref().map_or(0, |state| state.free_bytes);
                let on = |by_node: &ByNode| by_node.get(&node.id).copied().unwrap_or(0);
                let claimed = now.parts.iter().map(|part| on(&part.outstanding_bytes()));
                let reserved = now.reservations.iter().map(|it| on(&it.bytes));
                prop_assert!(claimed.chain(reserved).sum::<u64>() <= free);
            }
        }
    }
}
