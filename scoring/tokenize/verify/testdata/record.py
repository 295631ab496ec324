#!/usr/bin/env python3
"""Record the ids that the engine's own code finds for the probes.

    python record.py TOKENIZERS

TOKENIZERS holds a folder for each of the four models, as fetch.sh of the parent
package puts them into the cache. It needs an environment with vLLM 0.32.0 and
runs the engine's request code and the tokenizer class that the engine loads,
without a model. The recorded parity corpora are done first: the ids must be
those of the real /tokenize. The results are the files in engine/, with null
where the engine refuses a probe.
"""

import importlib.util
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARENT = HERE.parent.parent / "testdata"

spec = importlib.util.spec_from_file_location("record_templates", PARENT / "record.py")
templates = importlib.util.module_from_spec(spec)
spec.loader.exec_module(templates)


def prompts(tokenizer, body):
    if "prompt" in body:
        texts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        special = body.get("add_special_tokens", True)
    else:
        texts = [templates.render(tokenizer, None, None, {"model": "m", **body})]
        special = body.get("add_special_tokens", False)
    return [tokenizer.encode(text, add_special_tokens=special) for text in texts]


def attempt(tokenizer, body):
    try:
        return prompts(tokenizer, body)
    except Exception as e:
        print(f"refused: {type(e).__name__}", file=sys.stderr)
        return None


def main():
    probes = json.loads((HERE / "probes.json").read_text(encoding="utf-8"))
    for model in ["qwen3", "llama3_1", "gemma3", "deepseek_v3"]:
        tokenizer = templates.AutoTokenizer.from_pretrained(str(Path(sys.argv[1]) / model))
        for row in json.loads((PARENT / "parity" / f"{model}.json").read_text(encoding="utf-8")):
            got, want = attempt(tokenizer, row["request"]), row.get("token_ids")
            if got != (None if want is None else [want]):
                sys.exit(f"{model} {row['name']}: got {got}, /tokenize answered {want}")
        out = [attempt(tokenizer, p["body"]) for p in probes]
        lines = ",\n".join(json.dumps(ids, separators=(",", ":")) for ids in out)
        (HERE / "engine" / f"{model}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
