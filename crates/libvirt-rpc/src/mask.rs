//! CPU masks: one bit a CPU, the lowest first (`virBitmapNewData`, `src/util/virbitmap.c`).

use crate::error::Garbled;
use nearside_topology::{CpuId, CpuSet};

/// `REMOTE_CPUMAP_MAX`: the bytes of the longest mask.
pub(crate) const MAX_BYTES: u32 = 2048;

/// The mask of these CPUs; none if a mask cannot have one of them.
pub(crate) fn of(cpus: &CpuSet) -> Option<Vec<u8>> {
    let length = cpus.iter().next_back().map_or(0, |last| last.0 / 8 + 1);
    if length > MAX_BYTES {
        return None;
    }
    let mut mask = vec![0; length as usize];
    for cpu in cpus.iter() {
        *mask.get_mut((cpu.0 / 8) as usize)? |= 1 << (cpu.0 % 8);
    }
    Some(mask)
}

/// The CPUs of a mask.
pub(crate) fn cpus(mask: &[u8]) -> CpuSet {
    let bytes = mask.iter().zip(0..);
    let bits = bytes.flat_map(|(&byte, at)| {
        (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| CpuId(at * 8 + bit))
    });
    bits.collect()
}

/// The CPUs of several masks of the same length, one after the other.
pub(crate) fn cpus_of_each(masks: &[u8], count: u32) -> Result<Vec<CpuSet>, Garbled> {
    let length = masks.len().checked_div(count as usize).unwrap_or(0);
    let is_whole = length * count as usize == masks.len();
    match length {
        0 if count == 0 && masks.is_empty() => Ok(Vec::new()),
        1.. if is_whole => Ok(masks.chunks_exact(length).map(cpus).collect()),
        _ => Err(Garbled::Masks { bytes: masks.len(), masks: count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn masks_have_the_lowest_cpu_first() {
        for (list, mask) in
            [("", vec![]), ("0", vec![1]), ("1,8", vec![2, 1]), ("16", vec![0, 0, 1])]
        {
            assert_eq!(of(&set(list)), Some(mask.clone()), "{list}");
            assert_eq!(cpus(&mask), set(list));
        }
        assert_eq!(of(&set("16383")).map(|mask| mask.len()), Some(2048));
        assert_eq!(of(&CpuSet::from([CpuId(16384)])), None);
    }

    #[test]
    fn masks_of_several_threads_have_one_length() {
        let both = cpus_of_each(&[1, 0, 2, 1], 2).unwrap();
        assert_eq!(both, [set("0"), set("1,8")]);
        assert_eq!(cpus_of_each(&[], 0), Ok(Vec::new()));
        for (masks, count) in [(&[1, 2, 3][..], 2), (&[], 2), (&[1], 0), (&[1], 2)] {
            let garbled = Garbled::Masks { bytes: masks.len(), masks: count };
            assert_eq!(cpus_of_each(masks, count), Err(garbled));
        }
    }
}
