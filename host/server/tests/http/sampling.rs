//! Fields of both endpoints beyond OpenAI's: repetitions, stops, ids, cut prompts, `best_of`.

use serde_json::{Value, json};

use crate::rig::{Server, Setup, fold, tokenizer};

async fn complete(server: &Server, extra: Value) -> Value {
    let mut body = json!({"prompt": "x", "temperature": 0, "max_tokens": 50});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = server.post("/v1/completions", body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()
}

async fn text(server: &Server, extra: Value) -> String {
    complete(server, extra).await["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn id(text: &str) -> u32 {
    tokenizer().token_id(text).unwrap()
}

#[tokio::test]
async fn dry_breaks_a_repetition_unless_a_breaker_does() {
    let server = Setup::says("abcabcabcabc").start();
    let dry = |extra: Value| {
        let mut body = json!({"dry_multiplier": 40});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        text(&server, body)
    };
    let cut = dry(json!({})).await;
    assert!(cut.starts_with("abcab") && !cut.starts_with("abcabc"), "{cut}");
    let later = dry(json!({"dry_allowed_length": 4})).await;
    assert!(later.starts_with("abcabca") && !later.starts_with("abcabcab"), "{later}");
    for off in [
        json!({"dry_multiplier": 0}),
        json!({"dry_sequence_breakers": ["b"]}),
        json!({"dry_range": 4}),
        json!({"dry_penalty_last_n": 0}),
    ] {
        assert_eq!(dry(off.clone()).await, "abcabcabcabc", "{off}");
    }
    // The defaults break at these.
    let server = Setup::says("ab:ab:ab:ab:").start();
    assert_eq!(text(&server, json!({"dry_multiplier": 40})).await, "ab:ab:ab:ab:");
}

#[tokio::test]
async fn a_repeated_pattern_ends_the_answer() {
    let server = Setup::says("xyababababab").start();
    let asked = json!({"repetition_detection": {"max_pattern_size": 4, "min_count": 3}});
    let body = complete(&server, asked.clone()).await;
    assert_eq!(body["choices"][0]["text"], "xyababab");
    assert_eq!(body["choices"][0]["finish_reason"], "repetition");
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let chunks = server.chat("x", streamed).await.chunks();
    let (message, finish, _) = fold(&chunks, 0);
    assert_eq!((message["content"].as_str(), finish), (Some("xyababab"), json!("repetition")));
    let later = json!({"min_tokens": 10, "repetition_detection": asked["repetition_detection"]});
    assert_eq!(text(&server, later).await, "xyabababab");
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    let line = metrics.lines().find(|l| l.contains("finished_reason=\"repetition\"")).unwrap();
    assert!(line.ends_with(" 3"), "{line}");
}

#[tokio::test]
async fn what_ended_the_answer_may_stay_in_it() {
    let server = Setup::says("hello").start();
    let stop = json!({"stop_token_ids": [id("l")]});
    assert_eq!(text(&server, stop.clone()).await, "he");
    let mut kept = stop;
    kept["include_stop_str_in_output"] = json!(true);
    assert_eq!(text(&server, kept.clone()).await, "hel");
    let chat = server.chat("x", kept).await.json();
    assert_eq!(chat["choices"][0]["message"]["content"], "hel");
    assert_eq!(chat["choices"][0]["stop_reason"], id("l"));
    let string = json!({"stop": "ll", "include_stop_str_in_output": true});
    assert_eq!(text(&server, string).await, "hell");
    // The model's own end is a special token.
    for (skip, want) in [(true, "hello"), (false, "hello<|end|>")] {
        let end = json!({"include_stop_str_in_output": true, "skip_special_tokens": skip});
        assert_eq!(text(&server, end).await, want);
    }
    let server = Setup::says("a<|user|>b").start();
    for (skip, want) in [(true, "ab"), (false, "a<|user|>b")] {
        for spaces in [true, false] {
            let fields = json!({"skip_special_tokens": skip,
                "spaces_between_special_tokens": spaces});
            assert_eq!(text(&server, fields).await, want);
        }
    }
}

#[tokio::test]
async fn stop_strings_count_behind_the_least_tokens() {
    let server = Setup::says("abcabcabc").start();
    let stop = |min_tokens: u32| json!({"stop": "bc", "min_tokens": min_tokens});
    for (min_tokens, want) in [(0, "a"), (1, "a"), (2, "abca"), (3, "abca"), (5, "abcabca")] {
        assert_eq!(text(&server, stop(min_tokens)).await, want, "{min_tokens}");
    }
}

#[tokio::test]
async fn ids_of_prompt_and_answer() {
    let server = Setup::says("héo").start();
    let end = tokenizer().eos().unwrap();
    let said: Vec<u32> = "héo".bytes().map(u32::from).chain([end]).collect();
    let asked = json!({"return_token_ids": true, "n": 2});
    let body = complete(&server, asked.clone()).await;
    let chat = server.chat("q", asked.clone()).await.json();
    let prompt = json!([id("<|user|>"), u32::from(b'q'), id("<|assistant|>")]);
    assert_eq!(chat["prompt_token_ids"], prompt);
    for choice in 0..2 {
        assert_eq!(body["choices"][choice]["token_ids"], json!(said));
        assert_eq!(body["choices"][choice]["prompt_token_ids"], json!([u32::from(b'x')]));
        assert_eq!(chat["choices"][choice]["token_ids"], json!(said));
    }
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let chunks = server.chat("q", streamed.clone()).await.chunks();
    let with_prompt = chunks.iter().filter(|c| c["prompt_token_ids"] == prompt);
    assert_eq!(with_prompt.count(), 2);
    streamed["prompt"] = json!("x");
    let raw = server.post("/v1/completions", streamed).await.chunks();
    for chunks in [&chunks, &raw] {
        for index in 0..2 {
            let of = chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index);
            let ids = of.filter_map(|choice| choice["token_ids"].as_array()).flatten();
            assert_eq!(ids.cloned().collect::<Vec<_>>(), json!(said).as_array().unwrap()[..]);
        }
    }
    let plain = complete(&server, json!({})).await;
    assert!(plain["choices"][0].get("token_ids").is_none());
    // Up to and with the token that completed a stop string.
    let stopped = complete(&server, json!({"return_token_ids": true, "stop": "h"})).await;
    assert_eq!(stopped["choices"][0]["token_ids"], json!([u32::from(b'h')]));
}

#[tokio::test]
async fn log_probabilities_by_id() {
    let server = Setup::says("a").start();
    let asked = json!({"logprobs": 1, "return_tokens_as_token_ids": true, "max_tokens": 1});
    let body = complete(&server, asked).await;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["token_id:97"]));
    assert!(logprobs["top_logprobs"][0]["token_id:97"].is_number());
    let asked = json!({"logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": true});
    let chat = server.chat("x", asked).await.json();
    let token = &chat["choices"][0]["logprobs"]["content"][0];
    assert_eq!(token["token"], "token_id:97");
    assert_eq!(token["top_logprobs"][0]["token"], "token_id:97");
    assert_eq!(token["bytes"], json!([97]));
}

#[tokio::test]
async fn long_prompts_are_cut_on_demand() {
    let server = Setup { max_model_len: 64, ..Setup::says("!") }.start();
    let echo = |extra: Value| {
        let mut body = json!({"prompt": "abcdef", "echo": true});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        complete(&server, body)
    };
    let body = echo(json!({"truncate_prompt_tokens": 2})).await;
    assert_eq!(body["choices"][0]["text"], "ef!");
    assert_eq!(body["usage"]["prompt_tokens"], 2);
    let right = json!({"truncate_prompt_tokens": 2, "truncation_side": "right"});
    assert_eq!(echo(right).await["choices"][0]["text"], "ab!");
    let long = json!({"prompt": "a".repeat(100), "max_tokens": 4, "truncate_prompt_tokens": -1});
    assert_eq!(complete(&server, long).await["usage"]["prompt_tokens"], 60);
    let chat = json!({"truncate_prompt_tokens": 5, "max_tokens": 4, "return_token_ids": true});
    let chat = server.chat("abcdef", chat).await.json();
    let kept: Vec<u32> = "cdef".bytes().map(u32::from).chain([id("<|assistant|>")]).collect();
    assert_eq!(chat["prompt_token_ids"], json!(kept));
    let too_long = json!({"truncate_prompt_tokens": 65});
    let answer = server.chat("a", too_long).await;
    assert_eq!(answer.error_param(), "truncate_prompt_tokens");
}

#[tokio::test]
async fn chat_may_repeat_what_it_goes_on_with() {
    let server = Setup::says(" a time").start();
    let messages = json!([{"role": "user", "content": "q"},
        {"role": "assistant", "content": "Once upon"}]);
    let asked = json!({"messages": messages, "continue_final_message": true, "echo": true,
        "n": 2, "max_tokens": 4});
    let whole = server.chat("", asked.clone()).await.json();
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let chunks = server.chat("", streamed).await.chunks();
    for index in 0..2 {
        let (message, _, _) = fold(&chunks, index);
        assert_eq!(message["content"], "Once upon a t");
        assert_eq!(whole["choices"][index as usize]["message"], message);
    }
    // Another's words are not the answer's.
    let theirs = server.chat("q", json!({"echo": true})).await.json();
    assert_eq!(theirs["choices"][0]["message"]["content"], " a time");
}

#[tokio::test]
async fn the_best_of_many_by_mean_log_probability() {
    let server = Setup::says("aaaa").start();
    // The bias moves the draw, not the log-probabilities: the model's own token is the best.
    let base = json!({"temperature": 1, "seed": 4, "max_tokens": 2, "logprobs": 0, "n": 60,
        "logit_bias": {id("a").to_string(): -26}});
    let mean = |choice: &Value| {
        let list = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        list.iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / list.len() as f64
    };
    let all = complete(&server, base.clone()).await;
    let mut sorted: Vec<&Value> = all["choices"].as_array().unwrap().iter().collect();
    sorted.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    assert!(mean(sorted[0]) > mean(sorted[40]), "all are equal: nothing to choose");
    let mut asked = base;
    (asked["n"], asked["best_of"]) = (json!(3), json!(60));
    let best = complete(&server, asked.clone()).await;
    let choices = best["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (index, (got, want)) in choices.iter().zip(&sorted).enumerate() {
        assert_eq!(got["index"], index);
        assert_eq!((&got["text"], mean(got)), (&want["text"], mean(want)));
    }
    assert_eq!(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);
    // Without asking for log-probabilities none are shown, and the choice is the same.
    asked["logprobs"] = Value::Null;
    let plain = complete(&server, asked).await;
    assert!(plain["choices"][0]["logprobs"].is_null());
    assert_eq!(plain["choices"][2]["text"], best["choices"][2]["text"]);
}
