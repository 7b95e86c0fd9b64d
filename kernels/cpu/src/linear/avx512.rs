//! AVX-512: one vector is one step of four columns (VNNI), two (BF16) or one (floats) for all 16
//! rows of a panel; activations are broadcast from memory.
//!
//! A block of 32 columns costs 8 dot-product instructions and 3 or 4 others per token; unpacking
//! the weights is shared by the tile's tokens.

use std::arch::x86_64::*;

use tenon_backend::DType;

use super::portable::{has_fifth_bit, has_k_scales, zero_shift};
use super::{Kernel, TileArgs, pick};
use crate::attention::ahead::Lines;
use crate::isa::Isa;
use crate::packed::{BLOCK, Stripe};

/// The kernel for weights of `dtype` and tiles of `len` tokens.
pub fn kernel(isa: Isa, dtype: DType, len: usize) -> Kernel {
    match dtype {
        DType::BF16 if isa == Isa::Avx512Bf16 => pick!(bf16_pairs, dtype, len, [BF16]),
        DType::F32 | DType::F16 | DType::BF16 => pick!(dense, dtype, len, [F32, F16, BF16]),
        _ => pick!(quantized, dtype, len, [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K]),
    }
}

/// Repeats a body for `t` in `0..T`, `T` at most 16, without leaving a loop: accumulators must be
/// indexed by constants to stay in registers.
macro_rules! for_tokens {
    ($len:ident, $t:ident => $body:block) => {
        $crate::linear::for_tokens!(@ $len, $t, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $len:ident, $t:ident, $body:block, $($n:literal)*) => {
        $(if $n < $len {
            let $t: usize = $n;
            $body
        })*
    };
}

pub(crate) use for_tokens;

// SAFETY: `args` describes a panel of encoding `F` and a tile of `T` tokens converted to 8 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn quantized<const F: u8, const T: usize>(args: &TileArgs) {
    let mut acc = [_mm512_setzero_ps(); T];
    let blocks = args.layout.cols / BLOCK;
    let rate = args.ahead.len.div_ceil(blocks);
    let mut ahead = args.ahead;
    for b in 0..blocks {
        let now = rate.min(ahead.len);
        for line in 0..now {
            _mm_prefetch::<_MM_HINT_T1>(ahead.start.wrapping_add(line * 64).cast());
        }
        ahead = Lines { start: ahead.start.wrapping_add(now * 64), len: ahead.len - now };
        // SAFETY: block `b` is within the panel and the tile.
        unsafe {
            let stripe = const { Stripe::of(F) };
            let panel = args.panel.add(b / stripe.blocks * stripe.bytes);
            let in_stripe = b % stripe.blocks;
            prefetch::<F>(panel, in_stripe);
            let w = unpack::<F>(panel, in_stripe);
            let (scales, mins) = scales::<F>(panel, in_stripe);
            let at = b * T;
            let codes = args.codes.add(at * BLOCK);
            for_tokens!(T, t => {
                let codes = codes.add(t * BLOCK).cast::<i32>();
                let dot = if F == DType::Q6K as u8 {
                    dot_q6_k(args, panel, in_stripe, at + t, &w, codes)
                } else {
                    let mut dot = match zero_shift(F) {
                        Some(3) => _mm512_slli_epi32::<3>(broadcast(args.minus_sums.add(at + t))),
                        Some(4) => _mm512_slli_epi32::<4>(broadcast(args.minus_sums.add(at + t))),
                        Some(_) => _mm512_slli_epi32::<7>(broadcast(args.minus_sums.add(at + t))),
                        None => _mm512_setzero_si512(),
                    };
                    dot = _mm512_dpbusd_epi32(dot, w[0], broadcast(codes));
                    dot = _mm512_dpbusd_epi32(dot, w[1], broadcast(codes.add(1)));
                    dot = _mm512_dpbusd_epi32(dot, w[2], broadcast(codes.add(2)));
                    dot = _mm512_dpbusd_epi32(dot, w[3], broadcast(codes.add(3)));
                    dot = _mm512_dpbusd_epi32(dot, w[4], broadcast(codes.add(4)));
                    dot = _mm512_dpbusd_epi32(dot, w[5], broadcast(codes.add(5)));
                    dot = _mm512_dpbusd_epi32(dot, w[6], broadcast(codes.add(6)));
                    _mm512_dpbusd_epi32(dot, w[7], broadcast(codes.add(7)))
                };
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(*args.scales.add(at + t)));
                acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[t]);
                if zero_shift(F).is_none() {
                    let sum = _mm512_set1_ps(*args.scaled_sums.add(at + t));
                    acc[t] = _mm512_fmadd_ps(mins, sum, acc[t]);
                }
            });
        }
    }
    // SAFETY: by this function's contract.
    unsafe { store(args, &acc) };
}

// SAFETY: `p` is readable, aligned to 4.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast(p: *const i32) -> __m512i {
    // SAFETY: by this function's contract.
    unsafe { _mm512_set1_epi32(*p) }
}

// Scales are per 16 columns: two integer dot products, weighted as integers.
// SAFETY: as for `quantized`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
unsafe fn dot_q6_k(
    args: &TileArgs,
    panel: *const u8,
    b: usize,
    at: usize,
    w: &[__m512i; 8],
    codes: *const i32,
) -> __m512i {
    // SAFETY: by this function's contract.
    unsafe {
        let minus_first = broadcast(args.minus_first_sums.add(at));
        let minus_second = _mm512_sub_epi32(broadcast(args.minus_sums.add(at)), minus_first);
        let mut lo = _mm512_slli_epi32::<5>(minus_first);
        let mut hi = _mm512_slli_epi32::<5>(minus_second);
        lo = _mm512_dpbusd_epi32(lo, w[0], broadcast(codes));
        hi = _mm512_dpbusd_epi32(hi, w[4], broadcast(codes.add(4)));
        lo = _mm512_dpbusd_epi32(lo, w[1], broadcast(codes.add(1)));
        hi = _mm512_dpbusd_epi32(hi, w[5], broadcast(codes.add(5)));
        lo = _mm512_dpbusd_epi32(lo, w[2], broadcast(codes.add(2)));
        hi = _mm512_dpbusd_epi32(hi, w[6], broadcast(codes.add(6)));
        lo = _mm512_dpbusd_epi32(lo, w[3], broadcast(codes.add(3)));
        hi = _mm512_dpbusd_epi32(hi, w[7], broadcast(codes.add(7)));
        let sub = panel.add(const { Stripe::of(DType::Q6K as u8) }.scales + b * 32);
        let first = _mm512_cvtepi8_epi32(_mm_loadu_si128(sub.cast()));
        let second = _mm512_cvtepi8_epi32(_mm_loadu_si128(sub.add(16).cast()));
        _mm512_add_epi32(_mm512_mullo_epi32(lo, first), _mm512_mullo_epi32(hi, second))
    }
}

/// How far ahead of the block that is used weights are asked for, to the second-level cache: one
/// core only fills the memory bus with more lines in flight than it looks ahead by itself, and more
/// than its first level can wait for.
const PREFETCH_BYTES: usize = 8192;
/// How far ahead they are asked for to the first level.
const NEAR_BYTES: usize = 1024;

// Asks for the part of later stripes (or panels: they follow) that corresponds to block `b`.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefetch<const F: u8>(panel: *const u8, b: usize) {
    let stripe = const { Stripe::of(F) };
    let bytes = const { (Stripe::of(F).bytes / Stripe::of(F).blocks).next_multiple_of(64) };
    let block = panel.wrapping_add(b * stripe.bytes / stripe.blocks);
    for line in 0..bytes / 64 {
        prefetch_line(block.wrapping_add(line * 64));
    }
}

// The address asked for may lie beyond the weights: a prefetch does not fault.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefetch_line(used: *const u8) {
    _mm_prefetch::<_MM_HINT_T1>(used.wrapping_add(PREFETCH_BYTES).cast());
    _mm_prefetch::<_MM_HINT_T0>(used.wrapping_add(NEAR_BYTES).cast());
}

// SAFETY: block `b` is within the stripe, which is of encoding `F`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn unpack<const F: u8>(panel: *const u8, b: usize) -> [__m512i; 8] {
    let stripe = const { Stripe::of(F) };
    // SAFETY: by this function's contract.
    unsafe {
        if F == DType::Q8_0 as u8 {
            let p = panel.add(b * 512);
            return std::array::from_fn(|i| _mm512_load_si512(p.add(i * 64).cast()));
        }
        let p = panel.add(b * 256);
        let low = _mm512_set1_epi8(15);
        let n: [__m512i; 4] = std::array::from_fn(|i| _mm512_load_si512(p.add(i * 64).cast()));
        let lo = |x| _mm512_and_si512(x, low);
        let hi = |x| _mm512_and_si512(_mm512_srli_epi32::<4>(x), low);
        let w = [lo(n[0]), lo(n[1]), lo(n[2]), lo(n[3]), hi(n[0]), hi(n[1]), hi(n[2]), hi(n[3])];
        if has_fifth_bit(F) {
            let high = _mm512_loadu_si512(panel.add(stripe.high + b * 64).cast());
            return add_fifth_bits(w, high);
        }
        if F == DType::Q6K as u8 {
            let p = panel.add(stripe.high + b * 128);
            let high = [_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast())];
            return add_pairs_of_bits(w, high);
        }
        w
    }
}

// Bit j of each byte of `high` becomes bit 4 of that byte of w[j].
#[target_feature(enable = "avx512f")]
#[inline]
fn add_fifth_bits(w: [__m512i; 8], high: __m512i) -> [__m512i; 8] {
    let mask = _mm512_set1_epi8(16);
    // w | (bits & mask)
    let or = |w, bits| _mm512_ternarylogic_epi32::<0xf8>(w, bits, mask);
    [
        or(w[0], _mm512_slli_epi32::<4>(high)),
        or(w[1], _mm512_slli_epi32::<3>(high)),
        or(w[2], _mm512_slli_epi32::<2>(high)),
        or(w[3], _mm512_slli_epi32::<1>(high)),
        or(w[4], high),
        or(w[5], _mm512_srli_epi32::<1>(high)),
        or(w[6], _mm512_srli_epi32::<2>(high)),
        or(w[7], _mm512_srli_epi32::<3>(high)),
    ]
}

// Bits 2j..2j + 2 of each byte of high[h] become bits 4 and 5 of that byte of w[4h + j].
#[target_feature(enable = "avx512f")]
#[inline]
fn add_pairs_of_bits(w: [__m512i; 8], high: [__m512i; 2]) -> [__m512i; 8] {
    let mask = _mm512_set1_epi8(0x30);
    let or = |w, bits| _mm512_ternarylogic_epi32::<0xf8>(w, bits, mask);
    [
        or(w[0], _mm512_slli_epi32::<4>(high[0])),
        or(w[1], _mm512_slli_epi32::<2>(high[0])),
        or(w[2], high[0]),
        or(w[3], _mm512_srli_epi32::<2>(high[0])),
        or(w[4], _mm512_slli_epi32::<4>(high[1])),
        or(w[5], _mm512_slli_epi32::<2>(high[1])),
        or(w[6], high[1]),
        or(w[7], _mm512_srli_epi32::<2>(high[1])),
    ]
}

// Scales of block `b` of a stripe, and what the scaled sum is multiplied with.
// SAFETY: block `b` is within the stripe, which is of encoding `F`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn scales<const F: u8>(panel: *const u8, b: usize) -> (__m512, __m512) {
    let stripe = const { Stripe::of(F) };
    // SAFETY: by this function's contract.
    unsafe {
        let halves =
            |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(panel.add(at).cast::<__m256i>()));
        let bytes = |at: usize| {
            let bytes = _mm_loadu_si128(panel.add(at).cast::<__m128i>());
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        };
        if F == DType::Q6K as u8 {
            (halves(stripe.supers), _mm512_setzero_ps())
        } else if has_k_scales(F) {
            let (d, dmin) = (stripe.supers, stripe.supers + 32);
            let min = _mm512_mul_ps(halves(dmin), bytes(stripe.mins + b * 16));
            let minus = _mm512_xor_si512(_mm512_castps_si512(min), _mm512_set1_epi32(i32::MIN));
            let scale = _mm512_mul_ps(halves(d), bytes(stripe.scales + b * 16));
            (scale, _mm512_castsi512_ps(minus))
        } else if zero_shift(F).is_none() {
            (halves(stripe.scales + b * 32), halves(stripe.mins + b * 32))
        } else {
            (halves(stripe.scales + b * 32), _mm512_setzero_ps())
        }
    }
}

// SAFETY: `args` describes a panel of encoding `F` and a tile of `T` tokens of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn dense<const F: u8, const T: usize>(args: &TileArgs) {
    let mut acc = [_mm512_setzero_ps(); T];
    // SAFETY: all columns are within the panel and the tile.
    unsafe {
        if F == DType::BF16 as u8 {
            let cols = args.layout.cols;
            for i in 0..cols.div_ceil(2) {
                prefetch_line(args.panel.wrapping_add(i * 64));
                let pairs = _mm512_load_si512(args.panel.add(i * 64).cast());
                let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
                let a = args.floats.add(2 * i * T);
                for_tokens!(T, t => {
                    acc[t] = _mm512_fmadd_ps(even, _mm512_set1_ps(*a.add(t)), acc[t]);
                });
                if 2 * i + 1 < cols {
                    let mask = _mm512_set1_epi32(0xffff_0000u32 as i32);
                    let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
                    let a = a.add(T);
                    for_tokens!(T, t => {
                        acc[t] = _mm512_fmadd_ps(odd, _mm512_set1_ps(*a.add(t)), acc[t]);
                    });
                }
            }
        } else {
            for c in 0..args.layout.cols {
                let bytes = if F == DType::F32 as u8 { 64 } else { 32 };
                prefetch_line(args.panel.wrapping_add(c * bytes));
                let w = if F == DType::F32 as u8 {
                    _mm512_load_ps(args.panel.cast::<f32>().add(c * 16))
                } else {
                    _mm512_cvtph_ps(_mm256_load_si256(args.panel.add(c * 32).cast()))
                };
                let a = args.floats.add(c * T);
                for_tokens!(T, t => {
                    acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(*a.add(t)), acc[t]);
                });
            }
        }
        store(args, &acc);
    }
}

// SAFETY: `args` describes a panel of BF16 and a tile of `T` tokens of pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn bf16_pairs<const F: u8, const T: usize>(args: &TileArgs) {
    let mut acc = [_mm512_setzero_ps(); T];
    // SAFETY: all pairs of columns are within the panel and the tile.
    unsafe {
        for i in 0..args.layout.cols.div_ceil(2) {
            prefetch_line(args.panel.wrapping_add(i * 64));
            let w = _mm512_load_si512(args.panel.add(i * 64).cast());
            let w = std::mem::transmute::<__m512i, __m512bh>(w);
            let a = args.pairs.add(i * T).cast::<i32>();
            for_tokens!(T, t => {
                let a = std::mem::transmute::<__m512i, __m512bh>(broadcast(a.add(t)));
                acc[t] = _mm512_dpbf16_ps(acc[t], w, a);
            });
        }
        store(args, &acc);
    }
}

// SAFETY: out and bias cover the panel's rows for `T` tokens.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store<const T: usize>(args: &TileArgs, acc: &[__m512; T]) {
    let mask = (0xffffu32 >> (16 - args.rows)) as __mmask16;
    // SAFETY: by this function's contract; the mask keeps accesses within the rows that exist.
    unsafe {
        let bias = if args.bias.is_null() {
            _mm512_setzero_ps()
        } else {
            _mm512_maskz_loadu_ps(mask, args.bias)
        };
        for_tokens!(T, t => {
            let out = args.out.add(t * args.out_stride);
            _mm512_mask_storeu_ps(out, mask, _mm512_add_ps(acc[t], bias));
        });
    }
}
