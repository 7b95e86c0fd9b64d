//! `POST /v1/completions`: raw prompts, raw text. No parser reads it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tenon_chat::stream::{Finished, StreamEvent};

use crate::body::read_json;
use crate::chat::{next_or_end, on_blocking_thread};
use crate::error::ApiError;
use crate::generation::{ChoiceEvent, Generation, PromptRequest, failure};
use crate::lifecycle::InFlight;
use crate::models::check_model;
use crate::prompt;
use crate::sse::{self, Render, data};
use crate::state::{ModelCard, ServerState, random_id};
use crate::wire::chat_response::finish;
use crate::wire::completion_request::{CompletionRequest, DEFAULT_MAX_TOKENS, Prompt};
use crate::wire::completion_response::{CompletionBody, CompletionChoice, CompletionLogprobs};
use crate::wire::fields::Fields;
use crate::wire::sampling::Bounds;
use crate::wire::usage::Usage;

/// A request that can be submitted.
struct Prepared {
    request: CompletionRequest,
    prompts: Vec<PromptRequest>,
    /// Per prompt, what `echo` puts in front.
    echoes: Vec<String>,
}

/// The route.
pub(crate) async fn complete(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let in_flight = InFlight::enter(&state)?;
    let body = read_json(request, state.config.max_body_bytes).await?;
    let preparing = state.clone();
    // With the request's place: the work goes on when the client leaves.
    let work = move || Ok((prepare(&preparing, &body)?, in_flight));
    let (prepared, in_flight) = on_blocking_thread(work).await?;
    let Prepared { request, prompts, echoes } = prepared;
    let num_prompts = prompts.iter().map(|p| p.prompt.len() as u32).collect();
    let generation =
        Generation::start(&state, in_flight, prompts, &request.sampling, None, "prompt")?;
    let n = request.sampling.n;
    let choices = (0..generation.num_choices() as u32).map(|choice| {
        let echo = echoes.get((choice / n) as usize).cloned().unwrap_or_default();
        Choice { text: echo, logprobs: CompletionLogprobs::default(), offset: 0, finished: None }
    });
    let answer = Answer {
        id: random_id("cmpl-"),
        created: ModelCard::now(),
        num_prompts,
        n,
        has_logprobs: request.logprobs.is_some(),
        choices: choices.collect(),
        state: state.clone(),
    };
    if request.streaming.stream {
        let render = CompletionStream { answer, include_usage: request.streaming.include_usage };
        return Ok(sse::response(state, generation, render));
    }
    unary(&state, generation, answer).await
}

fn prepare(state: &ServerState, body: &[u8]) -> Result<Prepared, ApiError> {
    let mut fields = Fields::parse(body)?;
    check_model(&state.model, &mut fields)?;
    let limits = state.config.limits;
    let bounds = Bounds { vocab_size: state.model.vocab_size, limits };
    let mut request = CompletionRequest::take(&mut fields, &bounds)?;
    let num_choices = request.prompts.len() as u64 * u64::from(request.sampling.n);
    if num_choices > u64::from(limits.max_choices) {
        let message = format!(
            "`n` times the number of prompts is {num_choices}; at most {} are allowed",
            limits.max_choices
        );
        return Err(ApiError::invalid("n", message));
    }
    prompt::bind_words(state, &mut request.sampling)?;
    let num_prompts = request.prompts.len();
    let mut prompts = Vec::with_capacity(num_prompts);
    let mut echoes = Vec::new();
    for (i, given) in std::mem::take(&mut request.prompts).into_iter().enumerate() {
        let param = if num_prompts == 1 { "prompt".to_owned() } else { format!("prompt[{i}]") };
        let (tokens, text) = match given {
            Prompt::Text(text) => (prompt::tokenize_raw(state, &text, &param)?, Some(text)),
            Prompt::Tokens(tokens) => (tokens, None),
        };
        let default = Some(DEFAULT_MAX_TOKENS);
        let context = state.model.max_model_len;
        let params = request.sampling.bind_context(tokens.len(), context, default, &param)?;
        if request.echo {
            echoes.push(match text {
                Some(text) => text,
                None => prompt::detokenize(state, &tokens, &param)?,
            });
        }
        prompts.push(PromptRequest { prompt: tokens.into(), params });
    }
    Ok(Prepared { request, prompts, echoes })
}

/// One choice, as it grows. In a stream, what has not gone out yet.
struct Choice {
    text: String,
    logprobs: CompletionLogprobs,
    /// Characters of generated text that have log-probabilities.
    offset: usize,
    finished: Option<Finished>,
}

/// What body and stream have in common.
struct Answer {
    state: Arc<ServerState>,
    id: String,
    created: u64,
    /// Tokens of each prompt.
    num_prompts: Vec<u32>,
    n: u32,
    has_logprobs: bool,
    choices: Vec<Choice>,
}

impl Answer {
    fn body<'a>(
        &'a self,
        choices: &'a [CompletionChoice<'a>],
        usage: Option<Option<Usage>>,
    ) -> CompletionBody<'a> {
        CompletionBody {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.state.model.id,
            choices,
            usage,
        }
    }

    fn usage(&self) -> Usage {
        let finished: Vec<_> = self.choices.iter().map(|c| c.finished.clone()).collect();
        Usage::of(&self.num_prompts, self.n, &finished)
    }

    /// Adds an event to its choice.
    fn add(&mut self, ChoiceEvent { choice, event }: ChoiceEvent) {
        let choice = &mut self.choices[choice as usize];
        match event {
            // Without a parser all text is content; the other texts could not be lost either way.
            StreamEvent::Content(text) | StreamEvent::Reasoning(text) => {
                choice.text.push_str(&text);
            }
            StreamEvent::Token(token) => choice.logprobs.push(token, &mut choice.offset),
            StreamEvent::Finished(finished) => choice.finished = Some(finished),
            StreamEvent::ToolBegin { .. } | StreamEvent::ToolArgs { .. } => {}
        }
    }

    /// Takes what a choice has gathered since the last time, as (text, logprobs).
    fn take(&mut self, choice: u32) -> (String, Option<CompletionLogprobs>) {
        let choice = &mut self.choices[choice as usize];
        let logprobs = std::mem::take(&mut choice.logprobs);
        (std::mem::take(&mut choice.text), self.has_logprobs.then_some(logprobs))
    }
}

async fn unary(
    state: &ServerState,
    mut generation: Generation,
    mut answer: Answer,
) -> Result<Response, ApiError> {
    while let Some(event) = next_or_end(state, &mut generation).await? {
        if let StreamEvent::Finished(finished) = &event.event
            && let Some(error) = failure(finished)
        {
            return Err(error);
        }
        answer.add(event);
    }
    let (texts, logprobs): (Vec<_>, Vec<_>) =
        (0..answer.choices.len() as u32).map(|i| answer.take(i)).unzip();
    let choices: Vec<_> = texts
        .iter()
        .zip(logprobs)
        .zip(&answer.choices)
        .enumerate()
        .map(|(index, ((text, logprobs), choice))| {
            let (finish_reason, stop_reason) = choice.finished.as_ref().map(finish).unzip();
            CompletionChoice {
                index: index as u32,
                text,
                logprobs,
                finish_reason,
                stop_reason: stop_reason.flatten(),
                extension_fault: None,
            }
        })
        .collect();
    Ok(Json(answer.body(&choices, Some(Some(answer.usage())))).into_response())
}

struct CompletionStream {
    answer: Answer,
    include_usage: bool,
}

impl CompletionStream {
    /// Sends what a choice has gathered.
    fn flush(&mut self, index: u32, out: &mut Vec<u8>) {
        let (text, logprobs) = self.answer.take(index);
        let finished = self.answer.choices[index as usize].finished.as_ref();
        let (finish_reason, stop_reason) = finished.map(finish).unzip();
        let choice = CompletionChoice {
            index,
            text: &text,
            logprobs: logprobs.filter(|logprobs| !logprobs.is_empty()),
            finish_reason,
            stop_reason: stop_reason.flatten(),
            extension_fault: None,
        };
        data(out, &self.answer.body(&[choice], self.include_usage.then_some(None)));
    }
}

impl Render for CompletionStream {
    fn event(&mut self, event: ChoiceEvent, out: &mut Vec<u8>) {
        let index = event.choice;
        // Log-probabilities wait for the text of their tokens.
        let waits = matches!(event.event, StreamEvent::Token(_));
        self.answer.add(event);
        if !waits {
            self.flush(index, out);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.include_usage {
            let usage = self.answer.usage();
            data(out, &self.answer.body(&[], Some(Some(usage))));
        }
    }
}
