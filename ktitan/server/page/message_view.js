// One message on screen: a question as its plain text, an answer with reasoning, markdown, state and what can be done.

import { announce, button, copyText, h } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { t, tokensText } from "./strings.js";

const UNFINISHED = { stopped: "stopped", cut: "cut" };
const FAILURES = { busy: "errorBusy", refused: "errorRefused", fault: "errorFault", unreachable: "errorUnreachable", lost: "errorLost", key: "errorKey" };

/** A number as people write it: 0.42, 7.3, 128. */
export const short = (number) => (number >= 100 ? number.toFixed(0) : number >= 1 ? number.toFixed(1) : number.toFixed(2));

async function copyFrom(clicked, text) {
  if (!(await copyText(text))) return;
  announce(t("copied"));
  const label = clicked.lastChild;
  label.textContent = t("copied");
  setTimeout(() => (label.textContent = t("copy")), 1500);
}

/** Listen once for every copy button of a code block below `root`. */
export function listenForCodeCopies(root) {
  root.addEventListener("click", (event) => {
    const clicked = event.target.closest(".copy-code");
    if (clicked) copyFrom(clicked, clicked.closest(".code").querySelector("pre").textContent);
  });
}

/** A question; `actions` has `edit()`. */
export class QuestionView {
  constructor(message, actions) {
    this.edit = button("edit", t("edit"), () => actions.edit(), { text: true });
    const copy = button("copy", t("copy"), () => copyFrom(copy, message.content), { text: true });
    this.element = h(
      "article",
      { class: "message question" },
      h("h2", { class: "offscreen" }, t("you")),
      h("div", { class: "bubble", dir: "auto" }, message.content),
      h("div", { class: "actions" }, this.edit, copy),
    );
  }

  update({ last, running }) {
    this.edit.hidden = !last || running;
    this.element.classList.toggle("last", last);
  }
}

/** An answer; `actions` has `regenerate()`, `enterKey()` and `hurry()`. */
export class AnswerView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.reasoningText = h("div", { class: "reasoning-text" });
    this.summary = h("summary", {});
    this.reasoning = h("details", { class: "reasoning", hidden: true, ontoggle: () => this.drawReasoning() }, this.summary, this.reasoningText);
    this.text = h("div", { class: "text" });
    this.markdown = new MarkdownView(this.text);
    this.bar = h("progress", { hidden: true, "aria-hidden": "true" });
    this.note = h("div", { class: "note", hidden: true });
    this.copy = button("copy", t("copy"), () => copyFrom(this.copy, message.content), { text: true });
    this.again = button("again", t("regenerate"), () => actions.regenerate(), { text: true });
    this.facts = h("span", { class: "facts" });
    this.element = h(
      "article",
      { class: "message answer" },
      h("h2", { class: "offscreen" }, t("answer")),
      this.reasoning,
      this.text,
      this.note,
      h("div", { class: "actions" }, this.copy, this.again, this.facts),
    );
  }

  /** Draw the message as it is; `run` writes it, or is undefined. */
  update({ last, running, run }) {
    const { message } = this;
    this.element.setAttribute("aria-busy", String(Boolean(run)));
    this.element.classList.toggle("last", last);
    this.drawReasoning(run);
    this.markdown.update(message.content, Boolean(run));
    this.drawNote(run);
    this.copy.hidden = !message.content || Boolean(run);
    this.again.hidden = !last || running || message.state === "failed"; // then the note has a button
    this.facts.textContent = this.factsText(run);
  }

  drawReasoning(run = undefined) {
    const { reasoning, content, reasoned } = this.message;
    this.reasoning.hidden = !reasoning;
    if (!reasoning) return;
    const now = run && !content;
    this.summary.textContent = `${t(now ? "reasoningNow" : "reasoning")} ${reasoned ? t("seconds", { count: Math.round(reasoned) }) : ""}`;
    if (!this.reasoning.open) return; // not drawn until someone looks
    const node = this.reasoningText.firstChild ?? this.reasoningText.appendChild(document.createTextNode(""));
    if (reasoning.startsWith(node.data)) node.appendData(reasoning.slice(node.data.length));
    else node.data = reasoning;
  }

  drawNote(run) {
    const [text, action] = this.noteText(run);
    const { done, total } = run?.progress ?? {};
    this.note.hidden = !text;
    this.note.classList.toggle("failed", this.message.state === "failed");
    this.note.classList.toggle("waiting", Boolean(run));
    if (this.note.dataset.said !== text + (action?.label ?? "")) {
      this.note.replaceChildren(h("span", {}, text), this.bar, action ? h("button", { type: "button", class: "plain", onclick: action.call }, action.label) : "");
      this.note.dataset.said = text + (action?.label ?? "");
    }
    this.bar.hidden = !total;
    if (total) Object.assign(this.bar, { max: total, value: done });
  }

  /** What there is to say, and what can be done about it. */
  noteText(run) {
    const { state, content, reasoning, error } = this.message;
    const progress = run?.progress;
    if (progress?.seconds) return [t("errorBusy", progress), { label: t("retry"), call: () => this.actions.hurry() }];
    if (progress?.total) return [t("prefill", progress)];
    if (progress) return [t("queued", progress)];
    if (run) return [content || reasoning ? "" : t("waiting")];
    if (state === "streaming") return [t("elsewhere")];
    if (state !== "failed") return [""];
    const call = error.kind === "key" ? this.actions.enterKey : this.actions.regenerate;
    return [t(FAILURES[error.kind], { message: error.message }), { label: t(error.kind === "key" ? "enterKey" : "retry"), call }];
  }

  factsText(run) {
    const { state, stats, finish } = this.message;
    const facts = [];
    if (!run && UNFINISHED[state]) facts.push(t(UNFINISHED[state]));
    if (!run && finish === "length") facts.push(t("lengthEnd"));
    if (stats?.tokens) facts.push(tokensText(stats.tokens, stats.exact));
    if (stats?.rate) facts.push(t("speed", { rate: short(stats.rate) }));
    return facts.join(" · ");
  }
}
