//! Structured output through both endpoints: what is asked for is enforced, whatever the model
//! would say, or refused under the name of the field.

use serde_json::{Value, json};

use crate::rig::{Server, Setup};

fn schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}})
}

fn object() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9},
        "s": {"enum": ["a", "bb"]}}, "required": ["n", "s"], "additionalProperties": false})
}

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": object(),
        "strict": strict}})
}

async fn ok(server: &Server, message: &str, extra: Value) -> Value {
    let answer = server.chat(message, extra.clone()).await;
    assert_eq!(answer.status, 200, "{extra}: {:?}", answer.body);
    answer.json()["choices"][0].clone()
}

async fn refused(server: &Server, extra: Value, param: &str, words: &str) {
    let answer = server.chat("hi", extra.clone()).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, json!(param)), "{extra}");
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(words), "{extra}: {message}");
}

#[tokio::test]
async fn the_answer_follows_the_schema() {
    let server = Setup::says("hello").start();
    for temperature in [0.0, 1.0] {
        let extra = json!({"response_format": schema(object()), "temperature": temperature,
            "max_tokens": 300, "seed": 3, "reasoning_parser": "none"});
        let choice = ok(&server, "x", extra).await;
        let value: Value =
            serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(value["n"].as_u64().unwrap() <= 9, "{value}");
        assert!(["a", "bb"].contains(&value["s"].as_str().unwrap()), "{value}");
        assert_eq!(choice["finish_reason"], "stop");
    }
    // What the model would say and the schema allows is said.
    let server = Setup::says("{\"n\": 7, \"s\": \"bb\"}").start();
    let choice = ok(&server, "x", json!({"response_format": schema(object())})).await;
    assert_eq!(choice["message"]["content"], "{\"n\": 7, \"s\": \"bb\"}");
    let cut = json!({"response_format": schema(object()), "max_tokens": 3});
    assert_eq!(ok(&server, "x", cut).await["finish_reason"], "length");
}

#[tokio::test]
async fn each_kind_is_enforced() {
    let server = Setup::says("hello").start();
    for (outputs, want) in [
        (json!({"choice": ["yes", "no"]}), "no"),
        (json!({"regex": "[b-d]{2}"}), "bb"),
        (json!({"grammar": "start: \"x\" \"y\""}), "xy"),
        (json!({"json": {"const": {"a": 1}}}), "{\n\"a\":1}"),
    ] {
        let choice = ok(
            &server,
            "x",
            json!({"structured_outputs": outputs,
            "reasoning_parser": "none"}),
        );
        let choice = choice.await;
        let text = choice["message"]["content"].as_str().unwrap().replace([' ', '\n'], "");
        assert_eq!(text, want.replace('\n', ""), "{outputs}");
        let body = json!({"prompt": "x", "temperature": 0, "structured_outputs": outputs,
            "max_tokens": 300, "n": 2});
        let answer = server.post("/v1/completions", body).await.json();
        for choice in answer["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap().replace([' ', '\n'], "");
            assert_eq!(text, want.replace('\n', ""), "{outputs}");
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
    let any = json!({"response_format": {"type": "json_object"}, "max_tokens": 50,
        "reasoning_parser": "none"});
    assert!(ok(&server, "x", any).await["message"]["content"].as_str().unwrap().starts_with('{'));
}

#[tokio::test]
async fn it_starts_when_reasoning_ends() {
    let says = "<think>{no}</think>maybe";
    let server = Setup::says(says).start();
    let extra = json!({"structured_outputs": {"choice": ["may", "must"]}, "max_tokens": 60});
    // The model opens its reasoning itself, or the prompt has done so.
    let choice = ok(&server, "x", extra.clone()).await;
    assert_eq!(choice["message"]["reasoning"], "{no}");
    assert_eq!(choice["message"]["content"], "may");
    let server = Setup::says("{no}</think>maybe").start();
    let mut opened = extra.clone();
    opened["chat_template_kwargs"] = json!({"think": true});
    let choice = ok(&server, "x", opened).await;
    assert_eq!(choice["message"]["reasoning"], "{no}");
    assert_eq!(choice["message"]["content"], "may");
    let server = Setup::says("maybe").start();
    assert_eq!(ok(&server, "x", extra).await["message"]["content"], "may");
}

#[tokio::test]
async fn calls_are_enforced() {
    let server = Setup::says("hello").start();
    let tools = json!([tool("f", false), tool("g", false)]);
    let named = json!({"type": "function", "function": {"name": "g"}});
    for (choice, names) in [(json!("required"), vec!["f", "g"]), (named, vec!["g"])] {
        let extra = json!({"tools": tools, "tool_choice": choice, "max_tokens": 300,
            "parallel_tool_calls": false});
        let choice = ok(&server, "x", extra).await;
        let [call] = &choice["message"]["tool_calls"].as_array().unwrap()[..] else { panic!() };
        assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert!(arguments["n"].is_u64() && arguments["s"].is_string(), "{arguments}");
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn calls_that_may_come_are_held_to_their_schema() {
    let says = "hm <call:f>{\"n\": 77, \"s\": \"a\"}</call><call:f>{}</call>";
    let server = Setup::says(says).start();
    let auto = json!({"tools": [tool("f", true)], "max_tokens": 200});
    let choice = ok(&server, "x", auto).await;
    assert_eq!(choice["message"]["content"], "hm ");
    let call = &choice["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["n"], 7);
    // Not strict: any object, and one call at most.
    let one = json!({"tools": [tool("f", false)], "parallel_tool_calls": false});
    let choice = ok(&server, "x", one).await;
    let [call] = &choice["message"]["tool_calls"].as_array().unwrap()[..] else { panic!() };
    assert_eq!(call["function"]["arguments"], "{\"n\": 77, \"s\": \"a\"}");
    // No call, no constraint.
    let server = Setup::says("just text").start();
    let choice = ok(&server, "x", json!({"tools": [tool("f", true)]})).await;
    assert_eq!(choice["message"]["content"], "just text");
}

#[tokio::test]
async fn a_schema_or_a_call() {
    let extra = json!({"tools": [tool("f", false)], "response_format": schema(object()),
        "max_tokens": 300});
    let server = Setup::says("<call:f>{}</call>").start();
    let choice = ok(&server, "x", extra.clone()).await;
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "f");
    let server = Setup::says("{\"n\": 1, \"s\": \"a\"}").start();
    let choice = ok(&server, "x", extra).await;
    assert_eq!(choice["message"]["content"], "{\"n\": 1, \"s\": \"a\"}");
}

#[tokio::test]
async fn a_stream_is_enforced_too() {
    let server = Setup::says("hello").start();
    let extra = json!({"response_format": schema(object()), "max_tokens": 300, "stream": true,
        "reasoning_parser": "none"});
    let chunks = server.chat("x", extra).await.chunks();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(value["n"].is_u64() && value["s"].is_string(), "{value}");
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused() {
    let server = Setup::says("hello").start();
    let format = |of: Value| json!({ "response_format": schema(of) });
    let unique = json!({"type": "object", "properties": {"t": {"uniqueItems": true}}});
    refused(&server, format(unique.clone()), "response_format", "`uniqueItems` at `/properties/t`")
        .await;
    refused(&server, format(json!({"type": "text"})), "response_format", "/type").await;
    let regex = json!({"structured_outputs": {"regex": "("}});
    refused(&server, regex, "structured_outputs.regex", "`(`").await;
    let grammar = json!({"structured_outputs": {"grammar": "start: missing"}});
    refused(&server, grammar, "structured_outputs.grammar", "missing").await;
    let mut bad = tool("f", true);
    bad["function"]["parameters"] = unique;
    let strict = json!({"tools": [tool("g", false), bad.clone()]});
    refused(&server, strict, "tools[1].function.parameters", "uniqueItems").await;
    let none = json!({"tools": [tool("no_grammar", true)]});
    refused(&server, none, "tools", "no grammar").await;
    let required = json!({"tools": [tool("no_grammar", false)], "tool_choice": "required"});
    refused(&server, required, "tool_choice", "no grammar").await;
    let one = json!({"tools": [tool("no_grammar", false)], "parallel_tool_calls": false});
    refused(&server, one, "parallel_tool_calls", "no grammar").await;
    let raw = json!({"tools": [tool("f", false)], "tool_choice": "required",
        "tool_call_parser": "none"});
    refused(&server, raw, "tool_choice", "parser").await;
    // The server goes on.
    assert_eq!(server.chat("hi", json!({})).await.status, 200);
    let body = json!({"prompt": "x", "response_format": schema(json!({"not": {}}))});
    assert_eq!(server.post("/v1/completions", body).await.error_param(), "response_format");
}

#[tokio::test]
async fn masks_that_contradict_the_constraint_are_the_clients() {
    let server = Setup::says("hello").start();
    let id = |text: &str| crate::rig::tokenizer().token_id(text).unwrap();
    let ask = |regex: &str, masks: Value| {
        let mut extra = json!({"structured_outputs": {"regex": regex}, "reasoning_parser": "none"});
        for (key, value) in masks.as_object().unwrap() {
            extra[key] = value.clone();
        }
        extra
    };
    let not_first = json!({"allowed_token_ids": [id("b"), id("c")]});
    refused(&server, ask("a[bc]", not_first), "allowed_token_ids", "begin with").await;
    refused(&server, ask("a[bc]", json!({"bad_words": ["a"]})), "bad_words", "begin with").await;
    // Only later.
    let answer = server.chat("x", ask("ab", json!({"allowed_token_ids": [id("a")]}))).await;
    assert_eq!((answer.status.as_u16(), answer.error_param()), (400, Value::Null));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    let fits = ask("a[bc]", json!({"allowed_token_ids": [id("a"), id("c")]}));
    assert_eq!(ok(&server, "x", fits).await["message"]["content"], "ac");
}

#[tokio::test]
async fn a_schema_beside_json_object_holds() {
    let server = Setup::says("hello").start();
    let format = json!({"type": "json_object", "schema": {"const": {"a": 1}}});
    let extra = json!({"response_format": format, "reasoning_parser": "none"});
    let choice = ok(&server, "x", extra).await;
    let value: Value =
        serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(value, json!({"a": 1}));
    let not = json!({"structured_outputs": {"grammar": "start: %json {\"not\": {}}"}});
    refused(&server, not, "structured_outputs.grammar", "`not`").await;
}
