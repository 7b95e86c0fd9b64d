//! `POST /v1/extensions/{name}/parse`: a text in pieces through a fresh session of a parser, the
//! events of every piece back. What an author sees while writing one.
//!
//! Body: `text`; `cuts`, ascending byte offsets where pieces end, or `chunk`, characters per piece
//! (neither: one piece); `tools`, `tool_choice`, `reasoning_style`, `start` (`content`,
//! `reasoning`), `finish` (`stop`, `length`), `strict_markers`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::Serialize;
use serde_json::Value;
use tenon_chat::choose::find_style;
use tenon_chat::fold::ChatMessage;
use tenon_chat::parser::{
    Channel, ParseEvent, ParseFinish, ParserFactory, ParserFault, Reply, RequestInfo,
};

use crate::body::read_json;
use crate::chat::on_blocking_thread;
use crate::error::ApiError;
use crate::path_name::PathName;
use crate::state::ServerState;
use crate::wire::fields::Fields;
use crate::wire::tools::Tools;

/// Bytes of `text`; the session's own limits count too.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Pieces of one run; each is an entry of the answer.
const MAX_PIECES: usize = 65_536;

/// The answer.
#[derive(Serialize)]
struct Parsed {
    digest: String,
    /// In order; the last one is what `finish` said and has no text.
    pieces: Vec<Piece>,
    /// All events, folded into a message.
    message: ChatMessage,
    /// `{"kind", "message"}` if the parser failed; pieces end there.
    fault: Option<Fault>,
}

#[derive(Serialize)]
struct Piece {
    text: String,
    events: Vec<ParseEvent>,
    held: u32,
    watch: Option<Channel>,
}

#[derive(Serialize)]
struct Fault {
    kind: &'static str,
    message: String,
}

/// The route.
pub(crate) async fn parse(
    State(state): State<Arc<ServerState>>,
    PathName(name): PathName,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body = read_json(request, state.config.max_body_bytes).await?;
    let extensions = state.extensions.clone();
    on_blocking_thread(move || {
        let mut fields = Fields::parse(&body)?;
        let factory = extensions.resolve(&name)?;
        let run = Run::take(&mut fields, factory.as_ref())?;
        let parsed = run.through(factory.as_ref());
        let value = serde_json::to_value(parsed)
            .map_err(|e| ApiError::Internal(format!("the events cannot be written: {e}")))?;
        Ok(Json(value))
    })
    .await
}

/// A checked body.
struct Run {
    pieces: Vec<String>,
    info: RequestInfo,
    finish: ParseFinish,
}

impl Run {
    fn take(fields: &mut Fields, factory: &dyn ParserFactory) -> Result<Run, ApiError> {
        let Some(text) = fields.take::<String>("text")? else {
            return Err(ApiError::invalid("text", "`text` is missing; send what the model wrote"));
        };
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("`text` has {} bytes; at most {MAX_TEXT_BYTES}", text.len());
            return Err(ApiError::invalid("text", message));
        }
        let tools = Tools::take(fields)?;
        let descriptor = factory.descriptor();
        let style = match fields.take::<String>("reasoning_style")? {
            Some(name) if name == "none" => None,
            Some(name) => Some(find_style(descriptor, &name).ok_or_else(|| {
                let styles: Vec<_> =
                    descriptor.reasoning_styles.iter().map(|s| s.name.as_str()).collect();
                let message =
                    format!("unknown reasoning style `{name}` (known: {})", styles.join(", "));
                ApiError::invalid("reasoning_style", message)
            })?),
            None => descriptor.reasoning_styles.first(),
        };
        let info = RequestInfo {
            tools: Value::Array(tools.list).to_string(),
            tool_choice: tools.choice,
            parallel: true,
            strict: false,
            reasoning_style: style.map(|style| style.name.clone()),
            start: fields.take::<Channel>("start")?.unwrap_or(Channel::Content),
            strict_markers: fields.flag("strict_markers", false)?,
        };
        let finish = fields.take::<ParseFinish>("finish")?.unwrap_or(ParseFinish::Stop);
        Ok(Run { pieces: pieces(&text, fields)?, info, finish })
    }

    fn through(self, factory: &dyn ParserFactory) -> Parsed {
        let mut parsed = Parsed {
            digest: factory.digest().to_owned(),
            pieces: Vec::with_capacity(self.pieces.len() + 1),
            message: ChatMessage::default(),
            fault: None,
        };
        if let Err(fault) = self.drive(factory, &mut parsed) {
            parsed.fault = Some(Fault { kind: fault.kind.as_str(), message: fault.message });
        }
        parsed
    }

    fn drive(self, factory: &dyn ParserFactory, out: &mut Parsed) -> Result<(), ParserFault> {
        let mut session = factory.open(&self.info)?;
        let mut add = |text: String, reply: Reply| {
            reply.events.iter().for_each(|event| out.message.add_parsed(event));
            let Reply { events, held, watch } = reply;
            out.pieces.push(Piece { text, events, held, watch });
        };
        for text in self.pieces {
            let reply = session.push(&text, &[], 0)?;
            add(text, reply);
        }
        add(String::new(), session.finish(self.finish)?);
        Ok(())
    }
}

/// The text in pieces that are never empty.
fn pieces(text: &str, fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let cuts = fields.take::<Vec<usize>>("cuts")?;
    let chunk = fields.take::<usize>("chunk")?;
    let param = if cuts.is_some() { "cuts" } else { "chunk" };
    let cuts = match (cuts, chunk) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("chunk", "`chunk` and `cuts` exclude each other"));
        }
        (Some(cuts), None) => cuts,
        (None, Some(0)) => {
            return Err(ApiError::invalid("chunk", "`chunk` is `0`; it must be at least 1"));
        }
        (None, Some(size)) => text.char_indices().map(|(at, _)| at).step_by(size).skip(1).collect(),
        (None, None) => Vec::new(),
    };
    if cuts.len() >= MAX_PIECES {
        let message = format!("`{param}` cuts the text into more than {MAX_PIECES} pieces");
        return Err(ApiError::invalid(param, message));
    }
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let mut start = 0;
    for (i, &cut) in cuts.iter().enumerate() {
        if cut < start || !text.is_char_boundary(cut) {
            let param = format!("cuts[{i}]");
            let message = format!(
                "`{param}` is `{cut}`; cuts ascend, lie inside of the text and between characters"
            );
            return Err(ApiError::invalid(param, message));
        }
        pieces.push(text[start..cut].to_owned());
        start = cut;
    }
    pieces.push(text[start..].to_owned());
    pieces.retain(|piece| !piece.is_empty());
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn cut(text: &str, body: Value) -> Result<Vec<String>, ApiError> {
        pieces(text, &mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn cuts() {
        assert_eq!(cut("añb", json!({})).unwrap(), ["añb"]);
        assert_eq!(cut("añb", json!({"chunk": 1})).unwrap(), ["a", "ñ", "b"]);
        assert_eq!(cut("añb", json!({"chunk": 2})).unwrap(), ["añ", "b"]);
        assert_eq!(cut("añb", json!({"cuts": [1, 3]})).unwrap(), ["a", "ñ", "b"]);
        assert_eq!(cut("ab", json!({"cuts": [1, 1, 2]})).unwrap(), ["a", "b"]);
        assert!(cut("", json!({"chunk": 3})).unwrap().is_empty());
        for bad in [
            json!({"cuts": [2]}),
            json!({"cuts": [3, 1]}),
            json!({"cuts": [9]}),
            json!({"chunk": 0}),
            json!({"cuts": [1], "chunk": 1}),
        ] {
            assert!(cut("añb", bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn too_many_pieces_name_the_field_that_was_sent() {
        let text = "a".repeat(MAX_PIECES + 1);
        let all: Vec<usize> = (1..=MAX_PIECES).collect();
        for (field, body) in [("chunk", json!({"chunk": 1})), ("cuts", json!({"cuts": all}))] {
            let error = cut(&text, body).unwrap_err();
            assert_eq!(error.body()["error"]["param"], field);
        }
    }
}
