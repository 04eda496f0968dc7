// Earlier requests and their answers. They stay in this browser, and only as long as the user wants.

/** The most requests that are kept, and the most characters that they may have in total. */
export const MOST_KEPT = 50;
export const MOST_CHARACTERS = 1_000_000;

const ENTRIES = "nproxy.history.1";
const WANTED = "nproxy.history.wanted";

/** The earlier requests, newest first. storage: from storage.js; sound: returns whether a value is a valid entry. */
export class History {
  #storage;
  #sound;

  constructor(storage, sound) {
    this.#storage = storage;
    this.#sound = sound;
  }

  /** Whether the history is kept. */
  get wanted() {
    return this.#storage.read(WANTED) !== "no";
  }

  /** Turn the history on or off; turning it off deletes it. */
  set wanted(wanted) {
    if (!wanted) this.clear(); // first: a full storage accepts no further write
    this.#storage.write(WANTED, wanted ? "yes" : "no");
  }

  /** All kept entries that are valid: `[{at, values, run}, ...]`. */
  get entries() {
    try {
      const kept = JSON.parse(this.#storage.read(ENTRIES) ?? "[]");
      return Array.isArray(kept) ? kept.filter(this.#sound) : [];
    } catch {
      return [];
    }
  }

  /** Add an entry; the oldest ones are dropped if there is no room. */
  add(entry) {
    if (!this.wanted) return;
    const entries = [entry, ...this.entries].slice(0, MOST_KEPT);
    while (entries.length > 0) {
      const text = JSON.stringify(entries);
      if (text.length <= MOST_CHARACTERS && this.#storage.write(ENTRIES, text)) return;
      entries.pop();
    }
  }

  /** Delete all entries. */
  clear() {
    this.#storage.forget(ENTRIES);
  }
}
