//! Structural tags: free text in which some parts, each between a begin and an end, follow a
//! schema. A part is entered as soon as its trigger is written, which its begin starts with.

use std::fmt::Write as _;

use serde_json::Value;

use crate::GrammarError;
use crate::lark::{literal, with_tokens};
use crate::schema::{Budget, with_options};
use crate::vocabulary::Vocabulary;

/// Most structures of one tag.
const MAX_STRUCTURES: usize = 256;

/// The line of the grammar, from 1, in which the first structure's schema is.
const FIRST_PART: usize = 4;

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
    pub(crate) fn lower(
        &self,
        vocabulary: &Vocabulary,
        budget: &mut Budget,
    ) -> Result<String, GrammarError> {
        self.check()?;
        let numbered = self.triggers.iter().enumerate();
        let tags: Vec<String> = numbered.clone().map(|(i, _)| format!("tag_{i}")).collect();
        let mut text =
            format!("start: ({})* rest\nrest: TEXT\nTEXT: /(.|\\n)*/\n", tags.join(" | "));
        debug_assert_eq!(text.lines().count(), FIRST_PART - 1);
        for (i, structure) in self.structures.iter().enumerate() {
            let checked = budget.check_embedded(&structure.schema);
            let schema = with_options(checked.map_err(|error| error.within(schema_at(i)))?);
            let begin = &structure.begin;
            let trigger = self.triggers.iter().find(|trigger| begin.starts_with(trigger.as_str()));
            let begin = with_tokens(&begin[trigger.map_or(0, String::len)..], vocabulary);
            let end = with_tokens(&structure.end, vocabulary);
            let _ = writeln!(text, "part_{i}: {begin} %json {schema} {end}");
        }
        for (i, trigger) in numbered {
            let begun = self.structures.iter().enumerate();
            let parts: Vec<String> = begun
                .filter(|(_, s)| s.begin.starts_with(trigger.as_str()))
                .map(|(i, _)| format!("part_{i}"))
                .collect();
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

    /// The schema that stands in a line of the grammar.
    pub(crate) fn place(&self, line: usize) -> Option<String> {
        let i = line.checked_sub(FIRST_PART)?;
        (i < self.structures.len()).then(|| schema_at(i))
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
        for (i, structure) in self.structures.iter().enumerate() {
            let begin = &structure.begin;
            if !self.triggers.iter().any(|trigger| begin.starts_with(trigger.as_str())) {
                let message = format!("`structures[{i}].begin` is `{begin}`; no trigger begins it");
                return invalid(message);
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

fn schema_at(structure: usize) -> String {
    format!("`structures[{structure}].schema`")
}
