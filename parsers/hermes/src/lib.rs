//! Output parser hermes.
