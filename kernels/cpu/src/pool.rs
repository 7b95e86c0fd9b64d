//! A persistent pool of threads for work of microseconds: one job at a time, cut into tasks.
//!
//! The thread that calls [`Pool::run`] is worker 0. Tasks are claimed one by one, and a job ends
//! when its tasks are done, not when every worker has seen it: a worker that the system has put
//! aside delays nobody. Idle workers spin for a moment, then yield, then park, so that a busy
//! machine is not made worse.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::thread::{JoinHandle, Thread};

/// Rounds of waiting with a pause instruction each: about 20 µs.
const SPIN_ROUNDS: u32 = 1000;
/// Rounds that give the core away, after which an idle worker parks: at least 200 µs in all.
const YIELD_ROUNDS: u32 = 500;
/// Elements that one thread handles in about the time that a job costs.
const LIGHT_ELEMENTS: usize = 16 << 10;
/// Low bits of `Shared::claim`: tasks that nobody has claimed yet. The others count jobs.
const REMAINING_BITS: u32 = 24;
const REMAINING_MASK: u64 = (1 << REMAINING_BITS) - 1;

type TaskFn = unsafe fn(*const (), usize, usize);

#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Job number in the high bits, unclaimed tasks in the low ones. A claim is a compare-exchange
    /// that takes one task: its success proves that the job is still the current one.
    claim: Line<AtomicU64>,
    /// Tasks of the job that are not done yet.
    pending: Line<AtomicU32>,
    /// The job: written before `claim` publishes it, read after a successful claim.
    num_tasks: AtomicUsize,
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
}

impl Pool {
    /// `num_threads - 1` threads are started (the caller of [`Pool::run`] is the first worker).
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        let parked = (1..num_threads).map(|_| Line(AtomicBool::new(false))).collect();
        let shared = Arc::new(Shared {
            claim: Line(AtomicU64::new(0)),
            pending: Line(AtomicU32::new(0)),
            num_tasks: AtomicUsize::new(0),
            data: AtomicPtr::new(std::ptr::null_mut()),
            task: AtomicPtr::new(std::ptr::null_mut()),
            panicked: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            parked,
        });
        let mut pool = Pool { shared, threads: Vec::new(), handles: Vec::new() };
        for worker in 1..num_threads {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("tenon-cpu-{worker}"))
                .spawn(move || shared.work(worker))?;
            pool.threads.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
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
        assert!(num_tasks as u64 <= REMAINING_MASK, "{num_tasks} tasks in one job");
        let shared = &*self.shared;
        shared.num_tasks.store(num_tasks, Ordering::Relaxed);
        shared.data.store((&raw const task).cast_mut().cast(), Ordering::Relaxed);
        shared.task.store(call::<F> as TaskFn as *mut (), Ordering::Relaxed);
        shared.pending.0.store(num_tasks as u32, Ordering::Relaxed);
        let job = (shared.claim.0.load(Ordering::Relaxed) >> REMAINING_BITS).wrapping_add(1);
        shared.claim.0.store(job << REMAINING_BITS | num_tasks as u64, Ordering::Release);
        self.wake();
        while shared.run_one(0) {}
        let mut rounds = 0;
        while shared.pending.0.load(Ordering::Acquire) != 0 {
            pause(&mut rounds);
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
    // Claims and runs one task, if any is left.
    fn run_one(&self, worker: usize) -> bool {
        let mut claim = self.claim.0.load(Ordering::Acquire);
        loop {
            if claim & REMAINING_MASK == 0 {
                return false;
            }
            let next = claim - 1;
            let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
            match self.claim.0.compare_exchange_weak(claim, next, won, lost) {
                Ok(_) => break,
                Err(now) => claim = now,
            }
        }
        let remaining = (claim & REMAINING_MASK) as usize;
        let index = self.num_tasks.load(Ordering::Relaxed) - remaining;
        let data = self.data.load(Ordering::Relaxed);
        let task = self.task.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the claim succeeded, so the job that stored these pointers is current, and
            // its `run` does not return before this task is counted as done below.
            unsafe {
                let task = std::mem::transmute::<*mut (), TaskFn>(task);
                task(data, index, worker);
            }
        }));
        if result.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.pending.0.fetch_sub(1, Ordering::Release);
        true
    }

    fn work(&self, worker: usize) {
        let mut rounds = 0;
        while !self.shutdown.load(Ordering::Relaxed) {
            if self.run_one(worker) {
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
        parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while parked.load(Ordering::Relaxed)
            && self.claim.0.load(Ordering::Relaxed) & REMAINING_MASK == 0
            && !self.shutdown.load(Ordering::SeqCst)
        {
            std::thread::park();
        }
        parked.store(false, Ordering::Relaxed);
    }
}

fn pause(rounds: &mut u32) {
    *rounds = rounds.saturating_add(1);
    if *rounds <= SPIN_ROUNDS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Pool;

    #[test]
    fn every_task_runs_once_whatever_the_number_of_threads() {
        for num_threads in [1, 2, 5] {
            let mut pool = Pool::new(num_threads).expect("threads start");
            let counts: Vec<AtomicU32> = (0..300).map(|_| AtomicU32::new(0)).collect();
            for round in 0..2000u32 {
                let num_tasks = round as usize % 300;
                pool.run(num_tasks, |index, worker| {
                    assert!(worker < num_threads);
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                let done = counts.iter().filter(|c| c.swap(0, Ordering::Relaxed) == 1).count();
                assert_eq!(done, num_tasks);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut pool = Pool::new(3).expect("threads start");
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, |index, _| assert_ne!(index, 40));
        }));
        assert!(caught.is_err());
        let sum = AtomicU32::new(0);
        pool.run(64, |index, _| {
            sum.fetch_add(index as u32, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 63 * 64 / 2);
    }
}
