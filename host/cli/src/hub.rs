//! The extensions of a running server: built-in and uploaded parsers by name, admitted when first
//! needed, and the binding of each model. Joins `extensions` (the sandbox) and `registry` (the
//! disk) behind the server's trait.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::{Context, Result};
use tenon_chat::parser::{Descriptor, ParserFactory};
use tenon_extensions::{AdmissionError, ExtensionHost, HostConfig};
use tenon_registry::{Registry, RegistryError};
use tenon_server::{BoundParser, ExtensionError, ExtensionRecord, Extensions};

use crate::embedded::{self, Embedded};

type Factory = Arc<dyn ParserFactory>;

/// An installed parser. Built-in ones are compiled when first asked for.
#[derive(Clone)]
struct Installed {
    descriptor: Arc<Descriptor>,
    digest: String,
    factory: Option<Factory>,
    builtin: Option<&'static [u8]>,
}

/// How a model's evidence is looked at when a style is chosen.
pub struct ModelEvidence {
    /// Its served name. Bindings of other models stay on disk, for a server of theirs.
    pub name: String,
    /// Chat template source.
    pub template: Option<String>,
    /// Is this text one token of the vocabulary?
    pub has_token: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

/// See the module's doc.
pub struct Hub {
    host: ExtensionHost,
    registry: Registry,
    builtin: BTreeMap<String, Embedded>,
    installed: RwLock<BTreeMap<String, Installed>>,
    bindings: RwLock<HashMap<String, (String, BoundParser)>>,
    evidence: ModelEvidence,
    /// Installing, binding and deleting happen one at a time.
    changing: Mutex<()>,
}

/// Where compiled components are kept when no flag says so.
///
/// # Errors
/// Without a home directory: compiled code must not lie where others could put some.
pub fn default_cache_dir() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.context("HOME is not set; name a directory of yours with --cache-dir")?;
    Ok(PathBuf::from(home).join(".cache/tenon/components"))
}

/// Starts a sandbox that compiles in a child of this program.
fn sandbox(cache_dir: &Path) -> Result<ExtensionHost> {
    Ok(ExtensionHost::new(HostConfig::new(cache_dir.to_path_buf())?)?)
}

/// Admits one built-in parser, as a check that the sandbox works here. Its name.
pub fn probe() -> Result<String> {
    let first = embedded::all()?.into_iter().next().context("no parser is built in")?;
    let admitted = sandbox(&default_cache_dir()?)?.admit(first.bytes)?;
    Ok(admitted.descriptor().name.clone())
}

/// Opens built-in parsers one by one, in one sandbox.
pub struct BuiltIn {
    host: ExtensionHost,
}

impl BuiltIn {
    /// The sandbox; nothing is compiled yet.
    pub fn new() -> Result<BuiltIn> {
        Ok(BuiltIn { host: sandbox(&default_cache_dir()?)? })
    }

    /// One of them.
    pub fn open(&self, parser: &Embedded) -> Result<Factory> {
        Ok(self.host.admit(parser.bytes)?)
    }
}

/// The component in a file, or a built-in parser by name.
pub fn open_component(name_or_path: &str) -> Result<Factory> {
    let host = sandbox(&default_cache_dir()?)?;
    let builtin = embedded::all()?;
    let names: Vec<&str> = builtin.iter().map(|e| e.name.as_str()).collect();
    if let Some(found) = builtin.iter().find(|e| e.name == name_or_path) {
        return Ok(host.admit(found.bytes)?);
    }
    let bytes = std::fs::read(name_or_path).with_context(|| {
        format!("`{name_or_path}` is neither a file nor built in (built in: {})", names.join(", "))
    })?;
    Ok(host.admit(&bytes)?)
}

impl Hub {
    /// Opens the registry and admits what was uploaded before. An upload that no longer is admitted
    /// is left out with a warning; its bytes stay on disk.
    pub fn open(cache_dir: &Path, data_dir: Option<&Path>, evidence: ModelEvidence) -> Result<Hub> {
        let host = sandbox(cache_dir)?;
        let registry = match data_dir {
            Some(dir) => Registry::open(dir)?,
            None => Registry::in_memory(),
        };
        let builtin: BTreeMap<String, Embedded> =
            embedded::all()?.into_iter().map(|e| (e.name.clone(), e)).collect();
        let installed = builtin.values().map(|e| (e.name.clone(), Installed::builtin(e))).collect();
        let hub = Hub {
            host,
            registry,
            builtin,
            installed: RwLock::new(installed),
            bindings: RwLock::default(),
            evidence,
            changing: Mutex::default(),
        };
        for extension in hub.registry.list() {
            if let Err(error) = hub.install(&extension.name) {
                tracing::warn!(extension = extension.name, %error, "left out");
                continue;
            }
            hub.rebind(&extension.name).map_err(|error| anyhow::anyhow!("{error}"))?;
        }
        Ok(hub)
    }

    /// Binds what the flags (or `auto`) chose, unless an earlier upload is bound to the model.
    pub fn bind_at_start(&self, model: &str, parser: &str, style: Option<String>) -> Result<()> {
        if self.bound(model).is_some() {
            return Ok(());
        }
        self.bind_installed(parser, model, Some(style)).map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// The style that `auto` takes of a parser: its default one, if the model shows its opener.
    pub fn auto_style(&self, descriptor: &Descriptor) -> Option<String> {
        let style = descriptor.reasoning_styles.first()?;
        let template = self.evidence.template.as_deref().unwrap_or_default();
        let shows = |text: &String| template.contains(text) || (self.evidence.has_token)(text);
        style.openers.iter().any(shows).then(|| style.name.clone())
    }

    /// The model's chat template.
    pub fn template(&self) -> Option<&str> {
        self.evidence.template.as_deref()
    }

    /// Is this text one token of the model's vocabulary?
    pub fn has_token(&self, text: &str) -> bool {
        (self.evidence.has_token)(text)
    }

    /// Admits a version before the disk is told to use it: one that fails must not be what the next
    /// start finds. While the parser is held, [`Hub::install`] finds it admitted.
    fn admit_version(&self, digest: &str) -> Result<Factory, ExtensionError> {
        let blob = self.registry.get(digest).map_err(from_registry)?;
        Ok(self.host.admit(&blob.bytes).map_err(from_admission)?)
    }

    /// Admits the registry's current version of `name`.
    fn install(&self, name: &str) -> Result<Factory, ExtensionError> {
        let blob = self.registry.get(name).map_err(from_registry)?;
        let factory: Factory = self.host.admit(&blob.bytes).map_err(from_admission)?;
        let installed = Installed {
            descriptor: Arc::new(factory.descriptor().clone()),
            digest: blob.digest,
            factory: Some(factory.clone()),
            builtin: None,
        };
        self.write_installed().insert(name.to_owned(), installed);
        Ok(factory)
    }

    /// `style`: none: `auto`.
    fn bind_installed(
        &self,
        name: &str,
        model: &str,
        style: Option<Option<String>>,
    ) -> Result<(), ExtensionError> {
        let factory = self.resolve(name)?;
        let style = style.unwrap_or_else(|| self.auto_style(factory.descriptor()));
        let bound = BoundParser { factory, style };
        let mut bindings = self.bindings.write().unwrap_or_else(PoisonError::into_inner);
        bindings.insert(model.to_owned(), (name.to_owned(), bound));
        Ok(())
    }

    /// Gives every model that uses `name` its new version, from the next request on. The disk
    /// knows of a binding whose upload was left out at the start.
    fn rebind(&self, name: &str) -> Result<(), ExtensionError> {
        let mut models = self.models_of(name);
        let served = &self.evidence.name;
        if self.registry.bound(served).as_deref() == Some(name) && !models.contains(served) {
            models.push(served.clone());
        }
        for model in models {
            let old = self.bound(&model).and_then(|bound| bound.style);
            let descriptor = self.resolve(name)?.descriptor().clone();
            let keeps =
                |style: &String| descriptor.reasoning_styles.iter().any(|s| s.name == *style);
            let style = old.filter(keeps).or_else(|| self.auto_style(&descriptor));
            self.bind_installed(name, &model, Some(style))?;
        }
        Ok(())
    }

    fn models_of(&self, name: &str) -> Vec<String> {
        let bindings = self.bindings.read().unwrap_or_else(PoisonError::into_inner);
        let of = bindings.iter().filter(|(_, (bound, _))| bound == name);
        of.map(|(model, _)| model.clone()).collect()
    }

    /// The installed name that `name` means: itself, else the parser that has it as an alias.
    fn canonical(&self, name: &str) -> Result<String, ExtensionError> {
        let installed = self.read_installed();
        if installed.contains_key(name) {
            return Ok(name.to_owned());
        }
        let is_meant = |i: &Installed| {
            i.descriptor.name == name || i.descriptor.aliases.iter().any(|alias| alias == name)
        };
        let found = installed.iter().find(|(_, i)| is_meant(i)).map(|(key, _)| key.clone());
        found.ok_or_else(|| unknown(name, &installed))
    }

    /// Checks that an upload has this very name, even one that was left out at the start: what
    /// changes or deletes an upload does not go by aliases. Built-in parsers have no versions.
    fn check_uploaded(&self, name: &str) -> Result<(), ExtensionError> {
        if self.registry.describe(name).is_ok() {
            return Ok(());
        }
        let installed = self.read_installed();
        if installed.contains_key(name) {
            let message = format!("`{name}` is built in and has no versions; upload one first");
            return Err(ExtensionError::Conflict(message));
        }
        Err(unknown(name, &installed))
    }

    fn record(&self, name: &str) -> Result<ExtensionRecord, ExtensionError> {
        let all = self.read_installed();
        let installed = all.get(name).cloned().ok_or_else(|| unknown(name, &all))?;
        drop(all);
        let mut versions = vec![installed.digest.clone()];
        if installed.builtin.is_none() {
            let extension = self.registry.describe(name).map_err(from_registry)?;
            versions = extension.versions.into_iter().rev().map(|v| v.digest).collect();
        }
        let descriptor = (*installed.descriptor).clone();
        let mut kinds = Vec::new();
        if descriptor.tools {
            kinds.push("tool-call-parser".to_owned());
        }
        if !descriptor.reasoning_styles.is_empty() {
            kinds.push("reasoning-parser".to_owned());
        }
        let mut bound = self.models_of(name);
        bound.sort();
        Ok(ExtensionRecord {
            name: name.to_owned(),
            digest: installed.digest,
            kinds,
            descriptor,
            bound,
            versions,
            builtin: installed.builtin.is_some(),
        })
    }

    fn read_installed(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Installed>> {
        self.installed.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_installed(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Installed>> {
        self.installed.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> std::sync::MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Installed {
    fn builtin(embedded: &Embedded) -> Installed {
        Installed {
            descriptor: Arc::new(embedded.descriptor.clone()),
            digest: embedded.digest.clone(),
            factory: None,
            builtin: Some(embedded.bytes),
        }
    }
}

impl Extensions for Hub {
    fn upload(&self, name: Option<&str>, wasm: &[u8]) -> Result<ExtensionRecord, ExtensionError> {
        // Nothing is written before the component is admitted.
        let factory = self.host.admit(wasm).map_err(from_admission)?;
        let name = name.unwrap_or(&factory.descriptor().name).to_owned();
        let _changing = self.change();
        self.registry.put(&name, wasm).map_err(from_registry)?;
        self.install(&name)?;
        self.rebind(&name)?;
        self.record(&name)
    }

    fn list(&self) -> Result<Vec<ExtensionRecord>, ExtensionError> {
        let names: Vec<String> = self.read_installed().keys().cloned().collect();
        names.iter().map(|name| self.record(name)).collect()
    }

    fn describe(&self, name: &str) -> Result<ExtensionRecord, ExtensionError> {
        self.record(&self.canonical(name)?)
    }

    fn bind(&self, name: &str, model: &str) -> Result<ExtensionRecord, ExtensionError> {
        let _changing = self.change();
        let name = self.canonical(name)?;
        // Admitted first, then the disk, then what serves: a failure leaves all as it was.
        self.resolve(&name)?;
        let is_builtin = self.read_installed().get(&name).is_some_and(|i| i.builtin.is_some());
        if is_builtin {
            // Flags choose built-in parsers; the disk only remembers uploads.
            self.registry.unbind(model).map_err(from_registry)?;
        } else {
            self.registry.bind(model, &name).map_err(from_registry)?;
        }
        self.bind_installed(&name, model, None)?;
        self.record(&name)
    }

    fn activate(&self, name: &str, digest: &str) -> Result<ExtensionRecord, ExtensionError> {
        let _changing = self.change();
        self.check_uploaded(name)?;
        let versions = self.registry.describe(name).map_err(from_registry)?.versions;
        let has_it = versions.iter().any(|version| version.digest == digest);
        let _admitted = has_it.then(|| self.admit_version(digest)).transpose()?;
        self.registry.activate(name, digest).map_err(from_registry)?;
        self.install(name)?;
        self.rebind(name)?;
        self.record(name)
    }

    fn rollback(&self, name: &str) -> Result<ExtensionRecord, ExtensionError> {
        let _changing = self.change();
        self.check_uploaded(name)?;
        let previous = self.registry.describe(name).map_err(from_registry)?.previous;
        let _admitted = previous.map(|digest| self.admit_version(&digest)).transpose()?;
        self.registry.rollback(name).map_err(from_registry)?;
        self.install(name)?;
        self.rebind(name)?;
        self.record(name)
    }

    fn delete(&self, name: &str) -> Result<(), ExtensionError> {
        let _changing = self.change();
        self.check_uploaded(name)?;
        let models = self.models_of(name);
        // An upload over a built-in parser gives way to it again.
        let below = self.builtin.get(name).map(Installed::builtin);
        if !models.is_empty() && below.is_none() {
            let message = format!("`{name}` is bound to {}; bind another first", models.join(", "));
            return Err(ExtensionError::Conflict(message));
        }
        // Models that this server does not serve are not asked: nobody could bind them elsewhere.
        for model in self.registry.describe(name).map_err(from_registry)?.bound {
            self.registry.unbind(&model).map_err(from_registry)?;
        }
        self.registry.delete(name).map_err(from_registry)?;
        match below {
            Some(builtin) => self.write_installed().insert(name.to_owned(), builtin),
            None => self.write_installed().remove(name),
        };
        self.rebind(name)
    }

    fn resolve(&self, name: &str) -> Result<Factory, ExtensionError> {
        let name = self.canonical(name)?;
        let installed = self.read_installed().get(&name).cloned();
        let Some(installed) = installed else {
            return Err(ExtensionError::Conflict(format!("`{name}` was just deleted")));
        };
        if let Some(factory) = installed.factory {
            return Ok(factory);
        }
        let bytes = installed.builtin.expect("only built-in parsers wait to be admitted");
        let factory: Factory = self.host.admit(bytes).map_err(from_admission)?;
        if let Some(entry) = self.write_installed().get_mut(&name)
            && entry.digest == installed.digest
        {
            entry.factory = Some(factory.clone());
        }
        Ok(factory)
    }

    fn descriptors(&self) -> Vec<Arc<Descriptor>> {
        self.read_installed().values().map(|i| i.descriptor.clone()).collect()
    }

    fn bound(&self, model: &str) -> Option<BoundParser> {
        let bindings = self.bindings.read().unwrap_or_else(PoisonError::into_inner);
        bindings.get(model).map(|(_, bound)| bound.clone())
    }
}

fn unknown(name: &str, installed: &BTreeMap<String, Installed>) -> ExtensionError {
    ExtensionError::Unknown {
        name: name.to_owned(),
        installed: installed.keys().cloned().collect(),
    }
}

fn from_admission(error: AdmissionError) -> ExtensionError {
    match error {
        AdmissionError::Refused { reasons } => ExtensionError::Rejected { reasons },
        AdmissionError::Busy { .. } => ExtensionError::Conflict(error.to_string()),
        AdmissionError::Server { .. } => ExtensionError::Host(error.to_string()),
    }
}

fn from_registry(error: RegistryError) -> ExtensionError {
    match error {
        RegistryError::BadName { .. } => {
            ExtensionError::Invalid { param: "name", message: error.to_string() }
        }
        RegistryError::Unknown { name, known } => {
            ExtensionError::Unknown { name, installed: known }
        }
        RegistryError::UnknownVersion { .. } => {
            ExtensionError::Invalid { param: "digest", message: error.to_string() }
        }
        RegistryError::Io { .. }
        | RegistryError::Index { .. }
        | RegistryError::Corrupt { .. }
        | RegistryError::InUse { .. } => ExtensionError::Host(error.to_string()),
        other => ExtensionError::Conflict(other.to_string()),
    }
}
