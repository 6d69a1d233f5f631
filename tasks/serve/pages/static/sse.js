// Server-sent events: one parser for any split of the bytes into chunks, any line end and any UTF-8 character.

/** The events of a response's body, as {event, data}. An unfinished event at the end of the body is dropped. */
export async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder(); // which also drops a byte order mark
  let left = "", event = "", data = [];
  try {
    for (;;) {
      const {value, done} = await reader.read();
      left += value ? decoder.decode(value, {stream: true}) : "";
      // A CR at the end of a chunk may be half of a CRLF, so it waits for the next chunk
      const ready = done || !left.endsWith("\r") ? left.length : left.length - 1;
      const lines = left.slice(0, ready).split(/\r\n|\n|\r/);
      left = lines.pop() + left.slice(ready);
      for (const line of lines) {
        const [, name, value] = /^([^:]*):? ?([^]*)$/.exec(line);
        if (line === "") {
          if (data.length) yield {event: event || "message", data: data.join("\n")};
          event = "", data = [];
        } else if (name === "data") data.push(value);
        else if (name === "event") event = value;
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What a stream of /v1/chat/completions says: {text}, {finish}, {usage}, {error} and, at [DONE], {done}. */
export async function* answers(body) {
  for await (const {event, data} of events(body)) {
    if (data === "[DONE]") {
      yield {done: true};
      return;
    }
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      yield {error: "The server sent an event that isn't JSON."};
      return;
    }
    if (event === "error" || chunk?.error) {
      yield {error: wordsOf(chunk) || "The server reported an error without saying which."};
      continue; // [DONE] may follow
    }
    const choice = chunk?.choices?.[0];
    if (typeof choice?.delta?.content === "string" && choice.delta.content) yield {text: choice.delta.content};
    if (choice?.finish_reason) yield {finish: choice.finish_reason};
    if (chunk?.usage) yield {usage: chunk.usage};
  }
}

/** The sentence of an error as OpenAI's API writes it, or "". */
export function wordsOf(body) {
  const error = body?.error ?? body;
  const words = typeof error === "string" ? error : error?.message ?? error?.detail;
  return typeof words === "string" ? words : "";
}
