//! Checks that every backend makes before it trusts a [`Program`] or the inputs of a step.
//!
//! A program that passes has consistent ids, widths and byte lengths, writes each buffer before it
//! is read, and keeps token buffers and logits-row buffers apart; so kernels index without checks.

use crate::layout::{KvGroup, NO_BLOCK};
use crate::{
    BackendError, BufferId, DType, Op, PrepareOptions, Program, RopeId, StepInputs, Tensor,
    WeightId,
};

/// Most threads that a backend may be asked for.
pub const MAX_THREADS: usize = 1024;
/// Largest width of a buffer and number of rows or columns of a weight: products of two fit in u64.
pub const MAX_DIM: usize = 1 << 28;

// What the rows of a buffer stand for at a point of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Unwritten,
    Tokens,
    Logits,
}

impl Program {
    /// Checks shapes, ids, data lengths, aliasing and order of writes, and that `options` are sane.
    ///
    /// The error is [`BackendError::Unsupported`] in the name of `backend`, and names the operation
    /// or weight.
    pub fn validate(
        &self,
        backend: &'static str,
        options: &PrepareOptions,
    ) -> Result<(), BackendError> {
        check_options(options)
            .and_then(|()| Checker::new(self)?.run())
            .map_err(|reason| BackendError::Unsupported { backend, reason })
    }
}

impl StepInputs<'_> {
    /// Checks that the step stays inside what was prepared: `vocab_size` ids, the pool, block size
    /// and limits of `options`, and the KV `groups`. Spans must cover the tokens in order,
    /// positions be those of the end of each context, and slots agree with the block tables.
    pub fn check(
        &self,
        vocab_size: usize,
        options: &PrepareOptions,
        groups: &[KvGroup],
    ) -> Result<(), BackendError> {
        check_step(self, vocab_size, options, groups).map_err(BackendError::Failed)
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message()) }
}

fn check_options(o: &PrepareOptions) -> Result<(), String> {
    for (name, value) in [
        ("num_blocks", o.num_blocks),
        ("block_size", o.block_size),
        ("max_step_tokens", o.max_step_tokens),
        ("max_logits_rows", o.max_logits_rows),
    ] {
        ensure((1..=MAX_DIM).contains(&value), || {
            format!("`{name}` is `{value}`; choose 1 to {MAX_DIM}")
        })?;
    }
    ensure((1..=MAX_THREADS).contains(&o.num_threads), || {
        format!("`num_threads` is `{}`; choose 1 to {MAX_THREADS}", o.num_threads)
    })?;
    ensure(o.num_blocks * o.block_size < u32::MAX as usize, || {
        format!("`{}` KV blocks of `{}` slots do not fit 32-bit slots", o.num_blocks, o.block_size)
    })
}

struct Checker<'p> {
    program: &'p Program,
    rows: Vec<Rows>,
    current: Rows,
    layer_used: Vec<bool>,
}

impl<'p> Checker<'p> {
    fn new(program: &'p Program) -> Result<Self, String> {
        for (i, &width) in program.buffers.iter().enumerate() {
            ensure((1..=MAX_DIM).contains(&width), || format!("buffer {i} has width `{width}`"))?;
        }
        for tensor in &program.weights {
            check_tensor(tensor)?;
        }
        for (i, layer) in program.kv_layers.iter().enumerate() {
            let sizes = [layer.num_kv_heads, layer.head_dim];
            ensure(sizes.iter().all(|n| (1..=MAX_DIM).contains(n)), || {
                format!("KV layer {i} has `{}` heads of `{}`", sizes[0], sizes[1])
            })?;
            ensure(layer.window != Some(0), || format!("KV layer {i} has a window of `0`"))?;
        }
        for (i, rope) in program.ropes.iter().enumerate() {
            let finite = rope.inv_freq.iter().all(|f| f.is_finite()) && rope.magnitude.is_finite();
            ensure(finite && !rope.inv_freq.is_empty(), || {
                format!("rotary table {i} is empty or not finite")
            })?;
        }
        Ok(Checker {
            program,
            rows: vec![Rows::Unwritten; program.buffers.len()],
            current: Rows::Tokens,
            layer_used: vec![false; program.kv_layers.len()],
        })
    }

    fn run(mut self) -> Result<(), String> {
        for (i, op) in self.program.ops.iter().enumerate() {
            self.op(op).map_err(|reason| format!("operation {i}: {reason}"))?;
        }
        ensure(self.current == Rows::Logits, || "no operation takes the logits rows".into())?;
        self.read(self.program.logits).map_err(|e| format!("logits: {e}"))?;
        Ok(())
    }

    fn width(&self, buffer: BufferId) -> Result<usize, String> {
        let width = self.program.buffers.get(buffer.0 as usize).copied();
        width.ok_or_else(|| {
            format!("buffer `{}` of {} does not exist", buffer.0, self.program.buffers.len())
        })
    }

    fn read(&self, buffer: BufferId) -> Result<usize, String> {
        let width = self.width(buffer)?;
        match self.rows[buffer.0 as usize] {
            Rows::Unwritten => Err(format!("buffer {} is read before it is written", buffer.0)),
            rows if rows == self.current => Ok(width),
            _ => Err(format!("buffer {} holds token rows where logits rows are run", buffer.0)),
        }
    }

    fn write(&mut self, buffer: BufferId) -> Result<usize, String> {
        let width = self.width(buffer)?;
        self.rows[buffer.0 as usize] = self.current;
        Ok(width)
    }

    fn weight(&self, id: WeightId) -> Result<&'p Tensor, String> {
        self.program.weights.get(id.0 as usize).ok_or_else(|| {
            format!("weight `{}` of {} does not exist", id.0, self.program.weights.len())
        })
    }

    fn vector(&self, id: WeightId, width: usize) -> Result<(), String> {
        let t = self.weight(id)?;
        ensure(t.dtype == DType::F32 && t.rows == 1 && t.cols == width, || {
            format!(
                "`{}` is {:?} [{}, {}] where F32 [1, {width}] is needed",
                t.name, t.dtype, t.rows, t.cols
            )
        })
    }

    fn same(&self, what: &str, found: usize, needed: usize) -> Result<(), String> {
        ensure(found == needed, || format!("{what} has width `{found}` where {needed} is needed"))
    }

    fn tokens_only(&self, what: &str) -> Result<(), String> {
        ensure(self.current == Rows::Tokens, || format!("{what} after the logits rows were taken"))
    }

    fn heads(&self, width: usize, head_dim: usize) -> Result<(), String> {
        ensure(head_dim > 0 && width.is_multiple_of(head_dim), || {
            format!("width {width} is not whole heads of `{head_dim}`")
        })
    }

    fn op(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Embed { weight, scale, out } => {
                self.tokens_only("embed")?;
                finite("scale", *scale)?;
                let cols = self.weight(*weight)?.cols;
                let width = self.write(*out)?;
                self.same("embed's out", width, cols)
            }
            Op::RmsNorm { input, weight, eps, out } => {
                let width = self.read(*input)?;
                self.norm(*weight, width, *eps)?;
                let out = self.write(*out)?;
                self.same("norm's out", out, width)
            }
            Op::AddRmsNorm { residual, input, weight, eps, out } => {
                self.add(*residual, *input)?;
                distinct(*out, &[*residual, *input])?;
                let width = self.width(*residual)?;
                self.norm(*weight, width, *eps)?;
                let out = self.write(*out)?;
                self.same("norm's out", out, width)
            }
            Op::Add { residual, input } => self.add(*residual, *input),
            Op::Linear { input, parts } => self.linear(*input, parts),
            Op::HeadNorm { buf, weight, head_dim, eps } => {
                let width = self.read(*buf)?;
                self.heads(width, *head_dim)?;
                self.norm(*weight, *head_dim, *eps)
            }
            Op::Rope { buf, head_dim, rope } => self.rope(*buf, *head_dim, *rope),
            Op::Attention { .. } => self.attention(op),
            Op::GatedMlp { gate, up, out, act: _ } => {
                let width = self.read(*gate)?;
                let up_width = self.read(*up)?;
                self.same("up", up_width, width)?;
                distinct(*out, &[*up])?;
                let out = self.write(*out)?;
                self.same("the MLP's out", out, width)
            }
            Op::TakeLogitsRows { input, out } => {
                self.tokens_only("logits rows are taken")?;
                let width = self.read(*input)?;
                distinct(*out, &[*input])?;
                self.current = Rows::Logits;
                let out = self.write(*out)?;
                self.same("the logits rows' out", out, width)
            }
            Op::Softcap { buf, cap } => {
                self.read(*buf)?;
                positive("cap", *cap)
            }
        }
    }

    fn norm(&self, weight: WeightId, width: usize, eps: f32) -> Result<(), String> {
        ensure(eps.is_finite() && eps >= 0.0, || format!("eps is `{eps}`"))?;
        self.vector(weight, width)
    }

    fn add(&mut self, residual: BufferId, input: BufferId) -> Result<(), String> {
        let width = self.read(residual)?;
        let added = self.read(input)?;
        distinct(residual, &[input])?;
        self.same("the addend", added, width)
    }

    fn linear(&mut self, input: BufferId, parts: &[crate::LinearPart]) -> Result<(), String> {
        let width = self.read(input)?;
        ensure(!parts.is_empty(), || "a linear operation without parts".into())?;
        for (i, part) in parts.iter().enumerate() {
            let weight = self.weight(part.weight)?;
            self.same(&format!("the input of `{}`", weight.name), width, weight.cols)?;
            if let Some(bias) = part.bias {
                self.vector(bias, weight.rows)?;
            }
            distinct(part.out, &[input])?;
            for other in &parts[..i] {
                distinct(part.out, &[other.out])?;
            }
            let out = self.write(part.out)?;
            self.same(&format!("the output of `{}`", weight.name), out, weight.rows)?;
        }
        Ok(())
    }

    fn rope(&self, buf: BufferId, head_dim: usize, rope: RopeId) -> Result<(), String> {
        self.tokens_only("rope")?;
        let width = self.read(buf)?;
        self.heads(width, head_dim)?;
        let table = self.program.ropes.get(rope.0 as usize);
        let table = table.ok_or_else(|| format!("rotary table `{}` does not exist", rope.0))?;
        ensure(table.inv_freq.len() * 2 <= head_dim, || {
            format!("{} rotated dims in heads of `{head_dim}`", table.inv_freq.len() * 2)
        })
    }

    fn attention(&mut self, op: &Op) -> Result<(), String> {
        let Op::Attention { layer, q, k, v, out, num_heads, scale, softcap } = op else {
            return Ok(());
        };
        self.tokens_only("attention")?;
        let kv = self.program.kv_layers.get(*layer);
        let kv = *kv.ok_or_else(|| format!("KV layer `{layer}` does not exist"))?;
        ensure(!std::mem::replace(&mut self.layer_used[*layer], true), || {
            format!("KV layer `{layer}` is used twice")
        })?;
        ensure(*num_heads > 0 && num_heads.is_multiple_of(kv.num_kv_heads), || {
            format!("`{num_heads}` heads over {} KV heads", kv.num_kv_heads)
        })?;
        finite("scale", *scale)?;
        softcap.map_or(Ok(()), |cap| positive("softcap", cap))?;
        let kv_width = kv.num_kv_heads * kv.head_dim;
        let q_width = num_heads.checked_mul(kv.head_dim).ok_or("too many heads")?;
        for (name, buffer, needed) in [("q", q, q_width), ("k", k, kv_width), ("v", v, kv_width)] {
            let width = self.read(*buffer)?;
            self.same(name, width, needed)?;
        }
        distinct(*out, &[*q, *k, *v])?;
        let width = self.write(*out)?;
        self.same("attention's out", width, q_width)
    }
}

fn distinct(out: BufferId, inputs: &[BufferId]) -> Result<(), String> {
    ensure(!inputs.contains(&out), || format!("buffer {} is both input and output", out.0))
}

fn finite(name: &str, x: f32) -> Result<(), String> {
    ensure(x.is_finite(), || format!("{name} is `{x}`"))
}

fn positive(name: &str, x: f32) -> Result<(), String> {
    ensure(x.is_finite() && x > 0.0, || format!("{name} is `{x}`, which is not positive"))
}

fn check_tensor(t: &Tensor) -> Result<(), String> {
    let (name, rows, cols) = (&t.name, t.rows, t.cols);
    ensure((1..=MAX_DIM).contains(&rows) && (1..=MAX_DIM).contains(&cols), || {
        format!("weight `{name}` is [{rows}, {cols}]")
    })?;
    ensure(cols.is_multiple_of(t.dtype.block_len()), || {
        format!("weight `{name}` has `{cols}` columns, not whole {:?} blocks", t.dtype)
    })?;
    let bytes = rows * t.dtype.row_bytes(cols);
    ensure(t.data.len() == bytes, || {
        format!("weight `{name}` has `{}` bytes where {bytes} are needed", t.data.len())
    })
}

fn check_step(
    inputs: &StepInputs<'_>,
    vocab: usize,
    o: &PrepareOptions,
    groups: &[KvGroup],
) -> Result<(), String> {
    let num_tokens = inputs.token_ids.len();
    ensure((1..=o.max_step_tokens).contains(&num_tokens), || {
        format!("a step of `{num_tokens}` tokens; prepared for 1 to {}", o.max_step_tokens)
    })?;
    let num_rows = inputs.logits_rows.len();
    ensure(num_rows <= o.max_logits_rows, || {
        format!("a step of `{num_rows}` logits rows; prepared for {}", o.max_logits_rows)
    })?;
    ensure(
        inputs.positions.len() == num_tokens
            && inputs.slot_mapping.len() == num_tokens * groups.len(),
        || "positions, slots and token ids differ in number".into(),
    )?;
    if let Some(id) = inputs.token_ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(format!("token id `{id}` is outside of the vocabulary of {vocab}"));
    }
    if let Some(row) = inputs.logits_rows.iter().find(|&&row| row as usize >= num_tokens) {
        return Err(format!("logits row `{row}` of a step of {num_tokens} tokens"));
    }
    if let Some(copy) =
        inputs.block_copies.iter().find(|c| c.from.max(c.to) as usize >= o.num_blocks)
    {
        let (from, to) = (copy.from, copy.to);
        return Err(format!("copy of block `{from}` to `{to}` in a pool of {}", o.num_blocks));
    }
    let mut next_token = 0;
    for seq in inputs.seqs {
        ensure(seq.token_start as usize == next_token && seq.num_tokens > 0, || {
            format!("row {}: tokens start at `{}`, not {next_token}", seq.row, seq.token_start)
        })?;
        for (group, KvGroup { window }) in groups.iter().enumerate() {
            check_span(inputs, seq, num_tokens, o, (group, *window))
                .map_err(|e| format!("row {}: {e}", seq.row))?;
        }
        next_token += seq.num_tokens as usize;
    }
    ensure(next_token == num_tokens, || {
        format!("sequences cover `{next_token}` of {num_tokens} tokens")
    })
}

fn check_span(
    inputs: &StepInputs<'_>,
    seq: &crate::SeqSpan,
    num_tokens: usize,
    o: &PrepareOptions,
    (group, window): (usize, Option<u32>),
) -> Result<(), String> {
    let (start, count) = (seq.token_start as usize, seq.num_tokens as usize);
    ensure(count <= num_tokens - start && seq.num_tokens <= seq.context_len, || {
        format!("`{count}` tokens do not fit the step or its context of {}", seq.context_len)
    })?;
    let table_len = seq.table_len as usize;
    let table_start = seq.table_start as usize + group * table_len;
    let table_end = table_start + table_len;
    let table = inputs.block_tables.get(table_start..table_end);
    let table = table.ok_or_else(|| format!("block table ends at `{table_end}`"))?;
    ensure(table.len() == (seq.context_len as usize).div_ceil(o.block_size), || {
        format!("`{}` blocks for a context of {}", table.len(), seq.context_len)
    })?;
    let first = (seq.context_len - seq.num_tokens) as usize;
    // The first of its tokens sees the least far ahead: positions from here on.
    let visible = window.map_or(0, |w| (first + 1).saturating_sub(w as usize));
    for (at, &block) in table.iter().enumerate() {
        let is_passed = (at + 1) * o.block_size <= visible;
        ensure((block as usize) < o.num_blocks || (block == NO_BLOCK && is_passed), || {
            format!("block `{block}` is outside of the pool of {}", o.num_blocks)
        })?;
    }
    for i in 0..count {
        let position = first + i;
        ensure(inputs.positions[start + i] as usize == position, || {
            format!("position `{}` where {position} is next", inputs.positions[start + i])
        })?;
        let block = table[position / o.block_size] as usize;
        let slot = block * o.block_size + position % o.block_size;
        let given = inputs.slot_mapping[group * num_tokens + start + i];
        ensure(given as usize == slot, || format!("slot `{given}` where the table says {slot}"))?;
    }
    Ok(())
}
