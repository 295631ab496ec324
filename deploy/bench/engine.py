"""Measures routers before two real engines with GuideLLM, one at a time. Run by engine.sh.

A run is one router under one workload, once. Before it each engine answers one discarded request, both prefix
caches are emptied, and the router is started anew. The requests of a workload depend on the repetition alone, so
every router gets the same ones in the same order. Results are kept after each run; a run that fails is a row of
its own. engine_report.py makes the table.
"""

import argparse
import datetime
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import engine_report
import engine_routers
import guidellm_run
from engine_routers import Failed, get, patiently, post
from guidellm_run import REQUEST_SECONDS, commit, end, first_error, first_token_ms, machine, machine_seconds, own_seconds, processor_seconds

WORKLOADS = pathlib.Path(__file__).with_name("engine_workloads.json")
# A start and a whole run end by then, whatever happens.
READY_SECONDS, RUN_SECONDS = 90, 900


def tiny(text):
    """A request too short to fill a cache block."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}


class Engine:
    """One vLLM worker: its address, its process, its counters."""

    def __init__(self, text):
        self.url, pid = text.rsplit("=", 1)
        self.pid = int(pid)

    def counters(self):
        """What the engine counts about prompts: tokens computed, tokens read from its cache, requests."""
        out = {"computed": 0.0, "cached": 0.0, "requests": 0.0}
        for line in get(self.url + "/metrics").splitlines():
            name = line.split("{")[0].split(" ")[0]
            value = line.rsplit(" ", 1)[-1]
            if name == "vllm:prompt_tokens_by_source_total" and 'source="local_compute"' in line:
                out["computed"] += float(value)
            elif name == "vllm:prefix_cache_hits_total":
                out["cached"] += float(value)
            elif name == "vllm:request_success_total":
                out["requests"] += float(value)
        return out

    def empty(self, number):
        """One discarded request, then an empty cache, which is announced with the next, tiny, request."""
        words = " ".join(f"warm {number} {i}" for i in range(150))
        post(self.url + "/v1/chat/completions", tiny(words), REQUEST_SECONDS)
        patiently(f"{self.url} to reset its cache", 30,
                  lambda: post(self.url + "/reset_prefix_cache", None, 30).get("success"))
        post(self.url + "/v1/chat/completions", tiny("x"), REQUEST_SECONDS)


class Bench:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.out)
        self.logs = pathlib.Path(args.logs)
        self.engines = [Engine(w) for w in args.worker]
        self.packages = dict(p.split("=", 1) for p in args.package)
        self.workloads = json.loads(WORKLOADS.read_text())
        self.runs = []
        self.meta = {
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(), "commit": commit(), "reps": args.reps, "commands": {},
            "versions": {"guidellm": guidellm_run.VERSION, "vllm": json.loads(get(self.engines[0].url + "/version"))["version"]},
            "workloads": {w: self.workload(w) for w in args.workloads},
        }

    def workload(self, name):
        load = dict(self.workloads[name])
        if self.args.requests:
            load["requests"] = self.args.requests
        return load

    def save(self):
        engine_report.write(self.out, {"meta": self.meta, "runs": self.runs})

    def run_all(self):
        total = self.args.reps * len(self.args.workloads) * len(self.args.routers)
        for rep in range(self.args.reps):
            shift = rep % len(self.args.routers)
            order = self.args.routers[shift:] + self.args.routers[:shift]
            for workload in self.args.workloads:
                for name in order:
                    run = {"router": name, "workload": workload, "rep": rep + 1}
                    print(f"[{len(self.runs) + 1}/{total}] {workload:<11} {name:<18}", end=" ", flush=True)
                    try:
                        run |= self.measure(name, workload, rep)
                        print(engine_report.line(run), flush=True)
                    except Exception as e:  # a run is reported, whatever it died of, and the others go on
                        run["failed"] = str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
                        print(f"FAILED: {run['failed']}", flush=True)
                    self.runs.append(run)
                    self.save()
        return sum("failed" in r for r in self.runs)

    def measure(self, name, workload, rep):
        for engine in self.engines:
            engine.empty(len(self.runs))
        logs = self.logs / f"{rep + 1}-{workload}-{name.replace('/', '-')}"
        logs.mkdir(parents=True, exist_ok=True)
        router = engine_routers.make(name, self.args, self.packages, [e.url for e in self.engines], logs)
        self.meta["commands"][name] = shlex.join(router.shown())
        with open(logs / "router.log", "w") as log:
            process = subprocess.Popen(router.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.await_router(router, process)
            return self.load(router, process, self.workload(workload), rep, logs)
        finally:
            end(process)

    def await_router(self, router, process):
        def ready():
            if process.poll() is not None:
                raise Failed(f"the router ended with {process.returncode}: see router.log")
            return router.ready()
        patiently("the router to be ready", READY_SECONDS, ready)
        for i in range(4):  # connections to both engines are open from here on
            post(router.url + "/v1/chat/completions", tiny(f"hi {i}"), REQUEST_SECONDS, router.key)

    def load(self, router, process, load, rep, logs):
        before = [e.counters() for e in self.engines]
        cpu = lambda: {"router": processor_seconds(process.pid), "engines": sum(processor_seconds(e.pid) for e in self.engines),
                       "machine": machine_seconds(), "own": own_seconds()[0], "guidellm": own_seconds()[1]}
        used, start = cpu(), time.monotonic()
        requests = self.guidellm(router, load, rep, logs)
        elapsed = time.monotonic() - start
        used = {k: v - used[k] for k, v in cpu().items()}
        after = [e.counters() for e in self.engines]
        grown = [{k: round(a[k] - b[k]) for k in a} for a, b in zip(after, before)]
        others = used["machine"] - sum(v for k, v in used.items() if k != "machine")
        return summary(requests) | {
            "computed_tokens": sum(g["computed"] for g in grown), "cached_tokens": sum(g["cached"] for g in grown),
            "requests_per_worker": [g["requests"] for g in grown],
            "cpu_seconds": {k: round(used[k], 2) for k in ("router", "engines", "guidellm")},
            "others_share": round(max(0.0, others) / (elapsed * os.cpu_count()), 3),
            "router_view": router.view(),
        }

    def guidellm(self, router, load, rep, logs):
        """Runs GuideLLM and returns its record of each request."""
        return guidellm_run.run(self.args.guidellm, router, "tiny", {
            "profile": {"kind": "concurrent", "streams": [load["streams"]]},
            "constraints": [{"kind": "max_requests", "count": load["requests"]}, {"kind": "max_duration", "seconds": RUN_SECONDS - 120}],
            "tokenizer": {"kind": "huggingface_auto", "model": self.args.model},
            "data": [{"kind": "synthetic_text"} | load["data"]],
            # All prompts are made before the first is sent: making them would take time from the engines.
            "data_loader": {"kind": "pytorch", "samples": load["requests"]},
            "seed": {"kind": "static", "value": 1000 + rep},
        }, logs, RUN_SECONDS)


def summary(record):
    """Times in ms. Requests per second count from the first start to the last end."""
    good = record["successful"]
    ttft = [first_token_ms(r) for r in good]
    whole = [1000 * r["request_latency"] for r in good]
    span = max(r["request_end_time"] for r in good) - min(r["request_start_time"] for r in good)
    return {
        "requests": len(good), "without_text": sum(r["time_to_first_token_ms"] is None for r in good),
        "errors": len(record["errored"]) + len(record["incomplete"]),
        "first_error": first_error(record) if record["errored"] else None,
        "ttft_ms": engine_report.spread_of(ttft), "e2e_ms": engine_report.spread_of(whole),
        "requests_per_second": round(len(good) / span, 3), "seconds": round(span, 1),
        "prompt_tokens": sum(r["prompt_tokens"] for r in good), "output_tokens": sum(r["output_tokens"] for r in good),
    }


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ["guidellm", "sluice", "model", "policies", "out", "logs"]:
        p.add_argument("--" + name, required=True)
    p.add_argument("--worker", action="append", required=True, help="URL=PID of an engine")
    p.add_argument("--package", action="append", default=[], help="NAME=FOLDER of an installed router")
    p.add_argument("--routers", nargs="+", required=True, choices=engine_routers.NAMES)
    p.add_argument("--workloads", nargs="+", required=True, choices=json.loads(WORKLOADS.read_text()))
    p.add_argument("--reps", type=int, required=True)
    p.add_argument("--requests", type=int, default=0, help="requests of every run, for short ones")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run that is broken off ends its router
    bench = Bench(p.parse_args())
    failed = bench.run_all()
    print((bench.out / "table.md").read_text())
    print(f"results in {bench.out}: results.json, table.md" + (f"; {failed} runs failed" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
