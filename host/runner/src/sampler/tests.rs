//! The pipeline as a whole: the distribution it draws from, and what must not change it.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use tenon_engine::{Dry, RequestId, Row, StepPlan, TokenBias};

const EOS: u32 = 0;

fn admitted(row: u32, params: SamplingParams, prompt: &[u32], output: &[u32]) -> Admitted {
    Admitted {
        row: Row(row),
        request: RequestId(u64::from(row)),
        index: 0,
        prompt: prompt.into(),
        output: output.to_vec(),
        params: Arc::new(params),
        max_len: prompt.len() + output.len() + 64,
    }
}

/// Rows 0.. with these sequences.
fn rows(sequences: Vec<(SamplingParams, Vec<u32>, Vec<u32>)>) -> Rows {
    let mut rows = Rows::new(sequences.len(), 1, 0, vec![EOS]);
    let mut plan = StepPlan::default();
    for (row, (params, prompt, output)) in (0..).zip(sequences) {
        plan.admitted.push(admitted(row, params, &prompt, &output));
    }
    rows.apply(&plan);
    rows
}

/// Samples once for one sequence.
fn sample(params: SamplingParams, prompt: &[u32], output: &[u32], logits: &[f32]) -> Sampled {
    let mut rows = rows(vec![(params, prompt.to_vec(), output.to_vec())]);
    let mut results = Vec::new();
    let mut logits = logits.to_vec();
    let mut sampler = Sampler::new(logits.len());
    sampler.sample(&mut rows, &[LogitsUse::Next(Row(0))], &mut logits, &mut results).unwrap();
    results.pop().unwrap()
}

fn token(sampled: &Sampled) -> u32 {
    match sampled {
        Sampled::Token { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..Default::default() }
}

/// The value that chi-square with `df` degrees of freedom exceeds once in a million draws
/// (Wilson and Hilferty 1931).
fn chi_square_limit(df: f64) -> f64 {
    let spread = 2.0 / (9.0 * df);
    df * (1.0 - spread + 4.753 * spread.sqrt()).powi(3)
}

/// Compares counts to probabilities; cells that can never occur must be empty.
fn check_fit(counts: &[usize], probabilities: &[f64]) {
    let total: usize = counts.iter().sum();
    let (mut statistic, mut df) = (0.0, -1.0);
    for (&count, &p) in counts.iter().zip(probabilities) {
        if p == 0.0 {
            assert_eq!(count, 0, "a token that was filtered out was drawn");
            continue;
        }
        let expected = p * total as f64;
        statistic += (count as f64 - expected).powi(2) / expected;
        df += 1.0;
    }
    if df > 0.0 {
        assert!(statistic < chi_square_limit(df), "chi-square {statistic} at {df}");
    }
}

/// Softmax at a temperature over those tokens that `keeps`, given best-first rank and probability.
fn distribution(
    logits: &[f32],
    temperature: f64,
    keep: impl Fn(usize, f64, f64) -> bool,
) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let best = weights.iter().copied().fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut kept = vec![0.0; logits.len()];
    let mut before = 0.0;
    for (rank, &token) in order.iter().enumerate() {
        if keep(rank, weights[token] / best, before / total) {
            kept[token] = weights[token];
        }
        before += weights[token];
    }
    let total: f64 = kept.iter().sum();
    kept.iter().map(|w| w / total).collect()
}

fn draw_counts(params: &SamplingParams, logits: &[f32], num_draws: u64) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for seed in 0..num_draws / 50 {
        let params = SamplingParams { seed: Some(seed), ..params.clone() };
        let mut rows = rows(vec![(params, vec![1; 3], vec![])]);
        let mut sampler = Sampler::new(logits.len());
        for _ in 0..50 {
            let mut results = Vec::new();
            let mut logits = logits.to_vec();
            sampler
                .sample(&mut rows, &[LogitsUse::Next(Row(0))], &mut logits, &mut results)
                .unwrap();
            counts[token(&results[0]) as usize] += 1;
        }
    }
    counts
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..40).map(|i| ((i * 29) % 40) as f32 * 0.12 - 2.0).collect();
    let base = SamplingParams::default();
    for temperature in [0.3, 1.0, 2.5] {
        let params = SamplingParams { temperature, ..base.clone() };
        let want = distribution(&logits, f64::from(temperature), |_, _, _| true);
        check_fit(&draw_counts(&params, &logits, 40_000), &want);
    }
    let params = SamplingParams { top_k: 7, ..base.clone() };
    check_fit(
        &draw_counts(&params, &logits, 40_000),
        &distribution(&logits, 1.0, |rank, _, _| rank < 7),
    );
    let params = SamplingParams { top_p: 0.6, ..base.clone() };
    check_fit(
        &draw_counts(&params, &logits, 40_000),
        &distribution(&logits, 1.0, |_, _, before| before < f64::from(0.6_f32)),
    );
    let params = SamplingParams { min_p: 0.2, ..base };
    check_fit(
        &draw_counts(&params, &logits, 40_000),
        &distribution(&logits, 1.0, |_, relative, _| relative >= f64::from(0.2_f32)),
    );
}

/// A test that cannot see a wrong distribution is none.
#[test]
#[should_panic(expected = "chi-square")]
fn the_test_of_fit_sees_a_temperature_that_is_off_by_a_tenth() {
    let logits: Vec<f32> = (0..40).map(|i| i as f32 * 0.12).collect();
    let params = SamplingParams { temperature: 1.1, ..Default::default() };
    let counts = draw_counts(&params, &logits, 40_000);
    check_fit(&counts, &distribution(&logits, 1.0, |_, _, _| true));
}

#[test]
fn neighbouring_positions_and_seeds_are_independent() {
    let logits = [0.0_f32; 8];
    let uniform = vec![1.0 / 64.0; 64];
    let draw = |seed, position: usize| {
        let params = SamplingParams { seed: Some(seed), ..Default::default() };
        token(&sample(params, &vec![1; position], &[], &logits)) as usize
    };
    let (mut positions, mut seeds) = (vec![0; 64], vec![0; 64]);
    for i in 0..6000 {
        let (seed, position) = (i as u64 * 2, 1 + i % 40);
        positions[8 * draw(seed, position) + draw(seed, position + 1)] += 1;
        seeds[8 * draw(seed, position) + draw(seed + 1, position)] += 1;
    }
    check_fit(&positions, &uniform);
    check_fit(&seeds, &uniform);
}

#[test]
fn greedy_takes_the_lowest_id_of_the_best() {
    assert_eq!(token(&sample(greedy(), &[1], &[], &[0.0, 5.0, 5.0, 1.0])), 1);
    let tiny = SamplingParams { temperature: 1e-30, ..Default::default() };
    assert_eq!(token(&sample(tiny, &[1], &[], &[0.0, 5.0, 5.0, 1.0])), 1);
}

#[test]
fn bias_penalties_and_masks_move_the_best() {
    let check = |params: SamplingParams, output: &[u32], logits: &[f32], want| {
        let params = SamplingParams { temperature: 0.0, ..params };
        assert_eq!(token(&sample(params, &[1, 1], output, logits)), want);
    };
    let base = SamplingParams::default;
    let bias = vec![TokenBias { token: 2, bias: 3.0 }];
    check(SamplingParams { logit_bias: bias, ..base() }, &[], &[0.0, 2.5, 0.0], 2);
    // Presence: once, whatever the count; the prompt does not count.
    let presence = SamplingParams { presence_penalty: 1.0, ..base() };
    check(presence.clone(), &[], &[0.0, 1.5, 1.0], 1);
    check(presence.clone(), &[1, 1, 1], &[0.0, 2.5, 1.0], 1);
    check(presence, &[1], &[0.0, 1.5, 1.0], 2);
    // Frequency: per occurrence.
    let frequency = SamplingParams { frequency_penalty: 0.5, ..base() };
    check(frequency.clone(), &[1], &[0.0, 2.0, 1.2], 1);
    check(frequency, &[1, 1], &[0.0, 2.0, 1.2], 2);
    // Repetition: over the prompt too; divides what is positive, multiplies what is negative.
    let repetition = SamplingParams { repetition_penalty: 2.0, ..base() };
    check(repetition.clone(), &[], &[0.0, 3.0, 1.6], 2);
    check(repetition.clone(), &[], &[-3.0, -1.0, -1.6], 2);
    check(repetition.clone(), &[2], &[-9.0, 3.0, 2.8], 1);
    // All together: the prompt's token is divided, but not counted as output.
    let both = SamplingParams { presence_penalty: 1.0, ..repetition };
    check(both, &[], &[0.0, 4.0, 1.5], 1);
    // Masks: the model's own end, and stop tokens for a while.
    let ignore = SamplingParams { ignore_eos: true, ..base() };
    check(ignore, &[5; 9], &[9.0, 1.0, 0.0], 1);
    let early = SamplingParams { min_tokens: 2, stop_token_ids: vec![1], ..base() };
    check(early.clone(), &[], &[9.0, 8.0, 0.0], 2);
    check(early.clone(), &[2], &[9.0, 8.0, 0.0], 2);
    check(early, &[2, 2], &[9.0, 8.0, 0.0], 0);
}

#[test]
fn penalties_count_what_is_sampled() {
    let params = SamplingParams { presence_penalty: 1.0, ..greedy() };
    let mut rows = rows(vec![(params, vec![1], vec![])]);
    let mut sampler = Sampler::new(3);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let mut results = Vec::new();
        sampler
            .sample(&mut rows, &[LogitsUse::Next(Row(0))], &mut [1.0, 0.9, 0.8], &mut results)
            .unwrap();
        tokens.push(token(&results[0]));
    }
    assert_eq!(tokens, [0, 1, 2]);
    assert_eq!(rows.row(Row(0)).tokens, [1, 0, 1, 2]);
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let logits = [0.1_f32, 0.2, 0.7].map(f32::ln);
    let bias = vec![TokenBias { token: 0, bias: 50.0 }];
    let params = SamplingParams { logprobs: Some(2), logit_bias: bias, ..greedy() };
    let Sampled::Token { token, logprobs: Some(logprobs) } = sample(params, &[1], &[], &logits)
    else {
        panic!("log-probabilities were asked for")
    };
    assert_eq!((token, logprobs.chosen.token, logprobs.chosen.rank), (0, 0, 3));
    assert!((logprobs.chosen.logprob - 0.1_f32.ln()).abs() < 1e-6);
    let top: Vec<_> = logprobs.top.iter().map(|t| (t.token, t.rank)).collect();
    assert_eq!(top, [(2, 1), (1, 2)]);
}

#[test]
fn bad_logits_fail_their_own_row() {
    let sequences = (0..4).map(|_| (greedy(), vec![1], vec![])).collect();
    let mut rows = rows(sequences);
    let mut logits =
        vec![1.0, 2.0, f32::NAN, 2.0, f32::INFINITY, 2.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let owners: Vec<LogitsUse> = (0..4).map(|i| LogitsUse::Next(Row(i))).collect();
    let mut results = Vec::new();
    Sampler::new(2).sample(&mut rows, &owners, &mut logits, &mut results).unwrap();
    assert_eq!(token(&results[0]), 1);
    assert!(results[1..].iter().all(|r| matches!(r, Sampled::Failed(_))), "{results:?}");
    // Logits of the wrong size are the device's failure.
    let error = Sampler::new(3).sample(&mut rows, &owners, &mut logits, &mut results).unwrap_err();
    assert!(error.to_string().contains("`8` logits"));
}

#[test]
fn a_mask_of_everything_is_an_error_not_a_token() {
    let params = SamplingParams { ignore_eos: true, ..Default::default() };
    assert!(matches!(sample(params, &[1], &[], &[3.0]), Sampled::Failed(_)));
}

#[test]
fn the_smallest_repetition_penalty_is_no_failure() {
    for temperature in [0.0, 1.0] {
        for repetition_penalty in [f32::from_bits(1), f32::MIN_POSITIVE, 1e-37] {
            let params = SamplingParams { repetition_penalty, temperature, ..Default::default() };
            params.validate(3).unwrap();
            assert_eq!(token(&sample(params, &[1], &[], &[9.0, 8.0, -1.0])), 1);
        }
    }
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    (
        prop_oneof![Just(0.0_f32), 0.1_f32..2.0],
        prop_oneof![Just(0_u32), 1_u32..100],
        prop_oneof![Just(1.0_f32), 0.1_f32..1.0],
        prop_oneof![Just(0.0_f32), 0.01_f32..0.4],
        (prop_oneof![Just(1.0_f32), 0.5_f32..2.0], -2.0_f32..2.0),
        (any::<u64>(), prop::option::of(0_u32..5), 0_u32..4),
        // The end of sequence is one of them only by chance, so one other is left.
        prop::option::of(prop::collection::vec(1_u32..200, 1..20)),
        // A word that ends in one draw; those that grow have a property of their own.
        prop::collection::vec(prop::collection::vec(0_u32..200, 2..4), 0..5),
        prop::option::of((0.1_f32..3.0, 1_u32..3)),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, penalties, rest, ids, words, dry)| {
            SamplingParams {
                dry: dry.map(|(multiplier, allowed_length)| Dry {
                    multiplier,
                    base: 1.75,
                    allowed_length,
                    range: 0,
                    breakers: [7].into(),
                }),
                allowed_token_ids: ids,
                bad_words: words,
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: penalties.0,
                presence_penalty: penalties.1,
                seed: Some(rest.0),
                logprobs: rest.1,
                min_tokens: rest.2,
                ..Default::default()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn what_is_not_allowed_is_never_sampled(
        params in any_params(),
        allowed in prop::collection::vec(1_u32..40, 1..6),
        logits in prop::collection::vec(-6.0_f32..6.0, 40..=40),
        temperature in prop_oneof![Just(0.0_f32), 0.01_f32..100.0],
        bias in -100.0_f32..100.0,
    ) {
        // Whatever favours the others.
        let logit_bias = (0..40)
            .filter(|token| !allowed.contains(token))
            .map(|token| TokenBias { token, bias })
            .collect();
        let ids = Some(allowed.clone());
        let params = SamplingParams {
            allowed_token_ids: ids,
            // They could mask what is allowed.
            bad_words: vec![],
            temperature,
            logit_bias,
            ..params
        };
        for seed in 0..8 {
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            let token = token(&sample(params, &[1], &[2, 3], &logits));
            prop_assert!(allowed.contains(&token), "{token} is not one of {allowed:?}");
        }
        // Greedy takes the best of them.
        let params = SamplingParams { allowed_token_ids: Some(allowed.clone()), ..greedy() };
        let best = allowed.iter().map(|&t| logits[t as usize]).fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(logits[token(&sample(params, &[1], &[], &logits)) as usize], best);
    }

    // However long the output and however it came to be, no bad word is in it.
    #[test]
    fn no_bad_word_is_ever_in_the_output(
        words in prop::collection::vec(prop::collection::vec(0_u32..4, 1..4), 1..6),
        start in prop::collection::vec(0_u32..5, 1..5),
        temperature in prop_oneof![Just(0.0_f32), 0.01_f32..100.0],
        logits in prop::collection::vec(-3.0_f32..6.0, 5..=5),
        seed in any::<u64>(),
    ) {
        let params = SamplingParams {
            bad_words: words.clone(),
            temperature,
            seed: Some(seed),
            ..Default::default()
        };
        // The prompt may hold words, and they may begin in it.
        let mut rows = rows(vec![(params.clone(), start.clone(), vec![])]);
        let mut sampler = Sampler::new(logits.len());
        for _ in 0..30 {
            let before = rows.row(Row(0)).tokens[start.len()..].to_vec();
            let mut results = Vec::new();
            let next = [LogitsUse::Next(Row(0))];
            sampler.sample(&mut rows, &next, &mut logits.clone(), &mut results).unwrap();
            // As it would be after a preemption.
            prop_assert_eq!(&results[0], &sample(params.clone(), &start, &before, &logits));
        }
        let output = &rows.row(Row(0)).tokens[start.len()..];
        for word in &words {
            prop_assert!(!output.windows(word.len()).any(|part| part == word), "{word:?}");
        }
    }

    // A list of everything is the same as no list, at any temperature.
    #[test]
    fn allowing_everything_changes_nothing(
        params in any_params(),
        logits in prop::collection::vec(-6.0_f32..6.0, 200..=200),
    ) {
        let all = SamplingParams { allowed_token_ids: Some((0..200).collect()), ..params.clone() };
        let none = SamplingParams { allowed_token_ids: None, ..params };
        prop_assert_eq!(sample(all, &[1], &[2], &logits), sample(none, &[1], &[2], &logits));
    }

    // Bad logits of one row, or of one prompt, leave all the others as they are, to the last bit.
    #[test]
    fn bad_logits_leave_the_others_alone(
        sequences in prop::collection::vec(
            (any_params(), prop::collection::vec(-6.0_f32..6.0, 200..=200)),
            2..6,
        ),
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, -f32::NAN]),
        which in 0_usize..6,
        at in 0_usize..200,
        in_prompt in any::<bool>(),
    ) {
        let which = which % sequences.len();
        let owned = sequences.iter().map(|(params, _)| (params.clone(), vec![1, 2, 3], vec![]));
        let mut rows = rows(owned.collect());
        let (mut uses, mut logits) = (Vec::new(), Vec::new());
        for (i, (_, own)) in sequences.iter().enumerate() {
            let row = Row(i as u32);
            // The prompt's rows come before the next token's.
            uses.extend([LogitsUse::Prompt(row, 0..2), LogitsUse::Next(row)]);
            let start = logits.len();
            (0..3).for_each(|_| logits.extend_from_slice(own));
            if i == which {
                logits[start + at + if in_prompt { 200 } else { 400 }] = bad;
            }
        }
        let mut results = Vec::new();
        Sampler::new(200).sample(&mut rows, &uses, &mut logits, &mut results).unwrap();
        for (i, (params, own)) in sequences.iter().enumerate() {
            let (prompt, next) = (&results[2 * i], &results[2 * i + 1]);
            prop_assert_eq!(matches!(prompt, Sampled::Failed(_)), i == which && in_prompt);
            prop_assert_eq!(matches!(next, Sampled::Failed(_)), i == which && !in_prompt);
            if i != which {
                prop_assert_eq!(next, &sample(params.clone(), &[1, 2, 3], &[], own));
            }
        }
    }

    // A row's draw is the same alone, in any company, in any order, and after a preemption.
    #[test]
    fn draws_do_not_depend_on_the_batch(
        sequences in prop::collection::vec(
            (
                any_params(),
                prop::collection::vec(0_u32..200, 1..6),
                prop::collection::vec(0_u32..200, 0..6),
                prop::collection::vec(-6.0_f32..6.0, 200..=200),
            ),
            1..6,
        ),
        rotation in 0_usize..6,
    ) {
        let alone: Vec<Sampled> = sequences
            .iter()
            .map(|(params, prompt, output, logits)| sample(params.clone(), prompt, output, logits))
            .collect();
        let owned = sequences.iter().map(|(params, prompt, output, _)| {
            (params.clone(), prompt.clone(), output.clone())
        });
        let mut rows = rows(owned.collect());
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.rotate_left(rotation % sequences.len());
        let next = |&i: &usize| LogitsUse::Next(Row(i as u32));
        let owners: Vec<LogitsUse> = order.iter().map(next).collect();
        let mut logits: Vec<f32> = order.iter().flat_map(|&i| sequences[i].3.clone()).collect();
        let mut results = Vec::new();
        Sampler::new(200).sample(&mut rows, &owners, &mut logits, &mut results).unwrap();
        for (&i, result) in order.iter().zip(&results) {
            prop_assert_eq!(result, &alone[i]);
        }
    }
}
