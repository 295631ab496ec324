"""Runs GuideLLM once and reads its record of each request; what a run used of the machine. Used by engine.py and article.py."""

import json
import os
import pathlib
import platform
import resource
import signal
import subprocess

from engine_routers import Failed

VERSION = "0.8.1"
TICK = os.sysconf("SC_CLK_TCK")
# A request ends by then, whatever happens.
REQUEST_SECONDS = 120


def run(program, router, model, spec, logs, seconds):
    """Sends the load of spec to a router and returns GuideLLM's record of each request, within so many seconds."""
    result, scenario = logs / "guidellm.json", logs / "scenario.json"
    scenario.touch(mode=0o600)
    scenario.write_text(json.dumps({"spec": {
        "backend": {"kind": "openai_http", "target": router.url, "model": model, "validate_backend": False,
                    "timeout": REQUEST_SECONDS, "http2": False, "extras": {"body": {"temperature": 0}}}
                   | ({"api_key": router.key} if router.key else {}),
        "outputs": [{"kind": "json", "path": str(result)}],
        "metrics": {"kind": "generative", "sample_size": 0},
    } | spec}))
    # One process is enough for what two processors can serve; each further one costs seconds of their time to start.
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(logs / "hf"), "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    with open(logs / "guidellm.log", "w") as log:
        process = subprocess.Popen([f"{program}/bin/guidellm", "run", "--scenario", str(scenario), "--disable-console"],
                                   stdout=log, stderr=subprocess.STDOUT, env=env, cwd=logs, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"GuideLLM did not end within {seconds} s") from None
    finally:
        end(process)
        scenario.unlink()
    if code != 0 or not result.exists():
        raise Failed(f"GuideLLM ended with {code}: see guidellm.log")
    record = json.loads(result.read_text())["benchmarks"][0]["requests"]
    result.unlink()
    if not record["successful"]:
        raise Failed(f"no request succeeded, {len(record['errored'])} failed: {first_error(record)}")
    return record


def processor_seconds(root):
    """Processor time of a process and all below it, those that ended included."""
    total, level = 0, [root]
    while level:
        below = []
        for pid in level:
            try:
                with open(f"/proc/{pid}/stat") as f:
                    total += sum(map(int, f.read().rsplit(") ", 1)[1].split()[11:15]))
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children") as f:
                        below += map(int, f.read().split())
            except (FileNotFoundError, ProcessLookupError):
                pass
        level = below
    return total / TICK


def machine_seconds():
    """Processor time that the machine has spent on anything, and time that others took from it."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _iowait, irq, soft, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICK


def own_seconds():
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, ended.ru_utime + ended.ru_stime


def first_error(record):
    return next((str(r["info"].get("error"))[:200] for r in record["errored"]), "no reason given")


def first_token_ms(request):
    """GuideLLM's own figure, or, for an answer of tokens that are no text, the first event of the stream.

    vLLM sends that event with the first token. A model of random weights has such answers now and then.
    """
    if request["time_to_first_token_ms"] is not None:
        return request["time_to_first_token_ms"]
    timings = request["info"]["timings"]
    return 1000 * (timings["first_request_iteration"] - timings["request_start"])


def end(process):
    """Ends a process and its group."""
    for sig, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


def machine():
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} processors, Linux {platform.release()}"


def commit():
    run = subprocess.run(["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"
