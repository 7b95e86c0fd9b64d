//! Admission: from bytes to a parser that serves.
//!
//! Nothing here knows an async runtime; whoever calls from one uses a thread of its own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tenon_chat::parser::Descriptor;
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::aot::{Cache, sha256};
use crate::compile::{Compiler, CompilerCommand, discard};
use crate::descriptor;
use crate::engine::{Ticker, serving_engine};
use crate::error::{AdmissionError, HostError};
use crate::limits::Limits;
use crate::parser::{Inner, Parser};
use crate::scan::scan;
use crate::store::{Fault, StoreState};
use crate::v0_1::Template;

/// What a host needs to know.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Where compiled code is kept: made with mode 0700, nobody else may write there.
    pub cache_dir: PathBuf,
    /// How to start the compiler's process.
    pub compiler: CompilerCommand,
    /// Streams that use a parser at the same time. Each reserves about 4 GiB of address space and
    /// uses 24 KiB of memory or more.
    pub num_sessions: u32,
    /// What extensions may do.
    pub limits: Limits,
}

impl HostConfig {
    /// Defaults: this executable compiles, 1024 sessions.
    ///
    /// # Errors
    /// When the system does not tell which executable this is.
    pub fn new(cache_dir: PathBuf) -> std::io::Result<Self> {
        Ok(HostConfig {
            cache_dir,
            compiler: CompilerCommand::current_exe()?,
            num_sessions: 1024,
            limits: Limits::default(),
        })
    }
}

/// Admits extensions and keeps what they share: the engine, its clock, compiled code.
#[derive(Clone)]
pub struct ExtensionHost {
    shared: Arc<Shared>,
}

/// What every parser keeps alive.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) ticker: Ticker,
    pub(crate) limits: Limits,
    linker: Linker<StoreState>,
    cache: Cache,
    compiler: Compiler,
    /// By digest; an entry whose parser is gone is replaced on the next admission.
    admitted: Mutex<HashMap<String, Weak<Inner>>>,
}

impl ExtensionHost {
    /// Starts the engine and opens the cache.
    ///
    /// # Errors
    /// When the pool cannot be reserved or the cache directory is not ours alone.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        let engine = serving_engine(&config.limits.run, config.num_sessions)?;
        let cache = Cache::open(&config.cache_dir, &engine)?;
        let ticker = Ticker::start(engine.clone())?;
        // Nothing is ever defined in it: a parser may import nothing.
        let linker = Linker::new(&engine);
        let compiler = Compiler::new(config.compiler, config.limits.compile.clone());
        Ok(ExtensionHost {
            shared: Arc::new(Shared {
                engine,
                ticker,
                limits: config.limits,
                linker,
                cache,
                compiler,
                admitted: Mutex::new(HashMap::new()),
            }),
        })
    }

    /// Scans, compiles (or finds the code of an earlier admission), links and describes a
    /// component. The same bytes give the same parser while anybody holds it.
    ///
    /// Takes tens of milliseconds for new bytes: not for an async thread.
    ///
    /// # Errors
    /// The reasons, in sentences; or that the server is busy or at fault.
    pub fn admit(&self, wasm: &[u8]) -> Result<Arc<Parser>, AdmissionError> {
        let shared = &self.shared;
        let started = Instant::now();
        scan(wasm, &shared.limits.scan).map_err(|reasons| AdmissionError::Refused { reasons })?;
        let hex = sha256(wasm);
        if let Some(parser) = self.known(&hex) {
            return Ok(parser);
        }
        let component = shared.component(wasm, &hex)?;
        let template = shared
            .linker
            .instantiate_pre(&component)
            .and_then(Template::new)
            .map_err(|error| AdmissionError::refused(format!("it does not link: {error:#}")))?;
        let descriptor = shared.describe(&template)?;
        let parser =
            Inner::new(&hex, wasm.len(), started.elapsed(), descriptor, template, shared.clone());
        tracing::info!(
            extension = parser.descriptor.name,
            digest = parser.digest,
            elapsed_ms = started.elapsed().as_secs_f64() * 1e3,
            "extension admitted"
        );
        Ok(self.remember(hex, parser))
    }

    fn known(&self, hex: &str) -> Option<Arc<Parser>> {
        let admitted = self.shared.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.get(hex)?.upgrade().map(Parser::of)
    }

    /// Two admissions of the same bytes at once end with one parser.
    fn remember(&self, hex: String, parser: Arc<Inner>) -> Arc<Parser> {
        let mut admitted = self.shared.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = admitted.get(&hex).and_then(Weak::upgrade) {
            return Parser::of(first);
        }
        admitted.retain(|_, parser| parser.strong_count() > 0);
        admitted.insert(hex, Arc::downgrade(&parser));
        Parser::of(parser)
    }
}

impl Shared {
    /// The code of `wasm`, from the cache or from the compiler.
    fn component(&self, wasm: &[u8], hex: &str) -> Result<Component, AdmissionError> {
        let server = |why: String| AdmissionError::Server { why };
        match self.cache.load(&self.engine, hex) {
            Ok(Some(component)) => return Ok(component),
            Ok(None) => {}
            // Not ours, not whole or of another engine: never loaded, replaced if we may.
            Err(why) => tracing::warn!(why, "compiled code is made anew"),
        }
        let partial = self.cache.partial_path(hex);
        // A process that was killed may have had this very name.
        discard(&partial);
        let compiled = self
            .compiler
            .compile(wasm, &partial, &self.limits.scan, &self.limits.run)
            .and_then(|()| {
                std::fs::rename(&partial, self.cache.path(hex))
                    .map_err(|error| server(format!("cannot keep compiled code: {error}")))
            });
        if let Err(error) = compiled {
            discard(&partial);
            return Err(error);
        }
        let component = self.cache.load(&self.engine, hex).map_err(server)?;
        component.ok_or_else(|| server("compiled code vanished from the cache".into()))
    }

    /// Runs `describe` in an instance of its own and checks what it says.
    fn describe(&self, template: &Template) -> Result<Descriptor, AdmissionError> {
        let _tick = self.ticker.enter();
        let run = &self.limits.run;
        let refused = |what: &str, fault: Fault| {
            AdmissionError::refused(format!(
                "{what} failed ({}): {}; it must work without imports and within {} ms",
                fault.kind.as_str(),
                fault.message,
                run.setup_cpu.as_millis()
            ))
        };
        let mut instance = template
            .instantiate(&self.engine, run)
            .map_err(|fault| refused("its instantiation", fault))?;
        let descriptor =
            instance.describe(run).map_err(|fault| refused("its `describe`", fault))?;
        let reasons = descriptor::check(&descriptor);
        if reasons.is_empty() { Ok(descriptor) } else { Err(AdmissionError::Refused { reasons }) }
    }
}
