// Where questions are typed. Enter sends, but never while an input method is composing: there Enter picks a word.

import { ask, current, isRunning, lastQuestion, stop } from "./chat.js";
import { $ } from "./dom.js";
import { keep, kept } from "./prefs.js";
import { runOf } from "./runs.js";
import { t } from "./strings.js";

let editing = false;

/** The draft outlives a reload. */
function noteDraft() {
  keep("draft", $("question").value, "session");
}

/** Let the field be as high as its text; the style sheet caps it. */
function fit() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function setEditing(wanted) {
  editing = wanted;
  $("editing").hidden = !wanted;
}

/** Put the last question back into the field, to be sent anew. */
export function editLast() {
  const text = lastQuestion();
  if (text === null || isRunning()) return;
  setText(text);
  setEditing(true);
  $("question").focus();
  $("question").setSelectionRange(text.length, text.length);
}

function setText(text) {
  $("question").value = text;
  noteDraft();
  fit();
}

/** Leave editing; true when there was something to leave. */
export function cancelEditing() {
  if (!editing) return false;
  setEditing(false);
  setText("");
  return true;
}

function send() {
  const text = $("question").value;
  if (!text.trim() || isRunning()) return;
  const replace = editing;
  setEditing(false);
  setText("");
  ask(text, replace);
}

function onKey(event) {
  // Safari ends the composition before its last keydown, which then only has the old code 229.
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !$("question").value && lastQuestion() !== null) {
    event.preventDefault();
    editLast();
  }
}

/** The button says what a click does now. */
function drawButton() {
  const running = Boolean(runOf(current()));
  const label = t(running ? "stop" : "send");
  $("send").classList.toggle("running", running);
  $("send").setAttribute("aria-label", label);
  $("send").title = label;
}

/** Listen to the field and the buttons around it. */
export function start() {
  $("question").addEventListener("keydown", onKey);
  $("question").addEventListener("input", fit);
  $("question").addEventListener("input", noteDraft);
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (runOf(current())) stop();
    else send();
  });
  $("cancel-edit").addEventListener("click", () => cancelEditing());
  document.addEventListener("edit", editLast);
  let shown = current().id;
  document.addEventListener("opened", () => {
    if (current().id !== shown) cancelEditing();
    shown = current().id;
    drawButton();
  });
  for (const name of ["running", "language"]) document.addEventListener(name, drawButton);
  setText(kept("draft", "session") ?? "");
  drawButton();
}
