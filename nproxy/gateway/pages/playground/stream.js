// The one place that talks to the gateway.

import { brokenOff, cut, refusal, unfinished, unreachable, unreadable, unsendable } from "./failures.js";
import { EventReader } from "./sse.js";

/** Where the API is: relative to the page, so that it is found behind a proxy's path, too. */
export const api = (path) => new URL(`v1/${path}`, document.baseURI);

/** Whether the page at this path is switched on. */
export const shown = (path) => fetch(new URL(path, document.baseURI), { method: "HEAD" }).then(({ ok }) => ok, () => false);

const STREAM = "a stream of chunks";
const SENDABLE = /^[\x21-\x7e]*$/; // what a header can hold of a key (RFC 6750, section 2.1, and a little more)

function headersFor(key) {
  if (!SENDABLE.test(key)) throw unsendable();
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** The ids of the models that this key may use. Throws Failure. */
export async function listModels(key) {
  const answer = await reach(api("models"), { headers: headersFor(key) });
  try {
    return (await answer.json()).data.map((model) => model.id);
  } catch {
    throw unreadable("Something else", "a list of models", answer.headers.get("x-request-id"));
  }
}

/**
 * Ask for a streamed chat completion: `{headers}` once it begins, then each chunk as it comes.
 *
 * Ends only where the stream says [DONE]; throws Failure for every other end, and AbortError where `signal` ends it.
 */
export async function* ask(body, key, signal) {
  const headers = { "content-type": "application/json", ...headersFor(key) };
  const answer = await reach(api("chat/completions"), { method: "POST", headers, body: JSON.stringify(body), signal });
  const requestId = answer.headers.get("x-request-id");
  const type = answer.headers.get("content-type") ?? "Something without a type";
  if (!type.startsWith("text/event-stream")) throw unreadable(type, STREAM, requestId);
  yield { headers: answer.headers };
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  try {
    for (let piece = await next(pieces, requestId); !piece.done; piece = await next(pieces, requestId)) {
      for (const data of events.read(piece.value)) {
        if (data === "[DONE]") return;
        yield parsed(data, requestId);
      }
    }
  } finally {
    pieces.cancel().catch(() => {}); // it may have ended already
  }
  throw unfinished(requestId);
}

async function reach(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable();
  }
  if (!answer.ok) throw refusal(answer.status, await answer.text().catch(() => ""), answer.headers);
  return answer;
}

async function next(pieces, requestId) {
  try {
    return await pieces.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : cut(requestId);
  }
}

function parsed(data, requestId) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw unreadable("Something that is not JSON", STREAM, requestId);
  }
  if (typeof chunk !== "object" || chunk === null) throw unreadable("Something that is no chunk", STREAM, requestId);
  if (chunk.error) throw brokenOff(chunk.error, requestId);
  return chunk;
}
