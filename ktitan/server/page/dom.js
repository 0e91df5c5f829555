// The page's only way to make elements: text becomes text nodes, so nothing that a model writes is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export const $ = (id) => document.getElementById(id);

/**
 * Make an element. Keys of `props` that start with "on" are listeners, `class` and names with a dash are attributes, the
 * rest are properties; children are nodes or strings, and null ones are left out.
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class" || name === "role" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** One of the symbols at the end of index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button with an icon; its label is read aloud and shown on hover, or beside the icon when `text` is true. */
export function button(name, label, onclick, { text = false, ...props } = {}) {
  const shown = text ? h("span", { class: "label" }, label) : null; // the style sheet hides it where space is short
  return h("button", { type: "button", class: text ? "quiet" : "quiet square", title: label, "aria-label": label, onclick, ...props }, icon(name), shown);
}

/** Put text on the clipboard, also where the page has no secure context (plain http in a home network). */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const area = h("textarea", { value: text, class: "clipboard", readOnly: true });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/** Say something to screen readers, politely and once. */
export function announce(text) {
  $("status").textContent = text;
}

/** Offer `value` as a JSON file. */
export function download(name, value) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
