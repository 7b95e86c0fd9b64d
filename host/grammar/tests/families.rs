//! The grammar that each family gives for its calls, enforced: what its template writes passes,
//! what passes is read by the same parser as calls that fit the tools, and nothing that was not
//! asked for does.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Random, added, allowed, bytes, random_output, started, suffixed};
use tenon_formats::Entry;
use tenon_grammar::{Constraint, GrammarSpec, Starts, Trigger, check_schema, json_options};
use tenon_guest::harness::{Delivery, Folded, Stream};
use tenon_guest::{
    Channel, FinishReason, ModelInfo, RequestInfo, Starts as GuestStarts, ToolChoice,
};

/// Formats that hold one call a message.
const ONE_CALL: &[&str] = &["openai", "gigachat3"];
/// Families that have calls and no grammar for them.
const WITHOUT: &[&str] = &[];
/// Nothing in front of a call tells it from an answer: they enforce only calls that have to come.
const ONLY_FORCED: &[&str] = &["functionary_v3", "inkling"];

/// As a client sends them.
fn tools() -> Value {
    let city = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 4},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city"],
        "additionalProperties": false});
    let none = json!({"type": "object", "additionalProperties": false, "properties": {}});
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": city}},
        {"type": "function", "function": {"name": "now", "parameters": none}},
    ])
}

/// A tool with a value of every kind.
fn rich_tools() -> Value {
    let search = json!({"type": "object", "properties": {
        "code": {"type": "string", "pattern": "^[a-c]{1,3}$"},
        "unit": {"type": "string", "enum": ["km", "mi"]},
        "size": {"type": "number", "minimum": 0, "maximum": 9},
        "open": {"type": ["boolean", "null"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "null"}]},
        "id": {"type": ["string", "integer"], "maxLength": 3, "minimum": 10, "maximum": 99},
        "flag": {"type": ["string", "boolean"], "maxLength": 3},
        "place": {"$ref": "#/$defs/place"},
        "stops": {"type": "array", "items": {"enum": ["a", "b"]}}},
        "required": ["code", "unit"], "additionalProperties": false,
        "$defs": {"place": {"type": "object", "properties": {
            "x": {"type": "integer", "minimum": -9, "maximum": 9},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 3}}},
            "required": ["x"], "additionalProperties": false}}});
    json!([{"type": "function", "function": {"name": "search", "parameters": search}}])
}

fn rich_arguments() -> Value {
    json!({"code": "abc", "unit": "mi", "size": 2.5, "open": true, "note": "a <b>", "id": 42,
        "flag": true, "place": {"x": -3, "names": ["é", "b"]}, "stops": ["b", "a"]})
}

/// As the server hands tools on.
fn enforceable(tools: &Value) -> Value {
    let mut tools = tools.clone();
    for tool in tools.as_array_mut().unwrap() {
        let mut schema = check_schema(&tool["function"]["parameters"]).unwrap();
        schema["x-guidance"] = json_options();
        tool["function"]["parameters"] = schema;
    }
    tools
}

fn request(tools: &Value, choice: ToolChoice, parallel: bool) -> RequestInfo {
    RequestInfo {
        tools: tools.to_string(),
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

/// Each family that has calls, with its markers as tokens and as texts.
fn families() -> impl Iterator<Item = Family> {
    let is_with = |entry: &&Entry| entry.render.is_some() && !WITHOUT.contains(&entry.name);
    tenon_formats::all().filter(is_with).flat_map(|entry| {
        let tokens = (entry.describe)().added_tokens;
        let mut all = vec![tokens.clone(), Vec::new()];
        if entry.name == "hy_v3" {
            all.push(suffixed(&tokens));
        }
        all.into_iter().map(move |tokens| Family { entry, tokens })
    })
}

/// What is wrong with any of them.
fn check(check: impl Fn(&Family) -> Result<(), String>) {
    let name = |family: &Family| {
        let with = if family.tokens.is_empty() { "texts" } else { "tokens" };
        format!("{} with {with}", family.entry.name)
    };
    let checked = families().filter_map(|family| {
        println!("{}", name(&family));
        Some(format!("{}: {}", name(&family), check(&family).err()?))
    });
    let wrong: Vec<_> = checked.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

impl Family {
    fn constraint(&self, tools: &Value, choice: ToolChoice, parallel: bool) -> Constraint {
        let model =
            ModelInfo { name: "m".into(), template: None, added_tokens: self.tokens.clone() };
        let request = request(&enforceable(tools), choice, parallel);
        let grammar = (self.entry.constraint)(&model, &request).unwrap().unwrap();
        let starts = match grammar.starts {
            GuestStarts::AtOnce => Starts::AtOnce,
            GuestStarts::After(texts) => {
                assert_eq!(choice, ToolChoice::Auto, "{}", self.entry.name);
                let triggers = texts.into_iter().map(Trigger::text).collect();
                Starts::After { triggers, never: vec![], must: false }
            }
        };
        started(&GrammarSpec::Lark(grammar.lark), &starts)
    }

    /// What the template writes, without what ends the turn; strings as JSON has them.
    fn render(&self, calls: &[(&str, Value)]) -> String {
        let calls: Vec<_> =
            calls.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let mut text = self.entry.render.unwrap()(&calls);
        if self.entry.strings_are_quoted {
            text = text.replace('\'', "\"");
        }
        if self.entry.name == "lfm2" {
            // Its Python strings have no escapes: calls are enforced as JSON, which it reads too.
            let one = |(name, arguments): &(String, Value)| {
                format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
            };
            let calls: Vec<_> = calls.iter().map(one).collect();
            text = format!("<|tool_call_start|>[{}]<|tool_call_end|>", calls.join(", "));
        }
        if self.entry.name == "hy_v3" && !self.tokens.iter().any(|t| t.contains(":opensource")) {
            text = text.replace(":opensource", "");
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

    fn expect(&self, constraint: &Constraint, text: &str, want: bool) -> Result<(), String> {
        let stops = self.stops(constraint, text);
        if stops.is_none() == want {
            return Ok(());
        }
        Err(format!("{text:?} stops at {:?}", stops.map(|at| &text[at..])))
    }

    fn named(&self, names: &[&str]) -> String {
        let arguments = |name: &str| match name {
            "now" => json!({}),
            _ => json!({"city": "Rom", "days": 2}),
        };
        let calls: Vec<_> = names.iter().map(|name| (*name, arguments(name))).collect();
        self.render(&calls)
    }

    fn check_all(&self) -> Result<(), String> {
        let check = |constraint: &Constraint, names: &[&str], want| {
            self.expect(constraint, &self.named(names), want)
        };
        let many = self.constraint(&tools(), ToolChoice::Required, true);
        let is_one = ONE_CALL.contains(&self.entry.name);
        check(&many, &["get_weather"], true)?;
        check(&many, &["now"], true)?;
        check(&many, &["now", "get_weather"], !is_one)?;
        check(&many, &["other"], false)?;
        self.expect(&many, "Hello there.", false)?;
        let one = self.constraint(&tools(), ToolChoice::Required, false);
        check(&one, &["get_weather"], true)?;
        check(&one, &["now", "get_weather"], false)?;
        let named = self.constraint(&tools(), ToolChoice::Named, true);
        check(&named, &["now"], true)?;
        check(&named, &["get_weather"], false)
    }

    /// Calls that are free to come, but not to be wrong.
    fn check_auto(&self) -> Result<(), String> {
        if ONLY_FORCED.contains(&self.entry.name) {
            return Ok(());
        }
        let auto = self.constraint(&tools(), ToolChoice::Auto, true);
        let call = self.named(&["get_weather"]);
        self.expect(&auto, &call, true)?;
        self.expect(&auto, &self.named(&["other"]), false)?;
        self.expect(&auto, &call.replace("Rom", "Roma!"), false)?;
        let one = self.constraint(&tools(), ToolChoice::Auto, false);
        self.expect(&one, &call, true)?;
        self.expect(&one, &self.named(&["now", "get_weather"]), false)
    }

    fn read(&self, tools: &Value, text: &str) -> Result<Folded, String> {
        let style = (self.entry.describe)().reasoning_styles.first().map(|s| s.name.clone());
        let request =
            RequestInfo { reasoning_style: style, ..request(tools, ToolChoice::Required, true) };
        let stream = Stream::of(text);
        (self.entry.run)(&request, &stream, &[], FinishReason::Stop, Delivery::Pushed)
            .map_err(|error| format!("{text:?}: {error:?}"))
    }

    /// Is the text read as calls that fit the tools, and as nothing else? Their arguments.
    fn arguments(&self, tools: &Value, text: &str) -> Result<Vec<Value>, String> {
        let read = self.read(tools, text)?;
        let wrong = || format!("{text:?}: {read:?}");
        if read.calls.is_empty() || read.content.is_some() {
            return Err(wrong());
        }
        let mut all = Vec::new();
        for call in &read.calls {
            let is_named = |tool: &&Value| tool["function"]["name"] == call.name.as_str();
            let tool = tools.as_array().unwrap().iter().find(is_named).ok_or_else(wrong)?;
            let schema = &tool["function"]["parameters"];
            let value: Value = serde_json::from_str(&call.arguments).map_err(|_| wrong())?;
            if !call.is_ended || !jsonschema::is_valid(schema, &value) {
                return Err(wrong());
            }
            all.push(value);
        }
        Ok(all)
    }

    /// Whatever passes is read as calls of declared tools and nothing else. How many.
    fn read_random(&self, tools: &Value) -> Result<usize, String> {
        let mut num_read = 0;
        if self.tokens.iter().any(|token| token == "<|end|>") {
            return Ok(num_read); // it ends a sequence in the tests' vocabulary
        }
        let constraint = self.constraint(tools, ToolChoice::Required, true);
        for seed in 0..12 {
            let (tokens, is_ended) =
                random_output(&mut constraint.clone(), &mut Random(seed), 1500);
            if let (true, Ok(text)) = (is_ended, String::from_utf8(bytes(&tokens))) {
                num_read += self.arguments(tools, &text)?.len();
            }
        }
        Ok(num_read)
    }
}

#[test]
fn every_family_with_calls_gives_a_grammar() {
    let model = ModelInfo { name: "m".into(), template: None, added_tokens: Vec::new() };
    for entry in tenon_formats::all().filter(|entry| (entry.describe)().tools) {
        for choice in [ToolChoice::Required, ToolChoice::Named, ToolChoice::Auto] {
            let request = request(&enforceable(&tools()), choice, true);
            let grammar = (entry.constraint)(&model, &request).unwrap();
            let is_free = choice == ToolChoice::Auto && ONLY_FORCED.contains(&entry.name);
            let want = !WITHOUT.contains(&entry.name) && !is_free;
            assert_eq!(grammar.is_some(), want, "{}, {choice:?}", entry.name);
        }
    }
}

#[test]
fn what_templates_write_passes_and_nothing_else() {
    check(Family::check_all);
}

#[test]
fn calls_that_come_by_themselves_are_held() {
    check(Family::check_auto);
}

#[test]
fn values_of_every_kind_pass_and_are_read_as_they_are() {
    check(|family| {
        let (tools, arguments) = (rich_tools(), rich_arguments());
        let constraint = family.constraint(&tools, ToolChoice::Required, true);
        let text = family.render(&[("search", arguments.clone())]);
        family.expect(&constraint, &text, true)?;
        let read = family.arguments(&tools, &text)?;
        if read != [arguments.clone()] {
            return Err(format!("{text:?} is read as {read:?}"));
        }
        // One value that does not fit at a time, and one that is not there.
        for (key, value) in [
            ("code", json!("abd")),
            ("unit", json!("mile")),
            ("size", json!(9.5)),
            ("open", json!("yes")),
            ("note", json!("1234567")),
            ("id", json!(100)),
            ("place", json!({"names": []})),
            ("stops", json!(["c"])),
            ("other", json!(1)),
        ] {
            let mut wrong = arguments.clone();
            wrong[key] = value;
            family.expect(&constraint, &family.render(&[("search", wrong)]), false)?;
        }
        let mut missing = arguments;
        missing.as_object_mut().unwrap().shift_remove("unit");
        family.expect(&constraint, &family.render(&[("search", missing)]), false)
    });
}

#[test]
fn random_calls_are_read() {
    let num_read = std::cell::Cell::new(0);
    for tools in [tools(), rich_tools()] {
        check(|family| {
            num_read.set(num_read.get() + family.read_random(&tools)?);
            Ok(())
        });
    }
    println!("{} calls", num_read.get());
    assert!(num_read.get() > 400, "{}", num_read.get());
}

/// Strings of parts of calls: what the grammar lets through, the parser reads as it is.
#[test]
fn strings_that_look_like_markup_are_kept_or_refused() {
    const PIECES: &[&str] = &["\n", " ", "<", "</", "]]>", "a", "\"", "null"];
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}},
        "required": ["x"], "additionalProperties": false});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let num_kept = std::cell::Cell::new(0);
    check(|family| {
        if family.entry.strings_are_quoted {
            return Ok(());
        }
        let markers = (family.entry.describe)().added_tokens;
        let markers = markers.iter().map(String::as_str);
        let pieces: Vec<_> =
            PIECES.iter().chain(family.entry.pieces).copied().chain(markers).collect();
        let constraint = family.constraint(&tools, ToolChoice::Required, true);
        for seed in 0..150 {
            let mut random = Random(seed);
            let len = random.below(5);
            let parts = (0..len).map(|_| pieces[random.below(pieces.len())]);
            let string: String = parts.collect();
            let text = family.render(&[("f", json!({"x": string}))]);
            if family.stops(&constraint, &text).is_some() {
                continue;
            }
            let read = family.arguments(&tools, &text)?;
            if read.len() == 1 && read[0] != json!({"x": string}) {
                return Err(format!("{text:?} is read as {read:?}"));
            }
            num_kept.set(num_kept.get() + 1);
        }
        Ok(())
    });
    println!("{} strings", num_kept.get());
    assert!(num_kept.get() > 1000, "{}", num_kept.get());
}
