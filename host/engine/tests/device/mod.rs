//! A device whose KV cache holds, in each slot, a hash of all tokens up to there, the salt and the
//! KV group. It reads back through the block tables what each token sees, so any wrong block, slot,
//! order or count stops the test; the output is a hash of the context.
#![allow(dead_code)] // each test crate uses its part

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenon_engine::{
    BlockHash, BlockId, Engine, EngineConfig, FinishReason, Logprob, NewRequest, PrefillLimit,
    RequestId, Sampled, SamplingParams, SchedulingPolicy, StepOutput, StepPlan, Tenant,
    TokenLogprobs, Transfer,
};

/// Tokens are below; 0 ends a sequence.
pub const VOCAB: u32 = 23;

pub fn config() -> EngineConfig {
    EngineConfig {
        num_blocks: 12,
        block_size: 4,
        max_num_seqs: 4,
        max_step_tokens: 12,
        max_prefill_chunk: 8,
        max_prompt_logits_rows: 4,
        policy: SchedulingPolicy::Fcfs,
        max_model_len: 40,
        max_waiting: 200,
        kv_groups: vec![None],
        tier: None,
        prefix_caching: true,
        hash_key: [3; 16],
        eos_token_ids: vec![0],
    }
}

/// The model: the next token after `context` in sequence `index` of a request.
pub fn next_token(context: &[u32], index: u32) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ u64::from(index);
    for &token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    (hash >> 7) as u32 % VOCAB
}

/// What the model says without any engine.
pub fn expected(prompt: &[u32], index: u32, max_tokens: u32, max_len: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < max_len && tokens.len() - prompt.len() < max_tokens as usize {
        let token = next_token(&tokens, index);
        tokens.push(token);
        if token == 0 {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// What the model says of `token` behind `context`; each context has a number of its own.
pub fn score(context: &[u32], token: u32) -> TokenLogprobs {
    let hash = context.iter().fold(7_u32, |h, &t| (h ^ t).wrapping_mul(0x0100_0193));
    let chosen = Logprob { token, logprob: -((hash >> 9) as f32), rank: 1 };
    TokenLogprobs { chosen, top: Vec::new() }
}

/// The log-probabilities of a whole prompt.
pub fn scores(prompt: &[u32]) -> Vec<TokenLogprobs> {
    (1..prompt.len()).map(|at| score(&prompt[..at], prompt[at])).collect()
}

#[derive(Debug, Clone)]
struct Row {
    tokens: Vec<u32>,
    // [num_groups]
    tables: Vec<Vec<BlockId>>,
    index: u32,
    request: RequestId,
    num_computed: usize,
    max_len: usize,
    prompt_len: usize,
}

/// What a slot must hold to be read: everything that KV depends on.
fn prefix_hash(salt: (u64, u32), group: usize, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (salt, group, tokens).hash(&mut hasher);
    hasher.finish()
}

/// What the slots of a block hold.
type Slots = Vec<Option<u64>>;

pub struct Device {
    block_size: usize,
    groups: Vec<Option<u32>>,
    // [num_blocks * block_size] `prefix_hash` up to and with the token in the slot
    slots: Vec<Option<u64>>,
    rows: HashMap<u32, Row>,
    /// Tenant and salt of each request, to see that nothing crosses over.
    pub salts: HashMap<RequestId, (u64, u32)>,
    /// First admissions, in order.
    pub admissions: Vec<(RequestId, u32)>,
    /// Sequences whose next result is a failure.
    pub failing: Vec<RequestId>,
    /// What [`Engine::limit_prefill`] was told last.
    pub prefill_limit: usize,
    /// Plans are made while others are in flight.
    pub is_ahead: bool,
    /// Tokens computed for each request.
    pub num_tokens: HashMap<RequestId, usize>,
    /// Blocks that were copied.
    pub num_copies: usize,
    /// What the tier holds.
    tier: HashMap<BlockHash, Slots>,
    /// Loads that were begun, oldest first; with what they bring, which may be nothing.
    pub loads: VecDeque<(BlockId, BlockHash, Option<Slots>)>,
    /// Every so many-th store and load fails; 0: none.
    pub tier_fault: usize,
    num_moves: usize,
}

impl Device {
    pub fn new(config: &EngineConfig) -> Self {
        Device {
            block_size: config.block_size,
            groups: config.kv_groups.clone(),
            slots: vec![None; config.num_blocks * config.block_size],
            rows: HashMap::new(),
            salts: HashMap::new(),
            admissions: Vec::new(),
            failing: Vec::new(),
            prefill_limit: usize::MAX,
            is_ahead: false,
            num_tokens: HashMap::new(),
            num_copies: 0,
            tier: HashMap::new(),
            loads: VecDeque::new(),
            tier_fault: 0,
            num_moves: 0,
        }
    }

    fn move_fails(&mut self) -> bool {
        self.num_moves += 1;
        self.tier_fault > 0 && self.num_moves.is_multiple_of(self.tier_fault)
    }

    fn slots_of(&mut self, block: BlockId) -> &mut [Option<u64>] {
        &mut self.slots[block.0 as usize * self.block_size..][..self.block_size]
    }

    /// Begins what is to be moved; the stores that failed.
    pub fn transfer(&mut self, transfers: &[Transfer]) -> Vec<BlockHash> {
        let mut failed = Vec::new();
        for &transfer in transfers {
            match transfer {
                Transfer::Store { hash, .. } if self.move_fails() => failed.push(hash),
                Transfer::Store { block, hash } => {
                    let slots = self.slots_of(block).to_vec();
                    assert!(slots.iter().all(Option::is_some), "a block with holes is stored");
                    self.tier.insert(hash, slots);
                }
                Transfer::Load { block, hash } => {
                    self.slots_of(block).fill(None);
                    let stored = self.tier.get(&hash).cloned();
                    assert!(stored.is_some() || self.tier_fault > 0, "a load of nothing");
                    self.loads.push_back((block, hash, stored));
                }
                Transfer::Remove { hash } => drop(self.tier.remove(&hash)),
            }
        }
        failed
    }

    /// Ends the oldest load; whether it brought the block.
    fn end_load(&mut self) -> Option<(BlockId, BlockHash, bool)> {
        let (block, hash, stored) = self.loads.pop_front()?;
        let Some(slots) = stored.filter(|_| !self.move_fails()) else {
            return Some((block, hash, false));
        };
        self.slots_of(block).copy_from_slice(&slots);
        Some((block, hash, true))
    }

    /// How many blocks of the prompt, sent alone and without a salt, the tier holds from its head
    /// on, and how many others of it.
    pub fn tier_prefix(&self, prompt: &[u32]) -> (usize, usize) {
        let is_held = |len: usize| {
            let last = prefix_hash((0, 0), 0, &prompt[..len]);
            self.tier.values().any(|slots| slots.last() == Some(&Some(last)))
        };
        let ends = (1..=prompt.len() / self.block_size).map(|at| at * self.block_size);
        let held: Vec<bool> = ends.map(is_held).collect();
        let num_leading = held.iter().take_while(|&&is_held| is_held).count();
        (num_leading, held[num_leading..].iter().filter(|&&is_held| is_held).count())
    }

    /// Runs a plan and checks that it is one that a device can run.
    pub fn run(&mut self, plan: &StepPlan, config: &EngineConfig, num_live: usize) -> Vec<Sampled> {
        self.apply(plan);
        self.check_shares(plan, config, num_live);
        for copy in &plan.block_copies {
            let at = |block: BlockId| block.0 as usize * self.block_size;
            let from = at(copy.from);
            self.slots.copy_within(from..from + self.block_size, at(copy.to));
            self.num_copies += 1;
        }
        for item in &plan.scheduled {
            let row = &self.rows[&item.row.0];
            assert_eq!(row.num_computed, item.start as usize);
            for group in 0..self.groups.len() {
                for position in item.start as usize..(item.start + item.num_tokens) as usize {
                    self.write(item.row.0, group, position);
                }
            }
        }
        let mut results = Vec::new();
        for item in &plan.scheduled {
            let end = (item.start + item.num_tokens) as usize;
            self.read(item.row.0, item.start as usize, end);
            let row = &self.rows[&item.row.0];
            let is_last = end == row.tokens.len();
            assert_eq!(item.wants_logits, is_last && row.tokens.len() < row.max_len);
            if !item.prompt_rows.is_empty() {
                assert!(row.index == 0 && item.prompt_rows.start >= item.start);
                let score = |p: u32| score(&row.tokens[..=p as usize], row.tokens[p as usize + 1]);
                results.push(Sampled::Prompt(item.prompt_rows.clone().map(score).collect()));
            }
            let row = self.rows.get_mut(&item.row.0).expect("it was read above");
            row.num_computed = end;
            *self.num_tokens.entry(row.request).or_default() += item.num_tokens as usize;
            if item.wants_logits {
                let token = next_token(&row.tokens, row.index);
                row.tokens.push(token);
                results.push(match self.failing.contains(&row.request) {
                    true => Sampled::Failed("planted".into()),
                    false => Sampled::Token { token, logprobs: None },
                });
            }
        }
        results
    }

    fn write(&mut self, row: u32, group: usize, position: usize) {
        let row = &self.rows[&row];
        let block = row.tables[group][position / self.block_size];
        let users = |r: &&Row| r.tables.iter().any(|t| t.contains(&block));
        let num_users = self.rows.values().filter(users).count();
        assert_eq!(num_users, 1, "a shared block is written");
        let hash = prefix_hash(self.salts[&row.request], group, &row.tokens[..=position]);
        let slot = block.0 as usize * self.block_size + position % self.block_size;
        self.slots[slot] = Some(hash);
    }

    /// Everything that the tokens from `start` to `end` see was written by this very prefix.
    fn read(&self, row: u32, start: usize, end: usize) {
        let row = &self.rows[&row];
        for (group, &window) in self.groups.iter().enumerate() {
            let first = window.map_or(0, |w| (start + 1).saturating_sub(w as usize));
            for position in first..end {
                let block = row.tables[group][position / self.block_size];
                assert_ne!(block, BlockId::NONE, "a block inside of the window is gone");
                let slot = block.0 as usize * self.block_size + position % self.block_size;
                let hash = prefix_hash(self.salts[&row.request], group, &row.tokens[..=position]);
                assert_eq!(self.slots[slot], Some(hash), "the slot holds something else");
            }
            // A leader keeps what its siblings will see, one block at most.
            let passed = first / self.block_size;
            let kept = row.tables[group][..passed].iter().filter(|&&b| b != BlockId::NONE);
            assert!(kept.count() <= 1, "blocks that the window has left are kept");
        }
    }

    fn apply(&mut self, plan: &StepPlan) {
        for row in &plan.released {
            assert!(self.rows.remove(&row.0).is_some(), "row {} is released twice", row.0);
        }
        for new in &plan.admitted {
            let mut tokens = new.prompt.to_vec();
            tokens.extend(&new.output);
            let is_first = !self.admissions.contains(&(new.request, new.index));
            if is_first {
                self.admissions.push((new.request, new.index));
            }
            let row = Row {
                tokens,
                tables: vec![Vec::new(); self.groups.len()],
                index: new.index,
                request: new.request,
                num_computed: usize::MAX,
                max_len: new.max_len,
                prompt_len: new.prompt.len(),
            };
            assert!(self.rows.insert(new.row.0, row).is_none(), "row {} is taken", new.row.0);
        }
        for item in &plan.scheduled {
            let updates = &plan.tables[item.tables.start as usize..item.tables.end as usize];
            assert_eq!(updates.len(), self.groups.len());
            let row = self.rows.get_mut(&item.row.0).expect("only admitted rows are scheduled");
            for (table, update) in row.tables.iter_mut().zip(updates) {
                let new = update.new_blocks.start as usize..update.new_blocks.end as usize;
                assert!(update.num_kept as usize <= table.len());
                table.truncate(update.num_kept as usize);
                table.extend(&plan.new_blocks[new]);
                table[..update.num_passed as usize].fill(BlockId::NONE);
            }
            if row.num_computed == usize::MAX {
                row.num_computed = item.start as usize;
            }
        }
    }

    fn check_shares(&self, plan: &StepPlan, config: &EngineConfig, num_live: usize) {
        let mut seen = Vec::new();
        let (mut num_tokens, mut num_prefill, mut num_prompt_rows) = (0, 0, 0);
        let decodes = |row: &Row| {
            row.num_computed >= row.prompt_len && row.num_computed + 1 == row.tokens.len()
        };
        let is_new = |id: u32| plan.admitted.iter().any(|new| new.row.0 == id);
        let anyone_decodes = self.rows.iter().any(|(id, row)| decodes(row) && !is_new(*id));
        for item in &plan.scheduled {
            assert!(!seen.contains(&item.row), "a row is scheduled twice");
            seen.push(item.row);
            assert!(item.num_tokens > 0);
            let cap =
                if num_live > 1 && !self.is_ahead { config.max_prefill_chunk } else { usize::MAX };
            assert!(item.num_tokens as usize <= cap);
            num_tokens += item.num_tokens as usize;
            num_prompt_rows += item.prompt_rows.len();
            if !decodes(&self.rows[&item.row.0]) {
                num_prefill += item.num_tokens as usize;
            }
        }
        assert!(num_prompt_rows <= config.max_prompt_logits_rows, "too many rows of logits");
        let num_rows = plan.scheduled.len();
        assert!(
            !anyone_decodes
                || self.is_ahead
                || num_prefill <= self.prefill_limit.saturating_add(num_rows),
            "{num_prefill} prefill tokens beside others' decoding"
        );
        assert_eq!(num_tokens, plan.num_tokens);
        assert!(num_tokens <= config.max_step_tokens, "the budget is exceeded");
        for (id, row) in &self.rows {
            let is_decoding = row.tokens.len() - row.num_computed.min(row.tokens.len()) == 1;
            // Released with the next plan: preempted ones are gone from `rows` already.
            // Planned ahead, the first one may have to wait for blocks that others were given.
            if is_decoding && !self.is_ahead {
                assert!(seen.iter().any(|r| r.0 == *id), "a decode got no token");
            }
        }
    }
}

/// What a sequence said.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    pub tokens: Vec<u32>,
    pub prompt: Vec<TokenLogprobs>,
    pub finish: Option<FinishReason>,
    pub num_cached: u32,
}

/// Engine, device and everything that came out.
pub struct Bench {
    pub engine: Engine,
    pub device: Device,
    pub heard: HashMap<(RequestId, u32), Heard>,
    /// How many scores the first sequence of a request owes before anyone has a token.
    num_owed: HashMap<RequestId, usize>,
    pub num_steps: usize,
}

impl Bench {
    pub fn new(config: EngineConfig) -> Self {
        let device = Device::new(&config);
        let engine = Engine::new(config).expect("the configuration is valid");
        let (heard, num_owed) = (HashMap::new(), HashMap::new());
        Bench { engine, device, heard, num_owed, num_steps: 0 }
    }

    pub fn add(&mut self, id: u64, prompt: &[u32], n: u32, max_tokens: u32, salt: u32) {
        let params = SamplingParams { max_tokens, ..Default::default() };
        self.add_with(id, (prompt, n, params, salt), 0, Tenant::default());
    }

    pub fn add_for(
        &mut self,
        id: u64,
        (prompt, n, max_tokens, salt): (&[u32], u32, u32, u32),
        priority: i32,
        tenant: Tenant,
    ) {
        let params = SamplingParams { max_tokens, ..Default::default() };
        self.add_with(id, (prompt, n, params, salt), priority, tenant);
    }

    pub fn add_with(
        &mut self,
        id: u64,
        (prompt, n, params, salt): (&[u32], u32, SamplingParams, u32),
        priority: i32,
        tenant: Tenant,
    ) {
        let salt_text = (salt > 0).then(|| format!("salt {salt}"));
        self.device.salts.insert(RequestId(id), (tenant.id, salt));
        let num_owed = if params.prompt_logprobs.is_some() { prompt.len() - 1 } else { 0 };
        self.num_owed.insert(RequestId(id), num_owed);
        self.engine
            .add(NewRequest {
                id: RequestId(id),
                prompt: prompt.into(),
                n,
                params: Arc::new(params),
                cache_salt: salt_text,
                priority,
                tenant,
            })
            .expect("the request fits");
        for index in 0..n {
            self.heard.insert((RequestId(id), index), Heard::default());
        }
    }

    pub fn abort(&mut self, id: u64) {
        let mut outputs = Vec::new();
        self.engine.abort(RequestId(id), FinishReason::Abort, &mut outputs);
        self.hear(outputs);
        self.engine.check();
    }

    pub fn abort_sequence(&mut self, id: u64, index: u32) {
        let mut outputs = Vec::new();
        self.engine.abort_sequence(RequestId(id), index, &mut outputs);
        assert!(outputs.len() <= 1);
        self.hear(outputs);
        self.engine.check();
    }

    /// Tells engine and device.
    pub fn limit_prefill(&mut self, limit: PrefillLimit) {
        self.engine.limit_prefill(limit);
        self.device.prefill_limit = limit.num_tokens;
    }

    /// One step; `in_flight` is aborted between plan and settle. False when idle.
    pub fn step(&mut self, in_flight: Option<u64>) -> bool {
        let config = self.engine.config().clone();
        let stats = self.engine.stats();
        let num_live = stats.num_requests_running + stats.num_requests_waiting;
        // One load ends per step, or all that nobody can go on without.
        let mut num_ends = 1;
        if self.engine.waits_for_loads() {
            num_ends = self.device.loads.len().max(1);
        }
        for _ in 0..num_ends {
            if let Some((block, hash, is_ok)) = self.device.end_load() {
                self.engine.loaded(block, hash, is_ok);
                self.engine.check();
            }
        }
        let Some(plan) = self.engine.plan() else {
            let mut transfers = Vec::new();
            self.engine.take_transfers(&mut transfers);
            for hash in self.device.transfer(&transfers) {
                self.engine.store_failed(hash);
            }
            return !self.device.loads.is_empty();
        };
        let failed = self.device.transfer(&plan.transfers);
        let mut results = self.device.run(plan, &config, num_live as usize);
        let now = self.engine.stats();
        let num_preempted = now.num_preemptions - stats.num_preemptions;
        if !self.device.is_ahead && num_preempted > 0 {
            let num_waiting = stats.num_requests_waiting + num_preempted;
            assert_eq!(now.num_requests_waiting, num_waiting, "admission beside a preemption");
        }
        for hash in failed {
            self.engine.store_failed(hash);
        }
        // Aborts fall on either side of the plan ahead, by the parity of the id.
        let mut outputs = Vec::new();
        let is_early = in_flight.is_some_and(|id| id % 2 == 0);
        if let Some(id) = in_flight.filter(|_| is_early) {
            self.engine.abort(RequestId(id), FinishReason::Abort, &mut outputs);
        }
        if self.device.is_ahead {
            self.engine.plan_ahead();
            self.engine.check();
        }
        if let Some(id) = in_flight.filter(|_| !is_early) {
            self.engine.abort(RequestId(id), FinishReason::Abort, &mut outputs);
        }
        self.engine.settle(&mut results, &mut outputs);
        self.hear(outputs);
        self.engine.check();
        self.num_steps += 1;
        true
    }

    pub fn run(&mut self, max_steps: usize) {
        for _ in 0..max_steps {
            if !self.step(None) {
                return;
            }
        }
        panic!("{max_steps} steps and not done");
    }

    pub fn heard(&self, id: u64, index: u32) -> &Heard {
        &self.heard[&(RequestId(id), index)]
    }

    fn hear(&mut self, outputs: Vec<StepOutput>) {
        for output in outputs {
            let key = (output.request, output.index);
            let first = &self.heard[&(output.request, 0)];
            let is_scored =
                first.prompt.len() + output.prompt_logprobs.len() == self.num_owed[&output.request];
            let is_early = output.token.is_some() && !is_scored && first.finish.is_none();
            assert!(!is_early, "{key:?} speaks before its prompt is scored");
            let heard = self.heard.get_mut(&key).expect("somebody asked");
            assert_eq!(heard.finish, None, "{key:?} speaks after its end");
            heard.tokens.extend(output.token);
            heard.prompt.extend(output.prompt_logprobs);
            heard.finish = output.finish;
            heard.num_cached = output.num_cached_tokens;
        }
    }
}
