// Parses server-sent events as the HTML standard says (section 9.2.6). OpenAI's streams use only their data.

/** Takes a stream's text in pieces of any size, and returns the data of complete events. */
export class EventReader {
  #rest = "";
  #data = [];

  /** Return the data of each event that `text` completes. */
  read(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/); // a \r at the end may be half of a \r\n
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line)).filter((data) => data !== null);
  }

  /** Return the data of the event that this line completes, or null. */
  #line(line) {
    if (line === "") {
      const data = this.#data.length > 0 ? this.#data.join("\n") : null;
      this.#data = [];
      return data;
    }
    const [, field, value] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (field === "data") this.#data.push(value ?? "");
    return null;
  }
}
