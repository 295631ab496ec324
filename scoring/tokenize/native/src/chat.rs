//! A chat body on its way to the template: the engine's own preparation of
//! messages, tools and template variables, step by step.

use minijinja::value::Value;
use serde_json::{Map, Value as Json};

use crate::content::Format;
use crate::failure::{invalid, unsupported, Failure, Outcome};
use crate::json;
use crate::template::Template;

type Object = Map<String, Json>;

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

/// Keys of content parts that have a meaning; any other key of a text part
/// travels to the template.
const PART_KEYS: [&str; 18] = [
    "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil",
    "image_url", "input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking",
    "type", "uuid", "video_embeds", "video_url",
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
    /// The text of a chat body, and whether the tokenizer is to add its own
    /// special tokens to it.
    pub fn render(&self, mut body: Object) -> Outcome<(String, bool)> {
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
        let tools = tools(body.shift_remove("tools"))?;
        let template = match (&self.tool_use, tools.is_null()) {
            (Some(t), false) => t,
            _ => match &self.default {
                Some(t) => t,
                None => return unsupported("the model has no chat template"),
            },
        };
        let format = self.format.unwrap_or(template.format);
        let mut conversation = conversation(body.shift_remove("messages"), format)?;
        if !template.knows_developer {
            demote_developers(&mut conversation);
        }
        let mut variables = self.variables.clone();
        variables.extend(self.kwargs.clone());
        variables.extend(request_kwargs(&mut body)?);
        variables.insert("tools".into(), tools);
        variables.entry("documents").or_insert(Json::Null);
        variables.insert("add_generation_prompt".into(), prompted.into());

        let text = if continued {
            render_continued(template, conversation, variables)?
        } else {
            render(template, conversation, variables)?
        };
        Ok((text, add_special))
    }
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
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|p| match p.get_mut("text") {
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
    let forwarded = body.get("kv_transfer_params").and_then(|p| p.get("prompt_token_ids"));
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
        Some(other) => unsupported(format!("{name}: {} instead of a boolean", json::kind(other))),
    }
}

/// Variables that the request sets, in the engine's order of precedence: fields
/// of the body over chat_template_kwargs. Null and "auto" mean unset.
fn request_kwargs(body: &mut Object) -> Outcome<Object> {
    let mut kwargs = match body.shift_remove("chat_template_kwargs") {
        None | Some(Json::Null) => Map::new(),
        Some(Json::Object(kwargs)) => kwargs,
        Some(other) => {
            return invalid(format!("chat_template_kwargs: must be an object, not {}", json::kind(&other)))
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
            return invalid(format!("reasoning_effort: must be a string, not {}", json::kind(&other)))
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
    let Some(items) = v.as_array() else { return false };
    items.iter().all(|d| d.as_object().is_some_and(|d| d.values().all(Json::is_string)))
}

/// The tools as the engine hands them on: known fields only, in a fixed order,
/// absent ones as null.
fn tools(v: Option<Json>) -> Outcome<Json> {
    let list = match v {
        None | Some(Json::Null) => return Ok(Json::Null),
        Some(Json::Array(list)) if !list.is_empty() => list,
        Some(Json::Array(_)) => return invalid("tools: an empty list; leave the field out"),
        Some(other) => return invalid(format!("tools: must be a list, not {}", json::kind(&other))),
    };
    let mut tools = Vec::with_capacity(list.len());
    for (i, tool) in list.into_iter().enumerate() {
        tools.push(tool_entry(tool, &format!("tools[{i}]"))?);
    }
    Ok(Json::Array(tools))
}

fn tool_entry(tool: Json, at: &str) -> Outcome<Json> {
    let Json::Object(mut tool) = tool else {
        return invalid(format!("{at}: must be an object, not {}", json::kind(&tool)));
    };
    if tool.get("type").is_some_and(|t| t != "function") {
        return invalid(format!("{at}.type: must be \"function\""));
    }
    let Some(Json::Object(mut function)) = tool.shift_remove("function") else {
        return invalid(format!("{at}.function: must be an object"));
    };
    let mut out = Map::new();
    let Some(name @ Json::String(_)) = function.shift_remove("name") else {
        return invalid(format!("{at}.function.name: must be a string"));
    };
    out.insert("name".into(), name);
    let description = function.shift_remove("description").unwrap_or_default();
    if !description.is_string() && !description.is_null() {
        return invalid(format!("{at}.function.description: must be a string"));
    }
    out.insert("description".into(), description);
    let parameters = function.shift_remove("parameters").unwrap_or_default();
    if !parameters.is_object() && !parameters.is_null() {
        return invalid(format!("{at}.function.parameters: must be an object"));
    }
    out.insert("parameters".into(), parameters);
    let deferred = tool.shift_remove("defer_loading").unwrap_or_default();
    let inner = function.shift_remove("defer_loading").unwrap_or_default();
    let inner = if inner.is_null() { deferred.clone() } else { inner };
    for (name, v) in [("strict", function.shift_remove("strict").unwrap_or_default()), ("defer_loading", inner)] {
        match v {
            Json::Null => {}
            Json::Bool(_) => {
                out.insert(name.into(), v);
            }
            _ => return unsupported(format!("{at}.function.{name}: {} instead of a boolean", json::kind(&v))),
        }
    }
    let mut entry = Map::new();
    entry.insert("type".into(), "function".into());
    entry.insert("function".into(), Json::Object(out));
    if !deferred.is_null() {
        entry.insert("defer_loading".into(), deferred);
    }
    Ok(Json::Object(entry))
}

fn conversation(v: Option<Json>, format: Format) -> Outcome<Vec<Object>> {
    let list = match v {
        Some(Json::Array(list)) if !list.is_empty() => list,
        Some(Json::Array(_)) => return invalid("messages: an empty list"),
        Some(other) => return invalid(format!("messages: must be a list, not {}", json::kind(&other))),
        None => return invalid("messages: missing; send a list of messages"),
    };
    let mut out = Vec::with_capacity(list.len());
    for (i, message) in list.into_iter().enumerate() {
        let at = format!("messages[{i}]");
        match message {
            Json::Object(m) => out.push(message_entry(m, &at, format)?),
            other => return invalid(format!("{at}: must be an object, not {}", json::kind(&other))),
        }
    }
    Ok(out)
}

/// One message as the template sees it: only the fields that the engine hands
/// on, in its order.
fn message_entry(mut m: Object, at: &str, format: Format) -> Outcome<Object> {
    let role = match m.shift_remove("role") {
        Some(Json::String(role)) => role,
        Some(other) => return invalid(format!("{at}.role: must be a string, not {}", json::kind(&other))),
        None => return invalid(format!("{at}.role: missing")),
    };
    let mut parts = parts(m.shift_remove("content"), &role, format, at)?;
    if role == "system" {
        parts = parts.into_iter().filter_map(without_billing_header).collect();
    }
    let content = match format {
        Format::Parts if role != "tool" => Json::Array(parts.into_iter().map(Part::into_json).collect()),
        // An empty part adds no line here, but does in the list of a tool.
        _ => {
            let texts: Vec<String> = parts
                .into_iter()
                .map(|p| p.text)
                .filter(|t| format == Format::Parts || !t.is_empty())
                .collect();
            Json::String(texts.join("\n"))
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), role.as_str().into());
    out.insert("content".into(), content);
    match role.as_str() {
        "assistant" => assistant_fields(&mut m, &mut out, at)?,
        "tool" => {
            if let Some(id) = m.shift_remove("tool_call_id") {
                out.insert("tool_call_id".into(), id);
            }
        }
        _ => {}
    }
    match m.shift_remove("name") {
        None => {}
        Some(name @ Json::String(_)) => {
            out.insert("name".into(), name);
        }
        Some(other) => return invalid(format!("{at}.name: must be a string, not {}", json::kind(&other))),
    }
    if let Some(task @ Json::String(_)) = m.shift_remove("task") {
        out.insert("task".into(), task);
    }
    if role == "developer" {
        if !is_null(m.get("tools")) {
            return unsupported(format!("{at}.tools: tools of a developer message"));
        }
        out.insert("tools".into(), Json::Null);
    }
    Ok(out)
}

fn assistant_fields(m: &mut Object, out: &mut Object, at: &str) -> Outcome<()> {
    match m.shift_remove("tool_calls") {
        None | Some(Json::Null) => {}
        Some(Json::Array(calls)) => {
            let mut list = Vec::with_capacity(calls.len());
            for (i, call) in calls.into_iter().enumerate() {
                list.push(tool_call(call, &format!("{at}.tool_calls[{i}]"))?);
            }
            if !list.is_empty() {
                out.insert("tool_calls".into(), Json::Array(list));
            }
        }
        Some(other) => return invalid(format!("{at}.tool_calls: must be a list, not {}", json::kind(&other))),
    }
    let older = m.shift_remove("reasoning_content").unwrap_or_default();
    let reasoning = m.shift_remove("reasoning").filter(|r| !r.is_null()).unwrap_or(older);
    if !reasoning.is_null() {
        out.insert("reasoning".into(), reasoning.clone());
        out.insert("reasoning_content".into(), reasoning);
    }
    Ok(())
}

/// A tool call with its arguments as an object. What is no object in JSON
/// becomes an empty one, so that an odd turn does not end the conversation.
fn tool_call(call: Json, at: &str) -> Outcome<Json> {
    let Json::Object(mut call) = call else {
        return invalid(format!("{at}: must be an object, not {}", json::kind(&call)));
    };
    match call.shift_remove("type") {
        Some(Json::String(t)) if t == "function" => {}
        Some(_) => return invalid(format!("{at}.type: must be \"function\"")),
        None => return invalid(format!("{at}.type: missing")),
    }
    let Some(id @ Json::String(_)) = call.shift_remove("id") else {
        return invalid(format!("{at}.id: must be a string"));
    };
    let Some(Json::Object(mut function)) = call.shift_remove("function") else {
        return invalid(format!("{at}.function: must be an object"));
    };
    let Some(Json::String(arguments)) = function.shift_remove("arguments") else {
        return invalid(format!("{at}.function.arguments: must be a string"));
    };
    let Some(name @ Json::String(_)) = function.shift_remove("name") else {
        return invalid(format!("{at}.function.name: must be a string"));
    };
    let arguments = match json::parse(arguments.as_bytes()) {
        Ok(arguments @ Json::Object(_)) => arguments,
        Err(Failure::Unsupported(why)) => {
            return unsupported(format!("{at}.function.arguments: {why}"))
        }
        _ => Json::Object(Map::new()),
    };
    let mut inner = Map::new();
    inner.insert("arguments".into(), arguments);
    inner.insert("name".into(), name);
    inner.extend(function);
    let mut out = Map::new();
    out.insert("id".into(), id);
    out.insert("function".into(), Json::Object(inner));
    out.insert("type".into(), "function".into());
    out.extend(call);
    Ok(Json::Object(out))
}

/// A text part of a message, with the keys that are the template's affair.
struct Part {
    text: String,
    extra: Object,
}

impl Part {
    fn new(text: String) -> Part {
        Part { text, extra: Map::new() }
    }

    fn into_json(self) -> Json {
        let mut out = Map::new();
        out.insert("type".into(), "text".into());
        out.insert("text".into(), self.text.into());
        out.extend(self.extra);
        Json::Object(out)
    }
}

fn parts(content: Option<Json>, role: &str, format: Format, at: &str) -> Outcome<Vec<Part>> {
    match content {
        None => Ok(Vec::new()),
        Some(Json::Null) if matches!(role, "assistant" | "function") => Ok(Vec::new()),
        Some(Json::String(text)) => Ok(vec![Part::new(text)]),
        Some(Json::Array(list)) => {
            let mut out = Vec::with_capacity(list.len());
            for (i, item) in list.into_iter().enumerate() {
                out.extend(part(item, format, &format!("{at}.content[{i}]"))?);
            }
            Ok(out)
        }
        Some(other) => {
            invalid(format!("{at}.content: must be a string or a list, not {}", json::kind(&other)))
        }
    }
}

/// One part of a list; None for a part without text, which is skipped.
fn part(item: Json, format: Format, at: &str) -> Outcome<Option<Part>> {
    let mut item = match item {
        Json::String(text) => return Ok(Some(Part::new(text))),
        Json::Object(item) => item,
        other => return invalid(format!("{at}: must be an object, not {}", json::kind(&other))),
    };
    let key = match item.get("type") {
        Some(Json::String(t)) => match t.as_str() {
            "text" => "text",
            "refusal" => "refusal",
            "thinking" => "thinking",
            _ => return unsupported(format!("{at}: a part that is not text")),
        },
        _ => return invalid(format!("{at}.type: must be a string")),
    };
    if !is_null(item.get("uuid")) {
        return unsupported(format!("{at}.uuid"));
    }
    match item.shift_remove(key) {
        Some(Json::String(text)) => {
            item.retain(|k, _| !PART_KEYS.contains(&k.as_str()));
            Ok(Some(Part { text, extra: item }))
        }
        None | Some(Json::Null) if key == "thinking" && format == Format::Parts => {
            unsupported(format!("{at}.thinking: missing"))
        }
        None | Some(Json::Null) => Ok(None),
        Some(other) => invalid(format!("{at}.{key}: must be a string, not {}", json::kind(&other))),
    }
}

/// Drops the line that one client puts first into its system prompt and that is
/// different in every request.
fn without_billing_header(mut p: Part) -> Option<Part> {
    if !p.text.starts_with("x-anthropic-billing-header") {
        return Some(p);
    }
    match p.text.split_once('\n') {
        Some((_, rest)) if !rest.is_empty() => {
            p.text = rest.to_owned();
            Some(p)
        }
        _ => None,
    }
}

/// For a template that does not know the role `developer`: its messages become
/// system messages, and all of those one message at the front.
fn demote_developers(conversation: &mut Vec<Object>) {
    if !conversation.iter().any(|m| m["role"] == "developer") {
        return;
    }
    for m in conversation.iter_mut().filter(|m| m["role"] == "developer") {
        m["role"] = "system".into();
        m.shift_remove("tools");
    }
    let is_system = |m: &Object| m["role"] == "system";
    let first_only = conversation.iter().skip(1).all(|m| !is_system(m));
    if first_only {
        return;
    }
    let mut texts = Vec::new();
    conversation.retain(|m| {
        if is_system(m) {
            let text = match &m["content"] {
                Json::String(s) => s.clone(),
                Json::Array(parts) => {
                    let texts: Vec<&str> = parts.iter().filter_map(|p| p["text"].as_str()).collect();
                    texts.join("\n")
                }
                _ => String::new(),
            };
            texts.extend((!text.is_empty()).then_some(text));
        }
        !is_system(m)
    });
    let mut merged = Map::new();
    merged.insert("role".into(), "system".into());
    merged.insert("content".into(), texts.join("\n\n").into());
    conversation.insert(0, merged);
}
