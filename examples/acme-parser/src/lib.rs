//! A parser for a made-up format, the subject of the tutorial. A call is a block of lines:
//! `%% call NAME`, then `KEY = VALUE` with JSON values, then `%% end`.

use tenon_guest::{
    Call, CallFormat, CallReader, Declared, Family, Rule, Step, export_parser, json, style,
};

/// The format.
pub struct Acme;

impl Declared for Acme {
    const FAMILY: &'static Family = &Family {
        reasoning: &[style::QWEN3],
        calls: Some(&CallFormat::new(&["%% call "], |_| Box::new(Lines::default()))),
        evidence: &[Rule::template(&["%% call "], &[])],
        ..Family::named("acme", "0.1.0", "calls as blocks of KEY = VALUE lines")
    };
}
export_parser!(Acme);

#[derive(Default)]
struct Lines {
    name: String,
    is_begun: bool,
    num_scanned: usize, // bytes of the next line in which there is no newline
}

impl CallReader for Lines {
    fn read(&mut self, text: &str, _: bool, call: &mut Call<'_>) -> Step {
        let mut used = 0;
        loop {
            let rest = &text[used..];
            if !self.name.is_empty() && rest.starts_with("%% end") {
                self.begin(call);
                call.args("}");
                call.end();
                return Step::Closed(used + "%% end".len());
            }
            let Some(at) = rest[self.num_scanned..].find('\n') else {
                self.num_scanned = rest.len();
                return Step::More(used);
            };
            let len = std::mem::take(&mut self.num_scanned) + at;
            if !self.line(rest[..len].trim(), call) {
                call.end(); // nothing, unless a call has begun
                return if self.is_begun { Step::Done(used) } else { Step::Fail };
            }
            used += len + 1;
        }
    }
}

impl Lines {
    /// Takes a whole line; is it one of a call?
    fn line(&mut self, line: &str, call: &mut Call<'_>) -> bool {
        if self.name.is_empty() {
            self.name = line.to_string();
            return line.split_whitespace().count() == 1;
        }
        let Some((key, value)) = line.split_once('=') else { return line.is_empty() };
        let is_pair = !key.trim().is_empty() && json::is_value(value.trim());
        if is_pair {
            let comma = if self.is_begun { ", " } else { "" };
            self.begin(call);
            call.args(&format!("{comma}{}: {}", json::quoted(key.trim()), value.trim()));
        }
        is_pair
    }

    /// The commit: from here on the call exists.
    fn begin(&mut self, call: &mut Call<'_>) {
        if !self.is_begun {
            self.is_begun = true;
            call.begin(&self.name, None);
            call.args("{");
        }
    }
}
