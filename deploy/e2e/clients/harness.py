"""What the clients' scripts share: cases that pass or fail, and the stage's page of control."""
import contextlib
import json
import os
import sys
import time
import traceback
import urllib.parse
import urllib.request

STAGE = json.load(open(os.environ["STAGE"]))
PROMPT = "Tell me about rivers and stones."
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Suite:
    """The cases of one client. `name` is the client's, as the stage knows it."""

    def __init__(self, name, versions):
        self.name, self.passed, self.failed, self.left = name, 0, 0, []
        self.base, self.simulated = STAGE["base"], STAGE["simulated"]
        self.faulty = f"faulty-{name}"
        print(f"== {name}: {versions}")

    def key(self, case):
        return STAGE["keys"][f"{self.name}-{case}"]

    def case(self, what, simulated=False):
        """Runs a function as a case. simulated: it needs workers that fail on order."""
        def decorate(f):
            if simulated and not self.simulated:
                self.left.append(what)
                return f
            try:
                f()
            except Exception as e:
                self.failed += 1
                print(f"FAIL {self.name}: {what}: {type(e).__name__}: {e}")
                traceback.print_exc(limit=4, file=sys.stdout)
            else:
                self.passed += 1
            return f
        return decorate

    def end(self):
        if self.left:
            print(f"left out, since they need simulated workers: {len(self.left)}: {'; '.join(self.left)}")
        print(f"{self.name}: {self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed else 0)

    def rows(self, case="main", since=0):
        """The ledger's rows of a tenant whose requests came at `since` (time.time_ns()) or later. A row is written
        after its answer, so how many rows there are says nothing of which requests they are of."""
        return [r for r in control(f"/rows?tenant={self.name}-{case}") if r["start_ns"] >= since]

    def statuses(self, case, want):
        """Expects the rows of a tenant to have these statuses, soon: rows of refusals are written later."""
        eventually(f"the statuses {want}", lambda: [r["status"] for r in self.rows(case)] == want,
                   lambda: [r["status"] for r in self.rows(case)])

    def waited(self, case, want, since=0, least=0.9, most=30):
        """Expects these statuses, and so many seconds between the last two requests: what Retry-After said, which
        is longer than any client waits by itself before its first retry."""
        def statuses():
            return [r["status"] for r in self.rows(case, since)]
        rows = eventually(f"the statuses {want}", lambda: statuses() == want and self.rows(case, since), statuses)
        gap = (rows[-1]["start_ns"] - rows[-2]["end_ns"]) / 1e9
        check(least <= gap <= most, f"waited {gap:.2f} s before the retry, want {least} to {most}")

    def running(self):
        return control(f"/running?client={self.name}")

    @contextlib.contextmanager
    def fault(self, **fault):
        """Has the client's worker for faults misbehave inside the block."""
        control(f"/fault?client={self.name}", fault)
        try:
            yield
        finally:
            control(f"/fault?client={self.name}", {})

    def freed(self, since, phase=None):
        """Waits until the worker has nothing to do and a request that came since then has a row with 499."""
        def done():
            return self.running() == 0 and [r for r in self.rows(since=since) if r["status"] == 499 and phase in (None, r["phase"])]
        return eventually("the worker to be free, and a row with status 499", done, lambda: (self.running(), self.rows(since=since)))


def control(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(STAGE["control"] + path, data=data), timeout=60) as resp:
        return json.load(resp)


def eventually(what, done, shown=None, patience=60):
    until = time.monotonic() + patience
    while True:
        got = done()
        if got:
            return got
        if time.monotonic() > until:
            raise AssertionError(f"waited in vain for {what}" + (f": {shown()}" if shown else ""))
        time.sleep(0.05)


def same(got, want, what="value"):
    if got != want:
        raise AssertionError(f"{what} is {got!r}, want {want!r}")


def check(ok, what):
    if not ok:
        raise AssertionError(what)


@contextlib.contextmanager
def raises(kind, subclass=False, **fields):
    """Expects an exception of exactly a class, or of one below it, with fields of given values."""
    try:
        yield
    except Exception as e:
        check(isinstance(e, kind) if subclass else type(e) is kind, f"raised {type(e).__module__}.{type(e).__name__}: {e}; want {kind.__name__}")
        for name, want in fields.items():
            same(getattr(e, name, None), want, f"{kind.__name__}.{name}")
    else:
        raise AssertionError(f"nothing was raised; want {kind.__name__}")
