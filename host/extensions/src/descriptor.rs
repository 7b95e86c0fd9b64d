//! Which self-descriptions are believed: names that fit paths and logs, bounded lists, no empty
//! trigger (it would match everywhere).

use tenon_chat::parser::Descriptor;

/// Bytes of a name or alias.
const MAX_NAME_BYTES: usize = 64;
/// Bytes of the version.
const MAX_VERSION_BYTES: usize = 32;
/// Bytes of the summary.
const MAX_SUMMARY_BYTES: usize = 200;
/// Bytes of a marker, token or trigger.
const MAX_TEXT_BYTES: usize = 128;
/// Bytes of a substring of a template.
const MAX_EVIDENCE_BYTES: usize = 512;
/// Entries of any list.
const MAX_ENTRIES: usize = 64;
/// Reasons given at once.
const MAX_REASONS: usize = 16;

/// Everything that is wrong with `descriptor`; empty: nothing.
pub(crate) fn check(descriptor: &Descriptor) -> Vec<String> {
    let mut check = Check { reasons: Vec::new() };
    check.name("name", &descriptor.name, is_name_byte);
    check.aliases("aliases", &descriptor.aliases);
    check.line("version", &descriptor.version, 1, MAX_VERSION_BYTES);
    check.line("summary", &descriptor.summary, 0, MAX_SUMMARY_BYTES);
    if !descriptor.tools && descriptor.reasoning_styles.is_empty() {
        check.refuse(
            "its descriptor has neither `tools` nor `reasoning-styles`: it would find nothing"
                .into(),
        );
    }
    check.styles(descriptor);
    check.texts("added-tokens", &descriptor.added_tokens, MAX_TEXT_BYTES);
    check.texts("openers", &descriptor.openers, MAX_TEXT_BYTES);
    check.count("triggers", descriptor.triggers.len());
    for trigger in descriptor.triggers.iter().take(MAX_ENTRIES) {
        check.texts("triggers", &trigger.texts, MAX_TEXT_BYTES);
    }
    check.count("evidence", descriptor.evidence.len());
    for rule in descriptor.evidence.iter().take(MAX_ENTRIES) {
        check.texts("evidence", &rule.template_has, MAX_EVIDENCE_BYTES);
        check.texts("evidence", &rule.template_lacks, MAX_EVIDENCE_BYTES);
        check.texts("evidence", &rule.vocabulary_has, MAX_TEXT_BYTES);
        if rule.template_has.is_empty() && rule.vocabulary_has.is_empty() {
            check.refuse(
                "an `evidence` rule of its descriptor asks for nothing, so it would fit every \
                 model; name a substring of the template or a token"
                    .into(),
            );
        }
    }
    check.reasons
}

struct Check {
    reasons: Vec<String>,
}

impl Check {
    fn refuse(&mut self, reason: String) {
        if self.reasons.len() < MAX_REASONS && !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    fn count(&mut self, field: &str, num: usize) {
        if num > MAX_ENTRIES {
            self.refuse(format!(
                "`{field}` of its descriptor has `{num}` entries; at most {MAX_ENTRIES} are read"
            ));
        }
    }

    fn name(&mut self, field: &str, name: &str, is_allowed: fn(u8) -> bool) {
        let is_good = !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && name.bytes().all(is_allowed)
            && name.as_bytes()[0].is_ascii_alphanumeric();
        if !is_good {
            self.refuse(format!(
                "`{field}` of its descriptor is `{}`; use 1 to {MAX_NAME_BYTES} lower-case \
                 letters, digits, `_` and `-`",
                shown(name)
            ));
        }
    }

    fn aliases(&mut self, field: &str, names: &[String]) {
        self.count(field, names.len());
        for name in names.iter().take(MAX_ENTRIES) {
            self.name(field, name, |byte| is_name_byte(byte) || byte == b'.');
        }
    }

    fn line(&mut self, field: &str, text: &str, min: usize, max: usize) {
        if text.len() < min || text.len() > max || text.chars().any(char::is_control) {
            self.refuse(format!(
                "`{field}` of its descriptor is `{}`; use one line of {min} to {max} bytes",
                shown(text)
            ));
        }
    }

    fn texts(&mut self, field: &str, texts: &[String], max: usize) {
        self.count(field, texts.len());
        for text in texts.iter().take(MAX_ENTRIES) {
            if text.is_empty() || text.len() > max {
                self.refuse(format!(
                    "`{field}` of its descriptor has an entry of `{}` bytes; use 1 to {max}",
                    text.len()
                ));
            }
        }
    }

    fn styles(&mut self, descriptor: &Descriptor) {
        let styles = &descriptor.reasoning_styles;
        self.count("reasoning-styles", styles.len());
        for (i, style) in styles.iter().take(MAX_ENTRIES).enumerate() {
            self.name("reasoning-styles.name", &style.name, is_name_byte);
            self.aliases("reasoning-styles.aliases", &style.aliases);
            self.texts("reasoning-styles.openers", &style.openers, MAX_TEXT_BYTES);
            self.texts("reasoning-styles.closers", &style.closers, MAX_TEXT_BYTES);
            if styles[..i].iter().any(|earlier| earlier.name == style.name) {
                self.refuse(format!(
                    "its descriptor has two reasoning styles `{}`; rename one",
                    shown(&style.name)
                ));
            }
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
}

/// For a message: short, without control characters.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_NAME_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use tenon_chat::parser::{Channel, Evidence, ReasoningStyle, Trigger};

    use super::*;

    fn good() -> Descriptor {
        Descriptor {
            name: "hermes".into(),
            version: "0.1.0".into(),
            summary: "Calls as JSON in tags.".into(),
            aliases: vec!["qwen2.5".into()],
            tools: true,
            reasoning_styles: vec![ReasoningStyle {
                name: "qwen3".into(),
                aliases: vec![],
                openers: vec!["<think>".into()],
                closers: vec!["</think>".into()],
                ends_at_call: true,
            }],
            added_tokens: vec!["<tool_call>".into()],
            openers: vec!["<tool_call>".into()],
            triggers: vec![Trigger {
                channel: Channel::Content,
                texts: vec!["<tool_call>".into()],
            }],
            evidence: vec![Evidence {
                template_has: vec!["<tool_call>".into()],
                ..Evidence::default()
            }],
        }
    }

    fn refused(change: impl FnOnce(&mut Descriptor), field: &str) {
        let mut descriptor = good();
        change(&mut descriptor);
        let reasons = check(&descriptor);
        assert!(reasons.iter().any(|reason| reason.contains(field)), "{field}: {reasons:?}");
        assert!(reasons.len() <= MAX_REASONS);
    }

    #[test]
    fn a_good_one_passes() {
        assert_eq!(check(&good()), Vec::<String>::new());
    }

    #[test]
    fn each_field_is_checked() {
        refused(|d| d.name = String::new(), "`name`");
        refused(|d| d.name = "../etc".into(), "`name`");
        refused(|d| d.name = "Hermes".into(), "`name`");
        refused(|d| d.name = "-x".into(), "`name`");
        refused(|d| d.name = "h".repeat(65), "`name`");
        refused(|d| d.aliases = vec!["a b".into()], "`aliases`");
        refused(|d| d.aliases = vec!["a".into(); 65], "`65` entries");
        refused(|d| d.version = String::new(), "`version`");
        refused(|d| d.summary = "two\nlines".into(), "`summary`");
        refused(|d| d.summary = "x".repeat(201), "`summary`");
        refused(|d| d.triggers[0].texts = vec![String::new()], "`triggers`");
        refused(|d| d.openers = vec!["x".repeat(129)], "`openers`");
        refused(|d| d.evidence = vec![Evidence::default()], "`evidence`");
        refused(|d| d.reasoning_styles.push(d.reasoning_styles[0].clone()), "two reasoning styles");
        refused(
            |d| {
                d.tools = false;
                d.reasoning_styles.clear();
            },
            "neither",
        );
    }

    #[test]
    fn a_message_shows_no_control_characters() {
        let mut descriptor = good();
        descriptor.name = format!("\u{1b}[31m{}", "x".repeat(500));
        let reasons = check(&descriptor);
        assert!(!reasons[0].contains('\u{1b}') && reasons[0].len() < 200, "{reasons:?}");
    }
}
