//! `tenon run`: chat with a model in the terminal, or answer one prompt.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tenon_chat::stream::{Finish, Finished, StreamEvent, StreamSpec};
use tenon_engine::{RequestId, SamplingParams};
use tenon_runner::handle::GenerateRequest;
use tenon_text::{Bos, Specials};
use tokio::sync::mpsc::unbounded_channel;

use crate::args::RunArgs;
use crate::launch::{self, Launched, launch};

/// Loads the model, then answers until the input ends.
pub fn run(args: &RunArgs) -> Result<()> {
    let launched = launch(&args.model, None, 1, None)?;
    let mut chat = Chat { args, launched, messages: Vec::new(), next_id: 1 };
    if let Some(system) = &args.system {
        chat.messages.push(json!({"role": "system", "content": system}));
    }
    match &args.prompt {
        Some(prompt) => chat.turn(prompt)?,
        None => chat.converse()?,
    }
    launch::end(&chat.launched.runner, chat.launched.thread, launch::MIN_END_TIMEOUT)
}

struct Chat<'a> {
    args: &'a RunArgs,
    launched: Launched,
    messages: Vec<Value>,
    next_id: u64,
}

impl Chat<'_> {
    fn converse(&mut self) -> Result<()> {
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            for line in &self.launched.lines {
                eprintln!("{line}");
            }
            eprintln!("type a message; /clear starts anew, end of input (Ctrl-D) leaves");
        }
        let mut num_failed = 0;
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if is_terminal {
                eprint!("> ");
            }
            let Some(line) = lines.next().transpose().context("the input is no UTF-8")? else {
                break;
            };
            match line.trim() {
                "" => {}
                "/clear" => self.messages.retain(|m| m["role"] == "system"),
                text => {
                    if let Err(error) = self.turn(text) {
                        // The conversation goes on without what could not be answered.
                        eprintln!("error: {}", crate::explain(&error));
                        self.messages.pop();
                        num_failed += 1;
                    }
                }
            }
        }
        // A person saw it; a script must learn it.
        ensure!(is_terminal || num_failed == 0, "{num_failed} messages have no answer");
        Ok(())
    }

    /// One message and its answer.
    fn turn(&mut self, text: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": text}));
        let prompt = self.prompt()?;
        let answer = self.generate(prompt)?;
        self.messages.push(json!({"role": "assistant", "content": answer}));
        Ok(())
    }

    fn prompt(&self) -> Result<Vec<u32>> {
        let tokenizer = &self.launched.tokenizer;
        let Some(template) = &self.launched.template else {
            // A base model continues the text.
            let text = self.messages.last().and_then(|m| m["content"].as_str()).unwrap_or_default();
            return Ok(tokenizer.encode(text, Specials::AsText, Bos::Default)?);
        };
        let text = template.render(&self.messages, None, &Map::new(), true)?;
        Ok(tokenizer.encode(&text, Specials::Parse, Bos::Skip)?)
    }

    /// Streams the answer to standard output and returns it.
    fn generate(&mut self, prompt: Vec<u32>) -> Result<String> {
        let request = RequestId(self.next_id);
        self.next_id += 1;
        let (events, mut received) = unbounded_channel();
        let num_prompt_tokens = prompt.len();
        self.launched.workers.open(StreamSpec {
            request,
            n: 1,
            stop: Vec::new(),
            min_tokens: 0,
            include_stop: false,
            skip_special_tokens: true,
            wants_token_ids: false,
            parser: None,
            events,
        })?;
        let params = SamplingParams {
            max_tokens: self.args.max_tokens,
            temperature: self.args.temperature,
            seed: self.args.seed,
            ..SamplingParams::default()
        };
        let generate = GenerateRequest::new(request, prompt.into(), params);
        let start = Instant::now();
        if let Err(error) = self.launched.runner.submit(generate) {
            self.launched.workers.close(request);
            bail!("{error}");
        }
        let mut answer = String::new();
        let mut stdout = std::io::stdout().lock();
        while let Some(event) = received.blocking_recv() {
            match event.event {
                StreamEvent::Content(text) => {
                    stdout.write_all(text.as_bytes())?;
                    stdout.flush()?;
                    answer.push_str(&text);
                }
                StreamEvent::Finished(finished) => {
                    writeln!(stdout)?;
                    report(&finished, num_prompt_tokens, start)?;
                    return Ok(answer);
                }
                _ => {}
            }
        }
        bail!("the engine stopped in the middle of the answer")
    }
}

fn report(finished: &Finished, num_prompt_tokens: usize, start: Instant) -> Result<()> {
    if finished.finish == Finish::Error {
        bail!("{}", finished.error.as_deref().unwrap_or("the generation failed"));
    }
    if std::io::stderr().is_terminal() {
        let seconds = start.elapsed().as_secs_f64();
        let cut = if finished.finish == Finish::Length { ", cut at --max-tokens" } else { "" };
        let (cached, output) = (finished.num_cached_tokens, finished.num_output_tokens);
        eprintln!(
            "[{num_prompt_tokens} prompt tokens ({cached} cached), {output} output tokens, \
             {seconds:.1} s{cut}]"
        );
    }
    Ok(())
}
