/**
 * The connection to the monitor: the job once, then its samples, as server-sent events. It connects again by itself, and
 * says when nothing comes, since when, and why.
 */

/** Seconds without a sample after which the page says so, and after which a connection that is silent is replaced. */
const SILENT = 4;
const REPLACE = 20;
/** Seconds before the next attempt to connect. */
const PAUSES = [0.5, 1, 2, 5];

export class Stream {
  /**
   * `onJob(job)` gets what /api/job has, at each connection; `onSample(text)` each sample after it, in JSON; `onState(state)`
   * gets {live, seconds, reason} once a second: whether samples come, seconds since the last one, and why none do.
   */
  constructor(onJob, onSample, onState) {
    this._onJob = onJob;
    this._onSample = onSample;
    this._onState = onState;
    this._source = null;
    this._early = null;
    this._failures = 0;
    this._lastSample = performance.now();
    this._opened = this._lastSample;
    this._reason = "connecting";
  }

  start() {
    this._connect();
    setInterval(() => this._watch(), 1000);
  }

  _connect() {
    this._opened = performance.now();
    const source = new EventSource("api/stream");
    this._source = source;
    this._early = []; // samples that come before the job
    source.onopen = () => this._load(source);
    source.onmessage = (event) => {
      if (source !== this._source) return;
      if (this._early) this._early.push(event.data);
      else this._deliver(event.data);
    };
    source.onerror = () => this._fail(source);
  }

  async _load(source) {
    try {
      const answer = await fetch("api/job");
      if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
      const job = await answer.json();
      if (source !== this._source) return;
      this._failures = 0;
      this._onJob(job);
      const early = this._early ?? [];
      this._early = null;
      if (job.latest) this._arrived();
      early.forEach((text) => this._deliver(text));
    } catch (error) {
      this._fail(source, error);
    }
  }

  _deliver(text) {
    this._arrived();
    this._onSample(text);
  }

  _arrived() {
    this._lastSample = performance.now();
    this._reason = "";
    this._onState({ live: true, seconds: 0, reason: "" });
  }

  async _fail(source, error = null) {
    if (source !== this._source) return;
    source.close();
    this._source = null;
    const pause = PAUSES[Math.min(this._failures, PAUSES.length - 1)];
    this._failures += 1;
    setTimeout(() => this._connect(), 1000 * pause);
    this._reason = error && !(error instanceof TypeError) ? error.message : await whyNot();
  }

  _watch() {
    const now = performance.now();
    const seconds = (now - this._lastSample) / 1000;
    if (seconds < SILENT) return;
    const reason = this._reason || "the connection is open, but the monitor sends nothing: is its process stopped?";
    this._onState({ live: false, seconds, reason });
    if (this._source && Math.min(seconds, (now - this._opened) / 1000) > REPLACE) {
      this._source.close(); // the other end may be gone without a word
      this._connect();
    }
  }
}

/** Why there is no stream, in the words of the server if it answers. */
async function whyNot() {
  try {
    const answer = await fetch("api/job", { method: "HEAD" });
    if (answer.ok) return "the connection was closed; connecting again";
    return `${location.host} refuses: status ${answer.status}${answer.status === 401 ? ", a token is needed" : ""}`;
  } catch {
    return `${location.host} does not answer: has the monitor or its machine stopped? Trying again`;
  }
}
