"""Checks a running gateway before two real vLLM workers, from outside. Run by engine.sh."""

import argparse
import concurrent.futures
import csv
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai


def get(url, token=None):
    req = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(req, timeout=10) as r:
        return r.read().decode()


def debug(args, page):
    """A debug page of the gateway; it keeps the token beside its ledger."""
    with open(args.token) as f:
        return json.loads(get(args.admin + "/debug/" + page, f.read().strip()))


def post(url, body):
    req = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(req, timeout=60) as r:
        return json.load(r)


def counter(text, name, **labels):
    """Sum of a metric's series that carry the labels."""
    total = 0.0
    for line in text.splitlines():
        if not re.match(re.escape(name) + r"[ {]", line):
            continue
        if all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def eventually(what, seconds, check):
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.02)


class Worker:
    def __init__(self, text):
        self.name, self.url, pid = text.split("=")
        self.pid = int(pid)

    def metrics(self):
        return get(self.url + "/metrics")


def words(seed, n):
    names = "river stone lamp harbour north seven window grain paper cloud market iron".split()
    x, out = seed * 2654435761 + 1, []
    for _ in range(n):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(names[(x >> 16) % len(names)])
    return " ".join(out)


def user(text):
    return [{"role": "user", "content": text}]


class Checks:
    def __init__(self, args):
        self.args = args
        self.workers = {w.name: w for w in map(Worker, args.worker)}
        make = lambda key: openai.OpenAI(base_url=args.gateway + "/v1", api_key=os.environ[key], max_retries=0, timeout=60)
        self.alpha, self.beta = make("ALPHA_KEY"), make("BETA_KEY")

    def chat(self, client, text, **extra):
        """One answer and the worker it came from."""
        extra.setdefault("max_tokens", 4)
        raw = client.chat.completions.with_raw_response.create(model="tiny", messages=user(text), temperature=0, **extra)
        return raw.parse(), raw.headers["x-sluice-worker"]

    def debug(self):
        return debug(self.args, "workers")

    def worker(self, name):
        return next(w for w in self.debug()["workers"] if w["health"]["name"] == name)

    def last_pick(self):
        """The last pick, and its winner's prediction."""
        pick = debug(self.args, "predictions")["picks"][-1]
        return pick, next(c for c in pick["candidates"] if c["worker"] == pick["winner"])

    def sdk(self):
        answer, worker = self.chat(self.alpha, "Say hello.", max_tokens=6)
        assert answer.usage.completion_tokens == 6, answer.usage
        pieces, usage = 0, None
        stream = self.alpha.chat.completions.create(
            model="default", messages=user("Count to ten."), max_tokens=8, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        for chunk in stream:
            pieces += bool(chunk.choices and chunk.choices[0].delta.content)
            usage = chunk.usage or usage
        assert usage.completion_tokens == 8 and pieces > 0, (usage, pieces)
        hidden = self.alpha.chat.completions.create(model="tiny", messages=user("Again."), max_tokens=4, stream=True)
        assert all(c.usage is None and c.choices for c in hidden), "usage was shown to a client that did not ask"
        text = self.alpha.completions.create(model="tiny", prompt="Once upon a time", max_tokens=5)
        assert text.usage.completion_tokens > 0
        try:
            openai.OpenAI(base_url=self.args.gateway + "/v1", api_key="slk_no_key", max_retries=0).models.list()
            raise AssertionError("a wrong key was accepted")
        except openai.AuthenticationError:
            pass
        try:
            self.alpha.chat.completions.create(model="nope", messages=user("x"))
            raise AssertionError("an unknown model was accepted")
        except openai.NotFoundError:
            pass
        assert [m.id for m in self.alpha.models.list()] == ["tiny"]
        return "completes, streams, hides usage nobody asked for, raises its own errors"

    def tokens(self):
        engine = next(iter(self.workers.values())).url
        state = eventually("the tokenizer to be judged", 20, lambda: self.debug()["tokenizers"]["tiny"]["state"])
        assert state == "verified", state
        with open(self.args.parity, encoding="utf-8") as f:
            rows = json.load(f)
        rows = rows.get("rows") or rows.get("requests") or rows if isinstance(rows, dict) else rows
        same = 0
        for row in rows:
            body = dict(row["request"], model="tiny")
            try:
                want = post(engine + "/tokenize", body)["tokens"]
            except urllib.error.HTTPError:
                continue
            run = subprocess.run([self.args.sluice, "tokens", "--tokenizer", self.args.tokenizer], input=json.dumps(body),
                                 capture_output=True, text=True, check=True)
            got = json.loads(run.stdout)
            assert got == want, f"{len(got)} local ids differ from the engine's {len(want)}"
            same += 1
        assert same >= 20, same
        return f"{same} of {len(rows)} requests have the engine's own ids; start-up check: {state}"

    def prefix(self):
        prefix = words(3, 1200)
        before = {n: counter(w.metrics(), "vllm:prefix_cache_hits_total") for n, w in self.workers.items()}
        first, home = self.chat(self.alpha, prefix + " question 0")
        agree, cached, ttfts = 0, 0, []
        for i in range(1, 7):
            start = time.monotonic()
            answer, worker = self.chat(self.alpha, f"{prefix} question {i}")
            ttfts.append(time.monotonic() - start)
            assert worker == home, f"request {i} went to {worker}, {home} holds the prefix"
            engine = answer.usage.prompt_tokens_details.cached_tokens
            agree += self.last_pick()[1]["cached_tokens"] == engine
            cached += engine
        hits = counter(self.workers[home].metrics(), "vllm:prefix_cache_hits_total") - before[home]
        assert hits >= cached > 0, (hits, cached)
        assert agree == 6, f"the gateway's view agreed with the engine on {agree} of 6 requests"
        other, _ = self.chat(self.beta, f"{prefix} question 1")
        leaked = other.usage.prompt_tokens_details.cached_tokens
        assert leaked == 0, f"another tenant read {leaked} tokens of this tenant's cache"
        return (f"6 of 6 to {home}; cached tokens by the engine {cached}, its counter grew by {hits:.0f}, "
                f"the gateway's view agreed on 6 of 6; another tenant with the same prompt: 0 cached")

    def spread(self):
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            seen = list(pool.map(lambda i: self.chat(self.alpha, words(50 + i, 200))[1], range(12)))
        share = {n: seen.count(n) for n in self.workers}
        assert max(share.values()) <= 1.3 * len(seen) / len(self.workers), share
        return f"12 distinct prompts at once: {share['w1']} to w1, {share['w2']} to w2"

    def leave(self):
        running = lambda: sum(counter(w.metrics(), "vllm:num_requests_running") for w in self.workers.values())
        took = []
        for _ in range(3):
            stream = self.alpha.chat.completions.create(
                model="tiny", messages=user("Write a story."), max_tokens=600, stream=True, extra_body={"ignore_eos": True})
            for _ in range(3):
                next(iter(stream))
            assert running() == 1, running()
            left = time.monotonic()
            stream.close()
            eventually("the worker to be free", 3, lambda: running() == 0)
            took.append(time.monotonic() - left)
        assert max(took) < 1, took
        return f"the engine was free {', '.join(f'{t:.2f} s' for t in took)} after its client left"

    def prediction(self):
        errors = []
        for i in range(36):
            stream = self.alpha.chat.completions.create(
                model="tiny", messages=user(words(200 + i, 40 + 37 * (i % 12))), max_tokens=2, stream=True)
            for _ in stream:
                pass
            pick, predicted = self.last_pick()
            if i >= 12:
                errors.append(abs(predicted["predicted_ms"] - pick["actual_ms"]) / pick["actual_ms"])
        errors.sort()
        return (f"one request at a time, after 12: relative error median {statistics.median(errors):.0%}, "
                f"p90 {errors[int(len(errors) * .9)]:.0%} over {len(errors)}")

    def exact(self):
        prompt = sum(counter(w.metrics(), "vllm:prompt_tokens_total") for w in self.workers.values())
        output = sum(counter(w.metrics(), "vllm:generation_tokens_total") for w in self.workers.values())
        month = time.strftime("%Y-%m", time.gmtime())
        run = subprocess.run([self.args.sluice, "chargeback", "export", "--ledger", self.args.ledger, "--period", month],
                             capture_output=True, text=True, check=True)
        total = sum(int(r["ConsumedQuantity"]) for r in csv.DictReader(io.StringIO(run.stdout)))
        assert total == prompt + output, f"exported {total} tokens, the engines counted {prompt + output:.0f}"
        return f"exported {total} tokens = the engines' {prompt:.0f} prompt + {output:.0f} generated"

    def killed(self):
        victim, other = self.workers["w1"], self.workers["w2"]
        assert any(v["gpu"] > 0 for v in self.worker("w1")["views"])
        for pid in [victim.pid, *children(victim.pid)]:
            os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            noticed = pool.submit(lambda: eventually("the dead worker to be noticed", 10, lambda: not self.worker("w1")["health"]["ready"]) and time.monotonic() - start)
            served = [self.chat(self.alpha, words(900 + i, 30))[1] for i in range(6)]
        assert served == ["w2"] * 6, served
        eventually("its view to be dropped", 10, lambda: all(v["gpu"] == 0 for v in self.worker("w1")["views"]))
        ready = counter(get(self.args.admin + "/metrics"), "sluice_worker_ready", worker="w1")
        assert ready == 0, ready
        return f"6 of 6 requests went on at {other.name}; noticed after {noticed.result():.2f} s, view dropped"

    def run(self):
        failed = 0
        for name in ["sdk", "tokens", "prefix", "spread", "prediction", "exact", "leave", "killed"]:
            try:
                print(f"ok    {name:<11} {getattr(self, name)()}", flush=True)
            except Exception as e:  # each check is reported, whatever it died of
                failed += 1
                print(f"FAIL  {name:<11} {type(e).__name__}: {e}", flush=True)
        return failed


def children(pid):
    """All processes below pid."""
    out, level = [], [pid]
    while level:
        found = []
        for p in level:
            try:
                for task in os.listdir(f"/proc/{p}/task"):
                    with open(f"/proc/{p}/task/{task}/children") as f:
                        found += [int(c) for c in f.read().split()]
            except FileNotFoundError:
                pass
        out += found
        level = found
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ["gateway", "admin", "token", "sluice", "tokenizer", "ledger", "parity"]:
        p.add_argument("--" + name, required=True)
    p.add_argument("--worker", action="append", required=True)
    sys.exit(1 if Checks(p.parse_args()).run() else 0)


main()
