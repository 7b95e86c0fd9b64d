//! Finds triggers in the bytes of an output, token by token, and knows which tokens would run over
//! one: behind a trigger the grammar holds, so its token may carry blanks behind it, nothing else.

use std::collections::VecDeque;

use crate::GrammarError;
use crate::spec::Trigger;
use crate::vocabulary::{MARKER, Vocabulary};

/// Most triggers of one grammar, and bytes of one: each byte is a state.
const MAX_TRIGGERS: usize = 16;
const MAX_TRIGGER_BYTES: usize = 256;

/// Where a search stands: the longest end of the output that begins a trigger.
pub(crate) type State = u32;

/// What a token does to a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The search goes on.
    Nothing(State),
    /// A trigger is whole.
    Trigger,
}

/// An automaton over bytes (Aho and Corasick, 1975).
#[derive(Debug)]
pub(crate) struct Triggers {
    nodes: Vec<Node>,
    /// By state: tokens that may not come next, ascending.
    forbidden: Vec<Vec<u32>>,
}

#[derive(Debug, Default)]
struct Node {
    children: Vec<(u8, State)>,
    fail: State,
    depth: u32,
    end: End,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    #[default]
    None,
    /// It starts the grammar.
    Starts,
    /// It may not be written.
    Never,
}

impl Triggers {
    /// Searches for `triggers`; `never` are texts that no token may complete before.
    pub fn new(
        triggers: &[Trigger],
        never: &[Trigger],
        vocabulary: &Vocabulary,
    ) -> Result<Triggers, GrammarError> {
        let len = triggers.len() + never.len();
        if triggers.is_empty() || len > MAX_TRIGGERS {
            let message = format!("`{len}` triggers; use 1 to {MAX_TRIGGERS}");
            return Err(GrammarError::Invalid(message));
        }
        let mut nodes = vec![Node::default()];
        let ends = triggers.iter().map(|t| (t, End::Starts));
        for (trigger, end) in ends.chain(never.iter().map(|t| (t, End::Never))) {
            for bytes in spellings(trigger, vocabulary)? {
                insert(&mut nodes, &bytes, end);
            }
        }
        link(&mut nodes);
        let mut this = Triggers { nodes, forbidden: Vec::new() };
        this.forbidden = this.find_forbidden(vocabulary);
        Ok(this)
    }

    /// After `token`, which was allowed.
    pub fn next(&self, state: State, token: u32, vocabulary: &Vocabulary) -> Found {
        match self.scan(state, vocabulary.marked_bytes(token)) {
            Scan::Nothing(state) => Found::Nothing(state),
            Scan::Ends(..) => Found::Trigger,
        }
    }

    /// Tokens that may not come next.
    pub fn forbidden(&self, state: State) -> &[u32] {
        &self.forbidden[state as usize]
    }

    fn scan(&self, mut state: State, bytes: &[u8]) -> Scan {
        for (at, &byte) in bytes.iter().enumerate() {
            state = self.step(state, byte);
            let end = self.nodes[state as usize].end;
            if end != End::None {
                return Scan::Ends(end, at + 1);
            }
        }
        Scan::Nothing(state)
    }

    fn step(&self, mut state: State, byte: u8) -> State {
        loop {
            let node = &self.nodes[state as usize];
            if let Some((_, next)) = node.children.iter().find(|(of, _)| *of == byte) {
                return *next;
            }
            if state == 0 {
                return 0;
            }
            state = node.fail;
        }
    }

    /// A token can end a trigger that began before it only if it goes on where that stands, so
    /// most tokens need no look in most states.
    fn find_forbidden(&self, vocabulary: &Vocabulary) -> Vec<Vec<u32>> {
        let mut forbidden = vec![Vec::new(); self.nodes.len()];
        for token in 0..vocabulary.len() as u32 {
            let bytes = vocabulary.marked_bytes(token);
            let Some(&first) = bytes.first() else { continue };
            let from_start = self.overruns(0, bytes);
            for state in 0..self.nodes.len() as State {
                // From a state that cannot go on with the first byte, the scan is the root's.
                let is_root_like = self.goes_on(state, first).is_none();
                let is_over = match is_root_like {
                    true => from_start,
                    false => self.overruns(state, bytes),
                };
                if is_over {
                    forbidden[state as usize].push(token);
                }
            }
        }
        forbidden
    }

    fn goes_on(&self, state: State, byte: u8) -> Option<State> {
        let next = self.step(state, byte);
        (self.nodes[next as usize].depth > 1).then_some(next)
    }

    fn overruns(&self, state: State, bytes: &[u8]) -> bool {
        match self.scan(state, bytes) {
            Scan::Nothing(_) => false,
            Scan::Ends(End::Never, _) => true,
            Scan::Ends(_, len) => bytes[len..].iter().any(|byte| !byte.is_ascii_whitespace()),
        }
    }
}

enum Scan {
    Nothing(State),
    /// How, and behind how many bytes.
    Ends(End, usize),
}

/// How a trigger may be written: as a text, and with each added token in it as one.
fn spellings(trigger: &Trigger, vocabulary: &Vocabulary) -> Result<Vec<Vec<u8>>, GrammarError> {
    let text = &trigger.text;
    if text.is_empty() || text.len() > MAX_TRIGGER_BYTES {
        let message = format!("a trigger of `{}` bytes; use 1 to {MAX_TRIGGER_BYTES}", text.len());
        return Err(GrammarError::Invalid(message));
    }
    let plain = text.as_bytes().to_vec();
    if trigger.is_token {
        return Ok(vec![[&[MARKER], &plain[..]].concat()]);
    }
    let mut marked = Vec::new();
    let mut rest = &text[..];
    while let Some(next) = rest.chars().next() {
        let token = vocabulary.added_at(rest);
        // A marker in front of a text changes nothing: the search begins anywhere.
        if token.is_some() && !marked.is_empty() {
            marked.push(MARKER);
        }
        let len = token.map_or(next.len_utf8(), |(of, _)| of.len());
        marked.extend(&rest.as_bytes()[..len]);
        rest = &rest[len..];
    }
    Ok(if marked == plain { vec![plain] } else { vec![plain, marked] })
}

fn insert(nodes: &mut Vec<Node>, bytes: &[u8], end: End) {
    let mut state = 0;
    for &byte in bytes {
        let known = nodes[state].children.iter().find(|(of, _)| *of == byte);
        state = match known {
            Some((_, next)) => *next as usize,
            None => {
                let (next, depth) = (nodes.len(), nodes[state].depth + 1);
                nodes.push(Node { depth, ..Node::default() });
                nodes[state].children.push((byte, next as State));
                next
            }
        };
    }
    nodes[state].end = end;
}

/// Sets what each state falls back to, breadth first.
fn link(nodes: &mut [Node]) {
    let mut queue: VecDeque<State> = VecDeque::from([0]);
    while let Some(state) = queue.pop_front() {
        for at in 0..nodes[state as usize].children.len() {
            let (byte, child) = nodes[state as usize].children[at];
            queue.push_back(child);
            if state == 0 {
                continue;
            }
            let mut fail = nodes[state as usize].fail;
            let target = loop {
                let found = nodes[fail as usize].children.iter().find(|(of, _)| *of == byte);
                match found {
                    Some((_, next)) => break *next,
                    None if fail == 0 => break 0,
                    None => fail = nodes[fail as usize].fail,
                }
            };
            nodes[child as usize].fail = target;
            if nodes[child as usize].end == End::None {
                nodes[child as usize].end = nodes[target as usize].end;
            }
        }
    }
}
