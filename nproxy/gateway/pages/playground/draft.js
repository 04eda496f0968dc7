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

  /** Save the values. left: "" or what to say after the page was left, of an answer that ended with it. */
  keep(values, left = "") {
    this.#storage.write(DRAFT, JSON.stringify({ values, left }));
  }

  /** The last saved `{values, left}`; values are null if none are saved or they are not valid. */
  get last() {
    try {
      const { values, left } = JSON.parse(this.#storage.read(DRAFT));
      return { values: this.#sound(values) ? values : null, left: left ?? "" };
    } catch {
      return { values: null, left: "" };
    }
  }
}
