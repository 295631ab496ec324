//! What can go wrong, in the terms of the Go side.

/// A failure names fields and kinds of values and never quotes a request; only
/// `Rejected` holds the words of the template, which are meant for the client.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// The body is no request of its kind; the engine refuses it too.
    Invalid(String),
    /// The ids cannot be computed exactly here.
    Unsupported(String),
    /// The chat template rejects the conversation.
    Rejected(String),
    /// A fault of the model's files or of this library.
    Internal(String),
}

pub type Outcome<T> = Result<T, Failure>;

pub fn invalid<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Failure::Invalid(why.into()))
}

pub fn unsupported<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Failure::Unsupported(why.into()))
}

impl Failure {
    /// The code that crosses the border; 0 is success.
    pub fn code(&self) -> i32 {
        match self {
            Failure::Invalid(_) => 1,
            Failure::Unsupported(_) => 2,
            Failure::Rejected(_) => 3,
            Failure::Internal(_) => 4,
        }
    }

    pub fn message(self) -> String {
        match self {
            Failure::Invalid(m)
            | Failure::Unsupported(m)
            | Failure::Rejected(m)
            | Failure::Internal(m) => m,
        }
    }
}
