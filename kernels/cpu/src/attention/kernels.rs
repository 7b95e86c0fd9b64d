//! The two products of attention, for a tile of query rows against groups of 16 slots, and the
//! softmax between them.
//!
//! Three ways: `float` multiplies f32, in the order of dims and of positions; `pairs` uses bfloat16
//! dot products where cache and machine have them; `codes` stays in integers on an 8-bit cache,
//! with queries and weights of 15 bits.

mod codes;
mod float;
#[cfg(target_arch = "x86_64")]
mod pairs;

use tenon_backend::KvDType;

use super::cache::{GROUP, GroupPtrs, KvElement, padded_dim};
use crate::isa::{Isa, for_each_isa};
use crate::math::{LANES, exp, fold, tanh};

/// Positions of a partition, the unit that softmax runs over.
pub const PARTITION: usize = 256;
/// Groups of a partition.
pub const GROUPS: usize = PARTITION / GROUP;
/// Most query rows of a tile.
pub const MAX_ROWS: usize = 16;
/// Up to so many rows a tile is computed as long as it is: the query heads of one key head, for
/// models up to eight of them.
const MAX_EXACT_ROWS: usize = 8;
/// Widest head of an 8-bit cache: 512 products of 15 and 8 bits fit 32.
pub const MAX_CODES_DIM: usize = 512;

/// Rows that a tile of `rows` rows is computed with: kernels are compiled for 1 to 8 and 16.
pub fn padded_rows(rows: usize) -> usize {
    if rows <= MAX_EXACT_ROWS { rows } else { MAX_ROWS }
}

/// Evaluates an expression with a constant for what [`padded_rows`] gave.
macro_rules! for_tile_rows {
    ($rows:expr, $T:ident => $call:expr) => {
        for_tile_rows!(@ $rows, $T, $call, 1 2 3 4 5 6 7 8 16)
    };
    (@ $rows:expr, $T:ident, $call:expr, $($n:literal)*) => {
        match $rows {
            $($n => {
                const $T: usize = $n;
                $call
            })*
            rows => unreachable!("no kernel for tiles of {rows} rows"),
        }
    };
}

/// How the products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In f32.
    Float,
    /// bfloat16 pairs, summed in f32.
    Pairs,
    /// 8-bit codes times 15-bit ones.
    Codes,
}

impl Way {
    /// For a cache of `E` on `isa`.
    pub fn of<E: KvElement>(isa: Isa) -> Way {
        match E::DTYPE {
            KvDType::BF16 if isa == Isa::Avx512Bf16 => Way::Pairs,
            KvDType::Int8 => Way::Codes,
            _ => Way::Float,
        }
    }
}

/// A tile of query rows against the groups of one partition.
pub struct TileJob<'a, R> {
    /// Groups in the order of positions; at most [`GROUPS`].
    pub groups: &'a [GroupPtrs<R>],
    /// Groups that are attended to next, whose keys are asked for meanwhile.
    pub ahead: &'a [GroupPtrs<R>],
    /// Width of a head.
    pub head_dim: usize,
    /// Slots that hold a token, over all groups: the last group may be part filled.
    pub num_slots: usize,
}

/// Rows below which the products wait for memory rather than for multiplications: the keys and
/// values that are needed next are asked for, to the second-level cache.
#[cfg(target_arch = "x86_64")]
pub const FEW_ROWS: usize = 16;

/// A tile's queries as [`scores`] reads them.
pub struct Queries<'a> {
    /// Float: `[dim][rows]`. Pairs: `[dim / 2][rows]` of two bfloat16. Codes: `[2][dim / 4][rows]`
    /// of four codes, the high parts first.
    pub words: &'a mut [f32],
    /// Codes: `[rows]` what a code stands for.
    pub scales: [f32; MAX_ROWS],
    /// Codes: `[rows]` 128 times the sum of a row's codes.
    pub offsets: [i32; MAX_ROWS],
}

/// Writes query row `row` of `rows`, times `scale`, to `out`.
pub fn put_query<E: KvElement>(
    isa: Isa,
    row: usize,
    rows: usize,
    q: &[f32],
    scale: f32,
    out: &mut Queries<'_>,
) {
    let dim = q.len();
    assert!(row < rows && out.words.len() >= dim.next_multiple_of(E::PACK) * rows);
    match Way::of::<E>(isa) {
        Way::Float => (0..dim.next_multiple_of(E::PACK)).for_each(|d| {
            out.words[d * rows + row] = if d < dim { q[d] * scale } else { 0.0 };
        }),
        // SAFETY: the way is taken on machines that have the instructions, and lengths are checked.
        #[cfg(target_arch = "x86_64")]
        Way::Pairs => unsafe { pairs::put_query(row, rows, q, scale, out.words) },
        #[cfg(not(target_arch = "x86_64"))]
        Way::Pairs => unreachable!("no instruction set here has these dot products"),
        Way::Codes => codes::put_query(row, rows, q, scale, out),
    }
}

/// `scores[row][slot] = Σ q[dim][row] * key[dim][slot]` for `rows` ([`padded_rows`]) rows, by
/// groups; `scores` is `[rows][PARTITION]`.
///
/// # Safety
/// The groups' pointers are valid for heads of `head_dim`.
pub unsafe fn scores<E: KvElement>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    rows: usize,
    q: &Queries<'_>,
    scores: &mut [f32],
) {
    let dim = job.head_dim.next_multiple_of(E::PACK);
    assert!(q.words.len() >= dim * rows && scores.len() >= rows * PARTITION);
    assert!(job.groups.len() <= GROUPS);
    let out = scores.as_mut_ptr();
    // SAFETY: by this function's contract and the lengths just checked.
    unsafe {
        for_tile_rows!(rows, T => match Way::of::<E>(isa) {
            Way::Float => float::scores_of::<E, T>(isa, job, q.words, out),
            Way::Codes => codes::scores_of::<E, T>(isa, job, q, out),
            #[cfg(target_arch = "x86_64")]
            Way::Pairs => {
                pairs::scores::<E::Raw, T, { pairs::groups_at_once(T) }>(job, q.words, out);
            }
            #[cfg(not(target_arch = "x86_64"))]
            Way::Pairs => unreachable!("no instruction set here has these dot products"),
        });
    }
}

/// `out[row][dim] = Σ p[row][slot] * value[slot][dim]` over the filled slots; `p` is
/// `[rows][PARTITION]`, 0 beyond the filled ones, and is overwritten; `out` `[rows][padded dim]`.
///
/// # Safety
/// The groups' pointers are valid for heads of `head_dim`.
pub unsafe fn weighted_values<E: KvElement>(
    isa: Isa,
    job: &TileJob<'_, E::Raw>,
    rows: usize,
    p: &mut [f32],
    out: &mut [f32],
) {
    assert!(p.len() >= rows * PARTITION && out.len() >= rows * padded_dim(job.head_dim));
    assert!(job.groups.len() <= GROUPS && job.num_slots <= job.groups.len() * GROUP);
    // SAFETY: by this function's contract and the lengths just checked.
    unsafe {
        for_tile_rows!(rows, T => match Way::of::<E>(isa) {
            Way::Float => float::values_of::<E, T>(isa, job, p, out),
            Way::Codes => codes::values_of::<E, T>(isa, job, p, out),
            #[cfg(target_arch = "x86_64")]
            Way::Pairs => pairs::values::<E::Raw, T, { pairs::vectors_at_once(T) }>(job, p, out),
            #[cfg(not(target_arch = "x86_64"))]
            Way::Pairs => unreachable!("no instruction set here has these dot products"),
        });
    }
}

/// What a partition says about one query row.
#[derive(Debug, Clone, Copy)]
pub struct RowStats {
    /// Its largest score; minus infinity when it sees no slot.
    pub max: f32,
    /// Sum of `exp(score - max)`.
    pub sum: f32,
}

impl RowStats {
    /// Of no slot.
    pub const NONE: RowStats = RowStats { max: f32::NEG_INFINITY, sum: 0.0 };
}

for_each_isa! {
    /// Turns a row's scores into `exp(score - max)`, 0 outside of `first..end`. `scores` is whole
    /// groups.
    pub fn softmax_row(
        scores: &mut [f32], first: usize, end: usize, softcap: Option<f32>,
    ) -> RowStats = softmax_row_any::<false>;
    /// The same, rounded to bfloat16: the sum is that of the rounded weights.
    pub fn softmax_row_rounded(
        scores: &mut [f32], first: usize, end: usize, softcap: Option<f32>,
    ) -> RowStats = softmax_row_any::<true>;
    /// `acc = acc * a + x * b`
    pub fn scale_add(acc: &mut [f32], a: f32, x: &[f32], b: f32) = scale_add_any;
    /// `out = x * factor`
    pub fn scaled(out: &mut [f32], x: &[f32], factor: f32) = scaled_any;
}

#[inline(always)]
fn softmax_row_any<const ROUND: bool>(
    scores: &mut [f32],
    first: usize,
    end: usize,
    softcap: Option<f32>,
) -> RowStats {
    if first >= end {
        scores.fill(0.0);
        return RowStats::NONE;
    }
    scores[..first].fill(f32::NEG_INFINITY);
    scores[end..].fill(f32::NEG_INFINITY);
    if let Some(cap) = softcap {
        scores[first..end].iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
    }
    let groups = scores.as_chunks_mut::<LANES>().0;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut largest = [f32::NEG_INFINITY; LANES];
    for group in groups.iter() {
        for (lane, x) in largest.iter_mut().zip(group) {
            *lane = larger(*lane, *x);
        }
    }
    let max = fold(largest, larger);
    let mut sums = [0.0; LANES];
    for group in groups.iter_mut() {
        for (sum, x) in sums.iter_mut().zip(group) {
            *x = exp(*x - max);
            if ROUND {
                // Positive and at most 1, or not a number, which stays one.
                let bits = x.to_bits();
                let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
                *x = if x.is_nan() { *x } else { f32::from_bits(rounded) };
            }
            *sum += *x;
        }
    }
    RowStats { max, sum: fold(sums, |a, b| a + b) }
}

#[inline(always)]
fn scale_add_any(acc: &mut [f32], a: f32, x: &[f32], b: f32) {
    acc.iter_mut().zip(x).for_each(|(acc, x)| *acc = acc.mul_add(a, x * b));
}

#[inline(always)]
fn scaled_any(out: &mut [f32], x: &[f32], factor: f32) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
}
