//! Which parser reads the answer to one chat request, in which style, and where it starts.
//!
//! The request's own names first, then the model's binding. What is asked for is done or refused:
//! tools without a parser that reads calls are a 400, not calls as text.

use std::sync::Arc;

use serde_json::Value;
use tenon_chat::choose::{self, ChooseError, ParserChoice};
use tenon_chat::parser::{ParserFactory, RequestInfo, ToolChoice};
use tenon_chat::stream::ParserBinding;

use crate::error::ApiError;
use crate::extension_api::{BoundParser, ExtensionError, listed};
use crate::state::ServerState;
use crate::wire::chat_request::ChatRequest;

/// Bytes of a prompt's end in which an opener is looked for.
const PROMPT_TAIL_BYTES: usize = 4096;

/// The parser for an answer behind `prompt`; none: all text is content. May compile a component.
pub(crate) fn bind(
    state: &ServerState,
    request: &ChatRequest,
    prompt: &str,
) -> Result<Option<ParserBinding>, ApiError> {
    let bound = state.extensions.bound(&state.model.id);
    let is_named = request.tool_call_parser.is_some() || request.reasoning_parser.is_some();
    let chosen =
        if is_named { by_name(state, request, bound)? } else { by_binding(state, request, bound)? };
    let Some(Chosen { factory, style }) = chosen else { return Ok(None) };
    let descriptor = factory.descriptor();
    let style = style.and_then(|name| choose::find_style(descriptor, &name));
    let has_added_token =
        |text: &str| state.tokenizer.token_id(text).is_some_and(|id| state.tokenizer.is_added(id));
    let info = RequestInfo {
        tools: Value::Array(request.tools.list.clone()).to_string(),
        tool_choice: request.tools.choice.clone(),
        parallel: request.tools.parallel,
        strict: request.tools.strict,
        reasoning_style: style.map(|style| style.name.clone()),
        start: choose::start_channel(tail(prompt), style),
        strict_markers: choose::strict_markers(descriptor, &has_added_token),
    };
    // Nothing stands in for a call that was required.
    let fail_on_fault = matches!(request.tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    Ok(Some(ParserBinding { factory, info, host_watch: true, fail_on_fault }))
}

struct Chosen {
    factory: Arc<dyn ParserFactory>,
    style: Option<String>,
}

fn by_binding(
    state: &ServerState,
    request: &ChatRequest,
    bound: Option<BoundParser>,
) -> Result<Option<Chosen>, ApiError> {
    let wants_tools = wants_tools(request);
    match bound {
        Some(bound) if wants_tools && bound.factory.descriptor().tools => {
            Ok(Some(Chosen { factory: bound.factory, style: bound.style }))
        }
        _ if wants_tools && !ignores_tools(state) => Err(no_tool_parser(state)),
        Some(bound) if bound.style.is_some() => {
            Ok(Some(Chosen { factory: bound.factory, style: bound.style }))
        }
        _ => Ok(None),
    }
}

fn by_name(
    state: &ServerState,
    request: &ChatRequest,
    bound: Option<BoundParser>,
) -> Result<Option<Chosen>, ApiError> {
    let wants_tools = wants_tools(request);
    let (bound_factory, bound_style) = bound.map(|b| (b.factory, b.style)).unzip();
    let tool = match request.tool_call_parser.as_deref() {
        // A choice too: the client reads the raw text.
        Some("none") => None,
        Some(name) => Some(resolve(state, name)?),
        None => bound_factory.filter(|factory| factory.descriptor().tools),
    };
    let is_raw = request.tool_call_parser.as_deref() == Some("none");
    let needs_parser = wants_tools && !is_raw && !ignores_tools(state);
    if needs_parser && !tool.as_ref().is_some_and(|f| f.descriptor().tools) {
        return Err(no_tool_parser(state));
    }
    // The model's own style goes along with a parser that reads it; a named one must fit.
    let reads = |style: &String| {
        let mut factory = tool.iter();
        factory.all(|factory| choose::find_style(factory.descriptor(), style).is_some())
    };
    let own_style = bound_style.flatten().filter(reads);
    let reasoning = request.reasoning_parser.clone().or(own_style);
    let reasoning = reasoning.as_deref();
    if let Some(factory) = tool {
        let descriptor = factory.descriptor();
        let name = descriptor.tools.then_some(descriptor.name.as_str());
        match choose::resolve([descriptor], name, reasoning) {
            Ok(choice) => {
                let style = choice.and_then(|choice| choice.style);
                let is_idle = style.is_none() && !wants_tools;
                return Ok((!is_idle).then_some(Chosen { factory, style }));
            }
            Err(error) if wants_tools || request.tool_call_parser.is_some() => {
                return Err(refused(request, &error));
            }
            // Nobody needs the bound parser now: any parser of the style will do.
            Err(_) => {}
        }
    }
    let all = state.extensions.descriptors();
    let choice = choose::resolve(all.iter().map(Arc::as_ref), None, reasoning);
    let choice = choice.map_err(|error| refused(request, &error))?;
    let Some(ParserChoice { parser, style }) = choice else { return Ok(None) };
    Ok(Some(Chosen { factory: resolve(state, &parser)?, style }))
}

fn resolve(state: &ServerState, name: &str) -> Result<Arc<dyn ParserFactory>, ApiError> {
    state.extensions.resolve(name).map_err(|error| match error {
        ExtensionError::Unknown { .. } => ApiError::invalid("tool_call_parser", error.to_string()),
        other => other.into(),
    })
}

/// The request named a pair that cannot be.
fn refused(request: &ChatRequest, error: &ChooseError) -> ApiError {
    let is_own = request.reasoning_parser.is_some();
    let param = if is_own { "reasoning_parser" } else { "tool_call_parser" };
    ApiError::invalid(param, error.to_string())
}

fn wants_tools(request: &ChatRequest) -> bool {
    request.tools.choice != ToolChoice::None
}

/// The model does not see the tools, and whoever sent them was told so and sent them all the same:
/// it will not write a call that a parser would have to read.
fn ignores_tools(state: &ServerState) -> bool {
    state.template.as_ref().is_some_and(|template| !template.uses_tools())
}

fn no_tool_parser(state: &ServerState) -> ApiError {
    let all = state.extensions.descriptors();
    let names: Vec<String> = all.iter().filter(|d| d.tools).map(|d| d.name.clone()).collect();
    let message = format!(
        "no parser reads the tool calls of `{}`; send `tool_call_parser` (installed: {}) or bind \
         one with `PUT /v1/extensions/NAME/bind`",
        state.model.id,
        listed(&names)
    );
    ApiError::invalid("tools", message)
}

/// The last bytes of a prompt, from a character on.
fn tail(prompt: &str) -> &str {
    let mut start = prompt.len().saturating_sub(PROMPT_TAIL_BYTES);
    while !prompt.is_char_boundary(start) {
        start += 1;
    }
    &prompt[start..]
}
