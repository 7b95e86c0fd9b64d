//! One sequence under a grammar: before it starts, while it holds, at its end. A compiled
//! [`Grammar`] makes as many as there are sequences; each is cheap, and independent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use toktrie::SimpleVob;

use crate::GrammarError;
use crate::matcher::Matcher;
use crate::spec::Starts;
use crate::trigger::{Found, State, Triggers};
use crate::vocabulary::Vocabulary;

/// A compiled grammar. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Grammar {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vocabulary: Arc<Vocabulary>,
    start: Matcher,
    triggers: Option<Triggers>,
    openers: Openers,
    /// The output needs the grammar: it cannot end before that starts.
    must: bool,
    phase: Phase,
    /// Something went wrong in a state that its constraints share.
    is_broken: AtomicBool,
}

/// Texts that, right at the start, put the grammar off.
#[derive(Debug, Default)]
struct Openers {
    texts: Vec<Vec<u8>>,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many bytes of an opener are written; the grammar may go its own way.
    Opening { len: u32, is_alive: bool },
    /// Free text up to a trigger.
    Waiting(State),
    /// The grammar holds.
    Active,
}

impl Grammar {
    pub(crate) fn new(
        vocabulary: Arc<Vocabulary>,
        start: Matcher,
        starts: &Starts,
    ) -> Result<Grammar, GrammarError> {
        let mut openers = Openers::default();
        let (triggers, must, phase) = match starts {
            Starts::AtOnce => (None, true, Phase::Active),
            Starts::After { triggers, never, must } => {
                let triggers = Triggers::new(triggers, never, &vocabulary)?;
                (Some(triggers), *must, Phase::Waiting(0))
            }
            Starts::Unless { openers: texts, triggers, never } => {
                openers.texts = texts.iter().map(|text| text.clone().into_bytes()).collect();
                let triggers = Triggers::new(triggers, never, &vocabulary)?;
                (Some(triggers), true, Phase::Opening { len: 0, is_alive: true })
            }
        };
        let is_broken = AtomicBool::new(false);
        let inner = Inner { vocabulary, start, triggers, openers, must, phase, is_broken };
        Ok(Grammar { inner: Arc::new(inner) })
    }

    /// The state of an empty output.
    pub fn start(&self) -> Constraint {
        Constraint {
            grammar: self.clone(),
            matcher: self.inner.start.clone(),
            phase: self.inner.phase,
            past: Vec::new(),
        }
    }

    /// One of its constraints failed; others may, too. The cache forgets it.
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.is_broken.load(Ordering::Relaxed)
    }
}

/// One token that was committed.
#[derive(Debug, Clone, Copy)]
struct Past {
    token: u32,
    phase: Phase,
    is_taken: bool,
}

/// One sequence's state.
#[derive(Debug, Clone)]
pub struct Constraint {
    grammar: Grammar,
    matcher: Matcher,
    phase: Phase,
    past: Vec<Past>,
}

impl Constraint {
    /// Masks every token that may not come next, in logits that may be wider than the vocabulary.
    ///
    /// # Errors
    /// When the grammar takes too much work here, or failed. The sequence cannot go on.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        let inner = self.grammar.inner.clone();
        match self.phase {
            Phase::Active => {
                let allowed = self.allowed()?;
                keep_only(&allowed, logits);
            }
            Phase::Waiting(state) => {
                let triggers = inner.triggers.as_ref().expect("waiting is for a trigger");
                let ends = if inner.must { inner.vocabulary.ends() } else { &[] };
                for &token in triggers.forbidden(state).iter().chain(ends) {
                    if let Some(logit) = logits.get_mut(token as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Phase::Opening { len, is_alive } => {
                let mut allowed = match is_alive {
                    true => self.allowed()?,
                    false => inner.vocabulary.env().tok_trie().alloc_token_set(),
                };
                inner.openers.allow(len as usize, &inner.vocabulary, &mut allowed);
                keep_only(&allowed, logits);
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen among those that [`Constraint::mask`] left.
    ///
    /// # Errors
    /// When the token was not allowed, or the grammar failed.
    pub fn commit(&mut self, token: u32) -> Result<(), GrammarError> {
        let inner = self.grammar.inner.clone();
        let before = self.phase;
        let mut is_taken = false;
        match self.phase {
            Phase::Active => {
                is_taken = true;
                if !self.matcher.is_complete() {
                    self.note(|this| this.matcher.commit(token))?;
                } else if inner.vocabulary.is_end(token) {
                    is_taken = false;
                } else {
                    let message = format!("token `{token}` behind the end of the output");
                    return Err(GrammarError::Failed(message));
                }
            }
            Phase::Waiting(state) => {
                let triggers = inner.triggers.as_ref().expect("waiting is for a trigger");
                self.phase = match triggers.next(state, token, &inner.vocabulary) {
                    Found::Trigger => Phase::Active,
                    Found::Nothing(state) => Phase::Waiting(state),
                };
            }
            Phase::Opening { len, is_alive } => {
                let bytes = inner.vocabulary.bytes(token);
                let opened = inner.openers.after(len as usize, bytes);
                is_taken = is_alive && self.note(|this| this.matcher.try_commit(token))?;
                self.phase = match opened {
                    Opened::Whole => Phase::Waiting(0),
                    Opened::Part(len) => Phase::Opening { len: len as u32, is_alive: is_taken },
                    Opened::No => Phase::Active,
                };
                if self.phase == Phase::Active && !is_taken {
                    let message = format!("token `{token}` is not allowed here");
                    return Err(GrammarError::Failed(message));
                }
                if opened == Opened::Whole {
                    // What looked like the grammar's beginning was the opener's.
                    self.matcher = inner.start.clone();
                }
            }
        }
        self.past.push(Past { token, phase: before, is_taken });
        Ok(())
    }

    /// Takes back the last tokens, as if they had not been committed.
    ///
    /// # Errors
    /// When there are not that many, or the grammar failed.
    pub fn rollback(&mut self, num_tokens: usize) -> Result<(), GrammarError> {
        let Some(left) = self.past.len().checked_sub(num_tokens) else {
            let message = format!("`{num_tokens}` tokens to take back of {}", self.past.len());
            return Err(GrammarError::Failed(message));
        };
        let popped = &self.past[left..];
        if popped.iter().any(|past| matches!(past.phase, Phase::Opening { .. })) {
            // The matcher may have begun anew since; an opener is short, so all is said again.
            let tokens: Vec<u32> = self.past[..left].iter().map(|past| past.token).collect();
            *self = self.grammar.start();
            return tokens.into_iter().try_for_each(|token| self.commit(token));
        }
        let num_taken = popped.iter().filter(|past| past.is_taken).count();
        if let Some(first) = popped.first() {
            self.phase = first.phase;
        }
        self.past.truncate(left);
        self.note(|this| this.matcher.rollback(num_taken))
    }

    /// The grammar has started, and nothing can follow: the output is whole.
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Active && self.matcher.is_complete()
    }

    fn allowed(&mut self) -> Result<SimpleVob, GrammarError> {
        self.note(|this| this.matcher.mask())
    }

    fn note<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let done = work(self);
        if done.is_err() {
            self.grammar.inner.is_broken.store(true, Ordering::Relaxed);
        }
        done
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    No,
    /// So many bytes of one.
    Part(usize),
    Whole,
}

impl Openers {
    /// Tokens that go on with an opener of which `len` bytes are written. All openers in question
    /// agree on these.
    fn allow(&self, len: usize, vocabulary: &Vocabulary, allowed: &mut SimpleVob) {
        for token in 0..vocabulary.len() as u32 {
            let bytes = vocabulary.bytes(token);
            if !bytes.is_empty() && self.after(len, bytes) != Opened::No {
                allowed.allow_token(token);
            }
        }
    }

    fn after(&self, len: usize, bytes: &[u8]) -> Opened {
        let mut opened = Opened::No;
        for text in &self.texts {
            let Some(rest) = text.get(len..).filter(|rest| !rest.is_empty()) else { continue };
            if let Some(behind) = bytes.strip_prefix(rest)
                && behind.iter().all(u8::is_ascii_whitespace)
            {
                return Opened::Whole;
            }
            if rest.len() > bytes.len() && rest.starts_with(bytes) {
                opened = Opened::Part(len + bytes.len());
            }
        }
        opened
    }
}

/// Masks all but the set.
fn keep_only(allowed: &SimpleVob, logits: &mut [f32]) {
    let words = allowed.as_slice();
    for (at, logits) in logits.chunks_mut(u32::BITS as usize).enumerate() {
        match words.get(at).copied().unwrap_or(0) {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
