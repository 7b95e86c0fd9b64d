//! End-to-end tests: conformance, hostile components, reference models, OpenAI clients.
