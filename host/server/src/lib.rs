//! OpenAI and admin routes over HTTP, SSE, metrics.
