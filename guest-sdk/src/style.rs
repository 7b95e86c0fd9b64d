//! Reasoning styles as values. A family lists those that it can read; the binding of a model picks
//! one by name. A style has a name of its own because the same markers end differently: some models
//! begin a call inside open reasoning and mean it, others only quote it.

use crate::ReasoningStyle;

/// One way of marking reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Lower case, digits, `_` and `-`.
    pub name: &'static str,
    /// Names in other engines.
    pub aliases: &'static [&'static str],
    /// Begin reasoning, at a boundary (message start, or right behind markup).
    pub openers: &'static [&'static str],
    /// End it, the first one that comes.
    pub closers: &'static [&'static str],
    /// A call that reaches its commit ends open reasoning. If not, a call inside is reasoning.
    pub ends_at_call: bool,
}

/// `<think>` … `</think>`; a call inside ends it.
pub const QWEN3: Style = Style {
    name: "qwen3",
    aliases: &["qwen3-thinking"],
    openers: &["<think>"],
    closers: &["</think>"],
    ends_at_call: true,
};

/// `<think>` … `</think>`; a call inside is quoted.
pub const DEEPSEEK_R1: Style = Style {
    name: "deepseek_r1",
    aliases: &["deepseek-r1"],
    openers: &["<think>"],
    closers: &["</think>"],
    ends_at_call: false,
};

impl Style {
    /// Is it called this?
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// As the descriptor says it.
    pub fn record(&self) -> ReasoningStyle {
        ReasoningStyle {
            name: self.name.into(),
            aliases: owned(self.aliases),
            openers: owned(self.openers),
            closers: owned(self.closers),
            ends_at_call: self.ends_at_call,
        }
    }
}

pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}
