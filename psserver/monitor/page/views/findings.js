/** Banners: what the convergence guard has found, with cause and remedy, and problems of the servers. */

import { clock } from "../data/format.js";
import { element, KeyedList, linkTo, setAttribute, setHidden, setText } from "../dom.js";

export class Findings {
  constructor(parent) {
    this.node = element("ul", { className: "findings", "aria-label": "Findings and problems", "aria-live": "polite", hidden: true });
    parent.append(this.node);
    this._list = new KeyedList(this.node, makeFinding);
  }

  update(job) {
    const problems = job.latest.problems.map((text) => ({ level: "problem", kind: "", text, remedy: "", worker: "" }));
    const shards = job.latest.shards.filter(({ problem }) => problem && !job.latest.problems.includes(problem));
    problems.push(...shards.map(({ problem: text }) => ({ level: "problem", kind: "", text, remedy: "", worker: "" })));
    const all = [...job.findings, ...problems];
    setHidden(this.node, all.length === 0);
    this._list.update(all, ({ level, kind, worker, text }) => `${level}\n${kind}\n${worker}\n${kind ? "" : text}`);
  }
}

function makeFinding() {
  const [level, text, remedy, since] = [element("b"), element("span"), element("span", { className: "remedy" }), element("span", { className: "note" })];
  const worker = element("a");
  const node = element("li", {}, level, element("p", {}, text, " ", remedy, " ", worker, " ", since));
  return {
    node,
    update: (finding) => {
      setAttribute(node, "data-level", finding.level);
      setText(level, finding.level);
      setText(text, finding.text);
      setText(remedy, finding.remedy ? `Remedy: ${finding.remedy}` : "");
      setHidden(worker, !finding.worker);
      setText(worker, finding.worker ?? "");
      setAttribute(worker, "href", finding.worker ? linkTo("worker", finding.worker) : null);
      setText(since, finding.since ? `since ${clock(finding.since)}` : "");
    },
  };
}
