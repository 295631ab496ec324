"""The anthropic package for Python."""
import asyncio
import time

import anthropic
from anthropic.types import ToolUseBlock

from harness import PROMPT, Suite, check, raises, same

s = Suite("anthropic", f"anthropic {anthropic.__version__} (Python)")
MESSAGES = [{"role": "user", "content": PROMPT}]
TOOL = {"name": "weather", "description": "The weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
# The second one is of workers without the Messages API: the gateway translates.
MODELS = ("chat", "old") if s.simulated else ("chat",)


def client(case="main", retries=0, **more):
    return anthropic.Anthropic(api_key=s.key(case), base_url=s.base, max_retries=retries, **{"timeout": 60, **more})


def create(c, model="chat", **more):
    return c.messages.create(model=model, **{"messages": MESSAGES, "max_tokens": 12, **more})


for model in MODELS:
    @s.case(f"{model}: message")
    def _():
        answer = create(client(), model, system="Be brief.")
        check(answer.content[0].text and answer.usage.output_tokens == 12, answer)
        same(answer.stop_reason, "max_tokens", "stop_reason")
        check(answer._request_id, "no request-id")

    @s.case(f"{model}: message, streaming: the text of the answer that does not stream")
    def _():
        c = client()
        plain = {"extra_body": {"temperature": 0}}
        whole = create(c, model, **plain)
        with c.messages.stream(model=model, messages=MESSAGES, max_tokens=12, **plain) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        same(text, whole.content[0].text, "text")
        same((final.usage.output_tokens, final.stop_reason), (12, "max_tokens"), "usage and stop reason")

    @s.case(f"{model}: tools, and a tool's result", simulated=True)
    def _():
        c = client()
        answer = create(c, model, tools=[TOOL], max_tokens=500)
        call = next(b for b in answer.content if isinstance(b, ToolUseBlock))
        same((call.name, list(call.input), answer.stop_reason), ("weather", ["city"], "tool_use"), "call")
        after = create(c, model, tools=[TOOL], messages=[
            *MESSAGES, {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}])
        check(after.content[0].text, "no text")

    @s.case(f"{model}: tools, streaming", simulated=True)
    def _():
        with client().messages.stream(model=model, messages=MESSAGES, max_tokens=500, tools=[TOOL]) as stream:
            final = stream.get_final_message()
        calls = [b for b in final.content if b.type == "tool_use"]
        same([(b.name, list(b.input)) for b in calls], [("weather", ["city"])], "calls")

    @s.case(f"{model}: count_tokens")
    def _():
        c = client()
        counted = c.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
        same(create(c, model).usage.input_tokens, counted, "input_tokens")


@s.case("both ways count the same tokens", simulated=True)
def _():
    same(*(create(client(), m, system="Be brief.").usage.input_tokens for m in MODELS), "input_tokens")


@s.case("models")
def _():
    ids = [m.id for m in client().models.list()]
    check("chat" in ids, ids)
    same(client().models.retrieve("chat").type, "model", "type")


@s.case("async: ten streams at once")
def _():
    async def one(c):
        async with c.messages.stream(model="chat", messages=MESSAGES, max_tokens=8) as stream:
            return "".join([t async for t in stream.text_stream])

    async def all_of_them():
        async with anthropic.AsyncAnthropic(api_key=s.key("main"), base_url=s.base, max_retries=0) as c:
            return await asyncio.gather(*(one(c) for _ in range(10)))
    check(all(asyncio.run(all_of_them())), "an empty text")


@s.case("400")
def _():
    with raises(anthropic.BadRequestError, type="invalid_request_error"):
        create(client(), max_tokens="many")
    with raises(anthropic.BadRequestError, type="invalid_request_error"):
        create(client(), messages=[{"role": "user", "content": "river " * 20000}])


@s.case("401, by either header")
def _():
    with raises(anthropic.AuthenticationError, type="authentication_error"):
        create(client().with_options(api_key="slk_nobody"))
    with raises(anthropic.AuthenticationError, type="authentication_error"):
        create(anthropic.Anthropic(auth_token="slk_nobody", base_url=s.base, max_retries=0))


@s.case("403: by a policy; a disabled tenant")
def _():
    for case in ("denied", "off"):
        with raises(anthropic.PermissionDeniedError, type="permission_error"):
            create(client(case))


@s.case("404")
def _():
    with raises(anthropic.NotFoundError, type="not_found_error"):
        create(client(), "nope")


@s.case("413")
def _():
    with raises(anthropic.RequestTooLargeError, type="request_too_large"):
        create(client(), messages=[{"role": "user", "content": "x" * 300_000}])


@s.case("429: not retried; then once, when Retry-After says")
def _():
    create(client("rate"))
    with raises(anthropic.RateLimitError, type="rate_limit_error"):
        create(client("rate"))
    s.statuses("rate", [200, 429])
    create(client("rate", retries=3))
    s.waited("rate", [200, 429, 429, 200])


@s.case("429: a used-up quota is not tried again")
def _():
    create(client("quota"))
    with raises(anthropic.RateLimitError, type="rate_limit_error"):
        create(client("quota", retries=5))
    s.statuses("quota", [200, 429])


@s.case("529: every worker is saturated", simulated=True)
def _():
    with s.fault(status=503), raises(anthropic.OverloadedError, status_code=529, type="overloaded_error"):
        create(client(), s.faulty)


@s.case("503: no worker, with a Retry-After that is waited for")
def _():
    since = time.time_ns()
    with raises(anthropic.ServiceUnavailableError, status_code=503, type="api_error"):
        create(client(retries=1), "down")
    s.waited("main", [503, 503], since, 4.9)


@s.case("502: a worker's own failure", simulated=True)
def _():
    with s.fault(status=500), raises(anthropic.InternalServerError, status_code=502, type="api_error"):
        create(client(), s.faulty)


@s.case("504: a worker that sends nothing", simulated=True)
def _():
    with s.fault(hang_headers=True), raises(anthropic.DeadlineExceededError, status_code=504, type="timeout_error"):
        create(client(), s.faulty)


@s.case("a worker that dies in a stream raises, after what came before", simulated=True)
def _():
    got = []
    with s.fault(drop_after_events=5):
        with raises(anthropic.APIStatusError, type="api_error"):
            with client().messages.stream(model=s.faulty, messages=MESSAGES, max_tokens=40) as stream:
                for event in stream:
                    got.append(event)
    check(len(got) >= 2, f"{len(got)} events came before")


@s.case("a time-out frees the worker, and is in the ledger as 499", simulated=True)
def _():
    for stream in (False, True):
        since = time.time_ns()
        with s.fault(stall="forever"):
            with raises(anthropic.APITimeoutError):
                create(client(timeout=2), s.faulty, stream=stream)
            s.freed(since)


@s.case("a stream that is left frees the worker", simulated=True)
def _():
    since = time.time_ns()
    with s.fault(slow_factor=50):
        with client().messages.stream(model=s.faulty, messages=MESSAGES, max_tokens=2000) as stream:
            next(iter(stream))
        s.freed(since, "stream")


s.end()
