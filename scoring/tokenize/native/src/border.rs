//! The C functions of sluice.h. Only this file is unsafe.

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::chat::Chat;
use crate::clock::Clock;
use crate::failure::{Failure, Outcome};
use crate::model::{Model, Piece};
use crate::plan::{Plan, Span};
use crate::settings::Settings;

/// `sluice_model`.
pub struct Handle {
    model: Model,
    chat: Chat,
    clock: Clock,
}

/// `sluice_text`, a boxed slice that the caller gives back.
#[repr(C)]
pub struct Text {
    ptr: *mut u8,
    len: usize,
}

/// `sluice_ids`, the same for ids.
#[repr(C)]
pub struct Ids {
    ptr: *mut u32,
    len: usize,
}

/// `sluice_plan`: views into the plan that follows them in memory.
#[repr(C)]
pub struct PlanView {
    text: *const u8,
    text_len: usize,
    pieces: *const Piece,
    pieces_len: usize,
    prompts: *const Span,
    prompts_len: usize,
    ids: *const u32,
    ids_len: usize,
    add_special: u32,
    cut: u32,
    plan: Plan,
}

/// `sluice_info`.
#[repr(C)]
pub struct Info {
    before: *const u32,
    before_len: usize,
    after: *const u32,
    after_len: usize,
    whole_because: *const u8,
    whole_because_len: usize,
}

impl Text {
    fn new(s: String) -> Text {
        let (ptr, len) = leak(s.into_bytes());
        Text { ptr, len }
    }
}

fn leak<T>(v: Vec<T>) -> (*mut T, usize) {
    let slice = Box::leak(v.into_boxed_slice());
    (view(slice).cast_mut(), slice.len())
}

/// The address of a slice; null for an empty one. Rust gives those a small
/// number instead, and Go's collector stops the process when it meets a pointer
/// that is none.
fn view<T>(s: &[T]) -> *const T {
    if s.is_empty() {
        return std::ptr::null();
    }
    s.as_ptr()
}

/// # Safety
/// `ptr` and `len` come from `leak`, and are not used again.
unsafe fn unleak<T>(ptr: *mut T, len: usize) {
    if !ptr.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ptr, len)));
    }
}

/// # Safety
/// `ptr` points to `len` values that stay for `'a`; with `len` 0 it may be null.
unsafe fn slice<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    std::slice::from_raw_parts(ptr, len)
}

thread_local! {
    /// Where the last panic of this thread began.
    static PANICKED_AT: Cell<Option<(&'static str, u32)>> = const { Cell::new(None) };
}

/// Panics are reported by place only: their text may quote a prompt, and the
/// default hook would print it.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let at = info.location().map(|l| (leaf(l.file()), l.line()));
            PANICKED_AT.set(at);
        }));
    });
}

/// The name of a source file without its folder, from a fixed set so that the
/// hook allocates nothing that stays.
fn leaf(path: &str) -> &'static str {
    const OURS: [&str; 12] = [
        "border.rs",
        "chat.rs",
        "clock.rs",
        "completion.rs",
        "content.rs",
        "json.rs",
        "messages.rs",
        "model.rs",
        "plan.rs",
        "python.rs",
        "template.rs",
        "tools.rs",
    ];
    let ours = path.starts_with("src/") || path.contains("native/src/");
    OURS.iter()
        .find(|name| ours && path.ends_with(*name))
        .copied()
        .unwrap_or("a dependency")
}

/// Runs `f` and turns its failure, or its panic, into a code and a message.
///
/// # Safety
/// `message` can be written to.
unsafe fn guard(message: *mut Text, f: impl FnOnce() -> Outcome<()>) -> i32 {
    silence_panics();
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        // A payload may panic when it is dropped; there is nothing to gain from it.
        std::mem::forget(payload);
        let at = match PANICKED_AT.take() {
            Some((file, line)) => format!("{file}:{line}"),
            None => "an unknown place".into(),
        };
        Err(Failure::Internal(format!(
            "BUG: the native library panicked in {at}"
        )))
    });
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            let code = failure.code();
            *message = Text::new(failure.message());
            code
        }
    }
}

fn text(bytes: &[u8]) -> Outcome<&str> {
    std::str::from_utf8(bytes).map_err(|_| Failure::Invalid("text is not UTF-8".into()))
}

/// The version of sluice.h. The Go side refers to the name, so that an archive
/// that is older than the header does not link.
#[no_mangle]
pub extern "C" fn sluice_abi_1() {}

/// # Safety
/// As in sluice.h; the same holds for all functions below.
#[no_mangle]
pub unsafe extern "C" fn sluice_load(
    tokenizer: *const u8,
    tokenizer_len: usize,
    settings: *const u8,
    settings_len: usize,
    out: *mut *mut Handle,
    message: *mut Text,
) -> i32 {
    guard(message, || {
        let settings = Settings::parse(slice(settings, settings_len))?;
        let tokenizer = slice(tokenizer, tokenizer_len);
        let model = Model::load(
            tokenizer,
            &settings.added_tokens,
            settings.split_special_tokens,
        )?;
        let clock = Clock::default();
        let chat = settings.chat(&clock)?;
        *out = Box::into_raw(Box::new(Handle { model, chat, clock }));
        Ok(())
    })
}

/// # Safety
/// The model is not used again.
#[no_mangle]
pub unsafe extern "C" fn sluice_free(model: *mut Handle) {
    if !model.is_null() {
        let model = Box::from_raw(model);
        let _ = catch_unwind(AssertUnwindSafe(move || drop(model)));
        // A model is a great many small allocations. The C library would keep
        // their pages for the next ones.
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        libc::malloc_trim(0);
    }
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn sluice_model_info(model: *const Handle) -> Info {
    let m = &(*model).model;
    Info {
        before: view(&m.before),
        before_len: m.before.len(),
        after: view(&m.after),
        after_len: m.after.len(),
        whole_because: view(m.whole_because.as_bytes()),
        whole_because_len: m.whole_because.len(),
    }
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn sluice_plan_make(
    model: *const Handle,
    kind: u32,
    body: *const u8,
    body_len: usize,
    unix_time: i64,
    utc_offset: i32,
    out: *mut *mut PlanView,
    message: *mut Text,
) -> i32 {
    guard(message, || {
        let h = &*model;
        h.clock.set(unix_time, utc_offset);
        let plan = Plan::make(&h.model, &h.chat, kind, slice(body, body_len))?;
        *out = Box::into_raw(Box::new(PlanView {
            text: view(plan.text.as_bytes()),
            text_len: plan.text.len(),
            pieces: view(&plan.pieces),
            pieces_len: plan.pieces.len(),
            prompts: view(&plan.prompts),
            prompts_len: plan.prompts.len(),
            ids: view(&plan.ids),
            ids_len: plan.ids.len(),
            add_special: plan.add_special.into(),
            cut: plan.cut.into(),
            plan,
        }));
        Ok(())
    })
}

/// # Safety
/// The plan is not used again.
#[no_mangle]
pub unsafe extern "C" fn sluice_plan_free(plan: *mut PlanView) {
    if !plan.is_null() {
        drop(Box::from_raw(plan));
    }
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn sluice_encode(
    model: *const Handle,
    bytes: *const u8,
    len: usize,
    add_special: u32,
    out: *mut Ids,
    message: *mut Text,
) -> i32 {
    guard(message, || {
        let ids = (*model)
            .model
            .encode(text(slice(bytes, len))?, add_special != 0)?;
        let (ptr, len) = leak(ids);
        *out = Ids { ptr, len };
        Ok(())
    })
}

/// # Safety
/// The ids are not used again.
#[no_mangle]
pub unsafe extern "C" fn sluice_ids_free(ids: Ids) {
    unleak(ids.ptr, ids.len);
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn sluice_decode(
    model: *const Handle,
    ids: *const u32,
    len: usize,
    skip_special: u32,
    out: *mut Text,
    message: *mut Text,
) -> i32 {
    guard(message, || {
        *out = Text::new((*model).model.decode(slice(ids, len), skip_special != 0)?);
        Ok(())
    })
}

/// # Safety
/// The text is not used again.
#[no_mangle]
pub unsafe extern "C" fn sluice_text_free(text: Text) {
    unleak(text.ptr, text.len);
}

/// # Safety
/// As above.
#[no_mangle]
pub unsafe extern "C" fn sluice_panic(message: *mut Text) -> i32 {
    guard(message, || panic!("this text stays inside"))
}
