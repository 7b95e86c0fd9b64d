//! The pool under jobs of all kinds, with more threads than cores and wake-ups without a job.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

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

#[cfg(target_os = "linux")]
#[test]
fn a_pool_that_a_pinned_thread_starts_may_use_all_cpus() {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let cpus = || {
        let set = sched_getaffinity(None).expect("the kernel tells");
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
    };
    let all = cpus();
    // As many threads as CPUs, each of which has its own then, and one fewer or more.
    for num_threads in [all.len(), all.len() + 1, (all.len() - 1).max(2), all.len()] {
        let mut pool = Pool::new(num_threads).expect("threads start");
        pool.pin_caller();
        let found = std::sync::Mutex::new(vec![Vec::new(); num_threads]);
        let arrived = std::sync::Barrier::new(num_threads);
        // A task for each worker: none ends before all have begun.
        pool.run(num_threads, |_, worker| {
            arrived.wait();
            found.lock().expect("no task panics")[worker] = cpus();
        });
        for (worker, found) in found.into_inner().expect("no task panics").iter().enumerate() {
            let own =
                all.get(worker).map(std::slice::from_ref).filter(|_| num_threads == all.len());
            if worker > 0 || own.is_some() {
                assert_eq!(found, own.unwrap_or(&all), "worker {worker} of {num_threads}");
            }
        }
    }
}

/// Longest that a job of the stress test may take. On a machine that gives these threads no core it
/// takes seconds; a lost wake-up takes forever.
const JOB_LIMIT: Duration = Duration::from_secs(120);

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

thread_local! {
    static GAPS: RefCell<Random> = const { RefCell::new(Random(1)) };
}

/// Widens the moments in which a wake-up could be lost.
pub fn gap() {
    if GAPS.with_borrow_mut(|random| random.below(4)) == 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

// A job that ends only when every worker has come: each holds one task until all are held.
fn meet(pool: &mut Pool) {
    let num_threads = pool.num_threads();
    let here = AtomicU32::new(0);
    pool.run(num_threads, |_, _| {
        here.fetch_add(1, Ordering::Relaxed);
        while (here.load(Ordering::Relaxed) as usize) < num_threads {
            std::thread::yield_now();
        }
    });
}

// A job of tasks that do nothing, spin for a moment or sleep; each runs once.
fn mixed(pool: &mut Pool, random: &mut Random) {
    let num_tasks = random.below(40) as usize;
    let lengths: Vec<u64> = (0..num_tasks).map(|_| random.below(100)).collect();
    let counts: Vec<AtomicU32> = lengths.iter().map(|_| AtomicU32::new(0)).collect();
    pool.run(num_tasks, |index, _| {
        match lengths[index] {
            0 => std::thread::sleep(Duration::from_micros(300)),
            1..10 => (0..20_000).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        counts[index].fetch_add(1, Ordering::Relaxed);
    });
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

#[test]
fn no_wake_up_is_lost() {
    for (num_threads, is_heckled) in [(2, false), (3, false), (8, false), (3, true)] {
        let (done, jobs) = mpsc::channel();
        std::thread::spawn(move || {
            let mut pool = Pool::new(num_threads).expect("threads start");
            let (threads, stop) = (pool.threads.clone(), AtomicBool::new(false));
            let mut random = Random(num_threads as u64);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while is_heckled && !stop.load(Ordering::Relaxed) {
                        threads.iter().for_each(std::thread::Thread::unpark);
                        std::thread::sleep(Duration::from_micros(700));
                    }
                });
                for round in 0..600 {
                    match random.below(4) {
                        // Long enough for workers to park, or to be about to.
                        0 => std::thread::sleep(Duration::from_micros(random.below(1500))),
                        1 => mixed(&mut pool, &mut random),
                        _ => meet(&mut pool),
                    }
                    done.send(round).expect("somebody waits");
                }
                stop.store(true, Ordering::Relaxed);
            });
        });
        let mut last = None;
        while last != Some(599) {
            last = match jobs.recv_timeout(JOB_LIMIT) {
                Ok(round) => Some(round),
                Err(error) => panic!("{num_threads} threads, after job {last:?}: {error}"),
            };
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_caller_that_waits_long_leaves_its_core_to_others() {
    let cpu_time = || {
        let found = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
        let nanos = found.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        Duration::from_nanos(nanos)
    };
    let mut pool = Pool::new(2).expect("threads start");
    let started = AtomicBool::new(false);
    let before = cpu_time();
    pool.run(2, |_, worker| {
        if worker == 1 {
            started.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(400));
        }
        while !started.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?} of 400 ms");
}
