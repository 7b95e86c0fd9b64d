//! A parser for a made-up format, the subject of the tutorial. A call is a block of lines:
//! `%% call NAME`, then `KEY = VALUE` with JSON values, then `%% end`.

use tenon_guest::{
    Call, CallFormat, CallReader, Declared, Family, Place, Rule, Step, export_parser, json, style,
};

const CLOSER: &str = "%% end";

/// The format.
pub struct Acme;

impl Declared for Acme {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3],
        calls: Some(&CallFormat {
            openers: &["%% call "],
            place: Place::Anywhere,
            bare: &[],
            again: &[],
            closers: &[],
            separators: "",
            reader: |_| Box::new(Lines::default()),
        }),
        evidence: &[Rule::template(&["%% call "], &[])],
        ..Family::named("acme", "0.1.0", "calls as blocks of KEY = VALUE lines")
    };
}

#[derive(Default)]
struct Lines {
    name: Option<String>,
    num_pairs: usize,
    is_begun: bool,
    num_scanned: usize, // bytes of the next line in which there is no newline
}

impl CallReader for Lines {
    fn read(&mut self, text: &str, _: bool, call: &mut Call<'_>) -> Step {
        let mut used = 0;
        loop {
            let rest = &text[used..];
            if self.name.is_some() && rest.starts_with(CLOSER) {
                self.begin(call);
                call.args("}");
                call.end();
                return Step::Closed(used + CLOSER.len());
            }
            let Some(len) = rest[self.num_scanned..].find('\n') else {
                self.num_scanned = rest.len();
                return Step::More(used);
            };
            let len = self.num_scanned + len;
            if !self.line(rest[..len].trim(), call) {
                call.end(); // nothing, unless a call has begun
                return if self.is_begun { Step::Done(used) } else { Step::Fail };
            }
            self.num_scanned = 0;
            used += len + 1;
        }
    }
}

impl Lines {
    /// Takes a whole line; is it one of a call?
    fn line(&mut self, line: &str, call: &mut Call<'_>) -> bool {
        if self.name.is_none() {
            self.name = Some(line.to_string());
            return !line.is_empty() && !line.contains(char::is_whitespace);
        }
        let Some((key, value)) = line.split_once('=') else { return line.is_empty() };
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || !json::is_value(value) {
            return false;
        }
        self.begin(call);
        let comma = if self.num_pairs > 0 { ", " } else { "" };
        call.args(&format!("{comma}{}: {value}", json::quoted(key)));
        self.num_pairs += 1;
        true
    }

    /// The commit: from here on the call exists.
    fn begin(&mut self, call: &mut Call<'_>) {
        if !self.is_begun {
            call.begin(self.name.as_deref().unwrap_or_default(), None);
            call.args("{");
            self.is_begun = true;
        }
    }
}

export_parser!(Acme);
