// The open conversation: which one it is, what is drawn of it, and what the user does to it.

import { $, announce } from "./dom.js";
import { AnswerView, QuestionView } from "./message_view.js";
import { keep, keptObject } from "./prefs.js";
import { leaveUnfinished, newId, Run, runOf, TAB, takeUnfinished } from "./runs.js";
import { onChangeElsewhere, read, write } from "./store.js";
import { t } from "./strings.js";

const ABANDONED_MS = 15_000;
let conversation = fresh();
let views = [];
let following = true; // is the end of the text in view?
let scheduled = false;
let busyUntil = 0;

/** The open conversation. */
export const current = () => conversation;

/** Is an answer being written into it, here or in another tab? */
export const isRunning = () => Boolean(runOf(conversation)) || conversation.messages.at(-1)?.state === "streaming";

/** An empty conversation with the settings of the last one; it is kept from its first question on. */
function fresh() {
  const last = keptObject("settings");
  return { id: newId(), title: "", updated: Date.now(), system: last.system ?? "", sampling: last.sampling ?? {}, messages: [] };
}

function tell(name) {
  document.dispatchEvent(new CustomEvent(name, { detail: conversation }));
}

/** Answers that nobody writes any more: this tab was reloaded, or the tab that wrote is gone. */
function markInterrupted(one) {
  takeUnfinished(one);
  const left = one.messages.filter(({ state, tab, at }) => state === "streaming" && (tab === TAB || Date.now() - at > ABANDONED_MS));
  for (const message of left) message.state = "cut";
  if (left.length) write(one);
}

/** Show the conversation `id`, or a new one when there is none. */
export async function open(id) {
  const found = id ? (runOf({ id })?.conversation ?? (await read(id))) : undefined;
  conversation = found ?? fresh();
  if (!runOf(conversation)) markInterrupted(conversation);
  history.replaceState(null, "", found ? `#${conversation.id}` : location.pathname + location.search);
  redraw();
  tell("opened");
}

/** Keep the settings of the open conversation, and start the next one with them. */
export async function setSettings(settings) {
  Object.assign(conversation, settings);
  keep("settings", JSON.stringify({ system: conversation.system, sampling: conversation.sampling }));
  if (conversation.messages.length) await write(conversation);
}

/** The text of the last question, or null. */
export const lastQuestion = () => conversation.messages.findLast((message) => message.role === "user")?.content ?? null;

/** Ask `text`; with `replace` in place of the last question and all that followed it. */
export function ask(text, replace = false) {
  const { messages } = conversation;
  if (replace) messages.splice(messages.findLastIndex((message) => message.role === "user"));
  messages.push({ role: "user", content: text });
  conversation.title ||= [...text.trim().split("\n")[0]].slice(0, 80).join("");
  answer();
}

/** Answer the last question anew. */
export function regenerate() {
  const { messages } = conversation;
  if (isRunning() || !messages.length) return;
  if (messages.at(-1).role === "assistant") messages.pop();
  answer();
}

/** Stop the answer that is being written. */
export const stop = () => runOf(conversation)?.stop();

function answer() {
  const message = { role: "assistant", content: "", reasoning: "", state: "streaming", stats: null };
  conversation.messages.push(message);
  history.replaceState(null, "", `#${conversation.id}`);
  const run = new Run(conversation, message, changed);
  following = true;
  redraw();
  tell("running");
  run.finished.then(() => ended(run));
}

function changed(run) {
  if (run.conversation !== conversation) return;
  schedule();
  if (run.answer.content && !run.isAnnounced) announce(t("started"));
  run.isAnnounced ||= Boolean(run.answer.content);
}

function ended({ conversation: one, answer: message }) {
  document.dispatchEvent(new CustomEvent("answered", { detail: message }));
  if (one !== conversation) return;
  draw();
  tell("running");
  announce(message.state === "done" ? t("finished") : views.at(-1).noteText?.(undefined)[0] || t("stopped"));
  if (message.error?.kind === "key") tell("keyWanted");
}

/** Draw at most once a frame, and never spend more than a fifth of the time on it, however long the answer is. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  const wait = Math.max(0, busyUntil - performance.now());
  setTimeout(() => requestAnimationFrame(drawScheduled), wait);
}

function drawScheduled() {
  const before = performance.now();
  scheduled = false;
  draw();
  tell("drawn");
  const after = performance.now();
  busyUntil = after + 4 * (after - before);
}

/** Make the views of the open conversation anew. */
export function redraw() {
  views = conversation.messages.map((message) =>
    message.role === "user" ? new QuestionView(message, actions) : new AnswerView(message, actions),
  );
  $("messages").replaceChildren(...views.map((view) => view.element));
  $("empty").hidden = views.length > 0;
  draw(true);
}

/** Bring the last two messages up to date; only those can change, but for `all` after a redraw. */
function draw(all = false) {
  const run = runOf(conversation);
  const lastOf = (role) => conversation.messages.findLastIndex((message) => message.role === role);
  const ends = [lastOf("user"), lastOf("assistant")];
  for (const [index, view] of views.entries()) {
    if (!all && index < views.length - 2) continue;
    const mine = run?.answer === conversation.messages[index] ? run : undefined;
    view.update({ last: ends.includes(index), running: isRunning(), run: mine });
  }
  if (following) toEnd();
}

/** Scroll to the end and stay there while the answer grows. */
export function toEnd() {
  following = true;
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

/** Follow the answer only while its end is in view: who scrolls up wants to read. */
export function watchScrolling() {
  $("scroll").addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = $("scroll");
    following = scrollHeight - scrollTop - clientHeight < 48;
    $("latest").hidden = following;
  });
  new ResizeObserver(() => following && toEnd()).observe($("scroll"));
}

const actions = {
  regenerate,
  edit: () => tell("edit"),
  enterKey: () => tell("keyWanted"),
  hurry: () => runOf(conversation)?.hurry(),
};

onChangeElsewhere(async (id) => {
  const isIdle = () => id === conversation.id && !runOf(conversation);
  const found = isIdle() ? await read(id) : undefined;
  if (!isIdle()) return; // another one was opened, or a question asked, meanwhile
  if (found) Object.assign(conversation, found);
  redraw();
  tell("running");
});
addEventListener("pagehide", leaveUnfinished);
