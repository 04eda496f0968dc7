// The browser's storages, which may be full or not allowed at all: then nothing is kept, and nothing breaks.

/** open: returns the storage, or throws. Reading what is not there gives null; writing says whether it is kept. */
export function storage(open) {
  const tried = (act) => {
    try {
      return act(open());
    } catch {
      return null;
    }
  };
  return {
    read: (name) => tried((kept) => kept.getItem(name)),
    write: (name, text) => tried((kept) => kept.setItem(name, text) ?? true) === true,
    forget: (name) => tried((kept) => kept.removeItem(name)),
  };
}
