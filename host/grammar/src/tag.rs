//! Structural tags: free text in which some parts, each between a begin and an end, follow a
//! schema. A part is entered as soon as its trigger is written, which its begin starts with.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::GrammarError;
use crate::lark::{literal, with_tokens};
use crate::schema::{check_schema, json_options};
use crate::vocabulary::Vocabulary;

/// Most structures of one tag.
const MAX_STRUCTURES: usize = 256;

/// One kind of constrained part.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    /// In front of it; starts with a trigger.
    pub begin: String,
    /// What it holds.
    pub schema: Value,
    /// Behind it.
    pub end: String,
}

/// Free text with constrained parts.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuralTag {
    /// The kinds of parts.
    pub structures: Vec<Structure>,
    /// What enters one. Not empty, and none starts with another.
    pub triggers: Vec<String>,
}

impl StructuralTag {
    /// As a Lark grammar.
    pub(crate) fn lower(&self, vocabulary: &Vocabulary) -> Result<String, GrammarError> {
        self.check()?;
        let numbered = self.triggers.iter().enumerate();
        let tags: Vec<String> = numbered.clone().map(|(i, _)| format!("tag_{i}")).collect();
        let mut text =
            format!("start: ({})* rest\nrest: TEXT\nTEXT: /(.|\\n)*/\n", tags.join(" | "));
        for (i, trigger) in numbered {
            let begun = self.structures.iter().filter(|s| s.begin.starts_with(trigger.as_str()));
            let parts = begun
                .map(|s| {
                    let mut schema = check_schema(&s.schema)?;
                    if schema == Value::Bool(true) {
                        schema = json!({});
                    }
                    if let Some(schema) = schema.as_object_mut() {
                        schema.insert("x-guidance".into(), json_options());
                    }
                    let begin = with_tokens(&s.begin[trigger.len()..], vocabulary);
                    let end = with_tokens(&s.end, vocabulary);
                    Ok(format!("{begin} %json {schema} {end}"))
                })
                .collect::<Result<Vec<_>, GrammarError>>()?;
            if parts.is_empty() {
                continue;
            }
            // As an added token the trigger is no text: it stands behind a text of its own.
            let token = vocabulary.added().iter().find(|(text, _)| text == trigger);
            let _ = match token {
                Some((_, id)) => {
                    writeln!(
                        text,
                        "tag_{i}: begun_{i} ({})\nbegun_{i}: TEXT <[{id}]> | lazy_{i}",
                        parts.join(" | ")
                    )
                }
                None => writeln!(text, "tag_{i}: lazy_{i} ({})", parts.join(" | ")),
            };
            let trigger = literal(trigger);
            let _ = writeln!(text, "lazy_{i}[lazy]: TEXT {trigger}");
        }
        Ok(text)
    }

    fn check(&self) -> Result<(), GrammarError> {
        let invalid = |message: String| Err(GrammarError::Invalid(message));
        if self.structures.is_empty() || self.structures.len() > MAX_STRUCTURES {
            let len = self.structures.len();
            return invalid(format!("`structures` has {len} entries; list 1 to {MAX_STRUCTURES}"));
        }
        if self.triggers.is_empty() || self.triggers.iter().any(String::is_empty) {
            return invalid("`triggers` has an empty text or none; list at least one".into());
        }
        for (i, a) in self.triggers.iter().enumerate() {
            for (j, b) in self.triggers.iter().enumerate() {
                if i != j && b.starts_with(a.as_str()) {
                    return invalid(format!("the trigger `{b}` starts with another, `{a}`"));
                }
            }
        }
        for structure in &self.structures {
            let begin = &structure.begin;
            if !self.triggers.iter().any(|trigger| begin.starts_with(trigger.as_str())) {
                return invalid(format!("`begin` is `{begin}`, which starts with no trigger"));
            }
        }
        for trigger in &self.triggers {
            if !self.structures.iter().any(|s| s.begin.starts_with(trigger.as_str())) {
                return invalid(format!("no structure begins with the trigger `{trigger}`"));
            }
        }
        Ok(())
    }
}
