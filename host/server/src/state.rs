//! What every handler shares: the model, the parts that serve it, configuration and counters.
//!
//! `cli` builds one [`ServerState`] per process. Requests hold an `Arc` of it; nothing in it is
//! locked across an `.await`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenon_chat::template::ChatTemplate;
use tenon_chat::worker::OutputWorkers;
use tenon_engine::RequestId;
use tenon_grammar::{Compiler, Limits as GrammarLimits};
use tenon_text::Tokenizer;

use crate::auth::KeyRing;
use crate::engine::Engine;
use crate::extension_api::Extensions;
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;

/// The served model, as `/v1/models` shows it.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Served name; answers carry it.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Where it came from, for `root`; never a secret.
    pub root: String,
    /// Unix seconds.
    pub created: u64,
    /// Tokens of context, prompt and output together; no more than the KV cache holds.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}

impl ModelCard {
    /// Does a request mean this model?
    pub fn is_named(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Seconds since 1970, for `created`.
    pub fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most sequences per prompt (`n`).
    pub max_n: u32,
    /// Most prompts in one completion request.
    pub max_prompts: usize,
    /// Most sequences of one request, prompts times `n`.
    pub max_choices: u32,
}

impl Limits {
    /// OpenAI's `n`, and batches as large as evaluation tools send.
    pub const DEFAULT: Limits = Limits { max_n: 128, max_prompts: 1024, max_choices: 1024 };
}

/// Under which name reasoning goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningField {
    /// `reasoning` and `reasoning_content`
    #[default]
    Both,
    /// `reasoning`
    Reasoning,
    /// `reasoning_content`
    ReasoningContent,
}

impl ReasoningField {
    /// A text under (`reasoning`, `reasoning_content`).
    pub(crate) fn split<T: Clone>(self, text: Option<T>) -> (Option<T>, Option<T>) {
        match self {
            ReasoningField::Both => (text.clone(), text),
            ReasoningField::Reasoning => (text, None),
            ReasoningField::ReasoningContent => (None, text),
        }
    }
}

/// What the operator decides.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Keys for the API; empty: open.
    pub api_keys: Vec<String>,
    /// Key for `/v1/extensions*`; none: those routes answer 403.
    pub admin_key: Option<String>,
    /// `/metrics` needs a key too.
    pub metrics_auth: bool,
    /// Bytes of a JSON body.
    pub max_body_bytes: usize,
    /// Bytes of an uploaded component.
    pub max_upload_bytes: usize,
    /// HTTP requests for generation at a time, those that wait for the engine included; more get
    /// a 429 before their body is read.
    pub max_inflight: usize,
    /// Bounds of one request.
    pub limits: Limits,
    /// Names of reasoning in answers.
    pub reasoning_field: ReasoningField,
    /// Tools may go to a template that does not show them to the model.
    pub allow_ignored_tools: bool,
    /// Shares of the API keys, in their order, where tenants share by weight; 1 where none is said.
    pub tenant_weights: Vec<u32>,
    /// The engine orders by priority.
    pub has_priorities: bool,
    /// A request ends with an error after this; none: it takes as long as it takes.
    pub request_timeout: Option<Duration>,
    /// How long requests in flight may go on after the signal to stop.
    pub drain_timeout: Duration,
    /// Between comments on a stream that has nothing to say.
    pub keep_alive: Duration,
    /// A client that takes nothing of its answer for this long is cut off: it holds a place.
    pub unread_timeout: Duration,
    /// For `/version`.
    pub version: String,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            api_keys: Vec::new(),
            admin_key: None,
            metrics_auth: false,
            tenant_weights: Vec::new(),
            has_priorities: false,
            request_timeout: None,
            max_body_bytes: 8 << 20,
            max_upload_bytes: 16 << 20,
            max_inflight: 1024,
            limits: Limits::DEFAULT,
            reasoning_field: ReasoningField::Both,
            allow_ignored_tools: false,
            drain_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            unread_timeout: Duration::from_secs(60),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What a server is made of.
pub struct ServerParts {
    /// The model's names and sizes.
    pub model: ModelCard,
    /// Its vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    /// What ends its outputs.
    pub eos_token_ids: Vec<u32>,
    /// None: chat answers 400.
    pub template: Option<Arc<ChatTemplate>>,
    /// Takes requests.
    pub engine: Arc<dyn Engine>,
    /// Turn tokens into events.
    pub workers: Arc<OutputWorkers>,
    /// Parsers.
    pub extensions: Arc<dyn Extensions>,
    /// The operator's choices.
    pub config: ServerConfig,
}

/// The parts and what the server itself keeps.
pub struct ServerState {
    pub(crate) model: ModelCard,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) grammars: Compiler,
    pub(crate) template: Option<Arc<ChatTemplate>>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) workers: Arc<OutputWorkers>,
    pub(crate) extensions: Arc<dyn Extensions>,
    pub(crate) config: ServerConfig,
    pub(crate) api_keys: KeyRing,
    pub(crate) admin_keys: KeyRing,
    pub(crate) metrics: Metrics,
    /// A longer prompt has more tokens than the context.
    pub(crate) max_prompt_bytes: usize,
    /// Tokens of the default breakers of DRY, once a request needs them.
    pub(crate) dry_breakers: OnceLock<Arc<[u32]>>,
    pub(crate) lifecycle: Lifecycle,
    next_request: AtomicU64,
}

impl ServerState {
    /// Puts the parts together. Keys are hashed here and not kept.
    pub fn new(mut parts: ServerParts) -> Arc<ServerState> {
        let api_keys = KeyRing::new(std::mem::take(&mut parts.config.api_keys));
        let admin_keys = KeyRing::new(parts.config.admin_key.take());
        let metrics = Metrics::new(&parts.model.id, parts.model.max_model_len);
        let max_prompt_bytes = max_prompt_bytes(&parts.tokenizer, parts.model.max_model_len);
        let (tokenizer, eos) = (parts.tokenizer.clone(), parts.eos_token_ids);
        let grammars = Compiler::new(tokenizer, eos, GrammarLimits::default());
        Arc::new(ServerState {
            grammars,
            lifecycle: Lifecycle::new(parts.config.max_inflight),
            model: parts.model,
            tokenizer: parts.tokenizer,
            template: parts.template,
            engine: parts.engine,
            workers: parts.workers,
            extensions: parts.extensions,
            config: parts.config,
            api_keys,
            admin_keys,
            metrics,
            max_prompt_bytes,
            dry_breakers: OnceLock::new(),
            next_request: AtomicU64::new(1),
        })
    }

    /// An id that no other request of this process has.
    pub(crate) fn next_request_id(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }
}

/// Bytes of text that `num_tokens` tokens can stand for. Normalization may drop bytes that no token
/// has; twice the longest token is more than any text that makes sense.
fn max_prompt_bytes(tokenizer: &Tokenizer, num_tokens: u32) -> usize {
    let ids = 0..tokenizer.vocab_size() as u32;
    let longest = ids.filter_map(|id| tokenizer.token_bytes(id)).map(<[u8]>::len).max();
    longest.unwrap_or(1).saturating_mul(2 * num_tokens as usize)
}

/// `prefix` and 128 random bits.
pub(crate) fn random_id(prefix: &str) -> String {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system has a random source");
    let number = u128::from_le_bytes(bytes);
    format!("{prefix}{number:032x}")
}
