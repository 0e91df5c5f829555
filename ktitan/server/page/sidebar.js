// The list of conversations: open, search, rename, delete, export.

import { current, open } from "./chat.js";
import { askUser } from "./dialogs.js";
import { $, button, download, h } from "./dom.js";
import { runOf } from "./runs.js";
import { everything, heads, isKept, onChangeElsewhere, read, remove, search, write } from "./store.js";
import { t } from "./strings.js";

let drawn = 0;

async function rename(head) {
  const asked = await askUser({ title: t("renameTitle"), field: { value: head.title }, ok: t("save") });
  if (!asked?.text) return;
  const conversation = runOf(head)?.conversation ?? (head.id === current().id ? current() : await read(head.id));
  if (!conversation) return;
  conversation.title = asked.text;
  await write(conversation);
  await draw();
}

async function forget(head) {
  const asked = await askUser({ title: t("deleteTitle"), text: t("deleteText", { title: head.title }), ok: t("delete"), danger: true });
  if (!asked) return;
  runOf(head)?.discard();
  await remove(head.id);
  if (head.id === current().id) await open(null);
  await draw();
}

async function save(head) {
  const conversation = await read(head.id);
  if (conversation) download(`ktitan-${head.id}.json`, { format: "ktitan conversations", version: 1, conversations: [conversation] });
}

function row(head) {
  const mine = head.id === current().id;
  const title = h("button", { type: "button", class: "title", onclick: () => open(head.id), title: head.title, dir: "auto" }, head.title || t("untitled"));
  if (mine) title.setAttribute("aria-current", "true");
  return h(
    "li",
    { class: mine ? "current" : "", "data-id": head.id },
    title,
    h(
      "span",
      { class: "tools" },
      button("edit", t("rename"), () => rename(head)),
      button("export", t("export"), () => save(head)),
      button("trash", t("delete"), () => forget(head)),
    ),
  );
}

/** Where the keyboard is in the list, as a way to get there again after a redraw. */
function focusPlace() {
  const held = document.activeElement.closest("#list li");
  if (!held) return () => {};
  const column = [...held.querySelectorAll("button")].indexOf(document.activeElement);
  const again = () => [...$("list").children].find((one) => one.dataset.id === held.dataset.id);
  return () => (again()?.querySelectorAll("button")[column] ?? $("new-chat")).focus();
}

/** Draw the list as the store and the search field say. */
export async function draw() {
  const turn = ++drawn;
  const words = $("search").value.trim();
  const [all, found] = await Promise.all([heads(), words ? search(words) : null]);
  if (turn !== drawn) return; // a later call has newer rows
  const restoreFocus = focusPlace();
  const shown = found ? all.filter((head) => found.has(head.id)) : all;
  $("list").replaceChildren(...shown.map(row));
  restoreFocus();
  $("list-empty").textContent = shown.length ? "" : t(words ? "noMatches" : "noConversations");
  $("not-kept").hidden = isKept();
}

/** Listen to the pane's controls and to what changes the list. */
export function start() {
  $("new-chat").addEventListener("click", () => open(null));
  $("search").addEventListener("input", draw);
  $("export-all").addEventListener("click", async () => {
    download("ktitan-conversations.json", { format: "ktitan conversations", version: 1, conversations: await everything() });
  });
  for (const name of ["opened", "running", "language"]) document.addEventListener(name, draw);
  onChangeElsewhere(draw);
}
