//! Makes the guests of `main.rs`: fills the template's holes, encodes descriptors and replies
//! as the canonical ABI lays them out, and starts hosts with small limits.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;
use tenon_chat::parser::{
    Channel, Descriptor, ParseEvent, ReasoningStyle, RequestInfo, ToolChoice, Trigger,
};
use tenon_extensions::{CompilerCommand, ExtensionHost, HostConfig, Limits, Parser};
use wit_parser::Resolve;

/// Slots of a test's pool.
pub const NUM_SESSIONS: u32 = 8;

const TEMPLATE: &str = include_str!("guest.wat");

const DESCRIPTOR_AT: u32 = 0x400;
const REPLY_AT: u32 = 0x2_0000;

/// What fills the holes: instructions, or data as WebAssembly text escapes it.
#[derive(Clone)]
pub struct Guest<'a> {
    pub pages: &'a str,
    pub table: &'a str,
    pub descriptor: String,
    pub reply: String,
    pub realloc: &'a str,
    pub describe: &'a str,
    pub constraint: &'a str,
    pub constructor: &'a str,
    pub push: &'a str,
    pub finish: &'a str,
    pub start: &'a str,
}

impl Default for Guest<'_> {
    fn default() -> Self {
        Guest {
            pages: "16",
            table: "1",
            descriptor: escape(&descriptor_image(&base_descriptor())),
            reply: String::new(),
            realloc: "",
            describe: "",
            constraint: "",
            constructor: "",
            push: "",
            finish: "",
            start: "",
        }
    }
}

/// The core module of a guest, with its component type.
pub fn module(guest: &Guest<'_>) -> Vec<u8> {
    let mut text = TEMPLATE.to_string();
    for (hole, filling) in [
        ("pages", guest.pages),
        ("table", guest.table),
        ("descriptor", guest.descriptor.as_str()),
        ("reply", guest.reply.as_str()),
        ("realloc", guest.realloc),
        ("describe", guest.describe),
        ("constraint", guest.constraint),
        ("constructor", guest.constructor),
        ("push", guest.push),
        ("finish", guest.finish),
        ("start", guest.start),
    ] {
        text = text.replace(&format!("{{{{{hole}}}}}"), filling);
    }
    let mut module = wat::parse_str(&text).unwrap();
    let mut resolve = Resolve::default();
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let wit = above.map(|dir| dir.join("wit/v0.1")).find(|dir| dir.is_dir()).unwrap();
    let (package, _) = resolve.push_dir(&wit).unwrap();
    let world = resolve.select_world(&[package], Some("parser")).unwrap();
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut module, &resolve, world, encoding).unwrap();
    module
}

/// The component of a core module.
pub fn wrap(module: &[u8]) -> Vec<u8> {
    let mut encoder = wit_component::ComponentEncoder::default();
    encoder.validate(true).module(module).unwrap().encode().unwrap()
}

/// This test binary as the compiler, a new cache in `dir`.
pub fn config(dir: &Path) -> HostConfig {
    HostConfig {
        cache_dir: dir.join("compiled"),
        compiler: CompilerCommand {
            program: std::env::current_exe().unwrap(),
            args: ["compile_child", "--exact", "--nocapture", "__compile"].map(Into::into).into(),
        },
        num_sessions: NUM_SESSIONS,
        limits: Limits::default(),
    }
}

pub fn host() -> (ExtensionHost, TempDir) {
    host_with(|_| {})
}

pub fn host_with(change: impl FnOnce(&mut Limits)) -> (ExtensionHost, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    change(&mut config.limits);
    (ExtensionHost::new(config).unwrap(), dir)
}

/// The default guest without strikes: its code comes from the cache, its counters start anew once
/// the last one is dropped.
pub fn fresh(host: &ExtensionHost) -> Arc<Parser> {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    host.admit(WASM.get_or_init(|| module(&Guest::default()))).unwrap()
}

pub fn request() -> RequestInfo {
    RequestInfo {
        tools: "[]".into(),
        tool_choice: ToolChoice::Auto,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    }
}

/// What the default guest says of itself.
pub fn base_descriptor() -> Descriptor {
    Descriptor {
        name: "hostile".into(),
        version: "0.1.0".into(),
        summary: "Answers with what it is told.".into(),
        aliases: vec!["chaos".into()],
        tools: true,
        reasoning_styles: vec![ReasoningStyle {
            name: "plain".into(),
            aliases: vec![],
            openers: vec!["<think>".into()],
            closers: vec!["</think>".into()],
            ends_at_call: true,
        }],
        added_tokens: vec!["<a>".into(), "<b>".into()],
        openers: vec!["<a>".into()],
        triggers: vec![Trigger { channel: Channel::Content, texts: vec!["<a>".into()] }],
        evidence: vec![],
    }
}

/// A reply as the guest's memory holds it.
#[derive(Debug, Clone)]
pub struct Image {
    pub events: Vec<ParseEvent>,
    pub held: u32,
    /// 0: none; else a channel and one.
    pub watch: u8,
}

impl Image {
    pub fn hex(&self) -> String {
        hex(&self.bytes())
    }

    /// {events: list, held: u32, watch: option<enum>}, then the events, then their strings.
    pub fn bytes(&self) -> Vec<u8> {
        let mut memory = Memory::new(REPLY_AT, 16);
        let list = memory.reserve(28 * self.events.len());
        for (i, event) in self.events.iter().enumerate() {
            memory.event(list + 28 * i, event);
        }
        memory.word(0, memory.base + list as u32);
        memory.word(4, self.events.len() as u32);
        memory.word(8, self.held);
        if let Some(channel) = self.watch.checked_sub(1) {
            memory.bytes[12] = 1;
            memory.bytes[13] = channel;
        }
        memory.bytes
    }
}

/// A descriptor as the guest's memory holds it.
pub fn descriptor_image(descriptor: &Descriptor) -> Vec<u8> {
    let mut memory = Memory::new(DESCRIPTOR_AT, 76);
    memory.string(0, &descriptor.name);
    memory.string(8, &descriptor.version);
    memory.string(16, &descriptor.summary);
    memory.strings(24, &descriptor.aliases);
    memory.bytes[32] = descriptor.tools.into();
    // {name, aliases, openers, closers, ends-at-call}
    let styles = memory.list(36, 36, descriptor.reasoning_styles.len());
    for (i, style) in descriptor.reasoning_styles.iter().enumerate() {
        let at = styles + 36 * i;
        memory.string(at, &style.name);
        memory.strings(at + 8, &style.aliases);
        memory.strings(at + 16, &style.openers);
        memory.strings(at + 24, &style.closers);
        memory.bytes[at + 32] = style.ends_at_call.into();
    }
    memory.strings(44, &descriptor.added_tokens);
    memory.strings(52, &descriptor.openers);
    // {channel, texts}
    let triggers = memory.list(60, 12, descriptor.triggers.len());
    for (i, trigger) in descriptor.triggers.iter().enumerate() {
        memory.bytes[triggers + 12 * i] = trigger.channel as u8;
        memory.strings(triggers + 12 * i + 4, &trigger.texts);
    }
    let evidence = memory.list(68, 24, descriptor.evidence.len());
    for (i, rule) in descriptor.evidence.iter().enumerate() {
        let at = evidence + 24 * i;
        memory.strings(at, &rule.template_has);
        memory.strings(at + 8, &rule.template_lacks);
        memory.strings(at + 16, &rule.vocabulary_has);
    }
    memory.bytes
}

/// Bytes that lie at `base` in a guest.
struct Memory {
    base: u32,
    bytes: Vec<u8>,
}

impl Memory {
    fn new(base: u32, len: usize) -> Self {
        Memory { base, bytes: vec![0; len] }
    }

    /// Offset of `len` new bytes, aligned to words.
    fn reserve(&mut self, len: usize) -> usize {
        let at = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(at + len, 0);
        at
    }

    fn word(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn list(&mut self, at: usize, size: usize, num: usize) -> usize {
        let list = self.reserve(size * num);
        self.word(at, self.base + list as u32);
        self.word(at + 4, num as u32);
        list
    }

    fn string(&mut self, at: usize, text: &str) {
        let data = self.list(at, 1, text.len());
        self.bytes[data..data + text.len()].copy_from_slice(text.as_bytes());
    }

    fn strings(&mut self, at: usize, texts: &[String]) {
        let list = self.list(at, 8, texts.len());
        for (i, text) in texts.iter().enumerate() {
            self.string(list + 8 * i, text);
        }
    }

    /// {case, payload}, the payload at 4.
    fn event(&mut self, at: usize, event: &ParseEvent) {
        let (case, index) = match event {
            ParseEvent::Content(text) => {
                self.string(at + 4, text);
                (0, None)
            }
            ParseEvent::Reasoning(text) => {
                self.string(at + 4, text);
                (1, None)
            }
            ParseEvent::ToolBegin { index, name, id } => {
                self.string(at + 8, name);
                if let Some(id) = id {
                    self.bytes[at + 16] = 1;
                    self.string(at + 20, id);
                }
                (2, Some(*index))
            }
            ParseEvent::ToolArgs { index, text } => {
                self.string(at + 8, text);
                (3, Some(*index))
            }
            ParseEvent::ToolEnd { index } => (4, Some(*index)),
            ParseEvent::Note(text) => {
                self.string(at + 4, text);
                (5, None)
            }
        };
        self.bytes[at] = case;
        if let Some(index) = index {
            self.word(at + 4, index);
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For a data segment in WebAssembly text.
pub fn escape(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}
