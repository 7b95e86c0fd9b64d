//! Operations that need no more than a row: norms, rotary embedding, gated activations, softcap.
//!
//! Rows are cut among the threads when there are enough; a row's result depends on it alone.

use tenon_backend::{Activation, RopeStyle};

use crate::isa::{Isa, for_each_isa};
use crate::math::{gelu_tanh, silu, sum_of_squares, tanh};
use crate::memory::SharedPtr;
use crate::pool::Pool;

/// Rows that one task handles.
const ROWS_PER_TASK: usize = 8;

for_each_isa! {
    /// `out = x / rms(x) * weight` for each run of `weight.len()` elements.
    pub fn norm_runs(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = norm_runs_any;
    /// The same in place.
    pub fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) = norm_in_place_any;
    /// `residual += x`
    pub fn add(residual: &mut [f32], x: &[f32]) = add_any;
    /// `gate = act(gate) * up`
    pub fn gated(gate: &mut [f32], up: &[f32], act: Activation) = gated_any;
    /// `x = cap * tanh(x / cap)`
    pub fn softcap(x: &mut [f32], cap: f32) = softcap_any;
    /// Rotates each head of `head_dim` elements by the cosines and sines of one position.
    pub fn rotate(
        row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32],
    ) = rotate_any;
}

/// Calls `f` with runs of rows `start..start + rows` of `0..rows`, on all threads if that pays.
pub fn for_rows(pool: &mut Pool, rows: usize, width: usize, f: impl Fn(usize, usize) + Sync) {
    pool.run_light(rows.div_ceil(ROWS_PER_TASK), rows * width, |task, _| {
        let start = task * ROWS_PER_TASK;
        f(start, ROWS_PER_TASK.min(rows - start));
    });
}

/// Calls `f` with runs of the rows of `out` (`[rows, width]`) and the first row of each.
pub fn for_rows_mut(
    pool: &mut Pool,
    out: &mut [f32],
    width: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    let shared = SharedPtr::new(out);
    for_rows(pool, out.len() / width, width, |start, rows| {
        // SAFETY: runs of rows are disjoint parts of `out`.
        f(start, unsafe { shared.slice(start * width, rows * width) });
    });
}

/// `out = norm(x)`; both `[rows, weight.len()]`.
pub fn rms_norm(pool: &mut Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for_rows_mut(pool, out, weight.len(), |start, out| {
        let x = &x[start * weight.len()..][..out.len()];
        norm_runs(isa, x, weight, eps, out);
    });
}

/// `residual += x; out = norm(residual)`; all `[rows, weight.len()]`.
pub fn add_rms_norm(
    pool: &mut Pool,
    isa: Isa,
    residual: &mut [f32],
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let width = weight.len();
    let residual = SharedPtr::new(residual);
    for_rows_mut(pool, out, width, |start, out| {
        // SAFETY: as many elements as `out` has, at the same place; runs are disjoint.
        let residual = unsafe { residual.slice(start * width, out.len()) };
        add(isa, residual, &x[start * width..][..out.len()]);
        norm_runs(isa, residual, weight, eps, out);
    });
}

/// `residual += x`; both `[rows, width]`.
pub fn add_rows(pool: &mut Pool, isa: Isa, residual: &mut [f32], x: &[f32], width: usize) {
    for_rows_mut(pool, residual, width, |start, residual| {
        add(isa, residual, &x[start * width..][..residual.len()]);
    });
}

/// `out = act(gate) * up`, all `[rows, width]`; without `gate`, it is what `out` holds.
pub fn gated_mlp(
    pool: &mut Pool,
    isa: Isa,
    gate: Option<&[f32]>,
    up: &[f32],
    out: &mut [f32],
    width: usize,
    act: Activation,
) {
    for_rows_mut(pool, out, width, |start, out| {
        let same = start * width..start * width + out.len();
        if let Some(gate) = gate {
            out.copy_from_slice(&gate[same.clone()]);
        }
        gated(isa, out, &up[same], act);
    });
}

#[inline(always)]
fn norm_scale(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn norm_runs_any(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let scale = norm_scale(x, eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * w;
        }
    }
}

#[inline(always)]
fn norm_in_place_any(x: &mut [f32], weight: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        let scale = norm_scale(x, eps);
        x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
    }
}

#[inline(always)]
fn add_any(residual: &mut [f32], x: &[f32]) {
    residual.iter_mut().zip(x).for_each(|(r, x)| *r += x);
}

#[inline(always)]
fn gated_any(gate: &mut [f32], up: &[f32], act: Activation) {
    match act {
        Activation::Silu => gate.iter_mut().zip(up).for_each(|(g, u)| *g = silu(*g) * u),
        Activation::GeluTanh => gate.iter_mut().zip(up).for_each(|(g, u)| *g = gelu_tanh(*g) * u),
    }
}

#[inline(always)]
fn softcap_any(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
}

#[inline(always)]
fn rotate_any(row: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in row.chunks_exact_mut(head_dim) {
        match style {
            RopeStyle::Half => {
                let (a, rest) = head.split_at_mut(half);
                for (((a, b), c), s) in a.iter_mut().zip(&mut rest[..half]).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
            RopeStyle::Interleaved => {
                for (([a, b], c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}
