//! Streams through real worker threads: any step and cut, stops, faults, leaving clients.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tenon_engine::{Logprob, TokenLogprobs};
use tenon_text::{Bos, Specials};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::driver::ParserDriver;
use crate::fake::{Failure, FakeFactory, trap};
use crate::fold::ChatMessage;
use crate::parser::{
    Channel, Descriptor, Grammar, ModelInfo, ParseFinish, ParserFactory, ParserFault,
    ParserSession, Reply, RequestInfo, Special,
};
use crate::stream::{Finish, Finished, ParserBinding, StopReason};

const EOS: u32 = 256;

/// Bytes 0 to 255, the end, a marker of the fake parser, a special token that nobody keeps.
fn tokenizer() -> Arc<Tokenizer> {
    let specials = ["<eos>", "<|x|>", "<|other|>"].map(String::from);
    Arc::new(Tokenizer::byte_level_for_scripts(&specials))
}

struct Harness {
    workers: OutputWorkers,
    tokenizer: Arc<Tokenizer>,
    aborted: mpsc::Receiver<Abort>,
}

type Events = UnboundedReceiver<IndexedEvent>;

impl Harness {
    fn new(num_workers: usize) -> Harness {
        let (sender, aborted) = mpsc::channel();
        let config = OutputConfig { num_workers, max_requests: 100 };
        let on_abort: OnAbort = Arc::new(move |id| sender.send(id).unwrap());
        let workers = OutputWorkers::spawn(config, tokenizer(), vec![EOS], on_abort).unwrap();
        Harness { workers, tokenizer: tokenizer(), aborted }
    }

    fn open(&self, id: u64, n: u32, stop: &[&str], parser: Option<ParserBinding>) -> Events {
        let (events, receiver) = unbounded_channel();
        let spec = StreamSpec {
            request: RequestId(id),
            n,
            stop: stop.iter().map(|text| text.to_string()).collect(),
            min_tokens: 0,
            include_stop: false,
            skip_special_tokens: true,
            wants_token_ids: false,
            parser,
            events,
        };
        self.workers.open(spec).unwrap();
        receiver
    }

    /// Waits for the next request that the engine is told to abort.
    fn next_abort(&self) -> Abort {
        self.aborted.recv_timeout(Duration::from_secs(30)).expect("a request is aborted")
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Specials::Parse, Bos::Skip).unwrap()
    }

    /// One step per token, then one that ends.
    fn say(&self, id: u64, index: u32, text: &str, finish: Option<FinishReason>) {
        for token in self.tokens(text) {
            self.workers.deliver(&mut vec![output(id, index, Some(token), None)]);
        }
        if let Some(reason) = finish {
            let token = if let FinishReason::Stop(token) = reason { Some(token) } else { None };
            self.workers.deliver(&mut vec![output(id, index, token, Some(reason))]);
        }
    }
}

fn output(id: u64, index: u32, token: Option<u32>, finish: Option<FinishReason>) -> StepOutput {
    let error = (finish == Some(FinishReason::Error)).then(|| "device lost".to_owned());
    let request = RequestId(id);
    StepOutput {
        request,
        index,
        token,
        logprobs: None,
        prompt_logprobs: Vec::new(),
        finish,
        error,
        num_cached_tokens: 3,
    }
}

/// The next event; none when the stream is closed.
fn next(events: &mut Events) -> Option<IndexedEvent> {
    if let Ok(event) = events.try_recv() {
        return Some(event);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limit = Duration::from_secs(30);
    let waiting = async { tokio::time::timeout(limit, events.recv()).await };
    runtime.block_on(waiting).expect("an event or the end of the stream")
}

/// What comes up to the end of sequence `index`, which must be the last event of it.
fn until_finished(events: &mut Events, index: u32) -> (ChatMessage, Finished) {
    let mut message = ChatMessage::default();
    loop {
        let event = next(events).expect("ends with `Finished`");
        if event.index != index {
            continue;
        }
        match event.event {
            StreamEvent::Finished(finished) => return (message, finished),
            event => message.add(&event),
        }
    }
}

fn fake(start: Channel) -> Option<ParserBinding> {
    Some(FakeFactory::new().bind(start, true))
}

fn failing(at: usize, failure: Failure) -> ParserBinding {
    let mut factory = FakeFactory::new();
    factory.failure = Some((at, failure));
    factory.bind(Channel::Content, true)
}

/// Texts, and how the specials among them look when they count.
fn texts() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<call:f>",
        "</call>",
        "<call",
        "a",
        "words ",
        "\n",
        " ",
        "é",
        "日本",
        "STOP",
        "ST",
        "OP",
        "<|x|>",
        "<|other|>",
    ]);
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

/// The whole text at once, cut at the first stop string.
fn expected(text: &str, stop: Option<&str>, start: Channel) -> (ChatMessage, Finish) {
    let text = text.replace("<|other|>", "");
    let found = stop.and_then(|stop| text.find(stop));
    let text = &text[..found.unwrap_or(text.len())];
    let specials: Vec<_> = text
        .match_indices("<|x|>")
        .map(|(at, _)| Special { start: at as u32, len: 5, id: 257 })
        .collect();
    let mut driver = ParserDriver::new(&fake(start).unwrap());
    let mut events = Vec::new();
    driver.push(text, &specials, &mut events);
    driver.finish(ParseFinish::Stop, &mut events);
    let message: ChatMessage = events.iter().collect();
    let finish = if message.tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
    (message, finish)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Many sequences, any steps, any cut of characters: what the whole texts give.
    #[test]
    fn streams_fold_to_what_the_whole_text_gives(
        texts in prop::collection::vec((texts(), any::<bool>(), any::<bool>()), 1..5),
        sizes in prop::collection::vec(1usize..7, 1..8),
        num_workers in 1usize..4,
    ) {
        let harness = Harness::new(num_workers);
        let mut streams = Vec::new();
        for (id, (text, has_stop, thinks)) in texts.iter().enumerate() {
            let stop: &[&str] = if *has_stop { &["STOP"] } else { &[] };
            let start = if *thinks { Channel::Reasoning } else { Channel::Content };
            let events = harness.open(id as u64, 2, stop, fake(start));
            let expected = expected(text, stop.first().copied(), start);
            streams.push((events, expected));
        }
        // All sequences in turn, `sizes` tokens each, one step for all of them.
        let mut rest: Vec<_> = texts.iter().map(|(text, ..)| harness.tokens(text)).collect();
        rest.iter_mut().for_each(|tokens| tokens.push(EOS));
        let mut sizes = sizes.iter().cycle();
        while rest.iter().any(|tokens| !tokens.is_empty()) {
            let mut step = Vec::new();
            for (id, tokens) in rest.iter_mut().enumerate() {
                let num = tokens.len().min(*sizes.next().unwrap());
                for token in tokens.drain(..num) {
                    let finish = (token == EOS).then_some(FinishReason::Stop(EOS));
                    for index in 0..2 {
                        step.push(output(id as u64, index, Some(token), finish));
                    }
                }
            }
            harness.workers.deliver(&mut step);
        }
        for (mut events, (message, finish)) in streams {
            // Collect both, then look: their events interleave.
            let mut both = [ChatMessage::default(), ChatMessage::default()];
            let mut finishes = Vec::new();
            while let Some(event) = next(&mut events) {
                match event.event {
                    StreamEvent::Finished(finished) => finishes.push(finished.finish),
                    other => both[event.index as usize].add(&other),
                }
            }
            prop_assert_eq!(finishes, vec![finish; 2]);
            for mut folded in both {
                for call in &mut folded.tool_calls {
                    prop_assert!(call.id.starts_with("call_") && call.id.len() == 29);
                    call.id.clear();
                }
                prop_assert_eq!(&folded, &message);
            }
        }
        prop_assert_eq!(harness.workers.num_open(), 0);
    }
}

#[test]
fn finish_reasons() {
    use FinishReason as R;
    let cases: &[(&str, R, Finish, Option<StopReason>)] = &[
        ("hi", R::Stop(EOS), Finish::Stop, None),
        ("hi", R::Stop(10), Finish::Stop, Some(StopReason::Token(10))),
        ("hi", R::Length, Finish::Length, None),
        ("hi", R::Abort, Finish::Abort, None),
        ("hi", R::Error, Finish::Error, None),
        ("<call:f>{}</call>", R::Stop(EOS), Finish::ToolCalls, None),
        ("<call:f>{", R::Stop(EOS), Finish::ToolCalls, None),
        ("<call:f>{}</call>", R::Length, Finish::Length, None),
        ("hi STOP", R::Length, Finish::Stop, Some(StopReason::Text("STOP".into()))),
        ("<call:f>STOP", R::Length, Finish::ToolCalls, Some(StopReason::Text("STOP".into()))),
    ];
    let harness = Harness::new(2);
    for (id, (text, reason, finish, stop_reason)) in cases.iter().enumerate() {
        let mut events = harness.open(id as u64, 1, &["STOP"], fake(Channel::Content));
        harness.say(id as u64, 0, text, Some(*reason));
        let (_, finished) = until_finished(&mut events, 0);
        assert_eq!((finished.finish, &finished.stop_reason), (*finish, stop_reason), "{text}");
        assert_eq!(finished.error.is_some(), *finish == Finish::Error, "{text}");
        assert_eq!(finished.num_cached_tokens, 3);
        assert!(next(&mut events).is_none(), "`Finished` is the last event");
    }
}

#[test]
fn tokens_are_counted_and_the_stop_token_has_no_text() {
    let harness = Harness::new(1);
    let mut events = harness.open(1, 1, &[], fake(Channel::Reasoning));
    harness.say(1, 0, "abc</think>de", Some(FinishReason::Stop(b'.'.into())));
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!(
        (message.reasoning.as_deref(), message.content.as_deref()),
        (Some("abc"), Some("de"))
    );
    assert_eq!((finished.num_output_tokens, finished.num_reasoning_tokens), (14, 10));

    // Without a parser; an incomplete character at the end; text of kept and of other specials.
    let mut events = harness.open(2, 1, &[], None);
    harness
        .workers
        .deliver(&mut vec![output(2, 0, Some(258), None), output(2, 0, Some(0xe6), None)]);
    harness.say(2, 0, "", Some(FinishReason::Length));
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!(message.content.as_deref(), Some("\u{fffd}"));
    assert_eq!((finished.num_output_tokens, finished.num_reasoning_tokens), (2, 0));

    // A token beyond the vocabulary has no text and ends nothing.
    let mut events = harness.open(3, 1, &[], None);
    harness.workers.deliver(&mut vec![output(3, 0, Some(90_000), None)]);
    harness.say(3, 0, "x", Some(FinishReason::Stop(EOS)));
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!((message.content.as_deref(), finished.num_output_tokens), (Some("x"), 3));
}

#[test]
fn a_token_comes_before_its_text() {
    let harness = Harness::new(1);
    let mut events = harness.open(1, 1, &[], None);
    for (token, finish) in [(b'h'.into(), None), (EOS, Some(FinishReason::Stop(EOS)))] {
        let of = |token, logprob, rank| Logprob { token, logprob, rank };
        let logprobs = TokenLogprobs {
            chosen: of(token, -0.5, 1),
            top: vec![of(token, -0.5, 1), of(0xe6, -2.0, 2)],
        };
        let output = output(1, 0, Some(token), finish);
        harness
            .workers
            .deliver(&mut vec![StepOutput { logprobs: Some(Box::new(logprobs)), ..output }]);
    }
    let mut shown = Vec::new();
    while let Some(event) = next(&mut events) {
        shown.push(match event.event {
            StreamEvent::Token(info) => {
                let top = &info.top[1];
                assert_eq!((top.text.as_str(), top.bytes.as_slice()), ("\u{fffd}", &[0xe6][..]));
                format!("token {}", info.chosen.text)
            }
            StreamEvent::Content(text) => format!("content {text}"),
            StreamEvent::Finished(_) => "finished".into(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(shown, ["token h", "content h", "token <eos>", "finished"]);
}

#[test]
fn a_stop_string_ends_its_sequence_and_the_last_one_the_request() {
    let harness = Harness::new(2);
    let mut events = harness.open(7, 2, &["STOP"], None);
    harness.say(7, 0, "one STOP two", None);
    assert_eq!(until_finished(&mut events, 0).0.content.as_deref(), Some("one "));
    assert_eq!(harness.next_abort(), Abort::Sequence(RequestId(7), 0), "sequence 1 still runs");
    harness.say(7, 0, "more", None);
    harness.say(7, 1, "other ST", None);
    harness.say(7, 1, "OP", None);
    let (message, finished) = until_finished(&mut events, 1);
    assert_eq!(message.content.as_deref(), Some("other "));
    assert_eq!(finished.num_output_tokens, 10);
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(7)));
    // What the engine had under way is ignored.
    harness.say(7, 1, "late", Some(FinishReason::Abort));
    assert!(next(&mut events).is_none());

    // Ended by the engine: nothing to abort.
    let mut events = harness.open(8, 1, &["STOP"], None);
    harness.say(8, 0, "x STOP", None);
    let mut whole = harness.open(9, 1, &["STOP"], None);
    harness.say(9, 0, "y", Some(FinishReason::Stop(EOS)));
    until_finished(&mut events, 0);
    until_finished(&mut whole, 0);
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(8)));
    harness.workers.shutdown();
    assert!(harness.aborted.try_recv().is_err());
}

#[test]
fn a_client_that_leaves_is_told_to_the_engine() {
    let harness = Harness::new(1);
    let mut closed = harness.open(1, 1, &[], None);
    harness.workers.close(RequestId(1));
    assert!(next(&mut closed).is_none());
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(1)));
    // Only a text shows that nobody reads.
    drop(harness.open(2, 1, &[], None));
    harness.say(2, 0, "x", None);
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(2)));
    harness.workers.close(RequestId(2));
    harness.workers.close(RequestId(77));
    harness.workers.shutdown();
    assert_eq!(harness.workers.num_open(), 0);
    assert!(harness.aborted.try_recv().is_err());
}

#[test]
fn what_does_not_open() {
    let harness = Harness::new(1);
    let (events, _receiver) = unbounded_channel();
    let spec = |id, n, stop: &str| StreamSpec {
        request: RequestId(id),
        n,
        stop: vec![stop.into()],
        min_tokens: 0,
        include_stop: false,
        skip_special_tokens: true,
        wants_token_ids: false,
        parser: None,
        events: events.clone(),
    };
    let error = |spec| harness.workers.open(spec).unwrap_err().to_string();
    assert_eq!(
        error(spec(1, 0, "a")),
        "`0` sequences for one request; from 1 to 1024 are possible"
    );
    assert!(error(spec(1, 1, "")).contains("`stop[0]`"));
    for id in 0..100 {
        harness.workers.open(spec(id, 1, "a")).unwrap();
    }
    assert_eq!(error(spec(100, 1, "a")), "`100` requests are open; try again later");
    harness.workers.shutdown();
    assert_eq!(harness.workers.num_open(), 0);
    assert_eq!(error(spec(101, 1, "a")), "the server is shutting down");
    let config = OutputConfig { num_workers: 0, max_requests: 1 };
    let none = OutputWorkers::spawn(config, tokenizer(), vec![], Arc::new(|_| {}));
    assert!(matches!(none, Err(OutputError::NoWorkers)));
}

#[test]
fn shutdown_ends_streams_behind_what_was_said() {
    let harness = Harness::new(2);
    let mut streams: Vec<_> =
        (0..4).map(|id| harness.open(id, 1, &["STOP"], fake(Channel::Content))).collect();
    (0..4).for_each(|id| harness.say(id, 0, "said S", None));
    harness.workers.shutdown();
    for events in &mut streams {
        let (message, finished) = until_finished(events, 0);
        assert_eq!(message.content.as_deref(), Some("said S"));
        assert_eq!(finished.finish, Finish::Abort);
    }
    harness.say(0, 0, "late", None);
}

#[test]
fn a_fault_is_raw_text_or_the_end() {
    let harness = Harness::new(1);
    // The first call is for `H`; the second brings the call's opener.
    let mut events = harness.open(1, 1, &[], Some(failing(1, Failure::Trap)));
    harness.say(1, 0, "Hi  <call:f>{}</call>", Some(FinishReason::Stop(EOS)));
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!(message.content.as_deref(), Some("Hi  <call:f>{}</call>"));
    assert_eq!((finished.finish, finished.fault), (Finish::Stop, Some(trap())));

    let required = |binding: ParserBinding| Some(ParserBinding { fail_on_fault: true, ..binding });
    let mut events = harness.open(2, 1, &[], required(failing(1, Failure::Trap)));
    harness.say(2, 0, "Hi <call:f>{}</call>", None);
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!(message.content.as_deref(), Some("Hi"), "no raw text");
    let error = finished.error.unwrap();
    assert!(error.contains("`fake` failed (trap)") && error.contains("required"), "{error}");
    assert_eq!((finished.finish, finished.fault), (Finish::Error, Some(trap())));
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(2)));

    let broken = || {
        let mut factory = FakeFactory::new();
        factory.is_broken = true;
        factory.bind(Channel::Reasoning, true)
    };
    let mut events = harness.open(3, 1, &[], Some(broken()));
    harness.say(3, 0, "Hi", Some(FinishReason::Stop(EOS)));
    let (message, finished) = until_finished(&mut events, 0);
    assert_eq!(message.content.as_deref(), Some("Hi"));
    assert_eq!((finished.fault, finished.num_reasoning_tokens), (Some(trap()), 0));
    let mut events = harness.open(4, 1, &[], required(broken()));
    harness.say(4, 0, "H", None);
    assert_eq!(until_finished(&mut events, 0).1.finish, Finish::Error);
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(4)));

    // At the very end.
    let mut events = harness.open(5, 1, &[], required(failing(1, Failure::Trap)));
    harness.say(5, 0, "H", Some(FinishReason::Stop(EOS)));
    assert_eq!(until_finished(&mut events, 0).1.finish, Finish::Error);
}

#[test]
fn a_panic_ends_one_sequence() {
    let harness = Harness::new(1);
    let mut other = harness.open(1, 1, &[], fake(Channel::Content));
    let mut events = harness.open(2, 2, &[], Some(failing(0, Failure::Panic)));
    harness.say(2, 0, "x", None);
    let (_, finished) = until_finished(&mut events, 0);
    assert_eq!(finished.finish, Finish::Error);
    assert!(finished.error.unwrap().contains("see its log"));
    assert_eq!(harness.next_abort(), Abort::Sequence(RequestId(2), 0));
    harness.say(2, 1, "x", None);
    assert_eq!(until_finished(&mut events, 1).1.finish, Finish::Error);
    assert_eq!(harness.next_abort(), Abort::Request(RequestId(2)));
    harness.say(1, 0, "fine", Some(FinishReason::Stop(EOS)));
    assert_eq!(until_finished(&mut other, 0).0.content.as_deref(), Some("fine"));
}

/// A session that waits at its first call, gives ids, and panics when it is dropped, or does so
/// when it opens.
struct Odd {
    descriptor: Descriptor,
    gate: Option<Arc<Mutex<mpsc::Receiver<()>>>>,
    panics_at_open: bool,
}

impl Odd {
    fn bind(gate: Option<mpsc::Receiver<()>>, panics_at_open: bool) -> Option<ParserBinding> {
        let gate = gate.map(|gate| Arc::new(Mutex::new(gate)));
        let descriptor = crate::fake::descriptor();
        let factory = Arc::new(Odd { descriptor, gate, panics_at_open });
        let info = fake(Channel::Content).unwrap().info;
        Some(ParserBinding { factory, info, host_watch: true, fail_on_fault: false })
    }
}

impl ParserFactory for Odd {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn digest(&self) -> &str {
        "sha256:special"
    }

    fn open(&self, _: &RequestInfo) -> Result<Box<dyn ParserSession>, ParserFault> {
        assert!(!self.panics_at_open, "scripted panic of `open`");
        Ok(Box::new(OddSession { gate: self.gate.clone(), num_calls: 0 }))
    }

    fn constraint(
        &self,
        _: &ModelInfo,
        _: &RequestInfo,
    ) -> Result<Result<Option<Grammar>, String>, ParserFault> {
        Ok(Ok(None))
    }
}

struct OddSession {
    gate: Option<Arc<Mutex<mpsc::Receiver<()>>>>,
    num_calls: u32,
}

impl ParserSession for OddSession {
    fn push(&mut self, text: &str, _: &[Special], _: u32) -> Result<Reply, ParserFault> {
        if let Some(gate) = self.gate.take() {
            gate.lock().unwrap().recv().unwrap();
        }
        // Every text is a call with this id.
        let index = self.num_calls;
        self.num_calls += 1;
        let id = Some(text.to_owned());
        let begin = crate::parser::ParseEvent::ToolBegin { index, name: "f".into(), id };
        Ok(Reply { events: vec![begin], held: 0, watch: None })
    }

    fn finish(&mut self, _: ParseFinish) -> Result<Reply, ParserFault> {
        Ok(Reply::default())
    }
}

impl Drop for OddSession {
    fn drop(&mut self) {
        if self.num_calls > 2 {
            panic!("scripted panic of a drop");
        }
    }
}

#[test]
fn ids_of_the_format_are_kept_while_they_differ() {
    let harness = Harness::new(1);
    let mut events = harness.open(1, 1, &[], Odd::bind(None, false));
    // Its drop panics behind the third call; the worker lives on.
    harness.say(1, 0, "aba", Some(FinishReason::Stop(EOS)));
    let (message, _) = until_finished(&mut events, 0);
    let ids: Vec<_> = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids[..2], ["a", "b"]);
    assert!(ids[2].starts_with("call_"), "{ids:?}");

    let mut events = harness.open(2, 1, &[], Odd::bind(None, true));
    harness.say(2, 0, "a", None);
    assert_eq!(until_finished(&mut events, 0).1.finish, Finish::Error);

    let mut events = harness.open(3, 1, &[], Odd::bind(None, false));
    harness.say(3, 0, "abcd", None);
    harness.workers.close(RequestId(3));
    while next(&mut events).is_some() {}
    let mut events = harness.open(4, 1, &[], None);
    harness.say(4, 0, "fine", Some(FinishReason::Stop(EOS)));
    assert_eq!(until_finished(&mut events, 0).0.content.as_deref(), Some("fine"));
}

#[test]
fn a_stuck_session_delays_its_worker_only() {
    let harness = Harness::new(2);
    let is_other = |id: &u64| {
        harness.workers.worker_of(RequestId(*id)) != harness.workers.worker_of(RequestId(1))
    };
    let other = (2..).find(is_other).unwrap();
    let (release, gate) = mpsc::channel();
    let mut stuck = harness.open(1, 1, &[], Odd::bind(Some(gate), false));
    harness.say(1, 0, "a", Some(FinishReason::Length));
    let mut events = harness.open(other, 1, &[], fake(Channel::Content));
    harness.say(other, 0, "fine", Some(FinishReason::Stop(EOS)));
    assert_eq!(until_finished(&mut events, 0).0.content.as_deref(), Some("fine"));
    assert!(stuck.try_recv().is_err());
    release.send(()).unwrap();
    assert_eq!(until_finished(&mut stuck, 0).1.finish, Finish::Length);
}

#[test]
fn cost_per_token() {
    const NUM_REQUESTS: u64 = 64;
    const NUM_STEPS: usize = 500;
    for (what, has_parser) in [("no parser", false), ("watched", true)] {
        let harness = Harness::new(1);
        let parser = || has_parser.then(|| fake(Channel::Content).unwrap());
        let mut streams: Vec<_> =
            (0..NUM_REQUESTS).map(|id| harness.open(id, 1, &["</s>"], parser())).collect();
        let began = Instant::now();
        let mut engine_ns = 0;
        for step in 0..NUM_STEPS {
            let finish = (step + 1 == NUM_STEPS).then_some(FinishReason::Length);
            let mut step: Vec<_> =
                (0..NUM_REQUESTS).map(|id| output(id, 0, Some(b'a'.into()), finish)).collect();
            let handed = Instant::now();
            harness.workers.deliver(&mut step);
            engine_ns += handed.elapsed().as_nanos();
        }
        for events in &mut streams {
            let (message, _) = until_finished(events, 0);
            assert_eq!(message.content.map(|text| text.len()), Some(NUM_STEPS));
        }
        let ns = began.elapsed().as_nanos() / (NUM_STEPS as u128 * u128::from(NUM_REQUESTS));
        let engine_us = engine_ns as f64 / NUM_STEPS as f64 / 1000.0;
        println!("{what}: {ns} ns per token in all, {engine_us:.1} us of the engine's per step");
    }
}
