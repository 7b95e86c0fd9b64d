//! One streamed completion, and when each of its chunks came.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Longest that one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest line of a stream.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Most lines of a stream.
const MAX_LINES: usize = 1 << 22;

/// Most bytes of an error that are read.
const MAX_ERROR_BYTES: u64 = 1 << 16;

/// Where requests go.
pub struct Target {
    agent: ureq::Agent,
    url: String,
    model: String,
    key: Option<String>,
}

/// A completed request. Times in seconds since the bench began.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Sent.
    pub start_s: f64,
    /// Each chunk that brought a part of the answer; at least one.
    pub chunks_s: Vec<f64>,
    /// The stream's end.
    pub end_s: f64,
    /// As the server counts them.
    pub num_input_tokens: u64,
    /// As the server counts them.
    pub num_output_tokens: u64,
}

impl Target {
    /// Nothing is sent yet. `concurrency` connections are kept open.
    pub fn new(url: &str, model: &str, key: Option<&str>, concurrency: usize) -> Result<Target> {
        ensure!(
            url.starts_with("http://"),
            "--url is `{url}`; give an address that starts with http://"
        );
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(REQUEST_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_idle_connections(concurrency)
            .max_idle_connections_per_host(concurrency)
            .build();
        Ok(Target {
            agent: config.into(),
            url: format!("{}/v1/completions", url.trim_end_matches('/').trim_end_matches("/v1")),
            model: model.to_owned(),
            key: key.filter(|key| !key.is_empty()).map(str::to_owned),
        })
    }

    /// Sends `prompt` and reads the answer of `output_len` tokens to its end.
    pub fn complete(&self, prompt: &[u32], output_len: usize, origin: Instant) -> Result<Timing> {
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_len,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
        .to_string();
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let start_s = origin.elapsed().as_secs_f64();
        let response = request.send(body.as_bytes());
        let response =
            response.with_context(|| format!("no answer from `{}`; check --url", self.url))?;
        let status = response.status();
        let reader = response.into_body().into_reader();
        if !status.is_success() {
            let mut text = String::new();
            // Half of a message is better than none.
            let _ = reader.take(MAX_ERROR_BYTES).read_to_string(&mut text);
            let value: Value = serde_json::from_str(&text).unwrap_or_default();
            let message = value["error"]["message"].as_str().unwrap_or("no message");
            bail!("the server answered {status}: {message}");
        }
        read_stream(&mut BufReader::new(reader), start_s, &|| origin.elapsed().as_secs_f64())
    }
}

/// Reads server-sent events until `[DONE]`; `now_s` is the clock.
fn read_stream(reader: &mut impl BufRead, start_s: f64, now_s: &dyn Fn() -> f64) -> Result<Timing> {
    let mut chunks_s = Vec::new();
    let mut usage = None;
    let mut line = Vec::new();
    for _ in 0..MAX_LINES {
        line.clear();
        let num = reader
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .context("the stream broke off")?;
        ensure!(num > 0, "the stream ended without [DONE]");
        ensure!((num as u64) < MAX_LINE_BYTES, "a line of the stream is too long");
        let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
        if data == b"[DONE]" {
            let end_s = now_s();
            ensure!(!chunks_s.is_empty(), "the stream had no text");
            let usage: Value = usage.context("the stream had no usage")?;
            let count = |name: &str| {
                usage[name].as_u64().with_context(|| format!("the usage has no `{name}`"))
            };
            return Ok(Timing {
                start_s,
                chunks_s,
                end_s,
                num_input_tokens: count("prompt_tokens")?,
                num_output_tokens: count("completion_tokens")?,
            });
        }
        let at = now_s();
        let event: Value = serde_json::from_slice(data).context("an event is no JSON")?;
        if let Some(message) = event["error"]["message"].as_str() {
            bail!("the stream failed: {message}");
        }
        let choice = &event["choices"][0];
        let is_first_of_nothing = chunks_s.is_empty() && !choice["finish_reason"].is_null();
        if choice["text"].as_str().is_some_and(|text| !text.is_empty()) || is_first_of_nothing {
            chunks_s.push(at);
        }
        if event["usage"].is_object() {
            usage = Some(event["usage"].clone());
        }
    }
    bail!("the stream has more than {MAX_LINES} lines")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    fn read(text: &str) -> Result<Timing> {
        let clock = Cell::new(0.0);
        let now_s = || {
            clock.set(clock.get() + 1.0);
            clock.get()
        };
        read_stream(&mut text.as_bytes(), 0.5, &now_s)
    }

    const TEXT: &str = "data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": null}]}\n\n";
    const END: &str = "data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n";
    const USAGE: &str =
        "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": 2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn chunks_are_timed() {
        let timing = read(&format!(": comment\n\n{TEXT}{TEXT}{END}{USAGE}{DONE}")).unwrap();
        assert_eq!(timing.chunks_s, [1.0, 2.0]);
        assert_eq!((timing.start_s, timing.end_s), (0.5, 5.0));
        assert_eq!((timing.num_input_tokens, timing.num_output_tokens), (3, 2));
        // All tokens were without text: the end is what came first.
        assert_eq!(read(&format!("{END}{USAGE}{DONE}")).unwrap().chunks_s, [1.0]);
    }

    #[test]
    fn broken_streams_say_why() {
        let long = "x".repeat(MAX_LINE_BYTES as usize);
        for (text, says) in [
            (TEXT.to_owned(), "without [DONE]"),
            (format!("{TEXT}{DONE}"), "no usage"),
            (format!("{USAGE}{DONE}"), "no text"),
            ("data: {oops\n".to_owned(), "no JSON"),
            ("data: {\"error\": {\"message\": \"out of luck\"}}\n".to_owned(), "out of luck"),
            (long, "too long"),
        ] {
            let error = format!("{:#}", read(&text).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn only_plain_http_is_taken() {
        let error = Target::new("https://x", "m", None, 1).err().unwrap().to_string();
        assert!(error.contains("--url"), "{error}");
        for url in ["http://x", "http://x/", "http://x/v1", "http://x/v1/"] {
            let target = Target::new(url, "m", None, 1).unwrap();
            assert_eq!(target.url, "http://x/v1/completions");
        }
    }
}
