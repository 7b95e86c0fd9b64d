//! The numbers of one model: read from GGUF metadata or `config.json`, checked once.
//!
//! Both formats give the same list of numbers under different keys; what only one of them can say
//! is in `config_gguf` and `config_hf`.

use std::ops::RangeInclusive;

use tenon_backend::Activation;

use crate::arch::{ArchSpec, FormatSpec, WindowSpec};
use crate::error::ModelError;

/// Everything that lowering needs to know beside the architecture and the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Width of the residual.
    pub hidden: usize,
    /// Layers.
    pub num_layers: usize,
    /// Width of the MLP.
    pub ffn: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Entries of the vocabulary, when the file says so (the embedding's rows decide).
    pub vocab: Option<usize>,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// Longest sequence that the model was made for.
    pub max_position: usize,
    /// Dimensions of a head that are rotated; even.
    pub rope_dims: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Base in windowed layers, when they have their own; these are never scaled.
    pub rope_local_theta: Option<f64>,
    /// How the frequencies are stretched for long contexts.
    pub rope_scaling: RopeScaling,
    /// `[num_layers]`: each layer's sliding window.
    pub windows: Vec<Option<u32>>,
    /// Multiplies q·k.
    pub attention_scale: f32,
    /// On attention scores.
    pub attention_softcap: Option<f32>,
    /// On logits.
    pub final_softcap: Option<f32>,
    /// Of the gated MLP.
    pub activation: Activation,
    /// Whether the output matrix is the embedding; `None`: when no output matrix is stored.
    pub tied: Option<bool>,
}

/// How rotary frequencies are stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All by one factor (position interpolation).
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies by `factor`, high ones not, smooth between.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original / low` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original / high` are kept.
        high_freq_factor: f64,
        /// Context of the pre-training.
        original_context: f64,
    },
    /// YaRN (Peng et al., 2023).
    Yarn {
        /// At least 1.
        factor: f64,
        /// Context of the pre-training.
        original_context: f64,
        /// Rotations over the context above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched fully.
        beta_slow: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}

/// Our names of the numbers, which a spec's `keys` table can spell in another way.
/// Each with the GGUF key after the architecture's prefix and the field of `config.json`.
const KEYS: [(&str, &str, &str); 16] = [
    ("hidden", "embedding_length", "hidden_size"),
    ("num_layers", "block_count", "num_hidden_layers"),
    ("ffn", "feed_forward_length", "intermediate_size"),
    ("num_heads", "attention.head_count", "num_attention_heads"),
    ("num_kv_heads", "attention.head_count_kv", "num_key_value_heads"),
    ("head_dim", "attention.key_length", "head_dim"),
    ("vocab", "vocab_size", "vocab_size"),
    ("rms_eps", "attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("max_position", "context_length", "max_position_embeddings"),
    ("rope_theta", "rope.freq_base", "rope_theta"),
    ("rope_local_theta", "rope.freq_base_swa", "rope_local_base_freq"),
    ("window", "attention.sliding_window", "sliding_window"),
    ("window_period", "attention.sliding_window_pattern", "sliding_window_pattern"),
    ("attention_softcap", "attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_softcap", "final_logit_softcapping", "final_logit_softcapping"),
    ("attention_scale_dim", "attention.query_pre_attn_scalar", "query_pre_attn_scalar"),
];

/// Whether a spec may give this number another key.
pub(crate) fn is_known_key(name: &str) -> bool {
    KEYS.iter().any(|(known, ..)| *known == name)
}

const MAX_WIDTH: u64 = 1 << 18;
const MAX_LAYERS: u64 = 1024;
const MAX_HEADS: u64 = 4096;
const MAX_HEAD_DIM: u64 = 1024;
const MAX_VOCAB: u64 = 1 << 24;
const MAX_CONTEXT: u64 = 1 << 27;

/// Where numbers come from: GGUF metadata or a JSON object.
pub(crate) trait NumberSource {
    /// The file, for messages.
    fn file(&self) -> &str;
    /// A whole number; `None` when missing or null.
    fn u64(&self, key: &str) -> Result<Option<u64>, ModelError>;
    /// A number; `None` when missing or null.
    fn f64(&self, key: &str) -> Result<Option<f64>, ModelError>;
}

/// Reads numbers by our names, with range checks that name the file's own key.
pub(crate) struct Numbers<'a> {
    pub(crate) source: &'a dyn NumberSource,
    table: &'a FormatSpec,
    /// `llama.` and so on for GGUF; `None` for `config.json`.
    gguf_prefix: Option<String>,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(
        source: &'a dyn NumberSource,
        table: &'a FormatSpec,
        gguf_prefix: Option<String>,
    ) -> Self {
        Numbers { source, table, gguf_prefix }
    }

    /// The file's key for one of our names.
    pub(crate) fn key(&self, name: &str) -> String {
        if let Some(key) = self.table.keys.get(name) {
            return key.clone();
        }
        let (_, gguf, json) =
            KEYS.iter().find(|(known, ..)| *known == name).expect("only names of KEYS are asked");
        match &self.gguf_prefix {
            Some(prefix) => format!("{prefix}{gguf}"),
            None => json.to_string(),
        }
    }

    pub(crate) fn error(&self, name: &str, problem: String) -> ModelError {
        ModelError::key(self.source.file(), &self.key(name), problem)
    }

    fn missing(&self, name: &str) -> ModelError {
        self.error(name, "is missing".into())
    }

    /// A whole number in a range, if it is there.
    pub(crate) fn whole(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.source.u64(&self.key(name))? else { return Ok(None) };
        if !range.contains(&value) {
            let (from, to) = (range.start(), range.end());
            return Err(self.error(name, format!("is `{value}`, expected {from} to {to}")));
        }
        Ok(Some(value as usize))
    }

    fn required(&self, name: &str, max: u64) -> Result<usize, ModelError> {
        self.whole(name, 1..=max)?.ok_or_else(|| self.missing(name))
    }

    /// A finite number above zero, if it is there.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.source.f64(&self.key(name))? else { return Ok(None) };
        if !value.is_finite() || value <= 0.0 {
            return Err(self.error(name, format!("is `{value}`, expected a number above 0")));
        }
        Ok(Some(value))
    }

    /// The numbers that both formats have; `windows`, scaling and tying are filled in by them.
    pub(crate) fn read(&self, spec: &ArchSpec) -> Result<ModelConfig, ModelError> {
        let hidden = self.required("hidden", MAX_WIDTH)?;
        let num_layers = self.required("num_layers", MAX_LAYERS)?;
        let num_heads = self.required("num_heads", MAX_HEADS)?;
        let num_kv_heads = self.whole("num_kv_heads", 1..=MAX_HEADS)?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let problem = format!("is `{num_kv_heads}`, which does not divide {num_heads} heads");
            return Err(self.error("num_kv_heads", problem));
        }
        let head_dim = match self.whole("head_dim", 2..=MAX_HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if hidden % num_heads == 0 => hidden / num_heads,
            None => return Err(self.missing("head_dim")),
        };
        if head_dim % 2 != 0 || head_dim as u64 > MAX_HEAD_DIM {
            let problem = format!("is `{head_dim}`, expected an even number up to {MAX_HEAD_DIM}");
            return Err(self.error("head_dim", problem));
        }
        let by_layers = self.table.attention_scale_dim.get(&num_layers.to_string()).copied();
        let scale_dim = self.positive("attention_scale_dim")?.or(by_layers);
        Ok(ModelConfig {
            hidden,
            num_layers,
            ffn: self.required("ffn", MAX_WIDTH * 4)?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab: self.whole("vocab", 1..=MAX_VOCAB)?,
            rms_eps: self.positive("rms_eps")?.ok_or_else(|| self.missing("rms_eps"))? as f32,
            max_position: self.required("max_position", MAX_CONTEXT)?,
            rope_dims: head_dim,
            rope_theta: self.positive("rope_theta")?.unwrap_or(spec.rope.theta),
            rope_local_theta: match spec.rope.local_theta {
                Some(default) => Some(self.positive("rope_local_theta")?.unwrap_or(default)),
                None => None,
            },
            rope_scaling: RopeScaling::None,
            windows: vec![None; num_layers],
            attention_scale: (1.0 / scale_dim.unwrap_or(head_dim as f64).sqrt()) as f32,
            attention_softcap: self.positive("attention_softcap")?.map(|v| v as f32),
            final_softcap: self.positive("final_softcap")?.map(|v| v as f32),
            activation: spec.block.activation.into(),
            tied: None,
        })
    }

    /// The width of the sliding window, if there is one.
    pub(crate) fn window(&self) -> Result<Option<u32>, ModelError> {
        Ok(self.whole("window", 1..=u64::from(u32::MAX))?.map(|w| w as u32))
    }

    /// Each layer's window by the family's schedule; `from_layer` is for [`WindowSpec::FromLayer`].
    pub(crate) fn windows(
        &self,
        schedule: WindowSpec,
        window: Option<u32>,
        num_layers: usize,
        from_layer: Option<usize>,
    ) -> Result<Vec<Option<u32>>, ModelError> {
        let layers = 0..num_layers;
        Ok(match schedule {
            WindowSpec::All => vec![window; num_layers],
            WindowSpec::Pattern { period } => {
                let period =
                    self.whole("window_period", 1..=MAX_LAYERS)?.unwrap_or(period as usize);
                layers.map(|layer| window.filter(|_| (layer + 1) % period != 0)).collect()
            }
            WindowSpec::FromLayer => {
                let from = from_layer.unwrap_or(num_layers);
                layers.map(|layer| window.filter(|_| layer >= from)).collect()
            }
        })
    }
}
