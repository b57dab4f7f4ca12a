//! One node: the machine most people have.

#[test]
fn guest_has_one_node() {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap();
    assert_eq!(online.trim(), "0");
}
