//! Tools and tool calls, in the form in which the engine hands them to templates.

use serde_json::{Map, Value as Json};

use crate::failure::{invalid, unsupported, Failure, Outcome};
use crate::json;

/// The tools as the engine hands them on: known fields only, in a fixed order,
/// absent ones as null.
pub fn normalise(v: Option<Json>) -> Outcome<Json> {
    let list = match v {
        None | Some(Json::Null) => return Ok(Json::Null),
        Some(Json::Array(list)) if !list.is_empty() => list,
        Some(Json::Array(_)) => return invalid("tools: an empty list; leave the field out"),
        Some(other) => {
            return invalid(format!("tools: must be a list, not {}", json::kind(&other)))
        }
    };
    let mut tools = Vec::with_capacity(list.len());
    for (i, tool) in list.into_iter().enumerate() {
        tools.push(tool_entry(tool, &format!("tools[{i}]"))?);
    }
    Ok(Json::Array(tools))
}

fn tool_entry(tool: Json, at: &str) -> Outcome<Json> {
    let Json::Object(mut tool) = tool else {
        return invalid(format!(
            "{at}: must be an object, not {}",
            json::kind(&tool)
        ));
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
    let inner = if inner.is_null() {
        deferred.clone()
    } else {
        inner
    };
    for (name, v) in [
        (
            "strict",
            function.shift_remove("strict").unwrap_or_default(),
        ),
        ("defer_loading", inner),
    ] {
        match v {
            Json::Null => {}
            Json::Bool(_) => {
                out.insert(name.into(), v);
            }
            _ => {
                return unsupported(format!(
                    "{at}.function.{name}: {} instead of a boolean",
                    json::kind(&v)
                ))
            }
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

/// A tool call with its arguments as an object. What is no object in JSON
/// becomes an empty one, so that an odd turn does not end the conversation.
pub fn call(call: Json, at: &str) -> Outcome<Json> {
    let Json::Object(mut call) = call else {
        return invalid(format!(
            "{at}: must be an object, not {}",
            json::kind(&call)
        ));
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
