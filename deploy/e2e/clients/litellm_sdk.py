"""LiteLLM's client library."""
import importlib.metadata
import time

import litellm

from harness import PROMPT, TOOL, Suite, check, raises, same

s = Suite("litellm", "litellm " + importlib.metadata.version("litellm"))
litellm.suppress_debug_info = True
litellm.telemetry = False
MESSAGES = [{"role": "user", "content": PROMPT}]


def chat(case="main", model="chat", retries=0, **more):
    return litellm.completion(model="openai/" + model, api_base=s.base + "/v1", api_key=s.key(case), max_retries=retries,
                              **{"messages": MESSAGES, "timeout": 60, "max_tokens": 12, **more})


@s.case("completion")
def _():
    answer = chat()
    check(answer.choices[0].message.content, "no text")
    same(answer.usage.completion_tokens, 12, "completion_tokens")


@s.case("completion, streaming")
def _():
    whole = chat(temperature=0, seed=7)
    text = "".join(c.choices[0].delta.content or "" for c in chat(temperature=0, seed=7, stream=True))
    same(text, whole.choices[0].message.content, "text")


@s.case("tools, and streaming", simulated=True)
def _():
    call = chat(tools=[TOOL], max_tokens=500).choices[0].message.tool_calls[0]
    same(call.function.name, "weather", "function")
    chunks = list(chat(tools=[TOOL], max_tokens=500, stream=True))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    same(whole.choices[0].message.tool_calls[0].function.name, "weather", "function of a stream")


@s.case("embeddings", simulated=True)
def _():
    answer = litellm.embedding(model="openai/embed", input=["one river"], api_base=s.base + "/v1", api_key=s.key("main"))
    same(len(answer.data[0]["embedding"]), 8, "length of the vector")


@s.case("messages, as Anthropic's API")
def _():
    answer = litellm.completion(model="anthropic/chat", api_base=s.base, api_key=s.key("main"), messages=MESSAGES, max_tokens=12, timeout=60)
    check(answer.choices[0].message.content, "no text")


@s.case("400, 401, 403, 404, 413")
def _():
    with raises(litellm.BadRequestError):
        chat(max_tokens="many")
    with raises(litellm.AuthenticationError):
        litellm.completion(model="openai/chat", api_base=s.base + "/v1", api_key="slk_nobody", messages=MESSAGES, max_retries=0)
    with raises(litellm.APIError, status_code=403):  # it maps no 403 of this kind of provider
        chat("denied")
    with raises(litellm.NotFoundError):
        chat(model="nope")
    with raises(litellm.APIError, status_code=413):
        chat(messages=[{"role": "user", "content": "x" * 300_000}])


@s.case("a prompt longer than the context has an exception of its own")
def _():
    with raises(litellm.ContextWindowExceededError):
        chat(messages=[{"role": "user", "content": "river " * 20000}])


@s.case("429: not retried; then once, when Retry-After says")
def _():
    chat("rate")
    with raises(litellm.RateLimitError):
        chat("rate")
    s.statuses("rate", [200, 429])
    chat("rate", retries=3)
    s.waited("rate", [200, 429, 429, 200])


@s.case("429: a used-up quota is not tried again")
def _():
    chat("quota")
    with raises(litellm.RateLimitError):
        chat("quota", retries=5)
    s.statuses("quota", [200, 429])


@s.case("503, 502, 504", simulated=True)
def _():
    for fault, kind in (({"status": 503}, litellm.ServiceUnavailableError), ({"status": 500}, litellm.BadGatewayError), ({"hang_headers": True}, litellm.Timeout)):
        with s.fault(**fault), raises(kind):
            chat(model=s.faulty)


@s.case("a worker that dies in a stream raises", simulated=True)
def _():
    got = []
    try:
        with s.fault(drop_after_events=4):
            for chunk in chat(model=s.faulty, max_tokens=40, stream=True):
                got.append(chunk)
    except Exception as e:
        check(isinstance(e, (litellm.APIError, litellm.InternalServerError, litellm.exceptions.MidStreamFallbackError)), f"raised {type(e)}: {e}")
        check("upstream_error" in str(e) or "the worker failed" in str(e), f"the exception does not tell why: {e}")
    else:
        raise AssertionError(f"nothing was raised after {len(got)} chunks")
    check(got, "nothing came before")


@s.case("a time-out frees the worker, and is in the ledger as 499", simulated=True)
def _():
    since = time.time_ns()
    with s.fault(stall="forever"):
        with raises(litellm.Timeout):
            chat(model=s.faulty, timeout=2)
        s.freed(since)


s.end()
