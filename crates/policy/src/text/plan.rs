//! The orders of one look.

use super::{Candidate, FileId, Run, TextFile, TextHistory, Verdict, spread::Layout, verdict};
use crate::{ByNode, replication::NodeMemory};
use nearside_topology::{NodeId, NodeSet};
use std::{cmp::Reverse, collections::BTreeMap, fmt};

/// A text is in place if at most this share of it is elsewhere: 1/100.
const TOLERANCE_DIVISOR: u64 = 100;

/// The means of a look.
#[derive(Debug, Clone)]
pub struct Turn<'a> {
    /// The number of the look.
    pub look: u64,
    /// The memory of each node that text may move to, with what claims leave of it.
    pub memory: &'a BTreeMap<NodeId, NodeMemory>,
    /// The most bytes to move, in whole pages.
    pub budget_bytes: u64,
}

/// Pages of one file that move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The file.
    pub file: FileId,
    /// The nodes that all of it belongs on.
    pub to: NodeSet,
    /// The pages by offset with the node they lie on, and the node they belong on.
    pub pages: Vec<(Run, NodeId)>,
    /// Bytes of the file that lie where they belong already.
    pub there_bytes: u64,
}

impl Order {
    /// Bytes to move.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(|(run, _)| run.bytes()).fold(0, u64::saturating_add)
    }
}

/// A file and what keeps it from its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    /// The file.
    pub file: FileId,
    /// Its path, as a process of a domain sees it.
    pub path: String,
    /// Its text by node, in bytes.
    pub bytes: ByNode,
    /// The domains that execute it.
    pub domains: Vec<String>,
    /// The nodes it belongs on, if all its users agree.
    pub nodes: Option<NodeSet>,
    /// Bytes that lie off these; of a file that several nodes execute, as
    /// [`Candidate::off_home_bytes`].
    pub off_home_bytes: u64,
    /// The state.
    pub state: TextState,
}

/// How far a text is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextState {
    /// It lies where it belongs.
    InPlace,
    /// Its pages move now.
    Moving,
    /// It has belonged there for one look only.
    Unconfirmed,
    /// It came back, or did not move, or its place changes too often.
    Resting {
        /// Looks until it is tried again.
        looks: u64,
    },
    /// The nodes have no room for it.
    NoRoom,
    /// Copies would pay.
    CopiesPay,
    /// Several nodes execute it, and no domain would use a copy.
    Shared,
    /// A domain that executes it has no home yet.
    NoHome,
}

impl fmt::Display for TextState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InPlace => f.write_str("it lies where it is executed"),
            Self::Moving => f.write_str("it moves to where it is executed"),
            Self::Unconfirmed => f.write_str("it moves if the next look finds the same"),
            Self::Resting { looks } => {
                write!(f, "it did not stay where it was moved to: left alone for {looks} looks")
            }
            Self::NoRoom => f.write_str("there is no room where it is executed"),
            Self::CopiesPay => f.write_str("several nodes execute it: copies would pay"),
            Self::Shared => f.write_str("several nodes execute it, and none alone is a home"),
            Self::NoHome => f.write_str("a domain that executes it has no home yet"),
        }
    }
}

/// The decisions of a look.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPlan {
    /// The pages to move, most first.
    pub orders: Vec<Order>,
    /// The files that would pay copies, most bytes off their homes first.
    pub candidates: Vec<Candidate>,
    /// All files in the order of the input.
    pub files: Vec<FileState>,
    /// Whether the budget left pages to another look.
    pub is_cut: bool,
}

/// Decides about all `files` of a look. Text moves to the nodes of all its users, if it has
/// belonged there for two looks and the nodes have room.
pub fn plan(files: &[TextFile], turn: &Turn<'_>, history: &TextHistory) -> (TextPlan, TextHistory) {
    let (mut plan, mut history) = (TextPlan::default(), history.clone());
    let mut wanted = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let bytes = file.bytes();
        let known = history.of(file.id);
        let mut state = FileState {
            file: file.id,
            path: file.path.clone(),
            domains: file.users.keys().cloned().collect(),
            nodes: None,
            off_home_bytes: 0,
            state: TextState::InPlace,
            bytes,
        };
        let verdict = verdict(file);
        if let Verdict::Near(nodes) = &verdict
            && let Some(order) = order(file, nodes)
        {
            let (there, off) = (order.there_bytes, order.bytes());
            known.belongs_on(nodes, turn.look, there, off);
            state.nodes = Some(nodes.clone());
            state.off_home_bytes = off;
            state.state = match known.rest_looks(turn.look) {
                _ if off <= there.saturating_add(off) / TOLERANCE_DIVISOR => TextState::InPlace,
                _ if !known.is_confirmed() => TextState::Unconfirmed,
                0 => TextState::Moving,
                looks => TextState::Resting { looks },
            };
            if state.state == TextState::Moving {
                wanted.push((Reverse(off), at, order));
            }
        } else {
            known.belongs_nowhere(turn.look);
            state.state = match verdict {
                Verdict::Copies(candidate) if candidate.off_home_bytes > 0 => {
                    state.off_home_bytes = candidate.off_home_bytes;
                    plan.candidates.push(candidate);
                    TextState::CopiesPay
                }
                Verdict::Copies(_) => TextState::InPlace,
                Verdict::Near(_) | Verdict::NoHome => TextState::NoHome,
                Verdict::Shared => TextState::Shared,
            };
        }
        plan.files.push(state);
    }
    plan.candidates
        .sort_by(|a, b| b.off_home_bytes.cmp(&a.off_home_bytes).then_with(|| a.path.cmp(&b.path)));
    wanted.sort_by_key(|(off, at, _)| (*off, *at));
    let mut room = Room { memory: turn.memory, taken: ByNode::new() };
    let mut left_bytes = turn.budget_bytes;
    for (_, at, mut order) in wanted {
        if !room.take(&order) {
            plan.files[at].state = TextState::NoRoom;
            continue;
        }
        plan.is_cut |= cut(&mut order.pages, &mut left_bytes);
        if !order.pages.is_empty() {
            plan.orders.push(order);
        }
    }
    history.forget_old(turn.look);
    (plan, history)
}

/// All pages of a file off the nodes it belongs on; none without nodes.
fn order(file: &TextFile, nodes: &NodeSet) -> Option<Order> {
    let layout = Layout::new(file, nodes)?;
    let pieces = file.runs.iter().flat_map(|run| layout.pieces(*run));
    let (there, pages): (Vec<_>, Vec<_>) = pieces.partition(|(run, node)| run.node == *node);
    let there_bytes = there.iter().map(|(run, _)| run.bytes()).fold(0, u64::saturating_add);
    Some(Order { file: file.id, to: nodes.clone(), pages, there_bytes })
}

/// The memory that the orders of a look take.
struct Room<'a> {
    memory: &'a BTreeMap<NodeId, NodeMemory>,
    taken: ByNode,
}

impl Room<'_> {
    /// Takes the memory of an order, if each of its nodes has it and keeps its reserve.
    fn take(&mut self, order: &Order) -> bool {
        let mut taken = self.taken.clone();
        for (run, node) in &order.pages {
            let of_node: &mut u64 = taken.entry(*node).or_default();
            *of_node = of_node.saturating_add(run.bytes());
        }
        let has_room = |(node, bytes): (&NodeId, &u64)| {
            self.memory.get(node).is_some_and(|memory| memory.has_room_for(*bytes))
        };
        let fits = taken.iter().filter(|(node, _)| order.to.contains(**node)).all(has_room);
        if fits {
            self.taken = taken;
        }
        fits
    }
}

/// Leaves as many pages as fit into the budget, and says whether some do not.
fn cut(pages: &mut Vec<(Run, NodeId)>, left_bytes: &mut u64) -> bool {
    let mut is_cut = false;
    pages.retain_mut(|(run, _)| {
        let bytes = run.bytes().min(*left_bytes);
        is_cut |= bytes < run.bytes();
        run.end = run.start + bytes;
        *left_bytes -= bytes;
        bytes > 0
    });
    is_cut
}
