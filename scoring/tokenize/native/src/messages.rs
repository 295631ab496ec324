//! Messages, in the form in which the engine hands them to templates.

use serde_json::{Map, Value as Json};

use crate::chat::{is_null, Object};
use crate::content::Format;
use crate::failure::{invalid, unsupported, Outcome};
use crate::json;
use crate::tools;

/// Keys of content parts that have a meaning; any other key of a text part
/// travels to the template.
const PART_KEYS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// The types of content parts that are no text, with what the template sees of
/// them.
const MEDIA: [(&str, &str); 10] = [
    ("audio_embeds", "audio"),
    ("audio_url", "audio"),
    ("image_embeds", "image"),
    ("image_pil", "image"),
    ("image_url", "image"),
    ("input_audio", "audio"),
    ("input_image", "image"),
    ("video_embeds", "video"),
    ("video_url", "video"),
    ("input_video", "video"),
];

/// Where the first part is that is no text: of a message by index, before this
/// part of it by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstMedia {
    pub message: usize,
    pub part: usize,
}

/// Reads the messages of a body.
pub fn conversation(
    v: Option<Json>,
    format: Format,
) -> Outcome<(Vec<Object>, Option<FirstMedia>)> {
    let list = match v {
        Some(Json::Array(list)) if !list.is_empty() => list,
        Some(Json::Array(_)) => return invalid("messages: an empty list"),
        Some(other) => {
            return invalid(format!(
                "messages: must be a list, not {}",
                json::kind(&other)
            ))
        }
        None => return invalid("messages: missing; send a list of messages"),
    };
    let mut out = Vec::with_capacity(list.len());
    let mut first = None;
    for (i, message) in list.into_iter().enumerate() {
        let at = format!("messages[{i}]");
        match message {
            Json::Object(m) => {
                let (entry, media) = message_entry(m, &at, format)?;
                out.push(entry);
                let here = media.map(|part| FirstMedia { message: i, part });
                first = first.or(here);
            }
            other => {
                return invalid(format!(
                    "{at}: must be an object, not {}",
                    json::kind(&other)
                ))
            }
        }
    }
    Ok((out, first))
}

/// One message as the template sees it: only the fields that the engine hands
/// on, in its order; and the index of its first part that is no text.
fn message_entry(mut m: Object, at: &str, format: Format) -> Outcome<(Object, Option<usize>)> {
    let role = match m.shift_remove("role") {
        Some(Json::String(role)) => role,
        Some(other) => {
            return invalid(format!(
                "{at}.role: must be a string, not {}",
                json::kind(&other)
            ))
        }
        None => return invalid(format!("{at}.role: missing")),
    };
    let mut parts = parts(m.shift_remove("content"), &role, format, at)?;
    if role == "system" {
        parts = parts
            .into_iter()
            .filter_map(without_billing_header)
            .collect();
    }
    let media = parts.iter().position(|p| p.media.is_some());
    let content = match format {
        Format::Parts if role != "tool" => {
            Json::Array(parts.into_iter().map(Part::into_json).collect())
        }
        // An empty part adds no line here, but does in the list of a tool.
        _ => {
            if media.is_some() && format == Format::Parts {
                return unsupported(format!("{at}.content: a part that is not text"));
            }
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
        Some(other) => {
            return invalid(format!(
                "{at}.name: must be a string, not {}",
                json::kind(&other)
            ))
        }
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
    Ok((out, media))
}

fn assistant_fields(m: &mut Object, out: &mut Object, at: &str) -> Outcome<()> {
    match m.shift_remove("tool_calls") {
        None | Some(Json::Null) => {}
        Some(Json::Array(calls)) => {
            let mut list = Vec::with_capacity(calls.len());
            for (i, call) in calls.into_iter().enumerate() {
                list.push(tools::call(call, &format!("{at}.tool_calls[{i}]"))?);
            }
            if !list.is_empty() {
                out.insert("tool_calls".into(), Json::Array(list));
            }
        }
        Some(other) => {
            return invalid(format!(
                "{at}.tool_calls: must be a list, not {}",
                json::kind(&other)
            ))
        }
    }
    let older = m.shift_remove("reasoning_content").unwrap_or_default();
    let reasoning = m
        .shift_remove("reasoning")
        .filter(|r| !r.is_null())
        .unwrap_or(older);
    if !reasoning.is_null() {
        out.insert("reasoning".into(), reasoning.clone());
        out.insert("reasoning_content".into(), reasoning);
    }
    Ok(())
}

/// A part of a message, with the keys that are the template's affair.
struct Part {
    text: String,
    /// What the template sees in place of a text: image, audio or video.
    media: Option<&'static str>,
    extra: Object,
}

impl Part {
    fn new(text: String) -> Part {
        Part {
            text,
            media: None,
            extra: Map::new(),
        }
    }

    fn into_json(self) -> Json {
        let mut out = Map::new();
        match self.media {
            Some(kind) => {
                out.insert("type".into(), kind.into());
            }
            None => {
                out.insert("type".into(), "text".into());
                out.insert("text".into(), self.text.into());
            }
        }
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
        Some(other) => invalid(format!(
            "{at}.content: must be a string or a list, not {}",
            json::kind(&other)
        )),
    }
}

/// One part of a list; None for a part without text, which is skipped.
fn part(item: Json, format: Format, at: &str) -> Outcome<Option<Part>> {
    let mut item = match item {
        Json::String(text) => return Ok(Some(Part::new(text))),
        Json::Object(item) => item,
        other => {
            return invalid(format!(
                "{at}: must be an object, not {}",
                json::kind(&other)
            ))
        }
    };
    let key = match item.get("type") {
        Some(Json::String(t)) => match t.as_str() {
            "text" => "text",
            "refusal" => "refusal",
            "thinking" => "thinking",
            other => {
                let media = MEDIA.iter().find(|(name, _)| *name == other);
                return match media {
                    Some((_, kind)) => media_part(item, kind, at).map(Some),
                    None => unsupported(format!("{at}: a part that is not text")),
                };
            }
        },
        _ => return invalid(format!("{at}.type: must be a string")),
    };
    if !is_null(item.get("uuid")) {
        return unsupported(format!("{at}.uuid"));
    }
    match item.shift_remove(key) {
        Some(Json::String(text)) => {
            item.retain(|k, _| !PART_KEYS.contains(&k.as_str()));
            Ok(Some(Part {
                text,
                media: None,
                extra: item,
            }))
        }
        None | Some(Json::Null) if key == "thinking" && format == Format::Parts => {
            unsupported(format!("{at}.thinking: missing"))
        }
        None | Some(Json::Null) => Ok(None),
        Some(other) => invalid(format!(
            "{at}.{key}: must be a string, not {}",
            json::kind(&other)
        )),
    }
}

/// A part that is no text. The engine skips one without content.
fn media_part(mut item: Object, kind: &'static str, at: &str) -> Outcome<Part> {
    let has_content = PART_KEYS.iter().any(|k| {
        !matches!(*k, "type" | "uuid" | "text" | "name" | "closed") && !is_null(item.get(*k))
    });
    if !has_content {
        return unsupported(format!("{at}: a part without content"));
    }
    item.retain(|k, _| !PART_KEYS.contains(&k.as_str()));
    Ok(Part {
        text: String::new(),
        media: Some(kind),
        extra: item,
    })
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
pub fn demote_developers(conversation: &mut Vec<Object>) {
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
                    let texts: Vec<&str> =
                        parts.iter().filter_map(|p| p["text"].as_str()).collect();
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
