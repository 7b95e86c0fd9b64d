//! What can be said about uploaded bytes before anything compiles them: one linear pass, sizes and
//! names only. Types and instructions are validated by the compiler, in its own process.
//!
//! Every reason is a sentence that names the offender and what to change.

use wasmparser::{
    ComponentExternName, Encoding, FunctionBody, MemoryType, Parser, Payload, TypeRef,
};

use crate::limits::ScanLimits;

/// The interface that a parser exports, without its version.
const INTERFACE: &str = "tenon:extension/output-parser";

/// Names and versions that this server serves, newest first.
pub(crate) const EXPORTS: &[&str] = &["tenon:extension/output-parser@0.1.0"];

/// Core modules that wit-component can wrap import only this (the handles of their own resources).
const OWN_IMPORTS: &str = "[export]tenon:extension/";

/// Names listed in one reason.
const MAX_NAMED: usize = 8;

/// Reasons given at once.
const MAX_REASONS: usize = 16;

/// Bytes of a name shown.
const MAX_NAME_BYTES: usize = 96;

/// What was uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Ready to compile.
    Component,
    /// A core module with its component type: to be wrapped.
    CoreModule,
}

/// Checks `wasm`.
///
/// # Errors
/// All reasons found, at least one.
pub(crate) fn scan(wasm: &[u8], limits: &ScanLimits) -> Result<Shape, Vec<String>> {
    check_outside(wasm, limits).map_err(|reason| vec![reason])?;
    let mut scan = Scan::new(limits);
    let shape = match scan.walk(wasm) {
        Ok(shape) => shape,
        Err(error) => {
            scan.refuse(format!(
                "it is not well-formed WebAssembly: {} at byte {}; upload the file as the \
                 toolchain wrote it, whole",
                error.message(),
                error.offset()
            ));
            Shape::Component
        }
    };
    if scan.reasons.is_empty() { Ok(shape) } else { Err(scan.reasons) }
}

/// Size and magic number.
fn check_outside(wasm: &[u8], limits: &ScanLimits) -> Result<(), String> {
    if wasm.len() > limits.wasm_bytes {
        return Err(format!(
            "it has `{}` bytes, over the limit of {}; build with `opt-level = 3`, `strip = true` \
             and `panic = \"abort\"`",
            wasm.len(),
            limits.wasm_bytes
        ));
    }
    if wasm.starts_with(b"\0asm") {
        return Ok(());
    }
    let found = if wasm.is_empty() {
        "the body is empty; send the component's bytes"
    } else if wasm.starts_with(b"\x7fELF") {
        "it is compiled native code (`.cwasm`), which is never accepted; upload the `.wasm` file"
    } else if wasm.trim_ascii_start().starts_with(b"(") {
        "it is WebAssembly text; assemble it first (`wasm-tools parse`)"
    } else {
        "it does not start as WebAssembly does (`\\0asm`); upload a component's `.wasm` file"
    };
    Err(found.to_string())
}

/// The state of one pass.
struct Scan<'a> {
    limits: &'a ScanLimits,
    reasons: Vec<String>,
    num_functions: u64,
    num_modules: u32,
    num_components: u32,
    num_core_instances: u64,
    /// Of the component: refused. Of a core module: `module::name`.
    imports: Names,
    exports: Names,
    has_interface: bool,
    has_component_type: bool,
}

/// The first few of some names, and how many there were.
#[derive(Default)]
struct Names {
    first: Vec<String>,
    num: usize,
}

impl Names {
    fn add(&mut self, name: &str) {
        self.num += 1;
        if self.first.len() < MAX_NAMED {
            let end =
                (0..=name.len().min(MAX_NAME_BYTES)).rev().find(|&i| name.is_char_boundary(i));
            self.first.push(format!("`{}`", &name[..end.unwrap_or(0)]));
        }
    }

    fn list(&self) -> String {
        let mut text = self.first.join(", ");
        if self.num > self.first.len() {
            text.push_str(&format!(" and {} more", self.num - self.first.len()));
        }
        text
    }
}

impl<'a> Scan<'a> {
    fn new(limits: &'a ScanLimits) -> Self {
        Scan {
            limits,
            reasons: Vec::new(),
            num_functions: 0,
            num_modules: 0,
            num_components: 0,
            num_core_instances: 0,
            imports: Names::default(),
            exports: Names::default(),
            has_interface: false,
            has_component_type: false,
        }
    }

    fn refuse(&mut self, reason: String) {
        if self.reasons.len() < MAX_REASONS && !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    fn at_most(&mut self, what: &str, found: u64, limit: u64) {
        if found > limit {
            self.refuse(format!("it has `{found}` {what}, over the limit of {limit}; simplify it"));
        }
    }

    fn walk(&mut self, wasm: &[u8]) -> Result<Shape, wasmparser::Error> {
        let mut outermost = None;
        // How many modules and components we are inside of, the outermost one not counted.
        let mut depth = 0_u32;
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            match &payload {
                Payload::Version { encoding, .. } => {
                    outermost.get_or_insert(*encoding);
                }
                Payload::ModuleSection { .. } => {
                    depth += 1;
                    self.num_modules += 1;
                    self.at_most(
                        "modules",
                        self.num_modules.into(),
                        self.limits.num_modules.into(),
                    );
                }
                Payload::ComponentSection { .. } => {
                    depth += 1;
                    self.num_components += 1;
                    let limit = self.limits.num_components.into();
                    self.at_most("nested components", self.num_components.into(), limit);
                }
                Payload::End(_) => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.sizes(&payload)?;
            if depth == 0 {
                self.names(&payload)?;
            }
        }
        Ok(match outermost {
            Some(Encoding::Module) => {
                self.judge_module();
                Shape::CoreModule
            }
            _ => {
                self.judge_component();
                Shape::Component
            }
        })
    }

    /// Counts and sizes, at any depth.
    fn sizes(&mut self, payload: &Payload<'_>) -> Result<(), wasmparser::Error> {
        if let Some((what, found)) = section_entries(payload) {
            self.at_most(what, found.into(), self.limits.num_section_entries.into());
        }
        match payload {
            Payload::InstanceSection(reader) => {
                self.num_core_instances += core_instances(reader.clone())?;
                let limit = self.limits.num_core_instances.into();
                self.at_most("core instances", self.num_core_instances, limit);
            }
            Payload::CodeSectionStart { count, .. } => {
                self.num_functions += u64::from(*count);
                self.at_most("functions", self.num_functions, self.limits.num_functions.into());
            }
            Payload::CodeSectionEntry(body) => self.body(body)?,
            Payload::DataSection(reader) => {
                let limit = self.limits.num_data_segments.into();
                self.at_most("data segments", reader.count().into(), limit);
            }
            Payload::MemorySection(reader) => {
                for memory in reader.clone() {
                    self.memory(&memory?);
                }
            }
            Payload::TableSection(reader) => {
                for table in reader.clone() {
                    let initial = table?.ty.initial;
                    self.at_most("table elements", initial, self.limits.table_elements);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&mut self, body: &FunctionBody<'_>) -> Result<(), wasmparser::Error> {
        let bytes = body.as_bytes().len();
        self.at_most("bytes in one function", bytes as u64, self.limits.body_bytes as u64);
        let mut num_locals = 0_u64;
        for local in body.get_locals_reader()? {
            num_locals += u64::from(local?.0);
        }
        self.at_most("locals in one function", num_locals, self.limits.num_locals.into());
        Ok(())
    }

    fn memory(&mut self, memory: &MemoryType) {
        let page = 1_u64 << memory.page_size_log2.unwrap_or(16).min(16);
        let bytes = memory.initial.saturating_mul(page);
        self.at_most("bytes of memory at its start", bytes, self.limits.memory_bytes as u64);
        if memory.memory64 || memory.shared || memory.page_size_log2.is_some() {
            self.refuse(
                "it uses a 64-bit, shared or custom-page memory; build for plain \
                 `wasm32-unknown-unknown`"
                    .to_string(),
            );
        }
    }

    /// Imports and exports of the outermost module or component.
    fn names(&mut self, payload: &Payload<'_>) -> Result<(), wasmparser::Error> {
        match payload {
            Payload::ComponentImportSection(reader) => {
                for import in reader.clone() {
                    let ComponentExternName { name, .. } = import?.name;
                    self.imports.add(name);
                }
            }
            Payload::ComponentExportSection(reader) => {
                for export in reader.clone() {
                    let ComponentExternName { name, .. } = export?.name;
                    self.has_interface |= EXPORTS.contains(&name);
                    self.exports.add(name);
                }
            }
            Payload::ImportSection(reader) => {
                for import in reader.clone().into_imports() {
                    let import = import?;
                    if !import.module.starts_with(OWN_IMPORTS) {
                        self.imports.add(&format!("{}::{}", import.module, import.name));
                    }
                    if matches!(import.ty, TypeRef::Memory(_) | TypeRef::Table(_)) {
                        self.refuse(format!(
                            "it imports a memory or table (`{}::{}`); define its own",
                            import.module, import.name
                        ));
                    }
                }
            }
            Payload::CustomSection(section) => {
                self.has_component_type |= section.name().starts_with("component-type");
            }
            _ => {}
        }
        Ok(())
    }

    fn judge_component(&mut self) {
        self.judge_imports();
        if self.has_interface {
            return;
        }
        let wanted = EXPORTS[0];
        let found = if self.exports.num == 0 { "nothing".into() } else { self.exports.list() };
        let fix = if self.exports.first.iter().any(|name| name.contains(INTERFACE)) {
            "rebuild against a version that this server knows"
        } else {
            "implement world `parser` of package `tenon:extension`"
        };
        self.refuse(format!("it does not export `{wanted}` but {found}; {fix}"));
    }

    fn judge_module(&mut self) {
        self.judge_imports();
        if !self.has_component_type {
            self.refuse(
                "it is a core module without a `component-type` section; build it with \
                 wit-bindgen, or wrap it yourself (`wasm-tools component new`)"
                    .to_string(),
            );
        }
    }

    fn judge_imports(&mut self) {
        if self.imports.num == 0 {
            return;
        }
        let names = self.imports.list();
        let is_wasi = self.imports.first.iter().any(|name| name.contains("wasi"));
        let fix = if is_wasi {
            "build for `wasm32-unknown-unknown` instead of a WASI target, or stub WASI \
             (`--stub-wasi`)"
        } else {
            "remove what needs them"
        };
        self.refuse(format!("it imports {names}, but a parser may import nothing; {fix}"));
    }
}

/// Instances of modules; the others only rename exports.
fn core_instances(reader: wasmparser::InstanceSectionReader<'_>) -> Result<u64, wasmparser::Error> {
    let mut num = 0;
    for instance in reader {
        if matches!(instance?, wasmparser::Instance::Instantiate { .. }) {
            num += 1;
        }
    }
    Ok(num)
}

/// Sections whose entries cost the compiler or the engine something each.
fn section_entries(payload: &Payload<'_>) -> Option<(&'static str, u32)> {
    Some(match payload {
        Payload::TypeSection(reader) => ("types", reader.count()),
        Payload::ImportSection(reader) => ("imports", reader.count()),
        Payload::GlobalSection(reader) => ("globals", reader.count()),
        Payload::ExportSection(reader) => ("exports", reader.count()),
        Payload::ElementSection(reader) => ("element segments", reader.count()),
        Payload::InstanceSection(reader) => ("core instances", reader.count()),
        Payload::CoreTypeSection(reader) => ("core types", reader.count()),
        Payload::ComponentInstanceSection(reader) => ("instances", reader.count()),
        Payload::ComponentAliasSection(reader) => ("aliases", reader.count()),
        Payload::ComponentTypeSection(reader) => ("component types", reader.count()),
        Payload::ComponentCanonicalSection(reader) => ("canonical functions", reader.count()),
        Payload::ComponentImportSection(reader) => ("imports", reader.count()),
        Payload::ComponentExportSection(reader) => ("exports", reader.count()),
        _ => return None,
    })
}
