//! From a look to what the terminal shows.

use super::{
    state::{Pane, State},
    table::{Cell, Column, Mood, columns_of, widths, write, write_row},
};
use crate::printable::printable;
use crate::{
    domains::Domain,
    look::Look,
    report::{
        domain::{by_node, dash, local, memory_by_node, origin, stands, used_of_claim},
        stat::NodeStat,
        table::Side::{Left, Right},
        units::{count, short},
    },
};
use nearside_policy::total;
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Position, Rect, Size},
    style::{Modifier, Style},
};

/// From this width on, domains have more columns.
const WIDE: u16 = 110;

/// How many lines each part may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) nodes: usize,
    pub(super) domains: usize,
    /// Where an explanation is shown instead of both.
    pub(super) text: usize,
}

/// Heading, titles of two tables, a blank line between them.
const FIRM_LINES: usize = 4;

impl Room {
    pub(super) fn new(size: Size, state: &State, look: Option<&Look>) -> Self {
        let (nodes, domains) =
            look.map_or((0, 0), |look| (look.stat.nodes.len(), state.rows(look).len()));
        let around = usize::from(state.live) + usize::from(unseen(state, look).is_some());
        let height = usize::from(size.height);
        let left = height.saturating_sub(FIRM_LINES + around);
        // Nodes have a third, or more where domains need less.
        let nodes = nodes.min((left / 3).max(left.saturating_sub(domains.max(1))));
        Self { nodes, domains: left - nodes, text: height.saturating_sub(2 + around) }
    }
}

/// The frame as lines of text, as high as everything needs.
pub(crate) fn plain(state: &State, look: &Look, width: u16) -> String {
    let lines = FIRM_LINES + look.stat.nodes.len() + state.rows(look).len().max(1);
    let area = Rect::new(0, 0, width, u16::try_from(lines).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    draw_into(&mut buffer, state, Some(look));
    lines_of(&buffer)
}

/// What stands in a buffer, without the blanks at the end of lines.
pub(super) fn lines_of(buffer: &Buffer) -> String {
    let lines = buffer.content.chunks(usize::from(buffer.area.width.max(1)));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let (mut text, mut x) = (String::new(), 0);
        // What takes two columns has a cell behind it that is not shown.
        while let Some(cell) = cells.get(x) {
            text += cell.symbol();
            x += columns_of(cell.symbol()).max(1);
        }
        format!("{}\n", text.trim_end())
    };
    lines.map(line).collect()
}

/// Draws a frame; before the first look has ended there is none.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State, look: Option<&Look>) {
    draw_into(frame.buffer_mut(), state, look);
    if state.typing {
        let area = frame.area();
        let x = columns_of(&prompt(state)).min(usize::from(area.width.saturating_sub(1)));
        frame.set_cursor_position(Position::new(x as u16, area.bottom().saturating_sub(1)));
    }
}

fn draw_into(buffer: &mut Buffer, state: &State, look: Option<&Look>) {
    let area = buffer.area;
    let room = Room::new(area.as_size(), state, look);
    let mut page = Page { buffer, area, line: 0, colours: state.colours };
    heading(&mut page, state, look);
    if let Some(text) = unseen(state, look) {
        page.text(&text, Mood::Fair.style(state.colours).add_modifier(Modifier::BOLD));
    }
    match (&state.pane, look) {
        (Pane::Why { .. } | Pane::Help, _) => explanation(&mut page, state, look, room),
        (Pane::Domains | Pane::Nodes, Some(look)) => {
            nodes(&mut page, state, look, room);
            page.line += 1;
            domains(&mut page, state, look, room);
        }
        (Pane::Domains | Pane::Nodes, None) => {}
    }
    if state.live {
        page.line = area.height.saturating_sub(1);
        page.text(&footer(state), Style::new());
    }
}

/// Where the next line goes; lines that have no place are left out.
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

/// A line without its first column, where the selected one is marked.
fn inner(line: Rect) -> Rect {
    Rect { x: line.x.saturating_add(1), width: line.width.saturating_sub(1), ..line }
}

fn heading(page: &mut Page<'_>, state: &State, look: Option<&Look>) {
    let pace = match (state.live, state.wants().paused) {
        (false, _) => {
            look.map_or_else(String::new, |look| format!("over {} s", look.stat.interval_s))
        }
        (true, false) => format!("every {} s", state.interval.as_secs_f64()),
        (true, true) => "PAUSED".into(),
    };
    let line = page.next();
    let (width, taken) = (usize::from(line.width), columns_of(&pace));
    let text = look.map_or_else(|| "looking ...".into(), |look| summary(state, look));
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
fn summary(state: &State, look: &Look) -> String {
    let all = &look.stat.domains;
    let domains = all.iter().filter(|domain| domain.home.is_some()).count();
    let others = match all.len() - domains {
        others if state.all && look.all => format!(", {}", count(others, "other")),
        _ => String::new(),
    };
    let filter = match state.filter.is_empty() {
        true => String::new(),
        false => format!("; {} with \"{}\"", state.rows(look).len(), state.filter),
    };
    let cpus = look.stat.nodes.iter().map(|node| node.cpus).sum();
    let (nodes, cpus) = (count(look.stat.nodes.len(), "node"), count(cpus, "CPU"));
    let sort = state.sort.words(state.reversed);
    let scheduler = look.scheduler.as_deref().map_or_else(|| "Linux".into(), printable);
    format!(
        "{nodes}, {cpus}, {}{others}; {sort}{filter}; scheduled by {scheduler}",
        count(domains, "domain")
    )
}

/// What is wrong, in a line; whoever is no longer there to press `?` is told elsewhere.
fn unseen(state: &State, look: Option<&Look>) -> Option<String> {
    let all = troubles(state, look);
    let first = all.first().filter(|_| state.live)?;
    let more =
        if all.len() > 1 { format!("(? for {} more) ", all.len() - 1) } else { String::new() };
    Some(format!("! {more}{first}"))
}

fn troubles<'a>(state: &'a State, look: Option<&'a Look>) -> Vec<&'a String> {
    state.trouble.iter().chain(look.into_iter().flat_map(|look| &look.unseen)).collect()
}

/// `[||||::    ]`: shares of a whole, one after the other.
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

/// Of what is good while there is little of it.
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

fn nodes(page: &mut Page<'_>, state: &State, look: &Look, room: Room) {
    let all = &look.stat.nodes;
    // What the other columns and the gaps take at most is not for bars.
    let bars = (usize::from(page.area.width).saturating_sub(56) / 2).clamp(6, 40);
    let columns = [
        column("node", Right, 4),
        column("CPU", Left, bars + 2),
        column("busy", Right, 5),
        column("memory", Left, bars + 2),
        column("used/size", Right, 11),
        column("unclaimed", Right, 9),
        column("vCPUs/CPUs", Right, 10),
    ];
    let rows: Vec<Vec<Cell>> = all.iter().map(|node| node_row(node, look, bars)).collect();
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

fn node_row(node: &NodeStat, look: &Look, bars: usize) -> Vec<Cell> {
    let busy = busy_share(node, look);
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
        Cell::new(short(node.unclaimed_bytes)),
        Cell::new(format!("{}/{}", node.claimed_vcpus, node.cpus)),
    ]
}

/// How much of the time the CPUs of a node worked.
fn busy_share(node: &NodeStat, look: &Look) -> Option<f64> {
    let could_ns = node.cpus as f64 * look.stat.interval_s * 1e9;
    let busy_ns = *look.busy_ns.get(&node.node)? as f64;
    (could_ns > 0.0).then(|| (busy_ns / could_ns).min(1.0))
}

fn domains(page: &mut Page<'_>, state: &State, look: &Look, room: Room) {
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
    let running = Running::new(look, is_wide);
    if running.in_a_word {
        // As wide as its longest word.
        columns.push(column("stands", Left, 10));
    }
    if running.by_node {
        columns.push(cut_column("threads at"));
    }
    columns.push(cut_column("memory at"));
    let shown = state.rows(look);
    let rows: Vec<Vec<Cell>> =
        shown.iter().map(|domain| domain_row(domain, look, is_wide, running)).collect();
    let widths = widths(&columns, &rows, usize::from(page.area.width.saturating_sub(1)));
    page.title(&columns, &widths);
    if rows.is_empty() {
        page.text(&nothing(state, look), Style::new());
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

/// How it is told where a domain runs.
#[derive(Clone, Copy)]
struct Running {
    /// By what the daemon makes of it.
    in_a_word: bool,
    /// By the nodes that its threads are on.
    by_node: bool,
}

impl Running {
    /// On a narrow terminal there is no room for both, and the daemon knows better.
    fn new(look: &Look, is_wide: bool) -> Self {
        let is_told = look.stat.domains.iter().any(|domain| domain.standing.is_some());
        Self { in_a_word: is_told, by_node: is_wide || !is_told }
    }
}

fn domain_row(domain: &Domain, look: &Look, is_wide: bool, running: Running) -> Vec<Cell> {
    let mood = domain.local_share.map_or(Mood::Plain, closeness);
    let mut row = vec![
        Cell::new(printable(&domain.name)),
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
        Cell::new(cpus_used(domain, look)),
    ]);
    row.extend(running.in_a_word.then(|| Cell::new(stands(domain))));
    row.extend(running.by_node.then(|| Cell::new(by_node(&domain.usage.cpu.threads))));
    row.push(Cell::new(memory_by_node(domain)));
    row
}

/// What it holds; where there is room also of how much that was promised.
fn held(domain: &Domain, of_claim: bool) -> String {
    let used = used_of_claim(domain);
    match used.split_once('/') {
        Some((held, _)) if !of_claim => held.into(),
        _ => used,
    }
}

/// CPU time in percent of one CPU's.
fn cpus_used(domain: &Domain, look: &Look) -> String {
    let share = total(&domain.usage.cpu.time_ns) as f64 / 1e9 / look.stat.interval_s;
    dash(share.is_finite().then(|| format!("{:.0} %", share * 100.0)))
}

/// What to say where no domain is shown.
fn nothing(state: &State, look: &Look) -> String {
    let is_filtered = !State { filter: String::new(), ..state.clone() }.rows(look).is_empty();
    match (is_filtered, state.all, state.live) {
        (true, _, true) => format!(" no name has \"{}\" in it: Esc shows all", state.filter),
        (true, _, false) => format!(" no name has \"{}\" in it", state.filter),
        (false, true, _) if !look.all => " looking ...".into(),
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

fn explanation(page: &mut Page<'_>, state: &State, look: Option<&Look>, room: Room) {
    let lines = text(state, look);
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

/// The lines of what explains, as wide as the terminal is.
pub(super) fn text(state: &State, look: Option<&Look>) -> Vec<String> {
    let width = usize::from(state.size.width);
    let text = match &state.pane {
        Pane::Why { text: Some(text), .. } => text.clone(),
        Pane::Why { text: None, .. } => "looking ...".into(),
        Pane::Help | Pane::Domains | Pane::Nodes => {
            let troubles: String =
                troubles(state, look).iter().map(|trouble| format!("  {trouble}\n")).collect();
            if troubles.is_empty() { HELP.into() } else { format!("{HELP}\nNot seen\n{troubles}") }
        }
    };
    text.lines()
        .flat_map(|line| folded(line, width.saturating_sub(2)))
        .map(|line| format!(" {line}"))
        .collect()
}

/// A line in pieces of at most `width` characters, broken at blanks where there are any; what follows is indented.
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
  scheduled by  Linux itself, or a sched_ext scheduler; nearside is the one that prefers homes

Keys
  Up Down j k PgUp PgDn Home End  select, scroll
  Enter w     why the selected domain lives there, as `nearside why` tells
  s > <       sort by name, local share, debt, memory or CPU time
  r           the other way round
  /           only names with a text in them; Esc shows all
  a           other cgroups, too, from the next look on
  p Space     stand still, go on
  Tab         to the nodes, where they do not all fit, and back
  q Ctrl-C    quit; Ctrl-Z suspends

Nodes
  busy        of the CPUs' time, whoever used it
  memory      | used  : can be reclaimed, the page cache mostly; blank: free
  unclaimed   what can still be promised (`nearside stat` adds it up)
  vCPUs/CPUs  promised/online

Domains
  home        the nodes it shall live on; none: Nearside did not start it
  local       local share: how likely an access of its CPUs to its memory is local
  debt        its own memory that lies off its home
  memory      what it holds; on wide terminals /what is promised to it
  CPU         CPU time during the look, in percent of one CPU
  stands      what the daemon makes of where it runs, where one runs; Enter says more
  threads at  threads by node, helpers included, as in 0:2 3:1
  memory at   its own memory by node, as in 0:512M 3:1.5G
";
