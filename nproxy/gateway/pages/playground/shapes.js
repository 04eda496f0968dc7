// What comes from servers, of whatever shape: only what has the expected one is taken.

/** Return a value if it is a string, else "". */
export const text = (value) => (typeof value === "string" ? value : "");

/** Return the objects of a list; none if it is no list. */
export const objects = (list) => (Array.isArray(list) ? list.filter((one) => typeof one === "object" && one !== null) : []);
