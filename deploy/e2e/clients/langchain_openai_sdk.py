"""LangChain's client for OpenAI."""
import importlib.metadata
import time

import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from harness import PROMPT, Suite, check, raises, same

s = Suite("langchain", "langchain-openai " + importlib.metadata.version("langchain-openai"))


def chat(case="main", model="chat", retries=0, **more):
    return ChatOpenAI(model=model, api_key=s.key(case), base_url=s.base + "/v1", max_retries=retries, **{"timeout": 60, "max_tokens": 12, **more})


def below(kind, **fields):
    """LangChain raises classes of its own below those of the openai package."""
    return raises(kind, subclass=True, **fields)


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return "rain"


@s.case("invoke")
def _():
    answer = chat().invoke(PROMPT)
    check(answer.content, "no text")
    same(answer.usage_metadata["output_tokens"], 12, "output_tokens")


@s.case("stream, with usage")
def _():
    whole = None
    for chunk in chat(stream_usage=True).stream(PROMPT):
        whole = chunk if whole is None else whole + chunk
    check(whole.content, "no text")
    same(whole.usage_metadata["output_tokens"], 12, "output_tokens")


@s.case("batch")
def _():
    check(all(a.content for a in chat().batch([PROMPT] * 8)), "no text")


@s.case("tools, and streaming", simulated=True)
def _():
    bound = chat(max_tokens=500).bind_tools([weather])
    same([(c["name"], list(c["args"])) for c in bound.invoke(PROMPT).tool_calls], [("weather", ["city"])], "calls")
    whole = None
    for chunk in bound.stream(PROMPT):
        whole = chunk if whole is None else whole + chunk
    same([(c["name"], list(c["args"])) for c in whole.tool_calls], [("weather", ["city"])], "calls of a stream")


@s.case("responses")
def _():
    check(chat(use_responses_api=True, max_tokens=16).invoke(PROMPT).text, "no text")


@s.case("embeddings", simulated=True)
def _():
    e = OpenAIEmbeddings(model="embed", api_key=s.key("main"), base_url=s.base + "/v1", check_embedding_ctx_length=False, max_retries=0)
    same([len(v) for v in e.embed_documents(["one river", "two stones"])], [8, 8], "lengths of the vectors")


@s.case("400, 401, 403, 404, 413")
def _():
    with below(openai.BadRequestError, param="max_completion_tokens"):
        chat().bind(max_tokens="many").invoke(PROMPT)
    with below(openai.AuthenticationError, code="invalid_api_key"):
        ChatOpenAI(model="chat", api_key="slk_nobody", base_url=s.base + "/v1", max_retries=0).invoke(PROMPT)
    with below(openai.PermissionDeniedError, code="policy_denied"):
        chat("denied").invoke(PROMPT)
    with below(openai.NotFoundError, code="model_not_found"):
        chat(model="nope").invoke(PROMPT)
    with below(openai.APIStatusError, status_code=413):
        chat().invoke("x" * 300_000)


@s.case("429: not retried; then once, when Retry-After says")
def _():
    chat("rate").invoke(PROMPT)
    with below(openai.RateLimitError, code="rate_limit_exceeded"):
        chat("rate").invoke(PROMPT)
    s.statuses("rate", [200, 429])
    chat("rate", retries=3).invoke(PROMPT)
    s.waited("rate", [200, 429, 429, 200])


@s.case("429: a used-up quota is not tried again")
def _():
    chat("quota").invoke(PROMPT)
    with below(openai.RateLimitError, code="insufficient_quota"):
        chat("quota", retries=5).invoke(PROMPT)
    s.statuses("quota", [200, 429])


@s.case("503, 502, 504", simulated=True)
def _():
    for fault, status, code in (({"status": 503}, 503, "overloaded"), ({"status": 500}, 502, "upstream_error"), ({"hang_headers": True}, 504, "upstream_timeout")):
        with s.fault(**fault), below(openai.InternalServerError, status_code=status, code=code):
            chat(model=s.faulty).invoke(PROMPT)


@s.case("a worker that dies in a stream raises", simulated=True)
def _():
    got = []
    with s.fault(drop_after_events=4), below(openai.APIError, code="upstream_error"):
        for chunk in chat(model=s.faulty, max_tokens=40).stream(PROMPT):
            got.append(chunk)
    check(got, "nothing came before")


@s.case("a time-out frees the worker, and is in the ledger as 499", simulated=True)
def _():
    since = time.time_ns()
    with s.fault(stall="forever"):
        with below(openai.APITimeoutError):
            chat(model=s.faulty, timeout=2).invoke(PROMPT)
        s.freed(since)


s.end()
