//! Finds out by trying what a template can do. Sources are no guide: the same name is read in a
//! dozen ways.

use serde_json::{Map, Value, json};

use super::messages::Style;
use super::{ChatTemplate, TemplateError};

const ARGUMENT: &str = "needle_argument";
const VALUE: &str = "needle value";
const FUNCTION: &str = "needle_function";
const TEXT: &str = "needle text";

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn system() -> Value {
    json!({"role": "system", "content": "Be brief."})
}

fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": FUNCTION,
        "description": "Finds needles.",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "Where to look."}},
            "required": [ARGUMENT],
        },
    }})
}

/// The style of messages that shows everything: the first in order of preference.
pub(super) fn style(template: &ChatTemplate) -> Style {
    let knows_developer = template.source().contains("developer");
    let mut style = Style { knows_developer, ..Style::default() };
    if is_endless(template, style) {
        return style;
    }
    style.text_content = shows_text(template, style)
        || !shows_text(template, Style { text_content: false, ..style });
    let variants = [(true, true), (true, false), (false, true), (false, false)];
    let found = variants.into_iter().find_map(|(object_arguments, null_content)| {
        let style = Style { object_arguments, null_content, ..style };
        shows_call(template, style).then_some(style)
    });
    // A template that shows no calls takes the messages around them as any others.
    found.unwrap_or(Style { null_content: false, ..style })
}

/// Each probe of such a template would cost the whole budget.
fn is_endless(template: &ChatTemplate, style: Style) -> bool {
    let prompt = template.render_as(style, &[user(TEXT)], None, &Map::new(), true);
    matches!(prompt, Err(TemplateError::Budget { .. }))
}

fn shows_text(template: &ChatTemplate, style: Style) -> bool {
    let conversations = [vec![user(TEXT)], vec![system(), user(TEXT)]];
    conversations.iter().any(|messages| {
        let prompt = template.render_as(style, messages, None, &Map::new(), true);
        // A list that is printed as a whole is not shown.
        prompt.is_ok_and(|p| p.contains(TEXT) && !p.contains("'type': 'text'"))
    })
}

fn shows_call(template: &ChatTemplate, style: Style) -> bool {
    let arguments = format!("{{\"{ARGUMENT}\": \"{VALUE}\"}}");
    let call = json!({"id": "call00001", "type": "function",
        "function": {"name": FUNCTION, "arguments": arguments}});
    let messages = [
        user("Go."),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call00001", "name": FUNCTION, "content": "Done."}),
        user("Thanks."),
    ];
    // Some templates want the conversation to end with the result, some to go on.
    [&messages[..3], &messages[..2], &messages[..]].into_iter().any(|messages| {
        let prompt = template.render_as(style, messages, Some(&[tool()]), &Map::new(), true);
        prompt.is_ok_and(|p| shows_arguments(&p))
    })
}

/// Name, argument and value, but neither Python's `{'…'}`, JSON in a JSON string, nor `None`.
fn shows_arguments(prompt: &str) -> bool {
    // Behind the tool's own description.
    let Some(at) = prompt.find(VALUE) else { return false };
    let call = &prompt[..at];
    call.contains(FUNCTION)
        && call.contains(ARGUMENT)
        && !call.ends_with(&format!("'{ARGUMENT}': '"))
        && !call.ends_with("\\\"")
        && !prompt.contains("None")
}

/// Does a conversation render differently with a tool?
pub(super) fn uses_tools(template: &ChatTemplate) -> bool {
    let conversations =
        [vec![user("Go.")], vec![system(), user("Go.")], vec![system(), user("Go."), user("Now.")]];
    conversations.iter().any(|messages| {
        let with = template.render(messages, Some(&[tool()]), &Map::new(), true);
        let shows = with.as_ref().is_ok_and(|prompt| prompt.contains(FUNCTION));
        shows && template.render(messages, None, &Map::new(), true) != with
    })
}
