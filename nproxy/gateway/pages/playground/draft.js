// The form's values in this tab, so that they return after a reload or the back button.

const DRAFT = "nproxy.draft.1";

/** The saved form values. storage: from storage.js; sound: returns whether a value is a valid set of form values. */
export class Draft {
  #storage;
  #sound;

  constructor(storage, sound) {
    this.#storage = storage;
    this.#sound = sound;
  }

  /** Save the values. running: whether an answer was in progress, which ends with the page. */
  keep(values, running) {
    this.#storage.write(DRAFT, JSON.stringify({ values, running }));
  }

  /** The last saved `{values, running}`; values are null if none are saved or they are not valid. */
  get last() {
    try {
      const { values, running } = JSON.parse(this.#storage.read(DRAFT));
      return { values: this.#sound(values) ? values : null, running: running === true };
    } catch {
      return { values: null, running: false };
    }
  }
}
