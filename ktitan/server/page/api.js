// The server's interface as this page uses it. Every failure is an ApiError whose `kind` the page turns into a sentence.

import { keep, kept } from "./prefs.js";
import { events } from "./sse.js";

export class ApiError extends Error {
  /** `kind`: key, busy, refused, fault, unreachable, lost. `retryAfter`: seconds, for busy. */
  constructor(kind, message = "", retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

/** The API key lives as long as the tab, unless the user asks to keep it. */
export function setKey(key, remember) {
  keep("key", key, "session");
  keep("key", remember ? key : null);
}

function headers() {
  const key = kept("key", "session") ?? kept("key");
  // fetch() would throw as it does where nothing answers.
  if (key && !/^[!-~]+$/.test(key)) throw new ApiError("key");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function failure(response) {
  const body = await response.text().catch(() => "");
  let message = body.slice(0, 500);
  try {
    const found = JSON.parse(body);
    message = found.error?.message ?? found.detail ?? message;
  } catch {
    // A proxy's page or plain text: shown as it is.
  }
  if (typeof message !== "string") message = JSON.stringify(message);
  if (response.status === 401) return new ApiError("key", message);
  if (response.status === 429) return new ApiError("busy", message, Number(response.headers.get("Retry-After")) || 5);
  if (response.status < 500) return new ApiError("refused", message || `HTTP ${response.status}`);
  return new ApiError("fault", message || `HTTP ${response.status}`);
}

async function request(path, options = {}) {
  const sent = { ...headers(), ...options.headers };
  let response;
  try {
    // Relative, so that the page also works below a path of a reverse proxy.
    response = await fetch(path, { ...options, headers: sent, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("unreachable");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** GET a JSON document. */
export const getJson = async (path) => (await request(path)).json();

/** What a heartbeat comment says: `{done, total}` of a prompt, `{ahead}` in the queue, or null. */
export function heartbeat(comment) {
  const prefill = /^prefill\s+(\d+)\s*\/\s*(\d+)/.exec(comment);
  if (prefill) return { done: Number(prefill[1]), total: Number(prefill[2]) };
  const queue = /^queued?\D*(\d+)/.exec(comment);
  return queue ? { ahead: Number(queue[1]) } : null;
}

/**
 * Stream one answer. Yields `{progress}`, `{content, reasoning}`, `{finish}` and `{usage}`.
 * Throws ApiError, and AbortError when `signal` fires.
 */
export async function* chat(body, signal) {
  const options = { stream: true, stream_options: { include_usage: true } };
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, ...options }),
    signal,
  });
  let ended = false;
  try {
    for await (const { data, comments } of events(response.body)) {
      for (const progress of comments.map(heartbeat)) if (progress) yield { progress };
      if (data === "[DONE]") return;
      if (data === null) continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError("fault", chunk.error.message ?? String(chunk.error));
      const choice = chunk.choices?.[0];
      const { content, reasoning_content: reasoning } = choice?.delta ?? {};
      if (content || reasoning) yield { content: content ?? "", reasoning: reasoning ?? "" };
      if (choice?.finish_reason) {
        ended = true;
        yield { finish: choice.finish_reason };
      }
      if (chunk.usage) yield { usage: chunk.usage };
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError(error instanceof SyntaxError ? "fault" : "lost", error.message);
  }
  if (!ended) throw new ApiError("lost");
}
