//! Stop strings over streamed text: gives text on as soon as no stop string can begin in it.
//!
//! The match that ends first wins; of several that end there, the longest. That is what a stream
//! can decide without waiting, so any cut of the text gives the same answer.

use std::sync::Arc;

use crate::TextError;

/// Most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 64;
/// Longest stop string, in bytes. All together take at most 24 bytes of memory per byte.
pub const MAX_STOP_BYTES: usize = 4096;

/// The stop strings of a request, compiled. Cheap to clone.
#[derive(Clone)]
pub struct StopStrings {
    automaton: Arc<Automaton>,
}

/// The state of one sequence.
pub struct StopMatcher {
    automaton: Arc<Automaton>,
    node: u32,
    /// The last bytes given, which may begin a stop string.
    held: String,
    matched: bool,
}

/// A stop string was found; nothing behind it is part of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Which one, in the order given.
    pub index: usize,
    /// Bytes of the pushed text behind the match, dropped.
    pub num_dropped: usize,
}

/// A trie with failure links (Aho and Corasick 1975). The depth of a node is how much of the text
/// may still become a stop string.
struct Automaton {
    texts: Vec<String>,
    nodes: Vec<Node>,
    root: Box<[u32; 256]>,
}

struct Node {
    children: Vec<(u8, u32)>, // sorted by byte once built
    fail: u32,
    depth: u32,
    /// The longest stop string that ends here, if any does.
    ends: Option<u32>,
}

impl StopStrings {
    /// Compiles.
    ///
    /// # Errors
    /// [`TextError::Stop`] for an empty string, too many, or one that is too long.
    pub fn new(texts: &[String]) -> Result<StopStrings, TextError> {
        if texts.len() > MAX_STOP_STRINGS {
            let num = texts.len();
            let message = format!("`{num}` are given; give at most {MAX_STOP_STRINGS}");
            return Err(TextError::Stop(message));
        }
        for (i, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(TextError::Stop(format!("`stop[{i}]` is empty; remove it")));
            }
            if text.len() > MAX_STOP_BYTES {
                let len = text.len();
                let message =
                    format!("`stop[{i}]` has `{len}` bytes; shorten it to {MAX_STOP_BYTES}");
                return Err(TextError::Stop(message));
            }
        }
        Ok(StopStrings { automaton: Arc::new(Automaton::new(texts)) })
    }

    /// Is there nothing to look for?
    pub fn is_empty(&self) -> bool {
        self.automaton.texts.is_empty()
    }

    /// The stop strings, in the order given.
    pub fn texts(&self) -> &[String] {
        &self.automaton.texts
    }

    /// Starts a sequence.
    pub fn matcher(&self) -> StopMatcher {
        let automaton = Arc::clone(&self.automaton);
        StopMatcher { automaton, node: 0, held: String::new(), matched: false }
    }
}

impl StopMatcher {
    /// Takes more text and appends what is certain to `out`: everything before a match, or all but
    /// the tail that may begin one. After a match, more text gives nothing.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched {
            return None;
        }
        if self.automaton.texts.is_empty() {
            out.push_str(text);
            return None;
        }
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            self.node = self.automaton.step(self.node, byte);
            if let Some(index) = self.automaton.nodes[self.node as usize].ends {
                self.matched = true;
                let index = index as usize;
                self.held.push_str(text.get(..=i).expect("a stop string ends at a character"));
                let keep = self.held.len() - self.automaton.texts[index].len();
                out.push_str(&self.held[..keep]);
                self.held.clear();
                return Some(StopMatch { index, num_dropped: text.len() - i - 1 });
            }
        }
        let hold = self.automaton.nodes[self.node as usize].depth as usize;
        if hold <= text.len() {
            out.push_str(&self.held);
            let (certain, rest) = text.split_at(text.len() - hold);
            out.push_str(certain);
            self.held.clear();
            self.held.push_str(rest);
        } else {
            let certain = self.held.len() + text.len() - hold;
            out.push_str(&self.held[..certain]);
            self.held.drain(..certain);
            self.held.push_str(text);
        }
        None
    }

    /// Ends the sequence: what was held back is text after all.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.node = 0;
    }

    /// Bytes held back.
    pub fn num_held(&self) -> usize {
        self.held.len()
    }
}

impl Automaton {
    fn new(texts: &[String]) -> Automaton {
        let mut nodes = vec![Node { children: vec![], fail: 0, depth: 0, ends: None }];
        for (i, text) in texts.iter().enumerate() {
            let mut at = 0;
            for &byte in text.as_bytes() {
                at = match child(&nodes[at as usize], byte) {
                    Some(next) => next,
                    None => {
                        let next = nodes.len() as u32;
                        let depth = nodes[at as usize].depth + 1;
                        nodes.push(Node { children: vec![], fail: 0, depth, ends: None });
                        let children = &mut nodes[at as usize].children;
                        let place = children.partition_point(|&(b, _)| b < byte);
                        children.insert(place, (byte, next));
                        next
                    }
                };
            }
            nodes[at as usize].ends.get_or_insert(i as u32);
        }
        let mut root = Box::new([0; 256]);
        for &(byte, next) in &nodes[0].children {
            root[byte as usize] = next;
        }
        let mut automaton = Automaton { texts: texts.to_vec(), nodes, root };
        automaton.link();
        automaton
    }

    /// Breadth first, so that a node's failure link is complete before its children need it.
    fn link(&mut self) {
        let mut queue: std::collections::VecDeque<u32> =
            self.nodes[0].children.iter().map(|&(_, n)| n).collect();
        while let Some(at) = queue.pop_front() {
            let fail = self.nodes[at as usize].fail;
            let shorter = self.nodes[fail as usize].ends;
            let node = &mut self.nodes[at as usize];
            node.ends = node.ends.or(shorter);
            for (byte, next) in node.children.clone() {
                self.nodes[next as usize].fail = self.step(fail, byte);
                queue.push_back(next);
            }
        }
    }

    fn step(&self, mut node: u32, byte: u8) -> u32 {
        while node != 0 {
            match child(&self.nodes[node as usize], byte) {
                Some(next) => return next,
                None => node = self.nodes[node as usize].fail,
            }
        }
        self.root[byte as usize]
    }
}

fn child(node: &Node, byte: u8) -> Option<u32> {
    node.children.binary_search_by_key(&byte, |&(b, _)| b).ok().map(|i| node.children[i].1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn stops(texts: &[&str]) -> StopStrings {
        StopStrings::new(&texts.iter().map(|t| t.to_string()).collect::<Vec<_>>()).unwrap()
    }

    /// Whole-text search: the first end, and the longest there.
    fn search(texts: &[String], text: &str) -> Option<(usize, usize)> {
        for end in 1..=text.len() {
            let ending = texts
                .iter()
                .enumerate()
                .filter(|(_, t)| text.as_bytes()[..end].ends_with(t.as_bytes()));
            // Equal texts: the first of them.
            if let Some((i, _)) = ending.min_by_key(|(i, t)| (std::cmp::Reverse(t.len()), *i)) {
                return Some((i, end));
            }
        }
        None
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_a_whole_text_search_gives(
            texts in prop::collection::vec("[abé]{1,5}", 1..5),
            chunks in prop::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let text = chunks.concat();
            let expected = search(&texts, &text);
            let mut matcher = StopStrings::new(&texts).unwrap().matcher();
            let (mut out, mut found, mut given) = (String::new(), None, 0);
            for chunk in &chunks {
                given += chunk.len();
                let matched = matcher.push(chunk, &mut out);
                // Nothing that could still be cut off was given on, and no more than needed held.
                if let Some(m) = matched {
                    found = Some((m.index, given - m.num_dropped));
                    break;
                }
                let held = &text[out.len()..given];
                prop_assert_eq!(matcher.num_held(), held.len());
                prop_assert!(held.is_empty() || texts.iter().any(|t| t.starts_with(held)));
            }
            matcher.flush(&mut out);
            prop_assert_eq!(found, expected);
            let end = expected.map_or(text.len(), |(i, end)| end - texts[i].len());
            prop_assert_eq!(out, &text[..end]);
        }
    }

    #[test]
    fn the_first_end_wins() {
        let mut out = String::new();
        let found = stops(&["abcd", "bc"]).matcher().push("xabcdy", &mut out);
        assert_eq!(found, Some(StopMatch { index: 1, num_dropped: 2 }));
        assert_eq!(out, "xa");
        let mut out = String::new();
        let found = stops(&["c", "abc"]).matcher().push("xabc", &mut out);
        assert_eq!(found.unwrap().index, 1);
        assert_eq!(out, "x");
    }

    #[test]
    fn holds_no_more_than_needed() {
        let (mut out, mut matcher) = (String::new(), stops(&["\n\nUser:"]).matcher());
        assert_eq!(matcher.push("Hi\n", &mut out), None);
        assert_eq!((out.as_str(), matcher.num_held()), ("Hi", 1));
        matcher.push("\n\nUs", &mut out);
        assert_eq!((out.as_str(), matcher.num_held()), ("Hi\n", 4));
        matcher.push("ed", &mut out);
        assert_eq!((out.as_str(), matcher.num_held()), ("Hi\n\n\nUsed", 0));
    }

    #[test]
    fn bad_stop_strings_are_named() {
        let many: Vec<String> = (0..65).map(|i| i.to_string()).collect();
        let long = vec!["x".repeat(5000)];
        for (texts, part) in [(many, "`65`"), (vec![String::new()], "`stop[0]`"), (long, "`5000`")]
        {
            let error = StopStrings::new(&texts).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(stops(&[]).is_empty());
    }

    #[test]
    fn the_longest_stop_string_is_linear() {
        let mut matcher = stops(&[&("a".repeat(4095) + "b")]).matcher();
        let mut out = String::new();
        for _ in 0..200_000 {
            assert_eq!(matcher.push("a", &mut out), None);
        }
        assert_eq!(matcher.num_held(), 4095);
    }
}
