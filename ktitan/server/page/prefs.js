// Small choices that outlive a reload. Where the browser refuses storage they last as long as the page.

const memory = new Map();

/** The text kept under `name`, or null. `where` is "local", or "session" for what ends with the tab. */
export function kept(name, where = "local") {
  try {
    return window[`${where}Storage`].getItem(`ktitan.${name}`);
  } catch {
    return memory.get(name) ?? null;
  }
}

/** The object kept as JSON under `name`; an empty one where there is none that can be read. */
export function keptObject(name) {
  try {
    return JSON.parse(kept(name)) ?? {};
  } catch {
    return {};
  }
}

/** Keep `value` under `name`; null forgets it. */
export function keep(name, value, where = "local") {
  try {
    const storage = window[`${where}Storage`];
    if (value === null) storage.removeItem(`ktitan.${name}`);
    else storage.setItem(`ktitan.${name}`, value);
  } catch {
    memory.set(name, value);
  }
}
