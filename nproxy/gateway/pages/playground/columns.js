// The answers side by side: one column per choice, in one of three views. Model text is inserted as text, never HTML.

import { compare } from "./diff.js";
import { token } from "./heat.js";
import { quantity, speed, tokens } from "./run.js";
import { Pieces } from "./tokens.js";

const FINISHES = {
  stop: "It ended by itself, or at a stop sequence.",
  length: "It was cut at max tokens, or where the model's context is full.",
  content_filter: "A content filter has ended it.",
  tool_calls: "It calls a tool.",
  error: "Its upstream call failed.",
  stopped: "You have stopped it.",
  "cut off": "No finish reason came: it may lack its end.",
};

const NOT_KEPT = "The history keeps no log probabilities.";
const NONE_CAME = "No log probabilities came with this answer.";
const ALL_REASONING = "It ended before it answered: all its tokens were reasoning.";
const NO_TEXT = "It ended before any text came.";
const RAISE = "Raise Max tokens.";

/** How many columns are painted in one frame of a stream: a browser lays out a text that grows again as a whole. */
const AT_ONCE = 4;

/** All columns of a run. */
export class Columns {
  #element;
  #copy;
  #columns = [];
  #turn = 0;

  /** `copy` is called with a button that copies a choice, and its text. */
  constructor(element, copy) {
    this.#element = element;
    this.#copy = copy;
  }

  /** Start over with one column for each of `own`: the settings in which each choice differs from the request. */
  open(own) {
    this.#columns = own.map((one, index) => new Column(index, one, this.#copy));
    this.#element.replaceChildren(...this.#columns.map((column) => column.element));
  }

  /** Show the current state of a run; `view` is "text", "heat" or "differences". */
  render(run, view) {
    for (const index of this.#columns.keys()) this.#renderOne(run, index, view);
  }

  /** The same for a few columns, which take turns. */
  renderSome(run, view) {
    const { length } = this.#columns;
    for (let left = Math.min(AT_ONCE, length); left > 0; left -= 1) {
      this.#turn = (this.#turn + 1) % length;
      this.#renderOne(run, this.#turn, view);
    }
  }

  #renderOne(run, index, view) {
    this.#columns[index].render(run, run.choices[index], view);
  }
}

class Column {
  #index;
  #finish = made("span", "finish");
  #copier = made("button", "copier", "Copy");
  #counts = made("p", "counts");
  #remark = made("p", "remark");
  #reasoning = made("details", "reasoning");
  #thought = made("div", "thought");
  #text = made("div", "text");
  #calls = made("div", "calls");
  #shown = null;
  #pieces = new Pieces();
  #taken = 0;
  #answer = "";
  #touched = false; // whether the user has folded or unfolded the reasoning

  constructor(index, own, copy) {
    this.#index = index;
    this.#copier.type = "button";
    this.#copier.setAttribute("aria-label", `Copy choice ${index}`);
    this.#copier.addEventListener("click", () => copy(this.#copier, this.#answer));
    const head = made("header");
    head.append(made("h2", "", `Choice ${index}`), this.#finish);
    const settings = Object.entries(own).map(([name, value]) => `${name} ${value}`);
    const summary = made("summary", "", "Reasoning");
    summary.addEventListener("click", () => (this.#touched = true));
    this.#reasoning.append(summary, this.#thought);
    this.element = made("article", "choice");
    this.element.setAttribute("aria-label", `Choice ${index}`);
    this.element.append(head, this.#counts, made("p", "own", settings.join(", ")), this.#remark, this.#reasoning, this.#text, this.#calls, this.#copier);
  }

  render(run, choice, view) {
    const over = run.ended !== null;
    this.#sayEnd(run, choice, over);
    set(this.#counts, countsOf(run, choice));
    set(this.#remark, choice.error ?? (lackOf(choice) || this.#likeness(run, choice, over, view)));
    const plain = view === "heat" ? choice.entries.length === 0 : view === "differences" && !over; // there is only the text
    const shown = plain ? "text" : view;
    this.#reasoning.hidden = choice.reasoning === "" || shown === "heat"; // the heat view shows its tokens too
    if (!this.#touched) this.#reasoning.open = choice.text === ""; // until then, there is nothing else to read
    grow(this.#thought, choice.reasoning);
    const calls = choice.calls.map((call) => `${call.name}(${call.arguments})`).join("\n");
    set(this.#calls, calls);
    if (over || choice.finish !== null) this.#answer = [choice.text, calls].filter(Boolean).join("\n\n");
    this.#copier.hidden = this.#answer === ""; // until then: it would move with the end of the text
    if (shown !== this.#shown) this.#restart(shown);
    if (shown === "text") grow(this.#text, choice.text);
    else if (shown === "heat") this.#renderHeat(choice, over);
    else if (!this.#text.hasChildNodes()) this.#renderDifferences(run, choice);
  }

  #restart(view) {
    this.#shown = view;
    this.#pieces = new Pieces();
    this.#taken = 0;
    this.#text.replaceChildren();
    this.#text.className = `text ${view}`;
  }

  #sayEnd(run, choice, over) {
    const word = choice.finish ?? (over ? (run.state === "stopped" ? "stopped" : "cut off") : "");
    set(this.#finish, word);
    this.#finish.title = FINISHES[word] ?? "";
    this.#finish.className = `finish ${["error", "cut off"].includes(word) ? "bad" : ""}`;
    this.element.classList.toggle("live", !over && choice.finish === null);
  }

  /** Return a remark that compares this choice with the others, or says what the view lacks; "" if there is none. */
  #likeness(run, choice, over, view) {
    if (!over) return view === "differences" && this.#index === 0 ? "Differences are marked at the end." : "";
    const twin = run.choices.findIndex((other) => other.text === choice.text);
    if (choice.text !== "" && twin < this.#index) return `The same text as choice ${twin}.`;
    if (view === "heat" && choice.entries.length === 0) return choice.counted > 0 ? NOT_KEPT : NONE_CAME;
    return view === "differences" && this.#index === 0 ? "The others are compared with this one." : "";
  }

  #renderHeat(choice, over) {
    const pieces = this.#pieces.take(choice.entries.slice(this.#taken));
    this.#taken = choice.entries.length;
    if (over) pieces.push(...this.#pieces.rest());
    this.#text.append(...pieces.map(token));
    if (this.#text.querySelector("[tabindex='0']") === null) this.#text.firstChild?.setAttribute("tabindex", "0");
  }

  #renderDifferences(run, choice) {
    const runs = this.#index === 0 ? [{ text: choice.text, same: true }] : compare(run.choices[0].text, choice.text);
    this.#text.append(...runs.map(({ text, same }) => (same ? new Text(text) : made("mark", "", text))));
  }
}

/** Return why a choice that has ended has no answer, and what helps; "" for every other one. */
function lackOf({ finish, text, calls, reasoning }) {
  if (finish === null || text !== "" || calls.length > 0) return "";
  const why = reasoning === "" ? NO_TEXT : ALL_REASONING;
  if (finish === "length") return `${why} ${RAISE}`;
  return reasoning === "" ? "" : why;
}

function countsOf(run, choice) {
  const { count, exact } = tokens(run, choice);
  const rate = speed(run, choice);
  const parts = [`${exact ? "" : "≈ "}${quantity(count, "token")}`];
  if (rate !== null) parts.push(`${rate.toFixed(1)}/s`);
  if (choice.first !== null) parts.push(`first after ${((choice.first - run.started) / 1000).toFixed(2)} s`);
  return parts.join(" · ");
}

/** Return an element with a class and a text. */
export function made(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Append to an element's text until it is `text`, which must begin with the present text. This keeps a selection. */
function grow(element, text) {
  const length = element.firstChild?.length ?? 0;
  if (text.length === length) return;
  if (length === 0) element.append(text);
  else element.firstChild.appendData(text.slice(length));
}

/** Set an element's text if it differs. */
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
