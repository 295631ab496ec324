//! Chat templates, rendered as the engine's Jinja renders them.

use std::error::Error as _;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;

use crate::clock::Clock;
use crate::content::{self, Format};
use crate::failure::{Failure, Outcome};
use crate::python;

/// The name under which the environment holds its one template.
const NAME: &str = "chat_template";

/// A compiled chat template, shared by all requests.
pub struct Template {
    env: Environment<'static>,
    /// How the template wants the content of messages.
    pub format: Format,
    /// Whether the template knows the role `developer`.
    pub knows_developer: bool,
    /// Whether the template mentions `content` at all.
    pub mentions_content: bool,
}

impl Template {
    /// Compiles `source`. The clock is what `strftime_now` shows.
    pub fn compile(source: &str, clock: Clock) -> Outcome<Template> {
        let source = without_generation_tags(source);
        let syntax = syntax();
        let format = content::detect(&source, syntax.clone());
        let mut env = Environment::new();
        env.set_syntax(syntax);
        env.set_unknown_method_callback(method);
        env.set_formatter(print);
        env.add_filter("tojson", tojson);
        env.add_filter("trim", trim);
        env.add_filter("string", |v: &Value| python::to_str(v));
        env.add_test("sequence", is_sequence);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", move |format: &str| {
            clock.strftime(format).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    "strftime_now: unknown directive",
                )
            })
        });
        let knows_developer = source.contains("\"developer\"") || source.contains("'developer'");
        let mentions_content = source.contains("content");
        env.add_template_owned(NAME, source)
            .map_err(|e| Failure::Internal(format!("chat template{}: {}", place(&e), e.kind())))?;
        Ok(Template {
            env,
            format,
            knows_developer,
            mentions_content,
        })
    }

    /// Renders with the given variables.
    pub fn render(&self, variables: Value) -> Outcome<String> {
        let template = self
            .env
            .get_template(NAME)
            .map_err(|e| Failure::Internal(format!("chat template: {}", e.kind())))?;
        template.render(variables).map_err(failure)
    }
}

pub fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .expect("BUG: the default delimiters are valid")
}

/// What `raise_exception` was called with, on its way out of the renderer.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raise_exception")
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = python::to_str(message)?;
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// Sorts a render error: the template's own refusal, or something this renderer
/// does not do as Python does. The latter's text may quote the conversation and
/// is reduced to its kind and place.
fn failure(e: Error) -> Failure {
    let mut cause = e.source();
    while let Some(err) = cause {
        if let Some(Raised(message)) = err.downcast_ref() {
            return Failure::Rejected(message.clone());
        }
        cause = err.source();
    }
    Failure::Unsupported(format!("chat template{}: {}", place(&e), e.kind()))
}

fn place(e: &Error) -> String {
    e.line()
        .map(|line| format!(" line {line}"))
        .unwrap_or_default()
}

/// The tag pair `generation` marks the assistant's turns for training. When
/// prompting it is a plain scope, which `with` is as well.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else {
            break;
        };
        let inner = &rest[start + 2..start + len];
        let word = inner.trim_matches(|c| matches!(c, '-' | '+')).trim();
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&inner.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&inner.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(inner),
        }
        out.push_str("%}");
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}

/// Prints the value of an expression block.
fn print(out: &mut Output, _: &mut State, v: &Value) -> Result<(), Error> {
    match v.as_str() {
        Some(s) => out.write_str(s)?,
        None => out.write_str(&python::to_str(v)?)?,
    }
    Ok(())
}

fn tojson(v: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => match v.as_str() {
            Some(s) => Some(s.to_owned()),
            None => Some(" ".repeat(i64::try_from(v)?.clamp(0, 64) as usize)),
        },
    };
    if !args.is_empty() {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            "tojson takes keyword arguments",
        ));
    }
    let mut dumps = python::Dumps::new(indent);
    dumps.ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    dumps.sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(pair) = kwargs
        .get::<Option<Value>>("separators")?
        .filter(|v| !v.is_none())
    {
        dumps.item_separator = separator(&pair, 0)?;
        dumps.key_separator = separator(&pair, 1)?;
    }
    kwargs.assert_all_used()?;
    dumps.dump(v).map(Value::from)
}

fn separator(pair: &Value, i: usize) -> Result<String, Error> {
    pair.get_item_by_index(i)?
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators are two strings",
            )
        })
}

/// The filter `trim`: `str(v).strip(chars)`.
fn trim(v: &Value, chars: Option<String>) -> Result<Value, Error> {
    let s = python::to_str(v)?;
    Ok(Value::from(match chars {
        Some(chars) => s.trim_matches(|c| chars.contains(c)),
        None => s.trim_matches(python::is_space),
    }))
}

/// In Python a string and an object have a length and can be indexed, too.
fn is_sequence(v: &Value) -> bool {
    matches!(
        v.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Python's methods. Those that look for whitespace are done here, because
/// Python counts four characters more, and so is `title`, which in Python begins
/// a word after every character that has no case.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(s), true) = (value.as_str(), args.iter().all(|a| a.is_none())) {
        let stripped = match name {
            "strip" => Some(s.trim_matches(python::is_space)),
            "lstrip" => Some(s.trim_start_matches(python::is_space)),
            "rstrip" => Some(s.trim_end_matches(python::is_space)),
            _ => None,
        };
        if let Some(stripped) = stripped {
            let (_,): (Option<Value>,) = from_args(args)?;
            return Ok(Value::from(stripped));
        }
        if name == "split" && args.len() < 2 {
            let words = s.split(python::is_space).filter(|w| !w.is_empty());
            return Ok(words.map(Value::from).collect());
        }
        if name == "title" {
            let () = from_args(args)?;
            return Ok(Value::from(python::title(s)));
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn render(source: &str, variables: serde_json::Value) -> Outcome<String> {
        let clock = Clock::default();
        clock.set(1_767_225_600, 3600);
        Template::compile(source, clock)?.render(json::to_value(variables))
    }

    #[test]
    fn renders_like_jinja() {
        let v = serde_json::json!({
            "m": [{"role": "user", "content": "\u{1c} a \n"}, {"role": "x", "content": null}],
            "t": {"z": 1.0, "a": "<é>", "l": [1]},
            "b": true,
        });
        for (source, want) in [
            (
                "{% for x in m %}\n  {{ x.role }}\n  {% endfor %}\n",
                "  user\n  x\n",
            ),
            (
                "{{ m[0].content | trim }}|{{ m[0]['content'].strip() }}|",
                "a|a|",
            ),
            (
                "{{ t | tojson }}",
                "{\"z\": 1.0, \"a\": \"<é>\", \"l\": [1]}",
            ),
            (
                "{{ t | tojson(indent=1) }}",
                "{\n \"z\": 1.0,\n \"a\": \"<é>\",\n \"l\": [\n  1\n ]\n}",
            ),
            (
                "{{ t | tojson(separators=(',', ':')) }}",
                "{\"z\":1.0,\"a\":\"<é>\",\"l\":[1]}",
            ),
            (
                "{{ b }} {{ m[1].content }} {{ t }} {{ nope }}",
                "True None {'z': 1.0, 'a': '<é>', 'l': [1]} ",
            ),
            ("{{ b | string }}{{ t.z | string }}", "True1.0"),
            ("{%- generation -%}\n x {% endgeneration %}\ny", "x y"),
            (
                "{% set a = 1 %}{% generation %}{% set a = 2 %}{% endgeneration %}{{ a }}",
                "1",
            ),
            (
                "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
                "1",
            ),
            (
                "{{ 'ab' is sequence }} {{ t is sequence }} {{ 1 is sequence }}",
                "True True False",
            ),
            ("{{ strftime_now('%d %b %Y %H:%M') }}", "01 Jan 2026 01:00"),
            (
                "{{ ' a  b '.split() | length }}{{ 'a-b-c'.split('-', 1)[1] }}",
                "2b-c",
            ),
        ] {
            assert_eq!(render(source, v.clone()), Ok(want.to_owned()), "{source}");
        }
    }

    #[test]
    fn failures_do_not_quote_the_conversation() {
        let v = serde_json::json!({"s": "secret", "n": 1});
        assert_eq!(
            render("{{ raise_exception('no ' + s) }}", v.clone()),
            Err(Failure::Rejected("no secret".into())),
        );
        assert_eq!(
            render(
                "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}",
                v.clone()
            ),
            Err(Failure::Rejected("deep".into())),
        );
        for source in [
            "\n{{ s + n }}",
            "\n{{ s.nope() }}",
            "\n{{ s | nope }}",
            "\n{{ nope.x.y }}",
        ] {
            match render(source, v.clone()) {
                Err(Failure::Unsupported(m) | Failure::Internal(m)) => {
                    assert!(m.contains("line 2") && !m.contains("secret"), "{m}");
                }
                other => panic!("{source}: {other:?}"),
            }
        }
        assert!(matches!(render("{% if %}", v), Err(Failure::Internal(_))));
    }
}
