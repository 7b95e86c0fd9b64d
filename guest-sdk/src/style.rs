//! Reasoning styles as values. A family lists those that it can read; the binding of a model picks
//! one by name. A style has a name of its own because the same markers end differently: some models
//! begin a call inside open reasoning and mean it, others only quote it.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::ReasoningStyle;

/// One way of marking reasoning. Start from [`Style::tags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Lower case, digits, `_` and `-`.
    pub name: &'static str,
    /// Names in other engines.
    pub aliases: &'static [&'static str],
    /// Begin reasoning at a boundary (message start, or right behind markup).
    pub openers: &'static [&'static str],
    /// Begin it anywhere: control tokens, which prose does not contain.
    pub anywhere: &'static [&'static str],
    /// End it, the first one that comes.
    pub closers: &'static [&'static str],
    /// What a call inside open reasoning is.
    pub at_call: AtCall,
    /// The markers are phrases of ordinary text: they count at the message start only, and the
    /// blanks behind them belong to them.
    pub is_phrase: bool,
    /// Reasoning is not told apart: it stays in the content, with its markers, and with the opener
    /// that the prompt ended with.
    pub is_content: bool,
}

/// What a call inside open reasoning is, once it reaches its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtCall {
    /// A call; reasoning ends at its opener.
    Ends,
    /// Reasoning.
    Quoted,
    /// A call; reasoning goes on behind it.
    GoesOn,
}

impl Style {
    /// Reasoning between two tags.
    pub const fn tags(
        name: &'static str,
        openers: &'static [&'static str],
        closers: &'static [&'static str],
        at_call: AtCall,
    ) -> Self {
        let (aliases, anywhere): (&[_], &[_]) = (&[], &[]);
        Style {
            name,
            aliases,
            openers,
            anywhere,
            closers,
            at_call,
            is_phrase: false,
            is_content: false,
        }
    }

    /// `<think>` … `</think>`.
    pub const fn think(
        name: &'static str,
        aliases: &'static [&'static str],
        at_call: AtCall,
    ) -> Self {
        Style { aliases, ..Style::tags(name, &["<think>"], &["</think>"], at_call) }
    }

    /// Is it called this?
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// As the descriptor says it.
    pub fn record(&self) -> ReasoningStyle {
        let mut openers = owned(self.openers);
        openers.extend(owned(self.anywhere));
        ReasoningStyle {
            name: self.name.into(),
            aliases: owned(self.aliases),
            openers,
            closers: owned(self.closers),
            ends_at_call: self.at_call == AtCall::Ends,
        }
    }
}

pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

/// Qwen 3: a call inside ends it.
pub const QWEN3: Style = Style::think("qwen3", &["qwen3-thinking", "baichuan_m2"], AtCall::Ends);
/// DeepSeek R1 and its like: a call inside is quoted.
pub const DEEPSEEK_R1: Style =
    Style::think("deepseek_r1", &["deepseek-r1", "basic", "ling", "exaone4"], AtCall::Quoted);
/// DeepSeek V3.1 and V3.2.
pub const DEEPSEEK_V3: Style =
    Style::think("deepseek_v3", &["deepseek-v3", "deepseek_v3_1", "deepseek_v3_2"], AtCall::Ends);
/// DeepSeek V4.
pub const DEEPSEEK_V4: Style =
    Style::think("deepseek_v4", &["deepseek-v4", "deepseekv4"], AtCall::Ends);
/// Kimi K2 Thinking and later.
pub const KIMI_K2: Style = Style::think("kimi_k2", &["kimi_k25"], AtCall::Ends);
/// Kimi's first thinking models.
pub const KIMI: Style = Style::tags("kimi", &["◁think▷"], &["◁/think▷"], AtCall::Quoted);
/// GLM 4.5 and 4.6.
pub const GLM45: Style = Style::think("glm45", &[], AtCall::Ends);
/// GLM 4.7 and 5.
pub const GLM47: Style = Style::think("glm47", &[], AtCall::Ends);
/// Nemotron 3.
pub const NEMOTRON_V3: Style =
    Style::think("nemotron_v3", &["nemotron_3", "nemotron3", "nemotron_nano"], AtCall::Ends);
/// Nemotron nano v2 and deci.
pub const NEMOTRON_DECI: Style = Style::think("nemotron_deci", &["nemotron_v2"], AtCall::Quoted);
/// MiMo.
pub const MIMO: Style = Style::think("mimo", &[], AtCall::Ends);
/// MiniMax M1 and M2.
pub const MINIMAX_M2: Style = Style::think("minimax_m2", &["minimax"], AtCall::Quoted);
/// MiniMax M2 with its reasoning left in the content.
pub const MINIMAX_M2_APPEND_THINK: Style = Style {
    is_content: true,
    ..Style::think(
        "minimax_m2_append_think",
        &["minimax-append-think", "minimax_append_think"],
        AtCall::Quoted,
    )
};
/// MiniMax M3.
pub const MINIMAX_M3: Style = Style {
    aliases: &["minimax-m3"],
    ..Style::tags("minimax_m3", &["<mm:think>"], &["</mm:think>"], AtCall::Ends)
};
/// Step 3.
pub const STEP3: Style = Style::think("step3", &[], AtCall::Quoted);
/// Step 3.5 and 3.7.
pub const STEP3P5: Style = Style::think("step3p5", &[], AtCall::Quoted);
/// Hunyuan A13B.
pub const HUNYUAN_A13B: Style = Style::think("hunyuan_a13b", &[], AtCall::Quoted);
/// Hy3.
pub const HY_V3: Style = Style::think("hy_v3", &["hunyuan"], AtCall::Ends);
/// ERNIE 4.5.
pub const ERNIE45: Style = Style::think("ernie45", &[], AtCall::Quoted);
/// Olmo 3.
pub const OLMO3: Style = Style::think("olmo3", &["olmo3-think"], AtCall::Quoted);
/// Holo2.
pub const HOLO2: Style = Style::think("holo2", &[], AtCall::Quoted);
/// TeleChat 4.
pub const TELECHAT4: Style = Style::think("telechat4", &[], AtCall::Quoted);
/// Intern-S1.
pub const INTERNS1: Style = Style::think("interns1", &[], AtCall::Ends);
/// Poolside v1.
pub const POOLSIDE_V1: Style = Style::think("poolside_v1", &[], AtCall::Ends);
/// Trinity: calls stand inside.
pub const TRINITY: Style = Style { at_call: AtCall::GoesOn, ..QWEN3 };
/// LongCat.
pub const LONGCAT: Style =
    Style::tags("longcat", &["<longcat_think>"], &["</longcat_think>"], AtCall::Quoted);
/// Seed-OSS.
pub const SEED_OSS: Style =
    Style::tags("seed_oss", &["<seed:think>"], &["</seed:think>"], AtCall::Ends);
/// Mistral: control tokens, or tags in text.
pub const MISTRAL: Style = Style {
    anywhere: &["[THINK]"],
    ..Style::tags("mistral", &["<think>"], &["[/THINK]", "</think>"], AtCall::Ends)
};
/// Granite 3: phrases.
pub const GRANITE: Style = Style {
    is_phrase: true,
    ..Style::tags(
        "granite",
        &["Here is my thought process:", "Here's my thought process:"],
        &["Here is my response:", "Here's my response:"],
        AtCall::Quoted,
    )
};
/// Gemma 4: a channel with a label.
pub const GEMMA4: Style = Style {
    aliases: &["gemma-4"],
    anywhere: &["<|channel>thought\n", "<|channel>"],
    ..Style::tags("gemma4", &[], &["<channel|>"], AtCall::Ends)
};
/// Cohere Command R7B and A.
pub const COHERE_COMMAND3: Style = Style {
    anywhere: &["<|START_THINKING|>"],
    ..Style::tags("cohere_command3", &[], &["<|END_THINKING|>"], AtCall::Ends)
};
/// Cohere Command A+ and 4.
pub const COHERE_COMMAND4: Style = Style { name: "cohere_command4", ..COHERE_COMMAND3 };
/// Solar Open2.
pub const SOLAR_OPEN2: Style = Style {
    anywhere: &["<|think:start|>"],
    ..Style::tags("solar_open2", &[], &["<|think:end|>"], AtCall::Ends)
};
/// Apertus: calls stand inside.
pub const APERTUS: Style = Style {
    aliases: &["apertus"],
    anywhere: &["<|inner_prefix|>"],
    ..Style::tags("apertus2509", &[], &["<|inner_suffix|>"], AtCall::GoesOn)
};
/// K2 Horizon.
pub const K2_HORIZON: Style = Style::tags(
    "k2_horizon",
    &["<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"],
    &["</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"],
    AtCall::Quoted,
);
/// Harmony: a channel. The opener is what a prompt may end with.
pub const OPENAI_GPTOSS: Style = Style {
    aliases: &["gpt-oss", "gpt_oss"],
    ..Style::tags("openai_gptoss", &["<|channel|>analysis<|message|>"], &["<|end|>"], AtCall::Ends)
};
/// Inkling: a message.
pub const INKLING: Style =
    Style::tags("inkling", &["<|content_thinking|>"], &["<|end_message|>"], AtCall::Ends);
/// Solar Open.
pub const SOLAR_OPEN: Style = Style {
    anywhere: &["<|think|>"],
    ..Style::tags("solar_open", &[], &["<|end|>"], AtCall::Quoted)
};
