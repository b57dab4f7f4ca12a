//! The answers to clients.

use super::{
    Replicator,
    connection::Asked,
    effects::{TOO_MANY_OPEN, leaves_descriptors, unbind},
    events::open_process,
    file::{Absent, Guest, Replicated, Wish, state_name},
    processes::not_listed,
    retry::{Looks, Retry},
};
use crate::{
    census::Census,
    error::Error,
    file_id::FileId,
    namespace::Namespace,
    original::{Original, Place},
    protocol::{Answer, CopyStatus, FileStatus, MAX_ANSWER_BYTES, Request},
    store::Store,
    watch::watch,
};
use nearside_linux::escape;
use nearside_policy::replication::{Bar, Event, Life, State, gain_percent, serving};
use nearside_topology::{NodeId, NodeSet};
use rustix::fs::inotify::WatchFlags;
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Instant,
};

/// Why the daemon does not change the copies of a file.
const OPERATORS: &str = "an operator has asked for its copies";

/// Attempts to stop a process that a client asks for. It waits for the outcome.
const ATTEMPTS: u32 = 8;

/// The events that a file is watched for: the last close of a writer, a truncation that breaks no
/// lease, and a replacement.
const OF_FILES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE_SELF);

impl Replicator {
    /// Answers a request.
    pub(super) fn answer(&mut self, asked: Asked) -> Answer {
        let refused = |why: &str| Answer::Refused { why: why.into() };
        match asked.request {
            Request::Add { place, nodes, ratio, automatic } => {
                let Some(file) = asked.file else { return refused("the request has no file") };
                if !leaves_descriptors(&file) {
                    return refused(TOO_MANY_OPEN);
                }
                let cpus: NodeSet = self.topology.cpus.iter().filter_map(|cpu| cpu.node).collect();
                let nodes = nodes.unwrap_or_else(|| cpus.clone());
                if !nodes.is_subset(&cpus) {
                    let others = nodes.difference(&cpus);
                    return refused(&format!("there is no CPU on {}", others.named()));
                }
                if nodes.is_empty() {
                    return refused("the set of nodes is empty");
                }
                self.add(&file, asked.process, Wish { place, nodes, ratio, automatic })
            }
            Request::Remove { path, automatic } => {
                let sent = asked.file.and_then(|file| FileId::of(&file).ok());
                let is_it = |(id, file): (&FileId, &Replicated)| {
                    (Some(*id) == sent || file.wish.place.on_host() == path).then_some(*id)
                };
                let Some(id) = self.files.iter().find_map(is_it) else {
                    if !automatic && self.forget_absent(&Place { image: None, path }) {
                        return Answer::Done;
                    }
                    return refused("it has no copies, and none were asked for");
                };
                if automatic && self.files.get(&id).is_some_and(|it| !it.wish.automatic) {
                    return refused(OPERATORS);
                }
                self.give_up(id);
                Answer::Done
            }
            Request::Join { node } => match self.join(asked.process, node, None, false) {
                Ok(namespace) => {
                    let guest = self.guests.get(&namespace);
                    Answer::Joined { copies: guest.map_or(0, |guest| guest.mounts.len()) }
                }
                Err(why) => Answer::Refused { why },
            },
            Request::Attach { process, node, future_root } => {
                match self.join(process, node, future_root, true) {
                    Ok(namespace) => match self.attach_processes(namespace, None, ATTEMPTS) {
                        Ok(attached) => Answer::Attached(attached),
                        Err(why) => Answer::Refused { why },
                    },
                    Err(why) => Answer::Refused { why },
                }
            }
            Request::MakeRoom { nodes, bytes } => {
                Answer::Room { freed_bytes: self.make_room(&nodes, bytes) }
            }
            Request::Status { from } => self.status(from),
        }
    }

    fn add(&mut self, file: &OwnedFd, client: u32, wish: Wish) -> Answer {
        match self.original(file, Some(client), &wish.place) {
            Ok(Ok(original)) if original.is_empty() && !self.files.contains_key(&original.id) => {
                Answer::Barred { bar: Bar::Empty }
            }
            Ok(Ok(original)) => {
                self.end_replaced_at(&wish.place);
                self.add_original(original, wish)
            }
            Ok(Err(bar)) => Answer::Barred { bar },
            Err(error) => Answer::Refused { why: error.to_string() },
        }
    }

    /// Ends the copies of files whose place another one has taken. A barred one is not watched, so
    /// nothing else tells before the next look at all places.
    fn end_replaced_at(&mut self, place: &Place) {
        let there = self.files.iter().filter(|(_, file)| file.original.place == *place);
        for id in there.map(|(id, _)| *id).collect::<Vec<_>>() {
            if self.is_replaced(id) {
                self.take(id, Event::Replaced);
            }
        }
    }

    fn original(
        &self,
        file: &OwnedFd,
        client: Option<u32>,
        place: &Place,
    ) -> Result<Result<Original, Bar>, Error> {
        Original::open(file, client, place, |path, id| self.visitor.detached(path, id))
    }

    fn add_original(&mut self, original: Original, wish: Wish) -> Answer {
        let id = original.id;
        if self.stores.iter().any(|store| store.device() == id.device) {
            return Answer::Refused { why: "it is a copy: name the original".into() };
        }
        let serving = serving(&wish.nodes, wish.ratio, &self.topology);
        let copies: NodeSet = serving.values().copied().collect();
        if copies.is_empty() {
            return Answer::Refused { why: "no node has memory for a copy".into() };
        }
        self.follow(id, &wish.place);
        if let Some(known) = self.files.get(&id) {
            if wish.automatic && !known.wish.automatic {
                return Answer::Refused { why: OPERATORS.into() };
            }
            if known.original.place != wish.place {
                let first = escape::text(known.original.place.on_host());
                let why =
                    format!("it is another name of {first}, and a file has copies by one name");
                return Answer::Refused { why };
            }
            self.forget_absent(&wish.place);
            if let Some(known) = self.files.get_mut(&id) {
                (known.wish, known.serving) = (wish, serving);
            }
        } else {
            let watch = match watch(&self.changes, &original.file, OF_FILES) {
                Ok(watch) => watch,
                Err(bar) => return Answer::Barred { bar },
            };
            self.forget_absent(&wish.place);
            let file = Replicated {
                original,
                life: Life::default(),
                wish,
                serving,
                copies: BTreeMap::new(),
                jobs: BTreeMap::new(),
                has_new_attributes: false,
                watch,
                retry: Retry::of_lease(),
                layer_watches: BTreeSet::new(),
                collapses: 0,
            };
            self.files.insert(id, file);
        }
        self.take(id, Event::Want(copies));
        self.rebind(id);
        match self.files.get(&id).map(|file| file.life.state()) {
            Some(State::Barred(bar)) => Answer::Barred { bar: bar.clone() },
            _ => Answer::Done,
        }
    }

    /// Notes that a file lies at another place now, if it has left its former one. Another file may
    /// come there.
    fn follow(&mut self, id: FileId, place: &Place) {
        let Some(known) = self.files.get_mut(&id) else { return };
        if known.original.place == *place {
            return;
        }
        let there = self.visitor.file_on_host(&known.original.place.on_host());
        if there.is_err() || there.is_ok_and(|there| there == Some(id)) {
            return;
        }
        if !known.wish.nodes.is_empty() {
            self.absent.push(Absent::new(known.wish.clone(), Instant::now()));
        }
        known.original.place.clone_from(place);
        known.wish.place.clone_from(place);
        // Its mounts have moved with it, or have gone with its former name.
        let mut unbound = Vec::new();
        for (namespace, guest) in &mut self.guests {
            if guest.mounts.contains_key(&id) {
                unbind(&self.visitor, guest, &known.original);
                unbound.push(*namespace);
            }
        }
        self.rebind(id);
        unbound.into_iter().for_each(|namespace| self.give_names_back(namespace));
    }

    /// Ends all copies of a file. What lies at its place later gets none.
    pub(super) fn give_up(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.wish.nodes = NodeSet::new();
        }
        self.take(id, Event::Want(NodeSet::new()));
    }

    /// After a package upgrade: the file now at the path gets copies as its predecessor had. Says
    /// whether there is one.
    pub(super) fn add_in_place(&mut self, wish: &Wish) -> bool {
        let Some(file) = self.visitor.open_on_host(&wish.place.on_host()) else { return false };
        let Ok(Ok(original)) = self.original(&file, None, &wish.place) else { return false };
        let id = original.id;
        // A barred one has no copies, as `status` shows. An empty one waits for its content.
        let _ = self.add_original(original, wish.clone());
        self.files.get(&id).is_some_and(|file| file.original.place == wish.place)
    }

    /// Makes the mount namespace of a process one that gets the copies of a node, and binds them.
    fn join(
        &mut self,
        process: u32,
        node: NodeId,
        future_root: Option<PathBuf>,
        running: bool,
    ) -> Result<FileId, String> {
        if self.topology.node(node).is_none() {
            let known: NodeSet = self.topology.nodes.iter().map(|node| node.id).collect();
            return Err(format!("there is no node {node}: this machine has {}", known.named()));
        }
        let handle = open_process(process).ok_or_else(|| format!("process {process} has ended"))?;
        if !leaves_descriptors(&handle) {
            return Err(TOO_MANY_OPEN.into());
        }
        let census = Census::take().map_err(not_listed)?;
        let namespace = Namespace::of(process).map_err(|error| error.to_string())?;
        let host = Namespace::of(1).map(|host| host.id());
        if host.is_ok_and(|host| host == namespace.id()) {
            return Err(format!(
                "process {process} is in the host's mount namespace, whose files all others would \
                 see changed: start it with nearside run, or its service with PrivateMounts=yes"
            ));
        }
        let id = namespace.id();
        if id == self.visitor.home() {
            return Err(format!("process {process} is the replicator, or a part of it"));
        }
        let mut guest = Guest {
            namespace,
            node,
            future_root,
            process: handle,
            running,
            left: BTreeSet::new(),
            retry: Retry::of_processes(),
            manager_looks: Looks::default(),
            managers: BTreeMap::new(),
            mounts: BTreeMap::new(),
        };
        if let Some(managers) = &self.managers {
            let root = guest.future_root.as_deref();
            let watched = managers.watch(&self.visitor, &guest.namespace, root);
            watched.map_err(|error| error.to_string())?;
        }
        if let Some(former) = self.guests.get(&id).filter(|former| former.node != node) {
            // Copies of another node give way.
            let mounts: Vec<_> = former.mounts.values().map(|it| it.mount.as_fd()).collect();
            let unbound = self.visitor.unbind(&former.namespace, &mounts);
            unbound.map_err(|error| error.to_string())?;
        }
        if !self.guests.contains_key(&id) {
            self.clear_others(&guest);
        }
        let mut has_moved = false;
        if let Some(former) = self.guests.remove(&id) {
            has_moved = former.node != node;
            guest.running |= former.running;
            (guest.managers, guest.left, guest.retry) =
                (former.managers, former.left, former.retry);
            if !has_moved {
                guest.mounts = former.mounts;
            }
        }
        Self::find_managers(&mut guest, census.processes(id));
        self.guests.insert(id, guest);
        self.bind_all(id);
        if has_moved {
            self.give_names_back(id);
        }
        Ok(id)
    }

    /// Takes the copies of other nodes out of a namespace that has them since it was made from a
    /// domain's. They would be in the way of its own.
    fn clear_others(&self, guest: &Guest) {
        let own = self.store(guest.node).map(Store::device);
        let mounts = self.visitor.copies_in(&guest.namespace);
        for mount in mounts.iter().filter(|mount| Some(mount.device) != own) {
            let unbound = self.visitor.unbind_at(&guest.namespace, &mount.point, mount.device);
            if let Err(error) = unbound {
                log!("{}: {error}", escape::text(&mount.point));
            }
        }
    }

    fn status(&self, from: usize) -> Answer {
        let users = self.users();
        let files = self.files.values().map(|file| (&file.wish, Some(file)));
        let absent_ones = self.absent.iter().map(|absent| (&absent.wish, None));
        let mut sorted: Vec<_> = files.chain(absent_ones).collect();
        sorted.sort_by_key(|(wish, _)| &wish.place);
        let mut kept_bytes = BTreeMap::new();
        for remains in self.remains.iter().filter(|it| it.is_held()) {
            *kept_bytes.entry(remains.node).or_default() += remains.bytes;
        }
        let mut files = Vec::new();
        let mut room_bytes = MAX_ANSWER_BYTES - 1024;
        for (at, (wish, file)) in (0..).zip(sorted).skip(from) {
            let status = file.map_or_else(|| absent(wish), |file| self.status_of(file, &users));
            let length = serde_json::to_vec(&status).map_or(0, |text| text.len() + 1);
            if length > room_bytes && !files.is_empty() {
                return Answer::Status { files, next: Some(at), kept_bytes: BTreeMap::new() };
            }
            room_bytes = room_bytes.saturating_sub(length);
            files.push(status);
        }
        Answer::Status { files, next: None, kept_bytes }
    }

    fn status_of(&self, file: &Replicated, users: &BTreeMap<FileId, u32>) -> FileStatus {
        let id = file.original.id;
        let copy = |(node, copy): (&NodeId, &crate::store::Copy)| {
            let bound = self.guests.values().filter_map(|guest| guest.mounts.get(&id));
            let namespaces = bound.filter(|mount| mount.copy == *node).count();
            let status = CopyStatus {
                bytes: copy.bytes,
                users: users.get(&copy.id).copied().unwrap_or(0),
                namespaces: u32::try_from(namespaces).unwrap_or(u32::MAX),
            };
            (*node, status)
        };
        let gain = |(node, serving): (&NodeId, &NodeId)| {
            let pages = &file.copies.get(serving)?.original_pages;
            Some((*node, gain_percent(*node, pages, *serving, &self.topology.distances)?))
        };
        let why = match file.life.state() {
            State::Barred(bar) => Some(bar.to_string()),
            State::Candidate if file.original.is_empty() => Some("it is empty".into()),
            State::Candidate if file.life.has_writer() => Some("it is open for writing".into()),
            _ => None,
        };
        FileStatus {
            place: file.wish.place.clone(),
            bytes: file.original.version.bytes,
            state: state_name(file.life.state()).into(),
            why,
            copies: file.copies.iter().map(copy).collect(),
            serving: file.serving.clone(),
            gain_percent: file.serving.iter().filter_map(gain).collect(),
            refused: file.life.refused().iter().cloned().collect(),
            collapses: file.collapses,
            automatic: file.wish.automatic,
        }
    }
}

/// The report of a file that is not in its place.
fn absent(wish: &Wish) -> FileStatus {
    FileStatus {
        place: wish.place.clone(),
        bytes: 0,
        state: state_name(&State::Candidate).into(),
        why: Some("no file at its place can have copies".into()),
        copies: BTreeMap::new(),
        serving: BTreeMap::new(),
        gain_percent: BTreeMap::new(),
        refused: BTreeMap::new(),
        collapses: 0,
        automatic: wish.automatic,
    }
}
