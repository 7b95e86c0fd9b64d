//! `POST /v1/chat/completions`: messages to a prompt, events to one JSON body or a stream.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use tenon_chat::fold::ChatMessage;
use tenon_chat::parser::ParserFault;
use tenon_chat::stream::{Finished, ParserBinding, StreamEvent, TokenInfo};
use tenon_engine::Tenant;

use crate::body::read_json;
use crate::error::ApiError;
use crate::generation::{ChoiceEvent, Generation, PromptRequest, failure};
use crate::lifecycle::InFlight;
use crate::models::check_model;
use crate::sse::{self, Render, data};
use crate::state::{ModelCard, ServerState, random_id};
use crate::wire::chat_request::ChatRequest;
use crate::wire::chat_response::{
    CallDelta, ChatChoice, ChatChunk, ChatLogprobs, ChatResponse, ChunkChoice, Delta, FaultBody,
    FunctionDelta, Message, TokenLogprob, finish,
};
use crate::wire::fields::Fields;
use crate::wire::prompt_logprobs::PromptLogprobs;
use crate::wire::sampling::Bounds;
use crate::wire::usage::Usage;
use crate::{parser_choice, prompt, structured};

/// A request that can be submitted.
struct Prepared {
    request: ChatRequest,
    prompt: PromptRequest,
    parser: Option<ParserBinding>,
}

/// The route.
pub(crate) async fn complete(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let in_flight = InFlight::enter(&state, request.headers())?;
    let body = read_json(request, state.config.max_body_bytes).await?;
    // Rendering, tokenizing and the first use of a parser take their time: not on this thread. They
    // keep the request's place, since they go on when the client leaves.
    let preparing = state.clone();
    let work = move || Ok((prepare(&preparing, &body, in_flight.caller.tenant)?, in_flight));
    let (prepared, in_flight) = on_blocking_thread(work).await?;
    let Prepared { request, prompt, parser } = prepared;
    let prompt_ids = prompt.prompt.clone();
    let generation =
        Generation::start(&state, in_flight, vec![prompt], &request.sampling, parser, "messages")?;
    let answer = Answer::new(state.clone(), &request, prompt_ids);
    if request.streaming.stream {
        let choices = (0..generation.num_choices()).map(|_| ChoiceState::default()).collect();
        let include_usage = request.streaming.include_usage;
        let render = ChatStream { answer, choices, include_usage };
        return Ok(sse::response(state, generation, render));
    }
    unary(&state, generation, answer).await
}

/// Runs something that takes its time; a panic in it is a 500.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "preparing a request failed");
        Err(ApiError::Internal("the request could not be prepared; see the server's log".into()))
    })
}

fn prepare(state: &ServerState, body: &[u8], tenant: Tenant) -> Result<Prepared, ApiError> {
    let mut fields = Fields::parse(body)?;
    check_model(&state.model, &mut fields)?;
    let bounds = Bounds {
        vocab_size: state.model.vocab_size,
        limits: state.config.limits,
        has_priorities: state.config.has_priorities,
    };
    let mut request = ChatRequest::take(&mut fields, &bounds)?;
    prompt::bind_words(state, &mut request.sampling)?;
    let text = prompt::render(state, &request)?;
    let mut tokens = prompt::tokenize_rendered(state, &text, &request.sampling)?;
    let text = match prompt::truncate(state, &mut tokens, &request.sampling)? {
        true => prompt::detokenize(state, &tokens, "messages")?,
        false => text,
    };
    let context = state.model.max_model_len;
    let params = request.sampling.bind_context(tokens.len(), context, None, "messages")?;
    let parser = parser_choice::bind(state, &request, &text)?;
    let grammar = structured::compile_chat(state, tenant, &request, parser.as_ref())?;
    structured::check_first(state, grammar.as_ref(), &params)?;
    let prompt = PromptRequest { prompt: tokens.into(), params, grammar };
    Ok(Prepared { request, prompt, parser })
}

/// What body and stream have in common.
struct Answer {
    state: Arc<ServerState>,
    id: String,
    created: u64,
    prompt: Arc<[u32]>,
    n: u32,
    has_logprobs: bool,
    include_reasoning: bool,
    prompt_logprobs: Option<u32>,
    tokens_as_ids: bool,
    return_token_ids: bool,
    /// What each answer begins with.
    echo: String,
}

impl Answer {
    fn new(state: Arc<ServerState>, request: &ChatRequest, prompt: Arc<[u32]>) -> Answer {
        Answer {
            state,
            id: random_id("chatcmpl-"),
            created: ModelCard::now(),
            prompt,
            n: request.sampling.n,
            has_logprobs: request.logprobs.is_some(),
            include_reasoning: request.include_reasoning,
            prompt_logprobs: request.sampling.prompt_logprobs,
            tokens_as_ids: request.sampling.tokens_as_ids,
            return_token_ids: request.sampling.return_token_ids,
            echo: request.echoed().to_owned(),
        }
    }

    fn logprobs(&self, tokens: Vec<TokenInfo>) -> Option<ChatLogprobs> {
        let body = |token| TokenLogprob::new(token, self.tokens_as_ids);
        let content = || tokens.into_iter().map(body).collect();
        self.has_logprobs.then(|| ChatLogprobs { content: content() })
    }

    fn prompt_token_ids(&self) -> Option<&[u32]> {
        self.return_token_ids.then_some(&*self.prompt)
    }

    fn usage(&self, finished: &[Option<Finished>]) -> Usage {
        Usage::of(&[self.prompt.len() as u32], self.n, finished)
    }
}

/// One choice of a body, as it grows.
#[derive(Default)]
struct Folded {
    message: ChatMessage,
    tokens: Vec<TokenInfo>,
    token_ids: Vec<u32>,
    finished: Option<Finished>,
}

async fn unary(
    state: &ServerState,
    mut generation: Generation,
    answer: Answer,
) -> Result<Response, ApiError> {
    let mut folded: Vec<Folded> = Vec::new();
    folded.resize_with(generation.num_choices(), Folded::default);
    if !answer.echo.is_empty() {
        folded.iter_mut().for_each(|f| f.message.content = Some(answer.echo.clone()));
    }
    let mut prompt = Vec::new();
    while let Some(ChoiceEvent { choice, event }) = next_or_end(state, &mut generation).await? {
        let folded = &mut folded[choice as usize];
        folded.message.add(&event);
        match event {
            StreamEvent::Prompt(tokens) => prompt.extend(tokens),
            StreamEvent::Token(token) => folded.tokens.push(token),
            StreamEvent::TokenId(id) => folded.token_ids.push(id),
            StreamEvent::Finished(finished) => {
                if let Some(error) = failure(&finished) {
                    return Err(error);
                }
                folded.finished = Some(finished);
            }
            _ => {}
        }
    }
    let finished: Vec<_> = folded.iter().map(|f| f.finished.clone()).collect();
    let choices = folded.into_iter().enumerate().map(|(index, folded)| {
        let (finish_reason, stop_reason) = folded.finished.as_ref().map(finish).unwrap_or_default();
        let field = state.config.reasoning_field;
        ChatChoice {
            index: index as u32,
            message: Message::new(folded.message, field, answer.include_reasoning),
            logprobs: answer.logprobs(folded.tokens),
            finish_reason,
            stop_reason,
            token_ids: answer.return_token_ids.then_some(folded.token_ids),
        }
    });
    let body = ChatResponse {
        id: &answer.id,
        object: "chat.completion",
        created: answer.created,
        model: &state.model.id,
        choices: choices.collect(),
        usage: answer.usage(&finished),
        prompt_logprobs: answer.prompt_logprobs.map(|k| PromptLogprobs {
            tokens: &prompt,
            k,
            as_ids: answer.tokens_as_ids,
        }),
        prompt_token_ids: answer.prompt_token_ids(),
    };
    let mut response = Json(body).into_response();
    if let Some(fault) = finished.iter().flatten().find_map(|f| f.fault.as_ref()) {
        add_fault_header(&mut response, fault);
    }
    Ok(response)
}

/// The next event, or a 503 when the server ends what is in flight.
pub(crate) async fn next_or_end(
    state: &ServerState,
    generation: &mut Generation,
) -> Result<Option<ChoiceEvent>, ApiError> {
    tokio::select! {
        biased;
        event = generation.next() => Ok(event),
        () = state.lifecycle.ended() => {
            Err(ApiError::Unavailable("the server is shutting down".to_owned()))
        }
    }
}

/// `x-tenon-extension-fault: hermes; kind=trap`
fn add_fault_header(response: &mut Response, fault: &ParserFault) {
    let text = format!("{}; kind={}", fault.extension, fault.kind.as_str());
    // Names of extensions are plain; one that is not has no header.
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(HeaderName::from_static("x-tenon-extension-fault"), value);
    }
}

/// One choice of a stream.
#[derive(Default)]
struct ChoiceState {
    has_role: bool,
    /// Tokens whose chunk has not gone out yet.
    tokens: Vec<TokenInfo>,
    token_ids: Vec<u32>,
    finished: Option<Finished>,
}

struct ChatStream {
    answer: Answer,
    choices: Vec<ChoiceState>,
    include_usage: bool,
}

impl ChatStream {
    fn chunk(
        &self,
        choices: &[ChunkChoice<'_>],
        usage: Option<Usage>,
        is_first: bool,
        out: &mut Vec<u8>,
    ) {
        let chunk = ChatChunk {
            id: &self.answer.id,
            object: "chat.completion.chunk",
            created: self.answer.created,
            model: &self.answer.state.model.id,
            choices,
            usage: self.include_usage.then_some(usage),
            prompt_token_ids: self.answer.prompt_token_ids().filter(|_| is_first),
        };
        data(out, &chunk);
    }

    /// The role, once, in a chunk of its own. `null` content says that no text need come.
    fn begin(&mut self, choice: u32, content: Option<&'static str>, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.choices[choice as usize].has_role, true) {
            return;
        }
        let delta = Delta { role: Some("assistant"), content: Some(content), ..Delta::default() };
        self.delta(choice, delta, None, out);
        if !self.answer.echo.is_empty() {
            let echo = std::mem::take(&mut self.answer.echo);
            let delta = Delta { content: Some(Some(&echo)), ..Delta::default() };
            self.delta(choice, delta, None, out);
            self.answer.echo = echo;
        }
    }

    /// A chunk of one choice. Log-probabilities wait for a chunk that has something to say.
    fn delta(
        &mut self,
        choice: u32,
        delta: Delta<'_>,
        finished: Option<&Finished>,
        out: &mut Vec<u8>,
    ) {
        let is_role = delta.role.is_some();
        let state = &mut self.choices[choice as usize];
        let (tokens, token_ids) = match is_role {
            true => Default::default(),
            false => (std::mem::take(&mut state.tokens), std::mem::take(&mut state.token_ids)),
        };
        let logprobs = if tokens.is_empty() { None } else { self.answer.logprobs(tokens) };
        let (finish_reason, stop_reason) = finished.map(finish).unzip();
        let fault = finished.and_then(|f| f.fault.as_ref());
        let chunk = ChunkChoice {
            index: choice,
            delta,
            logprobs,
            finish_reason,
            stop_reason: stop_reason.flatten(),
            extension_fault: fault.map(|fault| FaultBody {
                extension: fault.extension.clone(),
                kind: fault.kind.as_str(),
            }),
            token_ids: (self.answer.return_token_ids && !is_role).then_some(token_ids),
        };
        self.chunk(&[chunk], None, is_role, out);
    }
}

impl Render for ChatStream {
    fn event(&mut self, ChoiceEvent { choice, event }: ChoiceEvent, out: &mut Vec<u8>) {
        match event {
            StreamEvent::Token(token) => {
                self.choices[choice as usize].tokens.push(token);
            }
            StreamEvent::TokenId(id) => self.choices[choice as usize].token_ids.push(id),
            StreamEvent::Content(text) if !text.is_empty() => {
                self.begin(choice, Some(""), out);
                let delta = Delta { content: Some(Some(&text)), ..Delta::default() };
                self.delta(choice, delta, None, out);
            }
            StreamEvent::Reasoning(text) if !text.is_empty() => {
                self.begin(choice, None, out);
                if self.answer.include_reasoning {
                    let field = self.answer.state.config.reasoning_field;
                    let (reasoning, reasoning_content) = field.split(Some(text.as_str()));
                    let delta = Delta { reasoning, reasoning_content, ..Delta::default() };
                    self.delta(choice, delta, None, out);
                }
            }
            // Log-probabilities of the prompt are refused in streams.
            StreamEvent::Content(_) | StreamEvent::Reasoning(_) | StreamEvent::Prompt(_) => {}
            StreamEvent::ToolBegin { index, id, name } => {
                self.begin(choice, None, out);
                let function = FunctionDelta { name: Some(&name), arguments: "" };
                let call = CallDelta { index, id: Some(&id), kind: Some("function"), function };
                let delta = Delta { tool_calls: Some([call]), ..Delta::default() };
                self.delta(choice, delta, None, out);
            }
            StreamEvent::ToolArgs { index, text } => {
                let function = FunctionDelta { name: None, arguments: &text };
                let call = CallDelta { index, id: None, kind: None, function };
                let delta = Delta { tool_calls: Some([call]), ..Delta::default() };
                self.delta(choice, delta, None, out);
            }
            StreamEvent::Finished(finished) => {
                self.begin(choice, Some(""), out);
                self.delta(choice, Delta::default(), Some(&finished), out);
                self.choices[choice as usize].finished = Some(finished);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.include_usage {
            let finished: Vec<_> = self.choices.iter_mut().map(|c| c.finished.take()).collect();
            let usage = self.answer.usage(&finished);
            self.chunk(&[], Some(usage), false, out);
        }
    }
}
