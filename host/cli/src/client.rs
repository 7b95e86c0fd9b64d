//! The few calls that the command line makes to a running server.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::args::ServerArgs;

/// Longest that an upload may take: compiling is part of it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server and its key.
pub struct Client {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    /// Nothing is sent yet.
    pub fn new(server: &ServerArgs) -> Client {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        Client {
            agent: config.into(),
            url: server.url.trim_end_matches('/').to_owned(),
            key: server.admin_key.clone(),
        }
    }

    /// GET; the body as JSON.
    pub fn get(&self, path: &str) -> Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(request.call())
    }

    /// POST of bytes; the body as JSON.
    pub fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Result<Value> {
        let request = self.agent.post(format!("{}{path}", self.url));
        self.send(request, content_type, body)
    }

    /// PUT of JSON; the body as JSON.
    pub fn put(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.agent.put(format!("{}{path}", self.url));
        self.send(request, "application/json", body.to_string().as_bytes())
    }

    fn send(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        content_type: &str,
        body: &[u8],
    ) -> Result<Value> {
        let mut request = request.header("content-type", content_type);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.read(request.send(body))
    }

    fn read(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value> {
        let mut response = response
            .with_context(|| format!("cannot reach `{}`; is the server running?", self.url))?;
        let status = response.status();
        let text = response.body_mut().read_to_string().context("the answer broke off")?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if !status.is_success() {
            let message = value["error"]["message"].as_str().unwrap_or("no message");
            let mut lines = vec![format!("the server answered {status}: {message}")];
            for reason in value["reasons"].as_array().into_iter().flatten() {
                lines.push(format!("  - {}", reason.as_str().unwrap_or_default()));
            }
            bail!("{}", lines.join("\n"));
        }
        Ok(value)
    }
}
