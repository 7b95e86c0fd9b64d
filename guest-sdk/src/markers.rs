//! Finds the next marker in a text, and the beginning of one at its end that must be held back.
//! A set is scanned by first bytes; a candidate costs one comparison per marker.

/// What a marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Opens a call; the reader starts behind it.
    CallOpener,
    /// Begins a call; the reader starts with it.
    CallStart,
    /// Closes a call that is done.
    CallCloser,
    /// Begins reasoning.
    ReasoningOpener,
    /// Ends reasoning.
    ReasoningCloser,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    pub text: &'static str,
    pub kind: Kind,
}

/// The markers that may count in one state.
#[derive(Debug)]
pub(crate) struct MarkerSet {
    markers: Vec<Marker>,
    is_first: [bool; 256],
}

/// What a scan found. Offsets are of the scanned text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: all of it is text.
    Nothing,
    /// A marker at this offset.
    Marker(usize, Marker),
    /// From here on it may be the beginning of one.
    Hold(usize),
}

impl MarkerSet {
    pub fn new(parts: &[(Kind, &[&'static str])]) -> Self {
        let mut markers = Vec::new();
        let mut is_first = [false; 256];
        for (kind, texts) in parts {
            for text in texts.iter().filter(|text| !text.is_empty()) {
                is_first[usize::from(text.as_bytes()[0])] = true;
                markers.push(Marker { text, kind: *kind });
            }
        }
        MarkerSet { markers, is_first }
    }

    /// The first marker in `text` that `counts` at its offset; of several there, the longest.
    /// `end`: nothing follows, so nothing is held.
    pub fn find(&self, text: &str, end: bool, counts: impl Fn(usize, Marker) -> bool) -> Found {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(next) = bytes[at..].iter().position(|b| self.is_first[usize::from(*b)]) {
            at += next;
            match self.at(bytes, at, end, &counts) {
                Found::Nothing => at += 1,
                found => return found,
            }
        }
        Found::Nothing
    }

    /// Only right at the beginning of `text`.
    pub fn find_here(
        &self,
        text: &str,
        end: bool,
        counts: impl Fn(usize, Marker) -> bool,
    ) -> Found {
        match text.as_bytes().first() {
            Some(first) if self.is_first[usize::from(*first)] => {
                self.at(text.as_bytes(), 0, end, &counts)
            }
            _ => Found::Nothing,
        }
    }

    fn at(
        &self,
        bytes: &[u8],
        at: usize,
        end: bool,
        counts: &impl Fn(usize, Marker) -> bool,
    ) -> Found {
        let rest = &bytes[at..];
        let mut best: Option<Marker> = None;
        let mut is_open = false;
        for marker in &self.markers {
            let text = marker.text.as_bytes();
            if rest.starts_with(text) {
                let is_longer = best.is_none_or(|best| best.text.len() < text.len());
                if is_longer && counts(at, *marker) {
                    best = Some(*marker);
                }
            } else if !end && text.starts_with(rest) && counts(at, *marker) {
                is_open = true; // it would be longer than any that is whole here
            }
        }
        match best {
            _ if is_open => Found::Hold(at),
            Some(marker) => Found::Marker(at, marker),
            None => Found::Nothing,
        }
    }
}
