//! What the Go side tells about a model besides its tokenizer.json.

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tokenizers::AddedToken;

use crate::chat::Chat;
use crate::clock::Clock;
use crate::content::Format;
use crate::failure::{Failure, Outcome};
use crate::template::Template;

/// The document that native.go writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The chat template, and the one for requests with tools.
    chat_template: Option<String>,
    tool_template: Option<String>,
    /// "auto", "string" or "openai".
    content_format: String,
    /// Special tokens by name, as templates use them.
    variables: Map<String, Json>,
    /// Template variables that the workers set by default.
    kwargs: Map<String, Json>,
    /// Tokens that the model's settings add to its tokenizer.
    pub added_tokens: Vec<AddedToken>,
    pub split_special_tokens: bool,
}

impl Settings {
    pub fn parse(text: &[u8]) -> Outcome<Settings> {
        serde_json::from_slice(text).map_err(|e| Failure::Internal(format!("settings: {e}")))
    }

    /// Compiles the templates.
    pub fn chat(self, clock: &Clock) -> Outcome<Chat> {
        let compile = |source: Option<String>| {
            source
                .map(|s| Template::compile(&s, clock.clone()))
                .transpose()
        };
        let format = match self.content_format.as_str() {
            "auto" => None,
            "string" => Some(Format::Text),
            "openai" => Some(Format::Parts),
            _ => return Err(Failure::Internal("settings: unknown content format".into())),
        };
        Ok(Chat {
            default: compile(self.chat_template)?,
            tool_use: compile(self.tool_template)?,
            format,
            variables: self.variables,
            kwargs: self.kwargs,
        })
    }
}
