"""curl."""
import json
import pathlib
import subprocess
import tempfile
import time

from harness import PROMPT, Suite, check, same

s = Suite("curl", subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout.split("\n")[0][:40])
CHAT = {"model": "chat", "max_tokens": 12, "messages": [{"role": "user", "content": PROMPT}]}


def curl(path, body=None, *flags, case="main", code=0):
    """Runs curl; returns status, headers by lower-case name, and body."""
    with tempfile.TemporaryDirectory() as d:
        head = pathlib.Path(d, "head")
        args = ["curl", "-sS", "--max-time", "60", "-D", head, "-H", "Authorization: Bearer " + s.key(case), *flags]
        if body is not None:
            data = pathlib.Path(d, "body")
            data.write_text(body if isinstance(body, str) else json.dumps(body))
            args += ["-H", "Content-Type: application/json", "--data-binary", f"@{data}"]
        got = subprocess.run([*args, s.base + path], capture_output=True, text=True)
        same(got.returncode, code, f"curl's exit code ({got.stderr.strip()})")
        lines = head.read_text().replace("\r", "").strip().split("\n") if head.exists() else [""]
        last = max((i for i, line in enumerate(lines) if line.startswith("HTTP/")), default=0)
        status = int(lines[last].split()[1]) if lines[last] else 0
        return status, {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[last + 1:] if ": " in line)}, got.stdout


@s.case("chat")
def _():
    status, head, body = curl("/v1/chat/completions", CHAT)
    same((status, head["content-type"]), (200, "application/json"), "status and type")
    check(json.loads(body)["choices"][0]["message"]["content"], "no text")


@s.case("chat, streaming: events, and [DONE] last")
def _():
    status, head, body = curl("/v1/chat/completions", {**CHAT, "stream": True}, "-N")
    check(status == 200 and head["content-type"].startswith("text/event-stream"), (status, head))
    check(body.endswith("data: [DONE]\n\n") and '"usage"' not in body, body[-300:])


@s.case("HTTP/1.0: no chunks, and the end of the connection ends the stream")
def _():
    status, head, body = curl("/v1/chat/completions", {**CHAT, "stream": True}, "-N", "--http1.0")
    check(status == 200 and "transfer-encoding" not in head and body.endswith("data: [DONE]\n\n"), (status, head, body[-100:]))


@s.case("chunked, and Expect: 100-continue")
def _():
    same(curl("/v1/chat/completions", CHAT, "-H", "Transfer-Encoding: chunked")[0], 200, "chunked")
    same(curl("/v1/chat/completions", CHAT, "-H", "Expect: 100-continue")[0], 200, "Expect")
    same(curl("/v1/chat/completions", CHAT, "-H", "Expect: 100-continue", "-H", "x-api-key: slk_other")[0], 401, "Expect without a credential")


@s.case("messages, and count_tokens")
def _():
    key = ("-H", "x-api-key: " + s.key("main"), "-H", "anthropic-version: 2023-06-01")
    status, head, body = curl("/v1/messages", CHAT, *key)
    check(status == 200 and head["request-id"] == head["x-request-id"] and json.loads(body)["type"] == "message", (status, head, body))
    status, _, body = curl("/v1/messages?beta=true", {**CHAT, "stream": True}, "-N", *key)
    check(status == 200 and "event: message_stop" in body and "[DONE]" not in body, body[-300:])
    status, _, body = curl("/v1/messages/count_tokens", {k: v for k, v in CHAT.items() if k != "max_tokens"}, *key)
    check(status == 200 and json.loads(body)["input_tokens"] > 0, body)


@s.case("tokenize and detokenize")
def _():
    status, _, body = curl("/tokenize", {"model": "chat", "prompt": PROMPT})
    same(status, 200, "status")
    status, _, text = curl("/detokenize", {"model": "chat", "tokens": json.loads(body)["tokens"]})
    check(status == 200 and PROMPT in json.loads(text)["prompt"], text)


@s.case("errors: status, code and headers")
def _():
    for path, body, flags, case, status, code in (
        ("/v1/chat/completions", "{", (), "main", 400, "invalid_json"),
        ("/v1/chat/completions", {**CHAT, "stream": "yes"}, (), "main", 400, "invalid_request"),
        ("/v1/chat/completions", '{"model":"chat","model":"down","messages":[]}', (), "main", 400, "duplicate_key"),
        ("/v1/chat/completions", CHAT, ("-H", "api-key: slk_other"), "main", 401, "invalid_api_key"),
        ("/v1/chat/completions", CHAT, (), "off", 403, "tenant_disabled"),
        ("/v1/chat/completions", CHAT, (), "denied", 403, "policy_denied"),
        ("/v1/chat/completions", {**CHAT, "model": "nope"}, (), "main", 404, "model_not_found"),
        ("/v1/chat/completions/", CHAT, (), "main", 404, "unknown_url"),
        ("/reset_prefix_cache", None, ("-X", "POST"), "main", 404, "unknown_url"),
        ("/v1/chat/completions", None, (), "main", 405, "method_not_allowed"),
        ("/v1/chat/completions", "x" * 300_000, (), "main", 413, "request_too_large"),
        ("/v1/chat/completions", CHAT, ("-H", "Content-Encoding: br"), "main", 415, "unsupported_media_type"),
        ("/v1/chat/completions", {**CHAT, "model": "down"}, (), "main", 503, "unavailable"),
    ):
        got, head, text = curl(path, body, *flags, case=case)
        same((got, json.loads(text)["error"]["code"]), (status, code), f"{path} for {case}")
        check(head["x-request-id"] and ("retry-after" in head) == (status == 503), head)


@s.case("429: --retry waits for what Retry-After says")
def _():
    same(curl("/v1/chat/completions", CHAT, case="rate")[0], 200, "first")
    status, head, _ = curl("/v1/chat/completions", CHAT, case="rate")
    check(status == 429 and int(head["retry-after"]) >= 1 and head["x-ratelimit-limit-requests"] == "1", (status, head))
    s.statuses("rate", [200, 429])
    same(curl("/v1/chat/completions", CHAT, "--retry", "3", case="rate")[0], 200, "with --retry")
    s.waited("rate", [200, 429, 429, 200])


@s.case("429: a used-up quota says x-should-retry: false")
def _():
    same(curl("/v1/chat/completions", CHAT, case="quota")[0], 200, "first")
    status, head, text = curl("/v1/chat/completions", CHAT, case="quota")
    same((status, head["x-should-retry"], json.loads(text)["error"]["code"]), (429, "false", "insufficient_quota"), "second")


@s.case("a worker that dies in a stream: an error event, no [DONE]", simulated=True)
def _():
    with s.fault(drop_after_events=4):
        status, _, body = curl("/v1/chat/completions", {**CHAT, "model": s.faulty, "stream": True, "max_tokens": 40}, "-N")
    events = [e for e in body.split("\n\n") if e]
    same((status, json.loads(events[-1].removeprefix("data: "))["error"]["code"]), (200, "upstream_error"), "end")
    check("[DONE]" not in body and len(events) > 2, body[-300:])


@s.case("--max-time frees the worker, and is in the ledger as 499", simulated=True)
def _():
    since = time.time_ns()
    with s.fault(stall="forever"):
        curl("/v1/chat/completions", {**CHAT, "model": s.faulty}, "--max-time", "2", code=28)
        s.freed(since)


s.end()
