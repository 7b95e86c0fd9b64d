//! Compiles grammars for one vocabulary, within limits, on threads of its own: what a client sends
//! may be hostile. Callers wait for the result, so they are never on the step path.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use tenon_text::Tokenizer;
use toktrie::InferenceCapabilities;

use crate::cache::Cache;
use crate::matcher::Matcher;
use crate::spec::{GrammarSpec, Starts};
use crate::vocabulary::Vocabulary;
use crate::{Grammar, GrammarError};

/// Stack of a compile thread: the library descends by recursion. Only what is touched is memory.
const STACK_BYTES: usize = 256 << 20;

/// Bounds of one grammar and of all together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a Lark grammar.
    pub max_lark_bytes: usize,
    /// Bytes of a regular expression.
    pub max_regex_bytes: usize,
    /// Texts of a choice.
    pub max_choices: usize,
    /// Symbols of a compiled grammar.
    pub max_symbols: usize,
    /// States that the lexer of one grammar may have; about 2 kB each.
    pub max_lexer_states: usize,
    /// Work of the lexer for one mask, about 14,000 a millisecond.
    pub step_fuel: u64,
    /// Work of the parser for one mask, about 20,000 a millisecond.
    pub step_items: usize,
    /// How long a caller waits for a grammar.
    pub timeout: Duration,
    /// Grammars that compile at a time while somebody waits for them.
    pub max_compiling: usize,
    /// Grammars that still compile though nobody waits any longer: a thread each.
    pub max_overdue: usize,
    /// Of these, how many of one caller; who has so many gets no other grammar compiled.
    pub max_overdue_of_one: usize,
    /// Compiled grammars that are kept.
    pub max_cached: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_lark_bytes: 256 << 10,
            max_regex_bytes: 8 << 10,
            max_choices: 4096,
            max_symbols: 200_000,
            max_lexer_states: 20_000,
            step_fuel: 100_000,
            step_items: 50_000,
            timeout: Duration::from_secs(5),
            max_compiling: 2,
            max_overdue: 4,
            max_overdue_of_one: 2,
            max_cached: 64,
        }
    }
}

impl Limits {
    pub(crate) fn check_bytes(
        &self,
        what: &'static str,
        value: usize,
        limit: usize,
    ) -> Result<(), GrammarError> {
        let (value, limit) = (value as u64, limit as u64);
        if value <= limit { Ok(()) } else { Err(GrammarError::TooLarge { what, value, limit }) }
    }
}

/// Makes [`Grammar`]s for one model. Shared by all threads.
pub struct Compiler {
    shared: Arc<Shared>,
}

struct Shared {
    tokenizer: Arc<Tokenizer>,
    eos: Vec<u32>,
    limits: Limits,
    /// Made with the first grammar: many servers never need it.
    factory: OnceLock<Result<Factory, GrammarError>>,
    cache: Mutex<Cache>,
    permits: Permits,
}

struct Factory {
    vocabulary: Arc<Vocabulary>,
    parsers: ParserFactory,
}

impl Compiler {
    /// For a model that ends its sequences with any of `eos`. Does no work yet.
    pub fn new(tokenizer: Arc<Tokenizer>, eos: Vec<u32>, limits: Limits) -> Compiler {
        let cache = Mutex::new(Cache::new(limits.max_cached));
        let (factory, permits) = (OnceLock::new(), Permits::default());
        Compiler { shared: Arc::new(Shared { tokenizer, eos, limits, factory, cache, permits }) }
    }

    /// [`Compiler::compile_for`] the only caller.
    ///
    /// # Errors
    /// See there.
    pub fn compile(&self, spec: &GrammarSpec, starts: &Starts) -> Result<Grammar, GrammarError> {
        self.compile_for(0, spec, starts)
    }

    /// Compiles, or finds it compiled. Blocks for as long as [`Limits::timeout`] at most. What
    /// takes longer goes on without a permit, and counts against the caller until it ends.
    ///
    /// # Errors
    /// [`GrammarError`]: what was asked for cannot be enforced, is too much, or nothing satisfies
    /// it.
    pub fn compile_for(
        &self,
        caller: u64,
        spec: &GrammarSpec,
        starts: &Starts,
    ) -> Result<Grammar, GrammarError> {
        let key = format!("{starts:?}{}", spec.key());
        if let Some(grammar) = self.cached(&key) {
            return Ok(grammar);
        }
        let deadline = Instant::now() + self.shared.limits.timeout;
        let permit = Permit::take(&self.shared, caller, deadline)?;
        let id = permit.id;
        // Somebody else may have compiled it meanwhile.
        if let Some(grammar) = self.cached(&key) {
            return Ok(grammar);
        }
        let (sender, receiver) = channel();
        let (shared, spec, starts) = (self.shared.clone(), spec.clone(), starts.clone());
        let work = move || {
            // Held to the end of the work, also when the caller no longer waits.
            let _permit = permit;
            let _ = sender.send(shared.compile(&spec, &starts));
        };
        std::thread::Builder::new()
            .name("tenon-grammar".into())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|error| GrammarError::Failed(format!("no thread to compile on: {error}")))?;
        let grammar = match receiver.recv_timeout(deadline - Instant::now().min(deadline)) {
            Ok(compiled) => compiled?,
            Err(RecvTimeoutError::Timeout) => {
                self.shared.permits.overdue(id, &self.shared.limits);
                let limit_ms = self.shared.limits.timeout.as_millis() as u64;
                return Err(GrammarError::TooSlow { limit_ms });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::Failed("the compiler panicked".into()));
            }
        };
        let mut cache = self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.insert(key, grammar.clone());
        Ok(grammar)
    }

    /// Compiled grammars that are kept.
    pub fn num_cached(&self) -> usize {
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn cached(&self, key: &str) -> Option<Grammar> {
        self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner).get(key)
    }
}

impl Shared {
    fn compile(&self, spec: &GrammarSpec, starts: &Starts) -> Result<Grammar, GrammarError> {
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let grammar = spec.lower(&factory.vocabulary, &self.limits)?;
        let parser = factory.parsers.create_parser(grammar);
        let parser = parser.map_err(|error| refusal(spec, error))?;
        let matcher = Matcher::new(parser);
        // Warms the lexer, and finds out whether anything satisfies it.
        let mut first = matcher.clone();
        first.mask().map_err(|error| match error {
            GrammarError::Failed(_) => GrammarError::Invalid(
                "no output can satisfy this constraint; look for parts that exclude each other"
                    .into(),
            ),
            other => other,
        })?;
        Grammar::new(factory.vocabulary.clone(), matcher, starts)
    }

    fn factory(&self) -> Result<Factory, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(&self.tokenizer, &self.eos)?);
        let slices = SlicedBiasComputer::json_slices();
        let capabilities = InferenceCapabilities::default();
        let mut parsers = ParserFactory::new(vocabulary.env(), capabilities, &slices)
            .map_err(|error| GrammarError::Failed(error.to_string()))?;
        parsers.quiet();
        let limits = parsers.limits_mut();
        limits.max_grammar_size = self.limits.max_symbols;
        limits.max_lexer_states = self.limits.max_lexer_states;
        limits.step_lexer_fuel = self.limits.step_fuel;
        limits.step_max_items = self.limits.step_items;
        limits.verbose_errors = false;
        limits.precompute_large_lexemes = false;
        Ok(Factory { vocabulary, parsers })
    }
}

/// What the library says about a grammar, in one line. Places in a grammar are the client's if the
/// grammar is.
fn refusal(spec: &GrammarSpec, error: impl std::fmt::Display) -> GrammarError {
    // Alternate form: with its causes. Panics in there come as an error with a backtrace.
    let text = format!("{error:#}");
    let text = text.split("\n<").next().unwrap_or_default();
    // Lines of the grammar as `3 | start: …`.
    let is_quote = |line: &&str| {
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        number.len() < line.len() && number.starts_with(" |") || *line == "^" || line.is_empty()
    };
    let lines = text.lines().map(str::trim).filter(|line| !is_quote(line));
    let line = lines.collect::<Vec<_>>().join("; ");
    let (at, rest) = match line.strip_prefix("at ").and_then(|rest| rest.split_once("): ")) {
        Some((at, rest)) => (at.split('(').next().and_then(|line| line.parse().ok()), rest),
        None => (None, &line[..]),
    };
    let said = if matches!(spec, GrammarSpec::Lark(_)) { &line[..] } else { rest };
    let place = match spec {
        GrammarSpec::StructuralTag(tag) => at.and_then(|line: usize| tag.place(line)),
        _ => None,
    };
    let error = refusal_of(said);
    place.map_or(error.clone(), |place| error.within(place))
}

fn refusal_of(line: &str) -> GrammarError {
    let words = line.to_lowercase();
    if words.contains("panic") {
        let message = "it cannot be compiled; simplify it";
        return GrammarError::Invalid(message.into());
    }
    let is_too_much = ["fuel", "too complex", "too large", "size limit", "exceeded", "too big"];
    if is_too_much.iter().any(|too_much| words.contains(too_much)) {
        return GrammarError::TooComplex(line.into());
    }
    if line.contains("circular references with sibling keys") {
        let why = "it refers to itself beside other keywords; let it stand alone";
        return GrammarError::keyword("$ref", "", why);
    }
    GrammarError::Invalid(line.into())
}

/// Who compiles. Few: [`Limits::max_compiling`] and [`Limits::max_overdue`].
#[derive(Debug, Default)]
struct Permits {
    taken: Mutex<Taken>,
    one_ended: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    next_id: u64,
    holders: Vec<Holder>,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    id: u64,
    caller: u64,
    /// Nobody waits for it any longer.
    is_overdue: bool,
}

impl Permits {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes on without a permit, if there is room.
    fn overdue(&self, id: u64, limits: &Limits) {
        let mut taken = self.lock();
        if taken.num(|holder| holder.is_overdue) < limits.max_overdue
            && let Some(holder) = taken.holders.iter_mut().find(|holder| holder.id == id)
        {
            holder.is_overdue = true;
            self.one_ended.notify_one();
        }
    }
}

impl Taken {
    fn num(&self, is: impl Fn(&Holder) -> bool) -> usize {
        self.holders.iter().filter(|holder| is(holder)).count()
    }
}

/// The right to compile, to the end of the work.
struct Permit {
    shared: Arc<Shared>,
    id: u64,
}

impl Permit {
    fn take(shared: &Arc<Shared>, caller: u64, deadline: Instant) -> Result<Permit, GrammarError> {
        let limits = &shared.limits;
        let mut taken = shared.permits.lock();
        loop {
            let num_overdue = taken.num(|holder| holder.is_overdue && holder.caller == caller);
            if num_overdue >= limits.max_overdue_of_one {
                return Err(GrammarError::Busy);
            }
            if taken.num(|holder| !holder.is_overdue) < limits.max_compiling {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(GrammarError::Busy);
            }
            let waited = shared.permits.one_ended.wait_timeout(taken, left);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let id = taken.next_id;
        taken.next_id += 1;
        taken.holders.push(Holder { id, caller, is_overdue: false });
        drop(taken);
        Ok(Permit { shared: shared.clone(), id })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.permits.lock().holders.retain(|holder| holder.id != self.id);
        self.shared.permits.one_ended.notify_all();
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}
