//! Stop strings between the detokenizer and the parser: they cut the raw text. An added token is
//! given on whole or not at all, so that a marker stays one where a stop string might begin in it.

use tenon_text::{Detokenized, SpecialSpan, StopMatcher, StopStrings};

use crate::parser::Special;

/// One sequence's stop strings.
pub(crate) struct StopCut {
    /// None: all text passes.
    matcher: Option<StopMatcher>,
    texts: StopStrings,
    include_stop: bool,
    /// Text that holds no stop string, but ends within an added token.
    ready: String,
    /// Of `ready` and of what the matcher holds, as ranges of both together.
    specials: Vec<Special>,
    /// Scratch: the ranges of what is given on.
    given: Vec<Special>,
}

impl StopCut {
    pub fn new(texts: &StopStrings, include_stop: bool) -> StopCut {
        StopCut {
            matcher: (!texts.is_empty()).then(|| texts.matcher()),
            texts: texts.clone(),
            include_stop,
            ready: String::new(),
            specials: Vec::new(),
            given: Vec::new(),
        }
    }

    /// Takes more text and gives on what is certain. A stop string that was found is returned, and
    /// nothing more is given then. Text that is not checked comes before all that is: no stop
    /// string is found in it.
    pub fn push(
        &mut self,
        piece: &Detokenized,
        is_checked: bool,
        give: &mut dyn FnMut(&str, &[Special]),
    ) -> Option<String> {
        let Some(matcher) = self.matcher.as_mut().filter(|_| is_checked) else {
            self.given.clear();
            self.given.extend(piece.specials.iter().map(|special| shifted(special, 0)));
            give(&piece.text, &self.given);
            return None;
        };
        let offset = self.ready.len() + matcher.num_held();
        self.specials.extend(piece.specials.iter().map(|special| shifted(special, offset)));
        let Some(found) = matcher.push(&piece.text, &mut self.ready) else {
            let end = self.ready.len();
            let is_cut = |special: &&Special| special.start as usize + special.len as usize > end;
            let cut = self.specials.iter().find(is_cut).map_or(end, |cut| cut.start as usize);
            self.give(cut.min(end), give);
            return None;
        };
        let text = self.texts.texts()[found.index].clone();
        if self.include_stop {
            self.ready.push_str(&text);
        }
        self.give(self.ready.len(), give);
        Some(text)
    }

    /// The end: what was held is text.
    pub fn flush(&mut self, give: &mut dyn FnMut(&str, &[Special])) {
        if let Some(matcher) = &mut self.matcher {
            matcher.flush(&mut self.ready);
        }
        self.give(self.ready.len(), give);
    }

    /// Gives on the first `len` bytes of `ready`.
    fn give(&mut self, len: usize, give: &mut dyn FnMut(&str, &[Special])) {
        if len == 0 {
            return;
        }
        let is_within = |special: &Special| (special.start + special.len) as usize <= len;
        self.given.clear();
        self.given.extend(self.specials.iter().copied().filter(is_within));
        give(&self.ready[..len], &self.given);
        self.specials.retain(|special| special.start as usize >= len);
        self.specials.iter_mut().for_each(|special| special.start -= len as u32);
        self.ready.drain(..len);
    }
}

fn shifted(span: &SpecialSpan, offset: usize) -> Special {
    Special { start: span.start + offset as u32, len: span.len, id: span.id }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Pushes pieces (with `[…]` round added tokens), flushes, and shows what was given on.
    fn check(stop: &[&str], include: bool, pieces: &[&str], expected: &str) {
        let stops: Vec<_> = stop.iter().map(|text| text.to_string()).collect();
        let mut cut = StopCut::new(&StopStrings::new(&stops).unwrap(), include);
        let mut shown = Vec::new();
        let mut give = |text: &str, specials: &[Special]| {
            let mut text = text.to_owned();
            for special in specials.iter().rev() {
                text.insert((special.start + special.len) as usize, ']');
                text.insert(special.start as usize, '[');
            }
            shown.push(text);
        };
        let mut found = None;
        for piece in pieces {
            let mut input = Detokenized::default();
            for c in piece.chars() {
                match c {
                    '[' => input.specials.push(SpecialSpan {
                        start: input.text.len() as u32,
                        len: 0,
                        id: 9,
                    }),
                    ']' => {
                        let last = input.specials.last_mut().unwrap();
                        last.len = input.text.len() as u32 - last.start;
                    }
                    c => input.text.push(c),
                }
            }
            found = cut.push(&input, true, &mut give);
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            cut.flush(&mut give);
        }
        shown.extend(found.map(|text| format!("STOP {text}")));
        assert_eq!(shown.join(" "), expected);
    }

    #[test]
    fn cuts_text_and_keeps_tokens_whole() {
        check(&[], false, &["ab", "[<x>]c"], "ab [<x>]c");
        check(&["END"], false, &["abE", "Nd", "xEN", "D tail"], "ab ENd x STOP END");
        check(&["END"], true, &["abE", "ND tail"], "ab END STOP END");
        check(&["END"], false, &["abEN"], "ab EN");
        // A stop string may begin in a token's text: the token waits whole.
        check(&[">y"], false, &["a[<x>]", "z"], "a [<x>]z");
        check(&[">y"], false, &["a[<x>]", "y"], "a <x STOP >y");
        check(&[">y"], false, &["a[<x>]"], "a [<x>]");
        check(&["<x>"], true, &["a[<x>]b"], "a[<x>] STOP <x>");
        check(&["<x>"], false, &["[<y>]a[<x>]b"], "[<y>]a STOP <x>");
        check(&["bc"], false, &["[<x>]b", "[<y>]b", "c[<z>]"], "[<x>] b[<y>] STOP bc");
    }
}
