//! Kernels in plain Rust, for any machine; AVX2 compiles the same code and replaces the dot
//! product of codes. Bit for bit the results of the AVX-512 kernels, but for BF16 dot products.

use tenon_backend::DType;

use super::{Kernel, TileArgs, pick};
use crate::packed::{BLOCK, PANEL_ROWS, Stripe};

type Lanes<T> = [T; PANEL_ROWS];

/// Dot products of 16 columns' codes for the 16 rows of a panel.
pub trait Dot {
    /// `w` is `[4][row][4]` codes; those of 8 bits (`WIDE`) come with 128 subtracted.
    fn dot<const WIDE: bool>(w: &[u8; 256], a: &[i8; 16]) -> Lanes<i32>;
}

struct PlainDot;

impl Dot for PlainDot {
    #[inline(always)]
    fn dot<const WIDE: bool>(w: &[u8; 256], a: &[i8; 16]) -> Lanes<i32> {
        let mut sums = [0; PANEL_ROWS];
        for j in 0..4 {
            for (r, sum) in sums.iter_mut().enumerate() {
                for c in 0..4 {
                    let code = i32::from(w[(j * PANEL_ROWS + r) * 4 + c]);
                    let code = if WIDE { code - 128 } else { code };
                    *sum += code * i32::from(a[j * 4 + c]);
                }
            }
        }
        sums
    }
}

/// The kernel for weights of `dtype` and tiles of `len` tokens.
pub fn kernel(dtype: DType, len: usize) -> Kernel {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => pick!(dense_plain, dtype, len, [F32, F16, BF16]),
        _ => pick!(quantized_plain, dtype, len, [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K]),
    }
}

// SAFETY: as for `quantized`.
unsafe fn quantized_plain<const F: u8, const T: usize>(args: &TileArgs) {
    // SAFETY: by this function's contract.
    unsafe { quantized::<F, T, PlainDot>(args) }
}

// SAFETY: as for `dense`.
unsafe fn dense_plain<const F: u8, const T: usize>(args: &TileArgs) {
    // SAFETY: by this function's contract.
    unsafe { dense::<F, T>(args) }
}

const fn is(f: u8, dtypes: &[DType]) -> bool {
    let mut i = 0;
    while i < dtypes.len() {
        if dtypes[i] as u8 == f {
            return true;
        }
        i += 1;
    }
    false
}

/// Subtracted from each code, as a shift: code - (1 << shift); none where the format has minimums.
pub const fn zero_shift(f: u8) -> Option<u32> {
    if is(f, &[DType::Q4_0]) {
        Some(3)
    } else if is(f, &[DType::Q5_0]) {
        Some(4)
    } else if is(f, &[DType::Q6K]) {
        Some(5)
    } else if is(f, &[DType::Q8_0]) {
        Some(7)
    } else {
        None
    }
}

/// Whether there is a fifth bit.
pub const fn has_fifth_bit(f: u8) -> bool {
    is(f, &[DType::Q5_0, DType::Q5_1, DType::Q5K])
}

/// Whether scales and minimums are 6-bit integers under a scale per 256 columns.
pub const fn has_k_scales(f: u8) -> bool {
    is(f, &[DType::Q4K, DType::Q5K])
}

/// Quantized weights, `T` tokens.
///
/// # Safety
/// `args` describes a panel of encoding `F` and a tile of `T` tokens converted to 8 bits.
#[inline(always)]
pub unsafe fn quantized<const F: u8, const T: usize, D: Dot>(args: &TileArgs) {
    let wide = const { F == DType::Q8_0 as u8 };
    let mut acc = [[0.0f32; PANEL_ROWS]; T];
    for b in 0..args.layout.cols / BLOCK {
        // SAFETY: block `b` is within the panel and the tile.
        unsafe {
            let stripe = const { Stripe::of(F) };
            let panel = args.panel.add(b / stripe.blocks * stripe.bytes);
            let in_stripe = b % stripe.blocks;
            let w = unpack::<F>(panel, in_stripe);
            let (first, second) = (&*w.as_ptr().cast(), &*w.as_ptr().add(256).cast());
            let (scales, mins) = scales::<F>(panel, in_stripe);
            for (t, acc) in acc.iter_mut().enumerate() {
                let at = b * T + t;
                let codes = args.codes.add(at * BLOCK);
                let (a0, a1) = (&*codes.cast(), &*codes.add(16).cast());
                let (mut lo, mut hi) = if wide {
                    (D::dot::<true>(first, a0), D::dot::<true>(second, a1))
                } else {
                    (D::dot::<false>(first, a0), D::dot::<false>(second, a1))
                };
                if F == DType::Q6K as u8 {
                    let minus_first = *args.minus_first_sums.add(at);
                    let minus_second = *args.minus_sums.add(at) - minus_first;
                    let sub = panel.add(stripe.scales + in_stripe * 2 * PANEL_ROWS).cast::<i8>();
                    for r in 0..PANEL_ROWS {
                        let (s0, s1) = (*sub.add(r), *sub.add(PANEL_ROWS + r));
                        lo[r] = (lo[r] + (minus_first << 5)) * i32::from(s0);
                        hi[r] = (hi[r] + (minus_second << 5)) * i32::from(s1);
                    }
                } else if let (Some(shift), false) = (zero_shift(F), wide) {
                    lo.iter_mut().for_each(|x| *x += *args.minus_sums.add(at) << shift);
                }
                let scale = *args.scales.add(at);
                let sum = *args.scaled_sums.add(at);
                for r in 0..PANEL_ROWS {
                    let dot = (lo[r] + hi[r]) as f32;
                    acc[r] = dot.mul_add(scales[r] * scale, acc[r]);
                    if zero_shift(F).is_none() {
                        acc[r] = mins[r].mul_add(sum, acc[r]);
                    }
                }
            }
        }
    }
    // SAFETY: by this function's contract.
    unsafe { store(args, &acc) };
}

// `[8][row][4]` codes of block `b` of a stripe.
#[inline(always)]
unsafe fn unpack<const F: u8>(panel: *const u8, b: usize) -> [u8; 512] {
    let stripe = const { Stripe::of(F) };
    let mut w = [0u8; 512];
    // SAFETY: block `b` is within the stripe.
    unsafe {
        if F == DType::Q8_0 as u8 {
            return *panel.add(b * 512).cast();
        }
        let nibbles: &[u8; 256] = &*panel.add(b * 256).cast();
        for i in 0..256 {
            w[i] = nibbles[i] & 15;
            w[256 + i] = nibbles[i] >> 4;
        }
        if has_fifth_bit(F) {
            let high: &[u8; 64] = &*panel.add(stripe.high + b * 64).cast();
            for j in 0..8 {
                for i in 0..64 {
                    w[j * 64 + i] |= (high[i] >> j & 1) << 4;
                }
            }
        }
        if F == DType::Q6K as u8 {
            let high: &[u8; 128] = &*panel.add(stripe.high + b * 128).cast();
            for j in 0..8 {
                for i in 0..64 {
                    w[j * 64 + i] |= (high[j / 4 * 64 + i] >> (2 * (j % 4)) & 3) << 4;
                }
            }
        }
    }
    w
}

/// The exact value of a half, without branches so that the compiler can vectorize it.
#[inline(always)]
pub fn half_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000); // 2^112
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

// Scales of block `b` of a stripe, and what the scaled sum is multiplied with.
#[inline(always)]
unsafe fn scales<const F: u8>(panel: *const u8, b: usize) -> (Lanes<f32>, Lanes<f32>) {
    let stripe = const { Stripe::of(F) };
    let (mut scales, mut mins) = ([0.0; PANEL_ROWS], [0.0; PANEL_ROWS]);
    // SAFETY: block `b` is within the stripe.
    unsafe {
        let halves = |at: usize| &*panel.add(at).cast::<[u16; PANEL_ROWS]>();
        let bytes = |at: usize| &*panel.add(at).cast::<[u8; PANEL_ROWS]>();
        if F == DType::Q6K as u8 {
            let d = halves(stripe.supers);
            scales = d.map(half_to_f32);
        } else if has_k_scales(F) {
            let d = halves(stripe.supers);
            let dmin = halves(stripe.supers + 32);
            let (s, m) = (bytes(stripe.scales + b * 16), bytes(stripe.mins + b * 16));
            for r in 0..PANEL_ROWS {
                scales[r] = half_to_f32(d[r]) * f32::from(s[r]);
                mins[r] = -(half_to_f32(dmin[r]) * f32::from(m[r]));
            }
        } else {
            scales = halves(stripe.scales + b * 32).map(half_to_f32);
            if zero_shift(F).is_none() {
                mins = halves(stripe.mins + b * 32).map(half_to_f32);
            }
        }
    }
    (scales, mins)
}

/// Float weights, `T` tokens, every product fused into its sum in column order.
///
/// # Safety
/// `args` describes a panel of encoding `F` and a tile of `T` tokens of floats.
#[inline(always)]
pub unsafe fn dense<const F: u8, const T: usize>(args: &TileArgs) {
    let mut acc = [[0.0f32; PANEL_ROWS]; T];
    for c in 0..args.layout.cols {
        let mut w = [0.0f32; PANEL_ROWS];
        // SAFETY: column `c` is within the panel and the tile.
        let a: &[f32; T] = unsafe {
            for (r, w) in w.iter_mut().enumerate() {
                let index = c * PANEL_ROWS + r;
                *w = if F == DType::F32 as u8 {
                    *args.panel.cast::<f32>().add(index)
                } else if F == DType::F16 as u8 {
                    half_to_f32(*args.panel.cast::<u16>().add(index))
                } else {
                    let index = (c / 2 * PANEL_ROWS + r) * 2 + c % 2;
                    f32::from_bits(u32::from(*args.panel.cast::<u16>().add(index)) << 16)
                };
            }
            &*args.floats.add(c * T).cast()
        };
        for (acc, a) in acc.iter_mut().zip(a) {
            for r in 0..PANEL_ROWS {
                acc[r] = w[r].mul_add(*a, acc[r]);
            }
        }
    }
    // SAFETY: by this function's contract.
    unsafe { store(args, &acc) };
}

#[inline(always)]
unsafe fn store<const T: usize>(args: &TileArgs, acc: &[Lanes<f32>; T]) {
    for (t, acc) in acc.iter().enumerate() {
        for (r, &x) in acc.iter().enumerate().take(args.rows) {
            // SAFETY: row `r` exists, and out and bias cover the panel's rows.
            unsafe {
                let bias = if args.bias.is_null() { 0.0 } else { *args.bias.add(r) };
                *args.out.add(t * args.out_stride + r) = x + bias;
            }
        }
    }
}
