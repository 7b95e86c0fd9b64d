//! `allowed_token_ids` and `bad_words` through both endpoints: what is masked is in no answer. The
//! scripted model gives every token that is not its next one the same chance.

use serde_json::{Value, json};

use crate::rig::{Server, Setup, tokenizer};

/// The text of one answer of each endpoint, chat first.
async fn answers(server: &Server, extra: Value) -> [String; 2] {
    let chat = server.chat("x", extra.clone()).await;
    assert_eq!(chat.status, 200, "{:?}", chat.body);
    let content = chat.json()["choices"][0]["message"]["content"].clone();
    let mut body = json!({"prompt": "x", "temperature": 0, "max_tokens": 500});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let raw = server.post("/v1/completions", body).await;
    assert_eq!(raw.status, 200, "{:?}", raw.body);
    let text = raw.json()["choices"][0]["text"].clone();
    [content, text].map(|text| text.as_str().unwrap_or_default().to_owned())
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| tokenizer().token_id(&char::from(byte).to_string()).unwrap()).collect()
}

#[tokio::test]
async fn only_allowed_tokens_are_answered() {
    let server = Setup::says("hello").start();
    let mut allowed = ids("helo");
    let some = json!({"allowed_token_ids": allowed, "max_tokens": 5});
    assert_eq!(answers(&server, some).await, ["hello", "hello"]);
    let hot = json!({"allowed_token_ids": allowed, "max_tokens": 40, "temperature": 2});
    for text in answers(&server, hot).await {
        assert!(text.len() == 40 && text.chars().all(|c| "helo".contains(c)), "{text}");
    }
    // With its end of sequence the answer ends.
    allowed.push(tokenizer().eos().unwrap());
    let all = json!({ "allowed_token_ids": allowed });
    assert_eq!(answers(&server, all).await, ["hello", "hello"]);
}

#[tokio::test]
async fn a_list_that_allows_nothing_is_refused() {
    let server = Setup::says("hello").start();
    let eos = tokenizer().eos().unwrap();
    for extra in [
        json!({"allowed_token_ids": []}),
        json!({"allowed_token_ids": [eos], "ignore_eos": true}),
        json!({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}),
    ] {
        let answer = server.chat("x", extra.clone()).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_param()),
            (400, json!("allowed_token_ids")),
            "{extra}"
        );
    }
}

#[tokio::test]
async fn bad_words_are_not_answered() {
    let server = Setup::says("hello hell").start();
    let bad = |words: &[&str]| json!({"bad_words": words, "max_tokens": 10});
    assert_eq!(answers(&server, bad(&[])).await, ["hello hell", "hello hell"]);
    assert_eq!(answers(&server, bad(&["hellx"])).await, ["hello hell", "hello hell"]);
    for text in answers(&server, bad(&[" hello", "xyz"])).await {
        assert!(text.starts_with("hell") && !text.starts_with("hello"), "{text}");
    }
    let none = json!({"bad_words": ["h", "e", "l", "o"], "max_tokens": 40, "temperature": 2});
    for text in answers(&server, none).await {
        assert!(!text.contains(['h', 'e', 'l', 'o']), "{text}");
    }
}
