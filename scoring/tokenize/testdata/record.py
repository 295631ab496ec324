#!/usr/bin/env python3
"""Record what the engine's own code makes of the bodies in cases.json.

    python record.py TOKENIZER_DIR

TOKENIZER_DIR holds the qwen3 tokenizer files that fetch.sh puts into the cache.
It needs an environment with vLLM 0.32.0 and runs the engine's request
validation, message preparation and template rendering, without a model. The
result, engine.json, is what TestEngine compares with: the rendered text, or null
where the engine refuses the request.
"""

import copy
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import hf
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.params import merge_kwargs

HERE = Path(__file__).resolve().parent

# There is no processor, only a tokenizer.
hf._try_get_processor_chat_template = lambda *args, **kwargs: None
CONFIG = SimpleNamespace(
    allowed_local_media_path="",
    allowed_media_domains=None,
    code_revision=None,
    enable_prompt_embeds=False,
    hf_config=SimpleNamespace(model_type="qwen3"),
    is_multimodal_model=False,
    model="m",
    multimodal_config=None,
    revision=None,
    tokenizer="m",
    tokenizer_revision=None,
    trust_remote_code=False,
)


def render(tokenizer, template, defaults, body):
    request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(template, "auto").with_defaults(
        merge_kwargs(defaults, {"tools": tools, "tokenize": False})
    )
    content_format = hf.resolve_chat_template_content_format(
        params.chat_template,
        params.chat_template_kwargs.get("tools"),
        params.chat_template_content_format,
        tokenizer,
        model_config=CONFIG,
    )
    conversation, _, _ = parse_chat_messages(request.messages, CONFIG, content_format=content_format)
    return hf.safe_apply_chat_template(
        CONFIG, tokenizer, conversation, **params.get_apply_chat_template_kwargs()
    )


def main():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    cases = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    out = []
    for case in cases["cases"]:
        template = case.get("template")
        source = cases["templates"][template] if template else None
        body = {"model": "m", **case["body"]}
        try:
            text = render(tokenizer, source, case.get("defaults"), body)
            text.encode()  # half a surrogate pair cannot be tokenised
        except Exception as e:
            text = None
            print(f"{case['name']}: refused: {type(e).__name__}", file=sys.stderr)
        out.append({"name": case["name"], "text": text})
    (HERE / "engine.json").write_text(
        json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
