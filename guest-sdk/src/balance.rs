//! Where a JSON object ends that is passed on as it comes: brackets are counted, strings respected,
//! nothing else is checked. Call readers feed it the arguments of a call that exists.

/// The scanner's state between pieces of text.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    depth: u32,
    is_quoted: bool,
    is_escaped: bool,
}

/// What a piece of text did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// So many bytes belong to the object; the rest, if any, may begin a closer and comes again.
    More(usize),
    /// The object ends behind so many bytes.
    Whole(usize),
    /// It never balanced: a closer stands behind so many bytes.
    Cut(usize),
}

impl Balance {
    /// Reads on; the first text begins with the object's bracket. `closers` count outside strings.
    /// `end`: nothing follows, so nothing is held back.
    pub fn feed(&mut self, text: &str, end: bool, closers: &[&str]) -> Passed {
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_quoted {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_quoted = false,
                    _ => {}
                }
                continue;
            }
            match closer_at(&bytes[at..], end, closers) {
                Some(true) => return Passed::Cut(at),
                Some(false) => return Passed::More(at),
                None => {}
            }
            match byte {
                b'"' => self.is_quoted = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Passed::Whole(at + 1);
                    }
                }
                _ => {}
            }
        }
        Passed::More(bytes.len())
    }
}

/// Does `rest` begin with a closer, or may it (false)?
fn closer_at(rest: &[u8], end: bool, closers: &[&str]) -> Option<bool> {
    let mut may_be = None;
    for closer in closers.iter().map(|closer| closer.as_bytes()) {
        if closer.first() != rest.first() {
            continue;
        }
        if rest.starts_with(closer) {
            return Some(true);
        }
        if !end && closer.starts_with(rest) {
            may_be = Some(false);
        }
    }
    may_be
}
