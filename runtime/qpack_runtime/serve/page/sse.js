/** Server-sent events out of a body that arrives in pieces: the `data` of each event (HTML Standard, 9.2.6). */

const LINE = /([^\r\n]*)(?:\r\n|\n|\r(?!$))/gy; // a CR at the end of what has come may be half of a CRLF

/** body: a ReadableStream of bytes. Yields strings; an event that the end of the stream cuts is dropped. */
export async function* events(body) {
  const decoder = new TextDecoder(); // keeps the bytes of a character that isn't whole yet
  const reader = body.getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      let used = 0;
      for (const [whole, line] of rest.matchAll(LINE)) {
        used += whole.length;
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        } else if (/^data(:|$)/.test(line)) {
          data.push(line.slice(5).replace(/^ /, ""));
        }
      }
      rest = rest.slice(used);
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader has left: nothing more is read, and the server sees it
  }
}
