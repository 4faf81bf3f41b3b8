import { deadlineOf } from "../model/deadline";
import { duration, figure, moment, whole, words } from "../model/format";
import { doneOf, leftOf } from "../model/progress";
import type { Cost, Figure, Status, TaskPage } from "../model/types";
import { stepOf, tellsNoStep, UNKNOWN } from "../model/unknown";

/** Is it well, how fast, how big, what it cost: one glance. */
export function Headline({ status, figures }: { status: Status; figures: Figure[] }) {
  return (
    <section aria-labelledby="phase-title" class={`headline ${status.phase}`}>
      <div class="verdict" aria-live="polite">
        <h2 id="phase-title">
          <span class={`phase ${status.phase}`}>{words(status.phase)}</span>
          {status.failure && <span class="kind">{words(status.failure)}</span>}
        </h2>
        <p class="reason">{status.reason}</p>
      </div>
      <dl class="figures">
        {figures.map(([name, value, more]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              {value}
              {more && <small>{more}</small>}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

export function figuresOf(page: TaskPage, status: Status): Figure[] {
  const asked = page.limits ? `asked ${status.target_size} of ${page.limits.minimum}–${page.limits.maximum}` : "";
  const tellsNone = tellsNoStep(status);
  const figures: Figure[] = [
    ["Step", stepOf(status), tellsNone ? "the script reports none" : doneOf(status)],
  ];
  const left = leftOf(status);
  if (left) figures.push(["Time left", ...left]);
  figures.push(...deadlineOf(status));
  figures.push(["Steps a second", tellsNone ? UNKNOWN : figure(status.throughput.values.at(-1))]);
  if (status.sample_throughput.values.length) {
    figures.push(["Samples a second", figure(status.sample_throughput.values.at(-1))]);
  }
  figures.push(["World size", whole(status.world_size), asked || `asked ${status.target_size}`]);
  figures.push(["Training for", trained(status), `since ${moment(status.started)}`]);
  if (page.cost) figures.push(["Cost", money(page.cost, page.cost.cost), saving(page.cost)]);
  const lost = Object.values(status.lost_seconds).reduce((sum, each) => sum + each, 0);
  if (lost) figures.push(["Time lost", duration(lost)]);
  const [name, value] = Object.entries(status.metrics)[0] ?? [];
  if (name !== undefined) figures.push([name, figure(value)]);
  return figures;
}

function trained(status: Status): string {
  if (status.started === null) return "–";
  const end = new Date(status.finished ?? status.updated).getTime();
  return duration((end - new Date(status.started).getTime()) / 1000);
}

export function money(cost: Cost, amount: string | null): string {
  return amount === null ? "–" : `${amount} ${cost.currency}`;
}

function saving(cost: Cost): string {
  const percent = cost.saving_percent === null ? "" : ` (${cost.saving_percent} %)`;
  return `saved ${money(cost, cost.saving)}${percent}`;
}
