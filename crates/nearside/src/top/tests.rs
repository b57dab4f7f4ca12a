use super::{draw::lines_of, *};
use crate::{
    domains::Domain,
    report::{
        cell_stat,
        domain::examples::{self, MIB},
        stat::tests::stat,
    },
    sample::Sample,
};
use nearside_linux::{guest::GuestCell, store::Record, usage::Usage};
use nearside_topology::{NodeId, Topology};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Buffer,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Position, Size},
    style::{Color, Modifier},
};
use std::time::Duration;

const NARROW: Size = Size::new(80, 24);
const WIDE: Size = Size::new(140, 40);

/// Two nodes of two CPUs, three of them busy; two domains and another cgroup.
fn sample() -> Sample {
    let mut stat = stat();
    stat.interval_s = 2.0;
    Sample {
        stat,
        all: true,
        busy_ns: examples::by_node(&[4_000_000_000, 1_000_000_000]),
        topology: Topology::default(),
        scheduler: Some("nearside".into()),
        left_out: Vec::new(),
        has_unreadable: false,
        watched: 0,
        unseen: Vec::new(),
    }
}

fn with_domains(domains: Vec<Domain>) -> Sample {
    let sample = sample();
    Sample { stat: crate::report::stat::Stat { domains, ..sample.stat }, ..sample }
}

fn domain(name: &str, usage: Usage) -> Domain {
    let record =
        Record { name: name.into(), cgroup: format!("/nearside/{name}"), ..examples::record() };
    Domain::new(&record.cgroup, Some(&record), usage)
}

fn state(size: Size) -> State {
    State { interval: Duration::from_secs(2), live: true, all: true, size, ..State::default() }
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// Presses the keys in `keys`; `\n` is Enter, `\x1b` Esc, `\t` Tab, `^` and `v` the arrows.
fn press(state: &mut State, sample: &Sample, keys: &str) -> Vec<Action> {
    let code = |c| match c {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\t' => KeyCode::Tab,
        '^' => KeyCode::Up,
        'v' => KeyCode::Down,
        _ => KeyCode::Char(c),
    };
    keys.chars().map(|c| state.key(key(code(c)), Some(sample))).collect()
}

fn drawn(state: &State, sample: Option<&Sample>) -> Buffer {
    let mut terminal =
        Terminal::new(TestBackend::new(state.size.width, state.size.height)).unwrap();
    terminal.draw(|frame| draw(frame, state, sample)).unwrap();
    terminal.backend().buffer().clone()
}

fn frame(state: &State, sample: &Sample) -> String {
    lines_of(&drawn(state, Some(sample)))
}

/// The line with the mark `>`.
fn marked(state: &State, sample: &Sample) -> Option<String> {
    let frame = frame(state, sample);
    let line = frame.lines().find_map(|line| line.strip_prefix('>'))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// The names in the order of the lines.
fn order(state: &State, sample: &Sample) -> Vec<String> {
    state.rows(sample).iter().map(|domain| domain.name.chars().take(3).collect()).collect()
}

#[test]
fn narrow_and_wide_frames() {
    insta::assert_snapshot!("narrow", frame(&state(NARROW), &sample()));
    insta::assert_snapshot!("wide", frame(&state(WIDE), &sample()));
}

#[test]
fn cells_of_a_guest_have_lines_below_its_own() {
    let guest = domain("vm", sample().stat.domains[0].usage.clone());
    let cell = |number, node: u32| GuestCell {
        cell: Some(number),
        threads: [(NodeId(node), 2)].into(),
        bytes: (number == 0).then(|| [(NodeId(node), 64 * MIB)].into()),
        local_share: (number == 0).then_some(1.0),
        ..GuestCell::default()
    };
    let cells = cell_stat::cells(None, vec![cell(0, 0), cell(1, 1)], |_| None);
    let sample = with_domains(vec![domain("db", Usage::default()), guest.with_cells(cells)]);
    insta::assert_snapshot!("cells", frame(&state(WIDE), &sample));
    // The mark goes through them, and the reasons are those of the guest.
    let mut state = state(WIDE);
    assert_eq!(press(&mut state, &sample, "vvv\n").last(), Some(&Action::Explain("vm".into())));
}

#[test]
fn empty_list_explains_itself() {
    let none = with_domains(Vec::new());
    insta::assert_snapshot!("no_domains", frame(&State { all: false, ..state(NARROW) }, &none));
    assert!(frame(&state(NARROW), &none).contains("no other cgroup has processes"));
    let watched = Sample { watched: 1000, ..with_domains(Vec::new()) };
    let told = frame(&State { all: false, ..state(NARROW) }, &watched);
    assert!(told.contains("the daemon watches 1000 found domains"), "{told}");
    let unreadable = Sample { has_unreadable: true, ..with_domains(Vec::new()) };
    for all in [false, true] {
        let frame = frame(&State { all, ..state(NARROW) }, &unreadable);
        assert!(!frame.contains("no domain runs"), "{frame}");
        assert!(frame.contains("one whose record cannot be read may run"), "{frame}");
    }
    let not_yet = Sample { all: false, ..none };
    assert!(frame(&state(NARROW), &not_yet).contains("\n sampling ...\n"));
}

#[test]
fn node_with_unknown_memory() {
    let mut one = sample();
    one.stat.nodes.truncate(1);
    one.busy_ns.clear();
    let node = &mut one.stat.nodes[0];
    (node.size_bytes, node.free_bytes, node.reclaimable_bytes, node.available_bytes) =
        (None, None, None, 0);
    one.unseen =
        vec!["/sys/devices/system/node/node0/meminfo: no MemTotal".into(), "another thing".into()];
    insta::assert_snapshot!("unknown_memory", frame(&state(NARROW), &one));
}

#[test]
fn threads_have_nodes_or_a_status_or_both() {
    let mut sample = sample();
    for (is_told, width, titles, web) in [
        (true, 80, "CPU status memory at", "0 % contended 0:64M"),
        (true, 140, "CPU status threads at memory at", "0 % contended 1:1 2:1 3:2 0:64M"),
        (false, 80, "CPU threads at memory at", "0 % 1:1 2:1 3:2 0:64M"),
        (false, 140, "CPU threads at memory at", "0 % 1:1 2:1 3:2 0:64M"),
    ] {
        if !is_told {
            sample.stat.domains.iter_mut().for_each(|domain| domain.status = None);
        }
        let frame = frame(&state(Size::new(width, 24)), &sample);
        let line = |start: &str| {
            let line = frame.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("domain").ends_with(titles) && line("web").contains(web), "{frame}");
    }
}

#[test]
fn heading_names_the_scheduler() {
    for (scheduler, words) in [
        (None, "; scheduled by Linux "),
        (Some("nearside"), "; scheduled by nearside "),
        (Some("scx\x1b[2J"), "; scheduled by scx\\u{1b}[2J "),
    ] {
        let sample = Sample { scheduler: scheduler.map(str::to_owned), ..sample() };
        let frame = frame(&state(WIDE), &sample);
        assert!(frame.lines().next().unwrap().contains(words), "{frame}");
    }
}

#[test]
fn long_name_is_cut_and_other_columns_keep_their_place() {
    let usage = || examples::usage(&[1, 1], &[100, 900], &[70, 400], &[]);
    let long = "a-domain-with-a-very-long-name-that-does-not-fit-into-a-column-of-the-table";
    let sample = with_domains(vec![domain(long, usage()), domain("b", usage())]);
    insta::assert_snapshot!("long_name", frame(&state(NARROW), &sample));
}

#[test]
fn filter_that_hides_all_domains() {
    let state = State { filter: "no-such".into(), ..state(NARROW) };
    insta::assert_snapshot!("filtered", frame(&state, &sample()));
}

#[test]
fn keys_are_harmless_before_the_first_sample() {
    let mut state = state(NARROW);
    let text = lines_of(&drawn(&state, None));
    assert!(text.starts_with("sampling ...") && text.contains("q quit"), "{text}");
    for code in [
        KeyCode::Down,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Tab,
        KeyCode::PageDown,
        KeyCode::Char('?'),
    ] {
        assert_eq!(state.key(key(code), None), Action::Nothing, "{code:?}");
    }
}

#[test]
fn any_terminal_size_is_accepted() {
    let mut sample = sample();
    sample.unseen.push("something".into());
    for (width, height) in
        (0..30).flat_map(|width| [0, 1, 2, 3, 5, 8].map(|height| (7 * width, height)))
    {
        for keys in ["", "?", "\n", "\t", "/漢字"] {
            let mut state = state(Size::new(width, height));
            press(&mut state, &sample, keys);
            press(&mut state, &sample, "GjvkG");
            let buffer = drawn(&state, Some(&sample));
            assert_eq!(buffer.area.as_size(), state.size);
        }
    }
}

#[test]
fn keys_return_actions() {
    let sample = sample();
    let with_control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    for (keys, expected) in [
        ("q", Action::Quit),
        ("a", Action::Sample),
        ("p", Action::Sample),
        (" ", Action::Sample),
        ("\n", Action::Explain("db".into())),
        ("vw", Action::Explain("web-frontend".into())),
        ("x", Action::Nothing),
        // In the filter and in front of an explanation, letters have other meanings.
        ("/q", Action::Nothing),
        ("?q", Action::Nothing),
        ("/web\n\n", Action::Explain("web-frontend".into())),
        ("/no-such\n\n", Action::Nothing),
    ] {
        assert_eq!(press(&mut state(NARROW), &sample, keys).last(), Some(&expected), "{keys:?}");
    }
    for before in ["", "/", "?", "\n", "\t"] {
        let mut state = state(NARROW);
        press(&mut state, &sample, before);
        assert_eq!(state.key(with_control('z'), Some(&sample)), Action::Suspend, "{before:?}");
        assert_eq!(state.key(with_control('c'), Some(&sample)), Action::Quit, "{before:?}");
    }
}

#[test]
fn pause_ends_with_the_same_key_or_with_other_cgroups() {
    let (sample, mut state) = (sample(), state(NARROW));
    for (key, paused, all) in [
        ("p", true, true),
        (" ", false, true),
        ("p", true, true),
        ("a", false, false),
        ("a", false, true),
    ] {
        press(&mut state, &sample, key);
        assert_eq!(state.wants(), Wants { all, paused }, "{key}");
        assert_eq!(frame(&state, &sample).contains("PAUSED"), paused, "{key}");
    }
}

#[test]
fn each_order_can_be_reversed() {
    let mut sample = with_domains(vec![
        domain("one", examples::usage(&[1, 1], &[5, 5], &[0, 100], &[])),
        domain("two", examples::usage(&[0, 1], &[0, 40], &[0, 70], &[])),
        domain("six", examples::usage(&[4, 0], &[1, 0], &[0, 300], &[])),
    ]);
    // A domain without figures comes last in every order but that by name.
    sample.stat.domains.push(examples::domains().remove(2));
    sample.stat.domains[0].debt_bytes = Some(5 * MIB);
    sample.stat.domains[2].debt_bytes = Some(7 * MIB);
    let mut state = state(NARROW);
    for (keys, expected) in [
        ("", ["one", "six", "two", "/sy"]),
        ("r", ["two", "six", "one", "/sy"]),
        // Local shares 1, 1/2 and 0; the key selects the usual direction again.
        ("s", ["six", "one", "two", "/sy"]),
        ("r", ["two", "one", "six", "/sy"]),
        (">", ["six", "one", "two", "/sy"]),
        ("r", ["two", "one", "six", "/sy"]),
        ("s", ["six", "one", "two", "/sy"]),
        ("s", ["two", "one", "six", "/sy"]),
        ("s", ["one", "six", "two", "/sy"]),
        ("<", ["two", "one", "six", "/sy"]),
    ] {
        press(&mut state, &sample, keys);
        assert_eq!(
            order(&state, &sample),
            expected,
            "{keys:?}: {}",
            state.sort.words(state.reversed)
        );
    }
}

#[test]
fn filter_is_typed_shortened_kept_and_cleared() {
    let (sample, mut state) = (sample(), state(NARROW));
    let names = |state: &State| order(state, &sample).join(" ");
    press(&mut state, &sample, "/WEBx");
    assert_eq!(names(&state), "");
    assert!(frame(&state, &sample).ends_with(" names with: WEBx\n"), "{}", frame(&state, &sample));
    state.key(key(KeyCode::Backspace), Some(&sample));
    assert_eq!((names(&state).as_str(), state.typing), ("web", true), "case does not matter");
    press(&mut state, &sample, "\n");
    assert_eq!((names(&state).as_str(), state.typing), ("web", false));
    assert!(
        frame(&state, &sample)
            .starts_with("2 nodes, 4 CPUs, 2 domains, 1 other; by name; 1 with \"WEB\"")
    );
    press(&mut state, &sample, "\x1b");
    assert_eq!(names(&state), "db web /sy");
    press(&mut state, &sample, "/db\x1b");
    assert_eq!((names(&state).as_str(), state.typing), ("db web /sy", false));
}

#[test]
fn cursor_is_at_the_end_of_the_filter() {
    let (sample, mut state) = (sample(), state(NARROW));
    press(&mut state, &sample, "/db");
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &state, Some(&sample))).unwrap();
    terminal.backend_mut().assert_cursor_position(Position::new(15, 23));
}

#[test]
fn selection_follows_its_domain_and_outlives_it() {
    let (mut sample, mut state) = (sample(), state(NARROW));
    assert_eq!(marked(&state, &sample).as_deref(), Some("db"));
    press(&mut state, &sample, "v");
    assert_eq!(marked(&state, &sample).as_deref(), Some("web-frontend"));
    press(&mut state, &sample, "sr");
    assert_eq!(order(&state, &sample)[1], "web");
    press(&mut state, &sample, "r");
    assert_eq!(
        (order(&state, &sample)[0].as_str(), marked(&state, &sample).as_deref()),
        ("web", Some("web-frontend"))
    );
    press(&mut state, &sample, "ssss");
    sample.stat.domains.remove(1);
    assert!(
        marked(&state, &sample).unwrap().starts_with("/system.slice/"),
        "the domain now in its line"
    );
    sample.stat.domains.truncate(1);
    assert_eq!(marked(&state, &sample).as_deref(), Some("db"), "the last line");
    sample.stat.domains.clear();
    assert_eq!(marked(&state, &sample), None);
}

#[test]
fn list_scrolls_with_the_selected_domain() {
    let usage = || examples::usage(&[1], &[5], &[1], &[]);
    let many = with_domains((100..200).map(|n| domain(&format!("d{n}"), usage())).collect());
    let mut state = state(NARROW);
    for (code, expected) in [
        (KeyCode::Down, "d101"),
        (KeyCode::PageDown, "d117"),
        (KeyCode::PageDown, "d133"),
        (KeyCode::Up, "d132"),
        (KeyCode::End, "d199"),
        (KeyCode::PageDown, "d199"),
        (KeyCode::PageUp, "d183"),
        (KeyCode::Home, "d100"),
        (KeyCode::PageUp, "d100"),
    ] {
        state.key(key(code), Some(&many));
        assert_eq!(marked(&state, &many).as_deref(), Some(expected), "{code:?}");
    }
}

#[test]
fn nodes_can_be_scrolled() {
    let mut sample = sample();
    for id in 2..64 {
        let mut node = stat().nodes.remove(0);
        node.node = NodeId(id);
        sample.stat.nodes.push(node);
    }
    sample.stat.domains = (0..100).map(|n| domain(&format!("d{n}"), Usage::default())).collect();
    let mut state = state(NARROW);
    let told = |state: &State| {
        let frame = frame(state, &sample);
        frame.lines().find(|line| line.starts_with(" nodes ")).unwrap().trim().to_owned()
    };
    assert_eq!(told(&state), "nodes 1 to 6 of 64: Tab, then j k");
    press(&mut state, &sample, "\tvv^");
    assert_eq!(told(&state), "nodes 2 to 7 of 64: j k scroll");
    press(&mut state, &sample, "G");
    assert_eq!(told(&state), "nodes 59 to 64 of 64: j k scroll");
    assert_eq!(marked(&state, &sample), None);
    press(&mut state, &sample, "\t");
    assert_eq!(told(&state), "nodes 1 to 6 of 64: Tab, then j k");
}

#[test]
fn explanation_is_scrolled_and_closed() {
    let (sample, mut state) = (sample(), state(NARROW));
    press(&mut state, &sample, "\n");
    assert!(
        frame(&state, &sample).contains(" why db\n sampling ...\n"),
        "{}",
        frame(&state, &sample)
    );
    let text: String = (1..=40).map(|line| format!("line {line}\n")).collect();
    state.explained("web-frontend", "too late".into());
    state.explained("db", text);
    assert!(frame(&state, &sample).contains(" why db  (lines 1 to 21 of 40)\n line 1\n line 2\n"));
    press(&mut state, &sample, "Gvvv^");
    assert!(
        frame(&state, &sample).contains("(lines 19 to 39 of 40)\n line 19\n"),
        "{}",
        frame(&state, &sample)
    );
    press(&mut state, &sample, "\x1b");
    assert_eq!(marked(&state, &sample).as_deref(), Some("db"));
    state.explained("db", "too late".into());
    assert_eq!(marked(&state, &sample).as_deref(), Some("db"));
}

#[test]
fn decision_in_a_narrow_terminal() {
    let (sample, mut state) = (sample(), state(NARROW));
    let record = examples::record();
    press(&mut state, &sample, "\n");
    state.explained(
        "db",
        crate::report::why::text(&record, record.part().decision.as_ref().unwrap(), &[].into()),
    );
    insta::assert_snapshot!("why", frame(&state, &sample));
}

#[test]
fn help_has_all_keys_and_unreadable_data() {
    let mut sample = sample();
    sample.unseen.push("a record that cannot be read".into());
    let mut state = state(WIDE);
    press(&mut state, &sample, "?");
    insta::assert_snapshot!("help", frame(&state, &sample));
}

#[test]
fn failed_sample_is_reported_above_the_last_one() {
    let state = State { problem: Some("/sys: gone".into()), ..state(NARROW) };
    assert!(frame(&state, &sample()).contains("\n! /sys: gone\n"));
}

#[test]
fn plain_frame_has_all_rows_and_no_keys() {
    let (mut sample, state) = (sample(), State { live: false, ..state(NARROW) });
    sample.unseen.push("on standard error".into());
    let text = plain(&state, &sample, 140);
    insta::assert_snapshot!("plain", text);
    assert!(!text.contains('>') && !text.contains("quit"));
}

#[test]
fn colours_repeat_numbers_and_can_be_off() {
    let colours = |colours| {
        let buffer = drawn(&State { colours, ..state(WIDE) }, Some(&sample()));
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 40);
    let plain = State { colours: false, ..state(WIDE) };
    assert_eq!(
        frame(&plain, &sample()),
        frame(&State { colours: true, ..plain.clone() }, &sample())
    );
    let buffer = drawn(&plain, Some(&sample()));
    assert!(buffer.content.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
}
