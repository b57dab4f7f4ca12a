use super::*;

#[test]
fn a_line_of_maps_becomes_a_segment() {
    let line = b"7f10-20";
    assert_eq!(maps(line), []);
    let text = b"7f0000001000-7f0000003000 r-xp 00002000 fe:01 4711                       \
        /usr/lib/a b\\012c.so (deleted)\n\
        7ffd1000-7ffd3000 r-xp 00000000 00:00 0                          [vdso]\n\
        1000-2000 rw-p 00000000 00:00 0 \n\
        3000-4000 r--s ffff000 100:fffff 0 /x";
    let all = maps(text);
    let name = |name: &str| Some(PathBuf::from(name));
    assert_eq!(
        all[0],
        Segment {
            addresses: 0x7f00_0000_1000..0x7f00_0000_3000,
            protection: Protection { read: true, write: false, execute: true },
            shared: false,
            offset_bytes: 0x2000,
            file: Some(MapsFile { major: 0xfe, minor: 1, inode: 4711 }),
            name: name("/usr/lib/a b\nc.so (deleted)"),
        }
    );
    assert_eq!((all[1].file, all[1].name.clone()), (None, name("[vdso]")));
    assert!(all[1].is_named("[vdso]") && all[1].bytes() == 0x2000);
    assert_eq!((all[2].file, all[2].name.clone()), (None, None));
    assert_eq!(all[3].file, Some(MapsFile { major: 0x100, minor: 0xfffff, inode: 0 }));
    assert!(all[3].shared && all.len() == 4);
}

#[test]
fn lines_that_no_kernel_writes_are_left_out() {
    for line in [
        "",
        " ",
        "-",
        "2000-1000 r-xp 0 0:0 0",
        "1000-1000 r-xp 0 0:0 0",
        "1001-2000 r-xp 0 0:0 0",
        "1000-2000 r-x 0 0:0 0",
        "1000-2000 r-xq 0 0:0 0",
        "1000-2000 x-rp 0 0:0 0",
        "1000-2000 r-xp +1 0:0 0",
        "1000-2000 r-xp fffffffffffff000 0:0 0",
        "1000-2000 r-xp 0 00 0",
        "1000-2000 r-xp 0 0:100000000 0",
        "1000-2000 r-xp 0 0:0 -1",
        "1000-2000 r-xp 0 0:0",
        "10000000000001000-2000 r-xp 0 0:0 0",
        "Size:                  4 kB",
        "VmFlags: rd ex mr mw me",
    ] {
        assert_eq!(maps(line.as_bytes()), [], "{line}");
    }
}

#[test]
fn smaps_gives_the_properties_of_each_segment() {
    let smaps = b"VmFlags: lo\n\
        1000-2000 r-xp 00000000 fe:01 7 /a\nSize: 4 kB\nProtectionKey:         0\n\
        VmFlags: rd ex mr mw me lo lf hg dd \n\
        3000-4000 rw-p 00000000 fe:01 7 /a\nProtectionKey:         3\nVmFlags: rd wr nr sl\n\
        5000-6000 r--p 00000000 fe:01 7 /a\nVmFlags: rd sl\n\
        7000-8000 r--p 00000000 fe:01 7 /a\n";
    let all = properties(&smaps[..], u64::MAX).unwrap();
    let first = all[&(0x1000, 0x2000)];
    assert!(first.locked && first.locked_on_fault && !first.no_reserve);
    let advice = Advice { huge_pages: true, no_dump: true, ..Advice::default() };
    assert_eq!((first.advice, first.unchangeable), (advice, None));
    assert!(all[&(0x3000, 0x4000)].no_reserve);
    assert_eq!(all[&(0x5000, 0x6000)].unchangeable, Some("it is sealed (mseal)"));
    assert_eq!(all[&(0x7000, 0x8000)], Properties::default());
    assert_eq!(all.len(), 4);
    let below: Vec<_> = properties(&smaps[..], 0x5000).unwrap().into_keys().collect();
    assert_eq!(below, [(0x1000, 0x2000), (0x3000, 0x4000)]);
}

proptest::proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = (maps(&bytes), properties(&bytes[..], u64::MAX));
    }

    #[test]
    fn a_written_segment_reads_back(
        start in 0_u64..1 << 35, pages in 1_u64..1 << 12, offset in 0_u64..1 << 40,
        inode in 1_u64.., name in "/[ -~]{0,20}[!-~]",
    ) {
        let (start, end) = (start * PAGE_BYTES, (start + pages) * PAGE_BYTES);
        proptest::prop_assume!(!name.contains("\\012"));
        let line = format!("{start:x}-{end:x} r-xp {offset:08x} fe:01 {inode}    {name}\n");
        let all = maps(line.as_bytes());
        proptest::prop_assert_eq!(all.len(), 1);
        proptest::prop_assert_eq!(&all[0].addresses, &(start..end));
        proptest::prop_assert_eq!(all[0].name.as_deref(), Some(Path::new(&name)));
        proptest::prop_assert_eq!(all[0].file.map(|file| file.inode), Some(inode));
    }
}
