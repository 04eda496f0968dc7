// The form: its values, a row of settings per choice, and messages beside fields that are wrong.

import { EACH, MOST_CHOICES, overrides } from "./request.js";

/** The form's names for fields of the API. */
const FIELDS = { messages: "prompt", max_completion_tokens: "max_tokens" };
const TYPED = ["system", "n", "temperature", "top_p", "max_tokens", "seed", "top_logprobs"];
const CHOICE_PARAM = /^choice_params[.[](\d+)\]?\.(\w+)/;
const TOO_MANY = `This page shows at most ${MOST_CHOICES} choices side by side; the API can take more.`;
const LABELS = { temperature: "temp.", top_p: "top p", max_tokens: "tokens", seed: "seed" };

/** The form as one object. `values` is what request.js reads; the API key is not part of it. */
export class Form {
  #form;
  #rows;

  constructor(form) {
    this.#form = form;
    this.#rows = form.querySelector("#each-rows");
    const { n, logprobs } = form.elements;
    n.addEventListener("input", () => this.#fitRows(false)); // a number that is being typed passes through others
    n.addEventListener("change", () => this.#fitRows(n.validity.valid));
    logprobs.addEventListener("change", () => this.#fitAlternatives());
    form.addEventListener("input", (event) => this.#clear(event.target));
  }

  get key() {
    return this.#form.elements.key.value.trim();
  }

  get values() {
    const { elements } = this.#form;
    const named = (name) => elements[name].value.trim();
    return {
      ...Object.fromEntries(TYPED.map((name) => [name, named(name)])),
      prompt: elements.prompt.value,
      model: elements.model.hidden ? named("typed-model") : elements.model.value,
      logprobs: elements.logprobs.checked,
      each: this.#each(),
    };
  }

  set values(values) {
    const { elements } = this.#form;
    for (const [name, value] of Object.entries(values)) {
      if (name === "model") this.#choose(value, true);
      else if (name === "logprobs") elements.logprobs.checked = value;
      else if (name !== "each" && elements[name]) elements[name].value = value;
    }
    this.#fitAlternatives();
    this.#fitRows();
    this.#rows.querySelectorAll(".row").forEach((_, index) => {
      for (const name of EACH) this.#own(index, name).value = values.each[index]?.[name] ?? "";
    });
    if (overrides(values).some((one) => Object.keys(one).length > 0)) this.#rows.closest("details").open = true;
  }

  /** Offer these models; if there are none, a model can be typed. */
  offer(models) {
    const { model } = this.#form.elements;
    const typed = this.#form.elements["typed-model"];
    const before = this.values.model;
    const focused = [model, typed].includes(document.activeElement);
    model.replaceChildren(...models.map((id) => new Option(id, id)));
    model.hidden = models.length === 0;
    typed.hidden = models.length > 0;
    typed.required = !typed.hidden;
    if (focused) (typed.hidden ? model : typed).focus();
    this.#choose(before);
  }

  /** Return whether all fields are valid for the browser; if not, the browser shows why. */
  check() {
    this.#form.querySelectorAll(":invalid").forEach((field) => this.#reveal(field));
    return this.#form.reportValidity();
  }

  /** Show what is wrong beside the field that the API names; returns false if there is no such field. */
  blame(param, message) {
    const field = this.#find(param);
    if (!field) return false;
    this.#reveal(field);
    field.setAttribute("aria-invalid", "true");
    field.closest(".field").querySelector(".problem")?.replaceChildren(message);
    field.focus();
    return true;
  }

  /** Set whether nothing can be sent without a key. */
  requireKey(required) {
    this.#form.elements.key.required = required;
    this.#form.elements["typed-model"].placeholder = required ? "listed once there is a key" : "name of the model";
  }

  /** Ask for a key, as the server does; `message` says what is wrong with one that is there. */
  wantKey(message) {
    const { key } = this.#form.elements;
    key.closest(".field").hidden = false;
    if (this.key === "") key.focus();
    else this.blame("key", message);
  }

  /** Remove the messages of all fields. */
  forgive() {
    this.#form.querySelectorAll("[aria-invalid]").forEach((field) => this.#clear(field));
  }

  #find(param) {
    const own = CHOICE_PARAM.exec(param ?? "");
    if (own) return this.#own(Number(own[1]), own[2]);
    const name = FIELDS[param] ?? param;
    if (name === "model" && this.#form.elements.model.hidden) return this.#form.elements["typed-model"];
    return name ? this.#form.querySelector(`[name="${CSS.escape(name)}"]`) : null;
  }

  #clear(field) {
    field.removeAttribute("aria-invalid");
    field.closest(".field")?.querySelector(".problem")?.replaceChildren();
  }

  #reveal(field) {
    for (let at = field.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  }

  /** Choose a model. One that is not offered is left out, or added with a word about it if `anyway`. */
  #choose(id, anyway = false) {
    const { model } = this.#form.elements;
    this.#form.elements["typed-model"].value = id;
    const known = [...model.options].some((option) => option.value === id);
    const added = !known && anyway && id !== "" && !model.hidden;
    if (added) model.append(new Option(`${id} (not offered)`, id));
    if (known || added) model.value = id;
  }

  #each() {
    const rows = [...this.#rows.querySelectorAll(".row")];
    return rows.map((_, index) => Object.fromEntries(EACH.map((name) => [name, this.#own(index, name).value.trim()])));
  }

  #own(index, name) {
    return this.#rows.querySelector(`[name="each.${index}.${CSS.escape(name)}"]`);
  }

  /** Alternatives are those of log probabilities; while the field is disabled, the browser does not check it. */
  #fitAlternatives() {
    const { logprobs, top_logprobs } = this.#form.elements;
    top_logprobs.disabled = !logprobs.checked;
  }

  /** Make as many rows as choices, or at least as many; rows that stay keep their values. */
  #fitRows(exactly = true) {
    const { n } = this.#form.elements;
    n.setCustomValidity(Number(n.value) > MOST_CHOICES ? TOO_MANY : "");
    const wanted = Math.min(Math.max(Number(n.value) || 0, 0), MOST_CHOICES);
    const rows = this.#rows.querySelectorAll(".row");
    rows.forEach((row, index) => exactly && index >= wanted && row.remove());
    for (let index = rows.length; index < wanted; index += 1) this.#rows.append(this.#row(index));
  }

  #row(index) {
    const row = document.createElement("div");
    row.className = "row";
    row.append(`${index}`, ...EACH.map((name) => this.#cell(index, name)));
    return row;
  }

  #cell(index, name) {
    const above = this.#form.elements[name];
    const cell = Object.assign(document.createElement("input"), {
      type: "number",
      name: `each.${index}.${name}`,
      min: above.min,
      max: above.max,
      step: above.step,
      placeholder: LABELS[name],
    });
    cell.setAttribute("aria-label", `${LABELS[name]} of choice ${index}`);
    return cell;
  }
}
