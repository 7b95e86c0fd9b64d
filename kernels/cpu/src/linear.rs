//! Linear operations: panels of weights times tiles of activations, cut among the threads.
//!
//! Every output element is one chain of operations in column order, whatever the batch, the tile
//! and the thread that computes it: results are the same bit for bit.
//!
//! Measured with `examples/throughput` (SmolLM2-135M's shapes, Q4_1 with a Q8_0 embedding, two
//! Zen 5 cores shared with other work, best of several), tokens per second:
//!
//! | kernels | prefill 512 | decode batch 1 | decode batch 16 |
//! |---|---|---|---|
//! | portable | 24 | 9 | 21 |
//! | AVX2 | 940 | 255 | 648 |
//! | AVX-512 VNNI, no prefetch | 2,861 | 281 | 916 |
//! | AVX-512 VNNI, stripes and prefetch | 3,218 | 491 | 2,175 |

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use tenon_backend::DType;

use crate::activations::{ActivationKind, Activations, Tile};
use crate::attention::ahead::{Ahead, Lines};
use crate::isa::Isa;
use crate::memory::SharedPtr;
use crate::packed::{BLOCK, PANEL_ROWS, PanelLayout, is_quantized};
use crate::pool::Pool;

/// Tasks per thread that a linear operation is cut into: few enough to claim cheaply, enough that
/// a slow thread is made up for.
const TASKS_PER_THREAD: usize = 6;
/// Rows that pass over a task's panels before the next ones do: their codes stay in the L2 cache.
const ROWS_PER_PASS: usize = 128;

/// What a kernel reads and writes: one panel times one tile.
#[derive(Clone, Copy)]
pub struct TileArgs {
    /// The panel.
    pub panel: *const u8,
    /// Its layout.
    pub layout: PanelLayout,
    /// The tile's part of each array of [`Activations`].
    pub codes: *const i8,
    /// See [`Activations`].
    pub scales: *const f32,
    /// See [`Activations`].
    pub scaled_sums: *const f32,
    /// See [`Activations`].
    pub minus_sums: *const i32,
    /// See [`Activations`].
    pub minus_first_sums: *const i32,
    /// See [`Activations`].
    pub pairs: *const u32,
    /// See [`Activations`].
    pub floats: *const f32,
    /// Of the panel's first row and the tile's first token.
    pub out: *mut f32,
    /// From one token to the next in `out`.
    pub out_stride: usize,
    /// Rows of the panel that exist, 1 to 16.
    pub rows: usize,
    /// `[rows]` or null.
    pub bias: *const f32,
    /// To ask for meanwhile.
    pub ahead: Lines,
}

/// Computes one panel times one tile.
pub type Kernel = unsafe fn(&TileArgs);

/// A packed weight and the kernels for it.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// Of its panels.
    pub layout: PanelLayout,
    /// Outputs.
    pub rows: usize,
    /// Where its panels start among the backend's packed weights.
    pub offset: usize,
    /// What its kernels read.
    pub kind: ActivationKind,
    /// By the tile's length: 1, 2, 4, 8, 16.
    kernels: [Kernel; 5],
}

impl Matrix {
    /// A matrix of `rows` rows at `offset`.
    pub fn new(isa: Isa, layout: PanelLayout, rows: usize, offset: usize) -> Self {
        let kernels = [1, 2, 4, 8, 16].map(|len| kernel(isa, layout.dtype, len));
        let kind = activation_kind(isa, layout.dtype);
        Matrix { layout, rows, offset, kind, kernels }
    }

    /// Panels of 16 rows.
    pub fn num_panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }
}

// What the kernels for weights of this encoding read.
fn activation_kind(isa: Isa, dtype: DType) -> ActivationKind {
    match dtype {
        _ if is_quantized(dtype) => ActivationKind::Int8,
        DType::BF16 if isa == Isa::Avx512Bf16 => ActivationKind::Bf16,
        _ => ActivationKind::F32,
    }
}

fn kernel(isa: Isa, dtype: DType, tile_len: usize) -> Kernel {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 => avx512::kernel(isa, dtype, tile_len),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::kernel(dtype, tile_len),
        _ => portable::kernel(dtype, tile_len),
    }
}

/// One product of an operation.
pub struct Product {
    /// The weight.
    pub matrix: Matrix,
    /// `[matrix.rows]` or null.
    pub bias: *const f32,
    /// `[rows of the input, matrix.rows]`
    pub out: SharedPtr<f32>,
}

// SAFETY: the pointers are only used by `linear`, whose caller vouches for them.
unsafe impl Send for Product {}
// SAFETY: as above: read (bias) or written in disjoint parts (out) while the operation runs.
unsafe impl Sync for Product {}

/// Converts `input` (`[rows, cols]`) and computes all `products` of it; asks for `ahead` meanwhile.
///
/// # Safety
/// Each product's matrix lies within `weights`, has `cols` columns, and its `bias` and `out` have
/// the sizes stated; no `out` overlaps anything else; `activations` has room for the conversion.
pub unsafe fn linear(
    pool: &mut Pool,
    isa: Isa,
    weights: &[u8],
    activations: &mut Activations,
    (input, cols): (&[f32], usize),
    products: &[Product],
    ahead: Option<&Ahead<'_>>,
) {
    for kind in [ActivationKind::Int8, ActivationKind::Bf16, ActivationKind::F32] {
        if products.iter().any(|p| p.matrix.kind == kind) {
            activations.convert(pool, isa, kind, input, cols);
        }
    }
    let rows = input.len() / cols;
    let num_panels: usize = products.iter().map(|p| p.matrix.num_panels()).sum();
    let num_tasks = num_panels.min(pool.num_threads() * TASKS_PER_THREAD);
    let activations = &*activations;
    pool.run(num_tasks, |task, _| {
        let panels = task * num_panels / num_tasks..(task + 1) * num_panels / num_tasks;
        for pass in (0..rows).step_by(ROWS_PER_PASS) {
            let pass = pass..rows.min(pass + ROWS_PER_PASS);
            for panel in panels.clone() {
                // SAFETY: by this function's contract; panels are disjoint.
                unsafe {
                    one_panel(weights, activations, products, panel, pass.clone(), rows, ahead)
                };
            }
        }
    });
}

// All tiles that start in `pass`, for the panel that is `panel`th among all products'.
unsafe fn one_panel(
    weights: &[u8],
    activations: &Activations,
    products: &[Product],
    mut panel: usize,
    pass: std::ops::Range<usize>,
    rows: usize,
    ahead: Option<&Ahead<'_>>,
) {
    let mut product = &products[0];
    for candidate in products {
        product = candidate;
        if panel < product.matrix.num_panels() {
            break;
        }
        panel -= product.matrix.num_panels();
    }
    let matrix = &product.matrix;
    let layout = matrix.layout;
    let first_row = panel * PANEL_ROWS;
    let bytes = &weights[matrix.offset + panel * layout.bytes..][..layout.bytes];
    let (cols, blocks) = (layout.cols, layout.cols / BLOCK);
    let mut index = pass.start / matrix.kind.max_tile();
    let mut start = pass.start;
    while start < pass.end {
        let tile = Tile::nth(matrix.kind, rows, index);
        // SAFETY: the tile's rows were converted, and out and bias hold the panel's rows.
        unsafe {
            let args = TileArgs {
                panel: bytes.as_ptr(),
                layout,
                codes: activations.codes.as_ptr().wrapping_add(start * cols),
                scales: activations.scales.as_ptr().wrapping_add(start * blocks),
                scaled_sums: activations.scaled_sums.as_ptr().wrapping_add(start * blocks),
                minus_sums: activations.minus_sums.as_ptr().wrapping_add(start * blocks),
                minus_first_sums: activations
                    .minus_first_sums
                    .as_ptr()
                    .wrapping_add(start * blocks),
                pairs: activations.pairs.as_ptr().wrapping_add(start * cols.div_ceil(2)),
                floats: activations.floats.as_ptr().wrapping_add(start * cols),
                out: product.out.at(start * matrix.rows + first_row),
                out_stride: matrix.rows,
                rows: PANEL_ROWS.min(matrix.rows - first_row),
                bias: if product.bias.is_null() {
                    product.bias
                } else {
                    product.bias.add(first_row)
                },
                ahead: ahead.map_or(Lines::NONE, |ahead| ahead.next(blocks)),
            };
            (matrix.kernels[tile.len.ilog2() as usize])(&args);
        }
        index += 1;
        start += tile.len;
    }
}

/// Picks the instance of a kernel that is generic over the encoding (as u8) and the tile's length.
macro_rules! pick {
    ($kernel:ident, $dtype:expr, $len:expr, [$($name:ident),*]) => {
        match $dtype {
            $(tenon_backend::DType::$name => {
                const F: u8 = tenon_backend::DType::$name as u8;
                match $len {
                    1 => $kernel::<F, 1> as $crate::linear::Kernel,
                    2 => $kernel::<F, 2>,
                    4 => $kernel::<F, 4>,
                    8 => $kernel::<F, 8>,
                    _ => $kernel::<F, 16>,
                }
            })*
            _ => unreachable!("no kernel for {:?}", $dtype),
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::for_tokens;
pub(crate) use pick;
pub use portable::half_to_f32;
