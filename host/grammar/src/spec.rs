//! What a client asks for, and its way into one grammar of the library.

use std::fmt::Write as _;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::lark::{self, literal};
use crate::pattern::check_regex;
use crate::schema::{Budget, with_options};
use crate::tag::StructuralTag;
use crate::vocabulary::Vocabulary;
use crate::{GrammarError, Limits};

/// A constraint on a whole output.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSpec {
    /// Any JSON object.
    JsonObject,
    /// JSON that validates against a schema.
    JsonSchema(Value),
    /// A text that a regular expression (Rust's syntax, no look-around) matches from end to end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in the library's Lark dialect; the rule `start` is the output. `%token "TEXT"` is
    /// an added token of the model, `%calls {…}` calls in its own format.
    Lark(String),
    /// Free text with constrained parts.
    StructuralTag(StructuralTag),
    /// An output of any of these.
    AnyOf(Vec<GrammarSpec>),
}

/// When a grammar begins to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Starts {
    /// With the first token.
    #[default]
    AtOnce,
    /// Behind any of these. With `must` the sequence cannot end before, by itself; without, it is
    /// free for as long as none shows. Behind a trigger its token has blanks at most, which count
    /// as part of the trigger. `never` cannot be written before.
    After {
        /// What starts it.
        triggers: Vec<Trigger>,
        /// What may not come before.
        never: Vec<Trigger>,
        /// Does the output need the grammar?
        must: bool,
    },
    /// With the first token, unless the output begins with one of `openers`: then behind one of
    /// `triggers`.
    Unless {
        /// What puts the start off.
        openers: Vec<String>,
        /// What starts it then.
        triggers: Vec<Trigger>,
        /// What may not come between.
        never: Vec<Trigger>,
    },
}

/// A text that starts a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// The text.
    pub text: String,
    /// Does it count only as one added token?
    pub is_token: bool,
}

impl Trigger {
    /// A text, whatever tokens it is written in.
    pub fn text(text: impl Into<String>) -> Trigger {
        Trigger { text: text.into(), is_token: false }
    }
}

impl GrammarSpec {
    /// What the cache knows it by. Equal keys, equal grammars.
    pub(crate) fn key(&self) -> String {
        format!("{self:?}")
    }

    /// The grammar, checked against the limits on its size and for what cannot be enforced.
    pub(crate) fn lower(
        &self,
        vocabulary: &Vocabulary,
        limits: &Limits,
    ) -> Result<TopLevelGrammar, GrammarError> {
        let mut grammars = Vec::new();
        self.add(None, vocabulary, limits, &mut Budget::default(), &mut grammars)?;
        Ok(TopLevelGrammar { grammars, max_tokens: None })
    }

    fn add(
        &self,
        name: Option<String>,
        vocabulary: &Vocabulary,
        limits: &Limits,
        budget: &mut Budget,
        out: &mut Vec<GrammarWithLexer>,
    ) -> Result<(), GrammarError> {
        let mut lark = |text: String| {
            out.push(GrammarWithLexer {
                name: name.clone(),
                lark_grammar: Some(text),
                json_schema: None,
            });
        };
        match self {
            GrammarSpec::JsonObject => {
                out.push(json_grammar(name, json!({"type": "object"})));
            }
            GrammarSpec::JsonSchema(schema) => {
                out.push(json_grammar(name, budget.check(schema)?));
            }
            GrammarSpec::Regex(regex) => {
                limits.check_bytes("the regex in bytes", regex.len(), limits.max_regex_bytes)?;
                check_regex(regex).map_err(GrammarError::Invalid)?;
                let regex = llguidance::regex_to_lark(regex, "dw");
                lark(format!("start: /{regex}/"));
            }
            GrammarSpec::Choice(choices) => lark(choice(choices, limits)?),
            GrammarSpec::Lark(text) => {
                limits.check_bytes("the grammar in bytes", text.len(), limits.max_lark_bytes)?;
                lark::check_depth(text)?;
                let text = lark::expand_calls(text)?;
                limits.check_bytes("the grammar in bytes", text.len(), limits.max_lark_bytes)?;
                lark::check_depth(&text)?;
                let text = lark::check_schemas(&text, budget)?;
                lark(lark::resolve_tokens(&text, vocabulary)?);
            }
            GrammarSpec::StructuralTag(tag) => {
                let text = tag.lower(vocabulary, budget)?;
                limits.check_bytes("the grammar in bytes", text.len(), limits.max_lark_bytes)?;
                lark(text);
            }
            GrammarSpec::AnyOf(specs) => {
                let base = name.clone().unwrap_or_else(|| "any".into());
                let names: Vec<_> = (0..specs.len()).map(|i| format!("{base}_{i}")).collect();
                let options: Vec<_> = names.iter().map(|name| format!("@{name}")).collect();
                lark(format!("start: {}", options.join(" | ")));
                for (spec, name) in specs.iter().zip(names) {
                    spec.add(Some(name), vocabulary, limits, budget, out)?;
                }
            }
        }
        Ok(())
    }
}

fn json_grammar(name: Option<String>, schema: Value) -> GrammarWithLexer {
    GrammarWithLexer { name, json_schema: Some(with_options(schema)), lark_grammar: None }
}

fn choice(choices: &[String], limits: &Limits) -> Result<String, GrammarError> {
    limits.check_bytes("the number of choices", choices.len(), limits.max_choices)?;
    let bytes = choices.iter().map(String::len).sum();
    limits.check_bytes("the choices in bytes", bytes, limits.max_lark_bytes)?;
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        let message = "there is no choice, or an empty one; list at least one text";
        return Err(GrammarError::Invalid(message.into()));
    }
    let mut text = String::from("start: ");
    for (i, choice) in choices.iter().enumerate() {
        let _ = write!(text, "{}{}", if i == 0 { "" } else { " | " }, literal(choice));
    }
    Ok(text)
}
