"""The stage of the clients' tests: simulated workers, the gateway before them, and a page of control.

Prints one line of JSON once all of it serves, then answers until it is ended:

  GET  /rows?tenant=T          the ledger's rows of a tenant, oldest first
  GET  /running?client=C       requests that the client's worker for faults works on
  POST /fault?client=C         a fault for that worker, as POST /sim/fault takes it
"""
import argparse
import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

TENANTS = {
    # What each tenant of a client is for; the policies below go by the label.
    "main": "",
    "off": "disabled: true",
    "denied": "labels: { case: denied }",
    "rate": "labels: { case: rate }",
    "quota": "labels: { case: quota }",
}

POLICIES = """apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: clients }
spec:
  validations:
    - { name: denied, expression: "tenant.labels[?'case'].orValue('') != 'denied'", message: this tenant may do nothing }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: clients }
spec: { policyName: clients, actions: [Deny] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: rate }
spec:
  matchConditions:
    - { name: rate, expression: "tenant.labels[?'case'].orValue('') == 'rate'" }
  limits:
    - { name: requests, unit: requests, window: @WINDOW@, limit: "1", key: [tenant.id] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: rate }
spec: { policyName: rate, actions: [Deny] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: quota }
spec:
  matchConditions:
    - { name: quota, expression: "tenant.labels[?'case'].orValue('') == 'quota'" }
  limits:
    - { name: requests, unit: requests, window: month, limit: "1", key: [tenant.id] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: quota }
spec: { policyName: quota, actions: [Deny] }
"""

children = []


def start(args, log, **kw):
    child = subprocess.Popen(args, stderr=open(log, "ab"), **kw)
    children.append(child)
    return child


def workers(opts, name, *flags):
    """Simulated workers of one process; returns their URLs."""
    child = start([opts.sluice, "simworker", "--no-events", "--fault-api", "--tool-calls", "--time-scale", "0.02",
                   "--max-model-len", opts.context, *flags],
                  f"{opts.work}/{name}.log", stdout=subprocess.PIPE, text=True)
    line = child.stdout.readline()
    if not line:
        sys.exit(f"the workers {name} ended: " + open(f"{opts.work}/{name}.log").read())
    return [w["url"] for w in json.loads(line)["workers"]]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def configure(opts):
    """Writes the gateway's files and starts the workers; returns what the scripts are told."""
    clients = opts.clients.split()
    work = pathlib.Path(opts.work)
    (work / "policies").mkdir()
    (work / "policies" / "clients.yaml").write_text(POLICIES.replace("@WINDOW@", "20s" if opts.worker else "10s"))
    (work / "cache.key").write_bytes(os.urandom(32))
    tenants = ["tenants:"]
    for client in clients:
        for case, extra in TENANTS.items():
            tenants.append(f"  - id: {client}-{case}")
            if extra:
                tenants.append(f"    {extra}")
    (work / "tenants.yaml").write_text("\n".join(tenants) + "\n")
    keys = {}
    for client in clients:
        for case in TENANTS:
            out = subprocess.run([opts.sluice, "keys", "create", "--tenants", str(work / "tenants.yaml"), "--tenant", f"{client}-{case}"],
                                 capture_output=True, text=True, check=True)
            keys[f"{client}-{case}"] = re.search(r"slk_[A-Za-z0-9_-]+", out.stdout).group()
    models, pools, faulty = [], [], {}

    def model(name, urls, endpoints="", **more):
        extra = "".join(f", {k}: {v}" for k, v in more.items())
        models.append(f"  - {{ name: {name}, contextLength: {opts.context}, defaultMaxTokens: 16{extra} }}")
        listed = ", ".join(f'{{ name: {name}-{i + 1}, url: "{u}", events: none }}' for i, u in enumerate(urls))
        pools.append(f'  - {{ name: {name}, models: [{name}], cacheSalt: ["*"]{endpoints}, workers: [{listed}] }}')

    if opts.worker:
        model("chat", [opts.worker], upstream=opts.model)
    else:
        model("chat", workers(opts, "chat", "--model", "chat"))
        model("embed", workers(opts, "embed", "--model", "embed", "--embeddings", "8"))
        # A chat pool without the Messages API, for which the gateway translates.
        model("old", workers(opts, "old", "--model", "old", "--no-messages"))
        for client in clients:
            faulty[client] = workers(opts, f"faulty-{client}", "--model", f"faulty-{client}")[0]
            model(f"faulty-{client}", [faulty[client]])
    # Nobody ever says what these workers offer, so the configuration does.
    model("down", [f"http://127.0.0.1:{free_port()}"], ", endpoints: [chat, messages]")
    public, admin = free_port(), free_port()
    lines = [
        "listen:", f'  public: {{ address: "127.0.0.1:{public}" }}', f'  admin: {{ address: "127.0.0.1:{admin}" }}',
        "tenants: { file: tenants.yaml }", "policy: { dir: policies }", "cacheIsolation: { default: tenant, keyFile: cache.key }",
        # Short, so that what takes too long does so soon; and no worker is set aside for the faults it is told to have.
        "limits: { bodyBytes: 256KiB, firstByteStream: 5s, firstByteUnary: 5s, streamIdle: 5s }",
        "health: { ejectAfter: 1000 }",
        "models:", *models, "pools:", *pools, "ledger: { path: ledger.db }", "drain: { delay: 0s, deadline: 5s }",
        "log: { level: info, format: json }",
    ]
    if opts.worker:
        lines = [line.replace("firstByteStream: 5s, firstByteUnary: 5s, streamIdle: 5s", "firstByteStream: 60s, firstByteUnary: 60s") for line in lines]
    (work / "sluice.yaml").write_text("\n".join(lines) + "\n")
    return {"base": f"http://127.0.0.1:{public}", "admin": f"http://127.0.0.1:{admin}", "keys": keys, "clients": clients,
            "simulated": not opts.worker}, faulty


def get(url):
    with urllib.request.urlopen(url, timeout=30) as resp:
        return resp.read()


def offers_all(told):
    """Whether the gateway knows that the workers have the Messages API: a real engine takes its time to say."""
    body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
    key = told["keys"][told["clients"][0] + "-main"]
    req = urllib.request.Request(told["base"] + "/v1/messages/count_tokens", body, {"Content-Type": "application/json", "x-api-key": key})
    try:
        urllib.request.urlopen(req, timeout=30).close()
        return True
    except urllib.error.HTTPError:
        return False


def await_gateway(child, told, opts):
    """Waits until the gateway is ready and serves every model but the one without a worker."""
    last = None
    for _ in range(2400):
        if child.poll() is not None:
            sys.exit("the gateway ended while starting: " + open(f"{opts.work}/sluice.log").read()[-3000:])
        try:
            get(told["base"] + "/readyz")
            ready = set(re.findall(rb'sluice_worker_ready\{[^}]*worker="([^"]+)"[^}]*\} 1', get(told["admin"] + "/metrics")))
            want = {b"chat-1"} if opts.worker else {b"chat-1", b"embed-1", b"old-1"} | {f"faulty-{c}-1".encode() for c in told["clients"]}
            if want <= ready and offers_all(told):
                return
            last = f"ready are {ready}, want {want}"
        except OSError as e:
            last = e
        time.sleep(0.05)
    sys.exit(f"the gateway did not become ready: {last}")


class Control(http.server.BaseHTTPRequestHandler):
    opts, faulty = None, {}

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/rows":
            db = sqlite3.connect(f"file:{self.opts.work}/ledger.db?mode=ro", uri=True)
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT request_id, model, operation, status, error_code, outcome, phase, input_tokens, output_tokens, start_ns, end_ns"
                              " FROM requests WHERE tenant = ? ORDER BY seq", (query["tenant"],)).fetchall()
            db.close()
            self.answer(200, [dict(r) for r in rows])
        elif url.path == "/running":
            text = get(self.faulty[query["client"]] + "/metrics").decode()
            self.answer(200, sum(float(m) for m in re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", text, re.M)))
        else:
            self.answer(404, "no such page")

    def do_POST(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        worker = urllib.parse.urlsplit(self.faulty[query["client"]])
        conn = http.client.HTTPConnection(worker.hostname, worker.port, timeout=30)
        conn.request("POST", "/sim/fault", body, {"Content-Type": "application/json"})
        resp = conn.getresponse()
        text = resp.read().decode()
        conn.close()
        self.answer(200 if resp.status < 300 else 500, text)

    def log_message(self, *args):
        pass


def main():
    p = argparse.ArgumentParser()
    for name in ("sluice", "work", "clients"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--worker")
    p.add_argument("--model")
    p.add_argument("--context", default="8192")
    opts = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        told, faulty = configure(opts)
        gateway = start([opts.sluice, "serve", "-c", f"{opts.work}/sluice.yaml"], f"{opts.work}/sluice.log")
        await_gateway(gateway, told, opts)
        Control.opts, Control.faulty = opts, faulty
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Control)
        told["control"] = f"http://127.0.0.1:{server.server_address[1]}"
        print(json.dumps(told), flush=True)
        server.serve_forever()
    finally:
        for child in reversed(children):
            child.terminate()
        for child in reversed(children):
            child.wait()


main()
