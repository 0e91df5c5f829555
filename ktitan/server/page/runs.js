// A run streams one answer into a conversation and keeps it in the store as it grows, whether or not it is on screen.

import { ApiError, chat } from "./api.js";
import { keep, kept } from "./prefs.js";
import { write } from "./store.js";

const SAVE_EVERY_MS = 400;
const running = new Map();

/** Tells this tab's own half-written answers, after a reload, from those of another tab. */
export const TAB = kept("tab", "session") ?? newId();
keep("tab", TAB, "session");

/** A name that no other tab makes; crypto.randomUUID exists only in secure contexts. */
export function newId() {
  return Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
}

/** The run that writes into this conversation, or undefined. */
export const runOf = (conversation) => running.get(conversation.id);

/** What the model is shown: the system prompt and every question that has an answer, then the last question. */
function history(conversation, answer) {
  const end = conversation.messages.indexOf(answer);
  const shown = [];
  for (let at = 0; at < end; at += 1) {
    const { role, content } = conversation.messages[at];
    const answered = role !== "user" || at === end - 1 || conversation.messages[at + 1].content;
    if (content && answered) shown.push({ role, content });
  }
  return conversation.system ? [{ role: "system", content: conversation.system }, ...shown] : shown;
}

export class Run {
  #abort = new AbortController();
  #timer;
  #wake = () => {};

  /** `changed(run)` is called for every change; `progress` is `{done, total}`, `{ahead}`, `{seconds}` or null. */
  constructor(conversation, answer, changed) {
    Object.assign(this, { conversation, answer, changed, progress: null, began: performance.now() });
    Object.assign(answer, { state: "streaming", tab: TAB, at: Date.now() });
    running.set(conversation.id, this);
    this.finished = this.#work();
  }

  /** Stop; what has arrived is kept. */
  stop() {
    this.#abort.abort();
    this.#wake();
  }

  /** Stop, and never write again: the conversation is being removed. */
  discard() {
    this.discarded = true;
    this.stop();
  }

  /** Do not wait for the rest of a busy server's Retry-After. */
  hurry() {
    this.#wake();
  }

  async #work() {
    await this.#save();
    try {
      while (!(await this.#attempt()));
    } finally {
      running.delete(this.conversation.id);
      this.progress = null;
      await this.#save();
      this.changed(this);
    }
  }

  /** One request; true when nothing remains to be tried. */
  async #attempt() {
    try {
      await this.#stream();
      this.answer.state = "done";
    } catch (error) {
      if (error.name === "AbortError") this.answer.state = "stopped";
      else if (error.kind === "busy" && (await this.#countDown(error.retryAfter))) return false;
      else if (error.kind === "busy") this.answer.state = "stopped";
      else this.#fail(error);
    }
    return true;
  }

  #fail(error) {
    const known = error instanceof ApiError;
    this.answer.state = "failed";
    this.answer.error = { kind: known ? error.kind : "fault", message: error.message };
  }

  /** Wait as long as a busy server asks; false when the user stopped meanwhile. */
  async #countDown(seconds) {
    for (let left = Math.ceil(seconds); left > 0 && !this.#abort.signal.aborted; left -= 1) {
      this.progress = { seconds: left };
      this.changed(this);
      const woken = await new Promise((resolve) => {
        this.#wake = () => resolve(true);
        setTimeout(resolve, 1000, false);
      });
      if (woken) break;
    }
    this.progress = null;
    return !this.#abort.signal.aborted;
  }

  async #stream() {
    const { answer, conversation } = this;
    const times = { sent: performance.now(), first: 0, last: 0, pieces: 0 };
    // The alias holds whichever model the server runs, also after a restart with another one.
    const body = { model: "default", messages: history(conversation, answer), ...conversation.sampling };
    for await (const { progress, content, reasoning, finish, usage } of chat(body, this.#abort.signal)) {
      if (progress) this.#wait(progress);
      if (content !== undefined) this.#grow(content, reasoning, times);
      if (finish) answer.finish = finish;
      if (usage) answer.stats = measured(times, usage);
      this.changed(this);
    }
  }

  /** Saved too, so that other tabs see that somebody still waits here. */
  #wait(progress) {
    this.progress = progress;
    this.#saveSoon();
  }

  #grow(content, reasoning, times) {
    const { answer } = this;
    this.progress = null;
    answer.content += content;
    answer.reasoning += reasoning;
    times.last = performance.now();
    times.first ||= times.last;
    times.pieces += 1;
    answer.stats = measured(times, null);
    if (reasoning) answer.reasoned = (times.last - times.first) / 1000;
    this.#saveSoon();
  }

  /** Keep the conversation at most once in a while, but keep the last piece too when nothing follows. */
  #saveSoon() {
    this.#timer ??= setTimeout(() => this.#save(), SAVE_EVERY_MS);
  }

  async #save() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.discarded) return;
    this.answer.at = Date.now();
    this.conversation.updated = Date.now();
    await write(this.conversation);
  }

}

/** The page is being left, too fast for the database: leave every unfinished answer where it can be put at once. */
export function leaveUnfinished() {
  for (const { conversation, answer } of running.values()) keep(`unfinished.${conversation.id}`, JSON.stringify(answer));
}

/** Take up what `leaveUnfinished` has left of this conversation's last answer. */
export function takeUnfinished(conversation) {
  const left = kept(`unfinished.${conversation.id}`);
  if (!left) return;
  const [answer, last] = [JSON.parse(left), conversation.messages.at(-1)];
  if (last?.state === "streaming" && answer.content.startsWith(last.content)) Object.assign(last, answer);
  keep(`unfinished.${conversation.id}`, null);
}

/** Seconds to the first token and tokens a second after it; without the server's usage, pieces stand for tokens. */
function measured({ sent, first, last, pieces }, usage) {
  const tokens = usage?.completion_tokens ?? pieces;
  const seconds = (last - first) / 1000;
  return {
    tokens,
    promptTokens: usage?.prompt_tokens ?? null,
    first: first ? (first - sent) / 1000 : null,
    rate: seconds > 0 && tokens > 1 ? (tokens - 1) / seconds : null,
    exact: usage !== null,
  };
}
