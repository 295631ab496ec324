"""The openai package for Python."""
import asyncio
import json
import time

import openai

from harness import PROMPT, TOOL, Suite, check, eventually, raises, same

s = Suite("openai", f"openai {openai.__version__} (Python)")
MESSAGES = [{"role": "user", "content": PROMPT}]


def client(case="main", retries=0, **more):
    return openai.OpenAI(api_key=s.key(case), base_url=s.base + "/v1", max_retries=retries, **{"timeout": 60, **more})


def chat(c, model="chat", **more):
    return c.chat.completions.create(model=model, messages=MESSAGES, **{"max_tokens": 12, **more})


@s.case("chat")
def _():
    answer = chat(client())
    check(answer.choices[0].message.content, "the answer has no text")
    same(answer.usage.completion_tokens, 12, "completion_tokens")
    check(answer._request_id, "the answer has no request id")
    eventually("the ledger's row of the request's id", lambda: any(r["request_id"] == answer._request_id for r in s.rows()))


@s.case("chat, streaming: the text of the answer that does not stream, and no usage that was not asked for")
def _():
    whole = chat(client(), temperature=0, seed=7).choices[0]
    text, finish = "", None
    for chunk in chat(client(), temperature=0, seed=7, stream=True):
        same(chunk.usage, None, "usage")
        same(len(chunk.choices), 1, "choices of a chunk")
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    same(text, whole.message.content, "text")
    same(finish, whole.finish_reason, "finish_reason")


@s.case("chat, streaming with usage")
def _():
    chunks = list(chat(client(), stream=True, stream_options={"include_usage": True}))
    same([c.usage.completion_tokens for c in chunks if c.usage], [12], "usages")


@s.case("chat, two choices and unicode")
def _():
    answer = client().chat.completions.create(model="chat", n=2, max_tokens=4, seed=2**62 + 1,
                                              messages=[{"role": "user", "content": "Grüße 🌊 \u2028 \"quoted\" \\ back"}])
    same(len(answer.choices), 2, "choices")


@s.case("tools", simulated=True)
def _():
    call = chat(client(), tools=[TOOL], max_tokens=500).choices[0].message.tool_calls[0]
    same(call.function.name, "weather", "function")
    same(list(json.loads(call.function.arguments)), ["city"], "arguments")


@s.case("a tool by name, and streaming", simulated=True)
def _():
    named = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 500, "temperature": 0}
    call = chat(client(timeout=60), **named).choices[0].message.tool_calls[0]
    same(call.function.name, "weather", "function")
    name, arguments = "", ""
    for chunk in chat(client(timeout=60), stream=True, **named):
        for part in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    same((name, arguments), ("weather", call.function.arguments), "call of a stream")


@s.case("tools, streaming", simulated=True)
def _():
    with client().chat.completions.stream(model="chat", messages=MESSAGES, max_tokens=500, tools=[TOOL]) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
    same([e.name for e in done], ["weather"], "calls")
    same(stream.get_final_completion().choices[0].finish_reason, "tool_calls", "finish_reason")


@s.case("a tool's result goes back", simulated=True)
def _():
    c = client()
    message = chat(c, tools=[TOOL], max_tokens=500).choices[0].message
    answer = c.chat.completions.create(model="chat", max_tokens=8, tools=[TOOL], messages=[
        *MESSAGES, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}])
    check(answer.choices[0].message.content, "no text")


@s.case("JSON mode and unknown fields pass through")
def _():
    check(chat(client(), response_format={"type": "json_object"}, extra_body={"top_k": 5, "min_p": 0.1}).choices, "no choices")


@s.case("completions, and streaming")
def _():
    c = client()
    whole = c.completions.create(model="chat", prompt=PROMPT, max_tokens=6, temperature=0, seed=1)
    text = "".join(e.choices[0].text for e in c.completions.create(model="chat", prompt=PROMPT, max_tokens=6, temperature=0, seed=1, stream=True))
    same(text, whole.choices[0].text, "text")


@s.case("embeddings", simulated=True)
def _():
    answer = client().embeddings.create(model="embed", input=["one river", "two stones"])
    same([len(d.embedding) for d in answer.data], [8, 8], "lengths of the vectors")
    check(answer.usage.prompt_tokens > 0, "no usage")


@s.case("responses, and streaming")
def _():
    c = client()
    whole = c.responses.create(model="chat", input=PROMPT, max_output_tokens=8)
    check(whole.output_text, "no text")
    events = list(c.responses.create(model="chat", input=PROMPT, max_output_tokens=8, stream=True))
    check(events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete"), [e.type for e in events])
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), events[-1].response.output_text, "text")


@s.case("a response of before is not kept")
def _():
    c = client()
    with raises(openai.BadRequestError, code="response_store_unavailable", param="previous_response_id"):
        c.responses.create(model="chat", input=PROMPT, previous_response_id="resp_1")
    with raises(openai.NotFoundError, code="response_store_unavailable"):
        c.responses.retrieve("resp_1")


@s.case("models")
def _():
    c = client()
    ids = [m.id for m in c.models.list()]
    check("chat" in ids and ids == sorted(ids), ids)
    same(c.models.retrieve("chat").owned_by, "sluice", "owned_by")
    with raises(openai.NotFoundError, code="model_not_found"):
        c.models.retrieve("nope")


@s.case("async: ten streams at once")
def _():
    async def one(c):
        stream = await c.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=8, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(api_key=s.key("main"), base_url=s.base + "/v1", max_retries=0) as c:
            return await asyncio.gather(*(one(c) for _ in range(10)))
    check(all(asyncio.run(all_of_them())), "an empty text")


@s.case("400: a field of the wrong type")
def _():
    with raises(openai.BadRequestError, status_code=400, param="max_tokens", type="invalid_request_error"):
        chat(client(), max_tokens="many")


@s.case("400: longer than the context")
def _():
    with raises(openai.BadRequestError, code="context_length_exceeded"):
        client().chat.completions.create(model="chat", max_tokens=4, messages=[{"role": "user", "content": "river " * 20000}])


@s.case("401")
def _():
    for key in ("slk_nobody", "Basic x"):
        with raises(openai.AuthenticationError, code="invalid_api_key"):
            chat(client().with_options(api_key=key))


@s.case("403: by a policy; a disabled tenant")
def _():
    with raises(openai.PermissionDeniedError, code="policy_denied", type="permission_error"):
        chat(client("denied"))
    with raises(openai.PermissionDeniedError, code="tenant_disabled"):
        chat(client("off"))


@s.case("404")
def _():
    with raises(openai.NotFoundError, code="model_not_found", param="model"):
        chat(client(), model="nope")


@s.case("413")
def _():
    with raises(openai.APIStatusError, status_code=413, code="request_too_large"):
        client().chat.completions.create(model="chat", messages=[{"role": "user", "content": "x" * 300_000}])


@s.case("429: not retried; then once, when Retry-After says")
def _():
    chat(client("rate"))
    with raises(openai.RateLimitError, code="rate_limit_exceeded", type="requests"):
        chat(client("rate"))
    s.statuses("rate", [200, 429])
    chat(client("rate", retries=3))
    s.waited("rate", [200, 429, 429, 200])


@s.case("429: a used-up quota is not tried again")
def _():
    chat(client("quota"))
    with raises(openai.RateLimitError, code="insufficient_quota"):
        chat(client("quota", retries=5))
    s.statuses("quota", [200, 429])


@s.case("503: no worker, with a Retry-After that is waited for")
def _():
    with raises(openai.InternalServerError, status_code=503, code="unavailable"):
        chat(client(), model="down")
    since = time.time_ns()
    with raises(openai.InternalServerError, status_code=503):
        chat(client(retries=1), model="down")
    s.waited("main", [503, 503], since, 4.9)


@s.case("503: every worker is saturated", simulated=True)
def _():
    with s.fault(status=503), raises(openai.InternalServerError, status_code=503, code="overloaded"):
        chat(client(), model=s.faulty)


@s.case("502: a worker's own failure", simulated=True)
def _():
    with s.fault(status=500), raises(openai.InternalServerError, status_code=502, code="upstream_error"):
        chat(client(), model=s.faulty)


@s.case("504: a worker that sends nothing", simulated=True)
def _():
    with s.fault(hang_headers=True), raises(openai.InternalServerError, status_code=504, code="upstream_timeout"):
        chat(client(), model=s.faulty)


@s.case("a worker that dies in a stream raises, after what came before", simulated=True)
def _():
    with s.fault(drop_after_events=4):
        got = []
        with raises(openai.APIError, code="upstream_error"):
            for chunk in chat(client(), model=s.faulty, stream=True):
                got.append(chunk)
    check(len(got) >= 2, f"{len(got)} chunks came before")


@s.case("a stream that ends without its mark raises", simulated=True)
def _():
    with s.fault(no_done=True), raises(openai.APIError, code="upstream_error"):
        list(chat(client(), model=s.faulty, stream=True))


@s.case("a worker that dies in a stream of responses raises", simulated=True)
def _():
    with s.fault(drop_after_events=5), raises(openai.APIError, code="upstream_error"):
        list(client().responses.create(model=s.faulty, input=PROMPT, max_output_tokens=20, stream=True))


@s.case("a time-out frees the worker, and is in the ledger as 499", simulated=True)
def _():
    for stream in (False, True):
        since = time.time_ns()
        with s.fault(stall="forever"):
            with raises(openai.APITimeoutError):
                chat(client(timeout=2), model=s.faulty, stream=stream)
            s.freed(since)


@s.case("a stream that is left frees the worker", simulated=True)
def _():
    since = time.time_ns()
    with s.fault(slow_factor=50):
        with chat(client(), model=s.faulty, stream=True, max_tokens=2000) as stream:
            next(iter(stream))
        s.freed(since, "stream")


s.end()
