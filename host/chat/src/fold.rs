//! Events folded into one message. The JSON body is a fold of the very events that SSE streams, so
//! both say the same; tests and the playground fold a parser's events with it too.

use serde::Serialize;

use crate::parser::ParseEvent;
use crate::stream::StreamEvent;

/// One assistant message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ChatMessage {
    /// None when nothing came; never empty.
    pub reasoning: Option<String>,
    /// None when nothing came; never empty.
    pub content: Option<String>,
    /// By index.
    pub tool_calls: Vec<ToolCall>,
}

/// A call in a message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ToolCall {
    /// `call_…`, or the format's own; empty in a fold of [`ParseEvent`]s without one.
    pub id: String,
    /// Function name.
    pub name: String,
    /// JSON text, as far as it came.
    pub arguments: String,
}

impl ChatMessage {
    /// Adds an event of a stream; tokens and the end add nothing.
    pub fn add(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Content(text) => extend(&mut self.content, text),
            StreamEvent::Reasoning(text) => extend(&mut self.reasoning, text),
            StreamEvent::ToolBegin { id, name, .. } => self.begin(id, name),
            StreamEvent::ToolArgs { index, text } => self.add_args(*index, text),
            StreamEvent::Prompt(_)
            | StreamEvent::Token(_)
            | StreamEvent::TokenId(_)
            | StreamEvent::Finished(_) => {}
        }
    }

    /// Adds a parser's event; notes and ends of calls add nothing.
    pub fn add_parsed(&mut self, event: &ParseEvent) {
        match event {
            ParseEvent::Content(text) => extend(&mut self.content, text),
            ParseEvent::Reasoning(text) => extend(&mut self.reasoning, text),
            ParseEvent::ToolBegin { id, name, .. } => {
                self.begin(id.as_deref().unwrap_or_default(), name)
            }
            ParseEvent::ToolArgs { index, text } => self.add_args(*index, text),
            ParseEvent::ToolEnd { .. } | ParseEvent::Note(_) => {}
        }
    }

    fn begin(&mut self, id: &str, name: &str) {
        let (id, name) = (id.to_owned(), name.to_owned());
        self.tool_calls.push(ToolCall { id, name, arguments: String::new() });
    }

    /// The driver lets no arguments of an unknown call pass; here they add nothing.
    fn add_args(&mut self, index: u32, text: &str) {
        if let Some(call) = self.tool_calls.get_mut(index as usize) {
            call.arguments.push_str(text);
        }
    }
}

impl<'a> FromIterator<&'a StreamEvent> for ChatMessage {
    fn from_iter<I: IntoIterator<Item = &'a StreamEvent>>(events: I) -> ChatMessage {
        let mut message = ChatMessage::default();
        events.into_iter().for_each(|event| message.add(event));
        message
    }
}

impl<'a> FromIterator<&'a ParseEvent> for ChatMessage {
    fn from_iter<I: IntoIterator<Item = &'a ParseEvent>>(events: I) -> ChatMessage {
        let mut message = ChatMessage::default();
        events.into_iter().for_each(|event| message.add_parsed(event));
        message
    }
}

fn extend(part: &mut Option<String>, text: &str) {
    if !text.is_empty() {
        part.get_or_insert_default().push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_by_channel_and_call() {
        let args = |index, text: &str| ParseEvent::ToolArgs { index, text: text.into() };
        let begin = |index, name: &str, id: Option<&str>| ParseEvent::ToolBegin {
            index,
            name: name.into(),
            id: id.map(str::to_owned),
        };
        let events = [
            ParseEvent::Reasoning("a".into()),
            ParseEvent::Note("not for the client".into()),
            begin(0, "f", Some("x1")),
            args(0, "{\"k\""),
            args(0, ": 1}"),
            ParseEvent::ToolEnd { index: 0 },
            ParseEvent::Reasoning("b".into()),
            ParseEvent::Content(String::new()),
            begin(1, "g", None),
            args(7, "lost"),
        ];
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let expected = ChatMessage {
            reasoning: Some("ab".into()),
            content: None,
            tool_calls: vec![call("x1", "f", "{\"k\": 1}"), call("", "g", "")],
        };
        assert_eq!(events.iter().collect::<ChatMessage>(), expected);
        assert_eq!(ChatMessage::from_iter(&[] as &[StreamEvent]), ChatMessage::default());
    }
}
