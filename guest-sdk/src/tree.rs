//! Reads a call whose arguments are a tree of tags (MiniMax M3): `<KEY>` … `</KEY>`, each tag
//! behind a token of its own; lists are `<item>`s or repeated keys, leaves are typed by the schema.
//!
//! Top-level strings stream; every other element is held until it is whole, and until the next tag
//! shows that it is not repeated.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::schema::{Schema, Types, literal};
use crate::tags::{Found, Here, Inside, Word, attributes, find, here};
use crate::writer::{KeySet, ObjectWriter};
use crate::{Call, CallReader, Step, is_blank, json, trimmed};

/// How deep elements nest; a tag that is deeper is text.
const MAX_DEPTH: usize = 64;

/// The tags of a tree, each with the token in front.
#[derive(Debug, Clone, Copy)]
pub struct TreeRules {
    /// Begins every tag: the token and `<`.
    pub tag: &'static str,
    /// Closes the call; the reader reads it.
    pub closer: &'static str,
    /// Closes what is round the call or opens the next one; this one then does without its closer.
    pub outer: &'static [&'static str],
}

/// A [`CallReader`] for one call, from behind `<invoke name=`.
#[derive(Debug)]
pub struct Tree {
    rules: &'static TreeRules,
    at: At,
    is_committed: bool,
    word: Word,
    name: String,
    gap: String,
    is_stray: bool,
    /// What closes the string that streams.
    string_closer: String,
    string: Sink,
    key: String,
    /// The element that is being read, from its top to the innermost.
    open: Vec<Node>,
    /// Whole elements of one key, not written yet.
    held: Vec<Node>,
    writer: ObjectWriter,
    /// The call's closer, what else ends it, and any tag.
    tags: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Name,
    Gap,
    /// Inside a tag at the top.
    Tag,
    /// Inside a string that streams.
    Text,
    /// Inside an element that is held.
    Node,
    /// Inside a tag in there.
    NodeTag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    Dropped,
    /// Nothing was said yet.
    Fresh,
    Begun,
}

#[derive(Debug, Default)]
struct Node {
    key: String,
    text: String,
    children: Vec<Node>,
}

enum Move {
    Used(usize),
    Wait(usize),
    Done(usize),
    Closed(usize),
    Fail,
}

impl Tree {
    /// A reader of the text behind the call's opener.
    pub fn new(rules: &'static TreeRules) -> Self {
        let mut tags = vec![rules.closer];
        tags.extend(rules.outer);
        tags.push(rules.tag);
        Tree {
            rules,
            at: At::Name,
            is_committed: false,
            word: Word::default(),
            name: String::new(),
            gap: String::new(),
            is_stray: false,
            string_closer: String::new(),
            string: Sink::Dropped,
            key: String::new(),
            open: Vec::new(),
            held: Vec::new(),
            writer: ObjectWriter::default(),
            tags,
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Name => self.name(text, call),
            At::Gap => self.gap(text, end, call),
            At::Tag => self.tag(text, call),
            At::Text => self.text(text, end, call),
            At::Node => self.node(text, end),
            At::NodeTag => self.node_tag(text),
        }
    }

    fn name(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        match self.word.inside(text, true) {
            Inside::More => Move::Wait(text.len()),
            Inside::Bad(_) => Move::Fail,
            Inside::Whole(len) => {
                let Some((name, _)) = attributes(self.word.text()) else { return Move::Fail };
                if name.is_empty() {
                    return Move::Fail;
                }
                self.name = name.into();
                call.begin(&self.name, None);
                self.writer.open(call);
                self.is_committed = true;
                self.at = At::Gap;
                Move::Used(len)
            }
        }
    }

    /// Between the elements at the top.
    fn gap(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        if self.is_stray {
            return match find(text, &self.tags, "") {
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
        let blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        self.gap.push_str(&text[..blanks]);
        match here(&text[blanks..], &self.tags, "") {
            Here::Tag(index, len) => self.gap_tag(blanks, index, len, call),
            Here::Begun if end => Move::Wait(text.len()), // a cut tag says nothing
            Here::Begun => Move::Wait(blanks),
            Here::Other => {
                self.stray(call);
                Move::Used(blanks)
            }
        }
    }

    fn stray(&mut self, call: &mut Call<'_>) {
        call.stray(&self.gap);
        self.gap.clear();
        self.is_stray = true;
        self.at = At::Gap;
    }

    fn gap_tag(&mut self, at: usize, index: usize, len: usize, call: &mut Call<'_>) -> Move {
        self.gap.clear();
        self.is_stray = false;
        if index + 1 == self.tags.len() {
            self.word = Word::default();
            self.at = At::Tag;
            return Move::Used(at + len);
        }
        self.write_held(call);
        self.writer.close(call);
        if index == 0 { Move::Closed(at + len) } else { Move::Done(at) }
    }

    /// A tag at the top: an element begins.
    fn tag(&mut self, text: &str, call: &mut Call<'_>) -> Move {
        let len = match self.word.inside(text, false) {
            Inside::More => return Move::Wait(text.len()),
            Inside::Whole(len) if is_key(self.word.text()) => {
                let word = core::mem::take(&mut self.word);
                self.begin(word.text(), call);
                return Move::Used(len);
            }
            Inside::Whole(len) => {
                self.word.add_any(">");
                len
            }
            Inside::Bad(len) => len,
        };
        self.gap.push_str(self.rules.tag);
        self.gap.push_str(self.word.text());
        self.stray(call);
        Move::Used(len)
    }

    fn begin(&mut self, key: &str, call: &mut Call<'_>) {
        let is_repeated = self.held.first().is_some_and(|held| held.key == key);
        if !is_repeated {
            self.write_held(call);
        }
        let types = Schema::of_tool(call.tools(), &self.name).property(key).types();
        if types != Types::STRING {
            self.open.push(Node { key: key.into(), ..Node::default() });
            self.at = At::Node;
            return;
        }
        self.string = if self.writer.has(key) { Sink::Dropped } else { Sink::Fresh };
        self.string_closer.clear();
        for part in [self.rules.tag, "/", key, ">"] {
            self.string_closer.push_str(part);
        }
        self.key = key.into();
        self.at = At::Text;
    }

    fn text(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match find(text, &[&self.string_closer], "") {
            Found::Tag(at, _, len) => {
                self.say(&text[..at], call);
                self.begin_string(call);
                if self.string == Sink::Begun {
                    call.args("\"");
                }
                self.at = At::Gap;
                Move::Used(at + len)
            }
            Found::Begun(at) if !end => {
                self.say(&text[..at], call);
                Move::Wait(at)
            }
            _ => {
                self.say(text, call);
                Move::Wait(text.len())
            }
        }
    }

    fn say(&mut self, text: &str, call: &mut Call<'_>) {
        if text.is_empty() {
            return;
        }
        self.begin_string(call);
        if self.string == Sink::Begun {
            self.writer.text(text, call);
        }
    }

    fn begin_string(&mut self, call: &mut Call<'_>) {
        if self.string == Sink::Fresh {
            self.string = Sink::Begun;
            self.writer.key(&self.key, call);
            call.args("\"");
        }
    }

    /// Inside an element that is held.
    fn node(&mut self, text: &str, end: bool) -> Move {
        let (at, found) = match find(text, &[self.rules.tag], "") {
            Found::Tag(at, _, len) => (at, Some(len)),
            Found::Begun(at) if !end => (at, None),
            _ => (text.len(), None),
        };
        self.node_text(&text[..at]);
        match found {
            None => Move::Wait(at),
            Some(len) => {
                self.word = Word::default();
                self.at = At::NodeTag;
                Move::Used(at + len)
            }
        }
    }

    fn node_text(&mut self, text: &str) {
        if let Some(node) = self.open.last_mut() {
            node.text.push_str(text);
        }
    }

    fn node_tag(&mut self, text: &str) -> Move {
        let (len, is_whole) = match self.word.inside(text, false) {
            Inside::More => return Move::Wait(text.len()),
            Inside::Whole(len) => (len, true),
            Inside::Bad(len) => (len, false),
        };
        self.at = At::Node;
        let word = core::mem::take(&mut self.word);
        let word = word.text();
        let is_closer = word.strip_prefix('/').is_some_and(|key| self.is_innermost(key));
        if is_whole && is_closer {
            self.close_node();
        } else if is_whole && is_key(word) && self.open.len() < MAX_DEPTH {
            self.open.push(Node { key: word.into(), ..Node::default() });
        } else {
            self.node_text(self.rules.tag);
            self.node_text(word);
            self.node_text(if is_whole { ">" } else { "" });
        }
        Move::Used(len)
    }

    fn is_innermost(&self, key: &str) -> bool {
        self.open.last().is_some_and(|node| node.key == key)
    }

    fn close_node(&mut self) {
        let Some(node) = self.open.pop() else { return };
        match self.open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => {
                self.held.push(node);
                self.at = At::Gap;
            }
        }
    }

    /// Writes what is held; a key that was written before is dropped.
    fn write_held(&mut self, call: &mut Call<'_>) {
        let held = core::mem::take(&mut self.held);
        let Some(first) = held.first() else { return };
        if self.writer.has(&first.key) {
            return;
        }
        self.writer.key(&first.key, call);
        let schema = Schema::of_tool(call.tools(), &self.name).property(&first.key);
        let mut value = String::new();
        write_values(held.iter(), held.len(), schema, &mut value);
        call.args(&value);
    }
}

impl CallReader for Tree {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        loop {
            match self.advance(&text[at..], end, call) {
                Move::Used(len) => at += len,
                Move::Wait(len) => {
                    if end {
                        self.write_held(call); // nothing can repeat it any more
                    }
                    return Step::More(at + len);
                }
                Move::Done(len) => return Step::Done(at + len),
                Move::Closed(len) => return Step::Closed(at + len),
                Move::Fail => return Step::Fail,
            }
        }
    }
}

/// Can it be the name of an element?
fn is_key(word: &str) -> bool {
    !word.starts_with('/')
        && !word.is_empty()
        && !word.bytes().any(|byte| is_blank(byte) || matches!(byte, b'"' | b'='))
}

/// One element, or a list of the elements of one key.
fn write_values<'n>(
    nodes: impl Iterator<Item = &'n Node>,
    num_nodes: usize,
    schema: Schema<'_>,
    out: &mut String,
) {
    if num_nodes == 1 {
        nodes.for_each(|node| write_node(node, schema, out));
        return;
    }
    let is_list = schema.types().has(Types::ARRAY);
    let schema = if is_list { schema.items() } else { schema };
    write_list(nodes, schema, out);
}

fn write_list<'n>(nodes: impl Iterator<Item = &'n Node>, schema: Schema<'_>, out: &mut String) {
    out.push('[');
    for (index, node) in nodes.enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write_node(node, schema, out);
    }
    out.push(']');
}

fn write_node(node: &Node, schema: Schema<'_>, out: &mut String) {
    let types = schema.types();
    let is_blank = node.text.bytes().all(is_blank);
    if node.children.is_empty() {
        return match literal(&node.text, types, &["null"]) {
            Some(literal) => out.push_str(literal),
            None if is_blank && types == Types::OBJECT => out.push_str("{}"),
            None if is_blank && types == Types::ARRAY => out.push_str("[]"),
            None => out.push_str(&json::quoted(&node.text)),
        };
    }
    let is_items = is_blank && node.children.iter().all(|child| child.key == "item");
    if is_items && (types.has(Types::ARRAY) || !types.has(Types::OBJECT)) {
        return write_list(node.children.iter(), schema.items(), out);
    }
    let mut keys = KeySet::default();
    let mut groups: Vec<Vec<&Node>> = Vec::new();
    for child in &node.children {
        match keys.index(&child.key) {
            Some(index) => groups[index].push(child),
            None => {
                keys.add(&child.key);
                groups.push(vec![child]);
            }
        }
    }
    out.push('{');
    for (index, group) in groups.iter().enumerate() {
        let key = &group[0].key;
        out.push_str(if index == 0 { "" } else { ", " });
        out.push_str(&json::quoted(key));
        out.push_str(": ");
        write_values(group.iter().copied(), group.len(), schema.property(key), out);
    }
    if !is_blank {
        out.push_str(", \"$text\": ");
        out.push_str(&json::quoted(trimmed(&node.text)));
    }
    out.push('}');
}
