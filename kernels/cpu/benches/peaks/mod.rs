//! What this machine can do, to judge kernels by: the DRAM read bandwidth and the rates of f32,
//! bfloat16 and 8-bit multiplications with additions.
//!
//! Measure it in the same minutes as what is judged: a virtual machine's share of its cores
//! changes.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Read by all threads together: far more than the caches hold.
const DRAM_BYTES: usize = 512 << 20;
/// Vector operations between two looks at the clock.
const ROUNDS: usize = 4000;
/// Independent chains: more than the latency times the operations of a cycle.
const CHAINS: usize = 12;

/// All threads together; 0 where the machine has no such instructions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peaks {
    /// Bytes per second.
    pub dram: f64,
    /// Operations per second, a multiplication and an addition counted as two.
    pub f32: f64,
    /// See `f32`.
    pub bf16: f64,
    /// See `f32`.
    pub int8: f64,
}

impl Peaks {
    /// Measures each for so many seconds.
    pub fn measure(threads: usize, seconds: f64) -> Peaks {
        let memory = vec![1u64; DRAM_BYTES / 8];
        let time = Duration::from_secs_f64(seconds);
        let share = memory.len() / threads;
        let dram = run(threads, time, |i| read(&memory[i * share..][..share]));
        let peaks = Peaks { dram, ..Peaks::default() };
        #[cfg(target_arch = "x86_64")]
        let peaks = {
            let rates = x86::all().map(|(is_there, rate)| match is_there {
                true => run(threads, time, |_| rate()),
                false => 0.0,
            });
            Peaks { f32: rates[0], bf16: rates[1], int8: rates[2], ..peaks }
        };
        peaks
    }
}

// Units per second of `work`, which says how many it did, on all threads together.
fn run(threads: usize, time: Duration, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let one = &|i| {
        pin(i);
        let start = Instant::now();
        let mut done = 0.0;
        while start.elapsed() < time {
            done += work(i);
        }
        done / start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|i| scope.spawn(move || one(i))).collect();
        handles.into_iter().map(|h| h.join().unwrap()).sum()
    })
}

// Each thread on a CPU of its own: on a busy machine all may end up on one.
fn pin(thread: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let allowed = sched_getaffinity(None).unwrap();
        let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        if let Some(cpu) = cpus.clone().cycle().nth(thread) {
            let mut own = CpuSet::new();
            own.set(cpu);
            sched_setaffinity(None, &own).unwrap();
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = thread;
}

fn read(words: &[u64]) -> f64 {
    let mut lanes = [0u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        prefetch(chunk.as_ptr().wrapping_add(512));
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane |= x);
    }
    black_box(lanes);
    size_of_val(words) as f64
}

fn prefetch(at: *const u64) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..4 {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * 8).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, ROUNDS};

    type Rate = (bool, fn() -> f64);

    /// Whether this machine has it, and what does some: f32, bfloat16, 8 bits.
    pub fn all() -> [Rate; 3] {
        let avx512 = is_x86_feature_detected!("avx512f");
        let has_bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
        let has_vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        // SAFETY: each is called where the machine has its features.
        unsafe { [(avx512, || fused()), (has_bf16, || pairs()), (has_vnni, || bytes())] }
    }

    #[target_feature(enable = "avx512f")]
    fn fused() -> f64 {
        let mut acc = [_mm512_setzero_ps(); CHAINS];
        let (a, b) = black_box((_mm512_set1_ps(0.5), _mm512_set1_ps(0.25)));
        for _ in 0..ROUNDS {
            acc.iter_mut().for_each(|acc| *acc = _mm512_fmadd_ps(a, b, *acc));
        }
        black_box(acc);
        (ROUNDS * CHAINS * 16 * 2) as f64
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn pairs() -> f64 {
        let mut acc = [_mm512_setzero_ps(); CHAINS];
        // SAFETY: vectors of the same size.
        let (a, b): (__m512bh, __m512bh) =
            unsafe { std::mem::transmute(black_box([_mm512_set1_epi32(0x3f00_3f00); 2])) };
        for _ in 0..ROUNDS {
            acc.iter_mut().for_each(|acc| *acc = _mm512_dpbf16_ps(*acc, a, b));
        }
        black_box(acc);
        (ROUNDS * CHAINS * 32 * 2) as f64
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn bytes() -> f64 {
        let mut acc = [_mm512_setzero_si512(); CHAINS];
        let (a, b) = black_box((_mm512_set1_epi8(3), _mm512_set1_epi8(2)));
        for _ in 0..ROUNDS {
            acc.iter_mut().for_each(|acc| *acc = _mm512_dpbusd_epi32(*acc, a, b));
        }
        black_box(acc);
        (ROUNDS * CHAINS * 64 * 2) as f64
    }
}
