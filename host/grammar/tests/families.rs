//! The grammar that each family gives for its calls, enforced: what its template writes passes,
//! what passes is read by the same parser, and nothing that was not asked for does.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Random, added, allowed, bytes, random_output, started};
use tenon_formats::Entry;
use tenon_grammar::{Constraint, GrammarSpec, Starts};
use tenon_guest::harness::{Delivery, Stream};
use tenon_guest::{
    Channel, FinishReason, ModelInfo, RequestInfo, Starts as GuestStarts, ToolChoice,
};

/// Formats that hold one call a message.
const ONE_CALL: &[&str] = &["openai", "gigachat3"];

fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city"],
        "additionalProperties": false, "x-guidance": tenon_grammar::json_options()});
    let none = json!({"type": "object", "additionalProperties": false, "properties": {}});
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": city}},
        {"type": "function", "function": {"name": "now", "parameters": none}},
    ])
}

fn request(choice: ToolChoice, parallel: bool) -> RequestInfo {
    RequestInfo {
        tools: tools().to_string(),
        tool_choice: choice,
        tool_name: (choice == ToolChoice::Named).then(|| "now".into()),
        parallel,
        strict: true,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    }
}

/// A family with the tokens of its vocabulary.
struct Family {
    entry: &'static Entry,
    tokens: Vec<String>,
}

/// Each family that gives a grammar, with its markers as tokens and as texts.
fn families() -> impl Iterator<Item = Family> {
    let each = tenon_formats::all().filter(|entry| entry.render.is_some()).flat_map(|entry| {
        let tokens = (entry.describe)().added_tokens;
        [Family { entry, tokens }, Family { entry, tokens: Vec::new() }]
    });
    each.filter(|family| {
        let request = request(ToolChoice::Required, true);
        (family.entry.constraint)(&family.model(), &request).unwrap().is_some()
    })
}

impl Family {
    fn model(&self) -> ModelInfo {
        ModelInfo { name: "m".into(), template: None, added_tokens: self.tokens.clone() }
    }

    fn constraint(&self, request: &RequestInfo) -> Constraint {
        let grammar = (self.entry.constraint)(&self.model(), request).unwrap().unwrap();
        assert!(matches!(grammar.starts, GuestStarts::AtOnce), "{}", self.entry.name);
        started(&GrammarSpec::Lark(grammar.lark), &Starts::AtOnce)
    }

    /// What the template writes, without what ends the turn; strings as JSON has them.
    fn render(&self, names: &[&str]) -> String {
        let call = |name: &&str| {
            let arguments =
                if *name == "now" { json!({}) } else { json!({"city": "Rom", "days": 2}) };
            (name.to_string(), arguments)
        };
        let calls: Vec<_> = names.iter().map(call).collect();
        let mut text = self.entry.render.unwrap()(&calls).replace('\'', "\"");
        if self.entry.name == "lfm2" {
            // Its Python strings have no escapes: calls are enforced as JSON, which it reads too.
            let one = |(name, arguments): &(String, Value)| {
                format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
            };
            let calls: Vec<_> = calls.iter().map(one).collect();
            text = format!("<|tool_call_start|>[{}]<|tool_call_end|>", calls.join(", "));
        }
        let text = match self.entry.name {
            "xlam" => text.trim_start_matches("```json\n").trim_end_matches("\n```"),
            "gigachat3" => text.trim_end_matches("</s>"),
            "muse" => text.trim_end_matches("<|eom|>"),
            "openai" => text.trim_end_matches("<|call|>"),
            _ => text.trim_end(),
        };
        text.into()
    }

    /// How much of the text is an output; none when all of it is.
    fn stops(&self, constraint: &Constraint, text: &str) -> Option<usize> {
        let mut constraint = constraint.clone();
        let mut at = 0;
        while at < text.len() {
            let here = self.tokens.iter().filter(|token| text[at..].starts_with(token.as_str()));
            let (token, len) = match here.max_by_key(|token| token.len()) {
                Some(token) => (added(token), token.len()),
                None => (u32::from(text.as_bytes()[at]), 1),
            };
            if constraint.is_complete() || !allowed(&mut constraint).contains(&token) {
                return Some(at);
            }
            constraint.commit(token).unwrap();
            at += len;
            while !text.is_char_boundary(at) {
                constraint.commit(text.as_bytes()[at].into()).unwrap();
                at += 1;
            }
        }
        let may_end =
            constraint.is_complete() || allowed(&mut constraint).contains(&added("<|end|>"));
        (!may_end).then_some(text.len())
    }

    fn check(&self, constraint: &Constraint, names: &[&str], want: bool) -> Result<(), String> {
        let text = self.render(names);
        let stops = self.stops(constraint, &text);
        if stops.is_none() == want {
            return Ok(());
        }
        let rest = stops.map(|at| &text[at..]);
        Err(format!("{} {:?}: {text:?} stops at {rest:?}", self.entry.name, self.tokens))
    }

    fn check_all(&self) -> Result<(), String> {
        let many = self.constraint(&request(ToolChoice::Required, true));
        let is_one = ONE_CALL.contains(&self.entry.name);
        self.check(&many, &["get_weather"], true)?;
        self.check(&many, &["now"], true)?;
        self.check(&many, &["now", "get_weather"], !is_one)?;
        self.check(&many, &["other"], false)?;
        let one = self.constraint(&request(ToolChoice::Required, false));
        self.check(&one, &["get_weather"], true)?;
        self.check(&one, &["now", "get_weather"], false)?;
        let named = self.constraint(&request(ToolChoice::Named, true));
        self.check(&named, &["now"], true)?;
        self.check(&named, &["get_weather"], false)
    }

    /// Whatever passes is read as calls of declared tools and nothing else.
    fn read_random(&self, num_read: &mut usize) -> Result<(), String> {
        let request = request(ToolChoice::Required, true);
        let constraint = self.constraint(&request);
        for seed in 0..12 {
            let (tokens, is_ended) =
                random_output(&mut constraint.clone(), &mut Random(seed), 1500);
            let text = bytes(&tokens);
            let (true, Ok(text)) = (is_ended, String::from_utf8(text)) else { continue };
            let stream = Stream::of(&text);
            let style = (self.entry.describe)().reasoning_styles.first().map(|s| s.name.clone());
            let request = RequestInfo { reasoning_style: style, ..request.clone() };
            let read =
                (self.entry.run)(&request, &stream, &[], FinishReason::Stop, Delivery::Pushed)
                    .map_err(|error| format!("{}: {text:?}: {error:?}", self.entry.name))?;
            let is_right = |name: &str, arguments: &str| {
                let arguments = serde_json::from_str::<Value>(arguments);
                match (name, arguments) {
                    ("now", Ok(value)) => value == json!({}),
                    ("get_weather", Ok(value)) => value["city"].is_string(),
                    _ => false,
                }
            };
            let all = read.calls.iter().all(|call| is_right(&call.name, &call.arguments));
            if read.calls.is_empty() || !all || read.content.is_some() {
                return Err(format!("{}: {text:?}: {read:?}", self.entry.name));
            }
            *num_read += read.calls.len();
        }
        Ok(())
    }
}

#[test]
fn what_templates_write_passes_and_nothing_else() {
    let wrong: Vec<_> = families().filter_map(|family| family.check_all().err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn random_calls_are_read() {
    let mut num_read = 0;
    let plain = families().filter(|family| family.tokens.is_empty());
    let wrong: Vec<_> =
        plain.filter_map(|family| family.read_random(&mut num_read).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(num_read > 20, "{num_read}");
}
