// The server's API, as the page uses it.

const KEY = "polyreply-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return Boolean(sessionStorage.getItem(KEY));
}

// Browsers report a lost connection as a TypeError, each with words of its own.
async function connected(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new ApiError(0, "the server cannot be reached") : error;
  }
}

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await connected(fetch(path, { headers, signal, ...options }));
  if (answer.ok) return answer;
  let message = `the server answered with status ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // Not one of the server's own errors, but a proxy's: the status has to do.
  }
  throw new ApiError(answer.status, message);
}

export async function servedModel() {
  return (await (await call("/v1/models")).json()).data[0];
}

export async function replies(model, turns, decode, k, signal) {
  const body = { model, contexts: [turns], decode, k, seed: turns.length };
  return (await (await call("/v1/replies", body, signal)).json()).results[0].replies;
}

// Yields the choices of a streamed completion as they arrive: {index, delta, finish_reason, decoder, manner, logprob}.
export async function* completion(model, turns, n, signal) {
  const role = (place) => ((turns.length - 1 - place) % 2 === 0 ? "user" : "assistant");
  const messages = turns.map((content, place) => ({ role: role(place), content }));
  const answer = await call("/v1/chat/completions", { model, messages, n, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await connected(reader.read());
    if (done) throw new ApiError(0, "the connection ended before the replies did");
    const events = (pending + value).split("\n\n");
    pending = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(0, chunk.error.message);
      yield* chunk.choices;
    }
  }
}
