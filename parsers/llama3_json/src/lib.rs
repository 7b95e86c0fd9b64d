//! Output parser llama3_json.
