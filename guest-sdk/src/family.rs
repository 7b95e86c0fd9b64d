//! What a family is, as data: its names, its reasoning styles, how a call opens and who reads it.
//! The descriptor, with its triggers, is derived from it, so that the two cannot disagree.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::grammar::CallGrammar;
use crate::style::{AtCall, Style, owned};
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
    /// The id of a call that brings none; each `*` becomes a letter or a digit. Empty: the host's.
    pub id_pattern: &'static str,
    /// Wrappers around the answer that are dropped.
    pub frames: &'static [Frame],
    /// Do all markers that end in `>` share a suffix in front of it, such as `:opensource`? The
    /// first marker that is seen says which.
    pub suffixed: bool,
    /// Further added tokens whose text must reach the parser: those inside of a call.
    pub inner_tokens: &'static [&'static str],
    /// Calls that end reasoning (in a style that says so) but are not read: they are content, for
    /// another to read. For a family without `calls`.
    pub quoted_calls: Option<&'static CallFormat>,
    /// How calls are enforced while the model writes; none: they cannot be.
    pub grammar: Option<CallGrammar>,
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

/// A wrapper around the answer (U17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Begins it.
    pub opener: &'static str,
    /// Ends it; empty: the opener is a label, such as a speaker's name.
    pub closer: &'static str,
    /// Control tokens count wherever they stand, and such an opener ends open reasoning in a style
    /// whose calls do. If not: the opener counts at a boundary, the closer where nothing but blanks
    /// or a call follows.
    pub is_control: bool,
}

/// A wrapper around calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Begins it.
    pub opener: &'static str,
    /// Ends it.
    pub closer: &'static str,
    /// An empty one is text: it is the wrapper of one call. If not, it is dropped (U5).
    pub empty_is_text: bool,
}

/// How calls are written. Start from [`CallFormat::new`].
#[derive(Debug, Clone, Copy)]
pub struct CallFormat {
    /// Wrappers around calls; with any of them [`openers`](Self::openers) count inside only.
    pub sections: &'static [Section],
    /// With sections: do openers count outside, too, where the wrapper was forgotten?
    pub openers_count_bare: bool,
    /// Markers that open a call. In strict mode they count only as tokens or in a section.
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

impl CallFormat {
    /// Calls that begin with one of `openers` anywhere, each read by `reader`.
    pub const fn new(
        openers: &'static [&'static str],
        reader: fn(&Opened<'_>) -> Box<dyn CallReader>,
    ) -> Self {
        CallFormat {
            sections: &[],
            openers_count_bare: false,
            openers,
            place: Place::Anywhere,
            bare: &[],
            again: &[],
            closers: &[],
            separators: "",
            reader,
        }
    }

    /// Do openers count outside of a section?
    pub(crate) fn has_bare_openers(&self) -> bool {
        self.sections.is_empty() || self.openers_count_bare
    }

    /// What begins a call, or the wrapper around calls, in running text.
    fn outer_openers(&self) -> Vec<&'static str> {
        let mut openers: Vec<_> = self.sections.iter().map(|section| section.opener).collect();
        if self.has_bare_openers() {
            openers.extend(self.openers);
        }
        openers
    }

    /// What has to be a token each for strict markers: the first spelling of the outer opener.
    fn strict_openers(&self) -> Vec<&'static str> {
        match self.sections.first() {
            Some(section) => vec![section.opener],
            None => self.openers.to_vec(),
        }
    }
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
            id_pattern: "",
            frames: &[],
            suffixed: false,
            inner_tokens: &[],
            quoted_calls: None,
            grammar: None,
            evidence: &[],
        }
    }

    /// What the host is told.
    pub fn descriptor(&self) -> Descriptor {
        let mut added = Vec::new();
        for calls in [self.calls, self.quoted_calls].into_iter().flatten() {
            for section in calls.sections {
                added.extend([section.opener, section.closer]);
            }
            added.extend(calls.openers);
            added.extend(calls.closers);
        }
        for style in self.reasoning {
            added.extend(style.openers.iter().chain(style.anywhere).chain(style.closers));
        }
        for frame in self.frames {
            added.extend([frame.opener, frame.closer].iter().filter(|text| !text.is_empty()));
        }
        added.extend(self.inner_tokens);
        Descriptor {
            name: self.name.into(),
            version: self.version.into(),
            summary: self.summary.into(),
            aliases: owned(self.aliases),
            tools: self.calls.is_some(),
            reasoning_styles: self.reasoning.iter().map(Style::record).collect(),
            added_tokens: owned(&distinct(added)),
            openers: self.calls.map_or(Vec::new(), |calls| owned(&calls.strict_openers())),
            triggers: self.triggers(),
            evidence: self.evidence.iter().map(Rule::record).collect(),
        }
    }

    /// The suffix of a vocabulary's markers, with its colon: of those that may have one.
    pub(crate) fn suffix_in<'a>(&self, added_tokens: &'a [String]) -> &'a str {
        let Some(calls) = self.calls.filter(|_| self.suffixed) else { return "" };
        let markers = calls.strict_openers();
        let heads = markers.iter().filter_map(|marker| marker.strip_suffix('>'));
        let suffix_of = |head: &'static str| {
            let mut suffixes = added_tokens.iter().filter_map(|token| {
                token.strip_prefix(head)?.strip_suffix('>').filter(|rest| rest.starts_with(':'))
            });
            suffixes.next()
        };
        heads.filter_map(suffix_of).next().unwrap_or_default()
    }

    /// What can matter behind the first non-blank of a channel; the engine asks to be left alone
    /// only there.
    fn triggers(&self) -> Vec<Trigger> {
        let openers = self.calls.map(|calls| calls.outer_openers()).unwrap_or_default();
        let mut in_content = match self.calls {
            Some(calls) if calls.place == Place::Anywhere => openers.clone(),
            _ => Vec::new(),
        };
        let mut in_reasoning = Vec::new();
        for style in self.reasoning {
            in_content.extend(style.anywhere);
            in_reasoning.extend(style.closers);
            if style.at_call != AtCall::Quoted {
                in_reasoning.extend(&openers); // wherever calls stand in content
                in_reasoning.extend(self.quoted_calls.map_or(&[][..], |calls| calls.openers));
                let controls = self.frames.iter().filter(|frame| frame.is_control);
                in_reasoning.extend(controls.map(|frame| frame.opener));
            }
        }
        for frame in self.frames {
            if !frame.closer.is_empty() {
                in_content.push(frame.closer);
            }
            if frame.is_control {
                in_content.push(frame.opener);
            }
        }
        let record = |channel, texts| {
            let cut = |text: &&'static str| match text.strip_suffix('>') {
                Some(text) if self.suffixed => text,
                _ => *text,
            };
            let texts: Vec<_> = distinct(texts).iter().map(cut).collect();
            Trigger { channel, texts: owned(&texts) }
        };
        let mut triggers = vec![record(Channel::Content, in_content)];
        if !self.reasoning.is_empty() {
            triggers.push(record(Channel::Reasoning, in_reasoning));
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

fn distinct(mut texts: Vec<&'static str>) -> Vec<&'static str> {
    let mut seen = Vec::new();
    texts.retain(|text| {
        !seen.contains(text) && {
            seen.push(*text);
            true
        }
    });
    texts
}
