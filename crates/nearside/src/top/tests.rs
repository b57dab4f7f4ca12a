use super::{draw::lines_of, *};
use crate::{
    domains::Domain,
    look::Look,
    report::{
        domain::examples::{self, MIB},
        stat::tests::stat,
    },
};
use nearside_linux::{store::Record, usage::Usage};
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

/// Two nodes of two CPUs, of which three CPUs' time was used; two domains and a cgroup of somebody else's.
fn look() -> Look {
    let mut stat = stat();
    stat.interval_s = 2.0;
    Look {
        stat,
        all: true,
        busy_ns: examples::by_node(&[4_000_000_000, 1_000_000_000]),
        topology: Topology::default(),
        scheduler: Some("nearside".into()),
        left_out: Vec::new(),
        unseen: Vec::new(),
    }
}

fn with_domains(domains: Vec<Domain>) -> Look {
    let look = look();
    Look { stat: crate::report::stat::Stat { domains, ..look.stat }, ..look }
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

/// Presses what `keys` has letters for; `\n` is Enter, `\x1b` Esc, `\t` Tab, `^` and `v` the arrows.
fn press(state: &mut State, look: &Look, keys: &str) -> Vec<Action> {
    let code = |c| match c {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\t' => KeyCode::Tab,
        '^' => KeyCode::Up,
        'v' => KeyCode::Down,
        _ => KeyCode::Char(c),
    };
    keys.chars().map(|c| state.key(key(code(c)), Some(look))).collect()
}

fn drawn(state: &State, look: Option<&Look>) -> Buffer {
    let mut terminal =
        Terminal::new(TestBackend::new(state.size.width, state.size.height)).unwrap();
    terminal.draw(|frame| draw(frame, state, look)).unwrap();
    terminal.backend().buffer().clone()
}

fn frame(state: &State, look: &Look) -> String {
    lines_of(&drawn(state, Some(look)))
}

/// The line that a `>` marks.
fn marked(state: &State, look: &Look) -> Option<String> {
    let frame = frame(state, look);
    let line = frame.lines().find_map(|line| line.strip_prefix('>'))?;
    line.split_whitespace().next().map(str::to_owned)
}

/// The names in the order in which they are shown.
fn order(state: &State, look: &Look) -> Vec<String> {
    state.rows(look).iter().map(|domain| domain.name.chars().take(3).collect()).collect()
}

#[test]
fn narrow_and_wide_frames() {
    insta::assert_snapshot!("narrow", frame(&state(NARROW), &look()));
    insta::assert_snapshot!("wide", frame(&state(WIDE), &look()));
}

#[test]
fn no_domains() {
    let none = with_domains(Vec::new());
    insta::assert_snapshot!("no_domains", frame(&State { all: false, ..state(NARROW) }, &none));
    assert!(frame(&state(NARROW), &none).contains("no other cgroup has processes"));
    let not_yet = Look { all: false, ..none };
    assert!(frame(&state(NARROW), &not_yet).contains("\n looking ...\n"));
}

#[test]
fn one_node_of_which_little_is_known() {
    let mut one = look();
    one.stat.nodes.truncate(1);
    one.busy_ns.clear();
    let node = &mut one.stat.nodes[0];
    (node.size_bytes, node.free_bytes, node.reclaimable_bytes, node.unclaimed_bytes) =
        (None, None, None, 0);
    one.unseen =
        vec!["/sys/devices/system/node/node0/meminfo: no MemTotal".into(), "another thing".into()];
    insta::assert_snapshot!("unknown_memory", frame(&state(NARROW), &one));
}

#[test]
fn where_a_domain_runs_is_told_by_nodes_by_the_daemon_or_by_both() {
    let mut look = look();
    for (is_told, width, titles, web) in [
        (true, 80, "CPU stands memory at", "0 % pushed-off 0:64M"),
        (true, 140, "CPU stands threads at memory at", "0 % pushed-off 1:1 2:1 3:2 0:64M"),
        (false, 80, "CPU threads at memory at", "0 % 1:1 2:1 3:2 0:64M"),
        (false, 140, "CPU threads at memory at", "0 % 1:1 2:1 3:2 0:64M"),
    ] {
        if !is_told {
            look.stat.domains.iter_mut().for_each(|domain| domain.standing = None);
        }
        let frame = frame(&state(Size::new(width, 24)), &look);
        let line = |start: &str| {
            let line = frame.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(line("domain").ends_with(titles) && line("web").contains(web), "{frame}");
    }
}

#[test]
fn the_heading_tells_who_schedules() {
    for (scheduler, words) in [
        (None, "; scheduled by Linux "),
        (Some("nearside"), "; scheduled by nearside "),
        (Some("scx\x1b[2J"), "; scheduled by scx\\u{1b}[2J "),
    ] {
        let look = Look { scheduler: scheduler.map(str::to_owned), ..look() };
        let frame = frame(&state(WIDE), &look);
        assert!(frame.lines().next().unwrap().contains(words), "{frame}");
    }
}

#[test]
fn a_long_name_is_cut_and_the_rest_keeps_its_place() {
    let usage = || examples::usage(&[1, 1], &[100, 900], &[70, 400], &[]);
    let long = "a-domain-with-a-name-that-somebody-thought-about-for-a-very-long-time-indeed";
    let look = with_domains(vec![domain(long, usage()), domain("b", usage())]);
    insta::assert_snapshot!("long_name", frame(&state(NARROW), &look));
}

#[test]
fn a_filter_that_hides_all() {
    let state = State { filter: "nobody".into(), ..state(NARROW) };
    insta::assert_snapshot!("filtered", frame(&state, &look()));
}

#[test]
fn before_the_first_look_there_is_a_heading_and_keys_do_no_harm() {
    let mut state = state(NARROW);
    let text = lines_of(&drawn(&state, None));
    assert!(text.starts_with("looking ...") && text.contains("q quit"), "{text}");
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
fn a_terminal_of_any_size_is_enough_not_to_fail() {
    let mut look = look();
    look.unseen.push("something".into());
    for (width, height) in
        (0..30).flat_map(|width| [0, 1, 2, 3, 5, 8].map(|height| (7 * width, height)))
    {
        for keys in ["", "?", "\n", "\t", "/漢字"] {
            let mut state = state(Size::new(width, height));
            press(&mut state, &look, keys);
            press(&mut state, &look, "GjvkG");
            let buffer = drawn(&state, Some(&look));
            assert_eq!(buffer.area.as_size(), state.size);
        }
    }
}

#[test]
fn keys_ask_for_what_another_frame_does_not_show() {
    let look = look();
    let with_control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    for (keys, expected) in [
        ("q", Action::Quit),
        ("a", Action::Look),
        ("p", Action::Look),
        (" ", Action::Look),
        ("\n", Action::Explain("db".into())),
        ("vw", Action::Explain("web-frontend".into())),
        ("x", Action::Nothing),
        // Within the filter and in front of an explanation, letters mean something else.
        ("/q", Action::Nothing),
        ("?q", Action::Nothing),
        ("/web\n\n", Action::Explain("web-frontend".into())),
        ("/nobody\n\n", Action::Nothing),
    ] {
        assert_eq!(press(&mut state(NARROW), &look, keys).last(), Some(&expected), "{keys:?}");
    }
    for before in ["", "/", "?", "\n", "\t"] {
        let mut state = state(NARROW);
        press(&mut state, &look, before);
        assert_eq!(state.key(with_control('z'), Some(&look)), Action::Suspend, "{before:?}");
        assert_eq!(state.key(with_control('c'), Some(&look)), Action::Quit, "{before:?}");
    }
}

#[test]
fn a_pause_ends_with_the_same_key_or_when_more_shall_be_seen() {
    let (look, mut state) = (look(), state(NARROW));
    for (key, paused, all) in [
        ("p", true, true),
        (" ", false, true),
        ("p", true, true),
        ("a", false, false),
        ("a", false, true),
    ] {
        press(&mut state, &look, key);
        assert_eq!(state.wants(), Wants { all, paused }, "{key}");
        assert_eq!(frame(&state, &look).contains("PAUSED"), paused, "{key}");
    }
}

#[test]
fn each_order_and_the_other_way_round() {
    let mut look = with_domains(vec![
        domain("one", examples::usage(&[1, 1], &[5, 5], &[0, 100], &[])),
        domain("two", examples::usage(&[0, 1], &[0, 40], &[0, 70], &[])),
        domain("six", examples::usage(&[4, 0], &[1, 0], &[0, 300], &[])),
    ]);
    // One of which nothing is known comes last wherever figures count.
    look.stat.domains.push(examples::domains().remove(2));
    look.stat.domains[0].debt_bytes = Some(5 * MIB);
    look.stat.domains[2].debt_bytes = Some(7 * MIB);
    let mut state = state(NARROW);
    for (keys, expected) in [
        ("", ["one", "six", "two", "/sy"]),
        ("r", ["two", "six", "one", "/sy"]),
        // Of one, of half, of none of its memory; the key starts with the usual direction again.
        ("s", ["six", "one", "two", "/sy"]),
        ("r", ["two", "one", "six", "/sy"]),
        (">", ["six", "one", "two", "/sy"]),
        ("r", ["two", "one", "six", "/sy"]),
        ("s", ["six", "one", "two", "/sy"]),
        ("s", ["two", "one", "six", "/sy"]),
        ("s", ["one", "six", "two", "/sy"]),
        ("<", ["two", "one", "six", "/sy"]),
    ] {
        press(&mut state, &look, keys);
        assert_eq!(
            order(&state, &look),
            expected,
            "{keys:?}: {}",
            state.sort.words(state.reversed)
        );
    }
}

#[test]
fn a_filter_is_typed_shortened_kept_and_cleared() {
    let (look, mut state) = (look(), state(NARROW));
    let names = |state: &State| order(state, &look).join(" ");
    press(&mut state, &look, "/WEBx");
    assert_eq!(names(&state), "");
    assert!(frame(&state, &look).ends_with(" names with: WEBx\n"), "{}", frame(&state, &look));
    state.key(key(KeyCode::Backspace), Some(&look));
    assert_eq!((names(&state).as_str(), state.typing), ("web", true), "whatever the case");
    press(&mut state, &look, "\n");
    assert_eq!((names(&state).as_str(), state.typing), ("web", false));
    assert!(
        frame(&state, &look)
            .starts_with("2 nodes, 4 CPUs, 2 domains, 1 other; by name; 1 with \"WEB\"")
    );
    press(&mut state, &look, "\x1b");
    assert_eq!(names(&state), "db web /sy");
    press(&mut state, &look, "/db\x1b");
    assert_eq!((names(&state).as_str(), state.typing), ("db web /sy", false));
}

#[test]
fn the_cursor_stands_where_the_filter_is_typed() {
    let (look, mut state) = (look(), state(NARROW));
    press(&mut state, &look, "/db");
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &state, Some(&look))).unwrap();
    terminal.backend_mut().assert_cursor_position(Position::new(15, 23));
}

#[test]
fn the_selection_follows_its_domain_and_outlives_it() {
    let (mut look, mut state) = (look(), state(NARROW));
    assert_eq!(marked(&state, &look).as_deref(), Some("db"));
    press(&mut state, &look, "v");
    assert_eq!(marked(&state, &look).as_deref(), Some("web-frontend"));
    press(&mut state, &look, "sr");
    assert_eq!(order(&state, &look)[1], "web");
    press(&mut state, &look, "r");
    assert_eq!(
        (order(&state, &look)[0].as_str(), marked(&state, &look).as_deref()),
        ("web", Some("web-frontend"))
    );
    press(&mut state, &look, "ssss");
    look.stat.domains.remove(1);
    assert!(
        marked(&state, &look).unwrap().starts_with("/system.slice/"),
        "what is in its line now"
    );
    look.stat.domains.truncate(1);
    assert_eq!(marked(&state, &look).as_deref(), Some("db"), "the last line");
    look.stat.domains.clear();
    assert_eq!(marked(&state, &look), None);
}

#[test]
fn of_many_domains_those_around_the_selected_one_are_shown() {
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
fn nodes_that_do_not_fit_can_be_scrolled_to() {
    let mut look = look();
    for id in 2..64 {
        let mut node = stat().nodes.remove(0);
        node.node = NodeId(id);
        look.stat.nodes.push(node);
    }
    look.stat.domains = (0..100).map(|n| domain(&format!("d{n}"), Usage::default())).collect();
    let mut state = state(NARROW);
    let told = |state: &State| {
        let frame = frame(state, &look);
        frame.lines().find(|line| line.starts_with(" nodes ")).unwrap().trim().to_owned()
    };
    assert_eq!(told(&state), "nodes 1 to 6 of 64: Tab, then j k");
    press(&mut state, &look, "\tvv^");
    assert_eq!(told(&state), "nodes 2 to 7 of 64: j k scroll");
    press(&mut state, &look, "G");
    assert_eq!(told(&state), "nodes 59 to 64 of 64: j k scroll");
    assert_eq!(marked(&state, &look), None);
    press(&mut state, &look, "\t");
    assert_eq!(told(&state), "nodes 1 to 6 of 64: Tab, then j k");
}

#[test]
fn an_explanation_is_scrolled_and_left() {
    let (look, mut state) = (look(), state(NARROW));
    press(&mut state, &look, "\n");
    assert!(frame(&state, &look).contains(" why db\n looking ...\n"), "{}", frame(&state, &look));
    let text: String = (1..=40).map(|line| format!("line {line}\n")).collect();
    state.explained("web-frontend", "too late".into());
    state.explained("db", text);
    assert!(frame(&state, &look).contains(" why db  (lines 1 to 21 of 40)\n line 1\n line 2\n"));
    press(&mut state, &look, "Gvvv^");
    assert!(
        frame(&state, &look).contains("(lines 19 to 39 of 40)\n line 19\n"),
        "{}",
        frame(&state, &look)
    );
    press(&mut state, &look, "\x1b");
    assert_eq!(marked(&state, &look).as_deref(), Some("db"));
    state.explained("db", "too late".into());
    assert_eq!(marked(&state, &look).as_deref(), Some("db"));
}

#[test]
fn a_decision_in_a_narrow_terminal() {
    let (look, mut state) = (look(), state(NARROW));
    let record = examples::record();
    press(&mut state, &look, "\n");
    state.explained(
        "db",
        crate::report::why::text(&record, record.part().decision.as_ref().unwrap()),
    );
    insta::assert_snapshot!("why", frame(&state, &look));
}

#[test]
fn help_tells_all_keys_and_what_was_not_seen() {
    let mut look = look();
    look.unseen.push("a record that cannot be read".into());
    let mut state = state(WIDE);
    press(&mut state, &look, "?");
    insta::assert_snapshot!("help", frame(&state, &look));
}

#[test]
fn a_look_that_failed_is_said_above_what_was_seen_before() {
    let state = State { trouble: Some("/sys: gone".into()), ..state(NARROW) };
    assert!(frame(&state, &look()).contains("\n! /sys: gone\n"));
}

#[test]
fn a_frame_without_anybody_who_watches_has_all_rows_and_no_keys() {
    let (mut look, state) = (look(), State { live: false, ..state(NARROW) });
    look.unseen.push("told elsewhere".into());
    let text = plain(&state, &look, 140);
    insta::assert_snapshot!("plain", text);
    assert!(!text.contains('>') && !text.contains("quit"));
}

#[test]
fn colours_say_nothing_alone_and_nothing_where_they_are_not_wanted() {
    let colours = |colours| {
        let buffer = drawn(&State { colours, ..state(WIDE) }, Some(&look()));
        buffer
            .content
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 40);
    let plain = State { colours: false, ..state(WIDE) };
    assert_eq!(frame(&plain, &look()), frame(&State { colours: true, ..plain.clone() }, &look()));
    let buffer = drawn(&plain, Some(&look()));
    assert!(buffer.content.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
}
