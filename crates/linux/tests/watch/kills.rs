//! Kills for lack of memory.

use super::{made, turn};
use nearside_policy::History;

#[test]
fn kills_for_lack_of_memory_are_counted_in_each_sample() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    let mut watcher = made.watcher(&["m/*"]);
    for (interval, killed) in (1..).zip([0, 1, 3]) {
        made.file("cg/m/vm/memory.events", &format!("oom 0\noom_kill {killed}\n"));
        watcher.observe(&History::default(), turn(interval)).unwrap();
        assert_eq!(watcher.usage("/m/vm").unwrap().oom_kills.unwrap().killed, killed);
        assert!(watcher.ended().is_empty());
    }
    // The kill of its last process ends it.
    made.file("cg/m/vm/memory.events", "oom 0\noom_kill 4\n");
    made.file("cg/m/vm/cgroup.events", "populated 0\n");
    watcher.observe(&History::default(), turn(4)).unwrap();
    let [ended] = watcher.ended() else { panic!("{:?}", watcher.ended()) };
    assert_eq!((ended.name.as_str(), ended.oom_kills.unwrap().killed), ("/m/vm", 4));
    assert!(ended.was_found && ended.bound_memory_nodes.is_none(), "{ended:?}");
    watcher.observe(&History::default(), turn(5)).unwrap();
    assert!(watcher.ended().is_empty());
}
