// The openai package of npm.
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_PATH + "/x.js"); // modules are not beside this file
const OpenAI = require("openai").OpenAI;
const version = JSON.parse(fs.readFileSync(process.env.NODE_PATH + "/openai/package.json")).version;
const stage = JSON.parse(fs.readFileSync(process.env.STAGE));
const messages = [{ role: "user", content: "Tell me about rivers and stones." }];
const tool = { type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };
const faulty = "faulty-npm";
let passed = 0;
let failed = 0;
const left = [];

console.log(`== npm: openai ${version}, node ${process.version}`);

const client = (name = "main", options = {}) =>
  new OpenAI({ apiKey: stage.keys[`npm-${name}`], baseURL: stage.base + "/v1", maxRetries: 0, timeout: 60000, ...options });
const chat = (c, more = {}, options = {}) => c.chat.completions.create({ model: "chat", messages, max_tokens: 12, ...more }, options);

async function test(what, run, simulated = false) {
  if (simulated && !stage.simulated) {
    left.push(what);
    return;
  }
  try {
    await run();
    passed++;
  } catch (e) {
    failed++;
    console.log(`FAIL npm: ${what}: ${e.stack}`);
  }
}

function same(got, want, what) {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`${what} is ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

async function raises(kind, fields, run) {
  let got;
  try {
    await run();
  } catch (e) {
    got = e;
  }
  if (!got) throw new Error(`nothing was thrown, want ${kind.name}`);
  if (got.constructor !== kind) throw new Error(`threw ${got.constructor.name}: ${got.message}; want ${kind.name}`);
  for (const [name, want] of Object.entries(fields)) same(got[name], want, `${kind.name}.${name}`);
}

async function control(path, body) {
  const resp = await fetch(stage.control + path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
  if (!resp.ok) throw new Error(`${path}: ${resp.status} ${await resp.text()}`);
  return resp.json();
}

// The ledger's rows of a tenant, of requests that came at `since` (milliseconds) or later: a row is written after
// its answer, so how many there are says nothing of which requests they are of.
const rows = async (name = "main", since = 0) => (await control(`/rows?tenant=npm-${name}`)).filter((r) => r.start_ns >= since * 1e6);
const statuses = async (name, since = 0) => (await rows(name, since)).map((r) => r.status);

async function eventually(what, done) {
  for (const until = Date.now() + 60000; ; ) {
    if (await done()) return;
    if (Date.now() > until) throw new Error(`waited in vain for ${what}`);
    await new Promise((r) => setTimeout(r, 50));
  }
}

async function withFault(fault, run) {
  await control("/fault?client=npm", fault);
  try {
    await run();
  } finally {
    await control("/fault?client=npm", {});
  }
}

const freed = (since) =>
  eventually("the worker to be free, and a row with status 499", async () =>
    (await control("/running?client=npm")) === 0 && (await statuses("main", since)).includes(499));

await test("chat, and streaming", async () => {
  const whole = await chat(client(), { temperature: 0, seed: 7 });
  let text = "";
  for await (const chunk of await chat(client(), { temperature: 0, seed: 7, stream: true })) text += chunk.choices[0].delta.content ?? "";
  same(text, whole.choices[0].message.content, "text");
  same(whole.usage.completion_tokens, 12, "completion_tokens");
});
await test("tools, and streaming", async () => {
  const whole = await chat(client(), { tools: [tool], max_tokens: 500 });
  same(whole.choices[0].message.tool_calls[0].function.name, "weather", "function");
  const stream = client().chat.completions.stream({ model: "chat", messages, max_tokens: 500, tools: [tool] });
  const final = await stream.finalChatCompletion();
  same(Object.keys(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments)), ["city"], "arguments");
}, true);
await test("responses, and streaming", async () => {
  if (!(await client().responses.create({ model: "chat", input: "rivers", max_output_tokens: 8 })).output_text) throw new Error("no text");
  let text = "";
  for await (const event of await client().responses.create({ model: "chat", input: "rivers", max_output_tokens: 8, stream: true }))
    if (event.type === "response.output_text.delta") text += event.delta;
  if (!text) throw new Error("no text in the stream");
});
await test("embeddings", async () => {
  const answer = await client().embeddings.create({ model: "embed", input: ["one river"], encoding_format: "float" });
  same(answer.data[0].embedding.length, 8, "length of the vector");
}, true);
await test("400, 401, 403, 404, 413", async () => {
  await raises(OpenAI.BadRequestError, { status: 400, param: "max_tokens" }, () => chat(client(), { max_tokens: "many" }));
  await raises(OpenAI.AuthenticationError, { code: "invalid_api_key" }, () => chat(client("main", { apiKey: "slk_nobody" })));
  await raises(OpenAI.PermissionDeniedError, { code: "policy_denied" }, () => chat(client("denied")));
  await raises(OpenAI.PermissionDeniedError, { code: "tenant_disabled" }, () => chat(client("off")));
  await raises(OpenAI.NotFoundError, { code: "model_not_found" }, () => chat(client(), { model: "nope" }));
  await raises(OpenAI.APIError, { status: 413 }, () => chat(client(), { messages: [{ role: "user", content: "x".repeat(300000) }] }));
});
await test("429: not retried; then once, when Retry-After says", async () => {
  await chat(client("rate"));
  await raises(OpenAI.RateLimitError, { code: "rate_limit_exceeded" }, () => chat(client("rate")));
  await eventually("two rows", async () => (await statuses("rate")).length === 2);
  await chat(client("rate", { maxRetries: 3 }));
  await eventually("200, 429, 429, 200", async () => JSON.stringify(await statuses("rate")) === "[200,429,429,200]");
  const [refused, served] = (await rows("rate")).slice(-2);
  const gap = (served.start_ns - refused.end_ns) / 1e9;
  if (gap < 0.9 || gap > 30) throw new Error(`waited ${gap} s before the retry`);
});
await test("429: a used-up quota is not tried again", async () => {
  await chat(client("quota"));
  await raises(OpenAI.RateLimitError, { code: "insufficient_quota" }, () => chat(client("quota", { maxRetries: 5 })));
  await eventually("200, 429", async () => JSON.stringify(await statuses("quota")) === "[200,429]");
});
await test("503 without a worker", () => raises(OpenAI.InternalServerError, { status: 503, code: "unavailable" }, () => chat(client(), { model: "down" })));
await test("503, 502, 504", async () => {
  for (const [fault, status, code] of [[{ status: 503 }, 503, "overloaded"], [{ status: 500 }, 502, "upstream_error"], [{ hang_headers: true }, 504, "upstream_timeout"]])
    await withFault(fault, () => raises(OpenAI.InternalServerError, { status, code }, () => chat(client(), { model: faulty })));
}, true);
await test("a worker that dies in a stream throws, after what came before", async () => {
  let got = 0;
  await withFault({ drop_after_events: 4 }, () =>
    raises(OpenAI.APIError, { code: "upstream_error" }, async () => {
      for await (const _ of await chat(client(), { model: faulty, stream: true, max_tokens: 40 })) got++;
    }));
  if (got < 2) throw new Error(`${got} chunks came before`);
}, true);
await test("a time-out frees the worker, and is in the ledger as 499", async () => {
  const since = Date.now();
  await withFault({ stall: "forever" }, async () => {
    await raises(OpenAI.APIConnectionTimeoutError, {}, () => chat(client("main", { timeout: 2000 }), { model: faulty }));
    await freed(since);
  });
}, true);
await test("a stream that is aborted frees the worker", async () => {
  const since = Date.now();
  await withFault({ slow_factor: 50 }, async () => {
    const stream = await chat(client(), { model: faulty, stream: true, max_tokens: 2000 });
    for await (const _ of stream) break;
    stream.controller.abort();
    await freed(since);
  });
}, true);

if (left.length) console.log(`left out, since they need simulated workers: ${left.length}: ${left.join("; ")}`);
console.log(`npm: ${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
