//! Every family of this repository, in one table: the parser, the conformance cases that it reads
//! and, for the property tests, how a call is written in its format. One line per family; the
//! tests of this package, and the page of formats, run over all of it.

mod framed;
mod json;
mod python;
mod tagged;

use tenon_guest::harness::cases::{Aspect, Case};
use tenon_guest::harness::{Delivery, Folded, Stream, Violation, any_cut, run};
use tenon_guest::{
    Channel, Descriptor, FinishReason, Grammar, ModelInfo, Parser, RequestInfo, Session,
};

/// Writes calls in a family's format: name and arguments (a JSON object's text) each.
pub type Render = fn(&[(String, serde_json::Value)]) -> String;

/// Runs one stream cut in one way.
pub type Run =
    fn(&RequestInfo, &Stream, &[usize], FinishReason, Delivery) -> Result<Folded, Violation>;

/// One family.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its component.
    pub name: &'static str,
    /// The families of the case file that it reads, each with the reasoning style to bind.
    pub cases: &'static [(&'static str, Option<&'static str>)],
    /// Writes calls; none: the family has no calls.
    pub render: Option<Render>,
    /// Strings in arguments are quoted, so that they may hold the family's own markers.
    pub strings_are_quoted: bool,
    /// Parts of calls for hostile texts, beside the markers.
    pub pieces: &'static [&'static str],
    /// What the component says of itself.
    pub describe: fn() -> Descriptor,
    /// Runs one case over every cut.
    pub check: fn(&Case, Option<&str>, Aspect) -> Result<(), Violation>,
    /// Runs one stream cut in one way.
    pub run: Run,
    /// The grammar of its calls.
    pub constraint: fn(&ModelInfo, &RequestInfo) -> Result<Option<Grammar>, String>,
    /// Opens one stream.
    pub open: fn(RequestInfo) -> Box<dyn Session>,
    /// Runs one stream over every cut.
    pub any_cut: fn(&RequestInfo, &Stream, FinishReason) -> Result<Folded, Violation>,
}

impl Entry {
    /// The entry of a parser.
    pub const fn of<P: Parser>(
        name: &'static str,
        cases: &'static [(&'static str, Option<&'static str>)],
        render: Option<Render>,
    ) -> Self {
        Entry {
            name,
            cases,
            render,
            strings_are_quoted: true,
            pieces: &[],
            describe: P::describe,
            check: |case, style, aspect| case.check::<P>(style, aspect),
            run: run::<P>,
            constraint: P::constraint,
            open: |request| Box::new(P::open(request)),
            any_cut: any_cut::<P>,
        }
    }
}

impl Entry {
    /// Strings in this family's arguments may not hold its markers.
    pub const fn unquoted(self) -> Self {
        Entry { strings_are_quoted: false, ..self }
    }

    /// Parts of calls for hostile texts.
    pub const fn with_pieces(self, pieces: &'static [&'static str]) -> Self {
        Entry { pieces, ..self }
    }
}

/// All of them, by how their calls are written.
pub const GROUPS: [(&str, &[Entry]); 4] = [
    ("json", json::ENTRIES),
    ("tagged", tagged::ENTRIES),
    ("python", python::ENTRIES),
    ("framed", framed::ENTRIES),
];

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    GROUPS.into_iter().flat_map(|(_, entries)| entries)
}

/// A request with these tools and reasoning read in `style`.
pub fn request(tools: &str, style: Option<&str>, start: Channel) -> RequestInfo {
    RequestInfo {
        tools: tools.into(),
        tool_choice: tenon_guest::ToolChoice::Auto,
        tool_name: None,
        parallel: true,
        strict: false,
        reasoning_style: style.map(Into::into),
        start,
        strict_markers: false,
    }
}
