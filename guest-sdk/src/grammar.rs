//! The grammar of a format's calls, as data, for the host, which enforces it for calls that are
//! required, for one call at most, and for strict tools.
//!
//! A family gives a [`CallGrammar`]: templates of what it writes around names and arguments, and
//! how the arguments are written. The host makes the rules from it and from the tools' schemas:
//! the grammar is `start: %calls {…}` in its dialect, which is this declaration with the request.

use alloc::string::String;
use alloc::vec;

use crate::json::quoted;
use crate::{Grammar, ModelInfo, RequestInfo, Starts, ToolChoice};

/// The dialect that the host knows.
const DIALECT: &str = "llguidance-lark/1";

/// How calls are written: `OPENER CALL { BETWEEN CALL } CLOSER`. Texts are what the model writes;
/// where the vocabulary has one of the descriptor's added tokens, it stands for itself.
///
/// ```
/// # use tenon_guest::CallGrammar;
/// const MISTRAL: CallGrammar = CallGrammar {
///     call: "[TOOL_CALLS]$NAME[ARGS]$ARGS",
///     between: Some(""),
///     trigger: "[TOOL_CALLS]",
///     ..CallGrammar::JSON
/// };
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CallGrammar {
    /// In front of all calls.
    pub opener: &'static str,
    /// One call: `$NAME` is the tool's name as it is, `$QNAME` as a JSON string, `$ARGS` the
    /// arguments, `$N` a number of up to three digits, `$ID` nine letters and digits.
    pub call: &'static str,
    /// Between two calls; none: a message has one call.
    pub between: Option<&'static str>,
    /// Behind all calls. Leave out a token that ends the model's turn.
    pub closer: &'static str,
    /// What shows in free text that calls begin: `OPENER CALL` begin with it. Empty: calls stand at
    /// the message start, and what begins with their first character is one.
    pub trigger: &'static str,
    /// What may stand in front of calls that are required, any number of times: free text between
    /// these two.
    pub lead: Option<[&'static str; 2]>,
    /// How arguments are written.
    pub arguments: Arguments,
}

/// How arguments are written. What is not JSON holds the schema's properties in their order;
/// what is not required may be left out.
#[derive(Debug, Clone, Copy)]
pub enum Arguments {
    /// An object in JSON.
    Json,
    /// `a=1, b="x", c=True`: values in JSON, which Python reads alike, but for a flag or `None`.
    Keywords,
    /// `a:1,b:"x",c:{d:[true]}`, without the braces around it.
    Bare {
        /// Around strings, which have no escapes.
        quote: &'static str,
        /// To the parser a string at the top is another value if the schema admits one.
        is_typed: bool,
    },
    /// Each a key and a value: strings as they are, up to a closer, other values as JSON.
    Parameters(Parameters),
}

/// How a parameter is written.
///
/// ```
/// # use tenon_guest::{Arguments, CallGrammar, Parameters};
/// const XML: CallGrammar = CallGrammar {
///     call: "<tool_call>\n<function=$NAME>\n$ARGS</function>\n</tool_call>",
///     between: Some("\n"),
///     trigger: "<tool_call>",
///     arguments: Arguments::Parameters(Parameters::new(
///         "<parameter=$KEY>\n$VALUE\n</parameter>\n",
///         &["</parameter>"],
///     )),
///     ..CallGrammar::JSON
/// };
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// One parameter: `$KEY`, `$VALUE`, `$TYPE`, which is JSON's name of the value's type, and
    /// `$IS_TEXT`, which is `true` for strings and else `false`. With either of these two the
    /// call itself says what is a string.
    pub each: &'static str,
    /// What ends a value, so that no string has it; with a newline in front: what does so at the
    /// beginning of a line or of the value.
    pub closers: &'static [&'static str],
    /// A newline at the edge of a value is framing to the parser, but `each` writes none: no
    /// string has one there.
    pub trims_newlines: bool,
    /// Objects and lists may be elements as parameters are, an item's key is `item`.
    pub is_tree: bool,
}

impl Parameters {
    /// Parameters whose strings have none of `closers`.
    pub const fn new(each: &'static str, closers: &'static [&'static str]) -> Self {
        Parameters { each, closers, trims_newlines: false, is_tree: false }
    }
}

impl CallGrammar {
    /// Arguments as JSON; fill in the rest with `..CallGrammar::JSON`.
    pub const JSON: CallGrammar = CallGrammar {
        opener: "",
        call: "",
        between: None,
        closer: "",
        trigger: "",
        lead: None,
        arguments: Arguments::Json,
    };

    /// The grammar for a request; none when it leaves everything open.
    pub fn build(&self, model: &ModelInfo, request: &RequestInfo) -> Option<Grammar> {
        self.build_suffixed("", model, request)
    }

    /// The same with this in front of each `>` of the templates, which all end markers.
    pub(crate) fn build_suffixed(
        &self,
        suffix: &str,
        model: &ModelInfo,
        request: &RequestInfo,
    ) -> Option<Grammar> {
        let is_auto = match request.tool_choice {
            ToolChoice::None => return None,
            ToolChoice::Auto if request.parallel && !request.strict => return None,
            choice => choice == ToolChoice::Auto,
        };
        let mut out = Declaration(String::from("start: %calls {\"tools\":"));
        out.0.push_str(&request.tools);
        out.flag("auto", is_auto);
        out.flag("parallel", request.parallel);
        if let Some(name) = &request.tool_name {
            out.text("tool_name", name);
        }
        out.list("tokens", model.added_tokens.iter().map(String::as_str));
        out.text("suffix", suffix);
        out.text("opener", self.opener);
        out.text("call", self.call);
        if let Some(between) = self.between {
            out.text("between", between);
        }
        out.text("closer", self.closer);
        out.text("trigger", self.trigger);
        if let Some(lead) = self.lead {
            out.list("lead", lead.into_iter());
        }
        self.arguments.add(&mut out);
        out.0.push_str("}\n");
        let starts = match is_auto && !self.trigger.is_empty() {
            true => Starts::After(vec![suffixed(self.trigger, suffix)]),
            false => Starts::AtOnce,
        };
        Some(Grammar { dialect: DIALECT.into(), lark: out.0, starts })
    }
}

impl Arguments {
    fn add(&self, out: &mut Declaration) {
        match self {
            Arguments::Json => out.text("arguments", "json"),
            Arguments::Keywords => out.text("arguments", "keywords"),
            Arguments::Bare { quote, is_typed } => {
                out.0.push_str(",\"arguments\":{\"bare\":{");
                out.text("quote", quote);
                out.flag("typed", *is_typed);
                out.0.push_str("}}");
            }
            Arguments::Parameters(parameters) => {
                out.0.push_str(",\"arguments\":{\"parameters\":{");
                out.text("each", parameters.each);
                out.list("closers", parameters.closers.iter().copied());
                out.flag("trims_newlines", parameters.trims_newlines);
                out.flag("is_tree", parameters.is_tree);
                out.0.push_str("}}");
            }
        }
    }
}

/// A JSON object as it is written, member by member.
struct Declaration(String);

impl Declaration {
    fn key(&mut self, name: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        self.0.push_str(&quoted(name));
        self.0.push(':');
    }

    fn flag(&mut self, name: &str, value: bool) {
        self.key(name);
        self.0.push_str(if value { "true" } else { "false" });
    }

    #[inline(never)]
    fn text(&mut self, name: &str, value: &str) {
        self.key(name);
        self.0.push_str(&quoted(value));
    }

    fn list<'a>(&mut self, name: &str, values: impl Iterator<Item = &'a str>) {
        self.key(name);
        let mut between = '[';
        for value in values {
            self.0.push(between);
            self.0.push_str(&quoted(value));
            between = ',';
        }
        self.0.push_str(if between == '[' { "[]" } else { "]" });
    }
}

/// The text with the suffix that all markers of the vocabulary share.
fn suffixed(text: &str, suffix: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '>' {
            out.push_str(suffix);
        }
        out.push(c);
    }
    out
}
