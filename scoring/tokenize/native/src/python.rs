//! Values written the way Python writes them. Chat templates are made for a
//! Python engine, and a space or a quote that differs changes the token ids.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Whitespace as `str.strip` and `str.split` see it: Unicode's, and the four
/// information separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.title`.
pub fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn refuse(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// A float as `repr` writes it: the shortest digits that read back the same,
/// with an exponent below 1e-4 and from 1e16 on.
pub fn float_repr(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{f}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

fn is_float(v: &Value) -> bool {
    v.kind() == ValueKind::Number && !v.is_integer()
}

fn as_float(v: &Value) -> Result<f64, Error> {
    f64::try_from(v.clone())
}

/// `str(v)`, which is also what an expression block prints.
pub fn to_str(v: &Value) -> Result<String, Error> {
    if let Some(s) = v.as_str() {
        return Ok(s.to_owned());
    }
    let mut out = String::new();
    if !v.is_undefined() {
        write_repr(&mut out, v)?;
    }
    Ok(out)
}

/// `repr(v)`, appended to `out`.
pub fn write_repr(out: &mut String, v: &Value) -> Result<(), Error> {
    match v.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if v.is_true() { "True" } else { "False" }),
        ValueKind::Number if is_float(v) => out.push_str(&float_repr(as_float(v)?)),
        ValueKind::Number => out.push_str(&v.to_string()),
        ValueKind::String => write_str_repr(out, v.as_str().unwrap_or_default())?,
        ValueKind::Seq => {
            let (open, close) = if v.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let n = v.len().unwrap_or(0);
            for (i, item) in v.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item)?;
            }
            if n == 1 && v.is_tuple() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in v.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key)?;
                out.push_str(": ");
                write_repr(out, &v.get_item(&key)?)?;
            }
            out.push('}');
        }
        _ => {
            return Err(refuse(
                "the template prints a value whose Python form is not known",
            ))
        }
    }
    Ok(())
}

/// A string with quotes, as in the printed form of a list. Whether a character
/// outside ASCII is printed or escaped depends on Python's own tables, so only
/// letters and digits, which are always printed, are taken.
fn write_str_repr(out: &mut String, s: &str) -> Result<(), Error> {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            '\0'..='\u{a0}' | '\u{ad}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_alphanumeric() => out.push(c),
            _ => return Err(refuse("the template prints a list or an object with characters whose Python form is not known")),
        }
    }
    out.push(quote);
    Ok(())
}

/// How `json.dumps` is to write: its keyword arguments.
pub struct Dumps {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Dumps {
    /// The defaults of the engine's `tojson`, with or without an indent.
    pub fn new(indent: Option<String>) -> Self {
        let item_separator = if indent.is_some() { "," } else { ", " };
        Dumps {
            ensure_ascii: false,
            indent,
            item_separator: item_separator.into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }

    /// `json.dumps(v)`.
    pub fn dump(&self, v: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, v, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, v: &Value, depth: usize) -> Result<(), Error> {
        match v.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number if is_float(v) => out.push_str(&json_float(as_float(v)?)),
            ValueKind::Number => out.push_str(&v.to_string()),
            ValueKind::String => self.write_str(out, v.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = v.try_iter()?.collect();
                self.write_items(out, ('[', ']'), items.len(), depth, |out, i| {
                    self.write(out, &items[i], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = v.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(out, ('{', '}'), keys.len(), depth, |out, i| {
                    self.write_str(out, &json_key(&keys[i])?);
                    out.push_str(&self.key_separator);
                    self.write(out, &v.get_item(&keys[i])?, depth + 1)
                })?;
            }
            _ => return Err(refuse("tojson was given a value that is not JSON")),
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        (open, close): (char, char),
        n: usize,
        depth: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for i in 0..n {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(out, depth + 1);
            item(out, i)?;
        }
        if n > 0 {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_str(&self, out: &mut String, s: &str) {
        out.push('"');
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ensure_ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_float(f: f64) -> String {
    match f {
        f if f.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        f => float_repr(f),
    }
}

fn json_key(v: &Value) -> Result<String, Error> {
    match v.kind() {
        ValueKind::String => Ok(v.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if v.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number if is_float(v) => Ok(json_float(as_float(v)?)),
        ValueKind::Number => Ok(v.to_string()),
        _ => Err(refuse(
            "tojson was given an object with a key that is not JSON",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(v: serde_json::Value) -> Value {
        crate::json::to_value(v)
    }

    #[test]
    fn floats_as_repr_writes_them() {
        for (f, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123456789012345.6, "123456789012345.6"),
            (1e15, "1000000000000000.0"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.2345e22, "1.2345e+22"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(f), want);
        }
    }

    #[test]
    fn values_as_str_prints_them() {
        let v = value(serde_json::json!({
            "a": [1, 2.0, true, null, "it's", "say \"hi\"", "b\\\n", "é日", "\u{7f}", []],
        }));
        assert_eq!(
            to_str(&v).unwrap(),
            r#"{'a': [1, 2.0, True, None, "it's", 'say "hi"', 'b\\\n', 'é日', '\x7f', []]}"#,
        );
        assert_eq!(to_str(&Value::UNDEFINED).unwrap(), "");
        assert!(to_str(&Value::from(vec!["\u{200b}"])).is_err());
    }

    #[test]
    fn json_as_dumps_writes_it() {
        let v = value(serde_json::json!({
            "z": 1, "a": {"b": [], "c": {}}, "l": [1e20, -3, 1.0], "s": "<é\u{7f}\u{1}\u{1f600}\"/>",
        }));
        assert_eq!(
            Dumps::new(None).dump(&v).unwrap(),
            "{\"z\": 1, \"a\": {\"b\": [], \"c\": {}}, \"l\": [1e+20, -3, 1.0], \"s\": \"<é\u{7f}\\u0001\u{1f600}\\\"/>\"}",
        );
        let mut d = Dumps::new(Some("  ".into()));
        d.sort_keys = true;
        d.ensure_ascii = true;
        assert_eq!(
            d.dump(&v).unwrap(),
            "{\n  \"a\": {\n    \"b\": [],\n    \"c\": {}\n  },\n  \"l\": [\n    1e+20,\n    -3,\n    1.0\n  ],\n  \"s\": \"<\\u00e9\\u007f\\u0001\\ud83d\\ude00\\\"/>\",\n  \"z\": 1\n}",
        );
        assert!(Dumps::new(None).dump(&Value::UNDEFINED).is_err());
    }
}
