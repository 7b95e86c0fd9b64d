//! The grammar of one request's outputs: what the client asked for, the calls that it may or must
//! make, and the reasoning in front. Compiling waits: call it where waiting is allowed.

use serde_json::{Value, json};
use tenon_chat::choose;
use tenon_chat::parser::{Channel, ModelInfo, ReasoningStyle, RequestInfo, ToolChoice};
use tenon_chat::stream::ParserBinding;
use tenon_engine::{SamplingParams, Tenant};
use tenon_grammar::{Grammar, GrammarError, GrammarSpec, Starts, Trigger, check_schema};

use crate::error::ApiError;
use crate::state::ServerState;
use crate::wire::chat_request::ChatRequest;
use crate::wire::structured::Structured;
use crate::wire::tools::Tools;

/// A completion: nothing stands in front of its output.
pub(crate) fn compile(
    state: &ServerState,
    tenant: Tenant,
    asked: Option<&Structured>,
) -> Result<Option<Grammar>, ApiError> {
    let Some(Structured { spec, param }) = asked else { return Ok(None) };
    grammar(state, tenant, spec, &Starts::AtOnce, param).map(Some)
}

/// Refuses masks of the request's own that leave no token which its grammar begins with. It takes
/// as long as a step of the grammar: call it where waiting is allowed, too.
pub(crate) fn check_first(
    state: &ServerState,
    grammar: Option<&Grammar>,
    params: &SamplingParams,
) -> Result<(), ApiError> {
    let Some(grammar) = grammar else { return Ok(()) };
    let masked: Vec<u32> =
        params.bad_words.iter().filter(|word| word.len() == 1).map(|word| word[0]).collect();
    let param = match &params.allowed_token_ids {
        Some(_) => "allowed_token_ids",
        None if masked.is_empty() => return Ok(()),
        None => "bad_words",
    };
    let mut logits = vec![0.0; state.model.vocab_size as usize];
    // What a grammar costs too much for is said with its first step.
    if grammar.start().mask(&mut logits).is_err() {
        return Ok(());
    }
    let is_left = |token: u32| logits.get(token as usize) == Some(&0.0) && !masked.contains(&token);
    let has_first = match &params.allowed_token_ids {
        Some(allowed) => allowed.iter().any(|&token| is_left(token)),
        None => (0..state.model.vocab_size).any(is_left),
    };
    if has_first {
        return Ok(());
    }
    let message = format!(
        "`{param}` and the constraint on the output leave no token to begin with; let one of the \
         tokens through that the constraint begins with, or drop one of the two"
    );
    Err(ApiError::invalid(param, message))
}

/// A chat answer, which `parser` reads.
pub(crate) fn compile_chat(
    state: &ServerState,
    tenant: Tenant,
    request: &ChatRequest,
    parser: Option<&ParserBinding>,
) -> Result<Option<Grammar>, ApiError> {
    let (asked, tools) = (request.structured.as_ref(), &request.tools);
    let reasoning = parser.map_or(Starts::AtOnce, |parser| behind_reasoning(state, parser));
    let forced = matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    if tools.list.is_empty() {
        let Some(Structured { spec, param }) = asked else { return Ok(None) };
        return grammar(state, tenant, spec, &reasoning, param).map(Some);
    }
    let param = match asked {
        _ if forced => "tool_choice",
        Some(asked) => asked.param,
        None if !tools.parallel => "parallel_tool_calls",
        None if tools.strict => "tools",
        None => return Ok(None),
    };
    // One that was sent for its reasoning alone does not read calls.
    let parser = parser.filter(|_| request.tool_call_parser.as_deref() != Some("none"));
    let calls = calls(state, tools, parser, forced || asked.is_some(), param)?;
    match asked {
        Some(asked) if !forced => {
            let either = GrammarSpec::AnyOf(vec![asked.spec.clone(), calls.spec]);
            grammar(state, tenant, &either, &reasoning, param).map(Some)
        }
        _ => {
            // A format whose calls may come anywhere waits for one; reasoning is free till then.
            let starts = if calls.starts == Starts::AtOnce { reasoning } else { calls.starts };
            grammar(state, tenant, &calls.spec, &starts, param).map(Some)
        }
    }
}

struct Calls {
    spec: GrammarSpec,
    starts: Starts,
}

/// The format's own grammar. `only`: the output is nothing but calls.
fn calls(
    state: &ServerState,
    tools: &Tools,
    parser: Option<&ParserBinding>,
    only: bool,
    param: &str,
) -> Result<Calls, ApiError> {
    let Some(ParserBinding { factory, info, .. }) = parser else {
        return Err(ApiError::invalid(
            param,
            format!(
                "`{param}` constrains tool calls, and no parser reads the calls of `{}`; send \
                 `tool_call_parser`",
                state.model.id
            ),
        ));
    };
    let descriptor = factory.descriptor();
    let added = state.tokenizer.added_tokens();
    let has_token = |text: &&str| added.iter().any(|token| token.text == *text);
    let wanted = descriptor.added_tokens.iter().flat_map(|text| choose::spellings(text, added));
    let model = ModelInfo {
        name: state.model.id.clone(),
        template: None,
        added_tokens: wanted.filter(has_token).map(String::from).collect(),
    };
    let choice = match &tools.choice {
        ToolChoice::Auto if only => ToolChoice::Required,
        choice => choice.clone(),
    };
    let is_strict =
        tools.strict || matches!(tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    let list = enforceable(tools, is_strict)?;
    let request = RequestInfo { tools: list, tool_choice: choice, ..info.clone() };
    let constraint = factory
        .constraint(&model, &request)
        .map_err(|fault| ApiError::Internal(format!("the parser gave no grammar: {fault}")))?;
    let refused = |why: String| ApiError::invalid(param, why);
    let Some(grammar) = constraint.map_err(refused)? else {
        return Err(ApiError::invalid(
            param,
            format!(
                "`{param}` cannot be enforced: the parser `{}` has no grammar for its calls; send \
                 `tool_choice: \"auto\"` without `strict` or `parallel_tool_calls: false`",
                descriptor.name
            ),
        ));
    };
    let starts = match grammar.starts {
        tenon_chat::parser::Starts::AtOnce => Starts::AtOnce,
        tenon_chat::parser::Starts::After(texts) => {
            // Only what the vocabulary has as a token can come as one.
            let is_token = |text: &str| {
                info.strict_markers && model.added_tokens.iter().any(|of| text.starts_with(of))
            };
            let trigger = |text: String| Trigger { is_token: is_token(&text), text };
            let triggers = texts.into_iter().map(trigger).collect();
            Starts::After { triggers, never: Vec::new(), must: only }
        }
    };
    Ok(Calls { spec: GrammarSpec::Lark(grammar.lark), starts })
}

/// The tools as a parser builds its grammar from them: arguments are objects, and where they need
/// not follow their schema, any.
fn enforceable(tools: &Tools, is_strict: bool) -> Result<String, ApiError> {
    let mut list = tools.list.clone();
    for (i, tool) in list.iter_mut().enumerate() {
        let function = &mut tool["function"];
        let mut schema = match function.get("parameters") {
            Some(schema) if is_strict => check_schema(schema)
                .map_err(|error| api_error(error, &format!("tools[{i}].function.parameters")))?,
            _ => json!({}),
        };
        if let Some(map) = schema.as_object_mut() {
            let shapes = ["type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
            if !shapes.iter().any(|shape| map.contains_key(*shape)) {
                map.insert("type".into(), "object".into());
            }
            map.insert("x-guidance".into(), tenon_grammar::json_options());
        }
        function["parameters"] = schema;
    }
    Ok(Value::Array(list).to_string())
}

/// Where the answer proper begins, if reasoning may stand in front of it.
fn behind_reasoning(state: &ServerState, parser: &ParserBinding) -> Starts {
    let descriptor = parser.factory.descriptor();
    let style = parser.info.reasoning_style.as_deref();
    let Some(style) = style.and_then(|name| choose::find_style(descriptor, name)) else {
        return Starts::AtOnce;
    };
    let ReasoningStyle { openers, closers, ends_at_call, .. } = style;
    let added = state.tokenizer.added_tokens();
    let spelled = |texts: &[String]| -> Vec<String> {
        texts.iter().flat_map(|text| choose::spellings(text, added)).map(String::from).collect()
    };
    let triggers = spelled(closers).into_iter().map(Trigger::text).collect();
    // A call would end the reasoning, and nothing would hold it to the grammar.
    let is_token = parser.info.strict_markers;
    let calls = if *ends_at_call { spelled(&descriptor.openers) } else { Vec::new() };
    let never = calls.into_iter().map(|text| Trigger { text, is_token }).collect();
    match parser.info.start {
        Channel::Reasoning => Starts::After { triggers, never, must: true },
        _ => Starts::Unless { openers: spelled(openers), triggers, never },
    }
}

fn grammar(
    state: &ServerState,
    tenant: Tenant,
    spec: &GrammarSpec,
    starts: &Starts,
    param: &str,
) -> Result<Grammar, ApiError> {
    state.grammars.compile_for(tenant.id, spec, starts).map_err(|error| api_error(error, param))
}

/// What a refused grammar is over HTTP.
fn api_error(error: GrammarError, param: &str) -> ApiError {
    match error {
        GrammarError::Busy => ApiError::Unavailable(error.to_string()),
        GrammarError::Failed(_) => ApiError::Internal(error.to_string()),
        GrammarError::In { .. }
        | GrammarError::Keyword { .. }
        | GrammarError::Invalid(_)
        | GrammarError::TooLarge { .. }
        | GrammarError::TooComplex(_)
        | GrammarError::TooSlow { .. } => ApiError::invalid(param, format!("`{param}`: {error}")),
    }
}
