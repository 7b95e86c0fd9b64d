//! What an extension author depends on: bindings, streaming parser engine, native test harness.
