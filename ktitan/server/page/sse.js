// Server-sent events from a fetch body: EventSource can neither POST nor show comments, and comments carry the heartbeat.

/** Split one event's lines into its data and its comments. */
function parse(block) {
  const data = [];
  const comments = [];
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) comments.push(line.slice(1).trim());
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return { data: data.length ? data.join("\n") : null, comments };
}

/** Yield `{data, comments}` for each event of a `text/event-stream` body, whole whatever the network's cuts. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    // A \r at the very end may be half of a \r\n; it waits for the next piece.
    rest = (rest + value).replace(/\r\n/g, "\n").replace(/\r(?!$)/g, "\n");
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      yield parse(rest.slice(0, end));
      rest = rest.slice(end + 2);
    }
  }
  if (rest.trim()) yield parse(rest);
}
