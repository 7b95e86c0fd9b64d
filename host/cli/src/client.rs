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

    /// POST of a component, under a name if one is given; the answer as JSON.
    pub fn upload(&self, path: &str, name: Option<&str>, body: &[u8]) -> Result<Value> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request.query_pairs(name.map(|name| ("name", name)));
        self.send(request, "application/wasm", body)
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

    /// A request without an answer, and what to do about it.
    fn explain(&self, error: ureq::Error) -> anyhow::Error {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        let url = &self.url;
        let message = match &error {
            ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
                format!("cannot ask `{url}`; check --url and --admin-key")
            }
            ureq::Error::Io(io) if matches!(io.kind(), BrokenPipe | ConnectionReset) => {
                format!("`{url}` closed the connection; is the file too large for it?")
            }
            _ => format!("cannot reach `{url}`; is the server running?"),
        };
        anyhow::Error::new(error).context(message)
    }

    fn read(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value> {
        let mut response = response.map_err(|error| self.explain(error))?;
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
