// Copying: to the clipboard, or, where a browser keeps that from this page, into a dialog to copy from.

const TOLD = 1_500; // milliseconds for which a button says that it has copied

export class Copying {
  #dialog;
  #tell;

  /** `dialog` has a textarea. `tell` is given what a screen reader should say. */
  constructor(dialog, tell) {
    this.#dialog = dialog;
    this.#tell = tell;
  }

  /** Copy a text for the button that was pressed. */
  async copy(button, text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return this.#show(text);
    }
    button.dataset.label ??= button.textContent; // on a second press, the text is "Copied" already
    button.textContent = "Copied";
    this.#tell("Copied");
    setTimeout(() => (button.textContent = button.dataset.label), TOLD);
  }

  #show(text) {
    const area = this.#dialog.querySelector("textarea");
    area.value = text;
    this.#dialog.showModal();
    area.select();
  }
}
