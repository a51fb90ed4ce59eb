// Requests to the server. Every error of the server is {error, field}.

export class Refused extends Error {
  constructor(message, field = null, gpus = null) {
    super(message);
    this.field = field;
    this.gpus = gpus;
  }
}

export async function ask(path, query = "", options = {}) {
  let reply;
  try {
    reply = await fetch(query ? `${path}?${query}` : path, options);
  } catch {
    throw new Refused("The server does not answer. Is `specmargin explore` still running?");
  }
  const body = await reply.json().catch(() => ({ error: `the server answered ${reply.status}` }));
  if (!reply.ok) throw new Refused(body.error, body.field);
  return body;
}

// One call at a time; calls that arrive meanwhile are merged into one.
export function oneAtATime(work) {
  let running = false, waiting = false;
  return async function run() {
    if (running) { waiting = true; return; }
    running = true;
    try {
      do { waiting = false; await work(); } while (waiting);
    } finally {
      running = false;
    }
  };
}
