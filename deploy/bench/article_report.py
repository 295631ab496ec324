"""What article.py makes of GuideLLM's records, and the tables of it.

  python3 deploy/bench/article_report.py FOLDER     writes FOLDER/table.md again from FOLDER/results.json
"""

import json
import pathlib
import statistics
import sys

from engine_report import across, spread_of

# The objective of the published benchmark: first tokens within so many seconds, for so many requests.
OBJECTIVE, SHARE = 8.0, 0.9
# What was published: median first token and end-to-end with a random Service and with the product, s, and peak goodput, a minute.
PUBLISHED = {"random": (6.88, 20.5, 14), "product": (0.31, 11.3, 103)}


def first_token(request):
    """When a request's first token came, or None."""
    timings = request["info"]["timings"]
    return timings.get("first_token_iteration") or timings.get("first_request_iteration")


def summary(record, warm, whole, scale):
    """Figures of the time after warm, in seconds of the model.

    First tokens are those of requests that started long enough before the end for the objective to be decided; one that
    had none by then counts with the time it had waited. End-to-end times and rates are of the requests that ended
    within the time, as GuideLLM's are. A request that failed has missed the objective.
    """
    every = [(kind, r) for kind in ("successful", "incomplete", "errored") for r in record[kind] if r["request_start_time"] is not None]
    zero = min(r["request_start_time"] for _, r in every)
    begin, stop = zero + warm, zero + whole
    waits, met, decided, ended, good, failed = [], 0, 0, [], 0, 0
    for kind, r in every:
        start, first = r["request_start_time"], first_token(r)
        wait = ((first if first else max(r["request_end_time"], stop)) - start) / scale
        fine = kind != "errored" and first is not None and wait <= OBJECTIVE
        if begin <= start <= stop - OBJECTIVE * scale:
            decided, met = decided + 1, met + fine
            if kind != "errored":
                waits.append(wait)
        if begin <= r["request_end_time"] <= stop:
            failed += kind == "errored"
            if kind == "successful":
                ended.append(r["request_latency"] / scale)
                good += fine
    minutes = (whole - warm) / scale / 60
    return {
        "requests": decided, "failed": failed, "met": round(met / decided, 4) if decided else None,
        "first_error": next((str(r["info"].get("error"))[:200] for r in record["errored"]), None),
        "ttft_s": spread_of(waits, 3) if waits else None, "e2e_s": spread_of(ended, 3) if ended else None,
        "finished_per_minute": round(len(ended) / minutes, 1), "goodput_per_minute": round(good / minutes, 1),
    }


def line(level):
    """One level in a few words."""
    t, e, p = level["ttft_s"], level["e2e_s"], level["processors"]
    if not t or not e:
        return f"{level['streams']:>4} streams: nothing ended, {level['failed']} failed"
    return (f"{level['streams']:>4} streams: TTFT {t['median']:.2f} / {t['p90']:.2f} s, end-to-end {e['median']:.1f} s, "
            f"{level['met']:.1%} met, goodput {level['goodput_per_minute']:.0f}/min, cached {level['cached_share'] or 0:.0%}, {level['failed']} failed, "
            f"processors: gateway {p['gateway']}, workers {p['workers']}, GuideLLM {p['guidellm']}, others {p['others']}")


def peaks(run):
    """Peak goodput, a minute: over all levels, and over those at which enough requests met the objective."""
    levels = [l for l in run["levels"] if l["met"] is not None]
    strict = [l["goodput_per_minute"] for l in levels if l["met"] >= SHARE]
    return {"any": max((l["goodput_per_minute"] for l in levels), default=0), "strict": max(strict, default=0)}


def point(runs):
    """The level that stands for the published one: the last at which random still meets the objective, or its lowest."""
    levels = [l for r in runs if r["router"] == "random" for l in r["levels"] if l["met"] is not None]
    good = [l["streams"] for l in levels if l["met"] >= SHARE]
    return max(good, default=min((l["streams"] for l in levels), default=None))


def table(results):
    out = []
    for workload in dict.fromkeys(r["workload"] for r in results):
        for scale in sorted({r["scale"] for r in results if r["workload"] == workload}):
            out += section(workload, scale, [r for r in results if r["workload"] == workload and r["scale"] == scale])
    return "\n".join(out) + "\n"


def section(workload, scale, runs):
    out = [f"### {workload}, time scale {scale}", ""]
    good = [r for r in runs if "failed" not in r]
    out += ["| | streams | TTFT median, s | p90 | end-to-end median, s | met | finished a minute | goodput a minute | cached | failed | processors: gateway, workers, GuideLLM, others |", "|" + "---|" * 11]
    for name in dict.fromkeys(r["router"] for r in good):
        mine = [r for r in good if r["router"] == name]
        for streams in dict.fromkeys(l["streams"] for r in mine for l in r["levels"]):
            levels = [l for r in mine for l in r["levels"] if l["streams"] == streams and l["ttft_s"] and l["e2e_s"]]
            if not levels:
                continue
            cells = [across(levels, path, form) for path, form in (
                ("ttft_s.median", "{:.2f}"), ("ttft_s.p90", "{:.2f}"), ("e2e_s.median", "{:.1f}"), ("met", "{:.1%}"), ("finished_per_minute", "{:.0f}"),
                ("goodput_per_minute", "{:.0f}"), ("cached_share", "{:.0%}"))]
            used = ", ".join(f"{statistics.median(l['processors'][k] for l in levels):.2f}" for k in ("gateway", "workers", "guidellm", "others"))
            out.append(f"| {name} | {streams} | " + " | ".join(cells) + f" | {sum(l['failed'] for l in levels)} | {used} |")
    out += ["", *summing_up(good), *(f"- {r['router']}, repetition {r['rep']}: {r['failed']}" for r in runs if "failed" in r)]
    if good:
        last = good[-1]
        out += [f"{min(r['started'] for r in good)} to {max(r['started'] for r in good)}, commit {', '.join(dict.fromkeys(r['commit'] for r in good))}, {last['machine']}, GuideLLM 0.8.1.", ""]
    return out


def summing_up(good):
    """One row for each way: at the level that stands for the published one, and at its best."""
    at = point(good)
    if at is None:
        return []
    out = [f"At {at} streams, the last level at which random met the objective (or its lowest), and at each one's best:", "",
           "| | TTFT median, s | end-to-end median, s | peak goodput a minute, where 90 % met | peak goodput a minute, any level |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(r["router"] for r in good):
        mine = [r for r in good if r["router"] == name]
        levels = [l for r in mine for l in r["levels"] if l["streams"] == at and l["ttft_s"] and l["e2e_s"]]
        if levels:
            out.append(f"| {name} | {across(levels, 'ttft_s.median', '{:.2f}')} | {across(levels, 'e2e_s.median', '{:.1f}')} | "
                       + " | ".join(across([peaks(r) for r in mine], k, "{:.0f}") for k in ("strict", "any")) + " |")
    for name, (ttft, e2e, goodput) in PUBLISHED.items():
        out.append(f"| published: {name} | {ttft} | {e2e} | {goodput} | |")
    return [*out, ""]


def read(folder):
    path = pathlib.Path(folder) / "results.json"
    return json.loads(path.read_text()) if path.exists() else []


def keep(folder, results, run):
    """Adds a run to the results, in place of the same one before, and writes them with their table."""
    same = lambda r: all(r[k] == run[k] for k in ("router", "workload", "rep", "scale"))
    results[:] = [r for r in results if not same(r)] + [run]
    write(pathlib.Path(folder), results)


def write(folder, results):
    """Each file whole or not at all."""
    for name, text in (("results.json", json.dumps(results, indent=1) + "\n"), ("table.md", table(results))):
        part = folder / (name + ".part")
        part.write_text(text)
        part.replace(folder / name)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1])
    write(where, read(where))
