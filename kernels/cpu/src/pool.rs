//! A persistent pool of threads for work of microseconds: one job at a time, cut into tasks.
//!
//! The thread that calls [`Pool::run`] is worker 0. Each worker has a share of consecutive tasks,
//! which it claims from the front, and when that is done takes tasks from the back of others'. So
//! memory is read in long runs, claims rarely meet, and a job ends when its tasks are done, not
//! when every worker has seen it: a worker that the system has put aside delays nobody. Idle
//! workers spin for a moment, then yield, then park, so that a busy machine is not made worse.
//! A pool of as many threads as the process may use CPUs gives each its own: left alone on a busy
//! machine, the scheduler may keep them all on one.
//!
//! Why it needs no lock:
//! - A job's pointers and `pending` are written before its shares, which are stored with release.
//!   A claim that succeeds has read such a share, or what claims made of it (a release sequence),
//!   with acquire: it sees the job of that share. A share from an earlier job cannot be claimed:
//!   all its tasks were, or that job would not have ended.
//! - Each worker takes what it did off `pending` with release after its last task; the caller reads
//!   0 with acquire, which these subtractions all precede in one release sequence: what tasks wrote
//!   is seen, and no pointer of the job is used any more. A worker that claims nothing reads none.
//! - A wake-up is not lost: the caller stores shares and then reads `parked`, a worker stores
//!   `parked` and then reads its share, with a sequentially consistent fence between both. One of
//!   them sees the other: the worker does not park, or it is unparked. An unpark that comes before
//!   the park, or that a later job finds left over, makes a park return at once, and the worker
//!   looks again. The caller clears `parked` only right before it unparks.
//! - A worker that sleeps on nevertheless delays nobody but by not helping: the caller takes all
//!   tasks that nobody has claimed. A job waits for claimed tasks alone, and thus for their threads
//!   to be given a core.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Rounds of waiting with a pause instruction each: about 20 µs.
const SPIN_ROUNDS: u32 = 1000;
/// Rounds that give the core away, after which an idle worker parks: at least 200 µs in all.
const YIELD_ROUNDS: u32 = 500;
/// Rounds after which a caller that waits for others' last tasks sleeps between looks, about 1 ms:
/// one of a real-time class gives its core to nobody of another class by yielding, not even to the
/// worker that it waits for.
const WAIT_ROUNDS: u32 = SPIN_ROUNDS + 4 * YIELD_ROUNDS;
/// How long it sleeps.
const WAIT_SLEEP: Duration = Duration::from_micros(20);
/// Elements that one thread handles in about the time that a job costs.
const LIGHT_ELEMENTS: usize = 16 << 10;
/// Bits of each end of a share's claimed tasks in [`Shared::shares`].
const END_BITS: u32 = 32;

type TaskFn = unsafe fn(*const (), usize, usize);

#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// `[workers]` tasks of each worker's share that nobody has claimed: the first one in the low
    /// half, one past the last one in the high half. A claim is a compare-exchange that moves one
    /// end: what it finds is of the current job, which cannot end before the task is done.
    shares: Vec<Line<AtomicU64>>,
    /// Tasks of the job that are not done yet.
    pending: Line<AtomicU32>,
    /// The job: written before `shares` publish it, read after a successful claim.
    data: AtomicPtr<()>,
    task: AtomicPtr<()>,
    /// A task panicked.
    panicked: AtomicBool,
    shutdown: AtomicBool,
    /// `[workers - 1]`: who is parked or about to be.
    parked: Vec<Line<AtomicBool>>,
}

/// Worker threads that live as long as this value.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    /// Worker `i` runs on `cpus[i]`; empty: wherever the system wants.
    cpus: Vec<usize>,
}

thread_local! {
    /// Whether this thread was given a CPU.
    static IS_PINNED: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// `num_threads - 1` threads are started (the caller of [`Pool::run`] is the first worker).
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        let parked = (1..num_threads).map(|_| Line(AtomicBool::new(false))).collect();
        let shared = Arc::new(Shared {
            shares: (0..num_threads).map(|_| Line(AtomicU64::new(0))).collect(),
            pending: Line(AtomicU32::new(0)),
            data: AtomicPtr::new(std::ptr::null_mut()),
            task: AtomicPtr::new(std::ptr::null_mut()),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            parked,
        });
        let allowed = cpu::allowed();
        let cpus = if allowed.len() == num_threads { allowed.to_vec() } else { Vec::new() };
        let mut pool = Pool { shared, threads: Vec::new(), handles: Vec::new(), cpus };
        let (placed, all_placed) = std::sync::mpsc::channel();
        for worker in 1..num_threads {
            let shared = pool.shared.clone();
            let cpu = pool.cpus.get(worker).copied();
            let placed = placed.clone();
            let handle = std::thread::Builder::new().name(format!("tenon-cpu-{worker}")).spawn(
                move || {
                    match cpu {
                        Some(cpu) => cpu::pin(&[cpu]),
                        // The thread that starts this one may have been given a CPU.
                        None => cpu::pin(cpu::allowed()),
                    }
                    drop(placed);
                    shared.work(worker);
                },
            )?;
            pool.threads.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        // Until then they are where the caller is: one of a real-time class would keep them there
        // and off the core as long as it has work.
        drop(placed);
        let _: Result<(), _> = all_placed.recv();
        Ok(pool)
    }

    /// Gives the calling thread, worker 0 of the jobs to come, its CPU. Threads that it starts
    /// later inherit that: for threads that do nothing else than run steps.
    pub fn pin_caller(&self) {
        if let Some(&cpu) = self.cpus.first()
            && !IS_PINNED.replace(true)
        {
            cpu::pin(&[cpu]);
        }
    }

    /// Workers, the caller included.
    pub fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `task(index, worker)` for every `index < num_tasks` and returns when all are done.
    ///
    /// `worker` is below [`Pool::num_threads`] and unique among the calls that run at one time.
    /// Panics when a task panicked.
    pub fn run<F: Fn(usize, usize) + Sync>(&mut self, num_tasks: usize, task: F) {
        if self.threads.is_empty() || num_tasks <= 1 {
            (0..num_tasks).for_each(|index| task(index, 0));
            return;
        }
        unsafe fn call<F: Fn(usize, usize) + Sync>(data: *const (), index: usize, worker: usize) {
            // SAFETY: `data` is the `task` of a `run` that waits for this call to end.
            unsafe { (*data.cast::<F>())(index, worker) }
        }
        let num_tasks = u32::try_from(num_tasks).expect("a job is cut into fewer tasks");
        let shared = &*self.shared;
        shared.data.store((&raw const task).cast_mut().cast(), Ordering::Relaxed);
        shared.task.store(call::<F> as TaskFn as *mut (), Ordering::Relaxed);
        shared.pending.0.store(num_tasks, Ordering::Relaxed);
        let workers = shared.shares.len() as u64;
        for (worker, share) in shared.shares.iter().enumerate().rev() {
            let end = |worker: u64| worker * u64::from(num_tasks) / workers;
            let worker = worker as u64;
            share.0.store(end(worker) | end(worker + 1) << END_BITS, Ordering::Release);
        }
        gap();
        self.wake();
        shared.run_all(0);
        let mut rounds = 0;
        while shared.pending.0.load(Ordering::Acquire) != 0 {
            if rounds < WAIT_ROUNDS {
                pause(&mut rounds);
            } else {
                std::thread::sleep(WAIT_SLEEP);
            }
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a task of the pool panicked");
    }

    /// As [`Pool::run`], but on the calling thread alone when `elements` f32 of cheap work in all
    /// are less than handing them out costs.
    pub fn run_light<F: Fn(usize, usize) + Sync>(
        &mut self,
        num_tasks: usize,
        elements: usize,
        task: F,
    ) {
        if elements < LIGHT_ELEMENTS {
            (0..num_tasks).for_each(|index| task(index, 0));
        } else {
            self.run(num_tasks, task);
        }
    }

    // Pairs with the fence in `Shared::park`: the worker sees the new job, or we see it parked.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        for (parked, thread) in self.shared.parked.iter().zip(&self.threads) {
            if parked.0.load(Ordering::Relaxed) {
                gap();
                parked.0.store(false, Ordering::Relaxed);
                thread.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        for (thread, handle) in self.threads.iter().zip(self.handles.drain(..)) {
            thread.unpark();
            // A worker catches the panics of its tasks; there is nothing else to learn from it.
            let _ = handle.join();
        }
    }
}

impl Shared {
    // Runs what is left of the worker's own share, then of the others'; false when nothing was.
    fn run_all(&self, worker: usize) -> bool {
        let mut num_done = 0;
        while let Some(index) = self.claim(worker, true) {
            self.run_one(index, worker);
            num_done += 1;
        }
        let others = (1..self.shares.len()).map(|i| (worker + i) % self.shares.len());
        for other in others {
            while let Some(index) = self.claim(other, false) {
                self.run_one(index, worker);
                num_done += 1;
            }
        }
        if num_done > 0 {
            self.pending.0.fetch_sub(num_done, Ordering::Release);
        }
        num_done > 0
    }

    // One task of a share: its first or its last.
    fn claim(&self, share: usize, first: bool) -> Option<usize> {
        let share = &self.shares[share].0;
        let mut found = share.load(Ordering::Acquire);
        loop {
            let (start, end) = (found & u64::from(u32::MAX), found >> END_BITS);
            if start >= end {
                return None;
            }
            let (index, next) =
                if first { (start, found + 1) } else { (end - 1, found - (1 << END_BITS)) };
            let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
            match share.compare_exchange_weak(found, next, won, lost) {
                Ok(_) => return Some(index as usize),
                Err(now) => found = now,
            }
        }
    }

    // A task that was claimed.
    fn run_one(&self, index: usize, worker: usize) {
        let data = self.data.load(Ordering::Relaxed);
        let task = self.task.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the claim succeeded, so the job that stored these pointers is current, and
            // its `run` does not return before this task is counted as done.
            unsafe {
                let task = std::mem::transmute::<*mut (), TaskFn>(task);
                task(data, index, worker);
            }
        }));
        if result.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    fn has_tasks(&self, worker: usize) -> bool {
        let share = self.shares[worker].0.load(Ordering::Relaxed);
        share & u64::from(u32::MAX) < share >> END_BITS
    }

    fn work(&self, worker: usize) {
        let mut rounds = 0;
        while !self.shutdown.load(Ordering::Relaxed) {
            if self.has_tasks(worker) && self.run_all(worker) {
                rounds = 0;
            } else if rounds < SPIN_ROUNDS + YIELD_ROUNDS {
                pause(&mut rounds);
            } else {
                self.park(worker);
                rounds = 0;
            }
        }
    }

    fn park(&self, worker: usize) {
        let parked = &self.parked[worker - 1].0;
        gap();
        parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        gap();
        while parked.load(Ordering::Relaxed)
            && !self.has_tasks(worker)
            && !self.shutdown.load(Ordering::SeqCst)
        {
            gap();
            std::thread::park();
        }
        gap();
        parked.store(false, Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
mod cpu {
    use std::sync::OnceLock;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// CPUs that the process may use, as they were before the first thread was given one: threads
    /// inherit what their parents were given.
    pub fn allowed() -> &'static [usize] {
        static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
        ALLOWED.get_or_init(|| {
            let set = sched_getaffinity(None).unwrap_or_default();
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
        })
    }

    /// Keeps the calling thread on `cpus`.
    pub fn pin(cpus: &[usize]) {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::debug!(?cpus, %error, "a thread could not be given its CPU");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod cpu {
    pub fn allowed() -> &'static [usize] {
        &[]
    }

    pub fn pin(_: &[usize]) {}
}

fn pause(rounds: &mut u32) {
    *rounds = rounds.saturating_add(1);
    if *rounds <= SPIN_ROUNDS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

// Where a thread may be put aside at the wrong moment: tests do that often.
#[cfg(not(test))]
fn gap() {}

#[cfg(test)]
use tests::gap;

#[cfg(test)]
mod tests;
