//! From a body to what there is to encode.

use serde_json::Value as Json;

use crate::chat::Chat;
use crate::completion::{self, Prompt};
use crate::failure::{invalid, unsupported, Failure, Outcome};
use crate::json;
use crate::model::{Model, Piece};

/// One prompt: a range of pieces, or a range of ids that came with the request.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Span {
    pub start: usize,
    pub end: usize,
    /// What the range is of: one of the constants below.
    pub kind: u32,
}

/// Pieces; ids; and the pieces that a prompt begins with, of which the rest is not
/// known.
pub const PIECES: u32 = 0;
pub const IDS: u32 = 1;
pub const BEGINNING: u32 = 2;

/// What a body asks to encode.
#[derive(Default, Debug)]
pub struct Plan {
    /// The texts of all prompts, one after another.
    pub text: String,
    pub pieces: Vec<Piece>,
    pub prompts: Vec<Span>,
    pub ids: Vec<u32>,
    /// Whether the tokenizer's own special tokens belong around each text.
    pub add_special: bool,
    /// Whether the pieces can be encoded on their own. If not, a prompt is one
    /// piece and its special tokens come from encoding it.
    pub cut: bool,
}

/// The kinds of body, as numbered in sluice.h.
const CHAT: u32 = 1;
const COMPLETION: u32 = 2;

impl Plan {
    pub fn make(model: &Model, chat: &Chat, kind: u32, body: &[u8]) -> Outcome<Plan> {
        let body = match json::parse(body)? {
            Json::Object(body) => body,
            other => return invalid(format!("must be a JSON object, not {}", json::kind(&other))),
        };
        let mut plan = Plan {
            cut: true,
            ..Plan::default()
        };
        match kind {
            CHAT => {
                let rendered = chat.render(body)?;
                plan.add_special = rendered.add_special;
                match rendered.known {
                    None => plan.push_text(model, rendered.text),
                    Some(known) => plan.push_beginning(model, rendered.text, known)?,
                }
            }
            COMPLETION => {
                let (prompts, add_special) = completion::prompts(body)?;
                plan.add_special = add_special;
                for p in prompts {
                    match p {
                        Prompt::Text(text) => plan.push_text(model, text),
                        Prompt::Ids(ids) => plan.push_ids(&ids),
                    }
                }
            }
            _ => return Err(Failure::Internal("unknown kind of body".into())),
        }
        Ok(plan)
    }

    fn push_text(&mut self, model: &Model, text: String) {
        let (start, base) = (self.pieces.len(), self.text.len());
        if !model.cut(&text, base, &mut self.pieces) {
            self.cut = false;
            self.pieces.push(Piece {
                start: base,
                len: text.len(),
                id: 0,
                special: 0,
            });
        }
        self.prompts.push(Span {
            start,
            end: self.pieces.len(),
            kind: PIECES,
        });
        if self.text.is_empty() {
            self.text = text;
        } else {
            self.text.push_str(&text);
        }
    }

    fn push_ids(&mut self, ids: &[u32]) {
        let start = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.prompts.push(Span {
            start,
            end: self.ids.len(),
            kind: IDS,
        });
    }

    /// Takes the pieces of a text of which only the first bytes are known, up to
    /// the last special token there. What comes after that may be encoded together
    /// with what is not known: gemma3, for one, puts newlines before a picture.
    fn push_beginning(&mut self, model: &Model, text: String, known: usize) -> Outcome<()> {
        self.push_text(model, text);
        if !self.cut {
            return unsupported("messages: parts that are not text, in a text that cannot be cut");
        }
        let count = self
            .pieces
            .iter()
            .rposition(|p| p.special != 0 && p.start + p.len <= known)
            .map_or(0, |i| i + 1);
        self.pieces.truncate(count);
        if let Some(span) = self.prompts.last_mut() {
            span.end = count;
            span.kind = BEGINNING;
        }
        Ok(())
    }
}
