//! What can go wrong while rendering, told apart by who can mend it.

use minijinja::{Error, ErrorKind};

/// Errors of chat templates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The source does not compile: the model's files, or the flag that names another template.
    #[error("the chat template is wrong in line {line}: {message}; give another with a flag")]
    Syntax {
        /// From 1.
        line: usize,
        /// The compiler's words.
        message: String,
    },
    /// A message (or another field) that no template can take.
    #[error("`{field}` {problem}")]
    Message {
        /// Path in the request.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The template called `raise_exception`: it does not take such conversations.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("the chat template failed in line {line}: {message}; check the messages' fields")]
    Render {
        /// From 1; 0 if unknown.
        line: usize,
        /// The engine's words.
        message: String,
    },
    /// It takes too long, nests too deeply or writes too much.
    #[error("the chat template {what}; shorten the messages or use another template")]
    Budget {
        /// Which limit.
        what: String,
    },
}

impl TemplateError {
    /// Can the client mend it (HTTP 400), rather than who serves the model (500)?
    pub fn is_from_request(&self) -> bool {
        !matches!(self, TemplateError::Syntax { .. })
    }
}

/// Carried by the error that `raise_exception` makes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Carried by the error of an output that is too long.
#[derive(Debug, thiserror::Error)]
#[error("it writes more than {0} bytes")]
pub(super) struct TooLong(pub(super) usize);

pub(super) fn syntax(error: &Error) -> TemplateError {
    let message = error.detail().map_or_else(|| error.to_string(), String::from);
    TemplateError::Syntax { line: error.line().unwrap_or(1), message }
}

pub(super) fn render(error: &Error) -> TemplateError {
    let mut deepest = error;
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        if let Some(TooLong(limit)) = current.downcast_ref() {
            return TemplateError::Budget { what: format!("writes more than `{limit}` bytes") };
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            deepest = inner;
        }
        next = current.source();
    }
    if deepest.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Budget { what: "does not come to an end within its budget".into() };
    }
    let message = match deepest.detail() {
        Some(detail) if detail.contains("recursion limit") => {
            return TemplateError::Budget { what: "nests too deeply".into() };
        }
        Some(detail) => format!("{}: {detail}", deepest.kind()),
        None => deepest.kind().to_string(),
    };
    TemplateError::Render { line: error.line().unwrap_or(0), message }
}
