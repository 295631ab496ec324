"""Checks who shares the prefix caches of two real vLLM workers through a running gateway. Run by isolation.sh.

Each case sends one text twice, for two callers, and knows from the engine whether the second read what the
first had computed: cached_tokens of the answer, the growth of the engine's counter of hits, and the blocks
that it publishes, which carry the salt that it was given.
"""

import argparse
import base64
import collections
import hashlib
import hmac
import json
import os
import re
import struct
import sys
import threading
import time
import urllib.error
import urllib.request

import msgspec
import zmq

BLOCK = 32  # tokens; serve.sh starts the engines with it


def get(url, token=None):
    req = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(req, timeout=10) as r:
        return r.read().decode()


def debug(args, page):
    """A debug page of the gateway; it keeps the token beside its ledger."""
    with open(args.token) as f:
        return json.loads(get(args.admin + "/debug/" + page, f.read().strip()))


def post(url, body, key=None):
    """Status and decoded body of an answer, whatever the status."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = "Bearer " + key
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def counter(url, name):
    lines = [l for l in get(url + "/metrics").splitlines() if re.match(re.escape(name) + r"[ {]", l)]
    return sum(float(l.rsplit(" ", 1)[1]) for l in lines)


def eventually(what, seconds, check):
    deadline = time.monotonic() + seconds
    while not (value := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.02)
    return value


def words(seed, n):
    names = "river stone lamp harbour north seven window grain paper cloud market iron".split()
    x, out = seed * 2654435761 + 1, []
    for _ in range(n):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append(names[(x >> 16) % len(names)])
    return " ".join(out)


class Events(threading.Thread):
    """Follows the blocks that one engine stores: which hashes, under which salt."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        source = json.loads(get(worker + "/kv_event_sources"))["0"]
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(source["endpoint"].replace("*", "127.0.0.1"))
        self.socket.subscribe(b"")
        self.ended, self.error = threading.Event(), None
        self.lock = threading.Lock()
        self.salt_of = {}                                 # hash -> salt of its chain, "" without one
        self.stored = collections.Counter()               # how often each hash was stored
        self.roots = collections.defaultdict(dict)        # token ids of a first block -> salt -> hash
        self.removed = 0
        self.start()

    def run(self):
        try:
            while not self.ended.is_set():
                if self.socket.poll(50):
                    batch = msgspec.msgpack.decode(self.socket.recv_multipart()[-1])
                    with self.lock:
                        for event in batch[1]:
                            self.take(event)
        except Exception as e:  # shown by whoever waits for an event
            self.error = e
        finally:
            self.socket.close(0)
            self.context.term()

    def take(self, event):
        if event["type"] != "BlockStored":
            self.removed += len(event.get("block_hashes", ()))
            return
        hashes, parent = event["block_hashes"], event["parent_block_hash"]
        if parent is None:
            first = (event.get("extra_keys") or [None])[0]
            salt = first[0] if first else ""
            self.roots[tuple(event["token_ids"][:BLOCK])][salt] = hashes[0]
        else:
            salt = self.salt_of[parent]
        for h in hashes:
            self.salt_of[h] = salt
            self.stored[h] += 1

    def close(self):
        self.ended.set()
        self.join(5)
        if self.error:
            raise self.error


Caller = collections.namedtuple("Caller", "tenant principal key")
Case = collections.namedtuple("Case", "name first second shared")


class Surface:
    """One route of the API before one worker."""

    def __init__(self, name, args, model, worker, seed):
        self.name, self.args, self.model, self.worker, self.seed = name, args, model, worker, seed
        self.events = Events(worker)
        self.texts = {}        # text -> salts that it was sent under
        self.cached = 0        # tokens that answers said came from the cache
        self.hits = counter(worker, "vllm:prefix_cache_hits_total")

    def body(self, text, salt):
        body = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if self.name == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if salt:
            body["cache_salt"] = salt
        return body

    def path(self):
        return "/v1/chat/completions" if self.name == "chat" else "/v1/completions"

    def send(self, caller, text, salt):
        """The tokens of the prompt, and how many of them came from the cache: by the answer, by the engine's counter
        and by the gateway's view of the worker."""
        before = counter(self.worker, "vllm:prefix_cache_hits_total")
        status, answer = post(self.args.gateway + self.path(), self.body(text, salt), caller.key)
        assert status == 200, (status, answer)
        usage = answer["usage"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        grown = lambda: counter(self.worker, "vllm:prefix_cache_hits_total") - before
        if cached:
            eventually("the engine's counter of hits", 5, lambda: grown() >= cached)
        assert grown() == cached, f"the answer says {cached} cached tokens, the engine's counter grew by {grown():.0f}"
        pick = debug(self.args, "predictions")["picks"][-1]
        view = next(c["cached_tokens"] for c in pick["candidates"] if c["worker"] == pick["winner"])
        assert view == cached, f"the gateway expected {view} cached tokens, the engine had {cached}"
        self.cached += cached
        return usage["prompt_tokens"], cached

    def fresh(self):
        """A text that nobody has sent, and that ends inside a block: the engine computes the last token always, and
        would store a whole last block again."""
        while True:
            self.seed += 1
            text = words(self.seed, 200)
            status, answer = post(self.worker + "/tokenize", {**self.body(text, None), "model": "tiny"})
            assert status == 200, (status, answer)
            if answer["count"] % BLOCK:
                return text

    def ready(self):
        """Sends texts until events of one have come: a subscription takes a moment."""
        caller = callers()["open"][0]
        for _ in range(20):
            text = self.fresh()
            self.send(caller, text, None)
            until = time.monotonic() + 1
            while time.monotonic() < until:
                if self.events.roots:
                    self.texts[text] = {""}
                    return "the engine's events arrive"
                time.sleep(0.02)
        raise AssertionError(f"no event came: {self.events.error}")

    def run_case(self, case):
        text = self.fresh()
        for who, salt in (case.first, case.second):
            self.texts.setdefault(text, set()).add(engine_salt(self.args.secret, who, salt))
        size, cached = self.send(case.first[0], text, case.first[1])
        assert cached == 0, f"{case.name}: a text that nobody had sent had {cached} cached tokens"
        # The engine always computes the last token, so a whole hit ends with the block before it.
        whole = (size - 1) // BLOCK * BLOCK
        _, cached = self.send(case.second[0], text, case.second[1])
        want = whole if case.shared else 0
        assert cached == want, f"{case.name}: {cached} of {whole} cached tokens were shared, want {want}"
        return whole if case.shared else 0

    def check_blocks(self):
        """What the engine has published of all cases."""
        salts = set().union(*self.texts.values())

        def seen():
            with self.events.lock:
                return set(self.events.salt_of.values())

        try:
            eventually("the blocks of every salt", 10, lambda: self.events.error or salts <= seen())
        finally:
            self.events.close()
        grown = counter(self.worker, "vllm:prefix_cache_hits_total") - self.hits
        assert grown == self.cached, f"the answers say {self.cached} cached tokens, the engine's counter grew by {grown:.0f}"
        extra = seen() - salts
        assert not extra, f"blocks under {len(extra)} salts that the formula does not give"
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", s) for s in salts if s), salts
        assert self.events.removed == 0, "blocks were evicted, so that nothing can be said"
        twice = [h for h, n in self.events.stored.items() if n > 1]
        assert not twice, f"{len(twice)} blocks were stored twice"
        # One text under several salts: one first block for each, and no hash in two of them.
        roots = [r for r in self.events.roots.values()]
        several = [r for r in roots if len(r) > 1]
        assert all(len(set(r.values())) == len(r) for r in several), "two salts share a first block"
        assert sorted(len(s) for s in self.texts.values()) == sorted(len(r) for r in roots), (len(self.texts), len(roots))
        return (f"{grown:.0f} tokens shared in all, by the engine's counter too; {len(self.events.stored)} blocks under {len(salts)} salts, every salt as computed here, no block under two; "
                f"{len(several)} texts under two salts had two first blocks each, {len(roots) - len(several)} under one had one")


def engine_salt(secret, caller, client):
    """What the policy format says the engine gets, computed apart from the gateway's code."""
    scope = {"alpha": "tenant", "beta": "tenant", "gamma": "principal"}.get(caller.tenant, "none")
    if scope == "none" and not client:
        return ""
    parts = [scope, caller.tenant] + ([caller.principal] if scope == "principal" else []) + ([client] if client else [])
    text = b"".join(struct.pack(">I", len(p.encode())) + p.encode() for p in parts)
    return base64.urlsafe_b64encode(hmac.digest(secret, text, hashlib.sha256)).decode().rstrip("=")


def callers():
    out = collections.defaultdict(list)
    for entry in os.environ["CALLERS"].split():
        tenant, key = entry.split("=", 1)
        out[tenant].append(Caller(tenant, "key:" + key.split("_")[1], key))
    return out


def cases(secret):
    c = callers()
    a1, a2, b, g1, g2, o, p = *c["alpha"], *c["beta"], *c["gamma"], *c["open"], *c["public"]
    stolen = engine_salt(secret, a1, None)
    return [
        Case("tenant: a caller with itself", (a1, None), (a1, None), True),
        Case("tenant: two callers of one tenant", (a1, None), (a2, None), True),
        Case("tenant: two tenants", (a1, None), (b, None), False),
        Case("tenant: and the other way round", (b, None), (a2, None), False),
        Case("tenant: one salt of the client's, two callers of one tenant", (a1, "x"), (a2, "x"), True),
        Case("tenant: a client's salt narrows", (a1, None), (a1, "x"), False),
        Case("tenant: one salt of the client's, two tenants", (a1, "x"), (b, "x"), False),
        Case("tenant: another tenant sends the salt that the engine published", (a1, None), (b, stolen), False),
        Case("tenant: a salt that the engine would refuse", (a1, "a@b/c\\d"), (a2, "a@b/c\\d"), True),
        Case("principal: a caller with itself", (g1, None), (g1, None), True),
        Case("principal: two callers of one tenant", (g1, None), (g2, None), False),
        Case("principal: one salt of the client's, two callers", (g1, "x"), (g2, "x"), False),
        Case("none: two tenants that share", (o, None), (p, None), True),
        Case("none: a client's salt narrows", (o, None), (o, "x"), False),
        Case("none: one salt of the client's, two tenants", (o, "x"), (p, "x"), False),
        Case("none: one salt of the client's, one tenant", (o, "x"), (o, "x"), True),
        Case("none: a published salt of an isolated tenant", (a1, None), (o, stolen), False),
        Case("none reads what tenant wrote", (a1, None), (o, None), False),
        Case("tenant reads what none wrote", (o, None), (a1, None), False),
        Case("tenant reads what principal wrote", (g1, None), (a1, None), False),
    ]


def refusals(args):
    """What the engine itself takes for a salt, without the gateway."""
    bad = ["", "a@b", "a/b", "a\\b", "a\0b", "x" * 129]
    for path, content in [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"})]:
        for salt in bad:
            status, _ = post(args.left + path, {"model": "tiny", "max_tokens": 1, "cache_salt": salt, **content})
            assert status == 400, f"{path} took the salt {salt!r}: {status}"
        status, _ = post(args.left + path, {"model": "tiny", "max_tokens": 1, "cache_salt": "x" * 43, **content})
        assert status == 200, status
    return f"the engine refuses {len(bad)} kinds of salt and takes 43 letters, on both routes"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ["gateway", "admin", "token", "key", "left", "right"]:
        p.add_argument("--" + name, required=True)
    args = p.parse_args()
    with open(args.key, "rb") as f:
        args.secret = f.read()
    failed = 0

    def check(name, run):
        nonlocal failed
        try:
            print(f"ok    {name:<18} {run()}", flush=True)
        except Exception as e:  # each check is reported, whatever it died of
            failed += 1
            print(f"FAIL  {name:<18} {type(e).__name__}: {e}", flush=True)

    check("refusals", lambda: refusals(args))
    for surface in [Surface("chat", args, "left", args.left, 1000), Surface("completions", args, "right", args.right, 2000)]:
        check(surface.name, surface.ready)
        for case in cases(args.secret):
            check(surface.name, lambda: f"{case.name}: {'shared, %d tokens' % n if (n := surface.run_case(case)) else 'nothing shared'}")
        check(surface.name + " blocks", surface.check_blocks)
    sys.exit(1 if failed else 0)


main()
