//! A model's tokenizer: cutting a text where that changes nothing, encoding the
//! pieces, and decoding.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};
use daulet::UnifiedTokenizer;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{
    AddedToken, Encoding, PostProcessor, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
};

use crate::failure::{Failure, Outcome};

/// A piece of a text: `len` bytes from `start`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Piece {
    pub start: usize,
    pub len: usize,
    /// The id of a special token; meaningless for other pieces.
    pub id: u32,
    /// 1 for a special token, 0 for text to encode.
    pub special: u32,
}

/// The tokenizer of one model.
pub struct Model {
    tokenizer: UnifiedTokenizer,
    /// None when pieces of a text cannot be encoded on their own.
    cutter: Option<Cutter>,
    /// Why there is no cutter, for an operator.
    pub whole_because: &'static str,
    /// What the tokenizer puts before and after a text when special tokens are
    /// asked for. Only known together with the cutter.
    pub before: Vec<u32>,
    pub after: Vec<u32>,
}

impl Model {
    /// Reads tokenizer.json. `added` are tokens that the model's settings add to
    /// it; `split_special` makes special tokens in a text ordinary text.
    pub fn load(text: &[u8], added: &[AddedToken], split_special: bool) -> Outcome<Model> {
        let mut t = Tokenizer::from_bytes(text)
            .map_err(|e| Failure::Internal(format!("tokenizer.json: {e}")))?;
        // The engine switches both off whatever the file says.
        t.with_padding(None);
        t.with_truncation(None)
            .map_err(|e| Failure::Internal(format!("tokenizer.json: {e}")))?;
        t.set_encode_special_tokens(split_special);
        let known: HashSet<(String, bool)> = t
            .get_added_tokens_decoder()
            .into_values()
            .map(|a| (a.content, a.special))
            .collect();
        let new: Vec<AddedToken> = added
            .iter()
            .filter(|a| !known.contains(&(a.content.clone(), a.special)))
            .cloned()
            .collect();
        if !new.is_empty() {
            t.add_tokens(&new);
        }

        let frame = frame(&t);
        let (cutter, whole_because) = match Cutter::new(&t) {
            _ if frame.is_none() => (None, "its post-processor changes more than the ends"),
            Ok(cutter) => (Some(cutter), ""),
            Err(why) => (None, why),
        };
        let (before, after) = frame.unwrap_or_default();
        let tokenizer = UnifiedTokenizer::HuggingFace(t);
        Ok(Model {
            tokenizer,
            cutter,
            whole_because,
            before,
            after,
        })
    }

    /// Cuts `text` into pieces whose ids, one after another, are the ids of the
    /// whole. Without a cutter it returns false and pushes nothing.
    pub fn cut(&self, text: &str, start: usize, pieces: &mut Vec<Piece>) -> bool {
        let Some(cutter) = &self.cutter else {
            return false;
        };
        cutter.cut(text, start, pieces);
        true
    }

    /// The ids of `text`. `add_special` asks for what the tokenizer adds itself.
    pub fn encode(&self, text: &str, add_special: bool) -> Outcome<Vec<u32>> {
        let failed = || Failure::Internal("the tokenizer cannot encode this text".into());
        match &self.tokenizer {
            UnifiedTokenizer::HuggingFace(t) => {
                let encoding = t.encode_fast(text, add_special).map_err(|_| failed())?;
                Ok(encoding.get_ids().to_vec())
            }
            other => other.encode(text, add_special).map_err(|_| failed()),
        }
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Outcome<String> {
        let decoded = match &self.tokenizer {
            UnifiedTokenizer::HuggingFace(t) => t.decode(ids, skip_special).ok(),
            other => other.decode(ids, skip_special).ok(),
        };
        decoded.ok_or_else(|| Failure::Internal("the tokenizer cannot decode these ids".into()))
    }
}

/// Finds special tokens in a text.
///
/// The library first splits a text at the added tokens that are not normalised,
/// leftmost and longest first, and handles every remaining piece on its own:
/// normalise, split at normalised added tokens, pre-tokenise, encode. So a text
/// may be cut at any of those matches. The cuts are made at special tokens only;
/// other added tokens, such as a model's runs of newlines, would make crumbs.
/// They stay inside the pieces and are found there again, because the search
/// starts anew after every match and no match spans a cut.
struct Cutter {
    matcher: AhoCorasick,
    /// By pattern: the token's id, and whether it is special.
    tokens: Vec<(u32, bool)>,
}

impl Cutter {
    fn new(t: &Tokenizer) -> Result<Cutter, &'static str> {
        if t.get_encode_special_tokens() {
            return Err("special tokens in a text are ordinary text");
        }
        if let ModelWrapper::BPE(bpe) = t.get_model() {
            if bpe.dropout.is_some_and(|p| p > 0.0) {
                return Err("its dropout makes every encoding a new one");
            }
        }
        if !t.get_pre_tokenizer().is_none_or(looks_at_its_piece_only) {
            return Err("its pre-tokenizer treats the first piece in a way of its own");
        }
        let mut patterns = Vec::new();
        let mut tokens = Vec::new();
        for (id, token) in t.get_added_tokens_decoder() {
            if token.normalized {
                continue;
            }
            if token.lstrip || token.rstrip || token.single_word {
                return Err("an added token looks at the text around it");
            }
            tokens.push((id, token.special));
            patterns.push(token.content);
        }
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .map_err(|_| "its added tokens are too many")?;
        Ok(Cutter { matcher, tokens })
    }

    fn cut(&self, text: &str, base: usize, pieces: &mut Vec<Piece>) {
        let mut done = 0;
        for found in self.matcher.find_iter(text) {
            let (id, special) = self.tokens[found.pattern().as_usize()];
            if !special {
                continue;
            }
            if done < found.start() {
                let len = found.start() - done;
                pieces.push(Piece {
                    start: base + done,
                    len,
                    id: 0,
                    special: 0,
                });
            }
            pieces.push(Piece {
                start: base + found.start(),
                len: found.len(),
                id,
                special: 1,
            });
            done = found.end();
        }
        if done < text.len() {
            pieces.push(Piece {
                start: base + done,
                len: text.len() - done,
                id: 0,
                special: 0,
            });
        }
    }
}

/// Whether a pre-tokenizer works on a piece without asking where it stands.
fn looks_at_its_piece_only(p: &PreTokenizerWrapper) -> bool {
    match p {
        PreTokenizerWrapper::Metaspace(m) => m.prepend_scheme != PrependScheme::First,
        PreTokenizerWrapper::Sequence(s) => s.as_ref().iter().all(looks_at_its_piece_only),
        PreTokenizerWrapper::BertPreTokenizer(_)
        | PreTokenizerWrapper::ByteLevel(_)
        | PreTokenizerWrapper::Delimiter(_)
        | PreTokenizerWrapper::Digits(_)
        | PreTokenizerWrapper::FixedLength(_)
        | PreTokenizerWrapper::Punctuation(_)
        | PreTokenizerWrapper::Split(_)
        | PreTokenizerWrapper::UnicodeScripts(_)
        | PreTokenizerWrapper::Whitespace(_)
        | PreTokenizerWrapper::WhitespaceSplit(_) => true,
    }
}

/// What the post-processor puts around a text, found with a stand-in for the
/// text. None when it does anything else to it.
fn frame(t: &Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    const STAND_IN: u32 = u32::MAX;
    let Some(processor) = t.get_post_processor() else {
        return Some(Default::default());
    };
    if !frames_only(processor) {
        return None;
    }
    let text = Encoding::new(
        vec![STAND_IN],
        vec![0],
        vec![String::new()],
        vec![None],
        vec![(0, 0)],
        vec![0],
        vec![1],
        vec![],
        Default::default(),
    );
    let framed = processor.process(text, None, true).ok()?;
    let ids = framed.get_ids();
    let (before, after) = ids.split_at(ids.iter().position(|&id| id == STAND_IN)?);
    if after[1..].contains(&STAND_IN) {
        return None;
    }
    Some((before.to_vec(), after[1..].to_vec()))
}

fn frames_only(p: &PostProcessorWrapper) -> bool {
    match p {
        PostProcessorWrapper::Sequence(s) => s.as_ref().iter().all(frames_only),
        PostProcessorWrapper::Roberta(_)
        | PostProcessorWrapper::Bert(_)
        | PostProcessorWrapper::ByteLevel(_)
        | PostProcessorWrapper::Template(_) => true,
    }
}
