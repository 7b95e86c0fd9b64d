//! The pass board, docs/formats.md: what each component reads, what it took to show that, and what
//! a token costs. The test compares all but sizes and times, which differ from machine to machine;
//! with `TENON_WRITE_FORMATS=1` it writes the page.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenon_chat::parser::{Channel, ParserFactory, RequestInfo, ToolChoice};
use tenon_extensions::Parser;
use tenon_formats::Entry;
use tenon_guest::ModelInfo;

/// One family's line.
pub struct Row {
    pub family: &'static Entry,
    pub parser: Arc<Parser>,
    pub num_cases: usize,
    pub num_runs: usize,
}

const TOKEN: &str = "text";
const NUM_TOKENS: usize = 4_000;
const NUM_BATCHES: usize = 5;

const HEAD: &str = "\
# Output formats

Every format that a shipped component reads. A name or alias works as `--tool-call-parser`, a style
as `--reasoning-parser`, and `auto` finds most from the model's template and vocabulary. What all of
them do alike is in [policy.md](policy.md).

The page is written by the tests: `TENON_WRITE_FORMATS=1 cargo nextest run --cargo-profile ci
--workspace -E 'test(every_component_reads)'`. *Cases* are those of `tests/cases/formats.jsonl`,
`more_formats.jsonl` and `reports.jsonl` that name the family; each ran in the sandbox whole, one
character at a time, cut in two at every place and at 200 random ways, each with and without
delivery by the host: *runs*. *Enforced*: calls that are required, named, strict or one at most are
held to the format's own grammar while the model writes them. Times are nanoseconds per token of 4
bytes inside a string argument, the least of five batches: the parser compiled natively (with the
tests' checks); in the sandbox with a call per token; and with a call for 8 tokens. Sizes are bytes
of the component.

";

const COLUMNS: &str = "\
| format | aliases | reasoning styles | enforced | cases | runs | native | sandbox | 8 each | size |
|---|---|---|---|---|---|---|---|---|---|
";

/// Compares the page, or writes it.
pub fn check(root: &Path, rows: &[Row]) {
    let path = root.join("docs/formats.md");
    let writes = std::env::var_os("TENON_WRITE_FORMATS").is_some();
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.family.name);
    if writes {
        let lines: Vec<String> = rows.iter().map(|row| line(root, row)).collect();
        fs::write(&path, format!("{HEAD}{COLUMNS}{}", lines.concat())).unwrap();
        return;
    }
    let page = fs::read_to_string(&path).expect("docs/formats.md: write it as its test says");
    for row in rows {
        let fixed = fixed(row);
        assert!(page.contains(&fixed), "docs/formats.md is old (TENON_WRITE_FORMATS=1): {fixed}");
    }
}

/// What does not depend on the machine.
fn fixed(row: &Row) -> String {
    let descriptor = row.parser.descriptor();
    let styles: Vec<&str> = descriptor.reasoning_styles.iter().map(|of| of.name.as_str()).collect();
    format!(
        "| `{}` | {} | {} | {} | {} | {} |",
        row.family.name,
        descriptor.aliases.join(", "),
        styles.join(", "),
        if is_enforced(row.family) { "yes" } else { "" },
        row.num_cases,
        row.num_runs
    )
}

/// Has it a grammar for calls that are required?
fn is_enforced(family: &Entry) -> bool {
    let mut request = tenon_formats::request(&tools(), None, tenon_guest::Channel::Content);
    request.tool_choice = tenon_guest::ToolChoice::Required;
    let model = ModelInfo { name: "m".into(), template: None, added_tokens: Vec::new() };
    (family.constraint)(&model, &request).unwrap().is_some()
}

fn line(root: &Path, row: &Row) -> String {
    let file = root.join("target/guests").join(format!("{}.wasm", row.family.name));
    let size = fs::metadata(file).unwrap().len();
    let times = match row.family.render {
        Some(render) => {
            let call = render(&[("a_tool".into(), json!({"text": "MARK"}))]);
            let head = call.split("MARK").next().unwrap();
            let native = least(|| native(row.family, head));
            let one = least(|| sandboxed(&row.parser, head, 1));
            let eight = least(|| sandboxed(&row.parser, head, 8));
            format!("{native:.0} | {one:.0} | {eight:.0}")
        }
        None => "| |".into(),
    };
    format!("{} {times} | {size} |\n", fixed(row))
}

fn least(run: impl Fn() -> Duration) -> f64 {
    let least = (0..NUM_BATCHES).map(|_| run()).min().unwrap();
    least.as_secs_f64() * 1e9 / NUM_TOKENS as f64
}

fn tools() -> String {
    let properties: Value = json!({"text": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": properties});
    json!([{"type": "function", "function": {"name": "a_tool", "parameters": parameters}}])
        .to_string()
}

fn native(family: &Entry, head: &str) -> Duration {
    let request = tenon_formats::request(&tools(), None, tenon_guest::Channel::Content);
    let mut session = (family.open)(request);
    session.push(head, &[], 0);
    let started = Instant::now();
    for _ in 0..NUM_TOKENS {
        std::hint::black_box(session.push(TOKEN, &[], 0));
    }
    started.elapsed()
}

fn sandboxed(parser: &Arc<Parser>, head: &str, tokens_per_push: usize) -> Duration {
    let request = RequestInfo {
        tools: tools(),
        tool_choice: ToolChoice::Auto,
        parallel: true,
        strict: false,
        reasoning_style: None,
        start: Channel::Content,
        strict_markers: false,
    };
    let mut session = parser.open(&request).unwrap();
    session.push(head, &[], 0).unwrap();
    let text = TOKEN.repeat(tokens_per_push);
    let started = Instant::now();
    for _ in 0..NUM_TOKENS / tokens_per_push {
        std::hint::black_box(session.push(&text, &[], 0).unwrap());
    }
    started.elapsed()
}
