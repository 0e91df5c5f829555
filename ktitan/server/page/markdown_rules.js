// What marked's grammar lacks for answers of language models: math that stays text, bold next to Chinese text, and a
// tail that is still being written.

import { Marked } from "./vendor/marked.esm.js";

const CJK = /[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]/;
const BLOCK_MATH = /^ {0,3}(?:\$\$[\s\S]*?(?:\$\$|(?=\n\n)|$)|\\\[[\s\S]*?(?:\\\]|(?=\n\n)|$))[ \t]*(?:\n|$)/;
const INLINE_MATH = /^(?:\\\([\s\S]*?(?:\\\)|$)|\\\[[\s\S]*?(?:\\\]|$)|\$\$[^$]+\$\$|\$(?=[^\s$])[^$\n]*?[^\s$\\]\$(?!\d))/;

/** Math keeps its backslashes, stars and underscores; nothing in it is markup. */
const math = (level, rule, start) => ({
  name: `${level}Math`,
  level,
  start: (source) => source.search(start),
  tokenizer(source) {
    const found = rule.exec(source);
    return found ? { type: `${level}Math`, raw: found[0], text: found[0].trimEnd() } : undefined;
  },
});

/** CommonMark reads no bold in 这是**重点。**下文: its rules for punctuation expect spaces between words. */
const boldInChinese = {
  name: "strong",
  level: "inline",
  start: (source) => source.indexOf("**"),
  tokenizer(source) {
    const found = /^\*\*(?=[^\s*])((?:[^*\n`]|\*(?!\*))*[^\s*])\*\*(?!\*)/.exec(source);
    if (!found || !CJK.test(found[1])) return undefined;
    return { type: "strong", raw: found[0], text: found[1], tokens: this.lexer.inlineTokens(found[1]) };
  },
};

// A single line break is a line break: models mean it, and between Chinese lines a space would be wrong.
const marked = new Marked({ gfm: true, breaks: true });
// Underlined headings are left out: a model that writes --- below a paragraph means a rule.
marked.use({ tokenizer: { lheading: () => undefined }, extensions: [math("block", BLOCK_MATH, /(?:^|\n) {0,3}(?:\$\$|\\\[)/), math("inline", INLINE_MATH, /\$|\\[([]/), boldInChinese] });

/** Top-level tokens of `text`; their `raw`s joined are `text`. */
export const lex = (text) => marked.lexer(text);

/** Does `text` end inside a fenced code block? */
function inFence(text) {
  let fence = "";
  for (const [, mark, info] of text.matchAll(/^[ \t>]*(`{3,}|~{3,})(.*)$/gm)) {
    if (!fence) fence = mark;
    else if (mark[0] === fence[0] && mark.length >= fence.length && !info.trim()) fence = "";
  }
  return fence !== "";
}

/** A table is drawn from its first header cell on, by a delimiter row that has not come yet. */
function mendTable(text) {
  const lines = text.split("\n");
  if (/^ {0,3}\|?[|:\- ]*$/.test(lines.at(-1)) && lines.length > 1) lines.pop();
  const [before, head] = [lines.at(-2) ?? "", lines.at(-1)];
  if (!/^ {0,3}\|\s*\S/.test(head) || before.trimStart().startsWith("|")) return text;
  const cells = Math.max(1, head.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).length);
  return `${lines.join("\n")}${head.trimEnd().endsWith("|") ? "" : " |"}\n${"|---".repeat(cells)}|\n`;
}

/** Of a link whose address still comes, only the text is shown. */
function mendLink(line) {
  const middle = line.lastIndexOf("](");
  const start = line.lastIndexOf("[", middle);
  if (middle < 0 || start < 0 || /[)\s]/.test(line.slice(middle + 2))) return line;
  return line.slice(0, line[start - 1] === "!" ? start - 1 : start) + line.slice(start + 1, middle);
}

/** Close what the last line has opened, so that bold is bold from its first letter on. */
function mendLine(line) {
  if ((line.match(/`+/g) ?? []).length % 2) return line.endsWith("`") ? line.replace(/`+$/, "") : `${line}\``;
  let mended = mendLink(line.replace(/(?<=\s|^)[*_~]{1,3}$/, ""));
  const stars = (text) => text.replace(/`+[^`]*`+/g, "").split("**");
  const open = mended.replace(/\*{1,2}$/, "");
  if (stars(open).length % 2 === 0) return `${open.trimEnd()}**`;
  const single = stars(mended).join("").replace(/^\s*\* /, "").split("*");
  if (single.length % 2 === 0 && /(?:^|[\s(\u3000-\u303f\uff00-\uffef])$/.test(single.at(-2)) && /^\S/.test(single.at(-1))) mended = `${mended.trimEnd()}*`;
  return mended;
}

/**
 * What to show of a text that is still growing: markers that may yet become something else are held back, and open
 * ones are closed. Without this every list, table and bold word would flicker as it arrives.
 */
export function mend(text) {
  const cut = text.lastIndexOf("\n") + 1;
  const [before, line] = [text.slice(0, cut), text.slice(cut)];
  const bare = line.replace(/^[ \t>]+/, "").trimEnd();
  // A fence waits for its whole line, so that neither its language nor its end is drawn letter by letter.
  const isFence = /^(?:`+|~{2,})[^`]*$/.test(bare);
  const known = isFence ? before : text;
  if (inFence(known)) return known;
  // A line of markers alone may become a rule, a heading, a list or a table.
  const isMarker = /^(?:[-*+_=#~|: ]*|\d{1,9}[.)]?|`{1,2}|(?:`{3,}|~{3,})[^`]*)$/.test(bare);
  const held = isMarker ? before : text;
  const tabled = mendTable(held);
  if (tabled !== held || isMarker) return tabled;
  return before + mendLine(line);
}
