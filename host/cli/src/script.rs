//! Script files for `tenon serve --scripted FILE`: JSON Lines, a header and then replies.
//!
//! Header: `{"special_tokens": ["<|im_end|>", …], "eos": "<|im_end|>", "chat_template": "…",
//! "max_model_len": 4096, "step_ms": 0}`; every field may be left out. Reply: `{"when": "text in
//! the prompt", "text": "the output"}` or `{"when": …, "tokens": [ids]}`; without `when` it answers
//! what no other reply does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenon_scripted::{Reply, Script};
use tenon_text::{Bos, Specials, Tokenizer};

/// The header line.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Header {
    /// Added tokens of the byte-level vocabulary (without MODEL).
    pub special_tokens: Vec<String>,
    /// Ends each reply; must be one of the special tokens.
    pub eos: String,
    /// Without MODEL: how messages become a prompt.
    pub chat_template: String,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Each step takes at least this long.
    pub step_ms: u64,
}

impl Default for Header {
    fn default() -> Self {
        Header {
            special_tokens: vec!["<|im_start|>".into(), "<|im_end|>".into()],
            eos: "<|im_end|>".into(),
            chat_template: DEFAULT_TEMPLATE.into(),
            max_model_len: 4096,
            step_ms: 0,
        }
    }
}

/// Longest step, in milliseconds: one runs before the server is ready.
const MAX_STEP_MS: u64 = 60_000;

/// ChatML; tools are listed before the messages.
const DEFAULT_TEMPLATE: &str = "\
{%- if tools %}<|im_start|>system\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n\
{% endfor %}</tools><|im_end|>\n{% endif %}\
{%- for message in messages %}<|im_start|>{{ message.role }}\n\
{{ message.content }}<|im_end|>\n{% endfor %}\
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl Header {
    /// What the types do not say.
    fn check(self) -> Result<Header> {
        let specials = &self.special_tokens;
        ensure!(
            specials.contains(&self.eos),
            "`eos` is `{}`, which is not in `special_tokens`",
            self.eos
        );
        for (i, token) in specials.iter().enumerate() {
            ensure!(!token.is_empty(), "`special_tokens[{i}]` is empty; write its text");
            let is_new = !specials[..i].contains(token);
            ensure!(is_new, "`special_tokens[{i}]` is `{token}` once more; leave it out");
        }
        ensure!(self.max_model_len > 0, "`max_model_len` is `0`; use 1 or more");
        let step = self.step_ms;
        ensure!(step <= MAX_STEP_MS, "`step_ms` is `{step}`; use at most {MAX_STEP_MS}");
        Ok(self)
    }
}

/// One line. The error's own line number would contradict the file's.
fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).map_err(|error| {
        let text = error.to_string();
        match text.rsplit_once(" at line 1 column ") {
            Some((what, column)) => anyhow::anyhow!("{what} (column {column})"),
            None => error.into(),
        }
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyLine {
    when: Option<String>,
    text: Option<String>,
    tokens: Option<Vec<u32>>,
}

/// A script file, read but not yet tokenized.
pub struct ScriptFile {
    /// First line.
    pub header: Header,
    replies: Vec<ReplyLine>,
}

impl ScriptFile {
    /// Reads and checks the file; errors name the line.
    pub fn read(path: &Path) -> Result<ScriptFile> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the script `{}`", path.display()))?;
        let mut header = None;
        let mut replies = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let at = || format!("{}, line {}", path.display(), i + 1);
            if line.trim().is_empty() {
                continue;
            }
            if header.is_none() {
                header = Some(parse::<Header>(line).and_then(Header::check).with_context(at)?);
                continue;
            }
            let reply: ReplyLine = parse(line).with_context(at)?;
            if reply.text.is_some() == reply.tokens.is_some() {
                bail!("{}: a reply needs either `text` or `tokens`", at());
            }
            replies.push(reply);
        }
        let header = header.with_context(|| format!("the script `{}` is empty", path.display()))?;
        Ok(ScriptFile { header, replies })
    }

    /// The byte-level tokenizer that the header describes.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let header = &self.header;
        // The first special token is the end of sequence.
        let mut specials = header.special_tokens.clone();
        specials.sort_by_key(|token| *token != header.eos);
        Ok(Tokenizer::byte_level_for_scripts(&specials))
    }

    /// The script in tokens of `tokenizer`, each reply followed by `eos`.
    pub fn script(&self, tokenizer: &Tokenizer, eos: u32) -> Result<Script> {
        let vocab_size = tokenizer.vocab_size() as u32;
        let token_bytes = (0..vocab_size)
            .map(|id| tokenizer.token_bytes(id).unwrap_or_default().to_vec())
            .collect();
        let mut replies = Vec::new();
        for line in &self.replies {
            let tokens = match (&line.text, &line.tokens) {
                (Some(text), _) => tokenizer.encode(text, Specials::Parse, Bos::Skip)?,
                (None, tokens) => tokens.clone().unwrap_or_default(),
            };
            if let Some(bad) = tokens.iter().find(|&&t| t >= vocab_size) {
                bail!("script: token `{bad}` is not in the vocabulary of {vocab_size}");
            }
            let when = line.when.as_ref().map(|w| w.as_bytes().to_vec());
            replies.push(Reply { when, tokens });
        }
        let step_time = Duration::from_millis(self.header.step_ms);
        Ok(Script { token_bytes, eos, replies, step_time })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bad_headers_name_the_field() {
        for (header, says) in [
            (r#"{"eos": "x"}"#, "`eos` is `x`"),
            (r#"{"special_tokens": ["<|im_end|>", ""]}"#, "`special_tokens[1]`"),
            (r#"{"special_tokens": ["<|im_end|>", "<|im_end|>"]}"#, "`special_tokens[1]`"),
            (r#"{"max_model_len": 0}"#, "`max_model_len`"),
            (r#"{"step_ms": 60001}"#, "`step_ms`"),
            (r#"{"step": 1}"#, "unknown field `step`"),
            (r#"{"eos": 1}"#, "(column 9)"),
        ] {
            let error = parse::<Header>(header).and_then(Header::check).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("line 1"), "{header}: {error}");
        }
        parse::<Header>("{}").and_then(Header::check).unwrap();
    }
}
