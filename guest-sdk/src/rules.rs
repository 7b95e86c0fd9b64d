//! What counts in one stream: the marker sets of each state, made once when the stream opens from
//! the family's declaration and the request. Only the engine uses it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::markers::{Kind, MarkerSet};
use crate::{
    AtCall, CallFormat, CallReader, Family, Frame, Opened, Place, RequestInfo, Section, Style,
    ToolChoice, is_blank,
};

/// Fixed when a stream opens.
pub(crate) struct Rules {
    pub request: RequestInfo,
    pub calls: Option<&'static CallFormat>,
    /// Calls that end reasoning and are content.
    pub quoted: Option<&'static CallFormat>,
    /// What a call inside open reasoning is.
    pub at_call: AtCall,
    /// Reasoning is marked by phrases of ordinary text.
    pub has_phrases: bool,
    /// The style's openers that count anywhere.
    anywhere: &'static [&'static str],
    frames: &'static [Frame],
    pub in_content: MarkerSet,
    /// In content inside of a section.
    pub in_section: MarkerSet,
    pub in_reasoning: MarkerSet,
    /// Behind a section's opener.
    pub in_opening: MarkerSet,
    pub behind_call: MarkerSet,
    /// Behind a frame's closer: what keeps it one.
    pub behind_frame: MarkerSet,
}

impl Rules {
    /// The rules, and the reasoning style that was asked for.
    pub fn new(family: &'static Family, request: RequestInfo) -> (Self, Option<&'static Style>) {
        let has_tools = has_tools(&request);
        let calls = family.calls.filter(|_| has_tools);
        let quoted = family.quoted_calls.filter(|_| has_tools);
        let wanted = request.reasoning_style.as_deref();
        let style =
            wanted.and_then(|name| family.reasoning.iter().find(|style| style.is_called(name)));
        let at_call = style.map_or(AtCall::Quoted, |style| style.at_call);
        let mut sets = Sets::default();
        sets.add_calls(calls);
        sets.add_inside(calls.or(quoted).filter(|_| at_call != AtCall::Quoted));
        if let Some(style) = style.filter(|style| !style.is_content) {
            sets.add_style(style);
        }
        sets.add_frames(family, at_call);
        let rules = Rules {
            in_content: MarkerSet::new(&sets.in_content),
            in_section: MarkerSet::new(&sets.in_section),
            in_reasoning: MarkerSet::new(&sets.in_reasoning),
            in_opening: MarkerSet::new(&sets.in_opening),
            behind_call: MarkerSet::new(&sets.behind_call),
            behind_frame: MarkerSet::new(&sets.behind_frame),
            frames: family.frames,
            request,
            calls,
            quoted,
            at_call,
            has_phrases: style.is_some_and(|style| style.is_phrase),
            anywhere: style.map_or(&[], |style| style.anywhere),
        };
        (rules, style)
    }

    pub fn place(&self) -> Place {
        self.calls.map_or(Place::Anywhere, |calls| calls.place)
    }

    /// Does this reasoning opener count in the middle of content?
    pub fn counts_anywhere(&self, opener: &str) -> bool {
        self.anywhere.contains(&opener)
    }

    /// Does this marker open a frame that ends? A label, such as a speaker's name, does not.
    pub fn opens_frame(&self, marker: &str) -> bool {
        self.frames.iter().any(|frame| frame.opener == marker && !frame.closer.is_empty())
    }

    /// The section that a marker opens or closes.
    pub fn section(&self, marker: &str) -> Option<&'static Section> {
        let sections = self.calls.map_or(&[][..], |calls| calls.sections);
        sections.iter().find(|section| section.opener == marker || section.closer == marker)
    }

    pub fn reader(
        &self,
        marker: &'static str,
        suffix: &str,
        in_section: bool,
    ) -> Option<Box<dyn CallReader>> {
        let calls = self.calls.or(self.quoted)?;
        Some((calls.reader)(&Opened { marker, request: &self.request, suffix, in_section }))
    }
}

/// A set's parts.
type Parts = Vec<(Kind, &'static [&'static str])>;

#[derive(Default)]
struct Sets {
    in_content: Parts,
    in_section: Parts,
    in_reasoning: Parts,
    in_opening: Parts,
    behind_call: Parts,
    behind_frame: Parts,
}

impl Sets {
    fn add_calls(&mut self, calls: Option<&'static CallFormat>) {
        let Some(calls) = calls else { return };
        let openers = (Kind::CallOpener, calls.openers);
        for section in calls.sections {
            let opener = (Kind::SectionOpener, core::slice::from_ref(&section.opener));
            let closer = (Kind::SectionCloser, core::slice::from_ref(&section.closer));
            self.in_content.extend([opener, closer]);
            self.behind_frame.push(opener);
            self.in_section.extend([opener, closer]);
            self.in_opening.push(closer);
            self.behind_call.extend([opener, closer]);
        }
        if calls.has_bare_openers() {
            self.in_content.push(openers);
            self.behind_frame.push(openers);
        }
        self.in_section.push(openers);
        self.in_opening.extend([openers, (Kind::CallStart, calls.again)]);
        self.in_content.push((Kind::CallStart, calls.bare));
        self.behind_call.extend([
            (Kind::CallCloser, calls.closers),
            openers,
            (Kind::CallStart, calls.again),
        ]);
    }

    /// Calls that count inside reasoning.
    fn add_inside(&mut self, calls: Option<&'static CallFormat>) {
        let Some(calls) = calls else { return };
        for section in calls.sections {
            self.in_reasoning.push((Kind::SectionOpener, core::slice::from_ref(&section.opener)));
        }
        if calls.has_bare_openers() {
            self.in_reasoning.push((Kind::CallOpener, calls.openers));
        }
    }

    fn add_style(&mut self, style: &'static Style) {
        let begin =
            [(Kind::ReasoningOpener, style.openers), (Kind::ReasoningOpener, style.anywhere)];
        let end = (Kind::ReasoningCloser, style.closers);
        for set in [&mut self.in_content, &mut self.in_section, &mut self.in_reasoning] {
            set.extend(begin);
            set.push(end);
        }
        self.behind_call.extend(begin);
    }

    fn add_frames(&mut self, family: &'static Family, at_call: AtCall) {
        for frame in family.frames {
            let opener = core::slice::from_ref(&frame.opener);
            let closer = core::slice::from_ref(&frame.closer);
            if frame.is_control {
                self.in_content.extend([(Kind::Control, opener), (Kind::Control, closer)]);
                if at_call == AtCall::Ends {
                    self.in_reasoning.push((Kind::Control, opener));
                }
            } else {
                let parts = [(Kind::FrameOpener, opener), (Kind::FrameCloser, closer)];
                self.in_content.extend(parts);
                self.behind_frame.push((Kind::FrameCloser, closer));
            }
        }
    }
}

/// May there be calls at all (U18)? Not without tools: `[]`, blanks aside, or nothing.
pub(crate) fn has_tools(request: &RequestInfo) -> bool {
    let is_nothing = |byte| is_blank(byte) || matches!(byte, b'[' | b']');
    request.tool_choice != ToolChoice::None && !request.tools.bytes().all(is_nothing)
}
