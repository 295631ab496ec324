"""The table of engine.py's results: medians over the repetitions, with their spread.

  python3 deploy/bench/engine_report.py FOLDER     writes FOLDER/table.md again from FOLDER/results.json
"""

import json
import pathlib
import statistics
import sys


def spread_of(values, digits=1):
    """Median, p90 and mean; p90 is the least value that nine in ten do not exceed."""
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), digits), "p90": round(ordered[-(-len(ordered) * 9 // 10) - 1], digits),
            "mean": round(statistics.fmean(ordered), digits)}


def line(run):
    """One run in a few words."""
    t = run["ttft_ms"]
    return (f"TTFT {t['median']:.0f} / {t['p90']:.0f} / {t['mean']:.0f} ms, {run['requests_per_second']:.2f} req/s, "
            f"{run['computed_tokens']} tokens computed, {run['errors']} errors, others used {run['others_share']:.0%}")


def field(run, path):
    for key in path.split("."):
        run = run[key]
    return run


def across(runs, path, form="{:.0f}"):
    """Median over the repetitions, and from least to most where there are several."""
    values = [field(r, path) for r in runs]
    text = form.format(statistics.median(values))
    if len(values) > 1 and form.format(min(values)) != form.format(max(values)):
        text += f" ({form.format(min(values))}–{form.format(max(values))})"
    return text


COLUMNS = [
    ("TTFT median, ms", "ttft_ms.median", "{:.0f}"), ("p90", "ttft_ms.p90", "{:.0f}"), ("mean", "ttft_ms.mean", "{:.0f}"),
    ("req/s", "requests_per_second", "{:.2f}"), ("end-to-end median, ms", "e2e_ms.median", "{:.0f}"), ("mean", "e2e_ms.mean", "{:.0f}"),
    ("prompt tokens computed", "computed_tokens", "{:.0f}"), ("router CPU, s", "cpu_seconds.router", "{:.1f}"),
]


def table(results):
    meta, out = results["meta"], []
    for workload, load in meta["workloads"].items():
        runs = [r for r in results["runs"] if r["workload"] == workload]
        good = [r for r in runs if "failed" not in r]
        out += [f"### {workload}", "", f"{load['about']}; {load['streams']} streams, {load['requests']} requests, {load['data']['output_tokens']} output tokens.", ""]
        out += ["| router | " + " | ".join(c[0] for c in COLUMNS) + " | errors | runs |", "|---|" + "---|" * (len(COLUMNS) + 2)]
        for name in dict.fromkeys(r["router"] for r in runs):
            mine = [r for r in good if r["router"] == name]
            all_of = [r for r in runs if r["router"] == name]
            if mine:
                cells = [across(mine, path, form) for _, path, form in COLUMNS]
                out.append(f"| {name} | " + " | ".join(cells) + f" | {sum(r['errors'] for r in mine)} | {len(mine)} of {len(all_of)} |")
            else:
                out.append(f"| {name} | " + " | ".join("–" for _ in COLUMNS) + f" | – | 0 of {len(all_of)} |")
        out += ["", *compare(good), *failures(runs), ""]
    out += predictions(results["runs"])
    busy = [r["others_share"] for r in results["runs"] if "failed" not in r]
    if busy:
        out += [f"Other programs used {statistics.median(busy):.0%} of the processors at the median run, {max(busy):.0%} at the worst.", ""]
    versions = ", ".join(f"{k} {v}" for k, v in meta["versions"].items())
    out += [f"{meta['started']}, commit {meta['commit']}, {meta['machine']}; {versions}.", ""]
    out += ["Commands:", "", *(f"- `{c}`" for c in meta["commands"].values()), ""]
    return "\n".join(out)


def compare(good):
    """Sluice against the best of the others, workload by workload, on the medians over the repetitions."""
    middle = lambda name, path: statistics.median(field(r, path) for r in good if r["router"] == name)
    others = sorted({r["router"] for r in good} - {"sluice"})
    if not others or not any(r["router"] == "sluice" for r in good):
        return []
    parts = []
    for what, path, best in (("mean TTFT", "ttft_ms.mean", min), ("computed tokens", "computed_tokens", min), ("req/s", "requests_per_second", max)):
        rival = best(others, key=lambda n: middle(n, path))
        parts.append(f"{what} {middle('sluice', path) / middle(rival, path):.2f}x of {rival}")
    return ["Sluice against the best other router: " + ", ".join(parts) + ".", ""]


def failures(runs):
    """Runs that gave no figures, and repetitions whose routers did not get the same prompts."""
    out = [f"- {r['router']}, repetition {r['rep']}: {r['failed']}" for r in runs if "failed" in r]
    for rep in dict.fromkeys(r["rep"] for r in runs):
        sums = {r["prompt_tokens"] for r in runs if r["rep"] == rep and "failed" not in r and not r["errors"]}
        if len(sums) > 1:
            out.append(f"- repetition {rep}: the routers did not get the same prompts, their tokens were {sorted(sums)}")
    return out


def predictions(runs):
    seen = [r for r in runs if r["router"] == "sluice" and r.get("router_view")]
    if not seen:
        return []
    out = ["### Sluice's predictions", "", "| workload | error median | p90 | within the predicted P90 | predictions |", "|---|---|---|---|---|"]
    for workload in dict.fromkeys(r["workload"] for r in seen):
        mine = [r for r in seen if r["workload"] == workload]
        cells = [across(mine, f"router_view.{k}", "{:.0%}") for k in ("error_median", "error_p90", "within_p90")]
        out.append(f"| {workload} | " + " | ".join(cells) + f" | {sum(r['router_view']['predictions'] for r in mine)} |")
    return [*out, ""]


def write(folder, results):
    """Keeps the results and the table of them, each whole or not at all."""
    for name, text in (("results.json", json.dumps(results, indent=1) + "\n"), ("table.md", table(results))):
        part = folder / (name + ".part")
        part.write_text(text)
        part.replace(folder / name)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1])
    write(where, json.loads((where / "results.json").read_text()))
