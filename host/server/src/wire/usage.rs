//! OpenAI's `usage`, summed over the choices of one answer.

use serde::Serialize;
use tenon_chat::stream::Finished;

/// Tokens of one answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// Of all prompts, each counted once whatever `n` is.
    pub prompt_tokens: u64,
    /// `prompt_tokens + completion_tokens`
    pub total_tokens: u64,
    /// Generated, stop tokens included.
    pub completion_tokens: u64,
    /// Of the prompt tokens.
    pub prompt_tokens_details: PromptDetails,
    /// Of the generated tokens.
    pub completion_tokens_details: CompletionDetails,
}

/// Where prompt tokens came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PromptDetails {
    /// Found in the prefix cache.
    pub cached_tokens: u64,
}

/// What output tokens were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CompletionDetails {
    /// Generated while in reasoning.
    pub reasoning_tokens: u64,
}

impl Usage {
    /// `prompts`: the tokens of each prompt. `finished`: of each choice, `n` per prompt in order.
    ///
    /// Siblings of one prompt find it in the cache once the first has computed it, so the
    /// smallest count of the `n` is what the request really saved.
    pub fn of(prompts: &[u32], n: u32, finished: &[Option<Finished>]) -> Usage {
        let mut usage = Usage::default();
        for (prompt, siblings) in prompts.iter().zip(finished.chunks(n.max(1) as usize)) {
            let siblings = siblings.iter().flatten();
            usage.prompt_tokens += u64::from(*prompt);
            let cached = siblings.clone().map(|f| f.num_cached_tokens).min().unwrap_or(0);
            usage.prompt_tokens_details.cached_tokens += u64::from(cached);
            for sibling in siblings {
                usage.completion_tokens += u64::from(sibling.num_output_tokens);
                usage.completion_tokens_details.reasoning_tokens +=
                    u64::from(sibling.num_reasoning_tokens);
            }
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_chat::stream::Finish;

    #[test]
    fn prompts_count_once_and_outputs_add_up() {
        let finished = |output, reasoning, cached| {
            Some(Finished {
                finish: Finish::Stop,
                stop_reason: None,
                num_output_tokens: output,
                num_reasoning_tokens: reasoning,
                num_cached_tokens: cached,
                fault: None,
                error: None,
            })
        };
        let all = [finished(3, 1, 0), finished(4, 0, 16), finished(5, 2, 32), finished(6, 0, 48)];
        let usage = Usage::of(&[20, 50], 2, &all);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (70, 18));
        assert_eq!(usage.total_tokens, 88);
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 32);
        assert_eq!(usage.completion_tokens_details.reasoning_tokens, 3);
    }
}
