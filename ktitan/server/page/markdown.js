// Draws markdown while it arrives. Tokens come from marked's lexer (only its lexer: its HTML is never used), become a
// tree of plain specs, and the specs patch the page's nodes, so that what did not change is not touched: no flicker, and
// a selection survives. Finished blocks are frozen and never read again.

import { h } from "./dom.js";
import { lex, mend } from "./markdown_rules.js";
import { specs } from "./markdown_specs.js";

/** Make `parent`'s children from index `from` on look like `wanted`, reusing every node that fits. */
function patch(parent, wanted, from = 0) {
  wanted.forEach((spec, index) => {
    const node = parent.childNodes[from + index];
    if (typeof spec === "string") {
      if (node?.nodeType !== Node.TEXT_NODE) place(parent, document.createTextNode(spec), node);
      else if (node.data !== spec) setText(node, spec);
      return;
    }
    const fits = node?.spec && node.spec.tag === spec.tag && sameProps(node.spec.props, spec.props);
    const element = fits ? node : h(spec.tag, spec.props);
    element.spec = spec;
    patch(element, spec.kids);
    if (!fits) place(parent, element, node);
  });
  while (parent.childNodes.length > from + wanted.length) parent.lastChild.remove();
}

function place(parent, made, old) {
  if (old) old.replaceWith(made);
  else parent.append(made);
}

/** Growth is appended: a long code block is not laid out anew for each of its lines. */
function setText(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

function sameProps(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}

/** One answer's text, drawn into `root`. */
export class MarkdownView {
  #root;
  #text = "";
  #read = 0; // characters in frozen blocks
  #frozen = 0; // nodes of frozen blocks

  constructor(root) {
    this.#root = root;
  }

  /** Characters that the next update reads again. */
  get unfrozen() {
    return this.#text.length - this.#read;
  }

  /** Show `text`; `open` says that more will follow. Cheap when `text` continues what was shown last. */
  update(text, open = false) {
    const clean = text.replace(/\r\n?/g, "\n");
    // The end is read as a whole: only now are all references known that earlier blocks may use.
    if (!open || !clean.startsWith(this.#text)) this.#read = this.#frozen = 0;
    this.#text = clean;
    const tail = clean.slice(this.#read);
    try {
      const tokens = lex(open ? mend(tail) : tail);
      patch(this.#root, specs(tokens), this.#frozen);
      this.#freeze(tokens, tail);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      // Nested deeper than the parser's stack, as a model that repeats itself writes: shown as it is.
      patch(this.#root, [{ tag: "p", props: { class: "raw" }, kids: [tail] }], this.#frozen);
    }
  }

  /** All but the last block are finished: in markdown a new line can change only the block before it. */
  #freeze(tokens, tail) {
    const last = tokens.findLastIndex((token) => token.type !== "space");
    let read = 0;
    for (const token of tokens.slice(0, Math.max(last, 0))) {
      if (!tail.startsWith(token.raw, read)) return;
      read += token.raw.length;
      this.#read += token.raw.length;
      this.#frozen += specs([token]).length;
    }
  }
}
