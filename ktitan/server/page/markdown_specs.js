// Tokens of marked's lexer as specs: a string is a text node, `{tag, props, kids}` an element. There is no way from here
// to HTML: tags are the ones written below, and every text of the model ends as a string.

import { t } from "./strings.js";

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–", times: "×", rarr: "→" };

const make = (tag, props = {}, ...kids) => ({ tag, props, kids: kids.flat() });

/** Text with its character references read; unknown ones stay as they are. */
function plain(text) {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/g, (all, decimal, hex, name) => {
    if (name) return NAMED[name] ?? all;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
  });
}

/** The address if it is one that a model may link to (http, https, mailto; never a script or data), or null. */
export function safeAddress(href) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(href)) return null;
  try {
    const address = new URL(href);
    return ["http:", "https:", "mailto:"].includes(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}

function link(token, kids) {
  const href = safeAddress(plain(token.href));
  // The title is the true address, so that a text cannot pretend to be another.
  if (href) return make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, kids);
  return make("span", {}, kids);
}

function code(token) {
  const language = (token.lang ?? "").split(/\s/)[0].slice(0, 30);
  const copy = make("button", { type: "button", class: "quiet copy-code" }, t("copy"));
  const head = make("div", { class: "code-head" }, make("span", {}, language), copy);
  return make("div", { class: "code" }, head, make("pre", { tabIndex: 0 }, make("code", {}, token.text)));
}

function table(token) {
  const cell = (tag) => (one) => make(tag, { class: `align-${one.align ?? "start"}` }, specs(one.tokens));
  const head = make("thead", {}, make("tr", {}, token.header.map(cell("th"))));
  const body = make("tbody", {}, token.rows.map((row) => make("tr", {}, row.map(cell("td")))));
  return make("div", { class: "table", tabIndex: 0 }, make("table", {}, head, body));
}

function item(token) {
  const mark = token.task ? [make("input", { type: "checkbox", disabled: true, checked: Boolean(token.checked) }), " "] : [];
  const kids = token.tokens.filter((kid) => kid.type !== "checkbox");
  return make("li", token.task ? { class: "task" } : {}, mark, specs(kids));
}

function list(token) {
  const props = token.ordered ? { start: Number(token.start) || 1 } : {};
  return make(token.ordered ? "ol" : "ul", props, token.items.map(item));
}

/** One maker for each kind of token; what is not here is shown as the text that it is. */
const MAKERS = {
  space: () => [],
  def: () => [],
  heading: (token) => make(`h${Math.min(token.depth + 2, 6)}`, { class: `level-${token.depth}` }, specs(token.tokens)),
  paragraph: (token) => make("p", {}, specs(token.tokens)),
  blockquote: (token) => make("blockquote", {}, specs(token.tokens)),
  list,
  table,
  code,
  hr: () => make("hr"),
  blockMath: (token) => make("p", { class: "math" }, token.text),
  inlineMath: (token) => make("span", { class: "math" }, token.text),
  strong: (token) => make("strong", {}, specs(token.tokens)),
  em: (token) => make("em", {}, specs(token.tokens)),
  del: (token) => make("del", {}, specs(token.tokens)),
  codespan: (token) => make("code", {}, token.text),
  br: () => make("br"),
  link: (token) => link(token, specs(token.tokens)),
  // Never loaded: a picture's address would tell its server who reads the answer.
  image: (token) => link(token, [plain(token.text || token.href)]),
  escape: (token) => plain(token.text),
  text: (token) => (token.tokens ? specs(token.tokens) : plain(token.text)),
  html: (token) => (/^<br\s*\/?>$/i.test(token.raw.trim()) ? make("br") : token.block ? make("p", { class: "raw" }, token.raw.trimEnd()) : token.raw),
};

/** The specs of `tokens`, neighbouring strings joined. */
export function specs(tokens) {
  const made = [];
  for (const token of tokens) {
    for (const spec of [(MAKERS[token.type] ?? ((other) => other.raw))(token)].flat()) {
      if (typeof spec === "string" && typeof made.at(-1) === "string") made[made.length - 1] += spec;
      else made.push(spec);
    }
  }
  return made;
}
