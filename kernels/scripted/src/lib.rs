//! A backend that replays given token sequences, so that the whole stack (scheduler, tokenizer,
//! detokenizer, parser component, SSE) runs deterministically without a model.
//!
//! Its KV cache holds token ids: what it answers is a function of the context that it reads back
//! through the block tables, so prefix caching, chunking and preemption are exercised for real.

use std::time::Duration;

use tenon_backend::{
    Backend, BackendError, KvDType, KvGroup, PrepareOptions, SeqSpan, StepInputs, Ticket,
    WeightMode,
};

/// How far the scripted token's logit stands above all others.
const PEAK: f32 = 30.0;

/// Bytes of a slot as [`Backend::read_block`] gives it.
const SLOT_BYTES: usize = 8;

/// One scripted answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Answers prompts that contain these bytes; none: answers what no other reply does.
    pub when: Option<Vec<u8>>,
    /// The output, without the end-of-sequence token.
    pub tokens: Vec<u32>,
}

/// What to replay.
#[derive(Debug, Clone)]
pub struct Script {
    /// `[vocab_size]` the bytes of each token, for `when`.
    pub token_bytes: Vec<Vec<u8>>,
    /// Follows each reply.
    pub eos: u32,
    /// Tried in order; of several that match, the one that occurs last in the prompt wins.
    pub replies: Vec<Reply>,
    /// Each step takes at least this long.
    pub step_time: Duration,
}

/// See the module's doc.
pub struct ScriptedBackend {
    script: Script,
    block_size: usize,
    /// Steps are checked as by every other backend.
    options: PrepareOptions,
    /// `[num_blocks * block_size]` the token that was written to each slot.
    slots: Vec<Option<u32>>,
    /// `[num_logits_rows, vocab_size]` of the last step.
    logits: Vec<f32>,
    next_ticket: u64,
}

impl ScriptedBackend {
    /// A cache of `num_blocks` blocks of `block_size` slots.
    pub fn new(script: Script, num_blocks: usize, block_size: usize) -> Self {
        let options = PrepareOptions {
            weights: WeightMode::Native,
            kv_dtype: KvDType::F32,
            hybrid_kv: false,
            num_blocks,
            block_size,
            max_step_tokens: usize::MAX,
            max_logits_rows: usize::MAX,
            num_threads: 1,
        };
        ScriptedBackend {
            script,
            block_size,
            options,
            slots: vec![None; num_blocks * block_size],
            logits: Vec::new(),
            next_ticket: 0,
        }
    }

    /// The sequence's tokens up to `len`, read back from the cache.
    fn context(
        &self,
        inputs: &StepInputs<'_>,
        span: &SeqSpan,
        len: usize,
    ) -> Result<Vec<u32>, BackendError> {
        let start = span.table_start as usize;
        let table = &inputs.block_tables[start..start + span.table_len as usize];
        (0..len)
            .map(|position| {
                let block = table[position / self.block_size] as usize;
                let slot = block * self.block_size + position % self.block_size;
                self.slots[slot].ok_or_else(|| {
                    BackendError::Failed(format!("slot `{slot}` is read but was never written"))
                })
            })
            .collect()
    }

    fn next_token(&self, context: &[u32], prompt_len: usize) -> u32 {
        if context.len() < prompt_len {
            return self.script.eos;
        }
        let prompt: Vec<u8> = context[..prompt_len]
            .iter()
            .filter_map(|&t| self.script.token_bytes.get(t as usize))
            .flatten()
            .copied()
            .collect();
        let at = context.len() - prompt_len;
        self.reply(&prompt).and_then(|r| r.tokens.get(at)).copied().unwrap_or(self.script.eos)
    }

    fn reply(&self, prompt: &[u8]) -> Option<&Reply> {
        let matched = self.script.replies.iter().filter_map(|reply| {
            let when = reply.when.as_deref()?;
            Some((rfind(prompt, when)?, reply))
        });
        let last = matched.max_by_key(|(at, _)| *at).map(|(_, reply)| reply);
        last.or_else(|| self.script.replies.iter().find(|r| r.when.is_none()))
    }
}

fn rfind(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    if needle.is_empty() {
        return Some(haystack.len());
    }
    haystack.windows(needle.len()).rposition(|w| w == needle)
}

impl Backend for ScriptedBackend {
    fn describe(&self) -> String {
        format!("scripted, {} replies", self.script.replies.len())
    }

    fn forward(&mut self, inputs: &StepInputs<'_>) -> Result<Ticket, BackendError> {
        let vocab_size = self.script.token_bytes.len();
        inputs.check(vocab_size, &self.options, &[KvGroup { window: None }])?;
        for copy in inputs.block_copies {
            let from = copy.from as usize * self.block_size;
            let to = copy.to as usize * self.block_size;
            self.slots.copy_within(from..from + self.block_size, to);
        }
        for (&slot, &token) in inputs.slot_mapping.iter().zip(inputs.token_ids) {
            self.slots[slot as usize] = Some(token);
        }
        self.logits.clear();
        self.logits.resize(inputs.logits_rows.len() * vocab_size, 0.0);
        for (row, &token_index) in inputs.logits_rows.iter().enumerate() {
            let span = inputs
                .seqs
                .iter()
                .find(|s| (s.token_start..s.token_start + s.num_tokens).contains(&token_index))
                .ok_or_else(|| {
                    BackendError::Failed(format!("logits row `{token_index}` is in no sequence"))
                })?;
            let len = inputs.positions[token_index as usize] as usize + 1;
            let context = self.context(inputs, span, len)?;
            let token = self.next_token(&context, span.prompt_len as usize);
            self.logits[row * vocab_size + token as usize] = PEAK;
        }
        std::thread::sleep(self.script.step_time);
        self.next_ticket += 1;
        Ok(Ticket(self.next_ticket))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<&mut [f32], BackendError> {
        if ticket.0 != self.next_ticket {
            return Err(BackendError::Failed(format!("ticket `{}` is stale", ticket.0)));
        }
        Ok(&mut self.logits)
    }

    fn block_bytes(&self) -> usize {
        self.block_size * SLOT_BYTES
    }

    fn read_block(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), BackendError> {
        let slots = &self.slots[block as usize * self.block_size..][..self.block_size];
        for (slot, bytes) in slots.iter().zip(bytes.chunks_exact_mut(SLOT_BYTES)) {
            let value = slot.map_or(u64::MAX, u64::from);
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), BackendError> {
        let slots = &mut self.slots[block as usize * self.block_size..][..self.block_size];
        for (slot, bytes) in slots.iter_mut().zip(bytes.chunks_exact(SLOT_BYTES)) {
            let bytes = bytes.try_into().expect("the chunks have this length");
            *slot = u32::try_from(u64::from_le_bytes(bytes)).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn script(replies: Vec<Reply>) -> Script {
        let token_bytes = (0..=255u8).map(|b| vec![b]).chain([b"<eos>".to_vec()]).collect();
        Script { token_bytes, eos: 256, replies, step_time: Duration::ZERO }
    }

    fn reply(when: Option<&str>, text: &str) -> Reply {
        Reply {
            when: when.map(|w| w.as_bytes().to_vec()),
            tokens: text.bytes().map(u32::from).collect(),
        }
    }

    /// Runs `prompt` in one step and then token by token, over the blocks of `table`.
    fn generate(backend: &mut ScriptedBackend, prompt: &str, table: &[u32]) -> String {
        let mut tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let prompt_len = tokens.len() as u32;
        let mut done = 0;
        let mut out = Vec::new();
        loop {
            let positions: Vec<u32> = (done as u32..tokens.len() as u32).collect();
            let size = backend.block_size as u32;
            let slots: Vec<u32> =
                positions.iter().map(|p| table[(p / size) as usize] * size + p % size).collect();
            let table = &table[..tokens.len().div_ceil(backend.block_size)];
            let span = SeqSpan {
                row: 0,
                token_start: 0,
                num_tokens: positions.len() as u32,
                context_len: tokens.len() as u32,
                prompt_len,
                table_start: 0,
                table_len: table.len() as u32,
            };
            let ticket = backend
                .forward(&StepInputs {
                    token_ids: &tokens[done..],
                    positions: &positions,
                    slot_mapping: &slots,
                    seqs: &[span],
                    block_tables: table,
                    logits_rows: &[positions.len() as u32 - 1],
                    block_copies: &[],
                })
                .unwrap();
            let logits = backend.wait(ticket).unwrap();
            let best = logits.iter().position(|&l| l == PEAK).unwrap();
            if best == 256 {
                return String::from_utf8(out).unwrap();
            }
            out.push(best as u8);
            done = tokens.len();
            tokens.push(best as u32);
        }
    }

    #[test]
    fn the_reply_that_matches_last_in_the_prompt_wins() {
        let replies = vec![
            reply(None, "default"),
            reply(Some("tide"), "06:40"),
            reply(Some("wind"), "north"),
        ];
        let mut backend = ScriptedBackend::new(script(replies), 8, 4);
        let table = [5, 2, 7, 0, 1, 3, 4, 6];
        assert_eq!(generate(&mut backend, "tide? wind?", &table), "north");
        assert_eq!(generate(&mut backend, "wind? tide?", &table), "06:40");
        assert_eq!(generate(&mut backend, "hello", &table), "default");
    }

    #[test]
    fn a_slot_that_was_never_written_is_an_error() {
        let mut backend = ScriptedBackend::new(script(vec![]), 2, 4);
        let span = SeqSpan {
            row: 0,
            token_start: 0,
            num_tokens: 1,
            context_len: 2,
            prompt_len: 2,
            table_start: 0,
            table_len: 1,
        };
        let inputs = StepInputs {
            token_ids: &[1],
            positions: &[1],
            slot_mapping: &[1],
            seqs: &[span],
            block_tables: &[0],
            logits_rows: &[0],
            block_copies: &[],
        };
        assert!(backend.forward(&inputs).unwrap_err().to_string().contains("never written"));
        // A share of no tokens is none, as for every backend.
        let seqs = [SeqSpan { num_tokens: 0, row: 1, table_start: 1, table_len: 0, ..span }, span];
        let refused = backend.forward(&StepInputs { seqs: &seqs, ..inputs }).unwrap_err();
        assert!(refused.to_string().contains("row 1: tokens start at `0`, not 0"), "{refused}");
    }
}
