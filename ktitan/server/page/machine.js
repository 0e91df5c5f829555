// The live panel: what lies in each tier, what the drive does, and how fast the last answer was.

import { getJson } from "./api.js";
import { current } from "./chat.js";
import { $, h } from "./dom.js";
import { short } from "./message_view.js";
import { runOf } from "./runs.js";
import { t, tokensText } from "./strings.js";

const TIERS = ["vram", "ram", "nvme"];
const POLL_MS = 2000;
let last = null;
let timer = 0;
let seen = null;

/** Bytes in binary units: 812 MiB, 18.2 GiB. */
export function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1) : 0;
  return `${power ? short(bytes / 2 ** (10 * power)) : bytes} ${units[power]}`;
}

function tierText({ used_bytes: used, budget_bytes: budget } = {}) {
  if (used === undefined || used === null) return t("unknown");
  if (!used && !budget) return t("unused");
  return budget ? t("usedOf", { used: bytesText(used), budget: bytesText(budget) }) : t("noBudget", { used: bytesText(used) });
}

function drawTier(name) {
  const tier = seen?.tiers?.[name];
  const share = tier?.budget_bytes ? Math.min(1, tier.used_bytes / tier.budget_bytes) : 0;
  const text = seen ? tierText(tier) : t("unknown");
  const meter = $(`meter-${name}`);
  $(`tier-${name}`).textContent = text;
  meter.setAttribute("aria-valuenow", String(Math.round(share * 100)));
  meter.setAttribute("aria-valuetext", text);
  meter.setAttribute("aria-label", t(`tier_${name}`));
  meter.firstElementChild.style.transform = `scaleX(${share})`;
}

/** Share of accesses that found their weights in a tier, for each tier that counts them; null when none does. */
function hitsText(found) {
  const counted = TIERS.filter((name) => (found[name]?.hits ?? null) !== null && found[name].hits + found[name].misses > 0);
  const share = (name) => `${t(`tier_${name}`)} ${short((100 * found[name].hits) / (found[name].hits + found[name].misses))} %`;
  return counted.length ? counted.map(share).join(" · ") : null;
}

/** What the streams do; `none` stands for what was not counted. */
function drawStreaming({ total, recent } = {}, none) {
  const share = (key, part) => ((part ?? null) === null ? none : t(key, { share: short(100 * part) }));
  const level = total?.guess_level;
  $("stall").textContent = share("stallText", recent?.stall_share);
  $("prefetch").textContent = !total ? none : level ? t("prefetchOn", { level }) : t("prefetchOff");
  $("foreseen").textContent = share("foreseenText", total?.recall_of_misses);
  $("policy").textContent = total?.policy ?? none;
}

/** Draw what was seen last; figures that are null are said to be none, never shown as zero. */
function draw() {
  TIERS.forEach(drawTier);
  const found = seen?.tiers ?? {};
  const none = t(seen ? "notStreaming" : "unknown");
  const rate = found.nvme?.read_bytes_per_second ?? null;
  $("hits").textContent = hitsText(found) ?? none;
  $("drive").textContent = rate === null ? none : t("perSecond", { amount: bytesText(rate) });
  drawStreaming(seen?.streaming ?? undefined, seen?.streaming ? t("none") : none);
  $("queue").textContent = seen?.queue ? t("queueText", seen.queue) : t("unknown");
  drawLast();
}

function drawLast() {
  const run = runOf(current());
  const stats = run?.answer.stats ?? last?.stats;
  const { done, total } = run?.progress ?? {};
  const say = (id, value, text) => {
    const words = value === null || value === undefined ? t("none") : text(value);
    if ($(id).textContent !== words) $(id).textContent = words;
  };
  say("rate", stats?.rate, (rate) => t("speed", { rate: short(rate) }));
  say("first", stats?.first, (first) => t("seconds", { count: short(first) }));
  if (total) say("prompt-tokens", total, () => t("usedOf", { used: done, budget: tokensText(total) }));
  else say("prompt-tokens", stats?.promptTokens, (count) => tokensText(count));
  say("answer-tokens", stats?.tokens, (count) => tokensText(count, stats.exact));
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || document.documentElement.dataset.panel !== "open") return;
  try {
    seen = await getJson("tiers");
  } catch {
    seen = null; // the panel says "unknown"; the chat tells of a lost server
  }
  draw();
  clearTimeout(timer);
  timer = setTimeout(poll, POLL_MS);
}

function tierRow(name) {
  const meter = h("div", { id: `meter-${name}`, class: "meter", role: "meter", "aria-valuemin": "0", "aria-valuemax": "100" }, h("div", {}));
  return h("div", { class: "tier" }, h("span", { "data-t": `tier_${name}` }, t(`tier_${name}`)), h("span", { id: `tier-${name}`, class: "figure" }), meter);
}

/** Build the panel and poll while someone can see it. */
export function start() {
  $("tiers").replaceChildren(...TIERS.map(tierRow));
  document.addEventListener("visibilitychange", poll);
  document.addEventListener("panel", poll);
  document.addEventListener("language", draw);
  document.addEventListener("answered", (event) => {
    if (event.detail.stats) last = event.detail;
    drawLast();
    poll();
  });
  for (const name of ["running", "drawn"]) document.addEventListener(name, drawLast);
  document.addEventListener("opened", () => {
    last = current().messages.findLast((message) => message.stats) ?? null;
    drawLast();
  });
  draw();
  poll();
}
