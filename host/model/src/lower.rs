//! Architecture, numbers and stored tensors → a [`Program`], once at load.
//!
//! Fusions that every backend profits from are made here: Q, K and V share one `Linear`, gate and
//! up another, and each residual addition is joined with the norm that follows it.

use tenon_backend::{BufferId, KvLayer, LinearPart, Op, Program, RopeId, RopeTable, WeightId};

use crate::arch::{ArchSpec, EmbeddingScale, Format, Slot};
use crate::config::{ModelConfig, RopeScaling};
use crate::error::ModelError;
use crate::rope::rope_table;
use crate::store::TensorStore;
use crate::weights::Binder;

/// Lowers a model. `name` is for messages.
///
/// # Errors
/// [`ModelError::Tensor`] naming a tensor that is missing, left over or of another shape.
pub fn lower(
    name: &str,
    spec: &ArchSpec,
    format: Format,
    config: &ModelConfig,
    store: &TensorStore,
) -> Result<Program, ModelError> {
    let mut binder = Binder::new(spec, format, store, config)?;
    let ropes = rope_tables(spec, format, config, &mut binder)?;
    let mut buffers = Vec::new();
    let ids = Buffers::new(config, &mut buffers);
    let mut lowering = Lowering { spec, config, binder, ops: Vec::new(), ids };
    let embed = lowering.embed()?;
    for layer in 0..config.num_layers {
        lowering.layer(layer)?;
    }
    let logits = lowering.head(embed, &mut buffers)?;
    let Lowering { binder, ops, .. } = lowering;
    Ok(Program {
        name: name.into(),
        ops,
        buffers,
        weights: binder.finish()?,
        ropes,
        kv_layers: kv_layers(config),
        logits,
        max_position: config.max_position,
    })
}

/// The buffers that layers share.
struct Buffers {
    residual: BufferId,
    normed: BufferId,
    q: BufferId,
    k: BufferId,
    v: BufferId,
    attention: BufferId,
    projected: BufferId,
    gate: BufferId,
    up: BufferId,
}

impl Buffers {
    fn new(config: &ModelConfig, widths: &mut Vec<usize>) -> Self {
        let q = config.num_heads * config.head_dim;
        let kv = config.num_kv_heads * config.head_dim;
        let mut add = |width| new_buffer(widths, width);
        Buffers {
            residual: add(config.hidden),
            normed: add(config.hidden),
            q: add(q),
            k: add(kv),
            v: add(kv),
            attention: add(q),
            projected: add(config.hidden),
            gate: add(config.ffn),
            up: add(config.ffn),
        }
    }
}

fn new_buffer(widths: &mut Vec<usize>, width: usize) -> BufferId {
    widths.push(width);
    BufferId(widths.len() as u32 - 1)
}

fn kv_layers(config: &ModelConfig) -> Vec<KvLayer> {
    let (num_kv_heads, head_dim) = (config.num_kv_heads, config.head_dim);
    config.windows.iter().map(|&window| KvLayer { num_kv_heads, head_dim, window }).collect()
}

/// Table 0 is for layers without a window; table 1, if any, for those with one.
fn rope_tables(
    spec: &ArchSpec,
    format: Format,
    config: &ModelConfig,
    binder: &mut Binder<'_>,
) -> Result<Vec<RopeTable>, ModelError> {
    let style = spec.format(format)?.rope_style.into();
    let dims = config.rope_dims;
    let factors = match binder.is_stored(Slot::RopeFactors, 0) {
        true => Some(binder.floats(Slot::RopeFactors, 0, dims / 2)?),
        false => None,
    };
    let factors = factors.as_deref();
    let mut ropes = vec![rope_table(style, dims, config.rope_theta, config.rope_scaling, factors)];
    if let Some(theta) = config.rope_local_theta {
        ropes.push(rope_table(style, dims, theta, RopeScaling::None, None));
    }
    Ok(ropes)
}

struct Lowering<'a> {
    spec: &'a ArchSpec,
    config: &'a ModelConfig,
    binder: Binder<'a>,
    ops: Vec<Op>,
    ids: Buffers,
}

impl Lowering<'_> {
    fn embed(&mut self) -> Result<WeightId, ModelError> {
        let (config, out) = (self.config, self.ids.residual);
        let weight = self.binder.matrix(Slot::Embed, 0, config.vocab, config.hidden)?;
        let scale = match self.spec.embedding.scale {
            EmbeddingScale::None => 1.0,
            EmbeddingScale::SqrtHidden => (config.hidden as f32).sqrt(),
        };
        self.ops.push(Op::Embed { weight, scale, out });
        Ok(weight)
    }

    fn layer(&mut self, layer: usize) -> Result<(), ModelError> {
        self.norm_into(Slot::AttnNorm, layer, layer == 0)?;
        self.attention(layer)?;
        self.post_norm(Slot::AttnPostNorm, layer)?;
        self.norm_into(Slot::FfnNorm, layer, false)?;
        self.mlp(layer)?;
        self.post_norm(Slot::FfnPostNorm, layer)
    }

    /// Norm of the residual, joined with the addition of what the last half layer projected.
    fn norm_into(&mut self, slot: Slot, layer: usize, is_first: bool) -> Result<(), ModelError> {
        let eps = self.config.rms_eps;
        let weight = self.binder.vector(slot, layer, self.config.hidden)?;
        let Buffers { residual, normed: out, projected: input, .. } = self.ids;
        self.ops.push(match is_first {
            true => Op::RmsNorm { input: residual, weight, eps, out },
            false => Op::AddRmsNorm { residual, input, weight, eps, out },
        });
        Ok(())
    }

    fn post_norm(&mut self, slot: Slot, layer: usize) -> Result<(), ModelError> {
        if !self.spec.block.post_norms {
            return Ok(());
        }
        let (eps, buf) = (self.config.rms_eps, self.ids.projected);
        let weight = self.binder.vector(slot, layer, self.config.hidden)?;
        self.ops.push(Op::RmsNorm { input: buf, weight, eps, out: buf });
        Ok(())
    }

    fn attention(&mut self, layer: usize) -> Result<(), ModelError> {
        let config = self.config;
        let head_dim = config.head_dim;
        let (q_width, kv_width) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let Buffers { normed, q, k, v, attention, projected, .. } = self.ids;
        let mut parts = Vec::with_capacity(3);
        for (slot, bias_slot, width, out) in [
            (Slot::Q, Slot::QBias, q_width, q),
            (Slot::K, Slot::KBias, kv_width, k),
            (Slot::V, Slot::VBias, kv_width, v),
        ] {
            let weight = self.binder.matrix(slot, layer, Some(width), config.hidden)?;
            let bias = self.binder.bias(self.spec.block.qkv_bias, bias_slot, layer, width)?;
            parts.push(LinearPart { weight, bias, out });
        }
        self.ops.push(Op::Linear { input: normed, parts });
        if self.spec.block.qk_norm {
            for (slot, buf) in [(Slot::QNorm, q), (Slot::KNorm, k)] {
                let weight = self.binder.vector(slot, layer, head_dim)?;
                self.ops.push(Op::HeadNorm { buf, weight, head_dim, eps: config.rms_eps });
            }
        }
        let is_local = config.windows[layer].is_some() && config.rope_local_theta.is_some();
        let rope = RopeId(u32::from(is_local));
        self.ops.extend([q, k].map(|buf| Op::Rope { buf, head_dim, rope }));
        self.ops.push(Op::Attention {
            layer,
            q,
            k,
            v,
            out: attention,
            num_heads: config.num_heads,
            scale: config.attention_scale,
            softcap: config.attention_softcap,
        });
        let weight = self.binder.matrix(Slot::O, layer, Some(config.hidden), q_width)?;
        let o_bias = self.spec.block.o_bias;
        let bias = self.binder.bias(o_bias, Slot::OBias, layer, config.hidden)?;
        let parts = vec![LinearPart { weight, bias, out: projected }];
        self.ops.push(Op::Linear { input: attention, parts });
        Ok(())
    }

    fn mlp(&mut self, layer: usize) -> Result<(), ModelError> {
        let config = self.config;
        let Buffers { normed, projected, gate, up, .. } = self.ids;
        let mut parts = Vec::with_capacity(2);
        for (slot, out) in [(Slot::Gate, gate), (Slot::Up, up)] {
            let weight = self.binder.matrix(slot, layer, Some(config.ffn), config.hidden)?;
            parts.push(LinearPart { weight, bias: None, out });
        }
        self.ops.push(Op::Linear { input: normed, parts });
        self.ops.push(Op::GatedMlp { gate, up, out: gate, act: config.activation });
        let weight = self.binder.matrix(Slot::Down, layer, Some(config.hidden), config.ffn)?;
        let parts = vec![LinearPart { weight, bias: None, out: projected }];
        self.ops.push(Op::Linear { input: gate, parts });
        Ok(())
    }

    /// The last addition, then only the rows whose logits are wanted.
    fn head(&mut self, embed: WeightId, widths: &mut Vec<usize>) -> Result<BufferId, ModelError> {
        let config = self.config;
        let vocab = self.binder.rows(embed);
        let rows = new_buffer(widths, config.hidden);
        let normed = new_buffer(widths, config.hidden);
        let logits = new_buffer(widths, vocab);
        let Buffers { residual, projected, .. } = self.ids;
        self.ops.push(Op::Add { residual, input: projected });
        self.ops.push(Op::TakeLogitsRows { input: residual, out: rows });
        let weight = self.binder.vector(Slot::OutputNorm, 0, config.hidden)?;
        self.ops.push(Op::RmsNorm { input: rows, weight, eps: config.rms_eps, out: normed });
        let is_tied = config.tied.unwrap_or(!self.binder.is_stored(Slot::Output, 0));
        let weight = if is_tied {
            self.binder.skip(Slot::Output); // some checkpoints store the embedding twice
            embed
        } else {
            self.binder.matrix(Slot::Output, 0, Some(vocab), config.hidden)?
        };
        let parts = vec![LinearPart { weight, bias: None, out: logits }];
        self.ops.push(Op::Linear { input: normed, parts });
        if let Some(cap) = config.final_softcap {
            self.ops.push(Op::Softcap { buf: logits, cap });
        }
        Ok(logits)
    }
}
