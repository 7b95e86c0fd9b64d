//! The fields against repetition: DRY, in the spelling of text-generation-webui and of llama.cpp,
//! and vLLM's `repetition_detection`.

use std::sync::Arc;

use serde::Deserialize;
use tenon_engine::params::{MAX_DRY_MATCH, MAX_PATTERN_SIZE};
use tenon_engine::{Dry, RepetitionDetection};

use super::fields::{Fields, decode};
use crate::error::ApiError;

/// Breakers of one request; each is looked for in the whole vocabulary.
const MAX_BREAKERS: usize = 32;
/// Bytes of one breaker.
const MAX_BREAKER_BYTES: usize = 64;
/// As in the original.
pub(crate) const DEFAULT_BREAKERS: &[&str] = &["\n", ":", "\"", "*"];
const DEFAULT_BASE: f32 = 1.75;
const DEFAULT_ALLOWED_LENGTH: i64 = 2;

/// DRY as asked for; `prompt` finds the tokens of the breakers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DryFields {
    multiplier: f32,
    base: f32,
    allowed_length: u32,
    range: u32,
    /// As sent; none: [`DEFAULT_BREAKERS`].
    pub breakers: Option<Vec<String>>,
}

impl DryFields {
    /// Takes the fields, all of which are checked even where DRY stays off.
    pub fn take(fields: &mut Fields) -> Result<Option<DryFields>, ApiError> {
        let multiplier = fields.number("dry_multiplier", 0.0..=100.0, 0.0)?;
        let base = fields.number("dry_base", 1.0..=100.0, DEFAULT_BASE)?;
        let length = fields.integer("dry_allowed_length", 0..=i64::from(MAX_DRY_MATCH))?;
        let allowed_length = length.unwrap_or(DEFAULT_ALLOWED_LENGTH) as u32;
        // 0 is everything here, and nothing in the other spelling.
        let range = fields.integer("dry_range", 0..=i64::from(u32::MAX))?;
        let last_n = fields.integer("dry_penalty_last_n", -1..=i64::from(u32::MAX))?;
        if range.is_some() && last_n.is_some() {
            return Err(ApiError::invalid(
                "dry_range",
                "`dry_range` and `dry_penalty_last_n` are two names of one thing; send one",
            ));
        }
        let breakers = breakers(fields)?;
        let is_off = multiplier == 0.0 || last_n == Some(0);
        let range = range.or(last_n).unwrap_or(0).max(0) as u32;
        let asked = DryFields { multiplier, base, allowed_length, range, breakers };
        Ok((!is_off).then_some(asked))
    }

    /// For the engine; `breakers` are token ids, ascending.
    pub fn bind(&self, breakers: Arc<[u32]>) -> Dry {
        let DryFields { multiplier, base, allowed_length, range, .. } = *self;
        Dry { multiplier, base, allowed_length, range, breakers }
    }
}

fn breakers(fields: &mut Fields) -> Result<Option<Vec<String>>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let Some(texts) = fields.take::<Vec<String>>(NAME)? else { return Ok(None) };
    if texts.len() > MAX_BREAKERS {
        let message =
            format!("`{NAME}` has {} entries; at most {MAX_BREAKERS} are allowed", texts.len());
        return Err(ApiError::invalid(NAME, message));
    }
    for (i, text) in texts.iter().enumerate() {
        if text.is_empty() || text.len() > MAX_BREAKER_BYTES {
            let message = format!("`{NAME}[{i}]` must have 1 to {MAX_BREAKER_BYTES} bytes");
            return Err(ApiError::invalid(format!("{NAME}[{i}]"), message));
        }
    }
    Ok(Some(texts))
}

/// Takes `repetition_detection`; `max_pattern_size` 0 is off, as in vLLM.
pub(crate) fn take_detection(fields: &mut Fields) -> Result<Option<RepetitionDetection>, ApiError> {
    const NAME: &str = "repetition_detection";
    let Some(value) = fields.value(NAME) else { return Ok(None) };
    if !value.is_object() {
        return Err(ApiError::invalid(NAME, format!("`{NAME}` must be an object")));
    }
    let asked: Detection = decode(NAME, value)?;
    let check = |field: &str, value: i64, low: i64, high: i64| {
        if (low..=high).contains(&value) {
            return Ok(value as u32);
        }
        let param = format!("{NAME}.{field}");
        let message = format!("`{param}` is `{value}`; it must be in [{low}, {high}]");
        Err(ApiError::invalid(param, message))
    };
    let longest = i64::from(MAX_PATTERN_SIZE);
    let max = check("max_pattern_size", asked.max_pattern_size.unwrap_or(0), 0, longest)?;
    let min = check("min_pattern_size", asked.min_pattern_size.unwrap_or(0), 0, i64::from(max))?;
    if max == 0 {
        return Ok(None);
    }
    let count = check("min_count", asked.min_count.unwrap_or(0), 2, i64::from(u32::MAX))?;
    let (min_pattern_size, max_pattern_size) = (min.max(1), max);
    Ok(Some(RepetitionDetection { min_pattern_size, max_pattern_size, min_count: count }))
}

#[derive(Deserialize)]
struct Detection {
    max_pattern_size: Option<i64>,
    min_pattern_size: Option<i64>,
    min_count: Option<i64>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn fields(body: &Value) -> Fields {
        Fields::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn both_spellings_of_dry() {
        let take = |body: Value| DryFields::take(&mut fields(&body)).unwrap();
        assert_eq!(take(json!({})), None);
        assert_eq!(take(json!({"dry_multiplier": 0, "dry_base": 2})), None);
        assert_eq!(take(json!({"dry_multiplier": 0.8, "dry_penalty_last_n": 0})), None);
        let on = take(json!({"dry_multiplier": 0.8})).unwrap();
        let defaults =
            DryFields { multiplier: 0.8, base: 1.75, allowed_length: 2, range: 0, breakers: None };
        assert_eq!(on, defaults);
        for (body, range) in [
            (json!({"dry_multiplier": 0.8, "dry_range": 0}), 0),
            (json!({"dry_multiplier": 0.8, "dry_range": 64}), 64),
            (json!({"dry_multiplier": 0.8, "dry_penalty_last_n": -1}), 0),
            (json!({"dry_multiplier": 0.8, "dry_penalty_last_n": 64}), 64),
        ] {
            assert_eq!(take(body), Some(DryFields { range, ..defaults.clone() }));
        }
        let none = take(json!({"dry_multiplier": 0.8, "dry_sequence_breakers": []}));
        assert_eq!(none.unwrap().breakers, Some(vec![]));
    }

    #[test]
    fn detection_has_vllms_meaning_of_zero() {
        let take = |value: Value| {
            take_detection(&mut fields(&json!({ "repetition_detection": value }))).unwrap()
        };
        let sizes = |min_pattern_size, max_pattern_size, min_count| {
            Some(RepetitionDetection { min_pattern_size, max_pattern_size, min_count })
        };
        assert_eq!(take(json!({})), None);
        assert_eq!(take(json!({"max_pattern_size": 0, "min_count": 0})), None);
        assert_eq!(take(json!({"max_pattern_size": 5, "min_count": 2})), sizes(1, 5, 2));
        let all = json!({"max_pattern_size": 5, "min_pattern_size": 3, "min_count": 4});
        assert_eq!(take(all), sizes(3, 5, 4));
    }
}
