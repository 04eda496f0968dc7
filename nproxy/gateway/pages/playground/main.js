// The page: connects buttons and keys, requests, and what is shown.

import { Columns, made, set } from "./columns.js";
import { Copying } from "./copying.js";
import { Draft } from "./draft.js";
import { isEntry, isValues } from "./entries.js";
import { unreadable } from "./failures.js";
import { Form } from "./form.js";
import { Tip, legend } from "./heat.js";
import { History } from "./history.js";
import { Past } from "./past.js";
import { DEFAULTS, bodyOf, overrides, streaming } from "./request.js";
import { begin, end, kept, quantity, take, total } from "./run.js";
import { curl, python } from "./snippets.js";
import { storage } from "./storage.js";
import { api, ask, listModels, shown } from "./stream.js";

const $ = (id) => document.getElementById(id);

const KEY = "nproxy.key";
const tab = storage(() => sessionStorage); // it lasts as long as the tab, and the key with it
const [FIRST_WAIT, LAST_WAIT] = [1_000, 60_000]; // milliseconds
const LEFT = "The page was left while an answer was under way: that was stopped.";
const KEPT = "What had come is in the History.";
const narrow = matchMedia("(max-width: 50rem)");
const form = new Form($("form"));
const copying = new Copying($("paste"), tell);
const columns = new Columns($("columns"), (button, text) => copying.copy(button, text));
const tip = new Tip($("tip"), $("columns"));
const history = new History(storage(() => localStorage), isEntry);
const draft = new Draft(tab, isValues);
const past = new Past(history, reopen);
let run = null; // the run that is shown
let request = null; // the AbortController of the request in progress
let asked = null; // the form's values for it, until what came is in the history
let sending = null; // the promise that resolves when it has ended
let listing = null; // the list of models under way: {key, status}, a promise of the status of a refusal
let waiting = 0; // the timer for asking again for models
let passing = false; // whether the failure that is shown is over when the models are listed

// ---- a request, from the button to its end

async function exchange() {
  asked = form.values;
  forget();
  request = new AbortController();
  const focused = document.activeElement;
  show(begin(Number(asked.n), performance.now()), asked);
  busy(true, focused);
  paintWhile(request);
  try {
    for await (const said of ask(streaming(bodyOf(asked)), form.key, request.signal)) {
      if (said.headers) run.answered = headersOf(said.headers);
      else take(run, said, performance.now());
    }
    end(run, "done", performance.now());
  } catch (error) {
    end(run, error.name === "AbortError" ? "stopped" : "failed", performance.now());
    if (run.state === "failed") fail(error.title === undefined ? misread(error) : error);
  } finally {
    request = null;
    busy(false);
  }
  paint();
  tell(run.state === "done" ? `Done. ${$("status").textContent}` : run.state);
  if (spoken()) keep();
  else if (run.state === "failed") clear(); // without any text, columns say no more than the failure
}

const spoken = () => run.choices.some((choice) => choice.first !== null);

/** Add what came to the history, once; returns whether it is there. */
function keep() {
  const added = asked !== null && history.add({ at: Date.now(), values: asked, run: kept(run) });
  asked = null;
  return added;
}

/** Before the page goes: keep the form, and stop an answer that is under way. Nothing that is awaited happens any more. */
function leave() {
  draft.keep(form.values);
  if (request === null) return;
  stop();
  end(run, "stopped", performance.now());
  draft.keep(form.values, spoken() && keep() ? `${LEFT} ${KEPT}` : LEFT);
}

/** Send what the form says, after the list of models if no model is chosen yet. */
async function send() {
  if (form.values.model === "") {
    set($("status"), "Waiting for the list of models");
    const status = await list();
    set($("status"), run === null ? "" : statusOf(run));
    if (status === 401 && form.key !== "") return; // the key's field says why
  }
  if (request === null && form.check()) sending = exchange();
}

const stop = () => request?.abort();

function show(next, values) {
  tip.hide(); // its token is about to be removed
  run = next;
  columns.open(overrides(values));
  $("answers").classList.add("used");
  if (narrow.matches) {
    $("controls").open = false;
    $("answers").scrollIntoView({ block: "start" });
  }
  paint();
}

function clear() {
  run = null;
  columns.open([]);
  $("legend").hidden = true;
  $("status").replaceChildren();
}

/** Show Stop or Send. It gets the focus if `focused`, which had it, is gone; the page stays where it is being read. */
function busy(now, focused = document.activeElement) {
  $("send").hidden = now;
  $("stop").hidden = !now;
  if (focused?.checkVisibility() === false) $(now ? "stop" : "send").focus({ preventScroll: true });
  $("shortcut").textContent = now ? "Esc" : "Ctrl+Enter";
  $("columns").setAttribute("aria-busy", String(now));
  if (now) tell("Sent.");
}

/** A fault of this page, most likely with a chunk of a shape that it does not know: the console has it, and it is said. */
function misread(error) {
  reportError(error);
  return unreadable("Something that this page does not know", "a stream of chunks", null);
}

function fail(error) {
  if (error.title === undefined) throw error; // a bug in this page
  if (error.status === 401) form.wantKey(error.message);
  else form.blame(error.param, error.message);
  const facts = [error.status || null, error.code, error.requestId && `request ${error.requestId}`].filter(Boolean);
  $("failure").replaceChildren(made("strong", "", error.title), made("p", "", error.message), made("p", "facts", facts.join(" · ")));
  $("failure").hidden = false;
  passing = error.status === 401;
}

function forget() {
  form.forgive();
  $("failure").hidden = true;
  passing = false;
}

function headersOf(headers) {
  return { mode: headers.get("x-nproxy-mode"), upstream: headers.get("x-nproxy-upstream"), legs: headers.get("x-nproxy-legs") };
}

// ---- painting

/** Paint some columns in every frame while this request is in progress: the time goes on even if nothing comes. */
function paintWhile(mine) {
  requestAnimationFrame(() => {
    if (request !== mine) return;
    columns.renderSome(run, view());
    set($("status"), statusOf(run));
    paintWhile(mine);
  });
}

function paint() {
  if (run === null) return;
  $("legend").hidden = view() !== "heat";
  columns.render(run, view());
  set($("status"), statusOf(run));
}

const view = () => document.querySelector("[name=view]:checked").value;

function statusOf(run) {
  const { count, exact, seconds, speed } = total(run, performance.now());
  if (run.state === "waiting") return `Waiting for the first token · ${seconds.toFixed(1)} s`;
  const { mode, upstream, legs } = run.answered;
  const asked = run.usage ? quantity(run.usage.prompt_tokens, "prompt token") : null;
  const said = `${exact ? "" : "≈ "}${quantity(count, "token")}`;
  const parts = [said, asked, `${seconds.toFixed(1)} s`, `${speed.toFixed(1)} tokens/s`];
  if (mode) parts.push(`${mode}${legs > 1 ? `, ${legs} calls` : ""}${upstream ? ` by ${upstream}` : ""}`);
  return parts.filter(Boolean).join(" · ");
}

function tell(text) {
  $("told").replaceChildren(text); // even the same text again is news
}

// ---- copying

function copyRequest(button, write) {
  if (!form.check()) return;
  const base = api("").href.replace(/\/$/, "");
  copying.copy(button, write(bodyOf(form.values), base, form.key !== ""));
}

// ---- the rest of the page

/** Show an entry of the history. A request in progress is stopped first; what arrived of it is kept. */
async function reopen({ values, run }) {
  stop();
  await sending;
  forget();
  form.values = { ...DEFAULTS, ...values };
  show(run, values);
}

/** Load the models that the typed key may use, unless that is under way; returns the status of a refusal. */
function list() {
  if (listing?.key === form.key) return listing.status;
  tab.write(KEY, form.key);
  const mine = (listing = { key: form.key, status: loadModels() });
  return mine.status.finally(() => listing === mine && (listing = null));
}

/**
 * Load and offer the models. If there is no list, or an empty one while an engine loads its model, ask again later.
 * Returns the status of a refusal, or undefined.
 */
async function loadModels(wait = FIRST_WAIT) {
  clearTimeout(waiting);
  const later = () => (waiting = setTimeout(loadModels, wait, Math.min(2 * wait, LAST_WAIT)));
  try {
    const models = await listModels(form.key);
    form.requireKey(false);
    form.offer(models);
    if (passing) forget();
    if (models.length === 0) later();
  } catch (error) {
    form.offer([]);
    form.requireKey(error.status === 401); // not after a refused request: that may be the upstream's, and pass
    if (error.status === 401) {
      form.wantKey(error.message);
      return error.status;
    }
    if (wait === FIRST_WAIT) fail(error); // it is said once
    passing = true;
    if (error.status === 0 || error.status >= 500) later();
    return error.status;
  }
}

/** Open or fold the settings. In a narrow window the answers can have the focus: the arrow keys scroll through them. */
function fit(open) {
  $("controls").open = open;
  $("columns").tabIndex = narrow.matches ? 0 : -1;
}

function onKey(event) {
  if (event.isComposing || document.querySelector("dialog[open]") !== null) return; // Esc ends an IME composition first
  const enter = event.key === "Enter";
  const sends = enter && (event.ctrlKey || event.metaKey);
  const held = enter && event.repeat && (sends || event.target.matches("#send, #stop")); // it is pressed once
  if (sends && !held) send();
  else if (event.key === "Escape" && tip.shown) tip.hide();
  else if (event.key === "Escape") stop();
  else if (!held) return;
  event.preventDefault();
}

function start() {
  const { values, left } = draft.last;
  form.values = { ...DEFAULTS, ...(values ?? history.entries[0]?.values) };
  set($("status"), left);
  $("form").addEventListener("input", () => draft.keep(form.values));
  addEventListener("pagehide", leave);
  $("legend").append("Probability ", ...legend());
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("send").addEventListener("click", (event) => event.detail > 1 && event.preventDefault()); // it was clicked as Stop
  $("stop").addEventListener("click", (event) => event.detail > 1 || stop()); // it was clicked as Send
  $("views").addEventListener("change", paint);
  $("copy-curl").addEventListener("click", ({ currentTarget }) => copyRequest(currentTarget, curl));
  $("copy-python").addEventListener("click", ({ currentTarget }) => copyRequest(currentTarget, python));
  $("open-history").addEventListener("click", () => past.open());
  $("open-keys").addEventListener("click", () => $("keys").showModal());
  document.addEventListener("keydown", onKey);
  narrow.addEventListener("change", () => fit($("controls").open || !narrow.matches));
  fit(!narrow.matches);
  const key = $("form").elements.key;
  key.value = tab.read(KEY) ?? "";
  key.closest(".field").hidden = key.value === "";
  key.addEventListener("change", list);
  list();
  shown("docs").then((there) => ($("docs").hidden = !there));
}

start();
