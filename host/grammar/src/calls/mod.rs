//! The calls of a model's own format, from a declaration: `%calls {…}` in a Lark grammar. A parser
//! says how its model writes calls (templates of what stands around names and arguments, and how
//! arguments are written); the rules for the tools of a request are made here.
//!
//! The declaration comes out of a sandbox and the tools from a client: all sizes have bounds.

mod arguments;
mod parameters;
mod rules;
mod schema;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::GrammarError;
use crate::lark::literal;
use parameters::Parameters;
use rules::{Hole, Rules};
use schema::{Root, Schema};

/// Bytes of one template.
const MAX_TEMPLATE_BYTES: usize = 1024;

/// How calls are written: `OPENER CALL { BETWEEN CALL } CLOSER`, and for which tools.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Calls {
    /// OpenAI's list; what holds for every JSON value is in the schemas (`x-guidance`).
    tools: Vec<Value>,
    /// The only tool that may be called.
    #[serde(default)]
    tool_name: Option<String>,
    /// A call may come, need not, and begins behind `trigger`.
    #[serde(default)]
    auto: bool,
    /// May there be several?
    parallel: bool,
    /// Added tokens that stand for themselves in the templates.
    #[serde(default)]
    tokens: Vec<String>,
    /// In front of the `>` of each marker.
    #[serde(default)]
    suffix: String,
    #[serde(default)]
    opener: String,
    call: String,
    #[serde(default)]
    between: Option<String>,
    #[serde(default)]
    closer: String,
    #[serde(default)]
    trigger: String,
    #[serde(default)]
    lead: Option<[String; 2]>,
    #[serde(default)]
    arguments: Arguments,
}

/// How arguments are written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Arguments {
    #[default]
    Json,
    Keywords,
    Bare {
        quote: String,
        #[serde(default)]
        typed: bool,
    },
    Parameters(Parameters),
}

/// What it expands to.
pub(crate) struct Expansion {
    /// In place of the directive.
    pub expression: String,
    /// Behind the grammar.
    pub rules: String,
}

impl Calls {
    /// # Errors
    /// [`GrammarError::Invalid`]: a named tool that is not among the tools; a name or a schema that
    /// the format cannot hold. [`GrammarError::TooLarge`].
    pub fn expand(&self) -> Result<Expansion, GrammarError> {
        self.check_sizes()?;
        self.written().map_err(GrammarError::Invalid)
    }

    fn check_sizes(&self) -> Result<(), GrammarError> {
        let mut templates = vec![&self.opener, &self.call, &self.closer, &self.trigger];
        templates.push(&self.suffix);
        templates.extend(self.between.iter().chain(self.lead.iter().flatten()));
        match &self.arguments {
            Arguments::Bare { quote, .. } => templates.push(quote),
            Arguments::Parameters(parameters) => {
                templates.push(&parameters.each);
                templates.extend(&parameters.closers);
            }
            Arguments::Json | Arguments::Keywords => {}
        }
        let bytes = templates.iter().map(|template| template.len()).sum::<usize>() as u64;
        let limit = MAX_TEMPLATE_BYTES as u64;
        if bytes <= limit {
            return Ok(());
        }
        let what = "the size of the templates of calls in bytes";
        Err(GrammarError::TooLarge { what, value: bytes, limit })
    }

    fn written(&self) -> Result<Expansion, String> {
        let mut rules = Rules::new(&self.tokens, &self.suffix);
        // What of the first call the trigger has written already.
        let written = if self.auto { &self.trigger[..] } else { "" };
        let (opener, head) = match self.opener.strip_prefix(written) {
            Some(opener) => (opener, ""),
            None => ("", written.strip_prefix(&self.opener[..]).unwrap_or(written)),
        };
        let first = self.call.strip_prefix(head).ok_or("the format's trigger begins no call")?;
        let tools = self.tools(&mut rules)?;
        let mut start = rules.text(opener) + " " + &calls(&mut rules, first, &tools);
        if let (true, Some(between)) = (self.parallel, &self.between) {
            let further = calls(&mut rules, &self.call, &tools);
            start.extend([" (", &rules.text(between), " ", &further, ")*"]);
        }
        start.extend([" ", &rules.text(&self.closer)]);
        if self.auto && self.trigger.is_empty() {
            start.extend([" | ", &self.free(&mut rules)]);
        } else if let (false, Some([begin, end])) = (self.auto, &self.lead) {
            let lead = rules.text_up_to("/(.|\\n)*/", end, &[end]);
            start = ["(", &rules.text(begin), " ", &lead, ")* ", &start].concat();
        }
        Ok(Expansion { expression: format!("({start})"), rules: rules.finish() })
    }

    /// The name and the rule of the arguments of each tool that may be called.
    fn tools(&self, rules: &mut Rules<'_>) -> Result<Vec<Tool<'_>>, String> {
        let open = json!({"type": "object"});
        let mut tools = Vec::new();
        for tool in &self.tools {
            let function = &tool["function"];
            let Some(name) = function["name"].as_str() else { continue };
            if self.tool_name.as_deref().is_some_and(|wanted| wanted != name) {
                continue;
            }
            if self.call.contains("$NAME") && !name.bytes().all(is_plain) {
                return Err(format!(
                    "the tool's name `{name}` cannot stand in this model's calls; use letters, \
                     digits, `_`, `-`, `.` and `:`"
                ));
            }
            let root = Root::new(name, function.get("parameters").unwrap_or(&open));
            let arguments = self.arguments.write(rules, Schema::of(&root))?;
            tools.push(Tool { name, arguments: rules.add(&arguments) });
        }
        if tools.is_empty() {
            let name = self.tool_name.as_deref().unwrap_or_default();
            return Err(format!("`tool_choice` names `{name}`, which is not in `tools`"));
        }
        Ok(tools)
    }

    /// An answer that is no call: it begins like none.
    fn free(&self, rules: &mut Rules<'_>) -> String {
        let first = if self.opener.is_empty() { &self.call } else { &self.opener };
        let mut text = String::from("/[^\\s<");
        if let Some(first) = first.chars().next() {
            rules::escape_regex(first, &mut text);
        }
        text.push_str("](.|\\n)*/");
        rules.terminal(&text) + " | \"\""
    }
}

impl Arguments {
    /// The arguments of a schema, as an expression.
    fn write(&self, rules: &mut Rules<'_>, schema: Schema<'_>) -> Result<String, String> {
        match self {
            Arguments::Json => Ok(schema.json()),
            Arguments::Keywords => arguments::keywords(rules, schema),
            Arguments::Bare { quote, typed } => arguments::bare(rules, schema, quote, *typed),
            Arguments::Parameters(parameters) => parameters.write(rules, schema),
        }
    }
}

struct Tool<'a> {
    name: &'a str,
    arguments: String,
}

/// A rule for any of the tools' calls.
fn calls(rules: &mut Rules<'_>, template: &str, tools: &[Tool<'_>]) -> String {
    let ways: Vec<String> = tools
        .iter()
        .map(|tool| {
            let quoted = literal(tool.name);
            let holes = [
                ("$QNAME", Hole::Text(&quoted)),
                ("$NAME", Hole::Text(tool.name)),
                ("$ARGS", Hole::Rule(&tool.arguments)),
                ("$ID", Hole::Rule("/[A-Za-z0-9]{9}/")),
                ("$N", Hole::Rule("/[0-9]{1,3}/")),
            ];
            rules.fill(template, &holes)
        })
        .collect();
    rules.add(&ways.join(" | "))
}

/// May it stand in a name that is not quoted?
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte)
}
