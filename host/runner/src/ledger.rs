//! Which sequences still owe their last output. Kept outside of the engine, so that it holds after
//! a panic in there.

use std::collections::HashMap;

use tenon_engine::params::MAX_N;
use tenon_engine::{FinishReason, RequestId, StepOutput};

/// The requests that are alive. Bounded by `max_live_seqs`.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    // Bit i: sequence i has not ended.
    live: HashMap<RequestId, u128>,
}

const _: () = assert!(MAX_N == u128::BITS);

impl Ledger {
    /// False when a request with this id is alive already.
    pub fn open(&mut self, request: RequestId, n: u32) -> bool {
        assert!((1..=MAX_N).contains(&n));
        if self.live.contains_key(&request) {
            return false;
        }
        self.live.insert(request, u128::MAX >> (MAX_N - n));
        true
    }

    /// Notes which sequences ended with these outputs, and how many.
    pub fn settle(&mut self, outputs: &[StepOutput]) -> usize {
        let mut num_ended = 0;
        for output in outputs.iter().filter(|o| o.finish.is_some()) {
            let bits = self.live.get_mut(&output.request).expect("the request is alive");
            let bit = 1 << output.index;
            assert!(*bits & bit != 0, "sequence {} ended twice", output.index);
            *bits &= !bit;
            num_ended += 1;
            if *bits == 0 {
                self.live.remove(&output.request);
            }
        }
        num_ended
    }

    /// The last outputs of all that are alive.
    pub fn end_all(&self, finish: FinishReason, error: Option<&str>) -> Vec<StepOutput> {
        let mut outputs = Vec::new();
        for (&request, &bits) in &self.live {
            for index in (0..MAX_N).filter(|i| bits >> i & 1 == 1) {
                outputs.push(StepOutput {
                    request,
                    index,
                    token: None,
                    logprobs: None,
                    prompt_logprobs: Vec::new(),
                    finish: Some(finish),
                    error: error.map(str::to_owned),
                    num_cached_tokens: 0,
                });
            }
        }
        outputs
    }
}
