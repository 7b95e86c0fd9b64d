//! Answers of `POST /v1/completions` as they grow: one body, or the chunks of a stream.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use tenon_chat::stream::{Finished, StreamEvent, TokenInfo};

use crate::chat::next_or_end;
use crate::error::ApiError;
use crate::generation::{ChoiceEvent, Generation, failure};
use crate::sse::{Render, data};
use crate::state::{ModelCard, ServerState, random_id};
use crate::wire::chat_response::{finish, named};
use crate::wire::completion_request::CompletionRequest;
use crate::wire::completion_response::{
    CompletionBody, CompletionChoice, CompletionLogprobs, TextOffset,
};
use crate::wire::prompt_logprobs::PromptLogprobs;
use crate::wire::usage::Usage;

/// What answers may show of a prompt.
pub(crate) struct ShownPrompt {
    /// What the engine got.
    pub tokens: Arc<[u32]>,
    /// What `echo` puts in front; empty without.
    pub echo: String,
    /// The first token is no part of the echo: the tokenizer put it there.
    hides_first: bool,
    /// All tokens but the first, as far as they came, for `prompt_logprobs`.
    scores: Vec<TokenInfo>,
}

impl ShownPrompt {
    /// See the fields.
    pub fn new(tokens: Arc<[u32]>, echo: String, hides_first: bool) -> ShownPrompt {
        ShownPrompt { tokens, echo, hides_first, scores: Vec::new() }
    }
}

/// One choice, as it grows. In a stream, what has not gone out yet.
#[derive(Default)]
struct Choice {
    text: String,
    logprobs: CompletionLogprobs,
    token_ids: Vec<u32>,
    /// Behind the text that has log-probabilities.
    offset: TextOffset,
    /// Sum over the generated tokens, for `best_of`.
    log_probability: f64,
    /// Something of it went out.
    has_begun: bool,
    finished: Option<Finished>,
}

impl Choice {
    /// What `best_of` goes by: the mean log-probability of the tokens.
    fn score(&self) -> f64 {
        let num_tokens = self.finished.as_ref().map_or(0, |f| f.num_output_tokens);
        self.log_probability / f64::from(num_tokens.max(1))
    }
}

/// What body and stream have in common.
pub(crate) struct Answer {
    state: Arc<ServerState>,
    id: String,
    created: u64,
    prompts: Vec<ShownPrompt>,
    /// Choices that are generated per prompt, and those that are answered.
    n: u32,
    num_kept: u32,
    /// With how many of the likeliest, if at all.
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    echoes_logprobs: bool,
    tokens_as_ids: bool,
    return_token_ids: bool,
    choices: Vec<Choice>,
}

impl Answer {
    /// Nothing has come yet.
    pub fn new(
        state: Arc<ServerState>,
        request: &CompletionRequest,
        prompts: Vec<ShownPrompt>,
    ) -> Answer {
        let n = request.sampling.n;
        let choices = prompts.iter().flat_map(|prompt| {
            (0..n).map(|_| Choice { text: prompt.echo.clone(), ..Choice::default() })
        });
        let mut answer = Answer {
            choices: choices.collect(),
            state,
            id: random_id("cmpl-"),
            created: ModelCard::now(),
            prompts,
            n,
            num_kept: request.num_kept,
            logprobs: request.logprobs,
            prompt_logprobs: request.sampling.prompt_logprobs,
            echoes_logprobs: request.echo && request.logprobs.is_some(),
            tokens_as_ids: request.sampling.tokens_as_ids,
            return_token_ids: request.sampling.return_token_ids,
        };
        if answer.echoes_logprobs {
            answer.begin_echoes();
        }
        answer
    }

    /// The first token of each prompt, which has no log-probability.
    fn begin_echoes(&mut self) {
        for (at, choice) in self.choices.iter_mut().enumerate() {
            let prompt = &self.prompts[at / self.n as usize];
            let first = prompt.tokens[0];
            let bytes = self.state.tokenizer.token_bytes(first).unwrap_or_default();
            let text = String::from_utf8_lossy(bytes).into_owned();
            if !prompt.hides_first {
                choice.offset.push(bytes);
            }
            choice.logprobs.push_first(named(text, first, self.tokens_as_ids));
        }
    }

    /// More of the tokens of a prompt, for all of its choices.
    fn add_prompt(&mut self, prompt: usize, tokens: Vec<TokenInfo>) {
        if self.echoes_logprobs {
            let k = self.logprobs.unwrap_or(0) as usize;
            let n = self.n as usize;
            for choice in &mut self.choices[prompt * n..(prompt + 1) * n] {
                for token in &tokens {
                    let (chosen, top) = (token.chosen.clone(), token.top.iter().take(k).cloned());
                    let token = TokenInfo { chosen, top: top.collect() };
                    choice.logprobs.push(token, &mut choice.offset, self.tokens_as_ids);
                }
            }
        }
        if self.prompt_logprobs.is_some() {
            self.prompts[prompt].scores.extend(tokens);
        }
    }

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
        let num_prompts: Vec<_> = self.prompts.iter().map(|p| p.tokens.len() as u32).collect();
        let finished: Vec<_> = self.choices.iter().map(|c| c.finished.clone()).collect();
        Usage::of(&num_prompts, self.n, &finished)
    }

    /// Adds an event to its choice.
    fn add(&mut self, ChoiceEvent { choice, event }: ChoiceEvent) {
        if let StreamEvent::Prompt(tokens) = event {
            return self.add_prompt((choice / self.n) as usize, tokens);
        }
        let choice = &mut self.choices[choice as usize];
        match event {
            // Without a parser all text is content; the other texts could not be lost either way.
            StreamEvent::Content(text) | StreamEvent::Reasoning(text) => {
                choice.text.push_str(&text);
            }
            StreamEvent::Token(token) => {
                choice.log_probability += f64::from(token.chosen.logprob);
                if self.logprobs.is_some() {
                    choice.logprobs.push(token, &mut choice.offset, self.tokens_as_ids);
                }
            }
            StreamEvent::TokenId(id) => choice.token_ids.push(id),
            StreamEvent::Finished(finished) => choice.finished = Some(finished),
            StreamEvent::Prompt(_)
            | StreamEvent::ToolBegin { .. }
            | StreamEvent::ToolArgs { .. } => {}
        }
    }

    /// Which choices are answered, in order: the best `num_kept` of each prompt, best first, or
    /// all of them as they are.
    fn kept(&self) -> Vec<usize> {
        let (n, num_kept) = (self.n as usize, self.num_kept as usize);
        let mut kept: Vec<usize> = (0..self.choices.len()).collect();
        if num_kept < n {
            let score = |&at: &usize| self.choices[at].score();
            // Stable: of equal ones the first.
            kept.chunks_mut(n).for_each(|of| of.sort_by(|a, b| score(b).total_cmp(&score(a))));
            kept = kept.chunks(n).flat_map(|of| of[..num_kept].to_vec()).collect();
        }
        kept
    }

    /// Takes what choice `at` has gathered since the last time; the text is returned beside it.
    fn take(&mut self, at: usize) -> Taken {
        let choice = &mut self.choices[at];
        let logprobs = std::mem::take(&mut choice.logprobs);
        let token_ids = std::mem::take(&mut choice.token_ids);
        Taken {
            at,
            is_first: !std::mem::replace(&mut choice.has_begun, true),
            text: std::mem::take(&mut choice.text),
            logprobs: self.logprobs.is_some().then_some(logprobs),
            token_ids: self.return_token_ids.then_some(token_ids),
        }
    }

    /// The wire's form of it, as choice `index` of the answer.
    fn choice<'a>(&'a self, index: usize, taken: &'a mut Taken) -> CompletionChoice<'a> {
        let finished = self.choices[taken.at].finished.as_ref();
        let (finish_reason, stop_reason) = finished.map(finish).unzip();
        let prompt = &self.prompts[taken.at / self.n as usize];
        let as_ids = self.tokens_as_ids;
        CompletionChoice {
            index: index as u32,
            logprobs: taken.logprobs.take(),
            token_ids: taken.token_ids.take(),
            text: &taken.text,
            finish_reason,
            stop_reason: stop_reason.flatten(),
            extension_fault: None,
            prompt_logprobs: self.prompt_logprobs.map(|k| PromptLogprobs {
                tokens: &prompt.scores,
                k,
                as_ids,
            }),
            prompt_token_ids: (self.return_token_ids && taken.is_first).then_some(&prompt.tokens),
        }
    }
}

/// What a choice had gathered.
struct Taken {
    at: usize,
    is_first: bool,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    token_ids: Option<Vec<u32>>,
}

/// The whole body, when everything has come.
pub(crate) async fn unary(
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
    let mut taken: Vec<Taken> = answer.kept().into_iter().map(|at| answer.take(at)).collect();
    let choices: Vec<_> =
        taken.iter_mut().enumerate().map(|(index, taken)| answer.choice(index, taken)).collect();
    Ok(Json(answer.body(&choices, Some(Some(answer.usage())))).into_response())
}

/// Chunks. All choices are answered.
pub(crate) struct CompletionStream {
    answer: Answer,
    include_usage: bool,
}

impl CompletionStream {
    /// Nothing has gone out yet.
    pub fn new(answer: Answer, include_usage: bool) -> CompletionStream {
        CompletionStream { answer, include_usage }
    }

    /// Sends what a choice has gathered.
    fn flush(&mut self, index: u32, out: &mut Vec<u8>) {
        let mut taken = self.answer.take(index as usize);
        taken.logprobs = taken.logprobs.filter(|logprobs| !logprobs.is_empty());
        let choice = self.answer.choice(index as usize, &mut taken);
        data(out, &self.answer.body(&[choice], self.include_usage.then_some(None)));
    }
}

impl Render for CompletionStream {
    fn event(&mut self, event: ChoiceEvent, out: &mut Vec<u8>) {
        let index = event.choice;
        // Log-probabilities and ids wait for the text of their tokens.
        let waits = matches!(
            event.event,
            StreamEvent::Prompt(_) | StreamEvent::Token(_) | StreamEvent::TokenId(_)
        );
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
