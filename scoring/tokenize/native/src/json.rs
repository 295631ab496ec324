//! JSON of a request on its way into a template.

use minijinja::value::Value;
use serde_json::Value as Json;

use crate::failure::{invalid, unsupported, Outcome};

/// Reads a document. The error tells the place and quotes nothing.
///
/// A document that Python reads in another way than this reader is refused as
/// unsupported: an integer of more than 64 bits, and `-0`, come out of this
/// reader as floats; NaN, lone surrogates, numbers beyond a float and deep
/// nesting are errors to it and none to Python.
pub fn parse(text: &[u8]) -> Outcome<Json> {
    let v = match serde_json::from_slice(text) {
        Ok(v) => v,
        Err(e) if python_may_read(text, &e) => {
            return unsupported(format!(
                "unusual JSON at line {} column {}",
                e.line(),
                e.column()
            ))
        }
        Err(e) => {
            return invalid(format!(
                "not JSON at line {} column {}",
                e.line(),
                e.column()
            ))
        }
    };
    if has_doubtful_float(&v) && has_odd_integer(text) {
        return unsupported("an integer of more than 64 bits, or -0");
    }
    Ok(v)
}

/// Whether the error may be one of this reader only.
fn python_may_read(text: &[u8], e: &serde_json::Error) -> bool {
    let why = e.to_string();
    if why.starts_with("number out of range") || why.starts_with("recursion limit exceeded") {
        return true;
    }
    let words: [&[u8]; 4] = [b"NaN", b"Infinity", b"\\ud", b"\\uD"];
    words
        .iter()
        .any(|word| text.windows(word.len()).any(|w| w == *word))
}

fn has_doubtful_float(v: &Json) -> bool {
    match v {
        Json::Number(n) if n.is_f64() => n
            .as_f64()
            .is_some_and(|f| f.abs() > 9.2e18 || f == 0.0 && f.is_sign_negative()),
        Json::Array(items) => items.iter().any(has_doubtful_float),
        Json::Object(fields) => fields.values().any(has_doubtful_float),
        _ => false,
    }
}

/// Whether there is an integer that does not fit 64 bits, or `-0`, anywhere in
/// the text; strings are not excepted.
fn has_odd_integer(text: &[u8]) -> bool {
    let is_number = |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    text.split(|b| !is_number(b)).any(|n| {
        let digits = n.strip_prefix(b"-").unwrap_or(n);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return false;
        }
        let fits = std::str::from_utf8(n)
            .is_ok_and(|n| n.parse::<i64>().is_ok() || n.parse::<u64>().is_ok());
        n == b"-0" || !fits
    })
}

/// What kind of value it is, for messages.
pub fn kind(v: &Json) -> &'static str {
    match v {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// Hands a value to the renderer, with the order of its keys and with integers
/// and floats kept apart.
pub fn to_value(v: Json) -> Value {
    match v {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(b),
        Json::Number(n) => number(&n),
        Json::String(s) => Value::from(s),
        Json::Array(items) => Value::from(items.into_iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(fields) => {
            Value::from_pairs(fields.into_iter().map(|(k, v)| (k, to_value(v))))
        }
    }
}

fn number(n: &serde_json::Number) -> Value {
    match (n.as_i64(), n.as_u64()) {
        (Some(i), _) => Value::from(i),
        (None, Some(u)) => Value::from(u),
        (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::python::Dumps;

    #[test]
    fn values_keep_order_and_kind() {
        let text = r#"{"z":1,"a":1.0,"z":2,"u":18446744073709551615,"n":-9223372036854775808,"zero":0,"f":0.1,"d":{"b":null,"a":true}}"#;
        let v = to_value(parse(text.as_bytes()).unwrap());
        assert_eq!(
            Dumps::new(None).dump(&v).unwrap(),
            r#"{"z": 2, "a": 1.0, "u": 18446744073709551615, "n": -9223372036854775808, "zero": 0, "f": 0.1, "d": {"b": null, "a": true}}"#,
        );
    }

    #[test]
    fn large_floats_stay_floats() {
        let v = to_value(parse(b"[1e300,-9.3E+18,1.7976931348623157e+308,-0.0,0,12]").unwrap());
        assert_eq!(
            Dumps::new(None).dump(&v).unwrap(),
            "[1e+300, -9.3e+18, 1.7976931348623157e+308, -0.0, 0, 12]",
        );
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for text in [
            "18446744073709551616",
            "[1e300,100000000000000000000]",
            "-9223372036854775809",
            "-0",
            "[-0.0,-0]",
            "NaN",
            "[-Infinity]",
            "1e400",
            "\"\\ud800\"",
        ] {
            assert!(
                matches!(parse(text.as_bytes()), Err(Failure::Unsupported(_))),
                "{text}"
            );
        }
        for text in [
            "[1e300,18446744073709551615,-9223372036854775808]",
            "-0.0",
            "1e-0",
            "[1e20,-3,0.1234567890123456789012,\"123-4567890123456789012345\"]",
        ] {
            assert!(parse(text.as_bytes()).is_ok(), "{text}");
        }
        for text in ["", "{", "\u{feff}{}", "[1,]", "nan", "{'a':1}", "\"\x01\""] {
            assert!(
                matches!(parse(text.as_bytes()), Err(Failure::Invalid(_))),
                "{text:?}"
            );
        }
        assert!(parse(b"\"\xff\"").is_err());
        let deep = parse("[".repeat(100_000).as_bytes());
        assert!(matches!(deep, Err(Failure::Unsupported(_))));
    }
}
