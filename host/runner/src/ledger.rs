//! Which sequences still owe their last output. Kept outside of the engine, so that it holds after
//! a panic in there.

use std::collections::HashMap;
use std::time::Instant;

use tenon_engine::params::MAX_N;
use tenon_engine::{FinishReason, RequestId, StepOutput};

/// The requests that are alive. Bounded by `max_live_seqs`.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    live: HashMap<RequestId, Live>,
    // At or before the first of all deadlines.
    next_deadline: Option<Instant>,
}

#[derive(Debug)]
struct Live {
    // Bit i: sequence i has not ended.
    bits: u128,
    deadline: Option<Instant>,
}

const _: () = assert!(MAX_N == u128::BITS);

impl Ledger {
    /// False when a request with this id is alive already.
    pub fn open(&mut self, request: RequestId, n: u32, deadline: Option<Instant>) -> bool {
        assert!((1..=MAX_N).contains(&n));
        if self.live.contains_key(&request) {
            return false;
        }
        self.live.insert(request, Live { bits: u128::MAX >> (MAX_N - n), deadline });
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
        true
    }

    /// The requests whose time is over at `now`; asked again, it says them again.
    pub fn expired(&mut self, now: Instant) -> Vec<RequestId> {
        if self.next_deadline.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let is_over = |live: &Live| live.deadline.is_some_and(|deadline| deadline <= now);
        let coming = self.live.values().filter(|live| !is_over(live)).filter_map(|l| l.deadline);
        self.next_deadline = coming.min();
        let over = self.live.iter().filter(|(_, live)| is_over(live));
        over.map(|(&request, _)| request).collect()
    }

    /// Notes which sequences ended with these outputs, and how many.
    pub fn settle(&mut self, outputs: &[StepOutput]) -> usize {
        let mut num_ended = 0;
        for output in outputs.iter().filter(|o| o.finish.is_some()) {
            let live = self.live.get_mut(&output.request).expect("the request is alive");
            let bit = 1 << output.index;
            assert!(live.bits & bit != 0, "sequence {} ended twice", output.index);
            live.bits &= !bit;
            num_ended += 1;
            if live.bits == 0 {
                self.live.remove(&output.request);
            }
        }
        num_ended
    }

    /// The last outputs of all that are alive.
    pub fn end_all(&self, finish: FinishReason, error: Option<&str>) -> Vec<StepOutput> {
        let mut outputs = Vec::new();
        for (&request, live) in &self.live {
            for index in (0..MAX_N).filter(|i| live.bits >> i & 1 == 1) {
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
