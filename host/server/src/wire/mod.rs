//! Wire types: bodies as clients send them, answers as they read them. One file per endpoint and
//! direction; nothing here does I/O.

pub(crate) mod chat_request;
pub(crate) mod chat_response;
pub(crate) mod completion_request;
pub(crate) mod completion_response;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod prompt_logprobs;
pub(crate) mod repetition;
pub(crate) mod sampling;
pub(crate) mod structured;
pub(crate) mod tools;
pub(crate) mod usage;
