//! The native half of scoring/tokenize: chat templates and tokenizers behind a
//! small C interface (sluice.h). Texts cross the border as pointer and length,
//! so that a NUL byte is a byte like any other. No panic crosses it.

mod border;
mod chat;
mod clock;
mod completion;
mod content;
mod failure;
mod json;
mod messages;
mod model;
mod plan;
mod python;
mod settings;
mod template;
mod tools;
