//! `/metrics` in the Prometheus text format 0.0.4: the names, labels and buckets that routers and
//! dashboards for vLLM read, and `tenon_*` for extensions.
//!
//! Figures of the engine are read at each scrape; figures of requests are counted where their
//! events pass (`generation`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tenon_engine::EngineStats;
use tenon_engine::stats::STEP_TOKEN_BOUNDS;

pub(crate) use prometheus_text::CONTENT_TYPE;

const TTFT_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const PER_TOKEN_BUCKETS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST_BUCKETS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const N_BUCKETS: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// Why a sequence ended, as the label `finished_reason` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Stop token or stop string.
    Stop,
    /// The same, behind a tool call.
    ToolCalls,
    /// Token limit.
    Length,
    /// The output ended in a repeated pattern.
    Repetition,
    /// The client left, or the server shut down.
    Abort,
    /// It failed.
    Error,
}

impl Ended {
    const ALL: [Ended; 6] = [
        Ended::Stop,
        Ended::ToolCalls,
        Ended::Length,
        Ended::Repetition,
        Ended::Abort,
        Ended::Error,
    ];

    fn label(self) -> &'static str {
        match self {
            Ended::Stop => "stop",
            Ended::ToolCalls => "tool_calls",
            Ended::Length => "length",
            Ended::Repetition => "repetition",
            Ended::Abort => "abort",
            Ended::Error => "error",
        }
    }
}

type Labels = Vec<(&'static str, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// The engine's own histogram of tokens per step, as of the last scrape.
#[derive(Debug, Default)]
struct StepTokens(Mutex<EngineStats>);

impl StepTokens {
    fn set(&self, stats: &EngineStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *stats;
    }
}

impl Collector for StepTokens {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        let stats = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bounds = STEP_TOKEN_BOUNDS.iter().map(|&bound| bound as f64).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(stats.step_tokens).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let (name, help) = ("vllm:iteration_tokens_total", "Tokens per forward pass");
        encoder
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(stats.num_step_tokens as f64, count, &buckets, None)
    }
}

/// All counters of a server.
pub(crate) struct Metrics {
    registry: Registry,
    num_running: Gauge,
    num_waiting: Gauge,
    waiting_by_reason: Family<Labels, Gauge>,
    kv_cache_usage: FloatGauge,
    kv_cache_waste: FloatGauge,
    tier_blocks: Gauge,
    tier_stores: Counter,
    tier_loads: Counter,
    tier_failures: Counter,
    cache_config: Family<Labels, Gauge>,
    prefix_queries: Counter,
    prefix_hits: Counter,
    num_preemptions: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    step_tokens: Arc<StepTokens>,
    request_success: Family<Labels, Counter>,
    time_to_first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    request_latency: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_tokens: Histogram,
    request_n: Histogram,
    extension_faults: Family<Labels, Counter>,
    http_responses: Family<Labels, Counter>,
}

impl Metrics {
    /// All series carry `model_name` and `engine`.
    pub fn new(model: &str, max_model_len: u32) -> Metrics {
        let labels =
            [("model_name".into(), model.to_owned().into()), ("engine".into(), "0".into())];
        let seconds = |buckets: &[f64]| Histogram::new(buckets.iter().copied());
        let tokens = || Histogram::new(token_buckets(max_model_len));
        let mut metrics = Metrics {
            registry: Registry::with_labels(labels.into_iter()),
            num_running: Gauge::default(),
            num_waiting: Gauge::default(),
            waiting_by_reason: Family::default(),
            kv_cache_usage: FloatGauge::default(),
            kv_cache_waste: FloatGauge::default(),
            tier_blocks: Gauge::default(),
            tier_stores: Counter::default(),
            tier_loads: Counter::default(),
            tier_failures: Counter::default(),
            cache_config: Family::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            num_preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            step_tokens: Arc::default(),
            request_success: Family::default(),
            time_to_first_token: seconds(&TTFT_BUCKETS),
            inter_token: seconds(&PER_TOKEN_BUCKETS),
            per_output_token: seconds(&PER_TOKEN_BUCKETS),
            request_latency: seconds(&REQUEST_BUCKETS),
            request_prompt_tokens: tokens(),
            request_generation_tokens: tokens(),
            request_max_tokens: tokens(),
            request_n: seconds(&N_BUCKETS),
            extension_faults: Family::default(),
            http_responses: Family::default(),
        };
        metrics.register();
        // Rates need a zero to start from.
        for reason in Ended::ALL {
            metrics.ended_counter(reason);
        }
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("vllm:num_requests_running", "Sequences in the batch", self.num_running.clone());
        r.register("vllm:num_requests_waiting", "Sequences that wait", self.num_waiting.clone());
        r.register(
            "vllm:num_requests_waiting_by_reason",
            "Sequences that wait, by reason",
            self.waiting_by_reason.clone(),
        );
        let usage = self.kv_cache_usage.clone();
        r.register("vllm:kv_cache_usage_perc", "Used KV blocks, 1 is all", usage);
        let waste = self.kv_cache_waste.clone();
        r.register("tenon_kv_cache_waste", "Slots of used KV blocks without a token", waste);
        r.register("tenon_kv_offload_blocks", "Blocks below the pool", self.tier_blocks.clone());
        let stores = self.tier_stores.clone();
        r.register("tenon_kv_offload_stores", "Evicted blocks that were kept on", stores);
        let loads = self.tier_loads.clone();
        r.register("tenon_kv_offload_loads", "Blocks that were brought back", loads);
        let failures = self.tier_failures.clone();
        r.register("tenon_kv_offload_failures", "Blocks that were lost there", failures);
        r.register("vllm:cache_config_info", "The KV cache", self.cache_config.clone());
        let queries = self.prefix_queries.clone();
        r.register("vllm:prefix_cache_queries", "Tokens looked up", queries);
        r.register("vllm:prefix_cache_hits", "Tokens found", self.prefix_hits.clone());
        r.register("vllm:num_preemptions", "Preemptions", self.num_preemptions.clone());
        r.register("vllm:prompt_tokens", "Prompt tokens", self.prompt_tokens.clone());
        r.register("vllm:generation_tokens", "Output tokens", self.generation_tokens.clone());
        r.register_collector(Box::new(self.step_tokens.clone()));
        r.register(
            "vllm:request_success",
            "Sequences that ended, by reason",
            self.request_success.clone(),
        );
        let histograms = [
            ("time_to_first_token_seconds", "Until the first event", &self.time_to_first_token),
            ("inter_token_latency_seconds", "Between two events", &self.inter_token),
            (
                "request_time_per_output_token_seconds",
                "Mean time per output token behind the first",
                &self.per_output_token,
            ),
            ("e2e_request_latency_seconds", "Whole sequence", &self.request_latency),
            ("request_prompt_tokens", "Prompt tokens per request", &self.request_prompt_tokens),
            (
                "request_generation_tokens",
                "Output tokens per sequence",
                &self.request_generation_tokens,
            ),
            ("request_params_max_tokens", "Token limit per request", &self.request_max_tokens),
            ("request_params_n", "Sequences per request", &self.request_n),
        ];
        for (name, help, histogram) in histograms {
            r.register(format!("vllm:{name}"), help, histogram.clone());
        }
        r.register(
            "tenon_extension_faults",
            "Streams whose parser failed",
            self.extension_faults.clone(),
        );
        r.register("tenon_http_responses", "Answers by status", self.http_responses.clone());
    }

    /// A request was taken.
    pub fn submitted(&self, num_prompt_tokens: usize, n: u32, max_tokens: u32) {
        self.request_prompt_tokens.observe(num_prompt_tokens as f64);
        self.request_n.observe(f64::from(n));
        self.request_max_tokens.observe(f64::from(max_tokens));
    }

    /// The first event of a sequence came.
    pub fn first_event(&self, since_submit: Duration) {
        self.time_to_first_token.observe(since_submit.as_secs_f64());
    }

    /// Another event of a sequence came.
    pub fn next_event(&self, since_last: Duration) {
        self.inter_token.observe(since_last.as_secs_f64());
    }

    /// A sequence ended. `decode`: from its first event on.
    pub fn ended(&self, reason: Ended, whole: Duration, decode: Duration, num_tokens: u32) {
        self.ended_counter(reason).inc();
        if reason == Ended::Abort {
            return;
        }
        self.request_latency.observe(whole.as_secs_f64());
        self.request_generation_tokens.observe(f64::from(num_tokens));
        if num_tokens > 1 {
            let per_token = decode.as_secs_f64() / f64::from(num_tokens - 1);
            self.per_output_token.observe(per_token);
        }
    }

    /// A parser failed in a stream.
    pub fn extension_fault(&self, extension: &str, kind: &'static str) {
        let labels = vec![("extension", extension.to_owned()), ("kind", kind.to_owned())];
        self.extension_faults.get_or_create(&labels).inc();
    }

    /// An HTTP answer began.
    pub fn responded(&self, status: u16) {
        self.http_responses.get_or_create(&vec![("code", status.to_string())]).inc();
    }

    /// The page, with the engine's figures of now.
    pub fn render(&self, stats: &EngineStats) -> String {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.num_running.set(gauge(stats.num_requests_running));
        self.num_waiting.set(gauge(stats.num_requests_waiting));
        let deferred = stats.num_requests_deferred;
        let capacity = stats.num_requests_waiting.saturating_sub(deferred);
        for (reason, value) in [("capacity", capacity), ("deferred", deferred)] {
            let labels = vec![("reason", reason.to_owned())];
            self.waiting_by_reason.get_or_create(&labels).set(gauge(value));
        }
        self.kv_cache_usage.set(stats.kv_cache_usage);
        self.kv_cache_waste.set(stats.kv_cache_waste);
        self.tier_blocks.set(gauge(stats.num_tier_blocks));
        let config = vec![
            ("block_size", stats.block_size.to_string()),
            ("num_gpu_blocks", stats.num_blocks.to_string()),
            ("enable_prefix_caching", "True".to_owned()),
        ];
        self.cache_config.get_or_create(&config).set(1);
        let counters = [
            (&self.prefix_queries, stats.prefix_cache_queries),
            (&self.prefix_hits, stats.prefix_cache_hits),
            (&self.num_preemptions, stats.num_preemptions),
            (&self.tier_stores, stats.num_tier_stores),
            (&self.tier_loads, stats.num_tier_loads),
            (&self.tier_failures, stats.num_tier_failures),
            (&self.prompt_tokens, stats.prompt_tokens),
            (&self.generation_tokens, stats.generation_tokens),
        ];
        for (counter, value) in counters {
            // Two scrapes at once may read in any order; a counter must not fall.
            counter.inner().fetch_max(value, Ordering::Relaxed);
        }
        self.step_tokens.set(stats);
        let mut page = String::new();
        prometheus_text::encode(&mut page, &self.registry).expect("a String takes any text");
        page
    }

    fn ended_counter(&self, reason: Ended) -> Counter {
        let labels = vec![("finished_reason", reason.label().to_owned())];
        self.request_success.get_or_create(&labels).clone()
    }
}

/// 1, 2, 5, 10, … up to `max`.
fn token_buckets(max: u32) -> Vec<f64> {
    let mut buckets = Vec::new();
    let mut decade = 1u64;
    'all: loop {
        for step in [1, 2, 5] {
            let bound = decade * step;
            if bound > u64::from(max) {
                break 'all;
            }
            buckets.push(bound as f64);
        }
        decade *= 10;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_the_context() {
        assert_eq!(token_buckets(20), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(token_buckets(1), [1.0]);
    }

    /// Names, labels and buckets are API: routers read them.
    #[test]
    fn golden_page() {
        let metrics = Metrics::new("m", 20);
        metrics.submitted(7, 1, 10);
        metrics.first_event(Duration::from_millis(3));
        metrics.next_event(Duration::from_millis(20));
        metrics.ended(Ended::Stop, Duration::from_secs(1), Duration::from_millis(40), 3);
        metrics.extension_fault("hermes", "trap");
        metrics.responded(200);
        let mut stats = EngineStats {
            num_requests_running: 2,
            num_requests_waiting: 3,
            num_requests_deferred: 1,
            kv_cache_usage: 0.25,
            kv_cache_waste: 0.125,
            num_blocks: 64,
            block_size: 16,
            prefix_cache_queries: 100,
            prefix_cache_hits: 48,
            prompt_tokens: 7,
            generation_tokens: 3,
            num_step_tokens: 9,
            num_tier_blocks: 5,
            num_tier_stores: 9,
            num_tier_loads: 8,
            num_tier_failures: 1,
            ..EngineStats::default()
        };
        stats.step_tokens[0] = 2;
        stats.step_tokens[1] = 1;
        let page = metrics.render(&stats);
        let m = r#"model_name="m",engine="0""#;
        for line in [
            format!("vllm:num_requests_running{{{m}}} 2"),
            format!("vllm:num_requests_waiting{{{m}}} 3"),
            format!("vllm:num_requests_waiting_by_reason{{{m},reason=\"capacity\"}} 2"),
            format!("vllm:kv_cache_usage_perc{{{m}}} 0.25"),
            format!("tenon_kv_cache_waste{{{m}}} 0.125"),
            format!("vllm:prefix_cache_queries_total{{{m}}} 100"),
            format!("vllm:prefix_cache_hits_total{{{m}}} 48"),
            format!("vllm:num_preemptions_total{{{m}}} 0"),
            format!("tenon_kv_offload_blocks{{{m}}} 5"),
            format!("tenon_kv_offload_stores_total{{{m}}} 9"),
            format!("tenon_kv_offload_loads_total{{{m}}} 8"),
            format!("tenon_kv_offload_failures_total{{{m}}} 1"),
            format!("vllm:prompt_tokens_total{{{m}}} 7"),
            format!("vllm:generation_tokens_total{{{m}}} 3"),
            format!("vllm:request_success_total{{{m},finished_reason=\"stop\"}} 1"),
            format!("vllm:request_success_total{{{m},finished_reason=\"abort\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{m},le=\"0.001\"}} 0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{m},le=\"0.005\"}} 1"),
            format!("vllm:time_to_first_token_seconds_bucket{{{m},le=\"2560\"}} 1"),
            format!("vllm:inter_token_latency_seconds_bucket{{{m},le=\"0.025\"}} 1"),
            format!("vllm:e2e_request_latency_seconds_bucket{{{m},le=\"+Inf\"}} 1"),
            format!("vllm:e2e_request_latency_seconds_count{{{m}}} 1"),
            format!(
                "vllm:cache_config_info{{{m},block_size=\"16\",num_gpu_blocks=\"64\",\
                 enable_prefix_caching=\"True\"}} 1"
            ),
            format!("vllm:iteration_tokens_total_bucket{{{m},le=\"1\"}} 2"),
            format!("vllm:iteration_tokens_total_bucket{{{m},le=\"8\"}} 3"),
            format!("vllm:iteration_tokens_total_sum{{{m}}} 9.0"),
            format!("vllm:iteration_tokens_total_count{{{m}}} 3"),
            format!("tenon_extension_faults_total{{{m},extension=\"hermes\",kind=\"trap\"}} 1"),
        ] {
            assert!(page.lines().any(|l| l == line), "no line `{line}` in\n{page}");
        }
        assert!(page.contains("# TYPE vllm:request_success_total counter"));
        assert!(!page.contains("# EOF"), "that is the other format");
    }
}
