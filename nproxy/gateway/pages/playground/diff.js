// Word-by-word differences between two answers.

/** The largest table (words times words) to fill; beyond it, all words between the common ends count as different. */
export const MOST_CELLS = 4_000_000;

const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

/** Split a text into words, each with the space after it; joined, they are the text again. */
export function words(text) {
  const found = [];
  for (const { segment } of segmenter.segment(text)) {
    if (segment.trim() === "" && found.length > 0) found[found.length - 1] += segment;
    else found.push(segment);
  }
  return found;
}

/**
 * Split `text` into runs of words that occur in `reference` in the same order, and of words that do not:
 * `[{text, same}, ...]`. Uses the longest common subsequence; spaces are ignored.
 */
export function compare(reference, text) {
  const [theirs, ours] = [words(reference), words(text)];
  const [a, b] = numbered(theirs, ours);
  const [head, tail] = commonEnds(a, b);
  const middle = common(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const runs = [];
  ours.forEach((word, at) => {
    const same = at < head || at >= b.length - tail || middle.has(at - head);
    if (runs.at(-1)?.same === same) runs.at(-1).text += word;
    else runs.push({ text: word, same });
  });
  return runs;
}

/** Return each list as numbers, the same for the same word: numbers are compared three times as fast. */
function numbered(...lists) {
  const numbers = new Map();
  return lists.map((list) =>
    Int32Array.from(list, (word) => {
      const plain = word.trim();
      if (!numbers.has(plain)) numbers.set(plain, numbers.size);
      return numbers.get(plain);
    }),
  );
}

/** Return how many words two lists share at their beginnings, and then at their ends. */
function commonEnds(a, b) {
  const most = Math.min(a.length, b.length);
  let head = 0;
  while (head < most && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < most - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  return [head, tail];
}

/** Return the places in `b` of the longest common subsequence of both. */
function common(a, b) {
  const places = new Set();
  const width = b.length + 1;
  if (a.length * b.length > MOST_CELLS) return places;
  const longest = new Uint16Array((a.length + 1) * width); // of a[i:], b[j:]; at most 2,000, in a square table
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      longest[at] =
        a[i] === b[j] ? longest[at + width + 1] + 1 : Math.max(longest[at + width], longest[at + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      places.add(j);
      i += 1;
      j += 1;
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return places;
}
