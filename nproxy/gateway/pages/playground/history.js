// What was asked and answered here before. It stays in this browser, and in it no longer than wanted.

/** How many requests are kept, and in how many characters all together. */
export const MOST_KEPT = 50;
export const MOST_CHARACTERS = 1_000_000;

const ENTRIES = "nproxy.history.1";
const WANTED = "nproxy.history.wanted";

/** The requests of before, the newest first. storage: as storage.js makes it; sound: whether something is an entry. */
export class History {
  #storage;
  #sound;

  constructor(storage, sound) {
    this.#storage = storage;
    this.#sound = sound;
  }

  /** Whether anything is kept. */
  get wanted() {
    return this.#storage.read(WANTED) !== "no";
  }

  /** Keep no more, and forget what there is; or keep again. */
  set wanted(wanted) {
    if (!wanted) this.clear(); // first: a full storage takes no word more
    this.#storage.write(WANTED, wanted ? "yes" : "no");
  }

  /** All that is kept and sound: `[{at, values, run}, ...]`. */
  get entries() {
    try {
      const kept = JSON.parse(this.#storage.read(ENTRIES) ?? "[]");
      return Array.isArray(kept) ? kept.filter(this.#sound) : [];
    } catch {
      return [];
    }
  }

  /** Keep an entry; the oldest make room for it. */
  add(entry) {
    if (!this.wanted) return;
    const entries = [entry, ...this.entries].slice(0, MOST_KEPT);
    while (entries.length > 0) {
      const text = JSON.stringify(entries);
      if (text.length <= MOST_CHARACTERS && this.#storage.write(ENTRIES, text)) return;
      entries.pop();
    }
  }

  /** Forget all of it. */
  clear() {
    this.#storage.forget(ENTRIES);
  }
}
