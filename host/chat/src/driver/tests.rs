//! Watched and unwatched streams agree, and a fault at any call loses nothing.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::fake::{Failure, FakeFactory};

/// A token's text and whether it is the added token 9.
type Token = (String, bool);

fn tokens() -> impl Strategy<Value = Vec<Token>> {
    let added = Just(("<|x|>".to_owned(), true));
    let text = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<call:",
        "<call:f>",
        "</call>",
        "<",
        "th",
        "ink>",
        "/",
        "call:",
        ">",
        "<|",
        "x|>",
        "<|x|>",
        " ",
        "\n",
        " \n\t",
        "a",
        "plain words",
        "é",
        "<call:X>",
        "日本",
    ]);
    let text = text.prop_map(|text| (text.to_owned(), false));
    prop::collection::vec(prop_oneof![1 => added, 12 => text], 0..40)
}

/// Groups tokens into pushes; each run has as many tokens as `cuts` says, in turn.
fn pushes(tokens: &[Token], cuts: &[usize]) -> Vec<(String, Vec<Special>)> {
    let mut all = Vec::new();
    let (mut rest, mut cuts) = (tokens, cuts.iter().cycle());
    while !rest.is_empty() {
        let num = rest.len().min(cuts.next().map_or(usize::MAX, |num| *num));
        let (mut text, mut specials) = (String::new(), Vec::new());
        for (token, is_added) in &rest[..num] {
            if *is_added {
                specials.push(Special { start: text.len() as u32, len: token.len() as u32, id: 9 });
            }
            text.push_str(token);
        }
        all.push((text, specials));
        rest = &rest[num..];
    }
    all
}

/// Splits texts that are no added token at every character.
fn by_character(tokens: &[Token]) -> Vec<Token> {
    let split = |(text, is_added): &Token| match is_added {
        true => vec![(text.clone(), true)],
        false => text.chars().map(|c| (c.to_string(), false)).collect(),
    };
    tokens.iter().flat_map(split).collect()
}

fn run(binding: &ParserBinding, pushes: &[(String, Vec<Special>)]) -> (Vec<ParseEvent>, bool) {
    let mut driver = ParserDriver::new(binding);
    let mut all = Vec::new();
    for (text, specials) in pushes {
        // Half of the time a fresh vector: joining must not depend on it.
        let mut events = Vec::new();
        driver.push(text, specials, &mut events);
        all.append(&mut events);
    }
    driver.finish(ParseFinish::Stop, &mut all);
    (all, driver.fault().is_some())
}

/// Without notes, joined.
fn folded(events: Vec<ParseEvent>) -> Vec<ParseEvent> {
    let mut out = Vec::new();
    for event in events.into_iter().filter(|event| !matches!(event, ParseEvent::Note(_))) {
        append(&mut out, event);
    }
    out
}

/// All text of all events, with the markers that the fake tells in notes.
fn everything(events: &[ParseEvent]) -> String {
    let mut all = String::new();
    for event in events {
        match event {
            ParseEvent::Content(text) | ParseEvent::Reasoning(text) | ParseEvent::Note(text) => {
                all.push_str(text)
            }
            ParseEvent::ToolArgs { text, .. } => all.push_str(text),
            ParseEvent::ToolBegin { .. } | ParseEvent::ToolEnd { .. } => {}
        }
    }
    all
}

fn text_of(tokens: &[Token]) -> String {
    tokens.iter().map(|(text, _)| text.as_str()).collect()
}

fn start() -> impl Strategy<Value = Channel> {
    prop::sample::select(vec![Channel::Content, Channel::Reasoning])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Watched or not, cut anywhere: the same events.
    #[test]
    fn watched_is_unwatched(
        tokens in tokens(), cuts in prop::collection::vec(1usize..5, 1..6), start in start()
    ) {
        let bind = |watch| FakeFactory::new().bind(start, watch);
        let (whole, failed) = run(&bind(false), &pushes(&tokens, &[]));
        prop_assert!(!failed);
        prop_assert_eq!(everything(&whole), text_of(&tokens));
        let whole = folded(whole);
        let fine = by_character(&tokens);
        for (tokens, watch) in [(&tokens, true), (&fine, true), (&fine, false)] {
            let (events, failed) = run(&bind(watch), &pushes(tokens, &cuts));
            prop_assert!(!failed);
            prop_assert_eq!(everything(&events), text_of(tokens));
            prop_assert_eq!(folded(events), whole.clone());
        }
    }

    /// A fault at any call: every byte once and in order, and nothing is undone.
    #[test]
    fn a_fault_loses_nothing(
        tokens in tokens(), cuts in prop::collection::vec(1usize..4, 1..6), start in start(),
        at in 0usize..12, watch: bool,
        failure in prop::sample::select(vec![
            Failure::Trap, Failure::HeldTooMuch, Failure::NoSuchCall,
        ]),
    ) {
        let mut factory = FakeFactory::new();
        factory.failure = Some((at, failure));
        let calls = factory.calls.clone();
        let pushes = pushes(&by_character(&tokens), &cuts);
        let (events, failed) = run(&factory.bind(start, watch), &pushes);
        prop_assert_eq!(everything(&events), text_of(&tokens));
        prop_assert_eq!(failed, calls.load(Ordering::Relaxed) > at);
        if failed {
            prop_assert_eq!(calls.load(Ordering::Relaxed), at + 1, "called after its fault");
        }
    }
}

#[test]
fn plain_content_costs_no_calls_and_no_time() {
    const NUM_TOKENS: usize = 200_000;
    let words = ["The", " quick", " brown", " fox", ",", " it", " said", ":", "\n", "jumps"];
    for watch in [true, false] {
        let factory = FakeFactory::new();
        let calls = factory.calls.clone();
        let mut driver = ParserDriver::new(&factory.bind(Channel::Content, watch));
        let mut out = Vec::new();
        let mut num_bytes = 0;
        let began = Instant::now();
        for word in words.iter().cycle().take(NUM_TOKENS) {
            driver.push(word, &[], &mut out);
            num_bytes += word.len();
        }
        let ns = began.elapsed().as_nanos() as f64 / NUM_TOKENS as f64;
        let calls = calls.load(Ordering::Relaxed);
        println!(
            "watch {watch}: {ns:.1} ns and {} calls per token",
            calls as f64 / NUM_TOKENS as f64
        );
        assert_eq!(calls, if watch { 1 } else { NUM_TOKENS });
        driver.finish(ParseFinish::Stop, &mut out);
        assert_eq!(everything(&out).len(), num_bytes);
    }
}

/// A long run of blanks or of half triggers is not scanned again at each push: that would take
/// minutes here.
#[test]
fn held_text_costs_linear_time() {
    const NUM: usize = 200_000;
    for unit in [" ", "<", "\n<thin"] {
        let mut driver = ParserDriver::new(&FakeFactory::new().bind(Channel::Content, true));
        let mut out = Vec::new();
        driver.push("x", &[], &mut out);
        let began = Instant::now();
        (0..NUM).for_each(|_| driver.push(unit, &[], &mut out));
        let took = began.elapsed();
        println!("{unit:?}: {took:?} for {NUM} pushes");
        assert!(took.as_secs() < 5, "{took:?}");
        driver.push("y", &[], &mut out);
        assert_eq!(everything(&out).len(), 2 + NUM * unit.len());
    }
}

#[test]
fn what_opens_badly_is_raw_text() {
    let mut factory = FakeFactory::new();
    factory.is_broken = true;
    let pushes = [("<call:f>{".to_owned(), vec![]), ("}</call>".to_owned(), vec![])];
    let (events, failed) = run(&factory.bind(Channel::Reasoning, true), &pushes);
    assert!(failed);
    assert_eq!(folded(events), [ParseEvent::Content("<call:f>{}</call>".into())]);
}

#[test]
fn text_of_a_cut_marker_comes_out_at_the_end() {
    let binding = FakeFactory::new().bind(Channel::Content, true);
    let (events, _) = run(&binding, &[("Hi".into(), vec![]), (" there \n<cal".into(), vec![])]);
    assert_eq!(folded(events), [ParseEvent::Content("Hi there \n<cal".into())]);
}

/// A session that answers what it is told.
struct Scripted(Vec<Reply>);

impl ParserSession for Scripted {
    fn push(&mut self, _: &str, _: &[Special], _: u32) -> Result<Reply, ParserFault> {
        Ok(self.0.remove(0))
    }

    fn finish(&mut self, _: ParseFinish) -> Result<Reply, ParserFault> {
        Ok(self.0.remove(0))
    }
}

/// Feeds `ab日`, then finishes, and shows what came out.
fn check(first: Reply, last: Reply, expected: &str) {
    let mut driver = ParserDriver::new(&FakeFactory::new().bind(Channel::Content, true));
    driver.session = Some(Box::new(Scripted(vec![first, last])));
    let mut out = Vec::new();
    driver.push("ab日", &[], &mut out);
    driver.finish(ParseFinish::Stop, &mut out);
    let mut shown = String::new();
    for event in folded(out) {
        match event {
            ParseEvent::Content(text) => write!(shown, "content {text}; ").unwrap(),
            ParseEvent::ToolBegin { name, .. } => write!(shown, "call {name}; ").unwrap(),
            ParseEvent::ToolArgs { text, .. } => write!(shown, "args {text}; ").unwrap(),
            other => write!(shown, "{other:?}; ").unwrap(),
        }
    }
    if let Some(fault) = driver.fault() {
        write!(shown, "{fault}").unwrap();
    }
    assert_eq!(shown.trim_end(), expected);
}

#[test]
fn impossible_replies_are_faults() {
    let held = |held| Reply { held, ..Reply::default() };
    let with = |events| Reply { events, ..Reply::default() };
    let content = |text: &str| ParseEvent::Content(text.into());
    let begin = |index| ParseEvent::ToolBegin { index, name: "f".into(), id: None };
    let args = |index| ParseEvent::ToolArgs { index, text: "{}".into() };
    let bad = |what: &str| format!("content ab日; extension `fake` failed (bad_output): {what}");

    check(held(5), with(vec![content("ab日")]), "content ab日;");
    check(held(2), held(0), &bad("`held` = 2 cuts a character"));
    check(held(6), held(0), &bad("`held` = 6, but only 5 bytes are open"));
    check(held(5), held(5), &bad("`finish` left 5 bytes in no event"));
    check(held(5), held(9), &bad("`held` = 9, but only 5 bytes are open"));
    check(with(vec![begin(1)]), held(0), &bad("call 1 began where call 0 is next"));
    check(with(vec![args(0)]), held(0), &bad("arguments of call 0, which is not open"));
    let end = ParseEvent::ToolEnd { index: 0 };
    let late = vec![begin(0), end.clone(), args(0)];
    check(with(late), held(0), &bad("arguments of call 0, which is not open"));
    check(with(vec![begin(0), args(0), end]), held(0), "call f; args {}; ToolEnd { index: 0 };");
    let many = (0..=MAX_CALLS).map(begin).collect();
    check(with(many), held(0), &bad("more than 1024 calls in one message"));
}
