//! A parser session for tests, and a store of extensions that knows it.
//!
//! The format: `<think>`…`</think>` is reasoning, `<call:NAME>`…`</call>` a call, everything
//! else content. It holds back what may be a marker. A session fails at the first `!!`.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tenon_chat::parser::{
    Channel, Descriptor, FaultKind, Grammar, ModelInfo, ParseEvent, ParseFinish, ParserFactory,
    ParserFault, ParserSession, ReasoningStyle, Reply, RequestInfo, Special, Starts, ToolChoice,
};
use tenon_server::{BoundParser, ExtensionError, ExtensionRecord, Extensions};

pub struct Factory {
    pub descriptor: Descriptor,
}

pub fn descriptor(name: &str) -> Descriptor {
    Descriptor {
        name: name.into(),
        version: "1.0.0".into(),
        summary: "calls in angle brackets".into(),
        aliases: vec![format!("{name}_alias")],
        tools: true,
        reasoning_styles: vec![ReasoningStyle {
            name: "think".into(),
            aliases: vec!["qwen3".into()],
            openers: vec!["<think>".into()],
            closers: vec!["</think>".into()],
            ends_at_call: false,
        }],
        added_tokens: vec![],
        openers: vec!["<call:".into()],
        triggers: vec![],
        evidence: vec![],
    }
}

impl ParserFactory for Factory {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn digest(&self) -> &str {
        "sha256:00"
    }

    fn open(&self, request: &RequestInfo) -> Result<Box<dyn ParserSession>, ParserFault> {
        Ok(Box::new(Session {
            name: self.descriptor.name.clone(),
            pending: String::new(),
            state: match request.start {
                Channel::Reasoning => At::Reasoning,
                _ => At::Content,
            },
            reads_tools: request.tool_choice != ToolChoice::None,
            reads_reasoning: request.reasoning_style.is_some(),
            num_calls: 0,
        }))
    }

    fn constraint(
        &self,
        _: &ModelInfo,
        request: &RequestInfo,
    ) -> Result<Result<Option<Grammar>, String>, ParserFault> {
        let tools: Value = serde_json::from_str(&request.tools).unwrap();
        let named = |name: &str| match &request.tool_choice {
            ToolChoice::Named(wanted) => wanted == name,
            _ => true,
        };
        let calls = tools.as_array().unwrap().iter().filter_map(|tool| {
            let (function, name) = (&tool["function"], tool["function"]["name"].as_str().unwrap());
            let head = Value::from(format!("{name}>"));
            named(name).then(|| format!("{head} %json {} \"</call>\"", function["parameters"]))
        });
        let calls = calls.collect::<Vec<_>>().join(" | ");
        if calls.contains("no_grammar") {
            return Ok(Ok(None));
        }
        let more = if request.parallel { " (\"<call:\" call)*" } else { "" };
        let (open, starts) = match request.tool_choice {
            ToolChoice::Auto => ("", Starts::After(vec!["<call:".into()])),
            _ => ("\"<call:\" ", Starts::AtOnce),
        };
        let lark = format!("start: {open}call{more}\ncall: {calls}\n");
        Ok(Ok(Some(Grammar { dialect: "llguidance-lark/1".into(), lark, starts })))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Content,
    Reasoning,
    Call,
}

struct Session {
    name: String,
    pending: String,
    state: At,
    reads_tools: bool,
    reads_reasoning: bool,
    num_calls: u32,
}

const MAX_NAME: usize = 32;

impl Session {
    fn text(&self, text: &str) -> ParseEvent {
        match self.state {
            At::Content => ParseEvent::Content(text.into()),
            At::Reasoning => ParseEvent::Reasoning(text.into()),
            At::Call => ParseEvent::ToolArgs { index: self.num_calls - 1, text: text.into() },
        }
    }

    fn emit(&mut self, len: usize, events: &mut Vec<ParseEvent>) {
        let text: String = self.pending.drain(..len).collect();
        if !text.is_empty() {
            events.push(self.text(&text));
        }
    }

    /// Consumes one marker at the front. False: it is text, or may still become one.
    fn marker(&mut self, events: &mut Vec<ParseEvent>) -> Result<bool, ()> {
        let p = self.pending.as_str();
        let marker = match self.state {
            At::Content if self.reads_reasoning && p.starts_with("<think>") => 7,
            At::Reasoning if p.starts_with("</think>") => 8,
            At::Call if p.starts_with("</call>") => {
                events.push(ParseEvent::ToolEnd { index: self.num_calls - 1 });
                7
            }
            At::Content if self.reads_tools && p.starts_with("<call:") => match p[6..].find('>') {
                Some(end) if end > 0 && end <= MAX_NAME => {
                    let name = p[6..6 + end].to_owned();
                    let index = self.num_calls;
                    self.num_calls += 1;
                    events.push(ParseEvent::ToolBegin { index, name, id: None });
                    7 + end
                }
                None if p.len() <= 6 + MAX_NAME => return Err(()),
                _ => return Ok(false),
            },
            _ => {
                let all = ["<think>", "</think>", "</call>", "<call:"];
                if all.iter().any(|m| m.len() > p.len() && m.starts_with(p)) {
                    return Err(());
                }
                return Ok(false);
            }
        };
        self.pending.drain(..marker);
        self.state = match (self.state, marker) {
            (At::Content, 7) => At::Reasoning,
            (At::Content, _) => At::Call,
            _ => At::Content,
        };
        Ok(true)
    }

    fn scan(&mut self, events: &mut Vec<ParseEvent>) {
        loop {
            let Some(at) = self.pending.find('<') else {
                let all = self.pending.len();
                return self.emit(all, events);
            };
            self.emit(at, events);
            match self.marker(events) {
                Ok(true) => {}
                Ok(false) => self.emit(1, events),
                Err(()) => return,
            }
        }
    }
}

impl ParserSession for Session {
    fn push(&mut self, text: &str, _: &[Special], _: u32) -> Result<Reply, ParserFault> {
        self.pending.push_str(text);
        if self.pending.contains("!!") {
            return Err(ParserFault {
                extension: self.name.clone(),
                kind: FaultKind::Trap,
                message: "saw `!!`".into(),
            });
        }
        let mut events = Vec::new();
        // `!` may be half of a `!!`.
        let half = self.pending.ends_with('!').then(|| self.pending.pop()).flatten();
        self.scan(&mut events);
        self.pending.extend(half);
        Ok(Reply { events, held: self.pending.len() as u32, watch: None })
    }

    fn finish(&mut self, _: ParseFinish) -> Result<Reply, ParserFault> {
        let mut events = Vec::new();
        self.scan(&mut events);
        let rest = self.pending.len();
        self.emit(rest, &mut events);
        Ok(Reply { events, held: 0, watch: None })
    }
}

/// A store in memory. `fake` is built in; uploads parse as `NAME` in UTF-8.
pub struct Store {
    pub names: Mutex<Vec<String>>,
    pub bound: Mutex<Option<(String, Option<String>)>>,
}

impl Store {
    pub fn new(bound: Option<(&str, Option<&str>)>) -> Store {
        let bound = bound.map(|(name, style)| (name.to_owned(), style.map(str::to_owned)));
        Store { names: Mutex::new(vec!["fake".into()]), bound: Mutex::new(bound) }
    }

    fn factory(name: &str) -> Arc<dyn ParserFactory> {
        Arc::new(Factory { descriptor: descriptor(name) })
    }

    fn known(&self, name: &str) -> Result<String, ExtensionError> {
        let names = self.names.lock().unwrap();
        let found = names.iter().find(|n| **n == name || format!("{n}_alias") == name);
        found
            .cloned()
            .ok_or_else(|| ExtensionError::Unknown { name: name.into(), installed: names.clone() })
    }

    fn record(&self, name: &str) -> ExtensionRecord {
        let bound = self.bound.lock().unwrap();
        let is_bound = bound.as_ref().is_some_and(|(bound, _)| bound == name);
        ExtensionRecord {
            name: name.into(),
            digest: "sha256:00".into(),
            kinds: vec!["tool-call-parser".into(), "reasoning-parser".into()],
            descriptor: descriptor(name),
            bound: is_bound.then(|| "tiny".to_owned()).into_iter().collect(),
            versions: vec!["sha256:00".into()],
            builtin: name == "fake",
        }
    }
}

impl Extensions for Store {
    fn upload(&self, name: Option<&str>, wasm: &[u8]) -> Result<ExtensionRecord, ExtensionError> {
        let Ok(own) = std::str::from_utf8(wasm) else {
            let reasons = vec!["it imports `wasi:clocks`; remove it".into(), "too big".into()];
            return Err(ExtensionError::Rejected { reasons });
        };
        let name = name.unwrap_or(own);
        self.names.lock().unwrap().push(name.to_owned());
        Ok(self.record(name))
    }

    fn list(&self) -> Result<Vec<ExtensionRecord>, ExtensionError> {
        let names = self.names.lock().unwrap().clone();
        Ok(names.iter().map(|name| self.record(name)).collect())
    }

    fn describe(&self, name: &str) -> Result<ExtensionRecord, ExtensionError> {
        Ok(self.record(&self.known(name)?))
    }

    fn bind(&self, name: &str, _model: &str) -> Result<ExtensionRecord, ExtensionError> {
        let name = self.known(name)?;
        *self.bound.lock().unwrap() = Some((name.clone(), None));
        Ok(self.record(&name))
    }

    fn activate(&self, name: &str, digest: &str) -> Result<ExtensionRecord, ExtensionError> {
        let name = self.known(name)?;
        if digest != "sha256:00" {
            let message = format!("no version `{digest}`; choose one of `versions`");
            return Err(ExtensionError::Invalid { param: "digest", message });
        }
        Ok(self.record(&name))
    }

    fn rollback(&self, name: &str) -> Result<ExtensionRecord, ExtensionError> {
        let name = self.known(name)?;
        Err(ExtensionError::Conflict(format!("`{name}` has one version; upload another one")))
    }

    fn delete(&self, name: &str) -> Result<(), ExtensionError> {
        let name = self.known(name)?;
        self.names.lock().unwrap().retain(|n| *n != name);
        Ok(())
    }

    fn resolve(&self, name: &str) -> Result<Arc<dyn ParserFactory>, ExtensionError> {
        Ok(Store::factory(&self.known(name)?))
    }

    fn descriptors(&self) -> Vec<Arc<Descriptor>> {
        self.names.lock().unwrap().iter().map(|name| Arc::new(descriptor(name))).collect()
    }

    fn bound(&self, _model: &str) -> Option<BoundParser> {
        let bound = self.bound.lock().unwrap().clone();
        bound.map(|(name, style)| BoundParser { factory: Store::factory(&name), style })
    }
}
