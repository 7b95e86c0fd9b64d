//! Added tokens: texts that become one token before any model sees them.

use std::collections::HashMap;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::TextError;

/// A token that was added to the vocabulary as a whole text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Control token: skipped in output by default, matched in input only when asked.
    pub special: bool,
    /// Takes the blanks before it.
    pub(crate) lstrip: bool,
    /// Takes the blanks behind it.
    pub(crate) rstrip: bool,
    /// Matches only between non-word characters.
    pub(crate) single_word: bool,
}

impl AddedToken {
    pub(crate) fn new(id: u32, text: String, special: bool) -> AddedToken {
        AddedToken { id, text, special, lstrip: false, rstrip: false, single_word: false }
    }
}

/// A part of a text.
pub(crate) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

/// All added tokens of a vocabulary, by id.
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    by_text: HashMap<String, usize>,
    all: Matcher,
    plain: OnceLock<Matcher>,
}

impl AddedTokens {
    pub(crate) fn new(mut tokens: Vec<AddedToken>) -> Result<AddedTokens, TextError> {
        tokens.sort_by_key(|t| t.id);
        let mut by_text = HashMap::with_capacity(tokens.len());
        for (i, token) in tokens.iter().enumerate() {
            by_text.entry(token.text.clone()).or_insert(i);
        }
        let all = Matcher::new(&tokens, |_| true)?;
        Ok(AddedTokens { tokens, by_text, all, plain: OnceLock::new() })
    }

    pub(crate) fn tokens(&self) -> &[AddedToken] {
        &self.tokens
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).map(|&i| self.tokens[i].id)
    }

    /// Cuts `text` at added tokens (leftmost, then longest) and hands over the parts in order.
    pub(crate) fn split<'t>(
        &self,
        text: &'t str,
        parse_special: bool,
        each: &mut dyn FnMut(Part<'t>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let matcher = if parse_special {
            &self.all
        } else {
            // Building cannot fail: the same texts are in `all`.
            self.plain.get_or_init(|| {
                Matcher::new(&self.tokens, |t| !t.special)
                    .unwrap_or(Matcher { search: None, patterns: vec![] })
            })
        };
        let Some(search) = &matcher.search else {
            return if text.is_empty() { Ok(()) } else { each(Part::Text(text)) };
        };
        let mut done = 0;
        for found in search.find_iter(text) {
            let token = &self.tokens[matcher.patterns[found.pattern().as_usize()]];
            let (mut start, mut end) = (found.start(), found.end());
            if start < done || token.single_word && !is_word_alone(text, start, end) {
                continue;
            }
            if token.lstrip {
                start = done + text[done..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                each(Part::Text(&text[done..start]))?;
            }
            each(Part::Token(token.id))?;
            done = end;
        }
        if done < text.len() { each(Part::Text(&text[done..])) } else { Ok(()) }
    }
}

struct Matcher {
    search: Option<AhoCorasick>,
    patterns: Vec<usize>, // pattern → index of the token
}

impl Matcher {
    fn new(
        tokens: &[AddedToken],
        wanted: impl Fn(&AddedToken) -> bool,
    ) -> Result<Matcher, TextError> {
        let usable = |t: &AddedToken| wanted(t) && !t.text.is_empty();
        let patterns: Vec<usize> = (0..tokens.len()).filter(|&i| usable(&tokens[i])).collect();
        if patterns.is_empty() {
            return Ok(Matcher { search: None, patterns });
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns.iter().map(|&i| tokens[i].text.as_bytes()))
            .map_err(|e| {
                TextError::Vocabulary(format!("its added tokens cannot be searched: {e}"))
            })?;
        Ok(Matcher { search: Some(search), patterns })
    }
}

fn is_word_alone(text: &str, start: usize, end: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(is_word)
        && !text[end..].chars().next().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parts(tokens: Vec<AddedToken>, text: &str, parse_special: bool) -> Vec<String> {
        let mut out = vec![];
        AddedTokens::new(tokens)
            .unwrap()
            .split(text, parse_special, &mut |part| {
                out.push(match part {
                    Part::Text(t) => t.to_string(),
                    Part::Token(id) => format!("#{id}"),
                });
                Ok(())
            })
            .unwrap();
        out
    }

    fn token(id: u32, text: &str, special: bool) -> AddedToken {
        AddedToken::new(id, text.into(), special)
    }

    #[test]
    fn longest_at_the_leftmost_place() {
        let tokens =
            || vec![token(7, "<a>", true), token(8, "<a><b>", true), token(9, "\n\n", false)];
        assert_eq!(parts(tokens(), "x<a><b>y<a>", true), ["x", "#8", "y", "#7"]);
        assert_eq!(parts(tokens(), "x<a>\n\n\n", false), ["x<a>", "#9", "\n"]);
        assert_eq!(parts(tokens(), "", true), [""; 0]);
        assert_eq!(parts(vec![], "abc", true), ["abc"]);
    }

    #[test]
    fn strips_and_single_words() {
        let strip = AddedToken { lstrip: true, rstrip: true, ..token(1, "<m>", true) };
        assert_eq!(parts(vec![strip], "a  <m> \n b", true), ["a", "#1", "b"]);
        let word = AddedToken { single_word: true, ..token(1, "cat", false) };
        assert_eq!(parts(vec![word], "cat cats _cat cat", true), ["#1", " cats _cat ", "#1"]);
    }
}
