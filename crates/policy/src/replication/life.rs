//! The life of a file and its copies.

use super::Bar;
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};

/// The state of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No copy exists. It gets copies if nodes are wanted and no writer has it open.
    Candidate,
    /// The lease is held, and copies are being made.
    Copying,
    /// The lease is held, and all copies that can be made are in use.
    Replicated,
    /// The lease is being broken: copies are going, and the writer waits.
    Collapsing,
    /// It cannot have copies. Another [`Event::Want`] makes it try again, and other attributes do
    /// if an attribute was the reason.
    Barred(Bar),
}

/// Why one node has no copy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyRefusal {
    /// Its memory is needed otherwise, or the budget for copies is spent.
    #[error("no room: {0}")]
    NoRoom(String),
    /// The kernel placed the copy on other nodes.
    #[error("only {local_percent} % of the copy lie there")]
    NotLocal {
        /// The share of its bytes on the node.
        local_percent: u8,
    },
    /// Its file got attributes that the copy could not follow.
    #[error("{0}")]
    Unfit(String),
    /// Reading, writing or binding failed.
    #[error("{0}")]
    Failed(String),
}

impl CopyRefusal {
    /// Whether the copy can be made once there is more memory. The kernel places pages elsewhere
    /// where a node has none left.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom(_) | Self::NotLocal { .. })
    }
}

/// An event in the life of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// These nodes shall have a copy, and no others.
    Want(NodeSet),
    /// The lease was granted.
    Leased,
    /// The lease was refused, since a writer has the file open, or has emptied it.
    BusyWriter,
    /// The file cannot have copies.
    Barred(Bar),
    /// The copy of a node is complete, checked and in use.
    Copied(NodeId),
    /// The copy of a node was not made, and left nothing behind.
    NotCopied(NodeId, CopyRefusal),
    /// Someone opens the file for writing, or truncates it, and waits for the lease.
    Writer,
    /// The last effect of a collapse is done, and the lease is released.
    Collapsed,
    /// A writer has closed the file.
    WriterClosed,
    /// Memory is short on a node: its copy has to go, or is not made.
    Short(NodeId),
    /// The copy of a node cannot have the attributes of its file, for this reason: it has to go.
    Unfit(NodeId, String),
    /// The file has other attributes: copies may have those.
    Attributes,
    /// A node that had no room for a copy has some.
    Room(NodeId),
    /// The path names another file now, or none.
    Replaced,
}

/// An order to the helper. Effects of one step are carried out in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Take the read lease; answer [`Event::Leased`], [`Event::BusyWriter`] or [`Event::Barred`].
    TakeLease,
    /// Copy the file to a node and bind it there; answer [`Event::Copied`] or
    /// [`Event::NotCopied`].
    Copy(NodeId),
    /// Withdraw the copy of a node: stop making it, unbind it, give mapped text back to the
    /// original, remove it.
    Withdraw(NodeId),
    /// Stop copying, withdraw all copies, and release the lease, in this order; answer
    /// [`Event::Collapsed`].
    Collapse,
    /// Release the lease. No copy exists.
    ReleaseLease,
    /// The file has no life any more: forget it.
    Forget,
}

/// A file's life: its state, the nodes that want a copy and those that have one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    state: State,
    wanted: NodeSet,
    copied: NodeSet,
    /// Nodes whose copies are being made.
    copying: NodeSet,
    /// Wanted nodes without a copy, each with the reason. A barred file has one for all.
    refused: Vec<(NodeId, CopyRefusal)>,
    /// Whether a writer was seen and has not closed the file yet.
    writer: bool,
    /// Whether the path names another file.
    replaced: bool,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            state: State::Candidate,
            wanted: NodeSet::new(),
            copied: NodeSet::new(),
            copying: NodeSet::new(),
            refused: Vec::new(),
            writer: false,
            replaced: false,
        }
    }
}

impl Life {
    /// Its state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The nodes that shall have a copy.
    pub fn wanted(&self) -> &NodeSet {
        &self.wanted
    }

    /// The nodes whose copy is in use.
    pub fn copied(&self) -> &NodeSet {
        &self.copied
    }

    /// The nodes that want a copy and cannot have one, each with the reason.
    pub fn refused(&self) -> &[(NodeId, CopyRefusal)] {
        &self.refused
    }

    /// Whether a writer keeps the file from having copies.
    pub fn has_writer(&self) -> bool {
        self.writer
    }

    /// Whether the helper holds the lease.
    pub fn is_leased(&self) -> bool {
        matches!(self.state, State::Copying | State::Replicated | State::Collapsing)
    }

    /// Takes an event, and returns what is to be done. An event that a state does not expect (an
    /// answer that a collapse has overtaken) changes nothing.
    pub fn take(&mut self, event: Event) -> Vec<Effect> {
        match (&self.state, event) {
            (State::Barred(_), Event::Want(nodes)) if nodes.is_empty() => vec![Effect::Forget],
            (State::Barred(_), Event::Replaced) => vec![Effect::Forget],
            // Its cause may have gone.
            (State::Barred(_), Event::Want(nodes)) => {
                self.state = State::Candidate;
                self.want(nodes)
            }
            (State::Barred(Bar::Attribute { .. }), Event::Attributes) => {
                self.state = State::Candidate;
                self.lease_if_wanted()
            }
            (State::Barred(_), _) => vec![],
            (_, Event::Want(nodes)) => self.want(nodes),
            (State::Candidate, Event::Leased) => {
                self.state = State::Copying;
                let full = self.refused.iter().filter(|(_, why)| why.is_no_room());
                let full: NodeSet = full.map(|(node, _)| *node).collect();
                let mut effects = self.copy(self.wanted.difference(&full));
                if effects.is_empty() {
                    effects = self.end_lease();
                }
                effects
            }
            (State::Candidate, Event::BusyWriter) => {
                self.writer = true;
                vec![]
            }
            (State::Candidate, Event::Barred(bar)) => {
                self.refused.clear();
                self.state = State::Barred(bar);
                vec![]
            }
            // A bar that shows while copying (an attribute that a copy cannot have).
            (State::Copying, Event::Barred(bar)) => {
                let effects = self.end_lease();
                self.refused.clear();
                self.state = State::Barred(bar);
                effects
            }
            (State::Candidate, Event::WriterClosed) => {
                self.writer = false;
                self.lease_if_wanted()
            }
            (State::Copying, Event::Copied(node)) if self.copying.remove(node) => {
                self.copied.insert(node);
                self.copied_all()
            }
            (State::Copying, Event::NotCopied(node, why)) if self.copying.remove(node) => {
                self.refused.push((node, why));
                self.copied_all()
            }
            (State::Copying | State::Replicated, Event::Writer) => {
                self.writer = true;
                self.collapse()
            }
            (State::Copying | State::Replicated, Event::Replaced) => {
                self.replaced = true;
                self.collapse()
            }
            (State::Collapsing, Event::Replaced) => {
                self.replaced = true;
                vec![]
            }
            (State::Candidate, Event::Replaced) => vec![Effect::Forget],
            (State::Collapsing, Event::WriterClosed) => {
                self.writer = false;
                vec![]
            }
            (State::Collapsing, Event::Collapsed) => {
                self.state = State::Candidate;
                match self.replaced || self.wanted.is_empty() {
                    true => vec![Effect::Forget],
                    false if self.writer => vec![],
                    false => self.lease_if_wanted(),
                }
            }
            (State::Copying | State::Replicated, Event::Short(node)) => {
                self.lose(node, CopyRefusal::NoRoom("memory is short there".into()))
            }
            (State::Copying | State::Replicated, Event::Unfit(node, why)) => {
                self.lose(node, CopyRefusal::Unfit(why))
            }
            (_, Event::Room(node)) => self.again(|at, why| at == node && why.is_no_room()),
            (_, Event::Attributes) => self.again(|_, why| matches!(why, CopyRefusal::Unfit(_))),
            _ => vec![],
        }
    }

    fn want(&mut self, nodes: NodeSet) -> Vec<Effect> {
        self.wanted = nodes;
        self.refused.clear();
        match self.state {
            State::Candidate if self.wanted.is_empty() => vec![Effect::Forget],
            State::Candidate if self.writer => vec![],
            State::Candidate => self.lease_if_wanted(),
            State::Copying | State::Replicated if self.wanted.is_empty() => self.collapse(),
            State::Copying | State::Replicated => {
                let mut effects = Vec::new();
                for node in self.copied.difference(&self.wanted).iter() {
                    self.copied.remove(node);
                    effects.push(Effect::Withdraw(node));
                }
                let present = self.copied.union(&self.copying);
                let missing = self.wanted.difference(&present);
                if !missing.is_empty() {
                    self.state = State::Copying;
                    effects.extend(self.copy(missing));
                }
                effects
            }
            State::Collapsing | State::Barred(_) => vec![],
        }
    }

    fn lease_if_wanted(&self) -> Vec<Effect> {
        match self.wanted.is_empty() {
            true => vec![],
            false => vec![Effect::TakeLease],
        }
    }

    fn copy(&mut self, nodes: NodeSet) -> Vec<Effect> {
        self.copying = self.copying.union(&nodes);
        self.refused.retain(|(node, _)| !nodes.contains(*node));
        nodes.iter().map(Effect::Copy).collect()
    }

    /// After the answer to a copy: withdraws copies that are no longer wanted, and ends the state
    /// once all answers are there.
    fn copied_all(&mut self) -> Vec<Effect> {
        if !self.copying.is_empty() {
            return vec![];
        }
        let mut effects = Vec::new();
        for node in self.copied.difference(&self.wanted).iter() {
            self.copied.remove(node);
            effects.push(Effect::Withdraw(node));
        }
        match self.copied.is_empty() {
            true => effects.extend(self.end_lease()),
            false => self.state = State::Replicated,
        }
        effects
    }

    fn collapse(&mut self) -> Vec<Effect> {
        self.state = State::Collapsing;
        self.copied = NodeSet::new();
        self.copying = NodeSet::new();
        vec![Effect::Collapse]
    }

    /// Gives the lease back while copies go one by one.
    fn end_lease(&mut self) -> Vec<Effect> {
        let present = self.copied.union(&self.copying);
        let mut effects: Vec<_> = present.iter().map(Effect::Withdraw).collect();
        self.copied = NodeSet::new();
        self.copying = NodeSet::new();
        self.state = State::Candidate;
        effects.push(Effect::ReleaseLease);
        effects
    }

    /// Tries again for nodes whose refusals have lost their cause.
    fn again(&mut self, is_gone: impl Fn(NodeId, &CopyRefusal) -> bool) -> Vec<Effect> {
        let gone = self.refused.iter().filter(|(node, why)| is_gone(*node, why));
        let nodes: NodeSet = gone.map(|(node, _)| *node).collect();
        self.refused.retain(|(node, _)| !nodes.contains(*node));
        let nodes = nodes.intersection(&self.wanted);
        if nodes.is_empty() {
            return vec![];
        }
        match self.state {
            State::Candidate if !self.writer => self.lease_if_wanted(),
            State::Copying | State::Replicated => {
                self.state = State::Copying;
                self.copy(nodes)
            }
            State::Candidate | State::Collapsing | State::Barred(_) => vec![],
        }
    }

    fn lose(&mut self, node: NodeId, why: CopyRefusal) -> Vec<Effect> {
        let was_made = self.copying.remove(node);
        if !was_made && !self.copied.remove(node) {
            return vec![];
        }
        self.refused.push((node, why));
        let mut effects = vec![Effect::Withdraw(node)];
        match self.copied.is_empty() && self.copying.is_empty() {
            true => effects.extend(self.end_lease()),
            false if was_made => effects.extend(self.copied_all()),
            false => {}
        }
        effects
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "life_table.rs"]
mod table;
