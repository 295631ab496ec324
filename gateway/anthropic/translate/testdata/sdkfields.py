"""Writes sdk_fields.txt: every field of every type that the Anthropic SDK for Python
lets a caller put into a messages or count_tokens request.

    python -m venv venv && venv/bin/pip install anthropic==VERSION
    venv/bin/python sdkfields.py > sdk_fields.txt

A line is a type, a field, the constants it may be (or -), and the types of objects
it may hold (or -).
"""


import anthropic
import typing_extensions
from anthropic.types import message_count_tokens_params, message_create_params

ROOTS = (
    message_create_params.MessageCreateParamsNonStreaming,
    message_create_params.MessageCreateParamsStreaming,
    message_count_tokens_params.MessageCountTokensParams,
)


def is_object(t):
    return isinstance(t, type) and issubclass(t, dict) and hasattr(t, "__total__")


def parts(t):
    """The constants and object types that a type is made of."""
    if is_object(t):
        return [], [t]
    consts, objects = [], []
    for arg in typing_extensions.get_args(t):
        if typing_extensions.get_origin(t) is typing_extensions.Literal:
            consts.append(str(arg).lower() if isinstance(arg, bool) else str(arg))
            continue
        more = parts(arg)
        consts += more[0]
        objects += more[1]
    return consts, objects


def main():
    types, todo = {}, list(ROOTS)
    while todo:
        t = todo.pop()
        if t.__name__ in types:
            continue
        types[t.__name__] = rows = {}
        for field, hint in typing_extensions.get_type_hints(t).items():
            consts, objects = parts(hint)
            if field == "model":
                consts = []
            rows[field] = (sorted(set(consts)), sorted({o.__name__ for o in objects}))
            todo += objects
    print("# anthropic", anthropic.__version__)
    for name in sorted(types):
        for field in sorted(types[name]):
            consts, objects = types[name][field]
            print(name, field, ",".join(consts) or "-", ",".join(objects) or "-")


if __name__ == "__main__":
    main()
