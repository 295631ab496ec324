"""The published benchmark in shape: two pools of three simulated workers, GuideLLM, rising concurrency. Run by article.sh.

A run is one way of routing under one workload: cold workers, a gateway as shipped, and one level of concurrency after
another on both. All runs of a workload send the same prompts. Workers take the time of a modelled GPU, multiplied by a
time scale; everything reported is in the model's time, that is, divided by the scale. A run's results are kept as soon
as they are there, beside those of earlier calls; the same run measured again takes the place of the former one.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import article_report
import engine_routers
import guidellm_run
from engine_routers import Failed, get, patiently, post
from guidellm_run import end

WORKLOADS = json.loads(pathlib.Path(__file__).with_name("article_workloads.json").read_text())
MODEL, POOLS, POOL_WORKERS, CONTEXT = "article", 2, 3, 32768
ROUTERS = {"random": "random", "round-robin": "round-robin", "least-loaded": "least-loaded", "sluice": "ttft"}
READY_SECONDS = 90
# One L40S with a dense model of 27e9 parameters in FP8: docs/0006-simulated-worker.md derives each of these.
TIMING = {"step": "32ms", "prefill-tps": "6060.6", "decode-seq": "50us", "context": "300us", "attention": "9ms",
          "blocks": "3300", "block-size": "16", "batch-tokens": "2048", "max-seqs": "256", "jitter": "0.05"}


class Workers:
    """The simulated workers, all in one process."""

    def __init__(self, sluice, scale, seed, logs):
        # Nothing but max_tokens ends a text: all answers have the same length.
        command = [sluice, "simworker", "--workers", str(POOLS * POOL_WORKERS), "--model", MODEL, "--time-scale", str(scale),
                   "--max-model-len", str(CONTEXT), "--output-tokens", "0", "--seed", str(seed)]
        command += [part for name, value in TIMING.items() for part in ("--" + name, value)]
        with open(logs / "workers.log", "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        line = self.process.stdout.readline()
        if not line:
            end(self.process)
            raise Failed("the workers did not start: see workers.log")
        self.urls = [w["url"] for w in json.loads(line)["workers"]]

    def counters(self):
        """Prompt tokens, those of them found in a cache, finished requests and preemptions, of each worker."""
        names = {"vllm:prompt_tokens_total": "prompt", "vllm:prompt_tokens_cached_total": "cached",
                 "vllm:request_success_total": "finished", "vllm:num_preemptions_total": "preempted"}
        out = []
        for url in self.urls:
            mine = dict.fromkeys(names.values(), 0.0)
            for line in get(url + "/metrics").splitlines():
                name = names.get(line.split("{")[0].split(" ")[0])
                if name:
                    mine[name] += float(line.rsplit(" ", 1)[-1])
            out.append(mine)
        return out


class Gateway(engine_routers.Sluice):
    """The gateway with both pools. Only how it chooses a worker differs between runs."""

    MODEL = MODEL
    POLICIES = ["bench.yaml"]
    CONFIG = """\
listen:
  public: {{ address: "127.0.0.1:{port}" }}
  admin: {{ address: "127.0.0.1:{admin}" }}
tenants: {{ file: tenants.yaml }}
policy: {{ dir: policies }}
cacheIsolation: {{ default: tenant, keyFile: cache.key }}
models:
  - {{ name: {model}, tokenizer: "{tokenizer}", contextLength: {context}, defaultMaxTokens: 64 }}
pools:
{pools}
scoring: {{ strategy: {strategy} }}
{more}prices: {{ file: prices.yaml }}
ledger: {{ path: sluice.db }}
drain: {{ delay: 0s, deadline: 2s }}
log: {{ level: warn, format: json }}
"""

    def __init__(self, args, strategy, more, engines, logs):
        self.strategy, self.more = strategy, more
        super().__init__(args, engines, logs)

    def config(self, args, engines):
        pools = []
        for n in range(POOLS):
            first = n * POOL_WORKERS
            pools.append(f"  - name: pool-{n + 1}\n    models: [{MODEL}]\n    cacheSalt: [chat, completion]\n    workers:\n"
                         + self.workers(engines[first:first + POOL_WORKERS], first + 1))
        return self.CONFIG.format(port=self.port, admin=self.metrics_port, model=MODEL, tokenizer=args.model, context=CONTEXT,
                                  pools="\n".join(pools), strategy=self.strategy, more=self.more)

    def ready(self):
        """Its tokenizer agrees with the workers' own, and it follows the events of all of them."""
        followed = sum(bool(w["events"]) and w["events"][0]["connected"] for w in json.loads(self.debug("workers"))["workers"])
        return super().ready() and followed == POOLS * POOL_WORKERS


class Prompts:
    """Prompts of a known number of tokens: words of the model's vocabulary that are one token each, in an order by seed."""

    def __init__(self, model):
        vocabulary = json.loads((pathlib.Path(model) / "tokenizer.json").read_text())["model"]["vocab"]
        self.words = sorted(t[1:] for t in vocabulary if len(t) > 3 and t[0] == "Ġ" and t[1:].isascii() and t[1:].isalpha() and t[1:].islower())
        if len(self.words) < 100:
            raise Failed(f"{model} has {len(self.words)} words of one token, at least 100 are needed")

    def text(self, seed, n):
        return " ".join(random.Random(seed).choices(self.words, k=n))

    def write(self, path, workload, rep, streams, count):
        """One prompt a line, as GuideLLM reads them: the prefixes depend on the repetition alone, the rest on the level, too."""
        load = WORKLOADS[workload]
        prefixes = [self.text(f"{workload} {rep} prefix {i}", load["prefix_tokens"]) for i in range(load["prefixes"])]
        rng = random.Random(f"{workload} {rep} {streams}")
        with open(path, "w") as f:
            for i in range(count):
                row = {"prompt": self.text(f"{workload} {rep} {streams} {i}", load["fresh_tokens"]), "output_tokens_count": load["output_tokens"]}
                if prefixes:
                    row["prefix"] = rng.choice(prefixes)
                f.write(json.dumps(row) + "\n")


class Bench:
    def __init__(self, args):
        self.args, self.out, self.logs = args, pathlib.Path(args.out), pathlib.Path(args.logs)
        self.prompts = Prompts(args.model)
        self.more = pathlib.Path(args.more).read_text() if args.more else ""
        self.results = article_report.read(self.out)

    def run_all(self):
        failed = 0
        for rep in range(1, self.args.reps + 1):
            for workload in self.args.workloads:
                for name in self.args.routers:
                    run = {"router": name + self.args.suffix, "workload": workload, "rep": rep, "scale": self.args.scale,
                           "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                           "commit": guidellm_run.commit(), "machine": guidellm_run.machine(), "levels": []}
                    try:
                        self.measure(run, ROUTERS[name])
                    except Exception as e:  # a run is reported, whatever it died of, and the others go on
                        run["failed"] = str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
                        failed += 1
                        print(f"{workload} {run['router']} FAILED: {run['failed']}", flush=True)
                    article_report.keep(self.out, self.results, run)
        return failed

    def measure(self, run, strategy):
        logs = self.logs / f"{run['rep']}-{run['workload']}-{run['router']}-{run['scale']}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        workers = Workers(self.args.sluice, run["scale"], run["rep"], logs)
        try:
            # The others are ways to route; the queue is part of what the gateway does by itself.
            more = self.more if strategy == "ttft" or "qos:" in self.more else self.more + "qos: { enabled: false }\n"
            gateway = Gateway(self.args, strategy, more, workers.urls, logs)
            with open(logs / "gateway.log", "w") as log:
                process = subprocess.Popen(gateway.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                self.await_gateway(gateway, process)
                for streams in self.args.streams or WORKLOADS[run["workload"]]["streams"]:
                    run["levels"].append(self.level(run, streams, gateway, process, workers, logs))
                    print(f"{run['workload']:<11} {run['router']:<14} " + article_report.line(run["levels"][-1]), flush=True)
                run["view"] = gateway.view()
            finally:
                end(process)
        finally:
            end(workers.process)

    def await_gateway(self, gateway, process):
        def ready():
            if process.poll() is not None:
                raise Failed(f"the gateway ended with {process.returncode}: see gateway.log")
            return gateway.ready()
        patiently("the gateway to be ready", READY_SECONDS, ready)
        post(gateway.url + "/v1/chat/completions",
             {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}, READY_SECONDS, gateway.key)

    def level(self, run, streams, gateway, process, workers, logs):
        load, scale = WORKLOADS[run["workload"]], run["scale"]
        warm, whole = load["warm"] * scale, (load["warm"] + load["measured"]) * scale
        data = logs / "prompts.jsonl"
        # No answer takes less than the steps of its tokens, so these are enough for the time.
        count = 2 * streams + int(streams * (load["warm"] + load["measured"]) / (load["output_tokens"] * 0.032))
        self.prompts.write(data, run["workload"], run["rep"], streams, count)
        cpu = lambda: {"gateway": guidellm_run.processor_seconds(process.pid), "workers": guidellm_run.processor_seconds(workers.process.pid),
                       "machine": guidellm_run.machine_seconds(), "own": guidellm_run.own_seconds()[0], "guidellm": guidellm_run.own_seconds()[1]}
        before, used, start = workers.counters(), cpu(), time.monotonic()
        record = guidellm_run.run(self.args.guidellm, gateway, MODEL, {
            "profile": {"kind": "concurrent", "streams": [streams]},
            "constraints": [{"kind": "max_duration", "seconds": whole}],
            "tokenizer": {"kind": "huggingface_auto", "model": self.args.model},
            "data": [{"kind": "json_file", "path": str(data)}],
            "data_loader": {"kind": "pytorch", "samples": count},
            "seed": {"kind": "static", "value": run["rep"]},
        }, logs, whole + 180)
        elapsed = time.monotonic() - start
        used = {k: v - used[k] for k, v in cpu().items()}
        grown = [{k: a[k] - b[k] for k in a} for a, b in zip(workers.counters(), before)]
        shutil.rmtree(logs / "hf", ignore_errors=True)
        data.unlink()
        others = used["machine"] - sum(v for k, v in used.items() if k != "machine")
        prompt = sum(g["prompt"] for g in grown)
        return {"streams": streams} | article_report.summary(record, warm, whole, scale) | {
            "cached_share": round(sum(g["cached"] for g in grown) / prompt, 3) if prompt else None,
            "preempted": round(sum(g["preempted"] for g in grown)), "finished_per_worker": [round(g["finished"]) for g in grown],
            # Processors used on average from the start of GuideLLM to its end.
            "processors": {k: round(used[k] / elapsed, 2) for k in ("gateway", "workers", "guidellm")} | {"others": round(max(0.0, others) / elapsed, 2)},
        }


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ["guidellm", "sluice", "model", "policies", "out", "logs"]:
        p.add_argument("--" + name, required=True)
    p.add_argument("--routers", nargs="+", required=True, choices=ROUTERS)
    p.add_argument("--workloads", nargs="+", required=True, choices=WORKLOADS)
    p.add_argument("--streams", nargs="+", type=int, help="levels of concurrency, in place of the workload's")
    p.add_argument("--scale", type=float, required=True, help="time scale: 0.25 is four times as fast")
    p.add_argument("--reps", type=int, required=True)
    p.add_argument("--more", help="file with further sections of the gateway's configuration")
    p.add_argument("--suffix", default="", help="what tells these runs from others of the same routers")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a run that is broken off ends what it started
    bench = Bench(p.parse_args())
    failed = bench.run_all()
    print((bench.out / "table.md").read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
