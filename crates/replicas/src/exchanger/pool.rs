//! Threads that wait for work.
//!
//! To start a thread takes the lock of the address space, and so do its first steps and its end.
//! Threads that start at the same time wait for each other there: eight took 1.5 ms. A writer waits
//! for what these threads do, so they are started before it comes.

use std::{
    hint::black_box,
    io,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

/// Work for one thread.
type Job = Box<dyn FnOnce() + Send>;

/// A thread touches so many bytes of its stack, and of other memory, before its job comes: a job
/// hardly needs more.
const WARM_BYTES: usize = 32 << 10;

/// Threads, each of which does one job and ends: the kernel releases what a thread traces when it
/// ends.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Mutex<Vec<mpsc::Sender<Job>>>,
    size: usize,
}

impl Pool {
    /// One that keeps so many threads ready, from the next [`fill`](Self::fill) on.
    pub(super) fn of(size: usize) -> Self {
        Self { idle: Mutex::default(), size }
    }

    /// Starts threads for those that have got a job. They are as urgent as this one.
    pub(super) fn fill(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while idle.len() < self.size {
            let (send, jobs) = mpsc::channel();
            if thread::Builder::new().spawn(move || wait_and_do(&jobs)).is_err() {
                // The next jobs have threads of their own, if there is memory by then.
                break;
            }
            idle.push(send);
        }
    }

    /// Has a thread do a job.
    ///
    /// # Errors
    /// If none is ready, and there is no memory for another one.
    pub(super) fn start(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let ready = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut job: Job = Box::new(job);
        if let Some(ready) = ready {
            match ready.send(job) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(returned)) => job = returned,
            }
        }
        thread::Builder::new().spawn(job).map(drop)
    }
}

fn wait_and_do(jobs: &mpsc::Receiver<Job>) {
    black_box(&mut [0_u8; WARM_BYTES]);
    black_box(&mut vec![0_u8; WARM_BYTES]);
    if let Ok(job) = jobs.recv() {
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_job_has_a_thread_of_its_own_also_when_more_come_than_are_ready() {
        let pool = Pool::of(2);
        pool.fill();
        let (send, threads) = mpsc::channel();
        for _ in 0..4 {
            let send = send.clone();
            pool.start(move || send.send(thread::current().id()).unwrap()).unwrap();
        }
        drop(send);
        assert_eq!(threads.iter().map(|id| format!("{id:?}")).collect::<BTreeSet<_>>().len(), 4);
        assert_eq!(pool.idle.lock().unwrap().len(), 0);
        pool.fill();
        assert_eq!(pool.idle.lock().unwrap().len(), 2);
    }
}
