//! Components that attack their host, each with the class of the answer and a bound on its time.
//!
//! One guest in WebAssembly text has holes for what each attack does; another attack is to answer
//! with arbitrary bytes, which the default guest lets a test choose.
#![allow(clippy::unwrap_used)]

mod hostile_guest;
mod neighbour;

use std::fs;
use std::time::{Duration, Instant};

use hostile_guest::{Guest, Image, base_descriptor, fresh, host, host_with, module, request, wrap};
use proptest::prelude::*;
use tenon_chat::parser::{
    FaultKind, ModelInfo, ParseEvent, ParseFinish, ParserFactory, ParserSession, Reply,
};
use tenon_extensions::{AdmissionError, ExtensionHost, compile_child_main};

/// Any attack's answer, whatever else this machine does.
const PROMPT: Duration = Duration::from_secs(10);

/// The host starts this test binary again, with this test's name, as its compiler.
#[test]
fn compile_child() {
    if std::env::args().any(|arg| arg == "__compile") {
        compile_child_main();
    }
}

fn refusal(host: &ExtensionHost, wasm: &[u8]) -> String {
    let started = Instant::now();
    let error = host.admit(wasm).expect_err("it must be refused");
    assert!(started.elapsed() < PROMPT, "took {:?}", started.elapsed());
    assert!(matches!(error, AdmissionError::Refused { .. }), "{error}");
    let reasons = error.reasons();
    assert!(!reasons.is_empty() && reasons.iter().all(|reason| reason.len() < 2_000));
    reasons.join("\n")
}

/// Opens a session, pushes `text` and finishes; the first fault ends it.
fn play(host: &ExtensionHost, wasm: &[u8], text: &str) -> Result<Reply, (FaultKind, String)> {
    let parser = host.admit(wasm).map_err(|error| error.to_string()).unwrap();
    let started = Instant::now();
    let run = || {
        let mut session = parser.open(&request())?;
        let reply = session.push(text, &[], 0)?;
        session.finish(ParseFinish::Stop)?;
        Ok(reply)
    };
    let outcome = run().map_err(|fault: tenon_chat::parser::ParserFault| {
        assert_eq!(fault.extension, "hostile");
        (fault.kind, fault.message)
    });
    assert!(started.elapsed() < PROMPT, "took {:?}", started.elapsed());
    outcome
}

fn fault(host: &ExtensionHost, guest: Guest) -> FaultKind {
    play(host, &module(&guest), "").unwrap_err().0
}

#[test]
fn the_harmless_guest_works() {
    let (host, _dir) = host();
    let reply = play(&host, &module(&Guest::default()), "").unwrap();
    assert_eq!(reply, Reply::default());
    let hex = Image { events: vec![ParseEvent::Content("hi".into())], held: 3, watch: 1 }.hex();
    let parser = host.admit(&module(&Guest::default())).unwrap();
    let mut session = parser.open(&request()).unwrap();
    let reply = session.push(&hex, &[], 0).unwrap();
    assert_eq!(reply.events, [ParseEvent::Content("hi".into())]);
    assert_eq!((reply.held, reply.watch.is_some()), (3, true));
    let answer = parser.constraint(&ModelInfo::default(), &request()).unwrap();
    assert_eq!(answer, Ok(None));
    assert_eq!(*parser.descriptor(), base_descriptor());
    assert!(parser.digest().starts_with("sha256:"));
}

#[test]
fn spinning_ends_at_the_deadline_wherever_it_is() {
    let (host, _dir) = host();
    let spin = "(call $spin)";
    for guest in [
        Guest { constructor: spin, ..Guest::default() },
        Guest { push: spin, ..Guest::default() },
        Guest { finish: spin, ..Guest::default() },
        Guest {
            realloc: "(if (i32.gt_u (local.get $size) (i32.const 900)) (then (call $spin)))",
            ..Guest::default()
        },
    ] {
        let wasm = module(&guest);
        let text = "0".repeat(1_000 * usize::from(!guest.realloc.is_empty()));
        let (kind, message) = play(&host, &wasm, &text).unwrap_err();
        assert_eq!(kind, FaultKind::Timeout, "{message}");
    }
    for guest in
        [Guest { start: spin, ..Guest::default() }, Guest { describe: spin, ..Guest::default() }]
    {
        let reason = refusal(&host, &module(&guest));
        assert!(reason.contains("failed (timeout)"), "{reason}");
    }
}

#[test]
fn a_constraint_that_spins_is_a_fault_too() {
    let (host, _dir) = host();
    let wasm = module(&Guest { constraint: "(call $spin)", ..Guest::default() });
    let parser = host.admit(&wasm).unwrap();
    let error = parser.constraint(&ModelInfo::default(), &request()).unwrap_err();
    assert_eq!(error.kind, FaultKind::Timeout);
}

#[test]
fn a_slow_drip_runs_out_of_the_streams_budget() {
    let (host, _dir) = host_with(|limits| {
        limits.run.call_cpu = Duration::from_millis(50);
        limits.run.stream_cpu = Duration::from_millis(30);
    });
    // About a millisecond per push.
    let slow = "(loop $l
        (local.set $skipped (i32.add (local.get $skipped) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $skipped) (i32.const 3000000))))";
    let parser = host.admit(&module(&Guest { push: slow, ..Guest::default() })).unwrap();
    let mut session = parser.open(&request()).unwrap();
    let started = Instant::now();
    let fault = (0..10_000).find_map(|_| session.push("", &[], 0).err()).unwrap();
    assert_eq!(fault.kind, FaultKind::Timeout);
    assert!(fault.message.contains("stream's limit") || fault.message.contains("of CPU"));
    assert!(started.elapsed() < PROMPT);
}

#[test]
fn memory_has_an_end() {
    let (host, _dir) = host();
    let bomb = "(loop $l
        (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
        (br $l))";
    assert_eq!(fault(&host, Guest { push: bomb, ..Guest::default() }), FaultKind::Memory);
    // A guest that is refused memory and lives with it has done nothing wrong.
    let modest = "(drop (memory.grow (i32.const 1000)))";
    play(&host, &module(&Guest { push: modest, ..Guest::default() }), "").unwrap();
    let at_once = refusal(&host, &module(&Guest { pages: "257", ..Guest::default() }));
    assert!(at_once.contains("bytes of memory at its start"), "{at_once}");
    let table = refusal(&host, &module(&Guest { table: "10001", ..Guest::default() }));
    assert!(table.contains("`10001` table elements"), "{table}");
}

#[test]
fn traps_are_told_apart() {
    let (host, _dir) = host();
    for (push, kind) in [
        ("unreachable", FaultKind::Trap),
        ("(drop (i32.div_u (i32.const 1) (i32.const 0)))", FaultKind::Trap),
        ("(drop (i32.load (i32.const -4)))", FaultKind::Trap),
        ("(call_indirect (i32.const 0))", FaultKind::Trap),
        ("(drop (call $recurse (i32.const 0)))", FaultKind::Stack),
    ] {
        assert_eq!(fault(&host, Guest { push, ..Guest::default() }), kind, "{push}");
    }
}

#[test]
fn handles_cannot_pile_up() {
    let (host, _dir) = host();
    let leak = "(loop $l (drop (call $new_session (i32.const 1))) (br $l))";
    assert_eq!(fault(&host, Guest { push: leak, ..Guest::default() }), FaultKind::Limit);
    // The handle of something else, or none.
    let (kind, _) = play(
        &host,
        &module(&Guest { constructor: "(return (i32.const 77))", ..Guest::default() }),
        "",
    )
    .unwrap_err();
    assert!(matches!(kind, FaultKind::BadOutput | FaultKind::Trap), "{kind:?}");
}

#[test]
fn pointers_are_checked() {
    let (host, _dir) = host();
    for (push, what) in [
        ("(return (i32.const -16))", "out of bounds"),
        ("(return (i32.const 0x20001))", "unaligned"),
    ] {
        let wasm = module(&Guest { push, ..Guest::default() });
        let (kind, message) = play(&host, &wasm, "").unwrap_err();
        assert_eq!(kind, FaultKind::BadOutput, "{what}: {message}");
    }
    let wasm = module(&Guest { realloc: "(return (i32.const -16))", ..Guest::default() });
    let (kind, message) = play(&host, &wasm, &"0".repeat(64)).unwrap_err();
    assert_eq!(kind, FaultKind::BadOutput, "{message}");
}

/// Plays a raw reply image, which must be refused.
fn is_bad_output(host: &ExtensionHost, hex: &str) {
    let (kind, message) = play(host, &module(&Guest::default()), hex).unwrap_err();
    assert_eq!(kind, FaultKind::BadOutput, "{message}");
}

#[test]
fn impossible_replies_are_bad_output() {
    let (host, _dir) = host();
    let content = |text: &str| ParseEvent::Content(text.into());
    let image = |events| Image { events, held: 0, watch: 0 };
    // A string that is no UTF-8, an unknown event, an unknown channel, an absurd list.
    let hex = image(vec![content("abc")]).hex();
    is_bad_output(&host, &hex.replace("616263", "ff6263"));
    let mut bytes = image(vec![content("abc")]).bytes();
    bytes[16] = 9;
    is_bad_output(&host, &hostile_guest::hex(&bytes));
    let mut bytes = image(vec![]).bytes();
    (bytes[12], bytes[13]) = (1, 7);
    is_bad_output(&host, &hostile_guest::hex(&bytes));
    bytes[12] = 3;
    is_bad_output(&host, &hostile_guest::hex(&bytes));
    let mut bytes = image(vec![]).bytes();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    is_bad_output(&host, &hostile_guest::hex(&bytes));
    // Books that do not balance.
    let too_much = Image { events: vec![], held: 1_000, watch: 0 }.hex();
    is_bad_output(&host, &too_much);
    let end = ParseEvent::ToolEnd { index: 0 };
    is_bad_output(&host, &image(vec![end]).hex());
    let begin = ParseEvent::ToolBegin { index: 1, name: "f".into(), id: None };
    is_bad_output(&host, &image(vec![begin]).hex());
}

#[test]
fn held_after_the_end_is_bad_output() {
    let (host, _dir) = host();
    let reply = Image { events: vec![], held: 1, watch: 0 }.bytes();
    let wasm = module(&Guest { reply: hostile_guest::escape(&reply), ..Guest::default() });
    let hex = Image { events: vec![], held: 32, watch: 0 }.hex();
    assert_eq!(play(&host, &wasm, &hex).unwrap_err().0, FaultKind::BadOutput);
}

#[test]
fn floods_hit_a_limit() {
    let (host, _dir) = host();
    // One huge string, from memory that is there.
    let huge = "(memory.fill (i32.const 0x30000) (i32.const 120) (i32.const 0xc0000))
        (i32.store (i32.const 0x20000) (i32.const 0x20010))
        (i32.store (i32.const 0x20004) (i32.const 1))
        (i32.store (i32.const 0x20014) (i32.const 0x30000))
        (i32.store (i32.const 0x20018) (i32.const 0xc0000))
        (return (i32.const 0x20000))";
    assert_eq!(fault(&host, Guest { push: huge, ..Guest::default() }), FaultKind::Limit);
    // Half a million empty events.
    let many = "(i32.store (i32.const 0x20000) (i32.const 0x20010))
        (i32.store (i32.const 0x20004) (i32.const 30000))
        (return (i32.const 0x20000))";
    assert_eq!(fault(&host, Guest { push: many, ..Guest::default() }), FaultKind::Limit);
    // A little in each of many pushes, out of nothing.
    let drip = Guest {
        push: "(memory.fill (i32.const 0x30000) (i32.const 120) (i32.const 60000))
        (i32.store (i32.const 0x20000) (i32.const 0x20010))
        (i32.store (i32.const 0x20004) (i32.const 1))
        (i32.store (i32.const 0x20014) (i32.const 0x30000))
        (i32.store (i32.const 0x20018) (i32.const 60000))
        (return (i32.const 0x20000))",
        ..Guest::default()
    };
    let parser = host.admit(&module(&drip)).unwrap();
    let mut session = parser.open(&request()).unwrap();
    session.push("a", &[], 0).unwrap();
    assert_eq!(session.push("b", &[], 0).unwrap_err().kind, FaultKind::Limit);
    let again = session.push("c", &[], 0).unwrap_err();
    assert!(again.message.contains("after a fault"), "{again}");
}

#[test]
fn a_fault_ends_with_its_stream() {
    let (host, _dir) = host();
    // The second push of a session traps; a session beside it, of the same parser, does not care.
    let guest = Guest {
        push: "(if (i32.eq (local.get $len) (i32.const 2)) (then unreachable))",
        ..Guest::default()
    };
    let parser = host.admit(&module(&guest)).unwrap();
    let mut doomed = parser.open(&request()).unwrap();
    let mut other = parser.open(&request()).unwrap();
    let hex = Image { events: vec![ParseEvent::Content("x".into())], held: 0, watch: 0 }.hex();
    doomed.push(&hex, &[], 0).unwrap();
    assert_eq!(doomed.push("00", &[], 0).unwrap_err().kind, FaultKind::Trap);
    assert_eq!(other.push(&hex, &[], 0).unwrap().events.len(), 1);
    drop(doomed);
    let mut third = parser.open(&request()).unwrap();
    assert_eq!(third.push(&hex, &[], 0).unwrap().events.len(), 1);
}

/// A slot of the pool is reused at once; nothing of its last tenant may be in it.
#[test]
fn memory_is_clean_for_the_next_stream() {
    let (host, _dir) = host();
    // Marks all of its memory; traps if the mark is there already.
    let guest = Guest {
        start: "(if (i32.load (i32.const 0xf0000)) (then unreachable))
        (if (i32.load (i32.const 0x9000)) (then unreachable))",
        push: "(memory.fill (i32.const 0x8f00) (i32.const 0x5a) (i32.const 0xf0000))
        (return (i32.const 0x8000))",
        ..Guest::default()
    };
    let parser = host.admit(&module(&guest)).unwrap();
    for _ in 0..200 {
        parser.open(&request()).unwrap().push("x", &[], 0).unwrap();
    }
}

#[test]
fn more_streams_than_slots_are_a_limit() {
    let (host, _dir) = host();
    let parser = host.admit(&module(&Guest::default())).unwrap();
    let mut open = Vec::new();
    let fault = loop {
        match parser.open(&request()) {
            Ok(session) => open.push(session),
            Err(fault) => break fault,
        }
        assert!(open.len() <= hostile_guest::NUM_SESSIONS as usize);
    };
    assert_eq!(fault.kind, FaultKind::Limit);
    assert!(fault.message.contains("in use"), "{fault}");
    // It is the server that is full: no parser is put aside for it.
    for _ in 0..5 {
        let fault = parser.open(&request()).err().unwrap();
        assert!(fault.message.contains("in use"), "{fault}");
    }
    open.pop();
    parser.open(&request()).unwrap();
}

#[test]
fn three_faults_are_a_quarantine() {
    let (host, _dir) = host();
    let parser = host.admit(&module(&Guest { push: "unreachable", ..Guest::default() })).unwrap();
    for _ in 0..3 {
        parser.open(&request()).unwrap().push("x", &[], 0).unwrap_err();
    }
    let fault = parser.open(&request()).err().unwrap();
    assert_eq!(fault.kind, FaultKind::Limit);
    assert!(fault.message.contains("quarantined"), "{fault}");
    let stats = parser.stats();
    assert_eq!(stats.num_sessions(), 3);
    assert_eq!(stats.faults().iter().map(|(_, num)| num).sum::<u64>(), 3);
}

#[test]
fn what_is_no_parser_is_refused_with_its_reason() {
    let (host, _dir) = host();
    let good = module(&Guest::default());
    let component = wrap(&good);
    host.admit(&component).unwrap();
    let text = |wat: &str| wat::parse_str(wat).unwrap();
    let wasi = r#"(component (import "wasi:cli/environment@0.2.6" (instance)))"#;
    let preview1 = r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)))"#;
    let newer = r#"(component (instance $i)
        (export "tenon:extension/output-parser@0.9.0" (instance $i)))"#;
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (vec![], &["empty"]),
        (b"\x7fELF\x02".to_vec(), &["`.cwasm`", "never accepted"]),
        (b"(component)".to_vec(), &["text"]),
        (b"GIF89a".to_vec(), &["does not start as WebAssembly"]),
        (b"\0asm".to_vec(), &["not well-formed"]),
        (component[..component.len() - 9].to_vec(), &["not well-formed"]),
        (component[..component.len() / 2].to_vec(), &["not well-formed"]),
        (vec![b'\0'; (2 << 20) + 1], &["over the limit of 2097152"]),
        (text("(component)"), &["does not export `tenon:extension/output-parser@0.1.0`"]),
        (text(wasi), &["imports `wasi:cli/environment@0.2.6`", "wasm32-unknown-unknown"]),
        (text(preview1), &["`wasi_snapshot_preview1::fd_write`", "component-type"]),
        (text(newer), &["output-parser@0.9.0", "rebuild"]),
        (text("(module)"), &["without a `component-type` section"]),
    ];
    for (wasm, words) in cases {
        let reason = refusal(&host, &wasm);
        for word in words {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
}

#[test]
fn a_wrong_type_under_the_right_name_is_refused() {
    let (host, _dir) = host();
    let empty = r#"(component (instance $i)
        (export "tenon:extension/output-parser@0.1.0" (instance $i)))"#;
    let reason = refusal(&host, &wat::parse_str(empty).unwrap());
    assert!(reason.contains("does not link"), "{reason}");
}

#[test]
fn a_descriptor_is_not_believed() {
    let (host, _dir) = host();
    let mut descriptor = base_descriptor();
    descriptor.name = "../../etc/passwd".into();
    descriptor.version = "x".repeat(40);
    let guest = Guest {
        descriptor: hostile_guest::escape(&hostile_guest::descriptor_image(&descriptor)),
        ..Guest::default()
    };
    let reason = refusal(&host, &module(&guest));
    assert!(reason.contains("`name` of its descriptor is `../../etc/passwd`"), "{reason}");
    assert!(reason.contains("`version`"), "{reason}");
}

#[test]
fn proposals_that_are_off_are_refused_by_the_compiler() {
    let (host, _dir) = host();
    let tail =
        Guest { push: "(return_call $decode (i32.const 0) (i32.const 0))", ..Guest::default() };
    let reason = refusal(&host, &module(&tail));
    assert!(reason.contains("tail calls"), "{reason}");
}

#[test]
fn a_compile_bomb_ends_in_its_own_process() {
    // A big function of nested blocks with live values: superlinear work for any compiler.
    let mut body = String::new();
    for i in 0..20_000 {
        body.push_str(&format!("(local.set $skipped (i32.add (local.get $len) (i32.const {i})))"));
        body.push_str("(if (local.get $skipped) (then (local.set $len (local.get $self))))");
    }
    let guest = Guest { push: &body, ..Guest::default() };
    let wasm = module(&guest);
    let (host, _dir) = host_with(|limits| {
        limits.scan.body_bytes = 1 << 20;
        limits.compile.wall = Duration::from_millis(50);
    });
    let reason = refusal(&host, &wasm);
    assert!(reason.contains("took longer than"), "{reason}");
    let (host, _dir) = host_with(|limits| {
        limits.scan.body_bytes = 1 << 20;
        limits.compile.memory_bytes = 24 << 20;
    });
    let error = host.admit(&wasm).unwrap_err();
    assert!(error.to_string().contains("MiB of memory"), "{error}");
    let (host, _dir) = host_with(|limits| limits.scan.body_bytes = 100 << 10);
    let reason = refusal(&host, &wasm);
    assert!(reason.contains("bytes in one function"), "{reason}");
}

#[test]
fn a_compiler_that_is_none_is_the_servers_fault() {
    for (program, words) in [("/bin/false", "ended with"), ("/nonexistent", "does not start")] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = hostile_guest::config(dir.path());
        config.compiler.program = program.into();
        let host = ExtensionHost::new(config).unwrap();
        let error = host.admit(&module(&Guest::default())).unwrap_err();
        assert!(matches!(error, AdmissionError::Server { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn compiled_code_is_found_again_and_left_alone_when_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = module(&Guest::default());
    let start = || ExtensionHost::new(hostile_guest::config(dir.path())).unwrap();
    start().admit(&wasm).unwrap();
    let files = || -> Vec<_> {
        fs::read_dir(dir.path().join("compiled")).unwrap().map(|e| e.unwrap().path()).collect()
    };
    let [path] = files().try_into().unwrap();
    // Without a compiler: only the cache can serve it.
    let mut config = hostile_guest::config(dir.path());
    config.compiler.program = "/nonexistent".into();
    let host = ExtensionHost::new(config).unwrap();
    host.admit(&wasm).unwrap();
    // Damage is noticed, and the code made anew.
    fs::write(&path, b"\x7fELF nonsense").unwrap();
    start().admit(&wasm).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 1_000);
    // A refused component leaves nothing.
    refusal(&start(), &module(&Guest { describe: "unreachable", ..Guest::default() }));
    assert!(files().iter().all(|path| path.extension().is_some_and(|ext| ext == "cwasm")));
}

/// A process that was killed while it compiled leaves a file; in a container the next one has the
/// same id and comes to the same name.
#[test]
fn what_a_killed_compilation_left_is_no_obstacle() {
    let (host, dir) = host();
    let wasm = module(&Guest::default());
    host.admit(&wasm).unwrap();
    let cache = dir.path().join("compiled");
    let code = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let stem = code.file_stem().unwrap().to_str().unwrap();
    let partial = cache.join(format!(".{stem}-{}-0.partial", std::process::id()));
    fs::remove_file(&code).unwrap();
    fs::write(&partial, "half").unwrap();
    let next = ExtensionHost::new(hostile_guest::config(dir.path())).unwrap();
    next.admit(&wasm).unwrap();
    assert!(!partial.exists());
}

#[test]
fn the_same_bytes_are_one_parser() {
    let (host, _dir) = host();
    let wasm = module(&Guest::default());
    let one = host.admit(&wasm).unwrap();
    let started = Instant::now();
    let two = host.admit(&wasm).unwrap();
    assert!(started.elapsed() < Duration::from_millis(500));
    one.open(&request()).unwrap();
    assert_eq!(two.stats().num_sessions(), 1);
}

fn event() -> impl Strategy<Value = ParseEvent> {
    let text = "\\PC{0,12}";
    prop_oneof![
        text.prop_map(ParseEvent::Content),
        text.prop_map(ParseEvent::Reasoning),
        (0..4_u32, "\\PC{0,6}", prop::option::of("[a-z0-9]{0,6}"))
            .prop_map(|(index, name, id)| ParseEvent::ToolBegin { index, name, id }),
        (0..4_u32, text).prop_map(|(index, text)| ParseEvent::ToolArgs { index, text }),
        (0..4_u32).prop_map(|index| ParseEvent::ToolEnd { index }),
        text.prop_map(ParseEvent::Note),
    ]
}

fn image() -> impl Strategy<Value = Image> {
    (prop::collection::vec(event(), 0..6), 0..400_u32, 0..4_u8)
        .prop_map(|(events, held, watch)| Image { events, held, watch })
}

/// Pushes images until the first fault; what is accepted must be exactly what was sent.
fn chaos(session: &mut dyn ParserSession, images: &[Image]) -> Option<FaultKind> {
    for image in images {
        match session.push(&image.hex(), &[], 0) {
            Ok(reply) => {
                assert_eq!(reply.events, image.events);
                assert_eq!(reply.held, image.held);
            }
            Err(fault) => return Some(fault.kind),
        }
    }
    session.finish(ParseFinish::Length).err().map(|fault| fault.kind)
}

#[test]
fn chaos_of_the_right_type_is_booked_or_refused() {
    let (host, _dir) = host();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&prop::collection::vec(image(), 1..6), |images| {
            let parser = fresh(&host);
            let mut session = parser.open(&request()).unwrap();
            let kind = chaos(&mut *session, &images);
            prop_assert!(
                matches!(kind, None | Some(FaultKind::BadOutput | FaultKind::Limit)),
                "{:?}",
                kind
            );
            Ok(())
        })
        .unwrap();
}

#[test]
fn chaos_of_any_bytes_never_reaches_the_host() {
    let (host, _dir) = host();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let strategy = (image(), prop::collection::vec((0..200_usize, any::<u8>()), 1..6));
    runner
        .run(&strategy, |(image, changes)| {
            let mut bytes = image.bytes();
            for (at, value) in changes {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            let parser = fresh(&host);
            let mut session = parser.open(&request()).unwrap();
            if let Err(fault) = session.push(&hostile_guest::hex(&bytes), &[], 0) {
                let is_known = matches!(fault.kind, FaultKind::BadOutput | FaultKind::Limit);
                prop_assert!(is_known, "{fault}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_changes_of_a_component_never_break_admission() {
    let (host, _dir) = host();
    let good = wrap(&module(&Guest::default()));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let len = good.len();
    runner
        .run(&prop::collection::vec((0..len, any::<u8>()), 1..4), |changes| {
            let mut bytes = good.clone();
            for (at, value) in changes {
                bytes[at] = value;
            }
            let started = Instant::now();
            if let Err(error) = host.admit(&bytes) {
                prop_assert!(matches!(error, AdmissionError::Refused { .. }), "{error}");
            }
            prop_assert!(started.elapsed() < PROMPT);
            Ok(())
        })
        .unwrap();
}
