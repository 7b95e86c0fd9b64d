//! `tenon:extension@0.1.0`: the bindings of that version and their conversion to the host's words.
//!
//! A later version gets a module beside this one; older ones convert upwards and stay.

use std::time::Duration;

use tenon_chat::parser as host;
use wasmtime::component::{InstancePre, ResourceAny};
use wasmtime::{Engine, Store};

use crate::limits::RunLimits;
use crate::store::{Fault, Guest, StoreState};

mod bindings {
    #![allow(missing_docs, unused_qualifications)]
    wasmtime::component::bindgen!({
        path: "../../wit/v0.1",
        world: "tenon:extension/parser@0.1.0",
    });
}

use bindings::exports::tenon::extension::output_parser as wit;

/// A component whose exports were found; makes instances.
pub(crate) struct Template(bindings::ParserPre<StoreState>);

impl Template {
    /// Finds the exports.
    ///
    /// # Errors
    /// When one is missing.
    pub(crate) fn new(pre: InstancePre<StoreState>) -> wasmtime::Result<Self> {
        bindings::ParserPre::new(pre).map(Template)
    }

    /// A fresh instance in a fresh store.
    ///
    /// # Errors
    /// When its start runs into a limit or a type differs from the world's.
    pub(crate) fn instantiate(
        &self,
        engine: &Engine,
        limits: &RunLimits,
    ) -> Result<Instance, Fault> {
        let mut guest = Guest::new(engine, limits);
        let (exports, _) = guest.run(limits.setup_cpu, |store| self.0.instantiate(store));
        Ok(Instance { guest, exports: exports?, session: None })
    }
}

/// One instance, with at most one session.
pub(crate) struct Instance {
    pub(crate) guest: Guest,
    exports: bindings::Parser,
    session: Option<ResourceAny>,
}

impl Instance {
    pub(crate) fn describe(&mut self, limits: &RunLimits) -> Result<host::Descriptor, Fault> {
        let interface = self.exports.tenon_extension_output_parser();
        let (descriptor, _) =
            self.guest.run(limits.setup_cpu, |store| interface.call_describe(store));
        descriptor.map(descriptor_from)
    }

    pub(crate) fn constraint(
        &mut self,
        model: &host::ModelInfo,
        request: &host::RequestInfo,
        limits: &RunLimits,
    ) -> Result<Result<Option<host::Grammar>, String>, Fault> {
        let model = wit::ModelInfo {
            name: model.name.clone(),
            template: model.template.clone(),
            added_tokens: model.added_tokens.clone(),
        };
        let request = request_to(request);
        let interface = self.exports.tenon_extension_output_parser();
        let (answer, _) = self
            .guest
            .run(limits.setup_cpu, |store| interface.call_constraint(store, &model, &request));
        answer.map(|answer| answer.map(|grammar| grammar.map(grammar_from)))
    }

    /// Makes the session. Returns the CPU that it took.
    pub(crate) fn open(
        &mut self,
        request: &host::RequestInfo,
        limits: &RunLimits,
    ) -> Result<Duration, Fault> {
        let request = request_to(request);
        let interface = self.exports.tenon_extension_output_parser();
        let (session, charged) = self
            .guest
            .run(limits.setup_cpu, |store| interface.session().call_constructor(store, &request));
        self.session = Some(session?);
        Ok(charged)
    }

    pub(crate) fn push(
        &mut self,
        text: &str,
        specials: &[host::Special],
        skipped: u32,
        cpu: Duration,
    ) -> (Result<host::Reply, Fault>, Duration) {
        let specials: Vec<wit::Special> = specials
            .iter()
            .map(|special| wit::Special { start: special.start, len: special.len, id: special.id })
            .collect();
        self.reply(cpu, |session, handle, store| {
            session.call_push(store, handle, text, &specials, skipped)
        })
    }

    pub(crate) fn finish(
        &mut self,
        reason: host::ParseFinish,
        cpu: Duration,
    ) -> (Result<host::Reply, Fault>, Duration) {
        let reason = match reason {
            host::ParseFinish::Stop => wit::FinishReason::Stop,
            host::ParseFinish::Length => wit::FinishReason::Length,
        };
        self.reply(cpu, |session, handle, store| session.call_finish(store, handle, reason))
    }

    fn reply(
        &mut self,
        cpu: Duration,
        call: impl FnOnce(
            wit::GuestSession<'_>,
            ResourceAny,
            &mut Store<StoreState>,
        ) -> wasmtime::Result<wit::Reply>,
    ) -> (Result<host::Reply, Fault>, Duration) {
        let Some(handle) = self.session else {
            return (Err(Fault::bad_output("no session is open")), Duration::ZERO);
        };
        let session = self.exports.tenon_extension_output_parser().session();
        let (reply, charged) = self.guest.run(cpu, |store| call(session, handle, store));
        (reply.map(reply_from), charged)
    }
}

fn channel_from(channel: wit::Channel) -> host::Channel {
    match channel {
        wit::Channel::Content => host::Channel::Content,
        wit::Channel::Reasoning => host::Channel::Reasoning,
        wit::Channel::Tools => host::Channel::Tools,
    }
}

fn channel_to(channel: host::Channel) -> wit::Channel {
    match channel {
        host::Channel::Content => wit::Channel::Content,
        host::Channel::Reasoning => wit::Channel::Reasoning,
        host::Channel::Tools => wit::Channel::Tools,
    }
}

fn request_to(request: &host::RequestInfo) -> wit::RequestInfo {
    let (tool_choice, tool_name) = match &request.tool_choice {
        host::ToolChoice::None => (wit::ToolChoice::None, None),
        host::ToolChoice::Auto => (wit::ToolChoice::Auto, None),
        host::ToolChoice::Required => (wit::ToolChoice::Required, None),
        host::ToolChoice::Named(name) => (wit::ToolChoice::Named, Some(name.clone())),
    };
    wit::RequestInfo {
        tools: request.tools.clone(),
        tool_choice,
        tool_name,
        parallel: request.parallel,
        strict: request.strict,
        reasoning_style: request.reasoning_style.clone(),
        start: channel_to(request.start),
        strict_markers: request.strict_markers,
    }
}

fn reply_from(reply: wit::Reply) -> host::Reply {
    host::Reply {
        events: reply.events.into_iter().map(event_from).collect(),
        held: reply.held,
        watch: reply.watch.map(channel_from),
    }
}

fn event_from(event: wit::Event) -> host::ParseEvent {
    match event {
        wit::Event::Content(text) => host::ParseEvent::Content(text),
        wit::Event::Reasoning(text) => host::ParseEvent::Reasoning(text),
        wit::Event::ToolBegin(wit::ToolBegin { index, name, id }) => {
            host::ParseEvent::ToolBegin { index, name, id }
        }
        wit::Event::ToolArgs(wit::ToolArgs { index, text }) => {
            host::ParseEvent::ToolArgs { index, text }
        }
        wit::Event::ToolEnd(index) => host::ParseEvent::ToolEnd { index },
        wit::Event::Note(text) => host::ParseEvent::Note(text),
    }
}

fn grammar_from(grammar: wit::Grammar) -> host::Grammar {
    host::Grammar {
        dialect: grammar.dialect,
        lark: grammar.lark,
        starts: match grammar.starts {
            wit::Starts::AtOnce => host::Starts::AtOnce,
            wit::Starts::After(texts) => host::Starts::After(texts),
        },
    }
}

fn descriptor_from(descriptor: wit::Descriptor) -> host::Descriptor {
    host::Descriptor {
        name: descriptor.name,
        version: descriptor.version,
        summary: descriptor.summary,
        aliases: descriptor.aliases,
        tools: descriptor.tools,
        reasoning_styles: descriptor
            .reasoning_styles
            .into_iter()
            .map(|style| host::ReasoningStyle {
                name: style.name,
                aliases: style.aliases,
                openers: style.openers,
                closers: style.closers,
                ends_at_call: style.ends_at_call,
            })
            .collect(),
        added_tokens: descriptor.added_tokens,
        openers: descriptor.openers,
        triggers: descriptor
            .triggers
            .into_iter()
            .map(|trigger| host::Trigger {
                channel: channel_from(trigger.channel),
                texts: trigger.texts,
            })
            .collect(),
        evidence: descriptor
            .evidence
            .into_iter()
            .map(|rule| host::Evidence {
                template_has: rule.template_has,
                template_lacks: rule.template_lacks,
                vocabulary_has: rule.vocabulary_has,
            })
            .collect(),
    }
}
