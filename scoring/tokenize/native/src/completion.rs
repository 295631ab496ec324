//! The prompts of a completions body.

use serde_json::{Map, Value as Json};

use crate::chat::{flag, is_null, refuse_shared_fields};
use crate::failure::{invalid, Outcome};
use crate::json;

/// One prompt as the client sent it.
#[derive(Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// The prompts, and whether the tokenizer is to add its own special tokens.
pub fn prompts(mut body: Map<String, Json>) -> Outcome<(Vec<Prompt>, bool)> {
    refuse_shared_fields(&body)?;
    let add_special = flag(&body, "add_special_tokens", true)?;
    if is_null(body.get("prompt")) {
        return invalid("prompt: missing; send a text, a list of texts or token ids");
    }
    let list = match body.shift_remove("prompt").unwrap_or_default() {
        Json::String(s) if s.is_empty() => return invalid("prompt: an empty text"),
        Json::String(s) => return Ok((vec![Prompt::Text(s)], add_special)),
        Json::Array(list) => list,
        other => {
            return invalid(format!(
                "prompt: must be a text, a list of texts or token ids, not {}",
                json::kind(&other)
            ))
        }
    };
    let prompts = match list.first() {
        None => return invalid("prompt: an empty list has no prompt"),
        Some(Json::Number(_)) => vec![Prompt::Ids(ids(list, "prompt")?)],
        Some(_) => {
            let mut prompts = Vec::with_capacity(list.len());
            for (i, item) in list.into_iter().enumerate() {
                prompts.push(list_item(item, &format!("prompt[{i}]"), prompts.first())?);
            }
            prompts
        }
    };
    Ok((prompts, add_special))
}

/// An item of a list of prompts, which must be of the kind of the first one.
fn list_item(item: Json, at: &str, first: Option<&Prompt>) -> Outcome<Prompt> {
    match (item, first) {
        (Json::String(s), None | Some(Prompt::Text(_))) => Ok(Prompt::Text(s)),
        (Json::Array(list), None | Some(Prompt::Ids(_))) => Ok(Prompt::Ids(ids(list, at)?)),
        (other, None) => invalid(format!(
            "{at}: must be a text, a token id or a list of token ids, not {}",
            json::kind(&other)
        )),
        (other, Some(_)) => invalid(format!(
            "{at}: must be of the same kind as prompt[0], not {}",
            json::kind(&other)
        )),
    }
}

fn ids(list: Vec<Json>, at: &str) -> Outcome<Vec<u32>> {
    if list.is_empty() {
        return invalid(format!("{at}: an empty list of token ids"));
    }
    let mut out = Vec::with_capacity(list.len());
    for (i, v) in list.iter().enumerate() {
        match v.as_u64().and_then(|id| u32::try_from(id).ok()) {
            Some(id) => out.push(id),
            None => {
                return invalid(format!(
                    "{at}[{i}]: must be a token id, an integer from 0 to 4294967295"
                ))
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    fn read(body: &str) -> Outcome<(Vec<Prompt>, bool)> {
        match json::parse(body.as_bytes())? {
            Json::Object(body) => prompts(body),
            _ => panic!("not an object"),
        }
    }

    #[test]
    fn four_forms() {
        let text = |s: &str| Prompt::Text(s.into());
        for (body, want) in [
            (r#"{"prompt":"a"}"#, (vec![text("a")], true)),
            (
                r#"{"prompt":["a",""],"add_special_tokens":false}"#,
                (vec![text("a"), text("")], false),
            ),
            (
                r#"{"prompt":[1,2,4294967295]}"#,
                (vec![Prompt::Ids(vec![1, 2, u32::MAX])], true),
            ),
            (
                r#"{"prompt":[[1],[2,3]]}"#,
                (vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])], true),
            ),
        ] {
            assert_eq!(read(body), Ok(want));
        }
        for body in [
            r#"{}"#,
            r#"{"prompt":null}"#,
            r#"{"prompt":""}"#,
            r#"{"prompt":[]}"#,
            r#"{"prompt":3}"#,
            r#"{"prompt":["a",1]}"#,
            r#"{"prompt":[[1],"a"]}"#,
            r#"{"prompt":[1,"a"]}"#,
            r#"{"prompt":[[]]}"#,
            r#"{"prompt":[-1]}"#,
            r#"{"prompt":[4294967296]}"#,
            r#"{"prompt":[1.0]}"#,
            r#"{"prompt":[true]}"#,
            r#"{"prompt":[{"a":1}]}"#,
            r#"{"prompt":"a","add_special_tokens":null}"#,
        ] {
            assert!(matches!(read(body), Err(Failure::Invalid(_))), "{body}");
        }
        for body in [
            r#"{"prompt":"a","prompt_embeds":"x"}"#,
            r#"{"prompt":"a","truncate_prompt_tokens":5}"#,
        ] {
            assert!(matches!(read(body), Err(Failure::Unsupported(_))), "{body}");
        }
    }
}
