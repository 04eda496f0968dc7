// How the playground handles answers over real sockets: each server here sends what one test says; run by node --test.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { ask, listModels } from "../../../nproxy/gateway/pages/playground/stream.js";

const STREAM = { "content-type": "text/event-stream", "x-request-id": "r1", "x-nproxy-mode": "fanout" };
const event = (value) => `data: ${JSON.stringify(value)}\n\n`;

/** Run `act` while a server answers by `serve` at the address that the page seems to have come from. */
async function beside(serve, act) {
  const server = createServer(serve);
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  globalThis.document = { baseURI: `http://127.0.0.1:${server.address().port}/below/` };
  try {
    return await act(server);
  } finally {
    server.closeAllConnections();
    await new Promise((closed) => server.close(closed));
  }
}

/** All that a stream gives, and the failure that ended it. */
async function read(key = "", signal = undefined) {
  const said = [];
  try {
    for await (const one of ask({ n: 1 }, key, signal)) said.push(one);
    return { said, failure: null };
  } catch (failure) {
    return { said, failure };
  }
}

test("a request goes below the page, with the key, and its chunks come until [DONE]", async () => {
  const seen = {};
  const serve = async (request, answer) => {
    Object.assign(seen, { url: request.url, key: request.headers.authorization, body: "" });
    for await (const piece of request) seen.body += piece;
    answer.writeHead(200, STREAM).end(`: ping\n\n${event({ a: 1 })}${event({ b: "é" })}data: [DONE]\n\n${event({ c: 1 })}`);
  };
  const { said, failure } = await beside(serve, () => read("secret"));
  assert.equal(failure, null);
  assert.deepEqual(seen, { url: "/below/v1/chat/completions", key: "Bearer secret", body: '{"n":1}' });
  assert.equal(said[0].headers.get("x-nproxy-mode"), "fanout");
  assert.deepEqual(said.slice(1), [{ a: 1 }, { b: "é" }]);
});

const ENDINGS = [
  ["an end without [DONE]", (answer) => answer.end(event({ a: 1 })), /ended without \[DONE\]/],
  ["a cut", (answer) => answer.write(event({ a: 1 }), () => answer.destroy()), /connection was cut/],
  ["an error event", (answer) => answer.end(event({ a: 1 }) + event({ error: { message: "it broke", code: "c" } })), /^it broke$/],
  ["an error without words", (answer) => answer.end(event({ a: 1 }) + event({ error: {} })), /does not say why/],
  ["an event that is null", (answer) => answer.end(event({ a: 1 }) + event(null)), /no chunk/],
  ["no JSON", (answer) => answer.end(`${event({ a: 1 })}data: {\n\n`), /not JSON/],
];

for (const [name, finish, words] of ENDINGS) {
  test(`${name} is told, and what came before stands`, async () => {
    const { said, failure } = await beside((_, answer) => finish(answer.writeHead(200, STREAM)), () => read());
    assert.match(failure.message, words);
    assert.deepEqual([failure.requestId, said.slice(1)], ["r1", [{ a: 1 }]]);
  });
}

const refused = (status, body, headers = {}) => (_, answer) => answer.writeHead(status, headers).end(body);
const envelope = (message, more = {}) => JSON.stringify({ error: { message, type: "t", param: null, code: null, ...more } });

const REFUSALS = [
  [refused(401, envelope("No key.", { code: "invalid_api_key" })), "A valid key is needed", "No key.", { code: "invalid_api_key" }],
  [refused(400, envelope("Too wide.", { param: "n" })), "The request was refused", "Too wide.", { param: "n" }],
  [refused(429, envelope("Full."), { "retry-after": "7" }), "Too much is asked for at the moment", "Full. It may be tried again in 7 s.", {}],
  [refused(502, "<html>bad gateway</html>"), "The upstream failed", "The answer has the status 502 and says no more.", {}],
  [refused(418, "null"), "The answer has the status 418", "The answer has the status 418 and says no more.", {}],
];

for (const [serve, title, message, more] of REFUSALS) {
  test(`a refusal: ${title}`, async () => {
    const { said, failure } = await beside(serve, () => read());
    assert.deepEqual(said, []);
    assert.deepEqual({ ...failure }, { title, status: failure.status, code: null, param: null, requestId: null, ...more });
    assert.equal(failure.message, message);
  });
}

test("a page of somebody between is no answer", async () => {
  const serve = (_, answer) => answer.writeHead(200, { "content-type": "text/html" }).end("<p>log in");
  const { failure } = await beside(serve, () => read());
  assert.match(failure.message, /^text\/html came instead/);
});

test("nobody listens", async () => {
  await beside(() => {}, (server) => server.close());
  const { failure } = await read();
  assert.equal(failure.title, "The gateway cannot be reached");
});

test("stopping ends the request, and is no failure", async () => {
  const stop = new AbortController();
  let left;
  const gone = new Promise((resolve) => (left = resolve));
  const serve = (_, answer) => {
    answer.on("close", left);
    answer.writeHead(200, STREAM).write(event({ a: 1 }));
  };
  await beside(serve, async () => {
    const stream = ask({}, "", stop.signal);
    await stream.next();
    assert.deepEqual((await stream.next()).value, { a: 1 });
    stop.abort();
    await assert.rejects(stream.next(), { name: "AbortError" });
    await gone;
  });
});

test("a list of models that is none is told", async () => {
  for (const body of ["<html>", "null", '{"data": 7}']) {
    await beside((_, answer) => answer.end(body), () => assert.rejects(listModels(""), /came instead of a list of models/));
  }
});

test("models are listed", async () => {
  const serve = (request, answer) => answer.end(JSON.stringify({ data: [{ id: request.url }, { id: "b" }] }));
  assert.deepEqual(await beside(serve, () => listModels("")), ["/below/v1/models", "b"]);
});
