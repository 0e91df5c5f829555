// Starts the page: words, panes, keys, the model's name and the API key; each part has its own module.

import { ApiError, getJson, setKey } from "./api.js";
import * as chat from "./chat.js";
import * as composer from "./composer.js";
import { askUser } from "./dialogs.js";
import { $ } from "./dom.js";
import * as machine from "./machine.js";
import { listenForCodeCopies } from "./message_view.js";
import { keep } from "./prefs.js";
import * as settings from "./settings.js";
import * as sidebar from "./sidebar.js";
import { currentLanguage, setLanguage, t, translate } from "./strings.js";

const root = document.documentElement;
const isNarrow = () => innerWidth < 900;

/** Open or close a pane ("side" or "panel"); on a narrow page it lies over the chat, which then rests. */
function setPane(name, state) {
  root.dataset[name] = state;
  if (!isNarrow()) keep(name, state);
  const other = name === "side" ? "panel" : "side";
  if (isNarrow() && state === "open") root.dataset[other] = "closed";
  for (const one of ["side", "panel"]) {
    $(one).inert = root.dataset[one] !== "open";
    $(`toggle-${one}`).setAttribute("aria-expanded", String(root.dataset[one] === "open"));
  }
  $("main").inert = isNarrow() && (root.dataset.side === "open" || root.dataset.panel === "open");
  document.dispatchEvent(new Event("panel"));
}

const toggle = (name) => setPane(name, root.dataset[name] === "open" ? "closed" : "open");

/** Close what lies over the chat; true when something did. */
function closeDrawers() {
  const name = isNarrow() && ["side", "panel"].find((one) => root.dataset[one] === "open");
  if (!name) return false;
  setPane(name, "closed");
  $(`toggle-${name}`).focus();
  return true;
}

async function newChat() {
  closeDrawers();
  await chat.open(null);
  $("question").focus();
}

function onKey(event) {
  if (event.isComposing || event.keyCode === 229 || $("dialog").open) return;
  const clears = event.target.id === "search" && event.target.value; // Escape is the field's own here
  if (event.key === "Escape" && !clears) closeDrawers() || composer.cancelEditing() || chat.stop();
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    newChat();
  }
}

/** Ask for the API key and try again what it was wanted for. */
async function enterKey(then, wrong = false) {
  const asked = await askUser({
    title: t("keyTitle"),
    text: t(wrong ? "keyWrong" : "keyText"),
    field: { label: t("keyTitle"), type: "password" },
    tick: t("keyRemember"),
    ok: t("save"),
  });
  if (!asked?.text) return;
  setKey(asked.text, asked.ticked);
  then();
}

/** Show which model answers; a server with a key is asked for it here, before the first question. */
async function showModel(wrong = false) {
  let name;
  let fault = "";
  try {
    name = (await getJson("v1/models")).data?.[0]?.id;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.kind === "key") enterKey(() => showModel(true), wrong);
    fault = t(error.kind === "key" ? "errorKey" : "errorUnreachable");
  }
  $("model").textContent = name ?? fault;
  $("empty-text").textContent = t("emptyText", { model: name ?? t("theModel") });
}

function startChoices() {
  $("theme").value = root.dataset.theme;
  $("theme").addEventListener("change", () => {
    root.dataset.theme = $("theme").value;
    keep("theme", $("theme").value);
  });
  $("language").value = currentLanguage();
  $("language").addEventListener("change", () => setLanguage($("language").value));
  document.addEventListener("language", () => {
    chat.redraw();
    showModel();
  });
}

function startPanes() {
  for (const name of ["side", "panel"]) {
    $(`toggle-${name}`).addEventListener("click", () => toggle(name));
    $(`close-${name}`).addEventListener("click", closeDrawers);
    setPane(name, root.dataset[name]);
  }
  $("veil").addEventListener("click", closeDrawers);
  matchMedia("(width < 900px)").addEventListener("change", () => {
    for (const name of ["side", "panel"]) if (isNarrow()) root.dataset[name] = "closed";
    setPane("side", root.dataset.side);
  });
}

translate();
if (/Mac|iP/.test(navigator.platform)) $("new-keys").textContent = "⌘ K";
startChoices();
sidebar.start();
settings.start();
composer.start();
startPanes();
machine.start();
chat.watchScrolling();
listenForCodeCopies($("messages"));
$("latest").addEventListener("click", chat.toEnd);
document.addEventListener("keydown", onKey);
document.addEventListener("opened", closeDrawers);
for (const name of ["opened", "running"]) {
  document.addEventListener(name, () => {
    document.title = chat.current().title ? `${chat.current().title} – ktitan` : "ktitan";
  });
}
document.addEventListener("answered", (event) => {
  if (event.detail.error?.kind !== "key") showModel(); // the server may have been restarted with another model
});
addEventListener("hashchange", () => chat.open(location.hash.slice(1)));
document.addEventListener("keyWanted", () => enterKey(chat.regenerate));
await chat.open(location.hash.slice(1));
root.dataset.ready = "";
showModel();
$("question").focus();
