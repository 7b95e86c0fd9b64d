//! The grammar of a format's calls, as data, in the host's dialect `llguidance-lark/1`. The host
//! enforces it for calls that are required, for one call at most, and for strict tools.
//!
//! A family gives a [`CallGrammar`]: templates of what it writes around names and arguments, and
//! how the arguments are written. The host has checked the tools' schemas and put what holds for
//! every JSON value into them (`x-guidance`).

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub mod arguments;
mod parameters;
mod rules;
mod schema;

use crate::json::quoted;
use crate::{Grammar, ModelInfo, RequestInfo, Starts, ToolChoice};
pub use parameters::Parameters;
pub use rules::{Hole, Rules};
use rules::{joined, put};
pub use schema::{Property, Schema};
use schema::{elements, member};

/// The dialect that the host knows.
const DIALECT: &str = "llguidance-lark/1";

/// How calls are written: `OPENER CALL { BETWEEN CALL } CLOSER`. Texts are what the model writes;
/// where the vocabulary has one of the descriptor's added tokens, it stands for itself.
///
/// ```
/// # use tenon_guest::CallGrammar;
/// const MISTRAL: CallGrammar = CallGrammar {
///     call: "[TOOL_CALLS]$NAME[ARGS]$ARGS",
///     between: Some(""),
///     trigger: "[TOOL_CALLS]",
///     ..CallGrammar::JSON
/// };
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CallGrammar {
    /// In front of all calls.
    pub opener: &'static str,
    /// One call: `$NAME` is the tool's name as it is, `$QNAME` as a JSON string, `$ARGS` the
    /// arguments, `$N` a number of up to three digits, `$ID` nine letters and digits.
    pub call: &'static str,
    /// Between two calls; none: a message has one call.
    pub between: Option<&'static str>,
    /// Behind all calls. Leave out a token that ends the model's turn.
    pub closer: &'static str,
    /// What shows in free text that calls begin: `OPENER CALL` begin with it. Empty: calls stand at
    /// the message start, and what begins with their first character is one.
    pub trigger: &'static str,
    /// What may stand in front of calls that are required, any number of times: free text between
    /// these two.
    pub lead: Option<[&'static str; 2]>,
    /// How arguments are written: one of [`arguments`], or a closure that calls
    /// [`Parameters::write`]. The expression of a tool's arguments; `Err`: words for a 400.
    pub arguments: fn(&mut Rules<'_>, &Schema<'_>) -> Result<String, String>,
}

impl CallGrammar {
    /// Arguments as JSON; fill in the rest with `..CallGrammar::JSON`.
    pub const JSON: CallGrammar = CallGrammar {
        opener: "",
        call: "",
        between: None,
        closer: "",
        trigger: "",
        lead: None,
        arguments: arguments::json,
    };

    /// The grammar for a request; none when it leaves everything open.
    ///
    /// # Errors
    /// Words for a 400: a named tool that is not among the tools; a name or a schema that the
    /// format cannot hold.
    pub fn build(
        &self,
        model: &ModelInfo,
        request: &RequestInfo,
    ) -> Result<Option<Grammar>, String> {
        self.build_suffixed("", model, request)
    }

    /// The same with this in front of each `>` of the templates, which all end markers.
    #[inline(never)]
    pub(crate) fn build_suffixed(
        &self,
        suffix: &str,
        model: &ModelInfo,
        request: &RequestInfo,
    ) -> Result<Option<Grammar>, String> {
        let is_auto = match request.tool_choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if request.parallel && !request.strict => return Ok(None),
            choice => choice == ToolChoice::Auto,
        };
        let mut rules = Rules::new(&model.added_tokens, suffix);
        // What of the first call the trigger has written already.
        let written = if is_auto { self.trigger } else { "" };
        let (opener, head) = match self.opener.strip_prefix(written) {
            Some(opener) => (opener, ""),
            None => ("", written.strip_prefix(self.opener).unwrap_or(written)),
        };
        let first = self.call.strip_prefix(head).ok_or("the format's trigger begins no call")?;
        let tools = self.tools(&mut rules, request)?;
        let mut start = rules.text(opener);
        put(&mut start, &[" ", &calls(&mut rules, first, &tools)]);
        if let (true, Some(between)) = (request.parallel, self.between) {
            let further = calls(&mut rules, self.call, &tools);
            put(&mut start, &[" (", &rules.text(between), " ", &further, ")*"]);
        }
        put(&mut start, &[" ", &rules.text(self.closer)]);
        let starts = match is_auto && !self.trigger.is_empty() {
            true => Starts::After(vec![rules.suffixed(self.trigger)]),
            false => Starts::AtOnce,
        };
        if is_auto && self.trigger.is_empty() {
            put(&mut start, &[" | ", &self.free(&mut rules)]);
        } else if let (false, Some([begin, end])) = (is_auto, self.lead) {
            let lead = rules.text_up_to("/(.|\\n)*/", end, &[end]);
            start = joined(&["(", &rules.text(begin), " ", &lead, ")* ", &start]);
        }
        Ok(Some(Grammar { dialect: DIALECT.into(), lark: rules.finish(&start), starts }))
    }

    /// The name and the rule of the arguments of each tool that may be called.
    #[inline(never)]
    fn tools<'a>(
        &self,
        rules: &mut Rules<'_>,
        request: &'a RequestInfo,
    ) -> Result<Vec<Tool<'a>>, String> {
        let wanted = request.tool_name.as_deref().map(quoted);
        let mut tools = Vec::new();
        for tool in elements(&request.tools) {
            let Some(function) = member(tool, "function") else { continue };
            let Some(name) = member(function, "name") else { continue };
            if wanted.as_deref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            let name = &name[1..name.len() - 1];
            if rules::place_of("$NAME", self.call) < self.call.len() && !name.bytes().all(is_plain)
            {
                return Err(joined(&[
                    "the tool's name `",
                    name,
                    "` cannot stand in this model's calls; use \
                    letters, digits, `_`, `-`, `.` and `:`",
                ]));
            }
            let parameters = member(function, "parameters").unwrap_or("{\"type\": \"object\"}");
            let arguments = (self.arguments)(rules, &Schema::of_tool(name, parameters))?;
            tools.push(Tool { name, arguments: rules.add(&arguments) });
        }
        if tools.is_empty() {
            let name = request.tool_name.as_deref().unwrap_or_default();
            return Err(joined(&["`tool_choice` names `", name, "`, which is not in `tools`"]));
        }
        Ok(tools)
    }

    /// An answer that is no call: it begins like none.
    #[inline(never)]
    fn free(&self, rules: &mut Rules<'_>) -> String {
        let first = if self.opener.is_empty() { self.call } else { self.opener };
        let mut text = String::from("/[^\\s<");
        if let Some(first) = first.chars().next() {
            rules::escape_regex(first, &mut text);
        }
        text.push_str("](.|\\n)*/");
        joined(&[&rules.terminal(&text), " | \"\""])
    }
}

struct Tool<'a> {
    /// As a JSON string has it, without the quotes.
    name: &'a str,
    arguments: String,
}

/// A rule for any of the tools' calls.
#[inline(never)]
fn calls(rules: &mut Rules<'_>, template: &str, tools: &[Tool<'_>]) -> String {
    let mut any = String::new();
    for tool in tools {
        if !any.is_empty() {
            any.push_str(" | ");
        }
        let quoted = joined(&["\"", tool.name, "\""]);
        any.push_str(&rules.fill(
            template,
            &[
                ("$QNAME", Hole::Text(&quoted)),
                ("$NAME", Hole::Text(tool.name)),
                ("$ARGS", Hole::Rule(&tool.arguments)),
                ("$ID", Hole::Rule("/[A-Za-z0-9]{9}/")),
                ("$N", Hole::Rule("/[0-9]{1,3}/")),
            ],
        ));
    }
    rules.add(&any)
}

/// May it stand in a name that is not quoted?
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte)
}
