//! The inputs of linear operations, converted once per operation to what the kernels read.
//!
//! Rows are cut into tiles of 16 (floats), 8, 4, 2 and 1 so that a kernel of a fixed number of
//! tokens reads one contiguous run. A row's conversion depends on that row alone, never on its
//! neighbours.

#[cfg(target_arch = "x86_64")]
mod avx512;

use half::bf16;
use tenon_backend::BackendError;

use crate::isa::{Isa, for_each_isa};
use crate::math::{LANES, round_to_int};
use crate::memory::{Buffer, SharedPtr};
use crate::packed::BLOCK;
use crate::pool::Pool;

/// Which conversion a weight's kernel wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationKind {
    /// 8-bit codes with a scale per 32 columns.
    Int8,
    /// Pairs of bfloat16.
    Bf16,
    /// As they are.
    F32,
}

impl ActivationKind {
    /// Most rows of a tile. Codes and scales of 16 rows and 1536 columns alone would fill the
    /// first-level cache, and unpacked weights pay for 8 already (16: 6 % slower in prefill).
    pub const fn max_tile(self) -> usize {
        match self {
            ActivationKind::Int8 => 8,
            ActivationKind::Bf16 | ActivationKind::F32 => 16,
        }
    }
}

/// A run of rows that one kernel call handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// First row.
    pub start: usize,
    /// 16, 8, 4, 2 or 1.
    pub len: usize,
}

impl Tile {
    /// Tiles of `rows` rows.
    pub fn count(kind: ActivationKind, rows: usize) -> usize {
        let most = kind.max_tile();
        rows / most + (rows % most).count_ones() as usize
    }

    /// Tile `index` of `rows` rows: full tiles first, then the rest by falling powers of two.
    pub fn nth(kind: ActivationKind, rows: usize, index: usize) -> Tile {
        let most = kind.max_tile();
        let full = rows / most;
        if index < full {
            return Tile { start: index * most, len: most };
        }
        let mut tile = Tile { start: full * most, len: 0 };
        let mut rest = rows % most;
        for _ in full..=index {
            tile.start += tile.len;
            tile.len = 1 << rest.ilog2();
            rest -= tile.len;
        }
        tile
    }
}

/// Converted rows of one linear operation. A tile of rows `start..start + len` of `cols` columns
/// (`blocks` of 32) has its part of each array at `start` times what one row takes.
pub struct Activations {
    /// `[block][row][32]` codes of a tile.
    pub codes: Buffer<i8>,
    /// `[block][row]` scales.
    pub scales: Buffer<f32>,
    /// `[block][row]` scale times the sum of the codes.
    pub scaled_sums: Buffer<f32>,
    /// `[block][row]` minus the sum of the codes.
    pub minus_sums: Buffer<i32>,
    /// `[block][row]` minus the sum of the first 16 codes.
    pub minus_first_sums: Buffer<i32>,
    /// `[column / 2][row]` pairs, the lower column in the low half.
    pub pairs: Buffer<u32>,
    /// `[column][row]`
    pub floats: Buffer<f32>,
}

impl Activations {
    /// For at most `rows` rows of, for each kind, at most so many columns (0: never used).
    pub fn new(rows: usize, int8: usize, bf16: usize, f32: usize) -> Result<Self, BackendError> {
        let what = "converted activations";
        let blocks = rows * int8.div_ceil(BLOCK);
        Ok(Activations {
            codes: Buffer::zeroed(blocks * BLOCK, what)?,
            scales: Buffer::zeroed(blocks, what)?,
            scaled_sums: Buffer::zeroed(blocks, what)?,
            minus_sums: Buffer::zeroed(blocks, what)?,
            minus_first_sums: Buffer::zeroed(blocks, what)?,
            pairs: Buffer::zeroed(rows * bf16.div_ceil(2), what)?,
            floats: Buffer::zeroed(rows * f32, what)?,
        })
    }

    /// Converts `input`, `[rows, cols]`.
    pub fn convert(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        kind: ActivationKind,
        input: &[f32],
        cols: usize,
    ) {
        let rows = input.len() / cols;
        let tiles = Tile::count(kind, rows);
        let out = Targets {
            codes: SharedPtr::new(&mut self.codes),
            scales: SharedPtr::new(&mut self.scales),
            scaled_sums: SharedPtr::new(&mut self.scaled_sums),
            minus_sums: SharedPtr::new(&mut self.minus_sums),
            minus_first_sums: SharedPtr::new(&mut self.minus_first_sums),
            pairs: SharedPtr::new(&mut self.pairs),
            floats: SharedPtr::new(&mut self.floats),
        };
        pool.run_light(tiles, input.len(), |index, _| {
            let tile = Tile::nth(kind, rows, index);
            let x = &input[tile.start * cols..][..tile.len * cols];
            // SAFETY: tiles are disjoint runs of rows, and `new` made room for all of them.
            unsafe {
                match kind {
                    ActivationKind::Int8 => out.quantize(isa, x, cols, tile),
                    ActivationKind::Bf16 => {
                        let width = cols.div_ceil(2);
                        let pairs = out.pairs.slice(tile.start * width, tile.len * width);
                        pair_up(isa, x, cols, tile.len, pairs);
                    }
                    ActivationKind::F32 => {
                        let floats = out.floats.slice(tile.start * cols, tile.len * cols);
                        interleave(isa, x, cols, tile.len, floats);
                    }
                }
            }
        });
    }
}

#[derive(Clone, Copy)]
struct Targets {
    codes: SharedPtr<i8>,
    scales: SharedPtr<f32>,
    scaled_sums: SharedPtr<f32>,
    minus_sums: SharedPtr<i32>,
    minus_first_sums: SharedPtr<i32>,
    pairs: SharedPtr<u32>,
    floats: SharedPtr<f32>,
}

// One tile's part of the arrays of 8-bit activations.
struct Quantized<'a> {
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    scaled_sums: &'a mut [f32],
    minus_sums: &'a mut [i32],
    minus_first_sums: &'a mut [i32],
}

impl Targets {
    // SAFETY: the caller owns the tile's rows, and the arrays have room for them.
    unsafe fn quantize(&self, isa: Isa, x: &[f32], cols: usize, tile: Tile) {
        let blocks = cols / BLOCK;
        let (start, len) = (tile.start * blocks, tile.len * blocks);
        // SAFETY: by this function's contract.
        let out = unsafe {
            Quantized {
                codes: self.codes.slice(start * BLOCK, len * BLOCK),
                scales: self.scales.slice(start, len),
                scaled_sums: self.scaled_sums.slice(start, len),
                minus_sums: self.minus_sums.slice(start, len),
                minus_first_sums: self.minus_first_sums.slice(start, len),
            }
        };
        quantize_tile(isa, x, cols, tile.len, out);
    }
}

fn quantize_tile(isa: Isa, x: &[f32], cols: usize, rows: usize, out: Quantized<'_>) {
    match isa {
        // SAFETY: an Isa that reaches a kernel was checked to be available.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512::quantize_tile(x, cols, rows, out) },
        _ => quantize_tile_others(isa, x, cols, rows, out),
    }
}

for_each_isa! {
    fn quantize_tile_others(
        x: &[f32], cols: usize, rows: usize, out: Quantized<'_>,
    ) = quantize_tile_any;
    fn pair_up(x: &[f32], cols: usize, rows: usize, out: &mut [u32]) = pair_up_any;
    fn interleave(x: &[f32], cols: usize, rows: usize, out: &mut [f32]) = interleave_any;
}

#[inline(always)]
fn quantize_tile_any(x: &[f32], cols: usize, rows: usize, out: Quantized<'_>) {
    let codes = out.codes.as_chunks_mut::<BLOCK>().0;
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = b * rows + row;
            let scale = quantize_block(x, &mut codes[at]);
            let (first, second) = codes[at].split_at(BLOCK / 2);
            let sum = |codes: &[i8]| codes.iter().map(|&q| i32::from(q)).sum::<i32>();
            let first = sum(first);
            let total = first + sum(second);
            out.scales[at] = scale;
            out.scaled_sums[at] = scale * total as f32;
            out.minus_sums[at] = -total;
            out.minus_first_sums[at] = -first;
        }
    }
}

// Codes in -127..=127; gives back the scale. Magnitudes are compared as integers, in which order
// something that is not a number is the largest: it makes the scale one, too.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> f32 {
    let mut lanes = [0u32; LANES];
    for (i, x) in x.iter().enumerate() {
        let lane = &mut lanes[i % LANES];
        *lane = x.abs().to_bits().max(*lane);
    }
    let largest = f32::from_bits(lanes.into_iter().fold(0, u32::max));
    let inverse = if largest > SMALLEST { 127.0 / largest } else { 0.0 };
    for (q, x) in codes.iter_mut().zip(x) {
        *q = round_to_int(x * inverse) as i8;
    }
    largest * INVERSE_127
}

/// A block of nothing larger is all zero: the inverse would overflow.
const SMALLEST: f32 = 1e-36;
/// The largest code is 127, so that negative ones have the same range.
const INVERSE_127: f32 = 1.0 / 127.0;

#[inline(always)]
fn pair_up_any(x: &[f32], cols: usize, rows: usize, out: &mut [u32]) {
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (i, pair) in x.chunks(2).enumerate() {
            let bits = |x: f32| u32::from(round_to_bf16(x));
            let high = pair.get(1).map_or(0, |&x| bits(x));
            out[i * rows + row] = bits(pair[0]) | high << 16;
        }
    }
}

// As `bf16::from_f32` for everything but NaN payloads.
#[inline(always)]
fn round_to_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return bf16::NAN.to_bits();
    }
    let bits = x.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[inline(always)]
fn interleave_any(x: &[f32], cols: usize, rows: usize, out: &mut [f32]) {
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (c, x) in x.iter().enumerate() {
            out[c * rows + row] = *x;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ActivationKind, BLOCK, Quantized, Tile, quantize_tile};
    use crate::isa::Isa;
    use crate::testing::noise;

    #[derive(Debug, PartialEq)]
    struct Row {
        codes: Vec<i8>,
        scales: Vec<u32>,
        scaled_sums: Vec<u32>,
        minus_sums: Vec<[i32; 2]>,
    }

    // A row of a tile, without the codes of blocks that are not finite.
    fn quantized(isa: Isa, x: &[f32], cols: usize, rows: usize) -> Vec<Row> {
        let len = x.len() / BLOCK;
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; len]);
        let (mut scaled, mut sums, mut firsts) = (vec![0.0; len], vec![0; len], vec![0; len]);
        let out = Quantized {
            codes: &mut codes,
            scales: &mut scales,
            scaled_sums: &mut scaled,
            minus_sums: &mut sums,
            minus_first_sums: &mut firsts,
        };
        quantize_tile(isa, x, cols, rows, out);
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        let row = |row: usize| {
            let at = (0..cols / BLOCK).map(|b| b * rows + row);
            let finite: Vec<_> = at.clone().filter(|&at| scales[at].is_finite()).collect();
            let codes = finite.iter().flat_map(|&at| &codes[at * BLOCK..][..BLOCK]).copied();
            Row {
                codes: codes.collect(),
                scales: at.clone().map(|at| bits(scales[at])).collect(),
                scaled_sums: finite.iter().map(|&at| bits(scaled[at])).collect(),
                minus_sums: finite.iter().map(|&at| [sums[at], firsts[at]]).collect(),
            }
        };
        (0..rows).map(row).collect()
    }

    proptest! {
        #[test]
        fn rows_are_the_same_on_every_machine_and_in_every_tile(
            log_rows in 0u32..4, blocks in 1usize..6, seed: u32, scale in -126i32..100,
            odd in prop::collection::vec((any::<prop::sample::Index>(), 0usize..6), 0..4),
        ) {
            let (rows, cols) = (1 << log_rows, blocks * BLOCK);
            let mut x = noise(rows * cols, seed, 2f32.powi(scale));
            for (at, which) in odd {
                let values = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
                x[at.index(rows * cols)] = values[which];
            }
            let expected = quantized(Isa::Portable, &x, cols, rows);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                prop_assert_eq!(&quantized(isa, &x, cols, rows), &expected, "{:?}", isa);
                for (row, x) in expected.iter().zip(x.chunks_exact(cols)) {
                    prop_assert_eq!(&quantized(isa, x, cols, 1)[0], row, "{:?}, alone", isa);
                }
            }
            let is_broken = |x: &&[f32]| x.iter().any(|x| x.is_nan());
            for (row, x) in expected.iter().zip(x.chunks_exact(cols)) {
                let broken = x.chunks_exact(BLOCK).filter(is_broken).count();
                let is_nan = |&&bits: &&u32| f32::from_bits(bits).is_nan();
                prop_assert_eq!(row.scales.iter().filter(is_nan).count(), broken);
            }
        }
    }

    #[test]
    fn tiles_cover_rows_once() {
        for kind in [ActivationKind::Int8, ActivationKind::Bf16] {
            for rows in 0..100 {
                let mut next = 0;
                for index in 0..Tile::count(kind, rows) {
                    let tile = Tile::nth(kind, rows, index);
                    assert_eq!(tile.start, next);
                    assert!(tile.len.is_power_of_two() && tile.len <= kind.max_tile());
                    next += tile.len;
                }
                assert_eq!(next, rows);
            }
        }
    }
}
