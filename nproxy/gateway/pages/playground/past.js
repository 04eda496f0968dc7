// The history as a list to choose from.

import { made } from "./columns.js";
import { quantity } from "./run.js";

const MOST_SHOWN = 200; // characters of a prompt; a line has fewer

const $ = (id) => document.getElementById(id);

/** The history dialog. reopen: called with the entry that the user chooses. */
export class Past {
  #history;
  #reopen;

  constructor(history, reopen) {
    this.#history = history;
    this.#reopen = reopen;
    $("history-wanted").addEventListener("change", ({ target }) => {
      this.#sayDeleted(target.checked ? 0 : history.entries.length);
      history.wanted = target.checked;
      target.checked = history.wanted; // a browser without storage does not keep this setting either
      this.#list();
    });
    $("history-clear").addEventListener("click", () => {
      this.#sayDeleted(history.entries.length);
      history.clear();
      this.#list();
      $("history").querySelector(".primary").focus(); // Clear is disabled now
    });
  }

  open() {
    $("history-wanted").checked = this.#history.wanted;
    this.#sayDeleted(0);
    this.#list();
    $("history").showModal();
  }

  /** Say it in the dialog: beside a modal one, nothing is read out. */
  #sayDeleted(count) {
    $("history-told").textContent = count > 0 ? `Deleted: ${quantity(count, "request")}` : "";
  }

  #list() {
    const entries = this.#history.entries;
    $("history-list").replaceChildren(...entries.map((entry) => this.#item(entry)));
    if (entries.length === 0) $("history-list").append(made("li", "hint", "Nothing is kept."));
    $("history-clear").disabled = entries.length === 0;
  }

  #item(entry) {
    const { values, at } = entry;
    const button = made("button");
    button.type = "button";
    const facts = [new Date(at).toLocaleString(), `n ${values.n}`, values.model].join(" · ");
    button.append(made("span", "prompt", values.prompt.slice(0, MOST_SHOWN)), made("span", "facts", facts));
    button.addEventListener("click", () => {
      $("history").close();
      this.#reopen(entry);
    });
    const item = made("li");
    item.append(button);
    return item;
  }
}
