//! `POST /v1/completions`: raw prompts, raw text. No parser reads it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use tenon_engine::Tenant;

use crate::body::read_json;
use crate::chat::on_blocking_thread;
use crate::completion_answer::{self, Answer, CompletionStream, ShownPrompt};
use crate::error::ApiError;
use crate::generation::{Generation, PromptRequest};
use crate::lifecycle::InFlight;
use crate::models::check_model;
use crate::prompt;
use crate::sse;
use crate::state::ServerState;
use crate::structured;
use crate::wire::completion_request::{CompletionRequest, DEFAULT_MAX_TOKENS, Prompt};
use crate::wire::fields::Fields;
use crate::wire::sampling::Bounds;

/// A request that can be submitted.
struct Prepared {
    request: CompletionRequest,
    prompts: Vec<PromptRequest>,
    /// Per prompt.
    shown: Vec<ShownPrompt>,
}

/// The route.
pub(crate) async fn complete(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let in_flight = InFlight::enter(&state, request.headers())?;
    let body = read_json(request, state.config.max_body_bytes).await?;
    let preparing = state.clone();
    // With the request's place: the work goes on when the client leaves.
    let work = move || Ok((prepare(&preparing, &body, in_flight.caller.tenant)?, in_flight));
    let (prepared, in_flight) = on_blocking_thread(work).await?;
    let Prepared { request, prompts, shown } = prepared;
    let generation =
        Generation::start(&state, in_flight, prompts, &request.sampling, None, "prompt")?;
    let answer = Answer::new(state.clone(), &request, shown);
    if request.streaming.stream {
        let render = CompletionStream::new(answer, request.streaming.include_usage);
        return Ok(sse::response(state, generation, render));
    }
    completion_answer::unary(&state, generation, answer).await
}

fn prepare(state: &ServerState, body: &[u8], tenant: Tenant) -> Result<Prepared, ApiError> {
    let mut fields = Fields::parse(body)?;
    check_model(&state.model, &mut fields)?;
    let limits = state.config.limits;
    let bounds = Bounds {
        vocab_size: state.model.vocab_size,
        limits,
        has_priorities: state.config.has_priorities,
    };
    let mut request = CompletionRequest::take(&mut fields, &bounds)?;
    let num_choices = request.prompts.len() as u64 * u64::from(request.sampling.n);
    if num_choices > u64::from(limits.max_choices) {
        let message = format!(
            "`n` (or `best_of`) times the number of prompts is {num_choices}; at most {} are \
             allowed",
            limits.max_choices
        );
        let param = if request.num_kept < request.sampling.n { "best_of" } else { "n" };
        return Err(ApiError::invalid(param, message));
    }
    prompt::bind_words(state, &mut request.sampling)?;
    let grammar = structured::compile(state, tenant, request.structured.as_ref())?;
    let num_prompts = request.prompts.len();
    let mut prompts = Vec::with_capacity(num_prompts);
    let mut shown = Vec::with_capacity(num_prompts);
    for (i, given) in std::mem::take(&mut request.prompts).into_iter().enumerate() {
        let param = if num_prompts == 1 { "prompt".to_owned() } else { format!("prompt[{i}]") };
        let (mut tokens, text) = match given {
            Prompt::Text(text) => {
                (prompt::tokenize_raw(state, &text, &request.sampling, &param)?, Some(text))
            }
            Prompt::Tokens(tokens) => (tokens, None),
        };
        let is_cut = prompt::truncate(state, &mut tokens, &request.sampling)?;
        let default = Some(DEFAULT_MAX_TOKENS);
        let context = state.model.max_model_len;
        let params = request.sampling.bind_context(tokens.len(), context, default, &param)?;
        // What the tokenizer puts in front is a token, but not part of the client's text.
        let is_own = request.sampling.add_special_tokens.unwrap_or(true)
            && state.tokenizer.adds_bos()
            && text.is_some()
            && !is_cut;
        let echo = match text.filter(|_| !is_cut) {
            _ if !request.echo => String::new(),
            Some(text) => text,
            None => prompt::detokenize(state, &tokens, &param)?,
        };
        let tokens: Arc<[u32]> = tokens.into();
        shown.push(ShownPrompt::new(tokens.clone(), echo, is_own));
        prompts.push(PromptRequest { prompt: tokens, params, grammar: grammar.clone() });
    }
    // All prompts have the same masks.
    if let Some(first) = prompts.first() {
        structured::check_first(state, grammar.as_ref(), &first.params)?;
    }
    Ok(Prepared { request, prompts, shown })
}
