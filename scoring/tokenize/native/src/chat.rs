//! A chat body on its way to the template: the engine's own preparation of
//! messages, tools and template variables, step by step.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use crate::content::Format;
use crate::failure::{invalid, unsupported, Outcome};
use crate::json;
use crate::messages::{self, FirstMedia};
use crate::template::Template;
use crate::tools;

pub type Object = Map<String, Json>;

/// Template arguments that change more than a variable when they come with a
/// request.
const RESERVED: [&str; 14] = [
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "model_config",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// The templates and settings of a model, as its workers were started.
pub struct Chat {
    pub default: Option<Template>,
    /// Used instead when the request brings tools.
    pub tool_use: Option<Template>,
    /// Overrides what the template's syntax tells.
    pub format: Option<Format>,
    /// Special tokens by name.
    pub variables: Object,
    /// Defaults of the workers for what a request may bring.
    pub kwargs: Object,
}

impl Chat {
    /// The text of a chat body.
    pub fn render(&self, mut body: Object) -> Outcome<Rendered> {
        if !is_null(body.get("chat_template")) {
            return unsupported("chat_template: a template that comes with the request");
        }
        refuse_shared_fields(&body)?;
        let add_special = flag(&body, "add_special_tokens", false)?;
        let continued = flag(&body, "continue_final_message", false)?;
        let prompted = flag(&body, "add_generation_prompt", true)?;
        if continued && prompted {
            return invalid(
                "continue_final_message: needs add_generation_prompt set to false beside it",
            );
        }
        let tools = tools::normalise(body.shift_remove("tools"))?;
        let template = match (&self.tool_use, tools.is_null()) {
            (Some(t), false) => t,
            _ => match &self.default {
                Some(t) => t,
                None => return unsupported("the model has no chat template"),
            },
        };
        let format = self.format.unwrap_or(template.format);
        let (mut conversation, media) =
            messages::conversation(body.shift_remove("messages"), format)?;
        if !template.knows_developer {
            if media.is_some() && conversation.iter().any(|m| m["role"] == "developer") {
                return unsupported("messages: a developer beside parts that are not text");
            }
            messages::demote_developers(&mut conversation);
        }
        let mut variables = self.variables.clone();
        variables.extend(self.kwargs.clone());
        variables.extend(request_kwargs(&mut body)?);
        variables.insert("tools".into(), tools);
        variables.entry("documents").or_insert(Json::Null);
        variables.insert("add_generation_prompt".into(), prompted.into());

        let (text, known) = match media {
            Some(_) if continued => {
                return unsupported("continue_final_message: beside parts that are not text")
            }
            Some(at) => render_beginning(template, conversation, at, variables)?,
            None if continued => (render_continued(template, conversation, variables)?, None),
            None => (render(template, conversation, variables)?, None),
        };
        Ok(Rendered {
            text,
            add_special,
            known,
        })
    }
}

/// A rendered chat body.
pub struct Rendered {
    pub text: String,
    /// Whether the tokenizer is to add its own special tokens.
    pub add_special: bool,
    /// How many bytes of the text are the engine's own, in a conversation with
    /// parts that are no text.
    pub known: Option<usize>,
}

/// Marks the place of the first part that is no text. The character begins no text
/// that means anything: Unicode keeps it for a program's own use.
const MEDIA_MARK: &str = "\u{fdd0}MEDIA";

/// Renders a conversation with parts that are no text, and finds how far its text
/// is known: as far as it is the same with and without a mark at the place of the
/// first such part. A template that wants parts sees that part as the engine shows
/// it; another one gets texts, which the engine puts a stand-in in front of that
/// only it knows, so that the message's whole content is unknown.
fn render_beginning(
    template: &Template,
    conversation: Vec<Object>,
    at: FirstMedia,
    variables: Object,
) -> Outcome<(String, Option<usize>)> {
    let mut marked = conversation.clone();
    match marked[at.message].get_mut("content") {
        Some(Json::Array(parts)) => {
            let mut part = Map::new();
            part.insert("type".into(), "text".into());
            part.insert("text".into(), MEDIA_MARK.into());
            parts.insert(at.part, Json::Object(part));
        }
        Some(Json::String(text)) => text.insert_str(0, MEDIA_MARK),
        _ => return unsupported("messages: content that is no text"),
    }
    let text = render(template, conversation, variables.clone())?;
    let marked = render(template, marked, variables)?;
    if !marked.contains(MEDIA_MARK) {
        return unsupported("messages: the template does not show parts that are not text");
    }
    let same = text.bytes().zip(marked.bytes());
    let known = same.take_while(|(a, b)| a == b).count();
    Ok((text, Some(known)))
}

fn render(template: &Template, conversation: Vec<Object>, variables: Object) -> Outcome<String> {
    let mut pairs = Vec::with_capacity(variables.len() + 1);
    for (name, v) in variables {
        pairs.push((name, json::to_value(v)));
    }
    let messages = conversation.into_iter().map(Json::Object).collect();
    pairs.push(("messages".into(), json::to_value(Json::Array(messages))));
    template.render(Value::from_pairs(pairs))
}

/// Marks the end of the final message while the template is rendered; what
/// comes after the mark is dropped.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

fn render_continued(
    template: &Template,
    mut conversation: Vec<Object>,
    variables: Object,
) -> Outcome<String> {
    const LOST: &str = "continue_final_message: the template does not keep the final message";
    let last = conversation.last_mut().and_then(|m| m.get_mut("content"));
    let text = match last {
        Some(Json::String(s)) => Some(s),
        Some(Json::Array(parts)) => parts
            .iter_mut()
            .rev()
            .find_map(|p| match p.get_mut("text") {
                Some(Json::String(s)) => Some(s),
                _ => None,
            }),
        _ => None,
    };
    let Some(text) = text else {
        return invalid("continue_final_message: the final message has no text to continue");
    };
    if !template.mentions_content {
        return unsupported(LOST);
    }
    let message = text.trim_matches(crate::python::is_space).to_owned();
    text.push_str(MARK);
    let mut rendered = render(template, conversation, variables)?;
    let bare = MARK.trim_end();
    let Some(at) = rendered.rfind(bare).filter(|_| rendered.contains(&message)) else {
        return unsupported(LOST);
    };
    let kept = rendered[at..].starts_with(MARK);
    rendered.truncate(at);
    if !kept {
        rendered.truncate(rendered.trim_end_matches(crate::python::is_space).len());
    }
    Ok(rendered)
}

/// Fields of both kinds of body with which the engine's prompt is not the one
/// computed here.
pub fn refuse_shared_fields(body: &Object) -> Outcome<()> {
    for name in ["truncate_prompt_tokens", "prompt_embeds"] {
        if !is_null(body.get(name)) {
            return unsupported(name);
        }
    }
    let forwarded = body
        .get("kv_transfer_params")
        .and_then(|p| p.get("prompt_token_ids"));
    if !is_null(forwarded) {
        return unsupported("kv_transfer_params.prompt_token_ids");
    }
    Ok(())
}

pub fn is_null(v: Option<&Json>) -> bool {
    v.is_none_or(Json::is_null)
}

/// A boolean field. The engine takes a few other spellings, which is its affair.
pub fn flag(body: &Object, name: &str, default: bool) -> Outcome<bool> {
    match body.get(name) {
        None => Ok(default),
        Some(Json::Bool(b)) => Ok(*b),
        Some(Json::Null) => invalid(format!("{name}: must be a boolean, not null")),
        Some(other) => unsupported(format!(
            "{name}: {} instead of a boolean",
            json::kind(other)
        )),
    }
}

/// Variables that the request sets, in the engine's order of precedence: fields
/// of the body over chat_template_kwargs. Null and "auto" mean unset.
fn request_kwargs(body: &mut Object) -> Outcome<Object> {
    let mut kwargs = match body.shift_remove("chat_template_kwargs") {
        None | Some(Json::Null) => Map::new(),
        Some(Json::Object(kwargs)) => kwargs,
        Some(other) => {
            return invalid(format!(
                "chat_template_kwargs: must be an object, not {}",
                json::kind(&other)
            ))
        }
    };
    if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
        return unsupported(format!("chat_template_kwargs.{name}"));
    }
    match body.shift_remove("reasoning_effort") {
        None | Some(Json::Null) => {}
        Some(Json::String(effort)) => {
            if !kwargs.contains_key("enable_thinking") {
                kwargs.insert("enable_thinking".into(), (effort != "none").into());
            }
            kwargs.insert("reasoning_effort".into(), effort.into());
        }
        Some(other) => {
            return invalid(format!(
                "reasoning_effort: must be a string, not {}",
                json::kind(&other)
            ))
        }
    }
    match body.shift_remove("documents") {
        None | Some(Json::Null) => {}
        Some(documents) if is_list_of_texts(&documents) => {
            kwargs.insert("documents".into(), documents);
        }
        Some(_) => return invalid("documents: must be a list of objects whose values are strings"),
    }
    kwargs.shift_remove("continue_final_message");
    kwargs.retain(|_, v| !v.is_null() && v != "auto");
    Ok(kwargs)
}

fn is_list_of_texts(v: &Json) -> bool {
    let Some(items) = v.as_array() else {
        return false;
    };
    items.iter().all(|d| {
        d.as_object()
            .is_some_and(|d| d.values().all(Json::is_string))
    })
}
