"""Decodes the recordings with Python's msgpack and prints what the Go decoder
must find in them, one object per frame. Needs the package msgpack.

    python3 expect.py > expected.json
"""
import base64
import json
import os
import struct
import zlib

import msgpack

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    with open(os.path.join(HERE, name)) as f:
        return json.load(f)


def hex8(h):
    return "" if h is None else "%016x" % h


def event(e):
    hashes = e.get("block_hashes") or []
    tokens = e.get("token_ids") or []
    out = {
        "type": e["type"],
        "hashes": [hex8(h) for h in hashes],
        "parent": hex8(e.get("parent_block_hash")),
        "tokens": len(tokens),
        "tokens_crc": zlib.crc32(struct.pack("<%dI" % len(tokens), *tokens)),
        "block_size": e.get("block_size") or 0,
        "group": e.get("group_idx") or 0,
        "medium": e.get("medium"),
        "salt": "",
    }
    for keys in e.get("extra_keys") or []:
        for key in keys or []:
            out["salt"] = key
    return out


def frame(seq, payload):
    ts, events, rank = msgpack.unpackb(payload)
    return {"seq": seq, "ts": ts, "rank": rank, "events": [event(e) for e in events]}


def held(frames):
    """Adds to each frame how many blocks the cache holds after it, as a set of
    hashes knows it. A block whose parent was stored before the recording can't
    be placed in a prompt, so it doesn't count."""
    blocks = set()
    for f in frames:
        for e in f["events"]:
            if e["type"] == "BlockStored":
                if e["parent"] and e["parent"] not in blocks:
                    continue
                blocks.update(e["hashes"])
            elif e["type"] == "BlockRemoved":
                blocks.difference_update(e["hashes"])
            else:
                blocks.clear()
        f["held"] = len(blocks)


def main():
    live = [
        frame(f["seq"], base64.b64decode(f["payload_b64"]))
        for f in load("kv_events.json")["kv_event_frames"]
    ]
    held(live)
    replay = []
    recorded = load("kv_replay.json")
    for reply in recorded["reply_frames_b64_first_5"] + recorded["reply_frames_b64_last_2"]:
        _, _, seq, payload = [base64.b64decode(f) for f in reply]
        if payload:
            replay.append(frame(int.from_bytes(seq, "big"), payload))
    print(json.dumps({"live": live, "replay": replay}, separators=(",", ":")))


main()
