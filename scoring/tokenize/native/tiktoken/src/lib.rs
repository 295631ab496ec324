//! The part of the tiktoken-rs 0.8 interface that the Go module's Rust source
//! uses, over tiktoken-rs 0.12. The two differ in the hasher of the tables and
//! in what `encode` and `decode` take and return.

use rustc_hash::FxHashMap;
use std::{collections::HashSet, error::Error};

pub type Rank = u32;

/// A byte pair encoder with a regular expression as its pre-tokenizer.
pub struct CoreBPE(upstream::CoreBPE);

impl CoreBPE {
    /// Builds an encoder from ranks, special tokens and the splitting pattern.
    pub fn new(
        encoder: FxHashMap<Vec<u8>, Rank>,
        special: FxHashMap<String, Rank>,
        pattern: &str,
    ) -> Result<Self, Box<dyn Error>> {
        let encoder: rustc_hash_2::FxHashMap<_, _> = encoder.into_iter().collect();
        let special: rustc_hash_2::FxHashMap<_, _> = special.into_iter().collect();
        Ok(Self(upstream::CoreBPE::new(encoder, special, pattern)?))
    }

    /// The ids of `text`, and the number of ids of its last piece. A text that
    /// the pattern cannot split has no ids.
    pub fn encode(&self, text: &str, allowed: &HashSet<&str>) -> (Vec<Rank>, usize) {
        self.0.encode(text, allowed).unwrap_or_default()
    }

    /// The text of `ids`; an error when they are not UTF-8 together.
    pub fn decode(&self, ids: Vec<Rank>) -> Result<String, Box<dyn Error>> {
        Ok(self.0.decode(&ids)?)
    }
}
