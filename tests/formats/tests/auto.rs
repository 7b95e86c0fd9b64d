//! `auto`: each family is found by what shows it, and by nobody else. Sketches of real templates
//! say what else stands in them.

use serde::Deserialize;
use tenon_chat::choose::{Choice, choose};
use tenon_chat::parser::{Descriptor, Evidence};
use tenon_formats::all;

/// As the host has it; only what counts for a choice.
fn descriptors() -> Vec<Descriptor> {
    let convert = |of: tenon_guest::Descriptor| Descriptor {
        name: of.name,
        version: of.version,
        summary: of.summary,
        aliases: of.aliases,
        tools: of.tools,
        reasoning_styles: Vec::new(),
        added_tokens: of.added_tokens,
        openers: of.openers,
        triggers: Vec::new(),
        evidence: of
            .evidence
            .into_iter()
            .map(|rule| Evidence {
                template_has: rule.template_has,
                template_lacks: rule.template_lacks,
                vocabulary_has: rule.vocabulary_has,
            })
            .collect(),
    };
    all().map(|entry| convert((entry.describe)())).collect()
}

fn chosen(descriptors: &[Descriptor], template: Option<&str>, tokens: &[String]) -> Choice {
    choose(descriptors, template, &|text| tokens.iter().any(|token| token == text))
}

#[test]
fn what_a_rule_says_chooses_its_family_alone() {
    let descriptors = descriptors();
    let mut wrong = Vec::new();
    for descriptor in &descriptors {
        for rule in &descriptor.evidence {
            let template = rule.template_has.join("\n");
            let template = Some(template.as_str()).filter(|text| !text.is_empty());
            match chosen(&descriptors, template, &rule.vocabulary_has) {
                Choice::One { name, .. } if name == descriptor.name => {}
                choice => wrong.push(format!("{}: {rule:?}: {choice:?}", descriptor.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} rules:\n{}", wrong.len(), wrong.join("\n"));
}

#[derive(Deserialize)]
struct Sketch {
    /// None: `auto` must choose none.
    family: Option<String>,
    template: String,
    tokens: Vec<String>,
}

#[test]
fn sketches_of_real_models_find_their_family() {
    let path = format!("{}/../cases/templates.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("part of the project");
    let sketches: Vec<Sketch> = serde_json::from_str(&text).expect("JSON");
    let descriptors = descriptors();
    let mut wrong = Vec::new();
    for sketch in &sketches {
        let found = match chosen(&descriptors, Some(&sketch.template), &sketch.tokens) {
            Choice::One { name, .. } => Some(name),
            Choice::None => None,
            Choice::Ambiguous(names) => Some(names.join(" or ")),
        };
        if found != sketch.family {
            wrong.push(format!("{:?}: {found:?}: {}", sketch.family, sketch.template));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), sketches.len(), wrong.join("\n"));
}
