//! Which parser reads a model's output, and where a stream starts. Data in, data out: the
//! descriptors of installed parsers, the model's template and its vocabulary.
//!
//! `auto` follows the parsers' own evidence and never guesses between two.

use std::fmt;

use tenon_text::AddedToken;

use crate::parser::{Channel, Descriptor, Evidence, ReasoningStyle};
use crate::watch::is_blank;

/// What the evidence says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// One parser fits.
    One {
        /// Its name.
        name: String,
        /// What showed it, for the log.
        why: String,
    },
    /// None does.
    None,
    /// Several do, by name.
    Ambiguous(Vec<String>),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::One { name, why } => write!(f, "parser `{name}`: {why}"),
            Choice::None => {
                f.write_str("no installed parser knows this model's template and vocabulary")
            }
            Choice::Ambiguous(names) => {
                let names = listed(names.iter().map(String::as_str));
                write!(
                    f,
                    "this model's template and vocabulary fit {names}: \
                     name one of them (`--tool-call-parser`)"
                )
            }
        }
    }
}

/// The parser of a model: which one, and in which reasoning style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParserChoice {
    /// Canonical name.
    pub parser: String,
    /// Canonical name of one of its styles; none: reasoning is not parsed.
    pub style: Option<String>,
}

/// Why a pair of names was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// No such parser, or it finds no calls.
    #[error("unknown tool-call parser `{name}` (installed: {installed})")]
    UnknownParser {
        /// As given.
        name: String,
        /// All that find calls.
        installed: String,
    },
    /// The tool-call parser has no such style.
    #[error(
        "tool-call parser `{parser}` cannot read reasoning style `{name}` (its styles: {styles}); \
         choose one of them or another `--tool-call-parser`"
    )]
    StyleOfOther {
        /// As given.
        name: String,
        /// The parser.
        parser: String,
        /// What it reads.
        styles: String,
    },
    /// No parser has such a style.
    #[error("unknown reasoning parser `{name}` (installed: {installed})")]
    UnknownStyle {
        /// As given.
        name: String,
        /// All styles.
        installed: String,
    },
}

/// Chooses by evidence: a rule counts when all of it holds. Parsers that find calls come first,
/// since they read reasoning too; one that reads only reasoning is the choice when no other fits.
/// `has_token` says whether the vocabulary has a text as one whole token.
pub fn choose<'a>(
    descriptors: impl IntoIterator<Item = &'a Descriptor>,
    template: Option<&str>,
    has_token: &dyn Fn(&str) -> bool,
) -> Choice {
    let (mut with_tools, mut reasoning_only) = (Vec::new(), Vec::new());
    for descriptor in descriptors {
        let holds = |rule: &&Evidence| rule_holds(rule, template, has_token);
        if let Some(rule) = descriptor.evidence.iter().find(holds) {
            let fits = if descriptor.tools { &mut with_tools } else { &mut reasoning_only };
            fits.push((descriptor, rule));
        }
    }
    let fits = if with_tools.is_empty() { reasoning_only } else { with_tools };
    match fits.as_slice() {
        [] => Choice::None,
        [(descriptor, rule)] => Choice::One { name: descriptor.name.clone(), why: reason(rule) },
        _ => Choice::Ambiguous(fits.iter().map(|(of, _)| of.name.clone()).collect()),
    }
}

/// The parser and style for `--tool-call-parser` and `--reasoning-parser`, by name or alias. A
/// reasoning parser beside a tool-call parser must be one of its styles; alone, it is a parser
/// that reads only reasoning, or any that knows the style. `none` is like no name; the reasoning
/// name `auto` is the tool-call parser's default style.
pub fn resolve<'a>(
    descriptors: impl IntoIterator<Item = &'a Descriptor>,
    tool: Option<&str>,
    reasoning: Option<&str>,
) -> Result<Option<ParserChoice>, ChooseError> {
    let descriptors: Vec<_> = descriptors.into_iter().collect();
    let tool = tool.filter(|name| *name != "none");
    let reasoning = reasoning.filter(|name| *name != "none");
    let Some(tool) = tool else {
        let named = reasoning.filter(|name| *name != "auto");
        return named.map(|name| reasoning_only(&descriptors, name)).transpose();
    };
    let is_named = |of: &&&Descriptor| of.tools && is_name(tool, &of.name, &of.aliases);
    let Some(descriptor) = descriptors.iter().find(is_named) else {
        let installed = descriptors.iter().filter(|of| of.tools).map(|of| of.name.as_str());
        return Err(ChooseError::UnknownParser { name: tool.into(), installed: listed(installed) });
    };
    let style = match reasoning {
        None => None,
        Some("auto") => descriptor.reasoning_styles.first(),
        Some(name) => Some(find_style(descriptor, name).ok_or_else(|| {
            let styles = descriptor.reasoning_styles.iter().map(|style| style.name.as_str());
            let (name, parser) = (name.to_owned(), descriptor.name.clone());
            ChooseError::StyleOfOther { name, parser, styles: listed(styles) }
        })?),
    };
    let style = style.map(|style| style.name.clone());
    Ok(Some(ParserChoice { parser: descriptor.name.clone(), style }))
}

/// The parser that reads a family of conformance cases, by name or alias, and the style to bind:
/// behind an alias the one that is called so, too; or else the parser's default.
pub fn for_family<'a>(
    descriptors: impl IntoIterator<Item = &'a Descriptor>,
    family: &str,
) -> Result<ParserChoice, ChooseError> {
    let descriptors: Vec<_> = descriptors.into_iter().collect();
    let mut all = descriptors.iter();
    let Some(descriptor) = all.find(|of| is_name(family, &of.name, &of.aliases)) else {
        return reasoning_only(&descriptors, family);
    };
    let default = descriptor.reasoning_styles.first();
    let named = find_style(descriptor, family).filter(|_| family != descriptor.name);
    let style = named.or(default).map(|style| style.name.clone());
    Ok(ParserChoice { parser: descriptor.name.clone(), style })
}

/// The style of that name or alias.
pub fn find_style<'a>(descriptor: &'a Descriptor, name: &str) -> Option<&'a ReasoningStyle> {
    let mut styles = descriptor.reasoning_styles.iter();
    styles.find(|style| is_name(name, &style.name, &style.aliases))
}

/// A marker in every spelling that a vocabulary has: as it is, and with what all markers of some
/// vocabularies carry in front of their `>` (`<think:opensource>`).
pub fn spellings<'t>(marker: &'t str, added: &'t [AddedToken]) -> impl Iterator<Item = &'t str> {
    let is_suffixed = move |text: &&str| is_suffixed(text, marker);
    let suffixed = added.iter().map(|token| token.text.as_str()).filter(is_suffixed);
    std::iter::once(marker).chain(suffixed)
}

/// Is it `marker` with a suffix, which begins with a colon?
fn is_suffixed(text: &str, marker: &str) -> bool {
    let inside = |text: &'_ str| -> Option<bool> {
        let suffix = text.strip_prefix(marker.strip_suffix('>')?)?.strip_suffix('>')?;
        Some(suffix.starts_with(':') && !suffix.contains(['<', '>', ' ', '\n']))
    };
    inside(text).unwrap_or(false)
}

/// Where the stream behind a rendered prompt starts: in reasoning if the prompt ends with one of
/// the style's openers, blanks aside. `prompt_tail` is the prompt or any end of it that is longer
/// than every opener and the blanks behind it.
pub fn start_channel(prompt_tail: &str, style: Option<&ReasoningStyle>) -> Channel {
    let end = trim_end(prompt_tail);
    let is_opened = |style: &ReasoningStyle| {
        let mut openers = style.openers.iter().map(|opener| trim_end(opener));
        openers.any(|opener| !opener.is_empty() && ends_with(end, opener))
    };
    if style.is_some_and(is_opened) { Channel::Reasoning } else { Channel::Content }
}

/// Does a text end with the marker, perhaps with a suffix in it?
fn ends_with(text: &str, marker: &str) -> bool {
    let last = text.rfind('<').map_or("", |at| &text[at..]);
    text.ends_with(marker) || is_suffixed(last, marker)
}

/// May markers be strict? True when the vocabulary has every opener as one added token.
pub fn strict_markers(descriptor: &Descriptor, has_added_token: &dyn Fn(&str) -> bool) -> bool {
    let mut openers = descriptor.openers.iter();
    !descriptor.openers.is_empty() && openers.all(|opener| has_added_token(opener))
}

fn reasoning_only(descriptors: &[&Descriptor], name: &str) -> Result<ParserChoice, ChooseError> {
    let mut by_preference: Vec<_> = descriptors.to_vec();
    by_preference.sort_by_key(|descriptor| descriptor.tools);
    let mut found = by_preference.iter().filter_map(|of| Some((of, find_style(of, name)?)));
    if let Some((descriptor, style)) = found.next() {
        let (parser, style) = (descriptor.name.clone(), Some(style.name.clone()));
        return Ok(ParserChoice { parser, style });
    }
    let mut styles: Vec<_> =
        descriptors.iter().flat_map(|of| &of.reasoning_styles).map(|of| of.name.as_str()).collect();
    styles.sort_unstable();
    styles.dedup();
    Err(ChooseError::UnknownStyle { name: name.into(), installed: listed(styles.into_iter()) })
}

fn rule_holds(rule: &Evidence, template: Option<&str>, has_token: &dyn Fn(&str) -> bool) -> bool {
    // What only lacks something shows nothing.
    if rule.template_has.is_empty() && rule.vocabulary_has.is_empty() {
        return false;
    }
    let in_template = |text: &String| template.is_some_and(|template| template.contains(text));
    rule.template_has.iter().all(in_template)
        && !rule.template_lacks.iter().any(in_template)
        && rule.vocabulary_has.iter().all(|token| has_token(token))
}

fn reason(rule: &Evidence) -> String {
    let quoted = |texts: &[String]| listed(texts.iter().map(String::as_str));
    let mut parts = Vec::new();
    if !rule.template_has.is_empty() {
        parts.push(format!("the template has {}", quoted(&rule.template_has)));
    }
    if !rule.template_lacks.is_empty() {
        parts.push(format!("the template lacks {}", quoted(&rule.template_lacks)));
    }
    if !rule.vocabulary_has.is_empty() {
        parts.push(format!("the vocabulary has {}", quoted(&rule.vocabulary_has)));
    }
    parts.join(", ")
}

fn is_name(name: &str, canonical: &str, aliases: &[String]) -> bool {
    name == canonical || aliases.iter().any(|alias| alias == name)
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { "none".into() } else { quoted.join(", ") }
}

fn trim_end(text: &str) -> &str {
    text.trim_end_matches(|c: char| u8::try_from(c).is_ok_and(is_blank))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::descriptor;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    fn parser(
        name: &str,
        tools: bool,
        has: &[&str],
        lacks: &[&str],
        vocabulary: &[&str],
    ) -> Descriptor {
        let evidence = vec![
            Evidence::default(),
            Evidence {
                template_has: strings(has),
                template_lacks: strings(lacks),
                vocabulary_has: strings(vocabulary),
            },
        ];
        Descriptor { name: name.into(), tools, evidence, ..descriptor() }
    }

    fn style(name: &str, alias: &str, opener: &str) -> ReasoningStyle {
        let (aliases, openers) = (strings(&[alias]), strings(&[opener]));
        ReasoningStyle { name: name.into(), aliases, openers, closers: vec![], ends_at_call: true }
    }

    fn chosen(template: Option<&str>, vocabulary: &[&str]) -> Choice {
        let installed = [
            parser("hermes", true, &["<tool_call>", "arguments"], &["<function="], &[]),
            parser("qwen_xml", true, &["<tool_call>", "<function="], &[], &[]),
            parser("xlam", true, &[], &[], &["<x>"]),
            parser("think", false, &["<think>"], &[], &[]),
            parser("lacks_only", true, &[], &["nothing"], &[]),
        ];
        choose(&installed, template, &|token| vocabulary.contains(&token))
    }

    #[test]
    fn evidence_chooses_and_never_guesses() {
        let one = |choice: Choice| match choice {
            Choice::One { name, .. } => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(one(chosen(Some("<tool_call> arguments <think>"), &[])), "hermes");
        assert_eq!(one(chosen(Some("<tool_call><function=x> arguments"), &[])), "qwen_xml");
        assert_eq!(one(chosen(None, &["<x>"])), "xlam");
        assert_eq!(one(chosen(Some("<think>"), &[])), "think");
        assert_eq!(chosen(None, &[]), Choice::None);
        let both = chosen(Some("<tool_call> arguments"), &["<x>"]);
        assert_eq!(both, Choice::Ambiguous(strings(&["hermes", "xlam"])));
        assert!(both.to_string().contains("fit `hermes`, `xlam`: name one"), "{both}");
        let why = chosen(Some("<tool_call> arguments"), &[]).to_string();
        assert_eq!(
            why,
            "parser `hermes`: the template has `<tool_call>`, `arguments`, \
             the template lacks `<function=`"
        );
    }

    #[test]
    fn pairs_of_names() {
        let mut hermes = parser("hermes", true, &[], &[], &[]);
        hermes.aliases = strings(&["qwen25"]);
        hermes.reasoning_styles = vec![style("qwen3", "holo", "<think>"), style("r1", "r2", "")];
        let mut think = parser("think", false, &[], &[], &[]);
        think.reasoning_styles = vec![style("qwen3", "holo", "<think>"), style("granite", "g", "")];
        let plain = Descriptor { reasoning_styles: vec![], ..parser("plain", true, &[], &[], &[]) };
        let installed = [hermes, think, plain];
        let resolved = |tool: Option<&str>, reasoning: Option<&str>| {
            let found = resolve(&installed, tool, reasoning).map_err(|error| error.to_string())?;
            let style = |style: Option<String>| style.unwrap_or("-".into());
            Ok(found.map_or("none".into(), |of| format!("{} {}", of.parser, style(of.style))))
        };
        let ok = |text: &str| Ok::<_, String>(text.to_owned());
        assert_eq!(resolved(None, None), ok("none"));
        assert_eq!(resolved(Some("none"), Some("none")), ok("none"));
        assert_eq!(resolved(Some("qwen25"), None), ok("hermes -"));
        assert_eq!(resolved(Some("hermes"), Some("auto")), ok("hermes qwen3"));
        assert_eq!(resolved(Some("hermes"), Some("r2")), ok("hermes r1"));
        assert_eq!(resolved(Some("plain"), Some("auto")), ok("plain -"));
        assert_eq!(resolved(None, Some("holo")), ok("think qwen3"));
        assert_eq!(resolved(None, Some("r1")), ok("hermes r1"));
        let error = |text: &str| Err::<String, _>(text.to_owned());
        assert_eq!(
            resolved(Some("hermez"), None),
            error("unknown tool-call parser `hermez` (installed: `hermes`, `plain`)")
        );
        assert!(resolved(Some("think"), None).is_err(), "it finds no calls");
        assert_eq!(
            resolved(Some("hermes"), Some("granite")),
            error(
                "tool-call parser `hermes` cannot read reasoning style `granite` (its styles: \
                 `qwen3`, `r1`); choose one of them or another `--tool-call-parser`"
            )
        );
        assert_eq!(
            resolved(None, Some("x")),
            error("unknown reasoning parser `x` (installed: `granite`, `qwen3`, `r1`)")
        );
    }

    #[test]
    fn the_prompt_decides_where_a_stream_starts() {
        let think = style("qwen3", "", "<think>\n");
        let start = |prompt: &str| start_channel(prompt, Some(&think));
        assert_eq!(start("<|im_start|>assistant\n<think>\n"), Channel::Reasoning);
        assert_eq!(start("<think>"), Channel::Reasoning);
        assert_eq!(start("<think> \r\n\t\n"), Channel::Reasoning);
        assert_eq!(start("<think>\n\n</think>\n\n"), Channel::Content);
        assert_eq!(start("<|im_start|>assistant\n"), Channel::Content);
        assert_eq!(start("<think:opensource>\n"), Channel::Reasoning);
        assert_eq!(start("<think>\n</think:opensource>"), Channel::Content);
        assert_eq!(start("<thinking>"), Channel::Content);
        assert_eq!(start_channel("<think>\n", None), Channel::Content);
        assert_eq!(start_channel("x", Some(&style("a", "", " "))), Channel::Content);
    }

    #[test]
    fn markers_are_strict_when_every_opener_is_a_token() {
        let mut of = descriptor();
        of.openers = strings(&["<a>", "<b>"]);
        assert!(strict_markers(&of, &|token| ["<a>", "<b>"].contains(&token)));
        assert!(!strict_markers(&of, &|token| token == "<a>"));
        of.openers.clear();
        assert!(!strict_markers(&of, &|_| true));
    }
}
