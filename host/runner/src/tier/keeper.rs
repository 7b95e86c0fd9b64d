//! The keeper of a tier's place: it takes jobs at once, has them done one by one on a thread that
//! may block, and says how each load ended, in time. When the place hangs it is given up.
//!
//! Bytes that are loaded are the other thread's until it hands them over; what it hands over too
//! late is dropped here, so nothing that was said to have failed comes after all.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tenon_engine::{BlockHash, BlockId};

use super::KvTier;
use super::queue::{Job, Queue};

/// What the keeper hears.
pub(super) enum Note {
    Jobs(Vec<Job>),
    /// The job that was being done is done.
    Done(Option<End>),
    /// The thread at the place ended; the place is closed, unless that panicked, too.
    Ended,
    Stop,
}

/// What the keeper says.
pub(super) enum End {
    Loaded(BlockId, BlockHash, Option<Vec<u8>>),
    StoreFailed(BlockHash),
    /// Whatever was there is lost. All that was begun has ended before.
    Broken,
}

/// The job that is being done.
struct Doing {
    since: Instant,
    // What is said when it does not come back.
    failure: Option<End>,
}

/// See the module's doc.
pub(super) struct Keeper {
    queue: Queue,
    notes: Receiver<Note>,
    // At most one job is in there; none: the place is given up.
    place: Option<Sender<Job>>,
    ends: Sender<End>,
    doing: Option<Doing>,
    timeout: Duration,
}

impl Keeper {
    /// Starts the thread at the place. A job that takes longer than `timeout` is the last one.
    pub fn new(
        tier: Box<dyn KvTier>,
        (notes, inbox): (Sender<Note>, Receiver<Note>),
        ends: Sender<End>,
        max_bytes: usize,
        timeout: Duration,
    ) -> std::io::Result<Keeper> {
        let (place, jobs) = channel();
        let work = move || work_at(tier, jobs, notes);
        std::thread::Builder::new().name("tenon-kv-place".into()).spawn(work)?;
        let queue = Queue::new(max_bytes);
        Ok(Keeper { queue, notes: inbox, place: Some(place), ends, doing: None, timeout })
    }

    /// Until it is told to stop.
    pub fn run(mut self) {
        loop {
            self.begin_next();
            match self.hear() {
                Ok(Note::Jobs(jobs)) => self.take(jobs),
                // One that comes too late was said to have failed.
                Ok(Note::Done(end)) => {
                    if self.doing.take().is_some() {
                        self.say(end);
                    }
                }
                Ok(Note::Ended) => self.give_up("its thread panicked"),
                Ok(Note::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.give_up("it does not answer"),
            }
        }
        self.close();
    }

    /// Lets the place be closed, if that comes to an end; else its thread is left behind.
    fn close(mut self) {
        if self.place.take().is_none() {
            return;
        }
        let until = Instant::now() + self.timeout;
        while let Ok(note) =
            self.notes.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if matches!(note, Note::Ended) {
                return;
            }
        }
        tracing::warn!("the place of the KV tier does not answer; it is left as it is");
    }

    fn hear(&self) -> Result<Note, RecvTimeoutError> {
        let Some(doing) = &self.doing else {
            return self.notes.recv().map_err(|_| RecvTimeoutError::Disconnected);
        };
        let until = doing.since + self.timeout;
        self.notes.recv_timeout(until.saturating_duration_since(Instant::now()))
    }

    fn take(&mut self, jobs: Vec<Job>) {
        for job in jobs {
            match job {
                job if self.place.is_none() => self.say(failure(&job)),
                // It is on its way there.
                Job::Load(block, hash, _) if self.queue.stored(hash).is_some() => {
                    let bytes = self.queue.stored(hash).map(<[u8]>::to_vec);
                    self.say(Some(End::Loaded(block, hash, bytes)));
                }
                job => self.queue.push(job),
            }
        }
        while let Some(hash) = self.queue.give_up() {
            self.say(Some(End::StoreFailed(hash)));
        }
    }

    fn begin_next(&mut self) {
        let Some(place) = &self.place else { return };
        if self.doing.is_some() {
            return;
        }
        let Some(job) = self.queue.pop() else { return };
        self.doing = Some(Doing { since: Instant::now(), failure: failure(&job) });
        // Its thread says itself that it ended.
        let _ = place.send(job);
    }

    /// Everything that is being done or waits has failed, and all that comes will.
    fn give_up(&mut self, why: &str) {
        if self.place.take().is_none() {
            return;
        }
        tracing::warn!(why, "the KV tier is given up; evicted blocks are computed again");
        let doing = self.doing.take().and_then(|doing| doing.failure);
        self.say(doing);
        while let Some(job) = self.queue.pop() {
            self.say(failure(&job));
        }
        self.say(Some(End::Broken));
    }

    fn say(&self, end: Option<End>) {
        if let Some(end) = end {
            // Nobody listens any more when the engine has ended.
            let _ = self.ends.send(end);
        }
    }
}

/// What is to be said of a job that failed.
pub(super) fn failure(job: &Job) -> Option<End> {
    match job {
        Job::Store(hash, _) => Some(End::StoreFailed(*hash)),
        Job::Load(block, hash, _) => Some(End::Loaded(*block, *hash, None)),
        Job::Remove(_) => None,
    }
}

/// The thread at the place.
fn work_at(tier: Box<dyn KvTier>, jobs: Receiver<Job>, notes: Sender<Note>) {
    /// Says so even when the thread panics.
    struct Farewell(Sender<Note>);
    impl Drop for Farewell {
        fn drop(&mut self) {
            let _ = self.0.send(Note::Ended);
        }
    }
    let farewell = Farewell(notes);
    // Dropped, and with it closed, before the farewell.
    let mut tier = tier;
    for job in jobs {
        let end = match job {
            Job::Remove(hash) => {
                tier.remove(hash.0);
                None
            }
            Job::Store(hash, bytes) => tier.store(hash.0, &bytes).err().map(|error| {
                tracing::warn!(%error, "a KV block could not be stored");
                End::StoreFailed(hash)
            }),
            Job::Load(block, hash, len) => {
                let mut bytes = vec![0; len];
                let loaded = tier.load(hash.0, &mut bytes);
                if let Err(error) = &loaded {
                    tracing::warn!(%error, "a KV block could not be loaded");
                    tier.remove(hash.0);
                }
                Some(End::Loaded(block, hash, loaded.ok().map(|()| bytes)))
            }
        };
        if farewell.0.send(Note::Done(end)).is_err() {
            return;
        }
    }
}
