//! Pre-tokenizers: cut a section of text into the words inside which BPE merges.
//!
//! A splitter is a list of patterns; each cuts the pieces of the one before it, and both matches
//! and the gaps between them are pieces. GGUF names its splitter (`tokenizer.ggml.pre`),
//! `tokenizer.json` spells it out.

use fancy_regex::Regex;

use crate::TextError;

/// The contractions of GPT-4's pattern in the spelling that needs no case folding.
const CONTRACTIONS: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";

/// GPT-2's pattern.
pub(crate) const GPT2: &str =
    concat!(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", r"|\s+(?!\S)|\s+");
const LLAMA3_TAIL: &str = concat!(
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2_TAIL: &str = concat!(
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN35_TAIL: &str = concat!(
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// What a name in `tokenizer.ggml.pre` stands for.
pub(crate) struct Preset {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// Put the contractions in front of the last pattern.
    contractions: bool,
    /// A word that is a token is taken as it is.
    pub(crate) ignore_merges: bool,
    /// Prompts start with BOS unless the file says otherwise.
    pub(crate) add_bos: bool,
}

const fn preset(names: &'static [&'static str], patterns: &'static [&'static str]) -> Preset {
    Preset { names, patterns, contractions: false, ignore_merges: false, add_bos: false }
}

const PRESETS: &[Preset] = &[
    preset(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    Preset {
        contractions: true,
        ignore_merges: true,
        add_bos: true,
        ..preset(
            &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"],
            &[LLAMA3_TAIL],
        )
    },
    Preset {
        contractions: true,
        ..preset(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3_TAIL])
    },
    preset(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    ),
    preset(
        &["deepseek-v3", "hunyuan-dense"],
        &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK_V3],
    ),
    preset(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
    preset(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        &[r"\p{N}", GPT2],
    ),
    preset(&["gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"], &[GPT2]),
    Preset {
        contractions: true,
        ..preset(&["qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"], &[QWEN2_TAIL])
    },
    Preset { contractions: true, ..preset(&["qwen35"], &[QWEN35_TAIL]) },
    preset(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    preset(&["viking"], &[BLOOM, r"\p{N}"]),
    Preset { ignore_merges: true, add_bos: true, ..preset(&["tekken"], &[TEKKEN]) },
    preset(&["gpt-4o", "llama4", "kanana2"], &[O200K]),
];

impl Preset {
    /// Looks a name up.
    pub(crate) fn named(name: &str) -> Result<&'static Preset, TextError> {
        PRESETS.iter().find(|p| p.names.contains(&name)).ok_or_else(|| {
            let mut known: Vec<_> = PRESETS.iter().flat_map(|p| p.names).copied().collect();
            known.sort_unstable();
            TextError::Unsupported {
                what: "pre-tokenizer `tokenizer.ggml.pre`",
                value: name.into(),
                next: format!("known: {}; or give the model's tokenizer.json", known.join(", ")),
            }
        })
    }

    pub(crate) fn splitter(&self) -> Result<Splitter, TextError> {
        let mut patterns: Vec<String> = self.patterns.iter().map(|p| p.to_string()).collect();
        if self.contractions
            && let Some(last) = patterns.last_mut()
        {
            last.insert_str(0, CONTRACTIONS);
        }
        Splitter::new(&patterns)
    }
}

/// Cuts text into words.
pub(crate) struct Splitter {
    stages: Vec<Stage>,
}

struct Stage {
    regex: Regex,
    /// The pattern's look-ahead for blanks is done by hand.
    blanks: Option<Blanks>,
}

/// `\s+(?!\S)|\s+` takes a run of blanks up to, not including, the last one before a word. A plain
/// `\s+` and this rule do the same without back-tracking, so the regex stays a finite automaton.
#[derive(Clone, Copy)]
struct Blanks {
    /// The pattern has `\s*[\r\n]+` before it, which ends at a line end and gives nothing back.
    line_ends: bool,
}

impl Splitter {
    /// No cut at all.
    #[cfg(test)]
    pub(crate) fn whole() -> Splitter {
        Splitter { stages: Vec::new() }
    }

    /// Compiles patterns (Oniguruma's dialect, as far as it is also that of `fancy-regex`).
    pub(crate) fn new(patterns: &[String]) -> Result<Splitter, TextError> {
        let stages = patterns.iter().map(|p| Stage::new(p)).collect::<Result<_, _>>()?;
        Ok(Splitter { stages })
    }

    /// Hands over the words of `text` in order. Together they are the text.
    pub(crate) fn split(
        &self,
        text: &str,
        each: &mut dyn FnMut(&str) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        split(&self.stages, text, each)
    }
}

fn split(
    stages: &[Stage],
    text: &str,
    each: &mut dyn FnMut(&str) -> Result<(), TextError>,
) -> Result<(), TextError> {
    let Some((stage, rest)) = stages.split_first() else {
        return if text.is_empty() { Ok(()) } else { each(text) };
    };
    let (mut done, mut at) = (0, 0);
    while let Some((start, end)) = stage.find(text, at)? {
        if start == end {
            let Some(c) = text[end..].chars().next() else { break };
            at = end + c.len_utf8();
            continue;
        }
        if done < start {
            split(rest, &text[done..start], each)?;
        }
        split(rest, &text[start..end], each)?;
        (done, at) = (end, end);
    }
    if done < text.len() { split(rest, &text[done..], each) } else { Ok(()) }
}

impl Stage {
    fn new(pattern: &str) -> Result<Stage, TextError> {
        let (pattern, blanks) = match by_hand(pattern) {
            Some((plain, blanks)) => (plain, Some(blanks)),
            None => (pattern.to_string(), None),
        };
        let regex = Regex::new(&pattern).map_err(|e| TextError::Unsupported {
            what: "pre-tokenizer pattern",
            value: pattern,
            next: format!("it does not compile: {e}"),
        })?;
        Ok(Stage { regex, blanks })
    }

    fn find(&self, text: &str, at: usize) -> Result<Option<(usize, usize)>, TextError> {
        let found =
            self.regex.find_from_pos(text, at).map_err(|e| TextError::Split(e.to_string()))?;
        let Some(found) = found else { return Ok(None) };
        let (start, mut end) = (found.start(), found.end());
        if let Some(blanks) = self.blanks {
            end = blanks.trim(text, start, end);
        }
        Ok(Some((start, end)))
    }
}

impl Blanks {
    fn trim(self, text: &str, start: usize, end: usize) -> usize {
        let Some(last) = text[start..end].chars().next_back() else { return end };
        let before = end - last.len_utf8();
        let at_line_end = self.line_ends && matches!(last, '\r' | '\n');
        if end == text.len() || before == start || at_line_end || !last.is_whitespace() {
            return end;
        }
        if text[start..before].chars().all(char::is_whitespace) { before } else { end }
    }
}

/// Takes a pattern's tail of blanks off, if nothing else in it can match blanks alone.
fn by_hand(pattern: &str) -> Option<(String, Blanks)> {
    let head =
        pattern.strip_suffix(r"|\s+(?!\S)|\s+").or_else(|| pattern.strip_suffix(r"|\s+(?!\S)"))?;
    let line_ends = head.strip_suffix(r"|\s*[\r\n]+");
    let rest = line_ends.unwrap_or(head);
    let looks_around = ["(?=", "(?!", "(?<"].iter().any(|l| rest.contains(l));
    let matches_blanks = [r"\s*", r"\s+", r"\s?", r"\s|", r"\s{"].iter().any(|b| rest.contains(b));
    if looks_around || matches_blanks {
        return None;
    }
    Some((format!(r"{head}|\s+"), Blanks { line_ends: line_ends.is_some() }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::LazyLock;

    use super::*;
    use proptest::prelude::*;

    fn words(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut out = vec![];
        splitter
            .split(text, &mut |w| {
                out.push(w.to_string());
                Ok(())
            })
            .unwrap();
        out
    }

    /// The same patterns with their look-ahead left to the regex.
    fn literal(preset: &Preset) -> Splitter {
        let mut patterns: Vec<String> = preset.patterns.iter().map(|p| p.to_string()).collect();
        if preset.contractions {
            patterns.last_mut().unwrap().insert_str(0, CONTRACTIONS);
        }
        let stages = patterns
            .iter()
            .map(|p| Stage { regex: Regex::new(p).unwrap(), blanks: None })
            .collect();
        Splitter { stages }
    }

    /// Compiled once: (as used, as written).
    static SPLITTERS: LazyLock<Vec<(Splitter, Splitter)>> =
        LazyLock::new(|| PRESETS.iter().map(|p| (p.splitter().unwrap(), literal(p))).collect());

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn words_are_the_text_and_blanks_follow_the_pattern(
            text in r"([ \t\n\r\u{a0}\u{3000}]|[a-zA-Z]|[0-9]|['.,!/$|]|é|ß|中|か|\u{301}|🌍){0,40}",
        ) {
            for ((used, written), preset) in SPLITTERS.iter().zip(PRESETS) {
                let got = words(used, &text);
                prop_assert_eq!(got.concat(), text.clone());
                prop_assert_eq!(got, words(written, &text), "{:?}", preset.names);
            }
        }
    }

    #[test]
    fn the_common_patterns_need_no_backtracking() {
        for pattern in [GPT2, LLAMA3_TAIL, QWEN2_TAIL, DEEPSEEK_V3, O200K, TEKKEN] {
            assert!(by_hand(pattern).is_some(), "{pattern}");
        }
        assert!(by_hand(r"\s?x|\s+(?!\S)").is_none());
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Preset::named("qwen7").err().unwrap().to_string();
        assert!(error.contains("`qwen7`") && error.contains("smollm"), "{error}");
    }

    #[test]
    fn words_of_code() {
        let words =
            |name: &str, text: &str| words(&Preset::named(name).unwrap().splitter().unwrap(), text);
        assert_eq!(
            words("qwen2", "a  b\n\n  1234"),
            ["a", " ", " b", "\n\n", " ", " ", "1", "2", "3", "4"]
        );
        assert_eq!(words("llama-bpe", "I'M 1234!\n"), ["I", "'M", " ", "123", "4", "!\n"]);
        assert_eq!(words("smollm", "x 12"), ["x", " ", "1", "2"]);
    }
}
