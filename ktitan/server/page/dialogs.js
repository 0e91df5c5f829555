// One question in a dialog: a text to enter, or a yes.

import { $, h } from "./dom.js";
import { t } from "./strings.js";

/**
 * Ask in a modal dialog. `field` is `{label, value, type}` for a text to enter, `tick` the label of a checkbox.
 * Resolves to `{text, ticked}`, or null when cancelled.
 */
export function askUser({ title, text = "", field = null, tick = null, ok, danger = false }) {
  const dialog = $("dialog");
  if (dialog.open) return Promise.resolve(null);
  const input = field && h("input", { type: field.type ?? "text", value: field.value ?? "", id: "dialog-field", autocomplete: "off", required: true });
  const box = tick && h("input", { type: "checkbox", id: "dialog-tick" });
  return new Promise((resolve) => {
    const close = (result) => {
      dialog.close();
      resolve(result);
    };
    const cancel = h("button", { type: "button", class: "plain", onclick: () => close(null) }, t("cancel"));
    const accept = h("button", { type: "submit", class: danger ? "danger" : "primary" }, ok);
    const submit = (event) => {
      event.preventDefault();
      close({ text: input?.value.trim() ?? "", ticked: box?.checked ?? false });
    };
    dialog.oncancel = () => resolve(null);
    dialog.replaceChildren(
      h(
        "form",
        { onsubmit: submit },
        h("h2", { id: "dialog-title" }, title),
        text && h("p", {}, text),
        input && h("label", { htmlFor: "dialog-field", class: "offscreen" }, field.label ?? title),
        input,
        box && h("label", { class: "tick" }, box, tick),
        h("div", { class: "buttons" }, cancel, accept),
      ),
    );
    dialog.showModal();
    (input ?? cancel).focus();
    input?.select();
  });
}
