// Earlier requests and their answers. They stay in this browser, and only as long as the user wants.

/** The most requests that are kept, and the most characters that they may have in total. */
export const MOST_KEPT = 50;
export const MOST_CHARACTERS = 1_000_000;

const ENTRY = "nproxy.history.1"; // each entry is an item of its own: tabs do not overwrite what others add
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
    return this.#kept().map(({ entry }) => entry);
  }

  /** Add an entry, and return whether it is kept; the oldest ones are dropped if there is no room. */
  add(entry) {
    const text = JSON.stringify(entry);
    if (!this.wanted || text.length > MOST_CHARACTERS) return false;
    const name = `${ENTRY}.${entry.at}.${Math.random()}`;
    const kept = this.#kept();
    for (const other of this.#names()) if (!kept.some((one) => one.name === other)) this.#storage.forget(other);
    let size = kept.reduce((sum, one) => sum + one.size, text.length);
    const drop = () => {
      const { name, size: freed } = kept.pop();
      this.#storage.forget(name);
      size -= freed;
    };
    while (kept.length >= MOST_KEPT || size > MOST_CHARACTERS) drop();
    let written = this.#storage.write(name, text);
    for (; !written && kept.length > 0; written = this.#storage.write(name, text)) drop();
    return written;
  }

  /** Delete all entries. */
  clear() {
    for (const name of this.#names()) this.#storage.forget(name);
  }

  #names() {
    return this.#storage.names().filter((name) => name.startsWith(ENTRY));
  }

  /** The valid entries with their names and sizes, newest first. */
  #kept() {
    const found = this.#names().map((name) => {
      const text = this.#storage.read(name) ?? "";
      return { name, size: text.length, entry: parsed(text) };
    });
    return found.filter(({ entry }) => this.#sound(entry)).sort((a, b) => b.entry.at - a.entry.at);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
