//! Targets of the crate `replicas`: the kernel's files about processes and mounts, and the packets
//! of the replicator's clients.

use nearside_replicas::{
    mountinfo::mounts,
    protocol::{Answer, Request},
    remap::{PAGE_BYTES, fdinfo, maps, parts, properties},
};

/// `/proc/PID/mountinfo`.
pub fn mountinfo(input: &[u8]) {
    let mounts = mounts(input);
    let lines = input.split(|byte| *byte == b'\n').count();
    assert!(mounts.len() <= lines);
    let bytes = |path: &std::path::Path| path.as_os_str().len();
    let total: usize = mounts.iter().map(|it| bytes(&it.root) + bytes(&it.point)).sum();
    // Unescaping only shortens.
    assert!(total <= input.len());
}

/// A packet to the replicator, or from it. What is understood is written back the same.
pub fn replicator(input: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(input) {
        let text = serde_json::to_vec(&request).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<Request>(&text).ok(), Some(request));
    }
    if let Ok(answer) = serde_json::from_slice::<Answer>(input) {
        let text = serde_json::to_vec(&answer).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<Answer>(&text).ok(), Some(answer));
    }
}

/// One of `/proc/PID/maps`, `smaps`, `fdinfo` and `pagemap`; the input is read as each of them.
pub fn proc_maps(input: &[u8]) {
    let segments = maps(input);
    for segment in &segments {
        assert!(segment.bytes() >= PAGE_BYTES && segment.bytes() % PAGE_BYTES == 0, "{segment:?}");
        // Every page has its place in the file.
        assert!(segment.offset_bytes.checked_add(segment.bytes()).is_some(), "{segment:?}");
    }
    let all = properties(input, u64::MAX).map_or(0, |all| all.len());
    assert!(all <= segments.len());
    if let Some(descriptor) = fdinfo(3, input) {
        assert_eq!(descriptor.number, 3);
    }
    let entries: Vec<u64> = input
        .chunks_exact(8)
        .filter_map(|eight| Some(u64::from_ne_bytes(eight.try_into().ok()?)))
        .collect();
    let start = segments.first().map_or(0, |segment| segment.addresses.start);
    let parts = parts(start, &entries);
    let mut all: Vec<_> = parts.private.iter().chain(&parts.of_file).cloned().collect();
    all.sort_by_key(|range| range.start);
    // They cover the pages in order, without gaps.
    assert!(all.windows(2).all(|two| two[0].end == two[1].start));
    let bytes: u64 = all.iter().map(|range| range.end - range.start).sum();
    assert!(bytes <= entries.len() as u64 * PAGE_BYTES);
}
