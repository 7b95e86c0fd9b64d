//! The fields that chat and completions share: how tokens are chosen and where the text ends.
//!
//! Everything is checked here, under the name that the client used, so that the engine never sees
//! an illegal value.

use serde::Deserialize;
use serde_json::Value;
use tenon_engine::params as engine_params;
use tenon_engine::params::{MAX_ALLOWED_TOKENS, MAX_LOGIT_BIAS, MAX_STOP_TOKENS};
use tenon_engine::{SamplingParams, TokenBias};

use super::fields::{Fields, decode};
use super::repetition::{self, DryFields};
use crate::error::ApiError;
use crate::state::Limits;

/// Stop strings of one request. Each costs a state in the matcher of every one of its streams.
const MAX_STOP_STRINGS: usize = 16;
/// Bytes of one stop string; as many bytes of text can be held back.
const MAX_STOP_BYTES: usize = 256;
/// Largest absolute bias, as OpenAI documents it.
const MAX_BIAS: f64 = 100.0;
/// Bad words of one request; each is up to two token sequences.
const MAX_BAD_WORDS: usize = engine_params::MAX_BAD_WORDS / 2;
/// Bytes of one bad word: with a space in front it has fewer tokens than the engine takes.
const MAX_BAD_WORD_BYTES: usize = 256;
/// Most alternatives per position of the prompt.
const MAX_PROMPT_LOGPROBS: i64 = 20;
/// Bytes of `cache_salt`.
const MAX_SALT_BYTES: usize = 256;

/// What the endpoint knows of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Ids are below this.
    pub vocab_size: u32,
    /// The server's own limits.
    pub limits: Limits,
    /// The engine orders by priority.
    pub has_priorities: bool,
}

/// The shared fields, checked.
#[derive(Debug, Clone)]
pub(crate) struct Sampling {
    /// All but `max_tokens`, both kinds of log-probabilities and what needs a tokenizer, which the
    /// endpoint sets.
    pub params: SamplingParams,
    /// As asked; the endpoint knows its default and the context.
    pub max_tokens: Option<u32>,
    /// Sequences per prompt.
    pub n: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// `include_stop_str_in_output`.
    pub include_stop: bool,
    /// `skip_special_tokens`.
    pub skip_special_tokens: bool,
    /// Not yet tokenized; each has more than white space.
    pub bad_words: Vec<String>,
    /// Its breakers are not yet tokenized.
    pub dry: Option<DryFields>,
    /// Lower comes first.
    pub priority: i32,
    /// Prefixes are shared only under the same salt.
    pub cache_salt: Option<String>,
    /// What the tokenizer puts round a text, such as a beginning of sequence; the default is the
    /// endpoint's.
    pub add_special_tokens: Option<bool>,
    /// Cut the prompt?
    pub truncation: Option<Truncation>,
    /// Log-probabilities of the prompt, with the top k.
    pub prompt_logprobs: Option<u32>,
    /// Ids of prompt and output beside the text.
    pub return_token_ids: bool,
    /// Log-probabilities name tokens `token_id:ID`.
    pub tokens_as_ids: bool,
}

/// `truncate_prompt_tokens` and `truncation_side`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Truncation {
    /// Most tokens of the prompt; none: what the context leaves.
    limit: Option<u32>,
    /// Its end goes, not its beginning.
    cuts_end: bool,
}

/// `stream` and `stream_options`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// Answer as server-sent events?
    pub stream: bool,
    /// One more chunk with the usage.
    pub include_usage: bool,
}

/// Fields of both endpoints that other servers know and this one does not.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("guided_json", "use `structured_outputs`"),
    ("guided_regex", "use `structured_outputs`"),
    ("guided_choice", "use `structured_outputs`"),
    ("guided_grammar", "use `structured_outputs`"),
    ("guided_decoding_backend", "leave it out"),
    ("use_beam_search", "use `n` with a temperature"),
    ("prompt_embeds", "send text or token ids"),
    ("logits_processors", "leave it out"),
    ("thinking_token_budget", "use `max_tokens`"),
    ("return_token_offsets", "leave it out"),
    ("return_prompt_text", "use `echo`"),
    ("return_assistant_tokens_mask", "leave it out"),
    ("kv_transfer_params", "leave it out"),
    ("vllm_xargs", "leave it out"),
    ("mirostat", "use `temperature` and `min_p`"),
    ("mirostat_mode", "use `temperature` and `min_p`"),
    ("top_a", "use `min_p`"),
    ("top_n_sigma", "use `min_p`"),
    ("xtc_probability", "leave it out"),
    ("dynatemp_range", "use `temperature`"),
    ("smoothing_factor", "use `temperature`"),
];

/// The same for fields whose neutral value is 1.
const UNSUPPORTED_UNLESS_ONE: &[(&str, &str)] = &[
    ("length_penalty", "send 1 or leave it out"),
    ("typical_p", "send 1 or use `top_p`"),
    ("tfs", "send 1 or use `top_p`"),
];

impl Sampling {
    /// Takes the shared fields. `max_tokens` keeps the range check only.
    pub fn take(fields: &mut Fields, bounds: &Bounds) -> Result<Sampling, ApiError> {
        fields.refuse(UNSUPPORTED)?;
        for &(name, hint) in UNSUPPORTED_UNLESS_ONE {
            if fields.take::<f64>(name)?.is_some_and(|v| v != 1.0) {
                return Err(ApiError::unsupported(name, hint));
            }
        }
        // Text is what the tokens' bytes say: there is no space between special tokens either way.
        fields.take::<bool>("spaces_between_special_tokens")?;
        let max_n = i64::from(bounds.limits.max_n);
        let n = fields.integer("n", 1..=max_n)?.unwrap_or(1) as u32;
        let params = params(fields, bounds)?;
        let stop = stop_strings(fields)?;
        let bad_words = bad_words(fields)?;
        let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
        let priority = fields.integer("priority", range)?.unwrap_or(0) as i32;
        if priority != 0 && !bounds.has_priorities {
            let hint = "start the server with `--scheduling-policy priority`, or leave it out";
            return Err(ApiError::unsupported("priority", hint));
        }
        let cache_salt = fields.take::<String>("cache_salt")?;
        if cache_salt.as_ref().is_some_and(|s| s.is_empty() || s.len() > MAX_SALT_BYTES) {
            return Err(ApiError::invalid(
                "cache_salt",
                format!("`cache_salt` must have 1 to {MAX_SALT_BYTES} bytes"),
            ));
        }
        Ok(Sampling {
            params,
            max_tokens: None,
            n,
            stop,
            bad_words,
            dry: DryFields::take(fields)?,
            include_stop: fields.flag("include_stop_str_in_output", false)?,
            skip_special_tokens: fields.flag("skip_special_tokens", true)?,
            priority,
            cache_salt,
            add_special_tokens: fields.take("add_special_tokens")?,
            truncation: Truncation::take(fields)?,
            prompt_logprobs: prompt_logprobs(fields)?,
            return_token_ids: fields.flag("return_token_ids", false)?,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids", false)?,
        })
    }

    /// Sets the token limit of a prompt of `num_prompt` tokens: as asked, or `default`, never over
    /// the context. An explicit limit over the context, or a prompt that leaves no room, is a 400.
    pub fn bind_context(
        &self,
        num_prompt: usize,
        context: u32,
        default: Option<u32>,
        param: &str,
    ) -> Result<SamplingParams, ApiError> {
        let (prompt, limit) = (num_prompt as u64, u64::from(context));
        let output = u64::from(self.max_tokens.unwrap_or(1));
        if prompt + output > limit || prompt >= limit {
            let output = output.max(1);
            return Err(ApiError::ContextLength {
                param: param.to_owned(),
                limit,
                needed: prompt + output,
                prompt,
                output,
            });
        }
        let room = (limit - prompt) as u32;
        let mut params = self.params.clone();
        params.max_tokens = self.max_tokens.or(default).unwrap_or(room).min(room);
        if params.min_tokens > params.max_tokens {
            return Err(ApiError::invalid(
                "min_tokens",
                format!(
                    "`min_tokens` is `{}` but at most {} tokens can be generated; lower it",
                    params.min_tokens, params.max_tokens
                ),
            ));
        }
        Ok(params)
    }
}

impl Truncation {
    fn take(fields: &mut Fields) -> Result<Option<Truncation>, ApiError> {
        const NAME: &str = "truncate_prompt_tokens";
        let limit = fields.integer(NAME, -1..=i64::from(u32::MAX))?;
        let side = fields.take::<String>("truncation_side")?;
        let cuts_end = match side.as_deref() {
            None | Some("left") => false,
            Some("right") => true,
            Some(other) => {
                let message =
                    format!("`truncation_side` is `{other}`; it must be `left` or `right`");
                return Err(ApiError::invalid("truncation_side", message));
            }
        };
        match limit {
            None => Ok(None),
            Some(0) => Err(ApiError::invalid(
                NAME,
                format!("`{NAME}` is `0`; it must be -1 (as many as fit) or 1 and up"),
            )),
            Some(limit) => Ok(Some(Truncation { limit: u32::try_from(limit).ok(), cuts_end })),
        }
    }

    /// Cuts a prompt before an output of `max_tokens`; says whether anything went.
    pub fn apply(
        self,
        tokens: &mut Vec<u32>,
        max_tokens: Option<u32>,
        context: u32,
    ) -> Result<bool, ApiError> {
        let most = match self.limit {
            None => context.saturating_sub(max_tokens.unwrap_or(1).max(1)).max(1),
            Some(limit) if limit <= context => limit,
            Some(limit) => {
                let param = "truncate_prompt_tokens";
                let message =
                    format!("`{param}` is `{limit}`; the context has {context} tokens: lower it");
                return Err(ApiError::invalid(param, message));
            }
        };
        let num_over = tokens.len().saturating_sub(most as usize);
        if self.cuts_end {
            tokens.truncate(most as usize);
        } else {
            tokens.drain(..num_over);
        }
        Ok(num_over > 0)
    }
}

impl Streaming {
    /// Takes `stream` and `stream_options`.
    pub fn take(fields: &mut Fields) -> Result<Streaming, ApiError> {
        let stream = fields.flag("stream", false)?;
        let Some(options) = fields.value("stream_options") else {
            return Ok(Streaming { stream, include_usage: false });
        };
        if !stream {
            return Err(ApiError::invalid(
                "stream_options",
                "`stream_options` is only allowed with `\"stream\": true`",
            ));
        }
        #[derive(Deserialize, Default)]
        struct Options {
            include_usage: Option<bool>,
            continuous_usage_stats: Option<bool>,
        }
        if !options.is_object() {
            return Err(ApiError::invalid("stream_options", "`stream_options` must be an object"));
        }
        let options: Options = decode("stream_options", options)?;
        if options.continuous_usage_stats == Some(true) {
            return Err(ApiError::unsupported(
                "stream_options.continuous_usage_stats",
                "use `include_usage`",
            ));
        }
        Ok(Streaming { stream, include_usage: options.include_usage.unwrap_or(false) })
    }
}

/// A token limit under the name `name`, at least `min`.
pub(crate) fn token_limit(
    fields: &mut Fields,
    name: &str,
    min: i64,
) -> Result<Option<u32>, ApiError> {
    Ok(fields.integer(name, min..=i64::from(u32::MAX))?.map(|v| v as u32))
}

fn params(fields: &mut Fields, bounds: &Bounds) -> Result<SamplingParams, ApiError> {
    let mut p = SamplingParams {
        temperature: fields.number("temperature", 0.0..=2.0, 1.0)?,
        top_p: fields.number("top_p", 0.0..=1.0, 1.0)?,
        min_p: fields.number("min_p", 0.0..=1.0, 0.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0, 0.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0, 0.0)?,
        repetition_penalty: fields.number("repetition_penalty", 0.0..=100.0, 1.0)?,
        ..SamplingParams::default()
    };
    if p.top_p == 0.0 {
        // The smallest nucleus is the most likely token: greedy.
        (p.top_p, p.temperature) = (1.0, 0.0);
    }
    if p.repetition_penalty == 0.0 {
        return Err(ApiError::invalid(
            "repetition_penalty",
            "`repetition_penalty` is `0`; it must be above 0 (1 is off)",
        ));
    }
    // -1 is another server's way to say off.
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(0);
    p.top_k = top_k.max(0).min(i64::from(bounds.vocab_size)) as u32;
    p.min_tokens = token_limit(fields, "min_tokens", 0)?.unwrap_or(0);
    p.repetition_detection = repetition::take_detection(fields)?;
    p.seed = seed(fields)?;
    p.ignore_eos = fields.flag("ignore_eos", false)?;
    p.logit_bias = logit_bias(fields, bounds.vocab_size)?;
    p.allowed_token_ids = allowed_token_ids(fields, bounds.vocab_size)?;
    p.stop_token_ids = stop_token_ids(fields, bounds.vocab_size)?;
    Ok(p)
}

/// Log-probabilities of the prompt are part of a body only.
fn prompt_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    const NAME: &str = "prompt_logprobs";
    let k = fields.integer(NAME, 0..=MAX_PROMPT_LOGPROBS)?;
    if k.is_some() && fields.is_true("stream") {
        let message = format!("`{NAME}` cannot be streamed; send `\"stream\": false`");
        return Err(ApiError::invalid(NAME, message));
    }
    Ok(k.map(|k| k as u32))
}

/// Any 64-bit integer, signed or not.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    match fields.value("seed") {
        None => Ok(None),
        Some(Value::Number(n)) if n.is_u64() => Ok(n.as_u64()),
        Some(Value::Number(n)) if n.is_i64() => Ok(n.as_i64().map(|v| v as u64)),
        Some(other) => Err(ApiError::invalid(
            "seed",
            format!("`seed` is `{other}`; it must be a 64-bit integer"),
        )),
    }
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stop = match fields.value("stop") {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(value @ Value::Array(_)) => decode("stop", value)?,
        Some(other) => {
            return Err(ApiError::invalid(
                "stop",
                format!("`stop` is `{other}`; it must be a string or a list of strings"),
            ));
        }
    };
    if stop.len() > MAX_STOP_STRINGS {
        let message =
            format!("`stop` has {} entries; at most {MAX_STOP_STRINGS} are allowed", stop.len());
        return Err(ApiError::invalid("stop", message));
    }
    for (i, s) in stop.iter().enumerate() {
        if s.is_empty() || s.len() > MAX_STOP_BYTES {
            let message = format!("`stop[{i}]` must have 1 to {MAX_STOP_BYTES} bytes");
            return Err(ApiError::invalid(format!("stop[{i}]"), message));
        }
    }
    Ok(stop)
}

fn bad_words(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let words = fields.take::<Vec<String>>("bad_words")?.unwrap_or_default();
    if words.len() > MAX_BAD_WORDS {
        let message =
            format!("`bad_words` has {} entries; at most {MAX_BAD_WORDS} are allowed", words.len());
        return Err(ApiError::invalid("bad_words", message));
    }
    for (i, word) in words.iter().enumerate() {
        if word.trim().is_empty() || word.len() > MAX_BAD_WORD_BYTES {
            let message = format!(
                "`bad_words[{i}]` must have 1 to {MAX_BAD_WORD_BYTES} bytes, not only white space"
            );
            return Err(ApiError::invalid(format!("bad_words[{i}]"), message));
        }
    }
    Ok(words)
}

fn logit_bias(fields: &mut Fields, vocab_size: u32) -> Result<Vec<TokenBias>, ApiError> {
    let Some(map) = fields.take::<serde_json::Map<String, Value>>("logit_bias")? else {
        return Ok(Vec::new());
    };
    if map.len() > MAX_LOGIT_BIAS {
        let message =
            format!("`logit_bias` has {} entries; at most {MAX_LOGIT_BIAS} are allowed", map.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    map.into_iter()
        .map(|(key, value)| {
            let param = format!("logit_bias.{key}");
            // One way to write each: two keys of one token would be two biases.
            let id = key.parse::<u32>().ok().filter(|id| id.to_string() == key);
            let token = id.filter(|&t| t < vocab_size).ok_or_else(|| {
                let message = format!(
                    "`logit_bias` has the key `{key}`; keys are token ids below {vocab_size}"
                );
                ApiError::invalid("logit_bias", message)
            })?;
            let bias: f64 = decode(&param, value)?;
            if !(-MAX_BIAS..=MAX_BIAS).contains(&bias) {
                let message =
                    format!("`{param}` is `{bias}`; it must be in [-{MAX_BIAS}, {MAX_BIAS}]");
                return Err(ApiError::invalid(param, message));
            }
            Ok(TokenBias { token, bias: bias as f32 })
        })
        .collect()
}

/// An empty list would allow nothing at all.
fn allowed_token_ids(fields: &mut Fields, vocab_size: u32) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(ids) = fields.take::<Vec<i64>>("allowed_token_ids")? else { return Ok(None) };
    if ids.is_empty() || ids.len() > MAX_ALLOWED_TOKENS {
        let message = format!(
            "`allowed_token_ids` has {} entries; list 1 to {MAX_ALLOWED_TOKENS} token ids or leave \
             it out",
            ids.len()
        );
        return Err(ApiError::invalid("allowed_token_ids", message));
    }
    token_ids("allowed_token_ids", &ids, vocab_size).map(Some)
}

fn stop_token_ids(fields: &mut Fields, vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    let ids = fields.take::<Vec<i64>>("stop_token_ids")?.unwrap_or_default();
    if ids.len() > MAX_STOP_TOKENS {
        let message = format!(
            "`stop_token_ids` has {} entries; at most {MAX_STOP_TOKENS} are allowed",
            ids.len()
        );
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    token_ids("stop_token_ids", &ids, vocab_size)
}

/// Checks ids from a client against the vocabulary.
pub(crate) fn token_ids(path: &str, ids: &[i64], vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    ids.iter()
        .enumerate()
        .map(|(i, &id)| match u32::try_from(id) {
            Ok(token) if token < vocab_size => Ok(token),
            _ => {
                let param = format!("{path}[{i}]");
                let message = format!("`{param}` is `{id}`; token ids are below {vocab_size}");
                Err(ApiError::invalid(param, message))
            }
        })
        .collect()
}
