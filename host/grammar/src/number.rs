//! Numbers of a schema. The library keeps them as `f64` and writes bounds as digits: what would be
//! another number there is refused.

use serde_json::Value;

use crate::GrammarError;
use crate::reference::push;
use crate::schema::{invalid, refused};

/// Numbers that need not be whole stay within it.
pub(crate) const MAX_NUMBER: i64 = 1_000_000_000_000_000_000;

/// Beyond it not even whole numbers are written as digits (2^63).
const LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// `minimum`, `maximum` and their exclusive forms, which may be booleans (draft 4). A bound that
/// lies beyond what numbers stay within becomes that.
pub(crate) fn bound(keyword: &str, value: &Value, at: &str) -> Result<Value, GrammarError> {
    if keyword.starts_with("exclusive") && value.is_boolean() {
        return Ok(value.clone());
    }
    let Some(number) = value.as_f64().filter(|_| value.is_number()) else {
        return Err(invalid(at, "must be a number"));
    };
    let is_low = keyword.ends_with("inimum");
    let limit = MAX_NUMBER as f64;
    match (is_low, number) {
        (true, number) if number < -limit => return Ok((-MAX_NUMBER).into()),
        (false, number) if number > limit => return Ok(MAX_NUMBER.into()),
        _ => {}
    }
    if number.abs() > limit {
        let why = format!("`{value}` is beyond the limit of {MAX_NUMBER}");
        return Err(refused(keyword, at, why));
    }
    if !is_exact(value) {
        let why = format!("`{value}` has more digits than a bound is kept with; use a rounder one");
        return Err(refused(keyword, at, why));
    }
    Ok(value.clone())
}

/// A divisor: above 0, as a fraction of ten whose digits are no more than 32 bits.
pub(crate) fn multiple_of(value: &Value, at: &str) -> Result<Value, GrammarError> {
    let Some(number) = value.as_f64().filter(|_| value.is_number()) else {
        return Err(invalid(at, "must be a number"));
    };
    if number <= 0.0 {
        return Err(invalid(at, &format!("is {value}; it must be above 0")));
    }
    // As the library does.
    let (mut digits, mut exponent) = (number, 0);
    while digits.fract() != 0.0 && digits <= f64::from(u32::MAX) {
        digits *= 10.0;
        exponent += 1;
    }
    if digits > f64::from(u32::MAX) || digits / 10_f64.powi(exponent) != number {
        let why = format!("`{value}` has too many digits; use a rounder number");
        return Err(refused("multipleOf", at, why));
    }
    Ok(value.clone())
}

/// The numbers in a `const` or an `enum`, at any depth.
pub(crate) fn check_constants(
    keyword: &str,
    value: &Value,
    at: &mut String,
) -> Result<(), GrammarError> {
    let length = at.len();
    match value {
        Value::Number(_) if !is_exact(value) => {
            let why = format!(
                "the number `{value}` is too large to be kept exactly; use a string, or whole \
                 numbers up to 9007199254740992"
            );
            Err(GrammarError::keyword(keyword, at, why))
        }
        Value::Array(list) => list.iter().enumerate().try_for_each(|(i, value)| {
            push(at, &i.to_string());
            let checked = check_constants(keyword, value, at);
            at.truncate(length);
            checked
        }),
        Value::Object(map) => map.iter().try_for_each(|(name, value)| {
            push(at, name);
            let checked = check_constants(keyword, value, at);
            at.truncate(length);
            checked
        }),
        _ => Ok(()),
    }
}

/// Is it the same number as an `f64`, whose digits can be written out?
fn is_exact(value: &Value) -> bool {
    let Some(number) = value.as_f64() else { return true };
    match (value.as_i64(), value.as_u64()) {
        (Some(whole), _) => number as i128 == i128::from(whole) && number < LIMIT,
        (None, Some(_)) => false,
        (None, None) => number.abs() < LIMIT,
    }
}
