//! An architecture as data: which norms, biases and windows a decoder-only transformer has, and
//! under which names each file format keeps its weights.
//!
//! Families are TOML files, the built-in ones in `arch/`; a user's own file has the same form, so a
//! new dense family needs no recompile. Numbers (widths, counts) come from the model's own files.

use std::collections::BTreeMap;

use serde::Deserialize;
use tenon_backend::{Activation, RopeStyle};

use crate::error::ModelError;

/// The built-in families.
const BUILT_IN: [(&str, &str); 6] = [
    ("llama", include_str!("../arch/llama.toml")),
    ("qwen2", include_str!("../arch/qwen2.toml")),
    ("qwen3", include_str!("../arch/qwen3.toml")),
    ("gemma", include_str!("../arch/gemma.toml")),
    ("gemma2", include_str!("../arch/gemma2.toml")),
    ("gemma3", include_str!("../arch/gemma3.toml")),
];

/// A dense decoder-only family.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchSpec {
    /// For messages and `--arch`.
    pub name: String,
    /// Values of `general.architecture` in GGUF files.
    pub gguf_architectures: Vec<String>,
    /// Values of `architectures` in `config.json`.
    pub hf_architectures: Vec<String>,
    /// What a layer is made of.
    pub block: BlockSpec,
    /// What happens to an embedded token.
    #[serde(default)]
    pub embedding: EmbeddingSpec,
    /// Rotary embedding where the files say nothing.
    pub rope: RopeSpec,
    /// Which layers have a sliding window, when the model has one at all.
    #[serde(default)]
    pub window: WindowSpec,
    /// How GGUF files keep this family.
    pub gguf: Option<FormatSpec>,
    /// How safetensors checkpoints keep this family.
    pub safetensors: Option<FormatSpec>,
}

/// The parts of a layer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSpec {
    /// Norms after attention and after the MLP, next to those before (Gemma 2 and 3).
    #[serde(default)]
    pub post_norms: bool,
    /// Biases of Q, K and V.
    #[serde(default)]
    pub qkv_bias: Presence,
    /// Bias of the attention's output.
    #[serde(default)]
    pub o_bias: Presence,
    /// RMS norms over each head of Q and K.
    #[serde(default)]
    pub qk_norm: bool,
    /// Of the gated MLP.
    pub activation: ActivationName,
}

/// Whether a weight is part of the family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Never.
    #[default]
    No,
    /// Always: a file without it is an error.
    Yes,
    /// In some models of the family: used where it is stored.
    IfStored,
}

/// The activations that a backend has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ActivationName {
    Silu,
    GeluTanh,
}

impl From<ActivationName> for Activation {
    fn from(name: ActivationName) -> Self {
        match name {
            ActivationName::Silu => Activation::Silu,
            ActivationName::GeluTanh => Activation::GeluTanh,
        }
    }
}

/// What happens to an embedded token.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingSpec {
    /// Multiplies the embedding.
    #[serde(default)]
    pub scale: EmbeddingScale,
}

/// Multiplies the embedding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingScale {
    /// 1.
    #[default]
    None,
    /// The square root of the hidden width (Gemma).
    SqrtHidden,
}

/// Rotary embedding where the files say nothing.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeSpec {
    /// The base of the frequencies.
    pub theta: f64,
    /// The base in windowed layers, when they have their own (and no scaling, as in Gemma 3).
    pub local_theta: Option<f64>,
}

/// Which layers have a sliding window.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(tag = "schedule", rename_all = "snake_case", deny_unknown_fields)]
pub enum WindowSpec {
    /// Every layer, when the file gives a width.
    #[default]
    All,
    /// Every `period`-th layer attends to everything, the others have the window.
    Pattern {
        /// Unless the file gives its own.
        period: u32,
    },
    /// Layers from `max_window_layers` on, and only when `use_sliding_window` says so (Qwen).
    FromLayer,
}

/// How one format keeps a family.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatSpec {
    /// How stored Q and K expect heads to be paired.
    pub rope_style: RopeStyleName,
    /// Put before every name; the first one under which the embedding is found. Default: none.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Tensors that are known and not needed: names with `{layer}`, or a prefix and `*`.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// Other spellings of numbers: our name to the file's key (see `config::KEYS`).
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// Attention is scaled by `1 / sqrt(d)`: `d` by the number of layers, for models that the
    /// file cannot tell apart otherwise. Default: the file's own, else the head's width.
    #[serde(default)]
    pub attention_scale_dim: BTreeMap<String, f64>,
    /// Where each weight is.
    pub tensors: BTreeMap<Slot, NameRule>,
}

/// How rotary embedding pairs the elements of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum RopeStyleName {
    Half,
    Interleaved,
}

impl From<RopeStyleName> for RopeStyle {
    fn from(name: RopeStyleName) -> Self {
        match name {
            RopeStyleName::Half => RopeStyle::Half,
            RopeStyleName::Interleaved => RopeStyle::Interleaved,
        }
    }
}

/// A weight by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Slot {
    Embed,
    OutputNorm,
    Output,
    RopeFactors,
    AttnNorm,
    Q,
    K,
    V,
    O,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    KNorm,
    AttnPostNorm,
    FfnNorm,
    Gate,
    Up,
    Down,
    FfnPostNorm,
}

impl Slot {
    /// Whether there is one per layer.
    pub fn is_per_layer(self) -> bool {
        !matches!(self, Slot::Embed | Slot::OutputNorm | Slot::Output | Slot::RopeFactors)
    }
}

/// Where a weight is and what is done to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "NameRuleToml")]
pub struct NameRule {
    /// Names with `{layer}`; several are stacked by rows.
    pub names: Vec<String>,
    /// The part of a fused matrix.
    pub split: Option<Part>,
    /// Applied in this order, after `split`.
    pub transforms: Vec<Transform>,
}

/// A part of a fused matrix, by rows: `[q; k; v]` or `[gate; up]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Part {
    Q,
    K,
    V,
    Gate,
    Up,
}

/// A change to a stored weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transform {
    /// Adds 1 to each element of a vector (norms stored as `weight - 1`).
    AddOne,
    /// Stored `[inputs, outputs]`.
    Transpose,
    /// Reorders the rows of Q or K from interleaved pairs to halves.
    PermuteQk,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NameRuleToml {
    Plain(String),
    Full(FullRule),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullRule {
    name: Option<String>,
    #[serde(default)]
    stack: Vec<String>,
    split: Option<Part>,
    #[serde(default)]
    transforms: Vec<Transform>,
}

impl From<NameRuleToml> for NameRule {
    fn from(toml: NameRuleToml) -> Self {
        match toml {
            NameRuleToml::Plain(name) => {
                NameRule { names: vec![name], split: None, transforms: Vec::new() }
            }
            NameRuleToml::Full(full) => NameRule {
                names: full.name.into_iter().chain(full.stack).collect(),
                split: full.split,
                transforms: full.transforms,
            },
        }
    }
}

/// Which of a spec's format tables applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    Gguf,
    Safetensors,
}

impl ArchSpec {
    /// Reads and checks a description; `origin` is its name or path in messages.
    ///
    /// # Errors
    /// [`ModelError::Spec`] with the line, or the slot that a format table lacks or has too many.
    pub fn from_toml(origin: &str, text: &str) -> Result<Self, ModelError> {
        let error = |problem: String| ModelError::Spec { spec: origin.into(), problem };
        let spec: ArchSpec = toml::from_str(text).map_err(|e| error(e.to_string()))?;
        if spec.gguf.is_none() && spec.safetensors.is_none() {
            return Err(error("has neither a [gguf] nor a [safetensors] table".into()));
        }
        if let WindowSpec::Pattern { period: 0 } = spec.window {
            return Err(error("`window.period` is `0`, expected at least 1".into()));
        }
        for (format, table) in [("gguf", &spec.gguf), ("safetensors", &spec.safetensors)] {
            let Some(table) = table else { continue };
            spec.check_format(format, table).map_err(error)?;
        }
        Ok(spec)
    }

    fn check_format(&self, format: &str, table: &FormatSpec) -> Result<(), String> {
        for &slot in &self.required_slots() {
            if !table.tensors.contains_key(&slot) {
                return Err(format!("[{format}.tensors] has no `{slot:?}`; add its name"));
            }
        }
        for (slot, rule) in &table.tensors {
            if !self.has_slot(*slot) {
                return Err(format!(
                    "[{format}.tensors] names `{slot:?}`, which [block] turns off"
                ));
            }
            if rule.names.is_empty() {
                return Err(format!("[{format}.tensors] `{slot:?}` needs `name` or `stack`"));
            }
            for name in &rule.names {
                if slot.is_per_layer() != name.contains("{layer}") {
                    let want = if slot.is_per_layer() { "must" } else { "must not" };
                    return Err(format!("name `{name}` of `{slot:?}` {want} contain `{{layer}}`"));
                }
            }
        }
        for key in table.keys.keys() {
            if !crate::config::is_known_key(key) {
                return Err(format!("[{format}.keys] names the unknown number `{key}`"));
            }
        }
        Ok(())
    }

    /// Whether the family has this weight, always or sometimes.
    pub fn has_slot(&self, slot: Slot) -> bool {
        match slot {
            Slot::QBias | Slot::KBias | Slot::VBias => self.block.qkv_bias != Presence::No,
            Slot::OBias => self.block.o_bias != Presence::No,
            Slot::QNorm | Slot::KNorm => self.block.qk_norm,
            Slot::AttnPostNorm | Slot::FfnPostNorm => self.block.post_norms,
            _ => true,
        }
    }

    fn required_slots(&self) -> Vec<Slot> {
        use Slot::*;
        let all = [
            Embed,
            OutputNorm,
            Output,
            AttnNorm,
            Q,
            K,
            V,
            O,
            QBias,
            KBias,
            VBias,
            OBias,
            QNorm,
            KNorm,
            AttnPostNorm,
            FfnNorm,
            Gate,
            Up,
            Down,
            FfnPostNorm,
        ];
        all.into_iter().filter(|&slot| self.has_slot(slot)).collect()
    }

    /// The table of a format.
    ///
    /// # Errors
    /// [`ModelError::Spec`] when the family has none.
    pub fn format(&self, format: Format) -> Result<&FormatSpec, ModelError> {
        let (table, name) = match format {
            Format::Gguf => (&self.gguf, "[gguf]"),
            Format::Safetensors => (&self.safetensors, "[safetensors]"),
        };
        table.as_ref().ok_or_else(|| ModelError::Spec {
            spec: self.name.clone(),
            problem: format!("has no {name} table, which this model needs"),
        })
    }

    /// A built-in family by its own name.
    pub fn built_in(name: &str) -> Option<Self> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(Self::from_toml(name, text).expect("built-in specs are checked by a test"))
    }

    /// Names of the built-in families.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The built-in family that reads an architecture as `format` spells it.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] naming the architecture and the built-in ones.
    pub fn for_architecture(
        file: &str,
        format: Format,
        architecture: &str,
    ) -> Result<Self, ModelError> {
        let mut known = Vec::new();
        for name in Self::built_in_names() {
            let spec = Self::built_in(name).expect("the name is from the list");
            let names = match format {
                Format::Gguf => &spec.gguf_architectures,
                Format::Safetensors => &spec.hf_architectures,
            };
            if names.iter().any(|n| n == architecture) {
                return Ok(spec);
            }
            known.extend(names.iter().cloned());
        }
        Err(ModelError::unsupported(
            file,
            format!(
                "unknown architecture `{architecture}` (built in: {}); describe it in a TOML file \
                 and pass that as the architecture",
                known.join(", ")
            ),
        ))
    }
}
