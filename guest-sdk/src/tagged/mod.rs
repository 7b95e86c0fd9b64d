//! Reads a call that is written in tags: `<function=NAME>`, `<invoke name="NAME">` or a bare NAME,
//! and parameters of the same kinds. Values are typed by the tool's schema.
//!
//! String values stream as they come; others wait for their closer. Every state reads each byte
//! once and holds at most the beginning of a tag; what is between tags and no tag is content.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

mod rules;
mod value;

pub use rules::{Closing, Keys, Naming, TagRules};

use crate::envelope::MAX_HEADER_BYTES;
use crate::schema::{Schema, Types, named_type};
use crate::tags::{Found, Here, Inside, MAX_WORD_BYTES, Word, attributes, find, here};
use crate::writer::ObjectWriter;
use crate::{Call, CallReader, Opened, Step, is_blank, trimmed};
use value::Value;

/// Blanks that wait for a closer whose opener was forgotten; more are content.
const MAX_HELD_BLANKS: usize = 64;

/// A [`CallReader`] for one tagged call.
#[derive(Debug)]
pub struct Tagged {
    rules: &'static TagRules,
    suffix: String,
    at: At,
    is_committed: bool,
    in_section: bool,
    /// Blanks read before the commit.
    num_blanks: usize,
    /// A name, a key or a tag that is being read; a closer that is not proved yet.
    word: Word,
    name: String,
    /// Blanks between tags, which are content if something else follows.
    gap: String,
    is_stray: bool,
    /// The key whose value has not come.
    key: Option<String>,
    /// The type that the call itself says.
    kind: Types,
    value: Value,
    writer: ObjectWriter,
    /// A parameter, the closer, what else ends the call; inside a pair, its value and its type.
    tags: Vec<&'static str>,
    num_gap_tags: usize,
    num_follow_tags: usize,
    /// What may end a value.
    value_tags: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// At the text of that index in front of the name.
    Lead(usize),
    Word,
    NameTag,
    /// The name is known, its proof is next.
    Proof,
    /// Between tags.
    Gap,
    KeyTag,
    Key,
    Kind,
    Value,
    Cdata,
    /// Behind a closer that counts only with what follows.
    Follow,
    /// Behind a call whose wrapper was not opened; it may be closed.
    Behind,
}

enum Move {
    /// So many bytes are read; go on.
    Used(usize),
    /// So many are read; the rest needs more.
    Wait(usize),
    Done(usize),
    Closed(usize),
    Fail,
}

impl Tagged {
    /// A reader of the text behind `opened`'s marker.
    pub fn new(rules: &'static TagRules, opened: &Opened<'_>) -> Self {
        Tagged::plain(rules, opened.in_section, opened.suffix)
    }

    /// The same for one who knows the markers' suffix, and whether the call is in a section.
    pub fn plain(rules: &'static TagRules, in_section: bool, suffix: &str) -> Self {
        let mut tags = vec![rules.parameter, rules.closer];
        tags.extend(rules.outer);
        let num_follow_tags = tags.len();
        tags.extend(rules.next);
        let num_gap_tags = tags.len();
        if let Keys::Pair { value, kind, .. } = rules.keys {
            tags.extend([value, kind.map_or("", |(opener, _)| opener)]);
        }
        let mut value_tags = vec![rules.value_closer, if rules.cdata { "<![CDATA[" } else { "" }];
        match rules.closing {
            Closing::Exact(more) => value_tags.extend(more),
            Closing::Anchored => {}
            Closing::AnchoredOrNewline => value_tags.extend([rules.parameter, rules.closer]),
        }
        Tagged {
            rules,
            suffix: suffix.into(),
            at: match rules.naming {
                Naming::Equals | Naming::Attribute => At::NameTag,
                Naming::Proved(_) => At::Lead(0),
                Naming::Word | Naming::WordUpTo(_) => At::Word,
            },
            is_committed: false,
            in_section,
            num_blanks: 0,
            word: Word::default(),
            name: String::new(),
            gap: String::new(),
            is_stray: false,
            key: None,
            kind: Types::UNKNOWN,
            value: Value::default(),
            writer: ObjectWriter::default(),
            tags,
            num_gap_tags,
            num_follow_tags,
            value_tags,
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Lead(index) => self.lead(text, index),
            At::Word => self.bare_name(text),
            At::NameTag => self.name_tag(text, call),
            At::Proof => self.proof(text, call),
            At::Gap => self.gap(text, end, call),
            At::KeyTag => self.key_tag(text, call),
            At::Key => self.pair_key(text, call),
            At::Kind => self.kind(text, end, call),
            At::Value => self.value(text, end, call),
            At::Cdata => self.cdata(text, end, call),
            At::Follow => self.follow(text, end, call),
            At::Behind => self.behind(text, end),
        }
    }

    /// Goes over blanks in front of the commit. None: too many.
    fn skip_blanks(&mut self, text: &str) -> Option<usize> {
        let len = num_blanks(text);
        self.num_blanks += len;
        (self.num_blanks <= MAX_HEADER_BYTES).then_some(len)
    }

    /// The texts in front of the name.
    fn lead(&mut self, text: &str, index: usize) -> Move {
        let Naming::Proved(texts) = self.rules.naming else { return Move::Fail };
        let Some(wanted) = texts.get(index) else {
            self.at = At::NameTag;
            return Move::Used(0);
        };
        let Some(blanks) = self.skip_blanks(text) else { return Move::Fail };
        match here(&text[blanks..], &[wanted], &self.suffix) {
            Here::Tag(_, len) => {
                self.at = At::Lead(index + 1);
                Move::Used(blanks + len)
            }
            Here::Begun => Move::Wait(blanks),
            Here::Other => Move::Fail,
        }
    }

    /// A name without quotes or a tag round it.
    fn bare_name(&mut self, text: &str) -> Move {
        if self.name.is_empty() {
            match self.skip_blanks(text) {
                Some(0) => {}
                Some(len) => return Move::Used(len),
                None => return Move::Fail,
            }
        }
        let len =
            text.char_indices().find(|(_, c)| !is_in_name(*c)).map_or(text.len(), |(at, _)| at);
        if self.name.len() + len > MAX_WORD_BYTES {
            return Move::Fail;
        }
        self.name.push_str(&text[..len]);
        match text.as_bytes().get(len) {
            None => Move::Wait(len),
            Some(byte) if self.name.is_empty() || !(is_blank(*byte) || *byte == b'<') => Move::Fail,
            Some(_) => {
                self.at = At::Proof;
                Move::Used(len)
            }
        }
    }

    fn name_tag(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let with_quotes = self.rules.naming != Naming::Equals;
        match self.word.inside(text, with_quotes) {
            Inside::More => Move::Wait(text.len()),
            Inside::Bad(_) => Move::Fail,
            Inside::Whole(len) => {
                let name = match with_quotes {
                    true => attributes(self.word.text()).map_or("", |(name, _)| name),
                    false => trimmed(self.word.text()),
                };
                if name.is_empty() || (!with_quotes && name.bytes().any(is_blank)) {
                    return Move::Fail;
                }
                self.name = name.into();
                self.at = At::Proof;
                if matches!(self.rules.naming, Naming::Proved(_)) {
                    self.commit(call);
                }
                Move::Used(len)
            }
        }
    }

    /// What must follow a name.
    fn proof(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let Some(blanks) = self.skip_blanks(text) else { return Move::Fail };
        let text = &text[blanks..];
        let (found, is_read) = match self.rules.naming {
            Naming::WordUpTo(marker) => (here(text, &[marker], &self.suffix), true),
            _ => (here(text, &self.tags[..2], &self.suffix), false),
        };
        match found {
            Here::Tag(_, len) => {
                self.commit(call);
                Move::Used(blanks + if is_read { len } else { 0 })
            }
            Here::Begun => Move::Wait(blanks),
            Here::Other => Move::Fail,
        }
    }

    fn commit(&mut self, call: &mut Call<'_>) {
        call.begin(&self.name, None);
        self.is_committed = true;
        self.writer.open(call);
        self.at = At::Gap;
    }

    /// Between tags: a parameter, the end of the call, or text that is content.
    fn gap(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        if !self.is_stray {
            let blanks = num_blanks(text);
            self.gap.push_str(&text[..blanks]);
            if blanks > 0 {
                return Move::Used(blanks);
            }
        }
        let num_tags = if self.key.is_some() { self.tags.len() } else { self.num_gap_tags };
        let tags = &self.tags[..num_tags];
        if self.is_stray {
            return match find(text, tags, &self.suffix) {
                Found::Tag(at, index, len) => {
                    call.stray(&text[..at]);
                    self.gap_tag(at, index, len, call)
                }
                Found::Begun(at) if !end => {
                    call.stray(&text[..at]);
                    Move::Wait(at)
                }
                _ => {
                    call.stray(text);
                    Move::Wait(text.len())
                }
            };
        }
        match here(text, tags, &self.suffix) {
            Here::Tag(index, len) => self.gap_tag(0, index, len, call),
            Here::Begun if end => Move::Wait(text.len()), // a cut tag says nothing
            Here::Begun => Move::Wait(0),
            Here::Other => {
                self.stray(call);
                Move::Used(0)
            }
        }
    }

    /// What was taken for markup is content.
    fn stray(&mut self, call: &mut Call<'_>) {
        call.stray(&self.gap);
        self.gap.clear();
        self.is_stray = true;
        self.at = At::Gap;
    }

    /// The tag at `at` stands between tags.
    fn gap_tag(&mut self, at: usize, index: usize, len: usize, call: &mut Call<'_>) -> Move {
        self.gap.clear();
        self.is_stray = false;
        self.word = Word::default();
        if index == 0 {
            self.key = None;
            self.kind = Types::UNKNOWN;
            let is_pair = matches!(self.rules.keys, Keys::Pair { .. });
            self.at = if is_pair { At::Key } else { At::KeyTag };
        } else if index == 1 {
            self.writer.close(call);
            if self.in_section || self.rules.outer.is_empty() {
                return Move::Closed(at + len);
            }
            self.at = At::Behind;
        } else if index < self.num_gap_tags {
            self.writer.close(call);
            return Move::Done(at);
        } else if index == self.num_gap_tags {
            let key = self.key.take().unwrap_or_default();
            self.begin_value(key, None, call);
        } else {
            self.at = At::Kind;
        }
        Move::Used(at + len)
    }

    /// The wrapper's closer is markup, also where its opener was forgotten (U23).
    fn behind(&mut self, text: &str, end: bool) -> Move {
        let blanks = num_blanks(text);
        match here(&text[blanks..], self.rules.outer, &self.suffix) {
            _ if blanks > MAX_HELD_BLANKS => Move::Closed(0),
            Here::Tag(_, len) => Move::Closed(blanks + len),
            Here::Begun if !end => Move::Wait(0),
            _ => Move::Closed(0),
        }
    }

    fn key_tag(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let with_quotes = self.rules.keys == Keys::Attribute;
        match self.word.inside(text, with_quotes) {
            Inside::More => Move::Wait(text.len()),
            Inside::Whole(len) => {
                let (key, is_string) = match with_quotes {
                    true => attributes(self.word.text()).unwrap_or(("", None)),
                    false => (trimmed(self.word.text()), None),
                };
                if key.is_empty() {
                    self.gap.push_str(self.rules.parameter);
                    self.gap.push_str(self.word.text());
                    self.gap.push('>');
                    self.stray(call);
                } else {
                    let key = key.to_string();
                    self.begin_value(key, is_string, call);
                }
                Move::Used(len)
            }
            Inside::Bad(len) => {
                self.no_parameter(call);
                Move::Used(len)
            }
        }
    }

    /// A parameter has begun that is none.
    fn no_parameter(&mut self, call: &mut Call<'_>) {
        self.gap.push_str(self.rules.parameter);
        self.gap.push_str(self.word.text());
        self.stray(call);
    }

    fn pair_key(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let Keys::Pair { closer, value, .. } = self.rules.keys else { return Move::Wait(0) };
        let tags = [closer, self.rules.closer, self.rules.outer.first().copied().unwrap_or("")];
        let (len, found) = match find(text, &tags, &self.suffix) {
            Found::Tag(at, index, len) => (at, Some((index, len))),
            Found::Begun(at) => (at, None),
            Found::Nothing => (text.len(), None),
        };
        let read = self.word.add(&text[..len]);
        if read < len {
            self.no_parameter(call);
            return Move::Used(read);
        }
        match found {
            None => Move::Wait(len),
            Some((0, tag_len)) => {
                let key = trimmed(self.word.text()).to_string();
                if value.is_empty() {
                    self.begin_value(key, None, call);
                } else {
                    self.key = Some(key);
                    self.at = At::Gap;
                }
                Move::Used(len + tag_len)
            }
            Some(_) => {
                self.no_parameter(call);
                Move::Used(len)
            }
        }
    }

    /// The type between a key and its value.
    fn kind(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let Keys::Pair { kind: Some((opener, closer)), .. } = self.rules.keys else {
            return Move::Wait(0);
        };
        let tags = [closer, self.rules.closer];
        let (len, found) = match find(text, &tags, &self.suffix) {
            Found::Tag(at, index, len) => (at, Some((index, len))),
            Found::Begun(at) if !end => (at, None),
            _ => (text.len(), None),
        };
        let read = self.word.add(&text[..len]);
        match found {
            None if read == len => Move::Wait(len),
            Some((0, tag_len)) if read == len => {
                self.kind = named_type(trimmed(self.word.text()));
                self.at = At::Gap;
                Move::Used(len + tag_len)
            }
            _ => {
                self.gap.push_str(opener);
                self.gap.push_str(self.word.text());
                self.stray(call);
                Move::Used(read)
            }
        }
    }

    fn begin_value(&mut self, key: String, is_string: Option<bool>, call: &Call<'_>) {
        let types = match is_string {
            Some(true) => Types::STRING,
            Some(false) => Types::JSON,
            None => {
                let schema = Schema::of_tool(call.tools(), &self.name);
                match schema.property(&key).types() {
                    Types::UNKNOWN => self.kind,
                    types => types,
                }
            }
        };
        let is_repeated = self.writer.has(&key);
        self.value = Value::new(key, types, is_repeated, self.rules.newlines);
        self.at = At::Value;
    }
}

impl CallReader for Tagged {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        loop {
            match self.advance(&text[at..], end, call) {
                Move::Used(len) => at += len,
                Move::Wait(len) => return Step::More(at + len),
                Move::Done(len) => return Step::Done(at + len),
                Move::Closed(len) => return Step::Closed(at + len),
                Move::Fail => return Step::Fail,
            }
        }
    }
}

fn num_blanks(text: &str) -> usize {
    text.bytes().take_while(|byte| is_blank(*byte)).count()
}

/// Can it stand in a bare name? Letters of any script can, their punctuation cannot.
fn is_in_name(c: char) -> bool {
    match c {
        '\0'..='\u{bf}' => c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/'),
        _ => !matches!(c, '\u{2000}'..='\u{206f}' | '\u{3000}'..='\u{303f}'),
    }
}
