// System prompt and sampling of the open conversation. What is empty is not sent, so that the model's own value holds.

import { current, setSettings } from "./chat.js";
import { $, h } from "./dom.js";
import { t } from "./strings.js";

// name: [least, most, whole numbers only, step of the arrows]
const FIELDS = {
  temperature: [0, 2, false, 0.1],
  top_p: [0, 1, false, 0.05],
  top_k: [0, null, true, 1],
  min_p: [0, 1, false, 0.01],
  max_tokens: [1, null, true, 1],
  seed: [0, null, true, 1],
  repetition_penalty: [0.1, 2, false, 0.05],
};

function valueOf(name, text) {
  const [least, most, whole] = FIELDS[name];
  const value = Number(text);
  const fits = Number.isFinite(value) && value >= least && (most === null || value <= most) && (!whole || Number.isInteger(value));
  return fits ? value : null;
}

function range(name) {
  const [least, most] = FIELDS[name];
  return most === null ? `≥ ${least}` : `${least}–${most}`;
}

/** Read the form; fields out of range are marked and left out. */
function collect() {
  const sampling = {};
  const faults = [];
  for (const name of Object.keys(FIELDS)) {
    const input = $(`set-${name}`);
    const text = input.value.trim();
    const value = text ? valueOf(name, text) : null;
    const wrong = (text !== "" && value === null) || input.validity.badInput;
    input.setAttribute("aria-invalid", String(wrong));
    if (wrong) faults.push(t("outOfRange", { name: t(name), range: range(name) }));
    else if (value !== null) sampling[name] = value;
  }
  $("set-fault").textContent = faults.join(" ");
  setSettings({ system: $("set-system").value, sampling });
}

function field(name) {
  const [, , whole, step] = FIELDS[name];
  const input = h("input", { id: `set-${name}`, type: "number", step: whole ? 1 : "any", inputMode: whole ? "numeric" : "decimal", placeholder: "–" });
  // The arrow keys move by a useful step; "any" alone would move by one.
  input.addEventListener("keydown", (event) => {
    if (!["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const moved = Number(input.value || (name === "repetition_penalty" ? 1 : 0)) + (event.key === "ArrowUp" ? step : -step);
    input.value = String(Math.round(moved * 1000) / 1000);
    collect();
  });
  return h("label", {}, h("span", { "data-t": name }, t(name)), input);
}

function show() {
  const { system, sampling } = current();
  $("set-system").value = system;
  for (const name of Object.keys(FIELDS)) $(`set-${name}`).value = sampling[name] ?? "";
  $("set-fault").textContent = "";
}

/** Build the form and keep it in step with the open conversation. */
export function start() {
  $("sampling").replaceChildren(...Object.keys(FIELDS).map(field));
  $("settings").addEventListener("input", collect);
  document.addEventListener("opened", show);
  show();
}
