//! The pipeline as a whole.
#![allow(clippy::unwrap_used)]
