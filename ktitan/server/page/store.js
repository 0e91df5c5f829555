// Conversations in the browser's IndexedDB: `heads` are what the list shows, `bodies` are whole conversations. Where the
// browser refuses to keep data they live in memory, and `isKept()` says so.

const memory = { heads: new Map(), bodies: new Map() };
const channel = new BroadcastChannel("ktitan");
let opening;
let kept = true;

function open() {
  opening ??= new Promise((resolve) => {
    const give = (database) => {
      kept = database !== null;
      resolve(database);
    };
    try {
      const request = indexedDB.open("ktitan", 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("heads", { keyPath: "id" });
        request.result.createObjectStore("bodies", { keyPath: "id" });
      };
      request.onsuccess = () => give(request.result);
      request.onerror = () => give(null);
    } catch {
      give(null);
    }
  });
  return opening;
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** All of a store's rows. */
async function rows(name) {
  const database = await open();
  const stored = database ? await settled(database.transaction(name).objectStore(name).getAll()) : [];
  return [...stored.filter((row) => !memory[name].has(row.id)), ...memory[name].values()];
}

/** Run `change(heads, bodies)` in one transaction: a head without its body is never seen. */
async function both(change) {
  const database = await open();
  if (!database) return false;
  const transaction = database.transaction(["heads", "bodies"], "readwrite");
  change(transaction.objectStore("heads"), transaction.objectStore("bodies"));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  return true;
}

/** Does this browser keep conversations? Known once something was read or written. */
export const isKept = () => kept;

/** `{id, title, updated}` of every conversation, the latest first. */
export const heads = async () => (await rows("heads")).sort((one, other) => other.updated - one.updated);

/** Every conversation, whole. */
export const everything = () => rows("bodies");

/** One conversation, or undefined. */
export async function read(id) {
  const database = await open();
  if (!database || memory.bodies.has(id)) return memory.bodies.get(id);
  return settled(database.transaction("bodies").objectStore("bodies").get(id));
}

/** Keep a conversation as it is now, and tell the other tabs. */
export async function write(conversation) {
  const body = structuredClone(conversation);
  const head = { id: body.id, title: body.title, updated: body.updated };
  const put = (heads, bodies) => {
    heads.put(head);
    bodies.put(body);
  };
  // A full disk costs the record, not what is on screen.
  kept = await both(put).catch(() => false);
  for (const [name, row] of [["heads", head], ["bodies", body]]) {
    if (kept) memory[name].delete(row.id);
    else memory[name].set(row.id, row);
  }
  channel.postMessage(body.id);
}

/** Forget a conversation. */
export async function remove(id) {
  memory.heads.delete(id);
  memory.bodies.delete(id);
  await both((heads, bodies) => {
    heads.delete(id);
    bodies.delete(id);
  });
  channel.postMessage(id);
}

/** Call `listener(id)` when another tab has written or removed a conversation. */
export const onChangeElsewhere = (listener) => channel.addEventListener("message", (event) => listener(event.data));

/** Ids of conversations with `words` in the title or a message, whatever their case. */
export async function search(words) {
  const wanted = words.toLowerCase();
  const has = (text) => text.toLowerCase().includes(wanted);
  return new Set((await everything()).filter((one) => has(one.title) || one.messages.some((m) => has(m.content))).map((one) => one.id));
}
