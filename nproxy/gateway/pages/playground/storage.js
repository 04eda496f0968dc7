// Access to the browser's storages. They may be full or forbidden: then nothing is kept, and nothing throws.

/** open: returns the storage, or throws. `read` returns null for a missing item, `write` whether it is kept. */
export function storage(open) {
  const tried = (act) => {
    try {
      return act(open());
    } catch {
      return null;
    }
  };
  return {
    names: () => tried((kept) => Object.keys(kept)) ?? [],
    read: (name) => tried((kept) => kept.getItem(name)),
    write: (name, text) => tried((kept) => kept.setItem(name, text) ?? true) === true,
    forget: (name) => tried((kept) => kept.removeItem(name)),
  };
}
