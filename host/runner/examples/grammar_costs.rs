//! What structured output costs with a real vocabulary: `grammar_costs MODEL`. Compile times of
//! grammars that were never seen, and time per step of mask and commit along random outputs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenon_grammar::{Compiler, Grammar, GrammarSpec, Limits, Starts};
use tenon_runner::load::{LoadOptions, load_model};
use tenon_text::Tokenizer;

/// Steps of one output.
const NUM_STEPS: usize = 64;
/// Outputs per grammar.
const NUM_OUTPUTS: u64 = 20;

fn main() {
    let path = std::env::args().nth(1).expect("usage: grammar_costs MODEL");
    let model = load_model(Path::new(&path), &LoadOptions::default()).expect("a model");
    let (eos, tokenizer) = (model.eos_token_ids.clone(), Arc::new(model.tokenizer));
    let compiler = Compiler::new(tokenizer.clone(), eos.clone(), Limits::default());
    let began = Instant::now();
    let compile = |spec: &GrammarSpec| compiler.compile(spec, &Starts::AtOnce).expect("a grammar");
    compile(&GrammarSpec::Choice(vec!["x".into()]));
    println!("{} tokens; once per model: {:.1?}", tokenizer.vocab_size(), began.elapsed());
    println!("{:12} {:>10} {:>10} {:>10} {:>10}", "", "compile", "median", "p99", "max");
    for (name, spec) in specs() {
        let began = Instant::now();
        let grammar = compile(&spec);
        let compiled = began.elapsed();
        let mut times = steps(&grammar, &tokenizer, &eos);
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        println!(
            "{name:12} {compiled:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?}",
            at(50),
            at(99),
            at(100)
        );
    }
}

fn specs() -> Vec<(&'static str, GrammarSpec)> {
    let text = |max: u32| json!({"type": "string", "maxLength": max});
    let person = json!({"type": "object", "properties": {"name": text(40),
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "format": "email"}}, "required": ["name", "age"],
        "additionalProperties": false});
    let list = json!({"type": "array", "items": person.clone(), "minItems": 2, "maxItems": 20});
    let fields = (0..100).map(|i| (format!("field_{i}"), text(20)));
    let wide: serde_json::Map<String, Value> = fields.collect();
    let wide = json!({"type": "object", "properties": wide, "additionalProperties": false});
    let codes: Vec<String> = (0..500).map(|i| format!("code-{i:04}")).collect();
    let each = "<arg_key>$KEY</arg_key>\n<arg_value>$VALUE</arg_value>\n";
    let tags = json!({"parameters": {"each": each, "closers": ["</arg_value>"]}});
    vec![
        ("json_object", GrammarSpec::JsonObject),
        ("person", GrammarSpec::JsonSchema(person)),
        ("list", GrammarSpec::JsonSchema(list)),
        ("100 fields", GrammarSpec::JsonSchema(wide)),
        ("500 choices", GrammarSpec::Choice(codes)),
        ("json calls", calls(&json!("json"))),
        ("tag calls", calls(&tags)),
        ("regex", GrammarSpec::Regex(r"[A-Z][a-z]{2,20}(, [A-Z][a-z]{2,20}){2,9}".into())),
    ]
}

/// Calls of two tools in tags, their arguments in JSON or in tags, too.
fn calls(arguments: &Value) -> GrammarSpec {
    let ferry = json!({"type": "object", "additionalProperties": false, "properties": {
        "harbour": {"type": "string"}, "note": {"type": ["string", "null"], "maxLength": 200},
        "seats": {"type": "integer"}, "day": {"enum": ["mon", "tue"]},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["harbour", "note"]});
    let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let tool = |name: &str, parameters| {
        let function = json!({"name": name, "parameters": parameters});
        json!({"function": function})
    };
    let declaration = json!({"tools": [tool("ferry_times", ferry), tool("ping", none)],
        "parallel": true, "call": "<tool_call>$NAME\n$ARGS</tool_call>", "between": "\n",
        "arguments": arguments});
    GrammarSpec::Lark(format!("start: %calls {declaration}"))
}

/// Mask and commit, along outputs that a counter picks.
fn steps(grammar: &Grammar, tokenizer: &Tokenizer, eos: &[u32]) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut logits = vec![0.0_f32; tokenizer.vocab_size()];
    for output in 0..NUM_OUTPUTS {
        let mut constraint = grammar.start();
        let mut pick = output.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for _ in 0..NUM_STEPS {
            if constraint.is_complete() {
                break;
            }
            logits.fill(0.0);
            let began = Instant::now();
            constraint.mask(&mut logits).expect("a mask");
            let masked = began.elapsed();
            let is_allowed = |id: &u32| logits[*id as usize] == 0.0 && !eos.contains(id);
            let allowed: Vec<u32> = (0..logits.len() as u32).filter(is_allowed).collect();
            if allowed.is_empty() {
                break;
            }
            pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let token = allowed[(pick >> 33) as usize % allowed.len()];
            let began = Instant::now();
            constraint.commit(token).expect("an allowed token");
            times.push(masked + began.elapsed());
        }
    }
    times
}
