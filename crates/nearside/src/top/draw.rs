//! Frames of the view.

use super::{
    state::{Pane, State},
    table::{Cell, Column, Mood, columns_of, widths, write, write_row},
};
use crate::printable::printable;
use crate::{
    domains::Domain,
    report::{
        domain::{by_node, dash, label, local, memory_by_node, origin, stands, used_of_claim},
        stat::NodeStat,
        table::Side::{Left, Right},
        units::{count, short},
    },
    sample::Sample,
};
use nearside_policy::total;
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Position, Rect, Size},
    style::{Modifier, Style},
};

/// Width from which domains have more columns.
const WIDE: u16 = 110;

/// Lines of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) nodes: usize,
    pub(super) domains: usize,
    /// Lines of an explanation, which replaces both.
    pub(super) text: usize,
}

/// Lines of the heading, of the titles of two tables, and of the blank line between them.
const FIRM_LINES: usize = 4;

impl Room {
    pub(super) fn new(size: Size, state: &State, sample: Option<&Sample>) -> Self {
        let (nodes, domains) =
            sample.map_or((0, 0), |sample| (sample.stat.nodes.len(), state.rows(sample).len()));
        let around = usize::from(state.live) + usize::from(unseen(state, sample).is_some());
        let height = usize::from(size.height);
        let left = height.saturating_sub(FIRM_LINES + around);
        // Nodes have a third, or more if domains need less.
        let nodes = nodes.min((left / 3).max(left.saturating_sub(domains.max(1))));
        Self { nodes, domains: left - nodes, text: height.saturating_sub(2 + around) }
    }
}

/// The frame as text of all lines.
pub(crate) fn plain(state: &State, sample: &Sample, width: u16) -> String {
    let lines = FIRM_LINES + sample.stat.nodes.len() + state.rows(sample).len().max(1);
    let area = Rect::new(0, 0, width, u16::try_from(lines).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    draw_into(&mut buffer, state, Some(sample));
    lines_of(&buffer)
}

/// The content of a buffer, without trailing blanks.
pub(super) fn lines_of(buffer: &Buffer) -> String {
    let lines = buffer.content.chunks(usize::from(buffer.area.width.max(1)));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let (mut text, mut x) = (String::new(), 0);
        // A character of two columns has a hidden cell behind it.
        while let Some(cell) = cells.get(x) {
            text += cell.symbol();
            x += columns_of(cell.symbol()).max(1);
        }
        format!("{}\n", text.trim_end())
    };
    lines.map(line).collect()
}

/// Draws a frame; without a sample before the first has ended.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State, sample: Option<&Sample>) {
    draw_into(frame.buffer_mut(), state, sample);
    if state.typing {
        let area = frame.area();
        let x = columns_of(&prompt(state)).min(usize::from(area.width.saturating_sub(1)));
        frame.set_cursor_position(Position::new(x as u16, area.bottom().saturating_sub(1)));
    }
}

fn draw_into(buffer: &mut Buffer, state: &State, sample: Option<&Sample>) {
    let area = buffer.area;
    let room = Room::new(area.as_size(), state, sample);
    let mut page = Page { buffer, area, line: 0, colours: state.colours };
    heading(&mut page, state, sample);
    if let Some(text) = unseen(state, sample) {
        page.text(&text, Mood::Fair.style(state.colours).add_modifier(Modifier::BOLD));
    }
    match (&state.pane, sample) {
        (Pane::Why { .. } | Pane::Help, _) => explanation(&mut page, state, sample, room),
        (Pane::Domains | Pane::Nodes, Some(sample)) => {
            nodes(&mut page, state, sample, room);
            page.line += 1;
            domains(&mut page, state, sample, room);
        }
        (Pane::Domains | Pane::Nodes, None) => {}
    }
    if state.live {
        page.line = area.height.saturating_sub(1);
        page.text(&footer(state), Style::new());
    }
}

/// The position of the next line; lines beyond the area are dropped.
struct Page<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    line: u16,
    colours: bool,
}

impl Page<'_> {
    fn next(&mut self) -> Rect {
        let line = Rect { y: self.area.y.saturating_add(self.line), height: 1, ..self.area }
            .intersection(self.area);
        self.line = self.line.saturating_add(1);
        line
    }

    fn text(&mut self, text: &str, style: Style) {
        let line = self.next();
        write(self.buffer, line, 0, usize::from(line.width), text, style);
    }

    fn title(&mut self, columns: &[Column], widths: &[usize]) {
        let titles: Vec<Cell> = columns.iter().map(|column| Cell::new(column.title)).collect();
        let line = self.next();
        let inner = inner(line);
        write_row(self.buffer, inner, columns, widths, &titles, false);
        self.buffer
            .set_style(line, Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
    }

    fn row(&mut self, columns: &[Column], widths: &[usize], row: &[Cell], is_selected: bool) {
        let line = self.next();
        let inner = inner(line);
        write_row(self.buffer, inner, columns, widths, row, self.colours);
        if is_selected {
            write(self.buffer, line, 0, 1, ">", Style::new());
            self.buffer.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
}

/// A line without its first column, which marks the selected line.
fn inner(line: Rect) -> Rect {
    Rect { x: line.x.saturating_add(1), width: line.width.saturating_sub(1), ..line }
}

fn heading(page: &mut Page<'_>, state: &State, sample: Option<&Sample>) {
    let pace = match (state.live, state.wants().paused) {
        (false, _) => {
            sample.map_or_else(String::new, |sample| format!("over {} s", sample.stat.interval_s))
        }
        (true, false) => format!("every {} s", state.interval.as_secs_f64()),
        (true, true) => "PAUSED".into(),
    };
    let line = page.next();
    let (width, taken) = (usize::from(line.width), columns_of(&pace));
    let text = sample.map_or_else(|| "sampling ...".into(), |sample| summary(state, sample));
    write(
        page.buffer,
        line,
        0,
        width.saturating_sub(taken + 2),
        &text,
        Style::new().add_modifier(Modifier::BOLD),
    );
    write(
        page.buffer,
        line,
        width.saturating_sub(taken),
        taken,
        &pace,
        Style::new().add_modifier(Modifier::BOLD),
    );
}

/// `4 nodes, 8 CPUs, 2 domains; by name; scheduled by Linux`
fn summary(state: &State, sample: &Sample) -> String {
    let all = &sample.stat.domains;
    let domains = all.iter().filter(|domain| domain.home.is_some()).count();
    let others = match all.len() - domains {
        others if state.all && sample.all => format!(", {}", count(others, "other")),
        _ => String::new(),
    };
    let filter = match state.filter.is_empty() {
        true => String::new(),
        false => format!("; {} with \"{}\"", state.rows(sample).len(), state.filter),
    };
    let cpus = sample.stat.nodes.iter().map(|node| node.cpus).sum();
    let (nodes, cpus) = (count(sample.stat.nodes.len(), "node"), count(cpus, "CPU"));
    let sort = state.sort.words(state.reversed);
    let scheduler = sample.scheduler.as_deref().map_or_else(|| "Linux".into(), printable);
    format!(
        "{nodes}, {cpus}, {}{others}; {sort}{filter}; scheduled by {scheduler}",
        count(domains, "domain")
    )
}

/// Problems in one line. Without a user who could press `?`, standard error has them.
fn unseen(state: &State, sample: Option<&Sample>) -> Option<String> {
    let all = problems(state, sample);
    let first = all.first().filter(|_| state.live)?;
    let more =
        if all.len() > 1 { format!("(? for {} more) ", all.len() - 1) } else { String::new() };
    Some(format!("! {more}{first}"))
}

fn problems<'a>(state: &'a State, sample: Option<&'a Sample>) -> Vec<&'a String> {
    state.problem.iter().chain(sample.into_iter().flat_map(|sample| &sample.unseen)).collect()
}

/// `[||||:: ]`: shares of a whole, one after the other.
fn bar(parts: &[(char, f64)], width: usize) -> String {
    let mut bar = String::new();
    let mut sum = 0.0;
    for &(mark, share) in parts {
        sum += share.max(0.0);
        let end = (sum.min(1.0) * width as f64).round() as usize;
        bar.extend(std::iter::repeat_n(mark, end.saturating_sub(bar.len())));
    }
    format!("[{bar:width$}]")
}

/// The mood of a share that is good while it is low.
fn fullness(share: f64) -> Mood {
    match share {
        0.9.. => Mood::Bad,
        0.7.. => Mood::Fair,
        _ => Mood::Good,
    }
}

fn closeness(share: f64) -> Mood {
    match share {
        0.9.. => Mood::Good,
        0.5.. => Mood::Fair,
        _ => Mood::Bad,
    }
}

fn column(title: &'static str, side: crate::report::table::Side, least: usize) -> Column {
    Column { title, side, least, is_cut: false }
}

fn cut_column(title: &'static str) -> Column {
    Column { title, side: Left, least: 0, is_cut: true }
}

fn nodes(page: &mut Page<'_>, state: &State, sample: &Sample, room: Room) {
    let all = &sample.stat.nodes;
    // The largest width of the other columns and the gaps; bars get the rest.
    let bars = (usize::from(page.area.width).saturating_sub(56) / 2).clamp(6, 40);
    let columns = [
        column("node", Right, 4),
        column("CPU", Left, bars + 2),
        column("busy", Right, 5),
        column("memory", Left, bars + 2),
        column("used/size", Right, 11),
        column("available", Right, 9),
        column("vCPUs/CPUs", Right, 10),
    ];
    let rows: Vec<Vec<Cell>> = all.iter().map(|node| node_row(node, sample, bars)).collect();
    let widths = widths(&columns, &rows, usize::from(page.area.width.saturating_sub(1)));
    page.title(&columns, &widths);
    let first = state.first.min(all.len().saturating_sub(room.nodes));
    let first = if state.pane == Pane::Nodes { first } else { 0 };
    for row in rows.iter().skip(first).take(room.nodes) {
        page.row(&columns, &widths, row, false);
    }
    if room.nodes < all.len() && room.nodes > 0 {
        let here = if state.pane == Pane::Nodes { "j k scroll" } else { "Tab, then j k" };
        let text =
            format!(" nodes {} to {} of {}: {here}", first + 1, first + room.nodes, all.len());
        // In the blank line below.
        let line = Rect { y: page.area.y.saturating_add(page.line), height: 1, ..page.area }
            .intersection(page.area);
        write(page.buffer, line, 0, usize::from(line.width), &text, Style::new());
    }
}

fn node_row(node: &NodeStat, sample: &Sample, bars: usize) -> Vec<Cell> {
    let busy = busy_share(node, sample);
    let size = node.size_bytes.filter(|&bytes| bytes > 0);
    let share = |bytes: Option<u64>| Some(bytes? as f64 / size? as f64);
    let reclaimable = share(node.reclaimable_bytes);
    let used_bytes = size.zip(node.free_bytes).zip(node.reclaimable_bytes);
    let used_bytes = used_bytes
        .map(|((size, free), reclaimable)| size.saturating_sub(free).saturating_sub(reclaimable));
    let used = share(used_bytes);
    let gauge = |parts: &[(char, f64)], level: Option<f64>| match level {
        Some(level) => Cell { text: bar(parts, bars), mood: fullness(level) },
        None => Cell::new(format!("[{:width$}]", "?", width = bars)),
    };
    vec![
        Cell::new(node.node.to_string()),
        gauge(&[('|', busy.unwrap_or(0.0))], busy),
        Cell::new(local(busy)),
        gauge(&[('|', used.unwrap_or(0.0)), (':', reclaimable.unwrap_or(0.0))], used),
        Cell::new(format!("{}/{}", dash(used_bytes.map(short)), dash(node.size_bytes.map(short)))),
        Cell::new(short(node.available_bytes)),
        Cell::new(format!("{}/{}", node.claimed_vcpus, node.cpus)),
    ]
}

/// The busy share of a node's CPUs, from 0 to 1.
fn busy_share(node: &NodeStat, sample: &Sample) -> Option<f64> {
    let could_ns = node.cpus as f64 * sample.stat.interval_s * 1e9;
    let busy_ns = *sample.busy_ns.get(&node.node)? as f64;
    (could_ns > 0.0).then(|| (busy_ns / could_ns).min(1.0))
}

fn domains(page: &mut Page<'_>, state: &State, sample: &Sample, room: Room) {
    let is_wide = page.area.width >= WIDE;
    let mut columns = vec![cut_column("domain"), column("home", Left, 4)];
    if is_wide {
        columns.extend([
            column("origin", Left, 6),
            column("policy", Left, 6),
            column("", Left, 12),
        ]);
    }
    columns.extend([
        column("local", Right, 5),
        column("debt", Right, 5),
        column("memory", Right, 6),
        column("CPU", Right, 5),
    ]);
    let running = Running::new(sample, is_wide);
    if running.in_a_word {
        // The width of the longest status.
        columns.push(column("status", Left, 10));
    }
    if running.by_node {
        columns.push(cut_column("threads at"));
    }
    columns.push(cut_column("memory at"));
    let shown = state.rows(sample);
    let rows: Vec<Vec<Cell>> =
        shown.iter().map(|domain| domain_row(domain, sample, is_wide, running)).collect();
    let widths = widths(&columns, &rows, usize::from(page.area.width.saturating_sub(1)));
    page.title(&columns, &widths);
    if rows.is_empty() {
        page.text(&nothing(state, sample), Style::new());
        return;
    }
    let selected = state.selected(&shown).filter(|_| state.live);
    let first = selected
        .unwrap_or(0)
        .saturating_sub(room.domains / 2)
        .min(rows.len().saturating_sub(room.domains));
    for (line, row) in rows.iter().enumerate().skip(first).take(room.domains) {
        page.row(&columns, &widths, row, selected == Some(line) && state.pane == Pane::Domains);
    }
}

/// The columns that show the place of a domain's threads.
#[derive(Clone, Copy)]
struct Running {
    /// The status in the control loop.
    in_a_word: bool,
    /// The number of threads by node.
    by_node: bool,
}

impl Running {
    /// A narrow terminal has no room for both; the status is more exact.
    fn new(sample: &Sample, is_wide: bool) -> Self {
        let is_told = sample.stat.domains.iter().any(|domain| domain.status.is_some());
        Self { in_a_word: is_told, by_node: is_wide || !is_told }
    }
}

fn domain_row(domain: &Domain, sample: &Sample, is_wide: bool, running: Running) -> Vec<Cell> {
    let mood = domain.local_share.map_or(Mood::Plain, closeness);
    let mut row = vec![
        Cell::new(label(domain)),
        Cell::new(dash(domain.home.as_ref().map(|home| home.nodes.to_string()))),
    ];
    if is_wide {
        row.extend([
            Cell::new(dash(domain.home.as_ref().map(|home| origin(home.origin)))),
            Cell::new(dash(domain.home.as_ref().map(|home| home.policy))),
            domain
                .local_share
                .map_or_else(Cell::default, |share| Cell { text: bar(&[('|', share)], 10), mood }),
        ]);
    }
    let in_debt = domain.debt_bytes.is_some_and(|bytes| bytes > 0);
    row.extend([
        Cell { text: local(domain.local_share), mood },
        Cell {
            text: dash(domain.debt_bytes.map(short)),
            mood: if in_debt { Mood::Fair } else { Mood::Plain },
        },
        Cell::new(held(domain, is_wide)),
        Cell::new(cpus_used(domain, sample)),
    ]);
    row.extend(running.in_a_word.then(|| Cell::new(stands(domain))));
    row.extend(running.by_node.then(|| Cell::new(by_node(&domain.usage.cpu.threads))));
    row.push(Cell::new(memory_by_node(domain)));
    row
}

/// Resident memory; with `of_claim` also claimed memory.
fn held(domain: &Domain, of_claim: bool) -> String {
    let used = used_of_claim(domain);
    match used.split_once('/') {
        Some((held, _)) if !of_claim => held.into(),
        _ => used,
    }
}

/// CPU time in percent of one CPU.
fn cpus_used(domain: &Domain, sample: &Sample) -> String {
    let share = total(&domain.usage.cpu.time_ns) as f64 / 1e9 / sample.stat.interval_s;
    // That of a cell is not measured.
    let is_known = share.is_finite() && domain.label.is_none();
    dash(is_known.then(|| format!("{:.0} %", share * 100.0)))
}

/// The text in place of an empty list.
fn nothing(state: &State, sample: &Sample) -> String {
    let is_filtered = !State { filter: String::new(), ..state.clone() }.rows(sample).is_empty();
    match (is_filtered, state.all, state.live) {
        (true, _, true) => format!(" no name has \"{}\" in it: Esc shows all", state.filter),
        (true, _, false) => format!(" no name has \"{}\" in it", state.filter),
        (false, true, _) if !sample.all => " sampling ...".into(),
        _ if sample.has_unreadable => {
            " no domain is listed, but one whose record cannot be read may run".into()
        }
        (false, false, _) if sample.watched > 0 => format!(
            " no domain has a home: the daemon watches {}; {} shows cgroups",
            count(sample.watched, "found domain"),
            if state.live { "a" } else { "--all" }
        ),
        (false, true, _) => " no domain runs, and no other cgroup has processes".into(),
        (false, false, true) => {
            " no domain runs: `nearside run` starts one; a shows other cgroups".into()
        }
        (false, false, false) => {
            " no domain runs: `nearside run` starts one; --all shows other cgroups".into()
        }
    }
}

fn footer(state: &State) -> String {
    match &state.pane {
        _ if state.typing => prompt(state),
        Pane::Domains => {
            " Enter why  s sort  r reverse  / filter  a all  p pause  ? help  q quit".into()
        }
        Pane::Nodes => " j k scroll  Tab back to the domains  ? help  q quit".into(),
        Pane::Why { .. } | Pane::Help => " j k scroll  Esc back  Ctrl-C quit".into(),
    }
}

fn prompt(state: &State) -> String {
    format!(" names with: {}", state.filter)
}

fn explanation(page: &mut Page<'_>, state: &State, sample: Option<&Sample>, room: Room) {
    let lines = text(state, sample);
    let title = match &state.pane {
        Pane::Why { domain, .. } => format!(" why {}", printable(domain)),
        _ => " help".into(),
    };
    let first = state.first.min(lines.len().saturating_sub(room.text));
    let more = match lines.len() > room.text {
        true => format!(
            "  (lines {} to {} of {})",
            first + 1,
            (first + room.text).min(lines.len()),
            lines.len()
        ),
        false => String::new(),
    };
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    page.text(&format!("{title}{more}"), style);
    for line in lines.iter().skip(first).take(room.text) {
        page.text(line, Style::new());
    }
}

/// The lines of an explanation, folded to the width of the terminal.
pub(super) fn text(state: &State, sample: Option<&Sample>) -> Vec<String> {
    let width = usize::from(state.size.width);
    let text = match &state.pane {
        Pane::Why { text: Some(text), .. } => text.clone(),
        Pane::Why { text: None, .. } => "sampling ...".into(),
        Pane::Help | Pane::Domains | Pane::Nodes => {
            let problems: String =
                problems(state, sample).iter().map(|problem| format!("  {problem}\n")).collect();
            if problems.is_empty() { HELP.into() } else { format!("{HELP}\nNot seen\n{problems}") }
        }
    };
    text.lines()
        .flat_map(|line| folded(line, width.saturating_sub(2)))
        .map(|line| format!(" {line}"))
        .collect()
}

/// A line in pieces of at most `width` characters, broken at blanks if possible; later pieces are
/// indented.
fn folded(line: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let indent = (line.len() - line.trim_start().len() + 2).min(width / 2);
    let (mut pieces, mut rest) = (Vec::new(), line.to_owned());
    while let Some((end, _)) = rest.char_indices().nth(width) {
        let blank = rest[..end].rfind(' ').filter(|&at| at > indent);
        let tail = rest.split_off(blank.unwrap_or(end));
        pieces.push(std::mem::replace(&mut rest, " ".repeat(indent) + tail.trim_start()));
    }
    pieces.push(rest);
    pieces
}

const HELP: &str = "\
Heading
  scheduled by  Linux, or a sched_ext scheduler; nearside prefers homes

Keys
  Up Down j k PgUp PgDn Home End  select, scroll
  Enter w     reasons for the domain's home (`nearside why`)
  s > <       sort by name, local share, debt, memory or CPU time
  r           reverse the order
  /           only names with a text in them; Esc shows all
  a           other cgroups, too, from the next sample on
  p Space     pause, continue
  Tab         to the nodes if they do not all fit, and back
  q Ctrl-C    quit; Ctrl-Z suspends

Nodes
  busy        busy share of the node's CPUs, for any process
  memory      | used  : reclaimable, mostly page cache; blank: free
  available   memory for new claims (details: `nearside stat`)
  vCPUs/CPUs  claimed/online

Domains
  home        its home nodes; none if Nearside did not start it
  local       local share: probability that a memory access is local
  debt        own memory that lies off the home
  memory      resident memory; on wide terminals resident/claimed
  CPU         CPU time during the sample, in percent of one CPU
  status      status in the control loop, if the daemon runs; Enter explains
  threads at  threads by node, including helpers, as in 0:2 3:1
  memory at   own memory by node, as in 0:512M 3:1.5G
";
