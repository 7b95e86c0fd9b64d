//! From a checked request to token ids: the chat template, the tokenizer.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenon_chat::template::TemplateError;
use tenon_text::{Bos, Specials, TextError};

use crate::error::ApiError;
use crate::state::ServerState;
use crate::wire::chat_request::ChatRequest;
use crate::wire::repetition::DEFAULT_BREAKERS;
use crate::wire::sampling::{Sampling, Truncation};

/// The prompt as text. Tools that the template would not show to the model are refused, unless the
/// server or the request allows them.
pub(crate) fn render(state: &ServerState, request: &ChatRequest) -> Result<String, ApiError> {
    let Some(template) = &state.template else {
        return Err(ApiError::invalid(
            "messages",
            format!(
                "the model `{}` has no chat template; use `/v1/completions` or start the server \
                 with `--chat-template`",
                state.model.id
            ),
        ));
    };
    let tools = request.tools.list.as_slice();
    let is_allowed = request.allow_ignored_tools.unwrap_or(state.config.allow_ignored_tools);
    if !tools.is_empty() && !is_allowed && !template.uses_tools() {
        return Err(ApiError::invalid(
            "tools",
            format!(
                "the chat template of `{}` ignores `tools`: the model would not see them; leave \
                 them out, start the server with another `--chat-template`, or send \
                 `\"allow_ignored_tools\": true`",
                state.model.id
            ),
        ));
    }
    let (messages, kwargs) = (&request.messages, &request.template_kwargs);
    let prompt = if request.continue_final_message {
        template.render_continuing(messages, Some(tools), kwargs)
    } else {
        template.render(messages, Some(tools), kwargs, request.add_generation_prompt)
    };
    prompt.map_err(|error| match error {
        TemplateError::Message { ref field, .. } => {
            ApiError::invalid(field.clone(), error.to_string())
        }
        error if error.is_from_request() => ApiError::invalid("messages", error.to_string()),
        error => ApiError::Internal(error.to_string()),
    })
}

/// Tokens of a rendered prompt: its special tokens, the first one included, are written in it,
/// unless the request asks for more.
pub(crate) fn tokenize_rendered(
    state: &ServerState,
    text: &str,
    sampling: &Sampling,
) -> Result<Vec<u32>, ApiError> {
    let adds = sampling.add_special_tokens.unwrap_or(false);
    encode(state, text, if adds { Bos::Default } else { Bos::Skip }, "messages")
}

/// Tokens of a raw prompt, with what the model's files put in front unless the request says no.
pub(crate) fn tokenize_raw(
    state: &ServerState,
    text: &str,
    sampling: &Sampling,
    param: &str,
) -> Result<Vec<u32>, ApiError> {
    let adds = sampling.add_special_tokens.unwrap_or(true);
    encode(state, text, if adds { Bos::Default } else { Bos::Skip }, param)
}

/// Cuts a prompt as the request asks; says whether anything went.
pub(crate) fn truncate(
    state: &ServerState,
    tokens: &mut Vec<u32>,
    sampling: &Sampling,
) -> Result<bool, ApiError> {
    let context = state.model.max_model_len;
    let cut = |t: Truncation| t.apply(tokens, sampling.max_tokens, context);
    sampling.truncation.map_or(Ok(false), cut)
}

fn encode(state: &ServerState, text: &str, bos: Bos, param: &str) -> Result<Vec<u32>, ApiError> {
    // To tokenize megabytes takes seconds of a core, and whoever sends them gets a 400 anyway.
    if text.len() > state.max_prompt_bytes {
        return Err(ApiError::PromptBytes {
            param: param.to_owned(),
            bytes: text.len(),
            limit: state.max_prompt_bytes,
        });
    }
    let tokens = state
        .tokenizer
        .encode(text, Specials::Parse, bos)
        .map_err(|error| text_error(error, param))?;
    if tokens.is_empty() {
        return Err(ApiError::invalid(param, format!("`{param}` has no tokens; send some text")));
    }
    Ok(tokens)
}

/// Finds the tokens of what the request names as text: bad words, breakers of repetitions.
pub(crate) fn bind_words(state: &ServerState, sampling: &mut Sampling) -> Result<(), ApiError> {
    sampling.params.bad_words = tokenize_bad_words(state, &sampling.bad_words)?;
    if let Some(dry) = &sampling.dry {
        let breakers = match &dry.breakers {
            None => state.dry_breakers.get_or_init(|| breaker_tokens(state, DEFAULT_BREAKERS)),
            Some(texts) => &breaker_tokens(state, texts),
        };
        sampling.params.dry = Some(dry.bind(breakers.clone()));
    }
    Ok(())
}

/// Every token whose text holds one of `texts`, and the one that ends each of them behind other
/// text. Ascending.
fn breaker_tokens(state: &ServerState, texts: &[impl AsRef<str>]) -> Arc<[u32]> {
    let mut tokens = BTreeSet::new();
    for text in texts.iter().map(AsRef::as_ref) {
        let holds = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        let ids = 0..state.model.vocab_size.min(state.tokenizer.vocab_size() as u32);
        tokens.extend(ids.filter(|&id| state.tokenizer.token_bytes(id).is_some_and(holds)));
        // A text of several tokens: the last of them, as the definition has it. One that the
        // vocabulary cannot spell occurs nowhere.
        let spelled = state.tokenizer.encode(&format!("a{text}"), Specials::Parse, Bos::Skip);
        tokens.extend(spelled.ok().and_then(|ids| ids.last().copied()));
    }
    tokens.into_iter().collect()
}

/// Tokens of bad words, each as it is at the start of a text and as it is behind a space. White
/// space in front of a word does not count.
fn tokenize_bad_words(state: &ServerState, words: &[String]) -> Result<Vec<Vec<u32>>, ApiError> {
    let mut sequences: Vec<Vec<u32>> = Vec::with_capacity(2 * words.len());
    for (i, word) in words.iter().enumerate() {
        let param = format!("bad_words[{i}]");
        let word = word.trim_start();
        let at_start = encode(state, word, Bos::Skip, &param)?;
        let behind_space = encode(state, &format!(" {word}"), Bos::Skip, &param)?;
        // Where the space is a token of its own, the word alone masks both.
        if !behind_space.ends_with(&at_start) {
            sequences.push(behind_space);
        }
        sequences.push(at_start);
    }
    Ok(sequences)
}

/// The text of prompt tokens, special ones included.
pub(crate) fn detokenize(
    state: &ServerState,
    tokens: &[u32],
    param: &str,
) -> Result<String, ApiError> {
    state.tokenizer.decode(tokens, false).map_err(|error| text_error(error, param))
}

fn text_error(error: TextError, param: &str) -> ApiError {
    ApiError::invalid(param, format!("`{param}`: {error}"))
}
