//! One fixed text in front of a reader: there, perhaps there, or not. For call readers.

/// What a text says of the one that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixed {
    /// It begins with it; so many bytes.
    Is(usize),
    /// All of it is a beginning of it, and more may follow.
    MayBe,
    /// Neither.
    Not,
}

/// Does `text` begin with `wanted`? `end`: nothing follows it.
pub(crate) fn fixed(text: &str, end: bool, wanted: &str) -> Fixed {
    if text.starts_with(wanted) {
        return Fixed::Is(wanted.len());
    }
    if !end && wanted.starts_with(text) { Fixed::MayBe } else { Fixed::Not }
}
