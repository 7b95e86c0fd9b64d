//! Reads a call with a header of its own and a JSON object behind it: `NAME<sep>{…}` and its kin.
//! The header is data, a list of [`Part`]s; the object passes through as it comes, up to its own
//! end or, if it never balances, up to a closer. The call exists with the object's bracket (U4).

use alloc::string::{String, ToString};

use crate::balance::{Balance, Passed};
use crate::fixed::{Fixed, fixed};
use crate::{Call, CallReader, Step, is_blank};

/// Longest name or id; longer is prose.
const MAX_WORD_BYTES: usize = 1024;

/// Blanks that a header may hold; more is prose.
const MAX_BLANKS: usize = 1024;

/// What stands between a call's opener and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Any number of blanks.
    Blanks,
    /// Exactly this.
    Text(&'static str),
    /// This, or nothing; without it so many parts behind it are left out.
    Maybe(&'static str, usize),
    /// The name: no blanks, quotes, brackets or commas.
    Name,
    /// The call's id, which the model must see again: made like a name.
    Id,
    /// `functions.NAME:N`: all of it is the id, `NAME` the name. Without `:N` it is no id.
    NameInId,
}

/// How such a call is written.
#[derive(Debug, Clone, Copy)]
pub struct HeadedRules {
    /// In front of the arguments.
    pub header: &'static [Part],
    /// Ends arguments that never balance, outside strings.
    pub closers: &'static [&'static str],
    /// Behind the arguments, blanks aside: framing of theirs; empty: none.
    pub fence: &'static str,
    /// A closer right behind the header: a call with `{}`.
    pub may_be_empty: bool,
}

impl HeadedRules {
    /// Arguments that need an object, up to one of `closers`.
    pub const fn new(header: &'static [Part], closers: &'static [&'static str]) -> Self {
        HeadedRules { header, closers, fence: "", may_be_empty: false }
    }
}

/// A [`CallReader`] for one call.
#[derive(Debug)]
pub struct Headed {
    rules: &'static HeadedRules,
    at: At,
    num_blanks: usize,
    name: String,
    id: String,
    balance: Balance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The part with this index.
    Part(usize),
    Object,
    Fence,
}

enum Move {
    /// So many bytes are read; more may be.
    Used(usize),
    /// The rest may begin something fixed, or is read and nothing is left.
    Hold,
    Done(usize),
    Fail,
}

impl Headed {
    /// A reader that expects the header next.
    pub fn new(rules: &'static HeadedRules) -> Self {
        Headed {
            rules,
            at: At::Part(0),
            num_blanks: 0,
            name: String::new(),
            id: String::new(),
            balance: Balance::default(),
        }
    }

    fn advance(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        match self.at {
            At::Part(index) => match self.rules.header.get(index) {
                Some(part) => self.part(*part, index, text, end),
                None => self.begin(text, end, call),
            },
            At::Object => self.object(text, end, call),
            At::Fence => self.fence(text, end),
        }
    }

    fn part(&mut self, part: Part, index: usize, text: &str, end: bool) -> Move {
        match part {
            Part::Blanks => self.blanks(index, text),
            Part::Text(wanted) => match fixed(text, end, wanted) {
                Fixed::Is(len) => self.go(At::Part(index + 1), len),
                Fixed::MayBe => Move::Hold,
                Fixed::Not => Move::Fail,
            },
            Part::Maybe(wanted, num_more) => match fixed(text, end, wanted) {
                Fixed::Is(len) => self.go(At::Part(index + 1), len),
                Fixed::MayBe => Move::Hold,
                Fixed::Not => self.go(At::Part(index + 1 + num_more), 0),
            },
            Part::Name | Part::Id | Part::NameInId => self.word(part, index, text),
        }
    }

    fn go(&mut self, at: At, len: usize) -> Move {
        self.at = at;
        Move::Used(len)
    }

    fn blanks(&mut self, index: usize, text: &str) -> Move {
        let len = text.bytes().take_while(|byte| is_blank(*byte)).count();
        self.num_blanks += len;
        if self.num_blanks > MAX_BLANKS {
            return Move::Fail;
        }
        if len == text.len() { Move::Used(len) } else { self.go(At::Part(index + 1), len) }
    }

    fn word(&mut self, part: Part, index: usize, text: &str) -> Move {
        let word = if part == Part::Id { &mut self.id } else { &mut self.name };
        let len = text.find(|c| !is_of_word(c)).unwrap_or(text.len());
        word.push_str(&text[..len]);
        if word.len() > MAX_WORD_BYTES {
            return Move::Fail;
        }
        if len == text.len() {
            return Move::Used(len);
        }
        if part == Part::NameInId {
            self.split_id();
        }
        let word = if part == Part::Id { &self.id } else { &self.name };
        if word.is_empty() { Move::Fail } else { self.go(At::Part(index + 1), len) }
    }

    /// `functions.NAME:N` in `name`: it is the id, and the name what is left of it.
    fn split_id(&mut self) {
        let name = self.name.strip_prefix("functions.").unwrap_or(&self.name);
        let is_index = |n: &str| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit());
        let split = name.rsplit_once(':').filter(|(_, index)| is_index(index));
        let short = split.map_or(name, |(name, _)| name).to_string();
        let has_index = split.is_some();
        let whole = core::mem::replace(&mut self.name, short);
        if has_index {
            self.id = whole;
        }
    }

    /// The header is read; its object must begin.
    fn begin(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        if text.starts_with('{') {
            self.commit(call);
            self.at = At::Object;
            return self.object(text, end, call);
        }
        if !self.rules.may_be_empty {
            return Move::Fail;
        }
        let mut may_be = false;
        for closer in self.rules.closers {
            match fixed(text, end, closer) {
                Fixed::Is(_) => {
                    self.commit(call);
                    call.args("{}");
                    call.end();
                    return Move::Done(0);
                }
                Fixed::MayBe => may_be = true,
                Fixed::Not => {}
            }
        }
        if may_be { Move::Hold } else { Move::Fail }
    }

    fn commit(&mut self, call: &mut Call<'_>) {
        let id = Some(self.id.as_str()).filter(|id| !id.is_empty());
        call.begin(&self.name, id);
    }

    fn object(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Move {
        let (len, is_over) = match self.balance.feed(text, end, self.rules.closers) {
            Passed::More(0) => return Move::Hold,
            Passed::More(len) => (len, false),
            Passed::Whole(len) | Passed::Cut(len) => (len, true),
        };
        call.args(&text[..len]);
        if !is_over {
            return Move::Used(len);
        }
        call.end();
        if self.rules.fence.is_empty() {
            return Move::Done(len);
        }
        self.go(At::Fence, len)
    }

    fn fence(&mut self, text: &str, end: bool) -> Move {
        let num_blanks = text.bytes().take_while(|byte| is_blank(*byte)).count();
        let rest = &text[num_blanks..];
        if rest.is_empty() {
            return Move::Used(num_blanks);
        }
        match fixed(rest, end, self.rules.fence) {
            Fixed::Is(len) => Move::Done(num_blanks + len),
            Fixed::MayBe if num_blanks > 0 => Move::Used(num_blanks),
            Fixed::MayBe => Move::Hold,
            Fixed::Not => Move::Done(num_blanks),
        }
    }
}

impl CallReader for Headed {
    fn read(&mut self, text: &str, end: bool, call: &mut Call<'_>) -> Step {
        let mut at = 0;
        while at < text.len() {
            match self.advance(&text[at..], end, call) {
                Move::Used(len) => at += len,
                Move::Hold => break,
                Move::Done(len) => return Step::Done(at + len),
                Move::Fail => return Step::Fail,
            }
        }
        Step::More(at)
    }
}

/// May `c` stand in a name or an id?
fn is_of_word(c: char) -> bool {
    !c.is_control() && !c.is_whitespace() && !"{}[]<>()\"'`,;".contains(c)
}
