//! Output parser think.
