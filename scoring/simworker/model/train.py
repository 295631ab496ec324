#!/usr/bin/env python3
"""Train the tokenizer of the demo model.

    python3 -m venv DIR && DIR/bin/pip install tokenizers
    DIR/bin/python train.py

It writes tokenizer.json and tokenizer_config.json beside itself: a byte-level
byte pair encoding with a small vocabulary. It learns from the text of this
repository, as it is when the script runs, and from sentences that the script
makes up with a fixed seed. No other text goes in. The chat template is written
by hand, in chat_template.jinja.
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VOCABULARY = 4096
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

PEOPLE = """the customer|our team|the analyst|a new colleague|the support desk|the auditor|the
manager|an engineer|the finance department|the security officer|my neighbour|the teacher|a student|
the doctor|the editor|the driver|a visitor|the committee|the supplier|the project lead""".replace("\n", "").split("|")
ACTIONS = """asked about|wrote down|checked|explained|forgot|found|sent|reviewed|translated|summarised|
compared|rejected|approved|described|measured|repaired|ordered|returned|planned|counted|collected|
published|discussed|tested|cancelled|answered|opened|closed|moved|shared""".replace("\n", "").split("|")
THINGS = """the quarterly report|the invoice|a long contract|the meeting notes|the test results|the
delivery|a broken machine|the travel request|the budget|the weather data|the release plan|a short
poem|the recipe|the train timetable|the password policy|the customer list|a list of rivers|the
database backup|the error message|the shipping address|the price table|the survey|the manual|the
garden|the music lesson|the photograph|the bicycle|the medicine|the energy bill|the road map""".replace("\n", "").split("|")
TIMES = """yesterday|this morning|last week|before lunch|after the meeting|on Monday|in January|at the
end of the month|during the night|two days ago|next year|as soon as possible|every Friday|within one
hour|in the second quarter""".replace("\n", "").split("|")
REASONS = """because the deadline is close|although nobody had asked for it|so that everyone can read it|
since the numbers did not match|while the system was being upgraded|in order to save time|without
looking at the details|even though it was raining|which surprised all of us|and then went home""".replace("\n", "").split("|")
QUESTIONS = """Could you please summarise|Please explain|What is the difference between|Write a short
answer about|Translate into German|Give me three reasons for|How do I fix|Why does it matter that|
List the main points of|Rewrite in plain English""".replace("\n", "").split("|")
CODE = [
    "def add(a, b):\n    return a + b\n",
    "for i in range({n}):\n    print(i, values[i])\n",
    "SELECT name, count(*) FROM orders WHERE total > {n} GROUP BY name;\n",
    "if err != nil {{\n\treturn fmt.Errorf(\"cannot read %s: %w\", name, err)\n}}\n",
    "const total = items.map((item) => item.price).reduce((a, b) => a + b, 0);\n",
    '{{"name": "get_weather", "arguments": {{"city": "Paris", "days": {n}}}}}\n',
    '{{"type": "function", "function": {{"name": "search", "description": "Look something up", '
    '"parameters": {{"type": "object", "properties": {{"query": {{"type": "string"}}}}}}}}}}\n',
]
OTHER = [
    "Der Bericht wurde gestern geprüft, weil die Zahlen nicht stimmten.\n",
    "Le client a demandé une réponse avant la fin du mois.\n",
    "El equipo encontró un error en la factura y lo corrigió.\n",
    "今日は天気がいいので、散歩に行きましょう。\n",
    "请用三句话总结这份报告的主要内容。\n",
    "Сегодня утром мы получили новый договор.\n",
]


def sentences(count):
    """Sentences, questions and snippets, the same in every run."""
    rng = random.Random(20)
    for i in range(count):
        who, did, what = rng.choice(PEOPLE), rng.choice(ACTIONS), rng.choice(THINGS)
        when, why = rng.choice(TIMES), rng.choice(REASONS)
        n = rng.randrange(1, 5000)
        kind = rng.randrange(8)
        if kind < 3:
            yield f"{who.capitalize()} {did} {what} {when}, {why}. "
        elif kind == 3:
            yield f"{rng.choice(QUESTIONS)} {what} that {who} {did} {when}?\n"
        elif kind == 4:
            yield f"{i}. {what.capitalize()}: {n} items, {n / 100:.2f} EUR, {when}.\n"
        elif kind == 5:
            yield f"You are a helpful assistant. Answer briefly. {who.capitalize()} {did} {what}.\n\n"
        elif kind == 6:
            yield rng.choice(CODE).format(n=n)
        else:
            yield rng.choice(OTHER)


def repository():
    """The text of the repository itself, file by file."""
    skipped = {".git", ".cache", "bin", "lib", "target", "testdata", "model"}
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in {".go", ".md", ".rs", ".yaml"} and not skipped.intersection(parts):
            yield path.read_text(encoding="utf-8")


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*repository(), *sentences(20000)], trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    tokenizer.save(str(HERE / "tokenizer.json"), pretty=False)

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
