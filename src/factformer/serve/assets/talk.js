// Talking to the server: one flow, one request at a time, what was done since the last picture in each.
class Talk {
  constructor() { this.key = null; }

  // A new flow: random from a seed, or from the arrays of a file. Gives its description.
  async open(seed, file = null) {
    const answer = await this.ask(`/play?seed=${seed}`, { method: "POST", body: file ?? undefined });
    const description = await answer.json();
    this.close();
    this.key = description.key;
    return description;
  }

  // What was done, and the picture after it: a header and float32 planes by name.
  async perform(doings) {
    const answer = await this.ask(`/play/${this.key}`, { method: "POST", body: JSON.stringify(doings), headers: { "Content-Type": "application/json" } });
    return unpack(await answer.arrayBuffer());
  }

  get stateAddress() { return `/play/${this.key}/state.npz`; }

  close() {
    if (this.key) fetch(`/play/${this.key}`, { method: "DELETE", keepalive: true }).catch(() => {});
    this.key = null;
  }

  async ask(address, options) {
    let answer;
    try { answer = await fetch(address, options); } catch { throw new Refused(0, "The server does not answer. Is it still running?"); }
    if (answer.ok) return answer;
    const line = await answer.json().then((body) => body.error, () => answer.statusText);
    throw new Refused(answer.status, line);
  }
}

class Refused extends Error {
  constructor(status, line) { super(line); this.status = status; }
  get isBusy() { return this.status === 503; }
  get isGone() { return this.status === 404; }
}

function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const numbers = new Float32Array(buffer.slice(4 + length)), each = numbers.length / header.pictures.length;
  header.planes = Object.fromEntries(header.pictures.map((name, i) => [name, numbers.subarray(i * each, (i + 1) * each)]));
  return header;
}
