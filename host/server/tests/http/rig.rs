//! A whole server without a model: the real router, output workers and engine thread over a
//! scripted backend with one token per byte.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tenon_chat::template::{ChatTemplate, TemplateTokens};
use tenon_chat::worker::{Abort, OnAbort, OutputConfig, OutputWorkers};
use tenon_engine::{EngineConfig, EngineStats, RequestId, SchedulingPolicy};
use tenon_runner::{GenerateRequest, RunnerHandle, SubmitError, WorkerConfig};
use tenon_scripted::{Reply, Script, ScriptedBackend};
use tenon_server::{Engine, ModelCard, ServerConfig, ServerParts, ServerState, router};
use tenon_text::{Bos, Specials, Tokenizer};
use tower::ServiceExt;

use crate::parser::Store;

pub const SPECIALS: [&str; 3] = ["<|end|>", "<|user|>", "<|assistant|>"];
pub const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}\
     {% for m in messages %}<|user|>{{ m.content }}{% endfor %}\
     {% if add_generation_prompt %}<|assistant|>{% if think %}<think>\n{% endif %}{% endif %}";

pub fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::byte_level_for_scripts(&SPECIALS.map(str::to_owned)))
}

/// What a server is built from; each test changes what it is about.
pub struct Setup {
    pub config: ServerConfig,
    /// (what the prompt contains, what the model says)
    pub script: Vec<(String, String)>,
    pub bound: Option<(&'static str, Option<&'static str>)>,
    pub template: Option<&'static str>,
    pub max_waiting: usize,
    pub max_model_len: usize,
    pub num_blocks: usize,
    pub step_time: Duration,
    pub policy: SchedulingPolicy,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            config: ServerConfig::default(),
            script: vec![("".into(), "hello".into())],
            bound: Some(("fake", Some("think"))),
            template: Some(TEMPLATE),
            max_waiting: 256,
            max_model_len: 2048,
            num_blocks: 1024,
            step_time: Duration::ZERO,
            policy: SchedulingPolicy::Fcfs,
        }
    }
}

impl Setup {
    pub fn says(text: &str) -> Setup {
        Setup { script: vec![("".into(), text.into())], ..Setup::default() }
    }

    /// Starts everything.
    pub fn start(self) -> Server {
        let tokenizer = tokenizer();
        let vocab_size = tokenizer.vocab_size() as u32;
        let eos = tokenizer.eos().unwrap();
        let engine = EngineConfig {
            num_blocks: self.num_blocks,
            block_size: 16,
            max_num_seqs: 16,
            max_step_tokens: 512,
            max_prefill_chunk: 256,
            max_prompt_logits_rows: 16,
            policy: self.policy,
            max_model_len: self.max_model_len,
            max_waiting: self.max_waiting,
            kv_groups: vec![None],
            tier: None,
            prefix_caching: true,
            hash_key: [7; 16],
            eos_token_ids: vec![eos],
        };
        let encode = |text: &str| tokenizer.encode(text, Specials::Parse, Bos::Skip).unwrap();
        let script = Script {
            token_bytes: (0..vocab_size)
                .map(|id| tokenizer.token_bytes(id).unwrap().to_vec())
                .collect(),
            eos,
            replies: self
                .script
                .iter()
                .map(|(when, says)| Reply {
                    when: (!when.is_empty()).then(|| when.clone().into_bytes()),
                    tokens: encode(says),
                })
                .collect(),
            step_time: self.step_time,
        };
        let backend = ScriptedBackend::new(script, engine.num_blocks, engine.block_size);
        let handle: Arc<OnceLock<RunnerHandle>> = Arc::default();
        let aborting = handle.clone();
        let on_abort = Arc::new(move |abort| match (aborting.get(), abort) {
            (Some(handle), Abort::Request(id)) => RunnerHandle::abort(handle, id),
            (Some(handle), Abort::Sequence(id, index)) => handle.abort_sequence(id, index),
            (None, _) => {}
        });
        let workers = workers(&tokenizer, on_abort);
        let delivering = workers.clone();
        let sink = Box::new(move |outputs: &mut Vec<_>| delivering.deliver(outputs));
        let config = WorkerConfig::new(engine, vocab_size);
        let (runner, thread) =
            tenon_runner::spawn(config, Box::new(backend), sink, Box::new(|_| {})).unwrap();
        thread.wait_ready().unwrap();
        handle.set(runner.clone()).ok().unwrap();
        let state = self.state(Arc::new(runner.clone()), workers, tokenizer);
        Server { router: router(state.clone()), state, runner: Some(runner) }
    }

    /// With an engine that takes requests and never answers.
    pub fn start_silent(self, capacity: usize) -> (Server, Silent) {
        let tokenizer = tokenizer();
        let (submitted, submissions) = channel();
        let (aborted, aborts) = channel();
        let aborted = Mutex::new(aborted);
        // The test may be over.
        let on_abort = Arc::new(move |abort| {
            if let Abort::Request(id) = abort {
                let _ = aborted.lock().unwrap().send(id);
            }
        });
        let workers = workers(&tokenizer, on_abort);
        let engine =
            SilentEngine { capacity: Mutex::new(capacity), submitted: Mutex::new(submitted) };
        let state = self.state(Arc::new(engine), workers, tokenizer);
        let server = Server { router: router(state.clone()), state, runner: None };
        (server, Silent { submissions, aborts })
    }

    fn state(
        self,
        engine: Arc<dyn Engine>,
        workers: Arc<OutputWorkers>,
        tokenizer: Arc<Tokenizer>,
    ) -> Arc<ServerState> {
        ServerState::new(ServerParts {
            model: ModelCard {
                id: "tiny".into(),
                aliases: vec!["org/tiny".into()],
                root: "tiny.gguf".into(),
                created: 1_700_000_000,
                max_model_len: self.max_model_len as u32,
                vocab_size: tokenizer.vocab_size() as u32,
            },
            eos_token_ids: tokenizer.end_tokens().to_vec(),
            template: self.template.map(|source| {
                Arc::new(ChatTemplate::new(source, TemplateTokens::default()).unwrap())
            }),
            tokenizer,
            engine,
            workers,
            extensions: Arc::new(Store::new(self.bound)),
            config: self.config,
        })
    }
}

fn workers(tokenizer: &Arc<Tokenizer>, on_abort: OnAbort) -> Arc<OutputWorkers> {
    let config = OutputConfig { num_workers: 2, max_requests: 1024 };
    let eos = tokenizer.end_tokens().to_vec();
    Arc::new(OutputWorkers::spawn(config, tokenizer.clone(), eos, on_abort).unwrap())
}

/// What a silent engine saw.
pub struct Silent {
    pub submissions: Receiver<GenerateRequest>,
    pub aborts: Receiver<RequestId>,
}

struct SilentEngine {
    capacity: Mutex<usize>,
    submitted: Mutex<std::sync::mpsc::Sender<GenerateRequest>>,
}

impl Engine for SilentEngine {
    fn submit(&self, request: GenerateRequest) -> Result<(), SubmitError> {
        let mut capacity = self.capacity.lock().unwrap();
        if *capacity == 0 {
            return Err(SubmitError::QueueFull { limit: 0 });
        }
        *capacity -= 1;
        self.submitted.lock().unwrap().send(request).unwrap();
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

/// A running server.
pub struct Server {
    pub router: Router,
    pub state: Arc<ServerState>,
    pub runner: Option<RunnerHandle>,
}

/// An answer with its body read.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The `data:` lines of a stream, without `[DONE]`, which must be the last.
    pub fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{:?}", self.body);
        let text = std::str::from_utf8(&self.body).unwrap();
        let mut lines: Vec<_> = text.split("\n\n").filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.pop(), Some("data: [DONE]"));
        lines
            .iter()
            .map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    /// Checks OpenAI's error body and gives `param`.
    pub fn error_param(&self) -> Value {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{body}"));
        for key in ["message", "type", "param", "code"] {
            assert!(error.contains_key(key), "no `{key}` in {body}");
        }
        assert_eq!(self.headers["content-type"], "application/json");
        error["param"].clone()
    }
}

impl Server {
    pub async fn send(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn call(&self, request: Request<Body>) -> Answer {
        let response = self.send(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(post(path, body.to_string())).await
    }

    /// A chat request with one message; `extra` fields win.
    pub async fn chat(&self, message: &str, extra: Value) -> Answer {
        self.post("/v1/chat/completions", chat_body(message, extra)).await
    }
}

pub fn chat_body(message: &str, extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "temperature": 0, "max_tokens": 500,
        "messages": [{"role": "user", "content": message}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

pub fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").body(body.into()).unwrap()
}

/// A stream's chunks of one choice, folded as clients do it: (message, finish reason, logprobs).
pub fn fold(chunks: &[Value], index: u64) -> (Value, Value, Vec<Value>) {
    let mut message = json!({});
    let mut logprobs = Vec::new();
    let mut finish = Value::Null;
    let mut is_first = true;
    for chunk in chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            assert!(finish.is_null(), "a chunk behind the end: {choice}");
            let delta = choice["delta"].as_object().unwrap();
            assert_eq!(delta.contains_key("role"), is_first, "{choice}");
            is_first = false;
            for (key, value) in delta {
                match (key.as_str(), value) {
                    ("tool_calls", value) => fold_calls(&mut message, value),
                    (key, Value::String(text)) if message[key].is_string() => {
                        message[key] = json!(message[key].as_str().unwrap().to_owned() + text);
                    }
                    (key, value) => message[key] = value.clone(),
                }
            }
            finish = choice["finish_reason"].clone();
            if let Some(tokens) = choice["logprobs"]["content"].as_array() {
                logprobs.extend(tokens.iter().cloned());
            }
        }
    }
    (message, finish, logprobs)
}

fn fold_calls(message: &mut Value, deltas: &Value) {
    if message["tool_calls"].is_null() {
        message["tool_calls"] = json!([]);
    }
    let calls = message["tool_calls"].as_array_mut().unwrap();
    let deltas = deltas.as_array().unwrap();
    assert!(!deltas.is_empty());
    for delta in deltas {
        let index = delta["index"].as_u64().unwrap() as usize;
        if index == calls.len() {
            assert!(delta["id"].is_string() && delta["function"]["name"].is_string(), "{delta}");
            calls.push(json!({"id": delta["id"], "type": delta["type"],
                "function": delta["function"]}));
            continue;
        }
        assert!(delta.get("id").is_none() && delta["function"].get("name").is_none(), "{delta}");
        let arguments = &mut calls[index]["function"]["arguments"];
        let text = delta["function"]["arguments"].as_str().unwrap();
        *arguments = json!(arguments.as_str().unwrap().to_owned() + text);
    }
}
