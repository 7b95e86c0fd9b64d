//! What a family is, as data: its names, its reasoning styles, how a call opens and who reads it.
//! The descriptor, with its triggers, is derived from it, so that the two cannot disagree.

use crate::style::{Style, owned};
use crate::{CallReader, Channel, Descriptor, Evidence, Opened, Trigger};

/// A format for the engine. Start from [`Family::named`].
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Lower case, digits, `_` and `-`.
    pub name: &'static str,
    /// The parser's own version.
    pub version: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Names in other engines.
    pub aliases: &'static [&'static str],
    /// Styles that it can read, the default one first; empty: no reasoning.
    pub reasoning: &'static [Style],
    /// How calls are written; none: no calls.
    pub calls: Option<&'static CallFormat>,
    /// Calls that end reasoning (in a style that says so) but are not read: they are content, for
    /// another to read. For a family without `calls`.
    pub quoted_calls: Option<&'static CallFormat>,
    /// What shows that a model writes this format; any one rule suffices.
    pub evidence: &'static [Rule],
}

/// Where a call's opener counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In any text.
    Anywhere,
    /// At the start of the message or right behind a call.
    MessageStart,
}

/// How calls are written.
#[derive(Debug, Clone, Copy)]
pub struct CallFormat {
    /// Markers that open a call. In strict mode they count only as tokens.
    pub openers: &'static [&'static str],
    /// Where they count.
    pub place: Place,
    /// What begins a call at the message start without a marker: the reader gets it, too.
    pub bare: &'static [&'static str],
    /// What begins a further call right behind one: the reader gets it, too.
    pub again: &'static [&'static str],
    /// What may close a call behind [`Step::Done`](crate::Step::Done).
    pub closers: &'static [&'static str],
    /// ASCII characters that are framing between [`Step::Done`](crate::Step::Done) and what comes
    /// next; blanks are framing there anyway.
    pub separators: &'static str,
    /// Makes the reader of one call.
    pub reader: fn(&Opened<'_>) -> Box<dyn CallReader>,
}

/// One piece of evidence: all of it must hold.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Substrings of the chat template.
    pub template_has: &'static [&'static str],
    /// Substrings that must be absent from it.
    pub template_lacks: &'static [&'static str],
    /// Whole tokens of the vocabulary.
    pub vocabulary_has: &'static [&'static str],
}

impl Family {
    /// A family that finds nothing; fill in what it has with `..Family::named(…)`.
    pub const fn named(name: &'static str, version: &'static str, summary: &'static str) -> Self {
        Family {
            name,
            version,
            summary,
            aliases: &[],
            reasoning: &[],
            calls: None,
            quoted_calls: None,
            evidence: &[],
        }
    }

    /// What the host is told.
    pub fn descriptor(&self) -> Descriptor {
        let openers = self.calls.map_or(&[][..], |calls| calls.openers);
        let closers = self.calls.map_or(&[][..], |calls| calls.closers);
        let mut added_tokens = owned(openers);
        added_tokens.extend(owned(self.quoted_calls.map_or(&[], |calls| calls.openers)));
        added_tokens.extend(owned(closers));
        for style in self.reasoning {
            added_tokens.extend(owned(style.openers));
            added_tokens.extend(owned(style.closers));
        }
        Descriptor {
            name: self.name.into(),
            version: self.version.into(),
            summary: self.summary.into(),
            aliases: owned(self.aliases),
            tools: self.calls.is_some(),
            reasoning_styles: self.reasoning.iter().map(Style::record).collect(),
            added_tokens: distinct(added_tokens),
            openers: owned(openers),
            triggers: self.triggers(),
            evidence: self.evidence.iter().map(Rule::record).collect(),
        }
    }

    /// What can matter behind the first non-blank of a channel; the engine asks to be left alone
    /// only there.
    fn triggers(&self) -> Vec<Trigger> {
        let anywhere = match self.calls {
            Some(calls) if calls.place == Place::Anywhere => calls.openers,
            _ => &[],
        };
        let mut triggers = vec![Trigger { channel: Channel::Content, texts: owned(anywhere) }];
        if !self.reasoning.is_empty() {
            let mut texts: Vec<String> =
                self.reasoning.iter().flat_map(|style| owned(style.closers)).collect();
            if self.reasoning.iter().any(|style| style.ends_at_call) {
                texts.extend(owned(anywhere));
                texts.extend(owned(self.quoted_calls.map_or(&[], |calls| calls.openers)));
            }
            triggers.push(Trigger { channel: Channel::Reasoning, texts: distinct(texts) });
        }
        triggers
    }
}

impl Rule {
    /// A template that has all of these substrings.
    pub const fn template(has: &'static [&'static str], lacks: &'static [&'static str]) -> Self {
        Rule { template_has: has, template_lacks: lacks, vocabulary_has: &[] }
    }

    /// A vocabulary that has all of these tokens.
    pub const fn vocabulary(has: &'static [&'static str]) -> Self {
        Rule { template_has: &[], template_lacks: &[], vocabulary_has: has }
    }

    fn record(&self) -> Evidence {
        Evidence {
            template_has: owned(self.template_has),
            template_lacks: owned(self.template_lacks),
            vocabulary_has: owned(self.vocabulary_has),
        }
    }
}

fn distinct(mut texts: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    texts.retain(|text| {
        !seen.contains(text) && {
            seen.push(text.clone());
            true
        }
    });
    texts
}
