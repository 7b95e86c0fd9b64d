//! A parser that was admitted: opens sessions on the thread that calls it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenon_chat::parser::{
    Descriptor, FaultKind, Grammar, ModelInfo, ParserFactory, ParserFault, ParserSession,
    RequestInfo,
};

use crate::breaker::Breaker;
use crate::host::Shared;
use crate::session::Session;
use crate::stats::Stats;
use crate::store::Fault;
use crate::v0_1::Template;

/// The grammar dialect that this server can enforce.
const DIALECT: &str = "llguidance-lark/1";

/// Bytes of a grammar, and of a guest's words for a 400.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;
const MAX_REFUSAL_BYTES: usize = 1 << 10;

/// A component that was admitted. Keeps the engine alive; its sessions keep it alive.
#[derive(Debug)]
pub struct Parser {
    inner: Arc<Inner>,
}

impl Parser {
    pub(crate) fn of(inner: Arc<Inner>) -> Arc<Parser> {
        Arc::new(Parser { inner })
    }

    /// Bytes of the uploaded component.
    pub fn num_bytes(&self) -> usize {
        self.inner.num_bytes
    }

    /// How long the admission took.
    pub fn admission(&self) -> Duration {
        self.inner.admission
    }

    /// What its sessions did so far.
    pub fn stats(&self) -> &Stats {
        &self.inner.stats
    }
}

impl ParserFactory for Parser {
    fn descriptor(&self) -> &Descriptor {
        &self.inner.descriptor
    }

    fn digest(&self) -> &str {
        &self.inner.digest
    }

    fn open(&self, request: &RequestInfo) -> Result<Box<dyn ParserSession>, ParserFault> {
        self.inner.check_quarantine()?;
        Ok(Box::new(Session::open(&self.inner, request)?))
    }

    fn constraint(
        &self,
        model: &ModelInfo,
        request: &RequestInfo,
    ) -> Result<Result<Option<Grammar>, String>, ParserFault> {
        let inner = &self.inner;
        inner.check_quarantine()?;
        let _tick = inner.shared.ticker.enter();
        let run = &inner.shared.limits.run;
        let answer = inner
            .template
            .instantiate(&inner.shared.engine, run)
            .and_then(|mut instance| instance.constraint(model, request, run))
            .and_then(check_constraint);
        answer.map_err(|fault| inner.fault(fault))
    }
}

/// What a parser and its sessions share.
pub(crate) struct Inner {
    pub(crate) digest: String,
    pub(crate) descriptor: Descriptor,
    num_bytes: usize,
    admission: Duration,
    pub(crate) template: Template,
    breaker: Mutex<Breaker>,
    pub(crate) stats: Stats,
    pub(crate) shared: Arc<Shared>,
}

impl Inner {
    pub(crate) fn new(
        hex: &str,
        num_bytes: usize,
        admission: Duration,
        descriptor: Descriptor,
        template: Template,
        shared: Arc<Shared>,
    ) -> Arc<Inner> {
        Arc::new(Inner {
            digest: format!("sha256:{hex}"),
            descriptor,
            num_bytes,
            admission,
            template,
            breaker: Mutex::new(Breaker::new()),
            stats: Stats::default(),
            shared,
        })
    }

    /// Names and counts a failure; who drives the session logs it, with its request.
    pub(crate) fn fault(&self, fault: Fault) -> ParserFault {
        let Fault { kind, message, is_ours } = fault;
        self.stats.count_fault(kind);
        let strike = || {
            let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
            breaker.strike(Instant::now())
        };
        let extension = self.descriptor.name.clone();
        if !is_ours && let Some(pause) = strike() {
            let pause_s = pause.as_secs();
            tracing::error!(extension, pause_s, "extension is quarantined");
        }
        ParserFault { extension, kind, message }
    }

    /// # Errors
    /// While quarantined.
    fn check_quarantine(&self) -> Result<(), ParserFault> {
        let breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = breaker.quarantine_left(Instant::now()) else { return Ok(()) };
        Err(ParserFault {
            extension: self.descriptor.name.clone(),
            kind: FaultKind::Limit,
            message: format!("quarantined for another {} s after repeated faults", left.as_secs()),
        })
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("name", &self.descriptor.name)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// A grammar that this server can enforce, or words that fit into an error.
fn check_constraint(
    answer: Result<Option<Grammar>, String>,
) -> Result<Result<Option<Grammar>, String>, Fault> {
    match &answer {
        Ok(None) => {}
        Ok(Some(grammar)) if grammar.dialect != DIALECT => {
            let dialect: String = grammar.dialect.chars().take(64).collect();
            return Err(Fault::bad_output(format!(
                "grammar dialect `{dialect}` is unknown (known: {DIALECT})"
            )));
        }
        Ok(Some(grammar)) if grammar.lark.len() > MAX_GRAMMAR_BYTES => {
            return Err(Fault::limit(format!(
                "a grammar of `{}` bytes, over the limit of {MAX_GRAMMAR_BYTES}",
                grammar.lark.len()
            )));
        }
        Ok(Some(_)) => {}
        Err(words) if words.len() > MAX_REFUSAL_BYTES => {
            return Err(Fault::limit(format!(
                "a refusal of `{}` bytes, over the limit of {MAX_REFUSAL_BYTES}",
                words.len()
            )));
        }
        Err(_) => {}
    }
    Ok(answer)
}
