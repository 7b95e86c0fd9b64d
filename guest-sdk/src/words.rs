//! One word of a model's own notation as a JSON scalar: numbers as Python writes them, and the
//! words that a format has for true, false and null. The readers of literals use it.

use alloc::string::String;

/// Writes `word` as JSON onto `out`, if it is a number or one of `names` (word, JSON); says whether
/// it is. Numbers keep their digits: `07` is 7, `1_000` is 1000, `108.` is 108.0, `0x1f` is 31.
pub(crate) fn scalar(word: &str, names: &[(&str, &str)], out: &mut String) -> bool {
    if let Some((_, json)) = names.iter().find(|(name, _)| *name == word) {
        out.push_str(json);
        return true;
    }
    let len = out.len();
    let is_number = number(word, out).is_some();
    if !is_number {
        out.truncate(len);
    }
    is_number
}

fn number(word: &str, out: &mut String) -> Option<()> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if word.starts_with('-') {
        out.push('-');
    }
    if let [b'0', base @ (b'x' | b'X' | b'o' | b'O' | b'b' | b'B'), ..] = digits.as_bytes() {
        let base = match base | 0x20 {
            b'x' => 16,
            b'o' => 8,
            _ => 2,
        };
        return based(&digits[2..], base, out);
    }
    let (mantissa, power) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let (whole, fraction) = match mantissa.find('.') {
        Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
        None => (mantissa, None),
    };
    let has_fraction = fraction.is_some_and(|fraction| !fraction.is_empty());
    if whole.is_empty() && !has_fraction {
        return None;
    }
    let start = out.len();
    group(whole, out)?;
    let num_zeros = out[start..].bytes().take_while(|byte| *byte == b'0').count();
    out.drain(start..start + num_zeros);
    if out.len() == start {
        out.push('0');
    }
    if let Some(fraction) = fraction {
        out.push('.');
        group(fraction, out)?;
        if !has_fraction {
            out.push('0');
        }
    }
    if let Some(power) = power {
        out.push('e');
        let digits = power.strip_prefix(['-', '+']).unwrap_or(power);
        out.push_str(&power[..power.len() - digits.len()]);
        if digits.is_empty() {
            return None;
        }
        group(digits, out)?;
    }
    Some(())
}

/// Digits, single underscores between them left out.
fn group(digits: &str, out: &mut String) -> Option<()> {
    let mut may_join = false;
    for byte in digits.bytes() {
        match byte {
            b'0'..=b'9' => out.push(char::from(byte)),
            b'_' if may_join => {}
            _ => return None,
        }
        may_join = byte != b'_';
    }
    (may_join || digits.is_empty()).then_some(())
}

fn based(digits: &str, base: u32, out: &mut String) -> Option<()> {
    let mut value: u64 = 0;
    for c in digits.chars().filter(|c| *c != '_') {
        value = value.checked_mul(base.into())?.checked_add(c.to_digit(base)?.into())?;
    }
    if digits.is_empty() {
        return None;
    }
    let mut decimal = [0; 20]; // u64::MAX has 20 digits
    let mut at = decimal.len();
    while value > 0 || at == decimal.len() {
        at -= 1;
        decimal[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend(decimal[at..].iter().map(|byte| char::from(*byte)));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::scalar;

    #[track_caller]
    fn check(word: &str, json: Option<&str>) {
        let mut out = String::from("x");
        let is_scalar = scalar(word, &[("None", "null")], &mut out);
        assert_eq!(is_scalar.then_some(&out[1..]), json, "{word}");
        assert!(is_scalar || out == "x", "{word} left {out}");
    }

    #[test]
    fn words_become_json() {
        for (word, json) in [
            ("None", "null"),
            ("0", "0"),
            ("-3", "-3"),
            ("+3", "3"),
            ("07", "7"),
            ("000", "0"),
            ("1_000", "1000"),
            ("108.", "108.0"),
            (".5", "0.5"),
            ("-.5", "-0.5"),
            ("007.50", "7.50"),
            ("1.5e2", "1.5e2"),
            ("1E+05", "1e+05"),
            ("0x1F", "31"),
            ("-0b101", "-5"),
            ("0o0", "0"),
            ("0xffff_ffff_ffff_ffff", "18446744073709551615"),
        ] {
            check(word, Some(json));
        }
        for word in [
            "",
            "-",
            ".",
            "e5",
            "1e",
            "1_",
            "_1",
            "1__0",
            "1.2.3",
            "none",
            "1j",
            "0x",
            "12:30",
            "0x1ffffffffffffffff",
            "--1",
            "1 2",
            "é",
        ] {
            check(word, None);
        }
    }
}
