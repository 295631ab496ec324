"""How each router is started before two engines, and how it is asked what it saw. Used by engine.py.

Every router keeps its own defaults; what it must be told about the engines (addresses, block size, where events
come from) it is told, as its documentation says.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request

NAMES = ["sluice", "sglang/cache_aware", "sglang/round_robin", "vllm/kv_aware", "vllm/cache_aware"]


class Failed(Exception):
    """A run that gave no figures, and why."""


def get(url, timeout=10, token=None):
    req = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(req, timeout=timeout) as r:
        return r.read().decode()


def post(url, body, timeout, key=None):
    """POST with a JSON answer; no body means an empty one. Failed says what the answer was."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as r:
            return json.loads(r.read() or b"{}")
    except urllib.error.HTTPError as e:
        raise Failed(f"{url} answered {e.code}: {e.read()[:200].decode(errors='replace')}") from None
    except OSError as e:
        raise Failed(f"{url} did not answer: {e}") from None


def patiently(what, seconds, check):
    """Returns what check does as soon as that is true. An OSError that it raises counts as not yet."""
    deadline, last = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        try:
            value = check()
            if value:
                return value
        except OSError as e:
            last = e
        time.sleep(0.2)
    raise Failed(f"waited {seconds} s in vain for {what}" + (f": {last}" if last else ""))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Router:
    """A router that is a command: ready when it answers for the model, without a key and without a view to report."""

    key = None

    def __init__(self, program):
        self.port, self.metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [program]

    def ready(self):
        return json.loads(get(self.url + "/v1/models"))

    def view(self):
        """What the router says about its own choices, for the results."""
        return None

    def shown(self):
        """The command as a reader would type it: no folders of this machine, ports by their role."""
        names = {str(self.port): "PORT", str(self.metrics_port): "METRICS_PORT"}
        return [os.path.basename(self.command[0]), *(names.get(a, a) for a in self.command[1:])]


class SGLang(Router):
    def __init__(self, folder, policy, engines):
        super().__init__(f"{folder}/bin/sglang-router")
        self.command += ["launch", "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host", "127.0.0.1",
                         "--prometheus-port", str(self.metrics_port), "--worker-urls", *engines, "--policy", policy]
        self.engines = len(engines)

    def ready(self):
        """It listens before it has registered the engines."""
        return json.loads(get(self.url + "/workers"))["stats"]["regular_count"] == self.engines


class VLLM(Router):
    def __init__(self, folder, policy, engines):
        super().__init__(f"{folder}/bin/vllm-router")
        self.command += ["--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port", str(self.metrics_port),
                         "--worker-urls", *engines, "--policy", policy]
        if policy == "kv_aware":
            self.command += self.event_flags(engines)

    @staticmethod
    def event_flags(engines):
        """Where events come from. It cannot find that out from vLLM 0.32: it asks for /get_server_info, which is not there."""
        flags = ["--kv-event-model", "tiny"]
        sizes = set()
        for url in engines:
            source = next(iter(json.loads(get(url + "/kv_event_sources")).values()))
            for flag, key in (("--kv-event-source", "endpoint"), ("--kv-event-replay-source", "replay_endpoint")):
                flags += [flag, f"{url}={source[key].replace('*', '127.0.0.1')}"]
            sizes.add(block_size(url))
        return flags + ["--kv-event-block-size", str(sizes.pop())]

    def view(self):
        lines = get(f"http://127.0.0.1:{self.metrics_port}/metrics").splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if re.match(r"vllm_router_(kv_|prefix_routing)", line)) or None


def block_size(engine):
    found = re.search(r'vllm:cache_config_info\{[^}]*[{,]block_size="(\d+)"', get(engine + "/metrics"))
    return int(found.group(1)) if found else 16


class Sluice(Router):
    """As users run it: keys, the shipped policies with their limits, cache isolation, prices, a durable ledger."""

    MODEL = "tiny"
    CONFIG = """\
listen:
  public: {{ address: "127.0.0.1:{port}" }}
  admin: {{ address: "127.0.0.1:{admin}" }}
tenants: {{ file: tenants.yaml }}
policy: {{ dir: policies }}
cacheIsolation: {{ default: tenant, keyFile: cache.key }}
models:
  - {{ name: tiny, family: qwen, tokenizer: "{model}", contextLength: 8192, defaultMaxTokens: 64 }}
pools:
  - name: cpu
    models: [tiny]
    cacheSalt: [chat, completion]
    workers:
{workers}
scoring: {{ blockSize: {block}, batchTokens: 1024, maxSeqs: 8 }}
prices: {{ file: prices.yaml }}
ledger: {{ path: sluice.db }}
drain: {{ delay: 0s, deadline: 10s }}
log: {{ level: info, format: json }}
"""
    POLICIES = ["qos-tiers.yaml", "tool-use.yaml"]
    TENANTS = "tenants:\n  - id: bench\n    team: research\n    tier: gold\n"
    PRICES = "prices:\n  - { model: MODEL, currency: EUR, input: 500000, cachedInput: 50000, output: 1500000, validFrom: 2026-01-01 }\n"

    def __init__(self, args, engines, logs):
        super().__init__(args.sluice)
        self.admin = f"http://127.0.0.1:{self.metrics_port}"
        self.folder = folder = pathlib.Path(logs)
        (folder / "policies").mkdir()
        for policy in self.POLICIES:
            shutil.copy(pathlib.Path(args.policies) / policy, folder / "policies")
        (folder / "tenants.yaml").write_text(self.TENANTS)
        (folder / "prices.yaml").write_text(self.PRICES.replace("MODEL", self.MODEL))
        (folder / "cache.key").write_bytes(os.urandom(32))
        (folder / "sluice.yaml").write_text(self.config(args, engines))
        made = subprocess.run([args.sluice, "keys", "create", "--tenants", str(folder / "tenants.yaml"), "--tenant", "bench"],
                              capture_output=True, text=True)
        found = re.search(r"slk_[A-Za-z0-9_-]+", made.stdout + made.stderr)
        if made.returncode or not found:
            raise Failed(f"sluice keys create ended with {made.returncode}: {made.stderr.strip()}")
        self.key = found.group(0)
        self.command += ["serve", "-c", str(folder / "sluice.yaml")]

    def config(self, args, engines):
        return self.CONFIG.format(port=self.port, admin=self.metrics_port, model=args.model, workers=self.workers(engines, 1), block=block_size(engines[0]))

    @staticmethod
    def workers(engines, first):
        """Workers of a pool, as its list in the configuration."""
        return "\n".join(f'      - {{ name: w{n}, url: "{url}" }}' for n, url in enumerate(engines, first))

    def ready(self):
        get(self.url + "/readyz")
        return json.loads(self.debug("workers"))["tokenizers"][self.MODEL]["state"] == "verified"

    def debug(self, page):
        token = (self.folder / "sluice.db.admin-token").read_text().strip()
        return get(f"{self.admin}/debug/{page}", token=token)

    def shown(self):
        return ["sluice", "serve", "-c", "sluice.yaml"]

    def view(self):
        """Prediction against outcome of the recent picks, and how often the view of the caches was of use."""
        page = self.debug("predictions")
        (self.folder / "predictions.json").write_text(page)
        errors, within, cached, prompt = [], 0, 0, 0
        for pick in json.loads(page)["picks"]:
            won = next((c for c in pick["candidates"] if c["worker"] == pick["winner"]), None)
            actual = pick.get("actual_ms")
            if not actual or won is None or pick["prompt_tokens"] < 100:
                continue
            errors.append(abs(won["predicted_ms"] - actual) / actual)
            within += actual <= won["p90_ms"]
            cached += won["cached_tokens"]
            prompt += pick["prompt_tokens"]
        if not errors:
            return None
        errors.sort()
        return {"predictions": len(errors), "error_median": round(statistics.median(errors), 3),
                "error_p90": round(errors[int(len(errors) * 0.9)], 3), "within_p90": round(within / len(errors), 3),
                "expected_cached_tokens": cached, "prompt_tokens": prompt}


def make(name, args, packages, engines, logs):
    """The named router, ready to be started. Failed says why it cannot be."""
    if name == "sluice":
        return Sluice(args, engines, logs)
    package, policy = name.split("/")
    if package not in packages:
        raise Failed(f"{package}-router could not be installed")
    return {"sglang": SGLang, "vllm": VLLM}[package](packages[package], policy, engines)
