/** The live page: a stream of samples, what is known of the job, and the parts that show it. */

import { frames } from "./charts/canvas.js";
import { Job } from "./data/job.js";
import { Stream } from "./data/stream.js";
import { CostCard, RateCard } from "./views/curves.js";
import { setHidden } from "./dom.js";
import { Findings } from "./views/findings.js";
import { Header, SilentNotice } from "./views/header.js";
import { Panel } from "./views/panel.js";
import { PlacementCard } from "./views/placement.js";
import { DistributionCard, HeatMapCard } from "./views/staleness.js";
import { MinimizationsCard, QueuesCard, StorageCard } from "./views/storage.js";
import { TimelineCard } from "./views/timeline.js";
import { PushesCard, WorkersCard } from "./views/workers.js";

const byId = (id) => document.getElementById(id);
const job = new Job();
const header = new Header(byId("banner"), byId("figures"), () => update());
const silent = new SilentNotice(byId("notices"));
const findings = new Findings(byId("notices"));
const cards = [CostCard, RateCard, HeatMapCard, DistributionCard, PlacementCard, WorkersCard, MinimizationsCard, PushesCard, QueuesCard, StorageCard, TimelineCard];
const parts = cards.map((Part) => new Part(job));
byId("parts").append(...parts.map((part) => part.node));
const panel = new Panel(document.body, job);

/** Shows what is known now; the milliseconds of it, with those of the drawing, are kept for tests. */
function update() {
  if (!job.latest) return;
  setHidden(byId("waiting"), true);
  for (const part of [header, findings, ...parts, panel]) part.update(job);
}

function measured(change) {
  const begin = performance.now();
  change();
  update();
  samples.milliseconds[samples.count % samples.milliseconds.length] = performance.now() - begin;
  samples.count += 1;
}

/** Milliseconds of the last samples, and of the last frames, for tests. */
export const samples = { milliseconds: new Float64Array(240), count: 0 };
export { frames, job };

new Stream(
  (all) => measured(() => job.load(all)),
  (text) => measured(() => job.add(JSON.parse(text))),
  (state) => {
    header.connection(state);
    silent.update(state);
  },
).start();
