//! A model's numbers from GGUF metadata.

use crate::arch::{ArchSpec, Format, WindowSpec};
use crate::config::{ModelConfig, NumberSource, Numbers, RopeScaling};
use crate::error::ModelError;
use crate::gguf::{Gguf, Metadata};

impl NumberSource for Metadata {
    fn file(&self) -> &str {
        Metadata::file(self)
    }

    fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        Metadata::u64(self, key)
    }

    fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Metadata::f64(self, key)
    }
}

impl ModelConfig {
    /// Reads and checks the numbers of a GGUF model.
    ///
    /// # Errors
    /// [`ModelError::Key`] naming the key; [`ModelError::Unsupported`] for a rope scaling or an
    /// expert count that no backend has.
    pub fn from_gguf(spec: &ArchSpec, gguf: &Gguf) -> Result<Self, ModelError> {
        let metadata = &gguf.metadata;
        let prefix = format!("{}.", gguf.architecture()?);
        let numbers = Numbers::new(metadata, spec.format(Format::Gguf)?, Some(prefix.clone()));
        let mut config = numbers.read(spec)?;
        let key = |name: &str| format!("{prefix}{name}");
        let value_length = key("attention.value_length");
        let width = metadata.u64(&value_length)?;
        if let Some(width) = width.filter(|&width| width != config.head_dim as u64) {
            let problem = format!("is `{width}`, expected {} as for keys", config.head_dim);
            return Err(ModelError::key(metadata.file(), &value_length, problem));
        }
        let scale_key = key("attention.scale");
        match metadata.f64(&scale_key)? {
            None => {}
            Some(scale) if scale > 0.0 && scale.is_finite() => {
                config.attention_scale = scale as f32
            }
            Some(scale) => {
                let problem = format!("is `{scale}`, expected a number above 0");
                return Err(ModelError::key(metadata.file(), &scale_key, problem));
            }
        }
        let experts = key("expert_count");
        if metadata.u64(&experts)?.unwrap_or(0) > 0 {
            let problem = format!("`{experts}`: mixture-of-experts models are not supported");
            return Err(ModelError::unsupported(metadata.file(), problem));
        }
        if let Some(dims) = metadata.u64(&key("rope.dimension_count"))? {
            config.rope_dims = rope_dims(metadata, &key("rope.dimension_count"), dims, &config)?;
        }
        config.rope_scaling = rope_scaling(metadata, &prefix, &config)?;
        config.windows = windows(&numbers, metadata, spec, &config)?;
        Ok(config)
    }
}

fn rope_dims(
    metadata: &Metadata,
    key: &str,
    dims: u64,
    config: &ModelConfig,
) -> Result<usize, ModelError> {
    if dims == 0 || !dims.is_multiple_of(2) || dims > config.head_dim as u64 {
        let problem = format!("is `{dims}`, expected an even number up to {}", config.head_dim);
        return Err(ModelError::key(metadata.file(), key, problem));
    }
    Ok(dims as usize)
}

fn rope_scaling(
    metadata: &Metadata,
    prefix: &str,
    config: &ModelConfig,
) -> Result<RopeScaling, ModelError> {
    let key = |name: &str| format!("{prefix}rope.{name}");
    let positive = |name: &str| match metadata.f64(&key(name))? {
        Some(value) if !value.is_finite() || value <= 0.0 => {
            let problem = format!("is `{value}`, expected a number above 0");
            Err(ModelError::key(metadata.file(), &key(name), problem))
        }
        other => Ok(other),
    };
    let kind = metadata.text(&key("scaling.type"))?;
    let mut factor = positive("scaling.factor")?;
    if kind.is_none() && factor.is_none() {
        factor = positive("scale_linear")?; // the older spelling
    }
    let factor_of = |factor: Option<f64>| {
        factor.ok_or_else(|| ModelError::key(metadata.file(), &key("scaling.factor"), "is missing"))
    };
    match kind {
        Some("none") => Ok(RopeScaling::None),
        None => Ok(factor.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor })),
        Some("linear") => Ok(RopeScaling::Linear { factor: factor_of(factor)? }),
        Some("yarn") => {
            let factor = factor_of(factor)?;
            let original = positive("scaling.original_context_length")?;
            let extra = positive("scaling.attn_factor")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original.unwrap_or(config.max_position as f64),
                beta_fast: positive("scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: extra * (1.0 + 0.1 * factor.max(1.0).ln()),
            })
        }
        Some(other) => Err(ModelError::unsupported(
            metadata.file(),
            format!(
                "`{}` is `{other}`, which is not supported (none, linear and yarn are)",
                key("scaling.type")
            ),
        )),
    }
}

fn windows(
    numbers: &Numbers<'_>,
    metadata: &Metadata,
    spec: &ArchSpec,
    config: &ModelConfig,
) -> Result<Vec<Option<u32>>, ModelError> {
    let num_layers = config.num_layers;
    let window_key = numbers.key("window");
    let window = match metadata.u64(&window_key)? {
        Some(0) | None => None,
        Some(_) => numbers.window()?,
    };
    // A stored pattern may be one flag for each layer.
    let period_key = numbers.key("window_period");
    if metadata.is_array(&period_key)
        && let Some(flags) = metadata.bools(&period_key)?
    {
        if flags.len() != num_layers {
            let problem = format!("has {} entries, expected {num_layers}", flags.len());
            return Err(ModelError::key(metadata.file(), &period_key, problem));
        }
        return Ok(flags.iter().map(|&windowed| window.filter(|_| windowed)).collect());
    }
    if matches!(spec.window, WindowSpec::Pattern { .. }) && window.is_none() {
        return Err(ModelError::key(metadata.file(), &window_key, "is missing"));
    }
    // Converters write the key for Qwen only when the window is in use, for all layers.
    numbers.windows(spec.window, window, num_layers, Some(0))
}
