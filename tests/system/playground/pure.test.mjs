// Tests of the playground's modules that need no page, run by node --test.

import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_CELLS, compare, words } from "../../../nproxy/gateway/pages/playground/diff.js";
import { History, MOST_CHARACTERS, MOST_KEPT } from "../../../nproxy/gateway/pages/playground/history.js";
import { DEFAULTS, bodyOf, overrides, streaming } from "../../../nproxy/gateway/pages/playground/request.js";
import { begin, end, kept, speed, take, tokens, total } from "../../../nproxy/gateway/pages/playground/run.js";
import { EventReader } from "../../../nproxy/gateway/pages/playground/sse.js";
import { storage } from "../../../nproxy/gateway/pages/playground/storage.js";
import { Pieces, alternatives, percent, shade, visible } from "../../../nproxy/gateway/pages/playground/tokens.js";

// ---- server-sent events

const EVENTS = [
  ["data: a\n\ndata: b\n\n", ["a", "b"]],
  ["data: a\r\n\r\ndata:b\r\rdata:  c\n\n", ["a", "b", " c"]],
  ["data: one\ndata: two\n\n", ["one\ntwo"]],
  [": ping\n\nevent: x\nid: 7\nretry: 1\ndata: a\n\n", ["a"]],
  ["data\n\ndata:\n\n", ["", ""]],
  ["\n\n\ndata: a: b\n\n", ["a: b"]],
  ["data: without an end", []],
];

for (const [stream, expected] of EVENTS) {
  test(`events of ${JSON.stringify(stream)}, however they are cut`, () => {
    for (let size = 1; size <= stream.length; size += 1) {
      const reader = new EventReader();
      const read = [];
      for (let at = 0; at < stream.length; at += size) read.push(...reader.read(stream.slice(at, at + size)));
      assert.deepEqual(read, expected, `pieces of ${size}`);
    }
  });
}

test("a \\r at the end waits for what follows, which may be its \\n", () => {
  const reader = new EventReader();
  assert.deepEqual(reader.read("data: a\r"), []);
  assert.deepEqual(reader.read("\n\r"), []);
  assert.deepEqual(reader.read("\n"), ["a"]);
});

// ---- differences

const marked = (reference, text) => compare(reference, text).map(({ text, same }) => (same ? text : `[${text}]`)).join("");

const DIFFERENCES = [
  ["the red house", "the red house", "the red house"],
  ["the red house", "the blue house", "the [blue ]house"],
  ["a b c d", "b c", "b c"],
  ["b c", "a b c d", "[a ]b c [d]"],
  ["one", "", ""],
  ["", "one two", "[one two]"],
  ["same  spaces\nhere", "same spaces here", "same spaces here"],
  ["x y z", "z y x", "z [y x]"],
  ["Red, green.", "Red, blue.", "Red, [blue]."],
];

for (const [reference, text, expected] of DIFFERENCES) {
  test(`${JSON.stringify(text)} beside ${JSON.stringify(reference)}`, () => assert.equal(marked(reference, text), expected));
}

test("whatever the texts are, the runs are the text, and the same words stand in the reference in their order", () => {
  let state = 7;
  const draw = (below) => (state = (state * 48271) % 2147483647) % below;
  const text = () => Array.from({ length: draw(12) }, () => "abc"[draw(3)]).join(" ");
  for (let round = 0; round < 2000; round += 1) {
    const [reference, other] = [text(), text()];
    const runs = compare(reference, other);
    assert.equal(runs.map((run) => run.text).join(""), other);
    const rest = reference.split(" ");
    for (const word of runs.filter((run) => run.same).flatMap((run) => run.text.trim().split(/\s+/))) {
      const at = rest.indexOf(word);
      assert.ok(at >= 0, `${word} of ${other} beside ${reference}`);
      rest.splice(0, at + 1);
    }
  }
});

test("where no spaces part words there are words all the same", () => {
  assert.ok(words("我喜欢蓝色因为天空").length > 2);
});

test("texts beyond the table are told apart at their ends", () => {
  const long = (word) => Array.from({ length: Math.ceil(Math.sqrt(MOST_CELLS)) + 1 }, (_, at) => `${word}${at}`).join(" ");
  const runs = compare(`same ${long("a")} end`, `same ${long("b")} end`);
  assert.deepEqual(runs.map(({ same }) => same), [true, false, true]);
});

// ---- tokens

const entry = (token, logprob = -0.5, bytes = [...new TextEncoder().encode(token)]) => ({ token, logprob, bytes, top_logprobs: [] });

test("tokens are grouped until they are characters", () => {
  const [first, second] = [entry("\\xf0\\x9f", -1, [0xf0, 0x9f]), entry("\\x8d\\x8e", -2, [0x8d, 0x8e])];
  const pieces = new Pieces();
  assert.deepEqual(pieces.take([entry("an "), first]).map((piece) => piece.text), ["an "]);
  assert.deepEqual(pieces.take([second, entry("!")]), [
    { text: "🍎", entries: [first, second] },
    { text: "!", entries: [entry("!")] },
  ]);
  assert.deepEqual(pieces.rest(), []);
  assert.deepEqual(pieces.take([first]), []);
  assert.deepEqual(pieces.rest(), [{ text: "�", entries: [first] }]);
});

test("a server may give no bytes, or none for a token that is no text", () => {
  const pieces = new Pieces();
  const told = [{ token: "a", logprob: 0, bytes: null }, { token: "", logprob: 0, bytes: [] }];
  assert.deepEqual(pieces.take(told).map((piece) => piece.text), ["a", ""]);
});

test("shades are by probability", () => {
  const shades = [1, 0.9, 0.89, 0.6, 0.31, 0.1, 0.09, 0].map((share) => shade(Math.log(share)));
  assert.deepEqual(shades, [0, 0, 1, 1, 2, 3, 4, 4]);
});

test("the drawn token is among its alternatives, once", () => {
  const top_logprobs = [{ token: "a", logprob: -0.1 }, { token: "b", logprob: -3 }];
  const drawn = (token) => alternatives({ token, logprob: -3, top_logprobs }).map((one) => [one.token, one.drawn]);
  assert.deepEqual(drawn("b"), [["a", false], ["b", true]]);
  assert.deepEqual(drawn("c"), [["a", false], ["b", false], ["c", true]]);
});

test("probabilities and tokens as people read them", () => {
  assert.deepEqual([0, -0.5, -5, -9999].map(percent), ["100 %", "60.7 %", "0.67 %", "< 0.01 %"]);
  assert.deepEqual([" a b", "\n\t", ""].map(visible), ["␣a␣b", "⏎⇥", "∅"]);
});

test("an entry without a number or a token is unknown, and no certainty", () => {
  assert.deepEqual([null, undefined, NaN].map(percent), ["?", "?", "?"]);
  assert.equal(visible(undefined), "∅");
  assert.deepEqual(new Pieces().take([{ logprob: null }, { token: "a", logprob: -1 }]).map((piece) => piece.text), ["a"]);
});

test("entries of unexpected shapes are shown as far as they can be read", () => {
  assert.deepEqual([7, {}, null].map(visible), ["∅", "∅", "∅"]);
  assert.deepEqual(new Pieces().take([{ token: 7 }, { token: "a", bytes: {} }]).map((piece) => piece.text), ["a"]);
  for (const top_logprobs of [{}, "x", [null, 7]]) {
    assert.deepEqual(alternatives({ token: "a", logprob: -1, top_logprobs }), [{ token: "a", logprob: -1, drawn: true }]);
  }
});

// ---- requests

const values = { ...DEFAULTS, model: "m", prompt: "p", n: "2" };

test("an empty field is not sent", () => {
  const bare = { ...values, temperature: "", top_p: "", max_tokens: "", logprobs: false };
  assert.deepEqual(bodyOf(bare), { model: "m", messages: [{ role: "user", content: "p" }], n: 2 });
});

test("all fields are sent, zeros as well", () => {
  const full = { ...values, system: "s", temperature: "0", top_p: "0.5", max_tokens: "9", seed: "-1", top_logprobs: "0" };
  assert.deepEqual(bodyOf(full), {
    model: "m",
    messages: [{ role: "system", content: "s" }, { role: "user", content: "p" }],
    n: 2,
    temperature: 0,
    top_p: 0.5,
    max_tokens: 9,
    seed: -1,
    logprobs: true,
    top_logprobs: 0,
  });
});

test("a choice's own parameters are sent for n choices, or not at all", () => {
  const each = [{ temperature: "0", seed: "" }, { seed: "5" }, { seed: "6" }];
  assert.deepEqual(bodyOf({ ...values, each }).choice_params, [{ temperature: 0 }, { seed: 5 }]);
  assert.deepEqual(overrides({ ...values, n: "3", each }), [{ temperature: 0 }, { seed: 5 }, { seed: 6 }]);
  assert.equal("choice_params" in bodyOf({ ...values, each: [{ seed: "" }] }), false);
});

test("a stream is asked for with its usage", () => {
  assert.deepEqual(streaming({ n: 1 }), { n: 1, stream: true, stream_options: { include_usage: true } });
});

// ---- runs

const chunk = (index, delta, more = {}) => ({ choices: [{ index, delta, finish_reason: null, ...more }] });

test("chunks become choices", () => {
  const run = begin(2, 0);
  take(run, chunk(0, { role: "assistant", content: "" }), 50);
  assert.equal(run.choices[0].first, null, "a role is no token");
  take(run, chunk(1, { content: "b" }), 100);
  take(run, chunk(0, { reasoning_content: "hm" }), 200);
  take(run, chunk(0, { content: "a" }), 300);
  take(run, chunk(0, { content: "aa" }, { finish_reason: "stop" }), 700);
  take(run, chunk(1, {}, { finish_reason: "error", error: { message: "it broke" } }), 800);
  take(run, chunk(7, { content: "nobody's" }), 800);
  take(run, { choices: [], usage: { prompt_tokens: 3, completion_tokens: 6 } }, 900);
  end(run, "done", 1000);
  const [first, second] = run.choices;
  assert.deepEqual([first.text, first.reasoning, first.finish, first.first, first.last], ["aaa", "hm", "stop", 200, 700]);
  assert.deepEqual([second.text, second.finish, second.error], ["b", "error", "it broke"]);
  assert.deepEqual(tokens(run, first), { count: 3, exact: false });
  assert.equal(speed(run, first), 4);
  assert.equal(speed(run, second), null);
  assert.deepEqual(total(run, 5000), { count: 6, exact: true, seconds: 1, speed: 6 });
});

test("content in parts is text and reasoning", () => {
  const run = begin(1, 0);
  take(run, chunk(0, { content: [{ type: "thinking", thinking: [{ type: "text", text: "h" }, { type: "text", text: "m" }] }] }), 1);
  take(run, chunk(0, { content: [{ type: "text", text: "he" }, { type: "text", text: "l" }] }), 2);
  take(run, chunk(0, { content: "lo" }), 3);
  assert.deepEqual([run.choices[0].reasoning, run.choices[0].text], ["hm", "hello"]);
});

const ODD = [
  [{ content: [{ type: "thinking", thinking: "hm" }] }, ["", "hm"]],
  [{ content: [null, "a", { text: "b" }, { thinking: [null, { text: "c" }] }] }, ["b", "c"]],
  [{ content: {}, reasoning: {}, refusal: [] }, ["", ""]],
  [{ content: { text: "a" }, reasoning_content: 7, reasoning: "b" }, ["", "b"]],
  [{ tool_calls: [null], content: "a" }, ["a", ""]],
  [{ tool_calls: [{ index: 0, function: { name: 7, arguments: {} } }] }, ["", ""]],
  [null, ["", ""]],
];

for (const [delta, expected] of ODD) {
  test(`of ${JSON.stringify(delta)}, what has the expected shape is taken`, () => {
    const run = begin(1, 0);
    take(run, chunk(0, delta), 1);
    assert.deepEqual([run.choices[0].text, run.choices[0].reasoning], expected);
  });
}

test("of choices and log probabilities too, what has the expected shape is taken", () => {
  const run = begin(1, 0);
  take(run, { choices: {} }, 1);
  take(run, { choices: [null, 7] }, 1);
  take(run, chunk(0, {}, { logprobs: { content: {} }, finish_reason: {}, error: { message: {} } }), 2);
  take(run, chunk(0, {}, { logprobs: { content: [null, entry("a")] } }), 2);
  const [choice] = run.choices;
  assert.deepEqual([choice.entries, choice.counted, choice.finish, choice.error], [[entry("a")], 1, null, null]);
});

test("tool calls are put together by their index", () => {
  const run = begin(1, 0);
  const call = (index, more) => take(run, chunk(0, { tool_calls: [{ index, ...more }] }), 1);
  call(0, { id: "a", type: "function", function: { name: "add", arguments: "" } });
  call(0, { function: { arguments: '{"x"' } });
  call(1, { id: "b", type: "custom", custom: { name: "shell", input: "ls" } });
  call(0, { function: { arguments: ": 1}" } });
  const [choice] = run.choices;
  assert.deepEqual(choice.calls.map((one) => [one.name, one.arguments]), [["add", '{"x": 1}'], ["shell", "ls"]]);
  assert.deepEqual([choice.text, choice.pieces, choice.first], ["", 4, 1]);
});

test("tokens are exact with log probabilities, and where there is one choice", () => {
  const run = begin(2, 0);
  take(run, chunk(0, { content: "ab" }, { logprobs: { content: [entry("a"), entry("b")] } }), 1);
  assert.deepEqual(tokens(run, run.choices[0]), { count: 2, exact: true });
  assert.deepEqual(kept(run).choices[0].entries, []);
  assert.deepEqual(tokens(kept(run), kept(run).choices[0]), { count: 2, exact: true });
  const single = begin(1, 0);
  take(single, chunk(0, { content: "abc" }), 1);
  take(single, { usage: { completion_tokens: 5 } }, 2);
  assert.deepEqual(tokens(single, single.choices[0]), { count: 5, exact: true });
});

// ---- history

function fake(room = Infinity) {
  const kept = {}; // its keys are the names, as those of a Storage
  const access = {
    getItem: (name) => kept[name] ?? null,
    removeItem: (name) => delete kept[name],
    setItem: (name, text) => {
      if (Object.values({ ...kept, [name]: text }).join("").length > room) throw new Error("QuotaExceededError");
      kept[name] = text;
    },
  };
  return storage(() => Object.setPrototypeOf(kept, access));
}

test("history is bounded in number, in size, and by the room there is", () => {
  const history = new History(fake(), () => true);
  for (let at = 0; at < MOST_KEPT + 3; at += 1) history.add({ at });
  assert.deepEqual(history.entries.map((one) => one.at), Array.from({ length: MOST_KEPT }, (_, at) => MOST_KEPT + 2 - at));
  for (let at = 90; at < 95; at += 1) history.add({ at, text: "x".repeat(MOST_CHARACTERS / 3) });
  assert.deepEqual(history.entries.map((one) => one.at), [94, 93]);
  assert.equal(history.add({ at: 95, text: "x".repeat(MOST_CHARACTERS) }), false);
  assert.equal(history.add({ at: 95 }), true);
  const narrow = new History(fake(32), () => true); // of entries of 8 characters
  for (let at = 0; at < 9; at += 1) narrow.add({ at });
  assert.deepEqual(narrow.entries.map((one) => one.at), [8, 7, 6, 5]);
});

test("history that is not wanted is forgotten, and none is kept", () => {
  const store = fake();
  const history = new History(store, () => true);
  history.add({ at: 1 });
  history.wanted = false;
  assert.equal(history.add({ at: 2 }), false);
  assert.deepEqual(history.entries, []);
  assert.equal(new History(store, () => true).wanted, false);
  history.wanted = true;
  history.add({ at: 3 });
  history.clear();
  assert.deepEqual(history.entries, []);
});

test("without a storage, or with one that holds something else, there is no history and no fault", () => {
  const none = new History(storage(() => { throw new Error("SecurityError"); }), () => true);
  none.add({ at: 1 });
  none.wanted = false;
  assert.deepEqual([none.entries, none.wanted], [[], true]);
  for (const text of ["{", "7", '"x"']) {
    const store = fake();
    store.write("nproxy.history.1", text);
    const history = new History(store, (one) => Number.isFinite(one?.at));
    assert.deepEqual(history.entries, []);
    history.add({ at: 1 });
    assert.equal(store.read("nproxy.history.1"), null, "it takes no room");
  }
});

test("what two tabs add at the same time is kept, though neither sees the other's yet", () => {
  const [store, stale] = [fake(), fake()];
  const late = { ...store, read: stale.read, names: stale.names };
  new History(store, () => true).add({ at: 1 });
  new History(late, () => true).add({ at: 2 });
  assert.deepEqual(new History(store, () => true).entries, [{ at: 2 }, { at: 1 }]);
});
