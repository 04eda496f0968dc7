// What stands in the form of this tab, so that it is there again behind a reload or on the way back.

const DRAFT = "nproxy.draft.1";

/** The form's values as they were left. storage: as storage.js makes it; sound: whether something is values. */
export class Draft {
  #storage;
  #sound;

  constructor(storage, sound) {
    this.#storage = storage;
    this.#sound = sound;
  }

  /** running: whether an answer was under way, which ends with the page. */
  keep(values, running) {
    this.#storage.write(DRAFT, JSON.stringify({ values, running }));
  }

  /** `{values, running}` of the last time; values are null where nothing is known. */
  get last() {
    try {
      const { values, running } = JSON.parse(this.#storage.read(DRAFT));
      return { values: this.#sound(values) ? values : null, running: running === true };
    } catch {
      return { values: null, running: false };
    }
  }
}
