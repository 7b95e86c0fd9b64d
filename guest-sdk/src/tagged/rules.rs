//! What a tagged call looks like, as data: how its header, its keys and its values end.

/// How a call is written in tags. Markers are exact texts.
#[derive(Debug, Clone, Copy)]
pub struct TagRules {
    /// What stands between the call's opener and its parameters.
    pub naming: Naming,
    /// Opens a parameter.
    pub parameter: &'static str,
    /// How its key is written.
    pub keys: Keys,
    /// Closes a value.
    pub value_closer: &'static str,
    /// When it does.
    pub closing: Closing,
    /// Closes the call; the reader reads it.
    pub closer: &'static str,
    /// Closes what is round the call; the call then does without its own closer.
    pub outer: &'static [&'static str],
    /// Opens the next call; this one then does without its closer.
    pub next: &'static [&'static str],
    /// One newline on each side of a value is framing.
    pub newlines: bool,
    /// A value may stand in `<![CDATA[` … `]]>`.
    pub cdata: bool,
    /// Words for null, where the schema admits it.
    pub nulls: &'static [&'static str],
}

/// How a call's name is written, and what proves that it is a call (policy U4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `NAME>`; proved by the next parameter or the call's closer.
    Equals,
    /// `"NAME">`, in quotes of either kind or in none; proved by the same.
    Attribute,
    /// The same behind these texts, blanks between; it proves itself: the section is round it.
    Proved(&'static [&'static str]),
    /// `NAME` up to a blank or a tag; proved by the next parameter or the call's closer.
    Word,
    /// `NAME` up to this marker, which proves it.
    WordUpTo(&'static str),
}

/// How a parameter's key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// `KEY>`.
    Equals,
    /// `"KEY">`, perhaps with `string="true"` or `"false"`, which then says the type.
    Attribute,
    /// `KEY`, a closer, and an opener of the value.
    Pair {
        /// Ends the key.
        closer: &'static str,
        /// Opens the value; empty: the key's closer does.
        value: &'static str,
        /// Marks a type between them.
        kind: Option<(&'static str, &'static str)>,
    },
}

/// When a value's closer counts (policy U11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It is one token: always. These other tokens close a value, too.
    Exact(&'static [&'static str]),
    /// It is text: if a parameter, a closer or the end follows.
    Anchored,
    /// The same; a newline and then a parameter or the call's closer do without it.
    AnchoredOrNewline,
}
