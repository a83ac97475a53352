use super::*;

const GENERATION: u64 = 100;

fn address(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

fn me(node_id: &str) -> Me {
    Me { node_id: node_id.into(), generation: GENERATION, address: address(1), client: false, origin: 1, protocol: 1 }
}

/// A live, ready node at a port of its own; its origin is its port.
fn node(node_id: &str, port: u16) -> Sighting {
    Sighting {
        node_id: node_id.into(),
        generation: GENERATION,
        address: address(port),
        phase: Phase::Ready,
        client: false,
        origin: port.into(),
        protocol: 1,
        live: true,
        numbers: BTreeMap::new(),
    }
}

fn dead(sighting: Sighting) -> Sighting {
    Sighting { live: false, ..sighting }
}

fn seen(sightings: impl Into<Vec<Sighting>>) -> Snapshot {
    let sightings = sightings.into();
    Snapshot {
        heard_anyone: sightings.iter().any(|s| s.live),
        sightings,
        namesakes: vec![],
        seeds_are_me: false,
        seeds_silent: false,
    }
}

fn namesakes(sightings: impl Into<Vec<Sighting>>) -> Snapshot {
    Snapshot { namesakes: sightings.into(), ..Snapshot::default() }
}

fn ids(view: &View) -> Vec<&str> {
    view.members.iter().map(|member| member.node_id.as_str()).collect()
}

fn owners(view: &View) -> Vec<&str> {
    view.owners_eligible().iter().map(|member| member.node_id.as_str()).collect()
}

/// Node `b`, ready, in a cluster with `a` and `c`, all alive at time 0.
fn three() -> Membership {
    let mut membership = Membership::new(me("b"), true);
    membership.set_phase(Phase::Ready);
    membership.observe(&seen([node("a", 2), node("c", 3)]), 0);
    assert_eq!(ids(&membership.view(0)), ["a", "b", "c"]);
    assert!(membership.view(0).quorum);
    membership
}

/// Gossip and a ping agree that it is gone.
fn bury(membership: &mut Membership, snapshot: &Snapshot, node_ids: &[&str], now_ms: u64) {
    membership.observe(snapshot, now_ms);
    node_ids.iter().for_each(|id| membership.ping(id, false, now_ms));
}

#[test]
fn a_cluster_of_one_is_joined_at_once() {
    let mut membership = Membership::new(me("b"), false);
    assert!(membership.view(0).joined);
    assert!(!membership.view(0).quorum, "not ready yet");
    membership.set_phase(Phase::Ready);
    assert!(membership.view(0).quorum);
    assert_eq!(owners(&membership.view(0)), ["b"]);
}

#[test]
fn with_somebody_to_join_nothing_is_claimed_until_one_is_live() {
    let mut membership = Membership::new(me("b"), true);
    membership.set_phase(Phase::Ready);
    membership.observe(&seen([dead(node("a", 2))]), 0);
    let view = membership.view(0);
    assert!(!view.joined && !view.quorum);
    membership.observe(&seen([node("a", 2)]), 1);
    let view = membership.view(1);
    assert!(view.joined && view.quorum);
    bury(&mut membership, &seen([]), &["a"], 2);
    assert!(membership.view(2).joined, "having joined is not undone");
}

#[test]
fn clients_that_know_of_each_other_only_have_joined_nothing() {
    let mut membership = Membership::new(Me { client: true, ..me("b") }, true);
    let script = Sighting { client: true, ..node("c", 3) };
    membership.observe(&seen([script.clone()]), 0);
    assert!(!membership.view(0).joined);
    membership.observe(&seen([node("a", 2), script]), 1);
    assert!(membership.view(1).joined);
}

#[test]
fn a_member_has_joined_when_a_client_has_that_it_knows_of() {
    let mut membership = Membership::new(me("b"), true);
    let script = |phase| Sighting { client: true, phase, ..node("c", 3) };
    membership.observe(&seen([script(Phase::Joining)]), 0);
    assert!(!membership.view(0).joined);
    membership.observe(&seen([script(Phase::Ready)]), 1);
    assert!(membership.view(1).joined);
}

#[test]
fn seeds_that_turn_out_to_be_this_node_make_a_cluster_of_one() {
    let mut membership = Membership::new(me("b"), true);
    membership.observe(&Snapshot { seeds_are_me: true, ..Snapshot::default() }, 0);
    assert!(membership.view(0).joined);
}

#[test]
fn dead_is_gossip_dead_and_a_ping_that_failed_afterwards() {
    let mut membership = three();
    membership.ping("a", false, 1);
    assert_eq!(ids(&membership.view(1)), ["a", "b", "c"], "gossip says live");
    assert!(membership.suspects().is_empty());
    membership.observe(&seen([dead(node("a", 2)), node("c", 3)]), 2);
    assert_eq!(ids(&membership.view(2)), ["a", "b", "c"], "not pinged since the verdict");
    let suspects = membership.suspects();
    assert_eq!(suspects, [Suspect { node_id: "a".into(), generation: GENERATION, address: address(2), origin: 2 }]);
    membership.ping("a", true, 3);
    assert_eq!(ids(&membership.view(3)), ["a", "b", "c"]);
    assert_eq!(membership.suspects().len(), 1, "still to be pinged");
    membership.ping("a", false, 4);
    assert_eq!(ids(&membership.view(4)), ["b", "c"]);
    assert!(membership.suspects().is_empty());
    assert_eq!(membership.lost().len(), 1);
    membership.observe(&seen([dead(node("a", 2)), node("c", 3)]), 5);
    assert_eq!(ids(&membership.view(5)), ["b", "c"], "the same news do not revive it");
    membership.ping("a", true, 6);
    assert_eq!(ids(&membership.view(6)), ["a", "b", "c"], "reachable after all");
    membership.ping("a", false, 7);
    membership.observe(&seen([node("a", 2), node("c", 3)]), 8);
    assert_eq!(ids(&membership.view(8)), ["a", "b", "c"], "gossip hears it again");
}

#[test]
fn a_node_that_gossip_forgot_is_a_suspect_too() {
    let mut membership = three();
    membership.observe(&seen([node("c", 3)]), 1);
    assert_eq!(ids(&membership.view(1)), ["a", "b", "c"]);
    assert_eq!(membership.suspects().len(), 1);
}

#[test]
fn a_ping_alone_adds_nobody() {
    let mut membership = Membership::new(me("b"), true);
    membership.observe(&seen([dead(node("a", 2))]), 0);
    membership.ping("a", true, 1);
    membership.ping("z", true, 1);
    let view = membership.view(1);
    assert_eq!(ids(&view), ["b"]);
    assert!(!view.joined);
}

#[test]
fn the_epoch_is_new_only_when_the_view_changed() {
    let mut membership = three();
    let before = membership.view(0);
    membership.observe(&seen([node("a", 2), node("c", 3)]), 500);
    let after = membership.view(600);
    assert_eq!(after.epoch, before.epoch);
    assert_eq!(after.member("a").unwrap().last_heard_ms, 500);
    let leaving = Sighting { phase: Phase::Leaving, ..node("a", 2) };
    membership.observe(&seen([leaving, node("c", 3)]), 700);
    assert_eq!(membership.view(700).epoch, before.epoch + 1);
    membership.set_phase(Phase::Leaving);
    assert_eq!(membership.view(700).epoch, before.epoch + 2);
    assert_eq!(membership.view(800).epoch, before.epoch + 2);
}

#[test]
fn a_restart_at_the_same_address_replaces_the_old_life_at_once() {
    let mut membership = three();
    let restarted = Sighting { generation: 200, phase: Phase::Joining, ..node("a", 2) };
    membership.observe(&seen([restarted, node("c", 3)]), 1);
    let view = membership.view(1);
    assert_eq!(ids(&view), ["a", "b", "c"]);
    assert_eq!(view.member("a").unwrap().generation, 200);
    assert_eq!(owners(&view), ["b", "c"]);
    assert!(membership.suspects().is_empty());
}

#[test]
fn a_restart_with_a_clock_set_back_is_taken_too() {
    let mut membership = three();
    membership.observe(&seen([Sighting { generation: 7, ..node("a", 2) }, node("c", 3)]), 1);
    assert_eq!(membership.view(1).member("a").unwrap().generation, 7);
}

#[test]
fn a_second_address_waits_until_the_first_is_dead() {
    let mut membership = three();
    let second = Sighting { generation: 200, ..node("a", 9) };
    membership.observe(&seen([second.clone(), node("a", 2), node("c", 3)]), 1);
    assert_eq!(membership.view(1).member("a").unwrap().address, address(2));
    membership.observe(&seen([second.clone(), dead(node("a", 2)), node("c", 3)]), 2);
    assert_eq!(membership.view(2).member("a").unwrap().address, address(2));
    membership.ping("a", false, 3);
    membership.observe(&seen([second, dead(node("a", 2)), node("c", 3)]), 4);
    let view = membership.view(4);
    assert_eq!((view.member("a").unwrap().address, view.member("a").unwrap().generation), (address(9), 200));
}

#[test]
fn of_two_unknown_addresses_the_ready_and_then_the_older_one_is_taken() {
    let older = node("a", 2);
    let newer = Sighting { generation: 200, ..node("a", 9) };
    let chosen = |sightings: Vec<Sighting>| {
        let mut membership = Membership::new(me("b"), true);
        membership.observe(&seen(sightings), 0);
        membership.view(0).member("a").unwrap().address
    };
    assert_eq!(chosen(vec![newer.clone(), older.clone()]), address(2));
    assert_eq!(chosen(vec![newer, Sighting { phase: Phase::Joining, ..older }]), address(9));
}

#[test]
fn only_ready_members_own_and_clients_never_do() {
    let mut membership = three();
    let joining = Sighting { phase: Phase::Joining, ..node("a", 2) };
    let client = Sighting { client: true, ..node("d", 4) };
    let leaving = Sighting { phase: Phase::Leaving, ..node("e", 5) };
    membership.observe(&seen([joining, node("c", 3), client, leaving]), 1);
    let view = membership.view(1);
    assert_eq!(ids(&view), ["a", "b", "c", "d", "e"]);
    assert_eq!(owners(&view), ["b", "c"]);
}

#[test]
fn the_minority_side_has_no_quorum() {
    let mut membership = three();
    bury(&mut membership, &seen([node("c", 3)]), &["a"], 1);
    assert!(membership.view(1).quorum, "2 of 3");
    bury(&mut membership, &seen([]), &["c"], 2);
    assert!(!membership.view(2).quorum, "1 of 3");
}

#[test]
fn at_exactly_half_the_lowest_node_id_decides() {
    for (other, expected) in [("a", false), ("c", true)] {
        let mut membership = Membership::new(me("b"), true);
        membership.set_phase(Phase::Ready);
        membership.observe(&seen([node(other, 2)]), 0);
        bury(&mut membership, &seen([]), &[other], 1);
        assert_eq!(membership.view(1).quorum, expected, "{other} is gone");
    }
}

#[test]
fn of_two_sides_exactly_one_has_the_quorum() {
    for size in 1..=7_u16 {
        for mask in 0..1_u16 << size {
            let others = |of: u16, alive: &dyn Fn(u16) -> bool| -> Vec<Sighting> {
                let ids = (0..size).filter(|other| *other != of);
                ids.map(|id| Sighting { live: alive(id), ..node(&format!("n{id}"), id + 10) }).collect()
            };
            let side = |id: u16| mask >> id & 1;
            let mut quorate = [0, 0];
            for id in 0..size {
                let mut membership = Membership::new(me(&format!("n{id}")), size > 1);
                membership.set_phase(Phase::Ready);
                membership.observe(&seen(others(id, &|_| true)), 0);
                membership.observe(&seen(others(id, &|other| side(other) == side(id))), 1);
                membership.suspects().iter().for_each(|suspect| membership.ping(&suspect.node_id, false, 2));
                quorate[usize::from(side(id))] += u32::from(membership.view(2).quorum);
            }
            let sizes = [size as u32 - mask.count_ones(), mask.count_ones()];
            assert!(
                quorate == [sizes[0], 0] || quorate == [0, sizes[1]],
                "{size} nodes, sides {mask:b}: {quorate:?} of {sizes:?}"
            );
            assert_ne!(quorate, [0, 0]);
        }
    }
}

#[test]
fn who_left_in_order_is_not_missed() {
    let mut membership = three();
    let leaving = |id, port| Sighting { phase: Phase::Leaving, ..node(id, port) };
    membership.observe(&seen([leaving("a", 2), leaving("c", 3)]), 1);
    membership.set_in_sync(Some(1 + ON_ITS_WAY_MS));
    bury(&mut membership, &seen([dead(leaving("a", 2)), dead(leaving("c", 3))]), &["a", "c"], 2 + ON_ITS_WAY_MS);
    let view = membership.view(2 + ON_ITS_WAY_MS);
    assert_eq!(ids(&view), ["b"]);
    assert!(view.quorum);
}

/// a is the leaver, c has agreed on things with it that b may lack.
#[test]
fn who_leaves_counts_until_all_others_have_answered_since() {
    let leaving = || Sighting { phase: Phase::Leaving, ..node("a", 2) };
    let voters = |membership: &mut Membership, now_ms| membership.view(now_ms).voters.clone();
    let all = ["a", "b", "c"].map(String::from).into_iter().collect();
    let rest = ["b", "c"].map(String::from).into_iter().collect();
    let mut membership = three();
    for (as_of_ms, now_ms) in [(None, 1_000), (Some(900), 1_100), (Some(1_000 + ON_ITS_WAY_MS - 1), 1_300)] {
        membership.set_in_sync(as_of_ms);
        membership.observe(&seen([leaving(), node("c", 3)]), now_ms);
        assert_eq!(voters(&mut membership, now_ms), all, "{as_of_ms:?}");
    }
    membership.set_in_sync(Some(1_000 + ON_ITS_WAY_MS));
    membership.observe(&seen([leaving(), node("c", 3)]), 1_400);
    assert_eq!(voters(&mut membership, 1_400), rest);
    // Nor can one that is missing have answered.
    let mut membership = three();
    membership.set_in_sync(Some(5_000));
    bury(&mut membership, &seen([node("a", 2), dead(node("c", 3))]), &["c"], 1_000);
    membership.observe(&seen([leaving(), dead(node("c", 3))]), 5_000);
    membership.set_in_sync(Some(9_000));
    membership.observe(&seen([leaving(), dead(node("c", 3))]), 9_000);
    assert_eq!(voters(&mut membership, 9_000), all);
}

#[test]
fn that_a_node_was_leaving_may_be_learnt_after_its_death() {
    let mut membership = three();
    let leaving = |id, port| dead(Sighting { phase: Phase::Leaving, ..node(id, port) });
    bury(&mut membership, &seen([dead(node("a", 2)), dead(node("c", 3))]), &["a", "c"], 1);
    assert!(!membership.view(1).quorum);
    membership.observe(&seen([leaving("a", 2), leaving("c", 3)]), 2);
    membership.set_in_sync(Some(2 + ON_ITS_WAY_MS));
    membership.observe(&seen([leaving("a", 2), leaving("c", 3)]), 2 + ON_ITS_WAY_MS);
    assert!(membership.view(2 + ON_ITS_WAY_MS).quorum);
}

#[test]
fn who_leaves_the_other_side_of_a_split_does_not_make_this_one_the_larger() {
    let mut membership = three();
    let leaving = Sighting { phase: Phase::Leaving, ..node("c", 3) };
    bury(&mut membership, &seen([dead(node("a", 2)), dead(node("c", 3))]), &["a", "c"], 1);
    assert!(!membership.view(1).quorum);
    // The line is whole again: first news of c, which is about to leave.
    membership.observe(&seen([leaving.clone()]), 2);
    assert!(membership.view(2).quorum, "b and c of three");
    let mut cut_off = three();
    bury(&mut cut_off, &seen([dead(node("a", 2)), dead(node("c", 3))]), &["a", "c"], 1);
    assert!(!cut_off.view(1).quorum);
    cut_off.observe(&seen([dead(leaving)]), 2);
    assert!(!cut_off.view(2).quorum, "b of three: a may speak");
    cut_off.observe(&seen([node("a", 2)]), 3);
    assert!(cut_off.view(3).quorum, "a and b");
}

#[test]
fn the_missing_are_remembered_for_ten_minutes() {
    let mut membership = three();
    bury(&mut membership, &seen([]), &["a", "c"], 1_000);
    assert!(!membership.view(REMEMBER_MS - 1).quorum, "last alive at 0");
    assert!(membership.view(REMEMBER_MS).quorum);
    membership.observe(&seen([]), REMEMBER_MS);
    assert!(membership.lost().is_empty());
}

#[test]
fn clients_and_the_joining_count_neither_way() {
    let mut membership = three();
    let client = |port| Sighting { client: true, ..node(&format!("x{port}"), port) };
    let joining = Sighting { phase: Phase::Joining, ..node("y", 8) };
    membership.observe(&seen([node("a", 2), node("c", 3), client(4), client(5), client(6), joining.clone()]), 1);
    bury(&mut membership, &seen([client(4), client(5), client(6), joining]), &["a", "c"], 2);
    assert!(!membership.view(2).quorum, "1 of 3");
}

#[test]
fn a_settled_member_that_restarts_still_counts() {
    let mut membership = three();
    let restarted = Sighting { generation: 200, phase: Phase::Joining, ..node("a", 2) };
    membership.observe(&seen([restarted.clone(), node("c", 3)]), 1);
    bury(&mut membership, &seen([restarted]), &["c"], 2);
    assert!(membership.view(2).quorum, "a and b of a, b, c");
    bury(&mut membership, &seen([]), &["a"], 3);
    assert!(!membership.view(3).quorum, "b of a, b, c");
}

#[test]
fn a_client_judges_by_the_members_it_sees() {
    let mut membership = Membership::new(Me { client: true, ..me("b") }, true);
    membership.set_phase(Phase::Ready);
    membership.observe(&seen([Sighting { phase: Phase::Joining, ..node("a", 2) }]), 0);
    assert!(!membership.view(0).quorum, "nobody is settled");
    membership.observe(&seen([node("a", 2), node("c", 3), node("d", 4)]), 1);
    assert!(membership.view(1).quorum);
    assert_eq!(owners(&membership.view(1)), ["a", "c", "d"]);
    bury(&mut membership, &seen([node("c", 3)]), &["a", "d"], 2);
    assert!(!membership.view(2).quorum, "1 of 3");
}

#[test]
fn a_node_whose_id_is_taken_is_refused_after_two_seconds() {
    let mut membership = Membership::new(me("b"), true);
    let elder = Sighting { generation: 50, ..node("b", 7) };
    membership.observe(&namesakes([elder.clone()]), 0);
    assert_eq!(membership.view(NAMESAKE_PATIENCE_MS).refused, None);
    assert_eq!(membership.suspects()[0].address, address(7));
    let view = membership.view(NAMESAKE_PATIENCE_MS + 1);
    let why = view.refused.as_deref().unwrap();
    assert!(why.contains("\"b\"") && why.contains("10.0.0.1:7"), "{why}");
    membership.set_phase(Phase::Ready);
    membership.observe(&Snapshot { sightings: vec![node("a", 2)], ..namesakes([elder]) }, 5_000);
    let view = membership.view(5_000);
    assert!(!view.quorum);
    assert_eq!(owners(&view), ["a"]);
    membership.observe(&seen([node("a", 2)]), 6_000);
    assert_eq!(membership.view(6_000).refused, None, "the other is gone");
}

#[test]
fn an_answered_ping_refuses_at_once_and_a_failed_one_does_not() {
    let mut membership = Membership::new(me("b"), true);
    membership.observe(&namesakes([Sighting { generation: 50, ..node("b", 7) }]), 0);
    membership.ping("b", false, 1);
    assert_eq!(membership.view(1).refused, None);
    membership.ping("b", true, 2);
    assert!(membership.view(2).refused.is_some());
    assert!(membership.suspects().is_empty());
}

#[test]
fn who_was_there_first_ignores_the_newcomer() {
    let mut membership = three();
    let newcomer = Sighting { generation: 200, phase: Phase::Joining, ..node("b", 7) };
    membership.observe(&namesakes([newcomer.clone()]), 0);
    membership.ping("b", true, 1);
    assert_eq!(membership.view(60_000).refused, None);
    // Its clock is behind: still a newcomer, also when it becomes ready.
    let mut membership = three();
    membership.observe(&namesakes([Sighting { generation: 50, ..newcomer.clone() }]), 0);
    membership.observe(&namesakes([Sighting { generation: 50, phase: Phase::Ready, ..newcomer }]), 1);
    assert_eq!(membership.view(60_000).refused, None);
    assert!(membership.suspects().iter().all(|suspect| suspect.node_id != "b"));
}

#[test]
fn of_two_that_are_equally_far_the_older_stays() {
    let refused = |mine: Phase, theirs: Phase, generation: u64| {
        let mut membership = Membership::new(me("b"), true);
        membership.set_phase(mine);
        membership.observe(&namesakes([Sighting { generation, phase: theirs, ..node("b", 7) }]), 0);
        membership.view(NAMESAKE_PATIENCE_MS + 1).refused.is_some()
    };
    for phase in [Phase::Joining, Phase::Ready] {
        assert!(refused(phase, phase, GENERATION - 1));
        assert!(!refused(phase, phase, GENERATION + 1));
        assert!(!refused(phase, phase, GENERATION), "the lower address stays");
    }
    assert!(refused(Phase::Joining, Phase::Ready, GENERATION + 1));
}

#[test]
fn previous_lives_of_this_host_are_no_namesakes() {
    let mut membership = Membership::new(me("b"), true);
    let same_address = Sighting { generation: 50, origin: 77, ..node("b", 1) };
    let same_segment = Sighting { generation: 50, origin: 1, ..node("b", 7) };
    membership.observe(&namesakes([same_address, same_segment]), 0);
    membership.ping("b", true, 1);
    assert_eq!(membership.view(60_000).refused, None);
    assert!(membership.suspects().is_empty());
}

#[test]
fn a_quorum_has_answered_since_the_moment_that_enough_of_the_settled_have() {
    // This node, "b", answers itself.
    fn answered_by_quorum(membership: &mut Membership, now_ms: u64, by: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        membership.view(now_ms).voters.reached(|node_id| if node_id == "b" { Some(now_ms) } else { by(node_id) })
    }
    let mut membership = three();
    let answered = |a: Option<u64>, c: Option<u64>| {
        move |node_id: &str| match node_id {
            "a" => a,
            "c" => c,
            other => panic!("{other} is not asked"),
        }
    };
    assert_eq!(answered_by_quorum(&mut membership, 900, answered(Some(500), Some(700))), Some(700));
    assert_eq!(answered_by_quorum(&mut membership, 900, answered(Some(500), None)), Some(500));
    assert_eq!(answered_by_quorum(&mut membership, 900, answered(None, None)), None);
    // A member that is gone still counts: of four, half is enough only with the lowest node id.
    membership.observe(&seen([node("a", 2), node("c", 3), node("d", 4)]), 1_000);
    let both = |node_id: &str| if node_id == "a" { Some(500) } else { None };
    assert_eq!(answered_by_quorum(&mut membership, 1_100, both), Some(500));
    let other = |node_id: &str| if node_id == "c" { Some(500) } else { None };
    assert_eq!(answered_by_quorum(&mut membership, 1_100, other), None);
    let three = |node_id: &str| if node_id == "a" { Some(100) } else { Some(500) };
    assert_eq!(answered_by_quorum(&mut membership, 1_100, three), Some(500));
    // Alone in its cluster.
    let mut alone = Membership::new(me("b"), false);
    alone.set_phase(Phase::Ready);
    assert_eq!(answered_by_quorum(&mut alone, 700, |_| None), Some(700));
}
