//! Chat templates: the Jinja source that a model ships, messages to prompt.
//!
//! Renders as the reference (Jinja2 with Hugging Face's filters) does, within a budget of steps,
//! memory and output. What a template cannot take is told apart from what a client did wrong.
//! `server` calls this; nothing here knows HTTP or tokens.

mod environment;
mod error;
mod json;
mod messages;
mod probe;
mod python;

use std::sync::OnceLock;

use minijinja::{Environment, Value as JinjaValue};
use serde_json::{Map, Value};

pub use error::TemplateError;
use messages::Style;

/// Longest template source, in bytes. The largest known are 30 KB.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Longest prompt that a template may write, in bytes.
pub const MAX_PROMPT_BYTES: usize = 64 << 20;
/// Budget of one rendering: instructions, plus one per 64 bytes made (8 of JSON). It bounds time to
/// about a second and memory to 192 MiB; a conversation of a megabyte takes about a tenth.
const FUEL: u64 = 3_000_000;
/// Most nested macro calls, loops and includes. A thread's stack holds it.
const MAX_DEPTH: usize = 200;

/// Texts of the special tokens that templates may write.
#[derive(Debug, Clone, Default)]
pub struct TemplateTokens {
    /// `bos_token`; empty if the vocabulary has none.
    pub bos: Option<String>,
    /// `eos_token`; empty if the vocabulary has none.
    pub eos: Option<String>,
    /// `unk_token`
    pub unk: Option<String>,
    /// `pad_token`
    pub pad: Option<String>,
    /// Others, under their own names (`image_token`, …).
    pub others: Vec<(String, String)>,
}

/// A compiled chat template. Shared by all requests.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: TemplateTokens,
    style: OnceLock<Style>,
    uses_tools: OnceLock<bool>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line.
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("it has `{}` bytes, more than {MAX_SOURCE_BYTES}", source.len());
            return Err(TemplateError::Syntax { line: 1, message });
        }
        let environment = environment::environment(source)?;
        Ok(ChatTemplate {
            environment,
            source: source.to_string(),
            tokens,
            style: OnceLock::new(),
            uses_tools: OnceLock::new(),
        })
    }

    /// The default template of a `tokenizer_config.json`: its `chat_template`, or of a list the one
    /// named `default` (`tool_use` when that is the only other).
    pub fn source_in_config(config: &Value) -> Option<&str> {
        match config.get("chat_template")? {
            Value::String(source) => Some(source),
            Value::Array(list) => {
                let named = |name: &str| list.iter().find(|t| t["name"] == name);
                let chosen = named("default").or_else(|| named("tool_use")).or(list.first())?;
                chosen["template"].as_str()
            }
            _ => None,
        }
    }

    /// The source as given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages of the OpenAI API to a prompt.
    ///
    /// Content parts are joined, and `arguments` of tool calls parsed, as far as this template
    /// needs it. `kwargs` are extra variables (`enable_thinking`, …).
    ///
    /// # Errors
    /// [`TemplateError::Message`] for a message of the wrong shape, [`TemplateError::Raised`] if
    /// the template refuses the conversation, [`TemplateError::Render`], [`TemplateError::Budget`].
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let style = *self.style.get_or_init(|| probe::style(self));
        self.render_as(style, messages, tools, kwargs, add_generation_prompt)
    }

    /// Renders so that the model goes on with the last message instead of starting a new one: the
    /// prompt ends with that message's content.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; [`TemplateError::Message`] if the last message has no text or
    /// the template does not write it.
    pub fn render_continuing(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        let field = format!("messages[{}].content", messages.len().saturating_sub(1));
        let text = messages.last().and_then(|m| messages::plain_text(&m["content"]));
        let text = text.filter(|t| !t.trim().is_empty()).ok_or_else(|| TemplateError::Message {
            field: field.clone(),
            problem: "has no text to go on with".into(),
        })?;
        let mut prompt = self.render(messages, tools, kwargs, false)?;
        // Templates may trim a content, so look for what is left of it in any case.
        let exact = prompt.rfind(&text).map(|at| at + text.len());
        let end = exact.or_else(|| prompt.rfind(text.trim()).map(|at| at + text.trim().len()));
        let end = end.ok_or_else(|| TemplateError::Message {
            field,
            problem: "is not in the prompt that the chat template writes".into(),
        })?;
        prompt.truncate(end);
        Ok(prompt)
    }

    /// Does the template write the tools that it is given?
    pub fn uses_tools(&self) -> bool {
        *self.uses_tools.get_or_init(|| probe::uses_tools(self))
    }

    fn render_as(
        &self,
        style: Style,
        messages: &[Value],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let messages = messages::normalize(messages, style)?;
        let mut context: Vec<(String, JinjaValue)> = Vec::with_capacity(16);
        self.push_tokens(&mut context);
        for (name, value) in kwargs {
            if ["messages", "tools", "add_generation_prompt"].contains(&name.as_str()) {
                return Err(TemplateError::Message {
                    field: format!("chat_template_kwargs.{name}"),
                    problem: "has a field of its own in the request".into(),
                });
            }
            context.push((name.clone(), json::to_jinja(value)));
        }
        let list = |values: &[Value]| values.iter().map(json::to_jinja).collect::<JinjaValue>();
        let tools = tools.filter(|tools| !tools.is_empty()).map_or(JinjaValue::from(()), list);
        context.push(("messages".into(), list(&messages)));
        context.push(("tools".into(), tools));
        if !kwargs.contains_key("documents") {
            context.push(("documents".into(), JinjaValue::from(())));
        }
        context.push(("add_generation_prompt".into(), add_generation_prompt.into()));
        environment::render(&self.environment, JinjaValue::from_pairs(context))
    }

    fn push_tokens(&self, context: &mut Vec<(String, JinjaValue)>) {
        let tokens = &self.tokens;
        let mut push = |name: &str, text: &str| context.push((name.into(), text.into()));
        push("bos_token", tokens.bos.as_deref().unwrap_or(""));
        push("eos_token", tokens.eos.as_deref().unwrap_or(""));
        for (name, text) in [("unk_token", &tokens.unk), ("pad_token", &tokens.pad)] {
            if let Some(text) = text {
                push(name, text);
            }
        }
        for (name, text) in &tokens.others {
            push(name, text);
        }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({} bytes)", self.source.len())
    }
}

#[cfg(test)]
mod tests;
