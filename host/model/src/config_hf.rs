//! A model's numbers from a checkpoint's `config.json`. Unknown fields are ignored, missing ones
//! are named.

use serde_json::{Map, Value};
use tenon_backend::Activation;

use crate::arch::{ArchSpec, Format, WindowSpec};
use crate::config::{ModelConfig, NumberSource, Numbers, RopeScaling};
use crate::error::ModelError;

/// A parsed `config.json`; a `text_config` inside is laid over the rest.
#[derive(Debug, Clone)]
pub struct HfConfig {
    file: String,
    fields: Map<String, Value>,
}

impl HfConfig {
    /// Parses `config.json`; `file` is its name in messages.
    ///
    /// # Errors
    /// [`ModelError::Malformed`] when it is no JSON object.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        let malformed =
            |problem| ModelError::Malformed { file: file.into(), format: "JSON", problem };
        let value: Value = serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        let Value::Object(mut fields) = value else {
            return Err(malformed("it is not an object".into()));
        };
        // The outer `architectures` decides; the inner numbers belong to the text model.
        if let Some(Value::Object(text)) = fields.remove("text_config") {
            for (key, value) in text {
                if key != "architectures" {
                    fields.insert(key, value);
                }
            }
        }
        Ok(HfConfig { file: file.into(), fields })
    }

    /// The first of `architectures`.
    ///
    /// # Errors
    /// [`ModelError::Key`] when it is missing.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        self.fields
            .get("architectures")
            .and_then(|v| v.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| ModelError::key(&self.file, "architectures", "is missing"))
    }

    /// A field by name, or by path with dots; null counts as missing.
    pub fn field(&self, key: &str) -> Option<&Value> {
        let direct = self.fields.get(key).or_else(|| {
            let mut parts = key.split('.');
            let first = self.fields.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        });
        direct.filter(|v| !v.is_null())
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    fn wrong(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        let mut found = found.to_string();
        if found.len() > 64 {
            found.truncate(found.floor_char_boundary(64));
            found.push('…');
        }
        ModelError::key(&self.file, key, format!("is `{found}`, expected {wanted}"))
    }
}

impl NumberSource for HfConfig {
    fn file(&self) -> &str {
        &self.file
    }

    fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, value, "a whole number")),
            },
        }
    }

    fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, value, "a number")),
            },
        }
    }
}

impl ModelConfig {
    /// Reads and checks the numbers of a safetensors checkpoint.
    ///
    /// # Errors
    /// [`ModelError::Key`] naming the field; [`ModelError::Unsupported`] for a rope type or an
    /// activation that no backend has.
    pub fn from_hf(spec: &ArchSpec, hf: &HfConfig) -> Result<Self, ModelError> {
        let numbers = Numbers::new(hf, spec.format(Format::Safetensors)?, None);
        let mut config = numbers.read(spec)?;
        if let Some(activation) = activation(hf)? {
            config.activation = activation;
        }
        if let Some(part) = hf.f64("partial_rotary_factor")? {
            let dims = (part * config.head_dim as f64) as usize;
            if !(0.0..=1.0).contains(&part) || dims == 0 || !dims.is_multiple_of(2) {
                let problem = format!("is `{part}`, expected a share of {}", config.head_dim);
                return Err(ModelError::key(&hf.file, "partial_rotary_factor", problem));
            }
            config.rope_dims = dims;
        }
        read_rope(hf, &mut config)?;
        config.windows = windows(hf, &numbers, spec, &config)?;
        config.tied = hf.bool("tie_word_embeddings")?;
        for unsupported in ["num_experts", "num_local_experts", "quantization_config"] {
            if hf.field(unsupported).is_some_and(|value| value.as_u64() != Some(0)) {
                let problem = format!("`{unsupported}` is set, which is not supported");
                return Err(ModelError::unsupported(&hf.file, problem));
            }
        }
        Ok(config)
    }
}

fn activation(hf: &HfConfig) -> Result<Option<Activation>, ModelError> {
    for key in ["hidden_activation", "hidden_act"] {
        let Some(value) = hf.field(key) else { continue };
        return match value.as_str() {
            Some("silu" | "swish") => Ok(Some(Activation::Silu)),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Some(Activation::GeluTanh)),
            // The first Gemma configs said `gelu` and meant the approximation.
            Some("gelu") if hf.architecture()?.starts_with("Gemma") => {
                Ok(Some(Activation::GeluTanh))
            }
            _ => Err(hf.wrong(key, value, "silu or gelu_pytorch_tanh")),
        };
    }
    Ok(None)
}

/// Base and scaling, in the three spellings that checkpoints have: `rope_theta` beside
/// `rope_scaling`, one `rope_parameters` object, or one for each kind of layer inside it.
fn read_rope(hf: &HfConfig, config: &mut ModelConfig) -> Result<(), ModelError> {
    if hf.field("rope_parameters.full_attention").is_some() {
        let global = "rope_parameters.full_attention";
        let local = "rope_parameters.sliding_attention";
        if let Some(theta) = positive(hf, &format!("{global}.rope_theta"))? {
            config.rope_theta = theta;
        }
        config.rope_scaling = scaling(hf, global, config)?;
        if let Some(theta) = positive(hf, &format!("{local}.rope_theta"))? {
            config.rope_local_theta = Some(theta);
        }
        if scaling(hf, local, config)? != RopeScaling::None {
            let problem = format!("`{local}` is scaled, which is not supported");
            return Err(ModelError::unsupported(&hf.file, problem));
        }
        return Ok(());
    }
    if let Some(theta) = positive(hf, "rope_parameters.rope_theta")? {
        config.rope_theta = theta;
    }
    let object =
        if hf.field("rope_parameters").is_some() { "rope_parameters" } else { "rope_scaling" };
    config.rope_scaling = scaling(hf, object, config)?;
    Ok(())
}

fn positive(hf: &HfConfig, key: &str) -> Result<Option<f64>, ModelError> {
    match hf.f64(key)? {
        Some(value) if value.is_finite() && value > 0.0 => Ok(Some(value)),
        Some(value) => {
            let problem = format!("is `{value}`, expected a number above 0");
            Err(ModelError::key(&hf.file, key, problem))
        }
        None => Ok(None),
    }
}

fn scaling(hf: &HfConfig, object: &str, config: &ModelConfig) -> Result<RopeScaling, ModelError> {
    let Some(fields) = hf.field(object) else { return Ok(RopeScaling::None) };
    let kind = fields.get("rope_type").or_else(|| fields.get("type"));
    let kind_key = format!("{object}.rope_type");
    let key = |name: &str| format!("{object}.{name}");
    let required = |name: &str| {
        positive(hf, &key(name))?.ok_or_else(|| ModelError::key(&hf.file, &key(name), "is missing"))
    };
    let max_position = config.max_position as f64;
    match kind.and_then(Value::as_str) {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: required("factor")? }),
        Some("llama3") => {
            let (low, high) = (required("low_freq_factor")?, required("high_freq_factor")?);
            if low >= high {
                let problem = format!("is `{low}`, expected less than high_freq_factor `{high}`");
                return Err(ModelError::key(&hf.file, &key("low_freq_factor"), problem));
            }
            Ok(RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: required("original_max_position_embeddings")?,
            })
        }
        Some("yarn") => {
            let factor = required("factor")?;
            let original = positive(hf, &key("original_max_position_embeddings"))?;
            let attention_factor = positive(hf, &key("attention_factor"))?;
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original.unwrap_or(max_position),
                beta_fast: positive(hf, &key("beta_fast"))?.unwrap_or(32.0),
                beta_slow: positive(hf, &key("beta_slow"))?.unwrap_or(1.0),
                attention_factor: attention_factor.unwrap_or(1.0 + 0.1 * factor.max(1.0).ln()),
            })
        }
        Some(other) => {
            let problem = format!(
                "`{kind_key}` is `{other}`, which is not supported (linear, llama3 and yarn are)"
            );
            Err(ModelError::unsupported(&hf.file, problem))
        }
    }
}

fn windows(
    hf: &HfConfig,
    numbers: &Numbers<'_>,
    spec: &ArchSpec,
    config: &ModelConfig,
) -> Result<Vec<Option<u32>>, ModelError> {
    let num_layers = config.num_layers;
    let window = match hf.bool("use_sliding_window")? {
        Some(false) => None,
        None if matches!(spec.window, WindowSpec::FromLayer) => None,
        _ => numbers.window()?,
    };
    let Some(types) = hf.field("layer_types") else {
        let from = numbers.source.u64("max_window_layers")?.map(|layer| layer as usize);
        return numbers.windows(spec.window, window, num_layers, from);
    };
    let error = |problem: String| ModelError::key(&hf.file, "layer_types", problem);
    let types = types.as_array().ok_or_else(|| error("is no list".into()))?;
    if types.len() != num_layers {
        return Err(error(format!("has {} entries, expected {num_layers}", types.len())));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") if window.is_some() => Ok(window),
            Some("sliding_attention") => {
                Err(error("has windowed layers, but no `sliding_window` is set".into()))
            }
            _ => Err(error(format!("has `{kind}`, expected full or sliding attention"))),
        })
        .collect()
}
