import { useState } from "preact/hooks";
import { fetchCosts } from "../model/api";
import { usePolled } from "../model/poll";
import type { CostTotal, CostsBy } from "../model/types";

const WAYS: [CostsBy, string][] = [
  ["dag", "DAG"],
  ["team", "Team (owners of the DAG)"],
  ["month", "Month (UTC)"],
  ["place", "Place"],
];
const MOST = 50;

/** What all runs have cost together. Asked for only while it is open. */
export function Costs() {
  const [open, setOpen] = useState(false);
  return (
    <details class="costs" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Costs of all runs</summary>
      {open && <Sums />}
    </details>
  );
}

function Sums() {
  const [by, setBy] = useState<CostsBy>("dag");
  const [since, setSince] = useState("");
  const query = new URLSearchParams({ by });
  if (since) query.set("since", since);
  const polled = usePolled(`costs ${query}`, () => fetchCosts(query), () => false);
  const costs = polled.value;
  return (
    <>
      <form class="filters" aria-label="Costs" onSubmit={(event) => event.preventDefault()}>
        <label>
          By
          <select value={by} onChange={(event) => setBy(event.currentTarget.value as CostsBy)}>
            {WAYS.map(([name, title]) => (
              <option key={name} value={name}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          Since
          <input type="date" value={since} onChange={(event) => setSince(event.currentTarget.value)} />
        </label>
        <a href={`api/v1/costs?${query}`} download={`costs-by-${by}.json`}>
          JSON
        </a>
        <a href={`api/v1/costs?${query}&csv=true`} download={`costs-by-${by}.csv`}>
          CSV
        </a>
      </form>
      {polled.error && (
        <p class="stale" role="status">
          {polled.error}
        </p>
      )}
      {costs && <Table totals={costs.totals.slice(0, MOST)} all={costs.all} title={titleOf(costs.by)} />}
      {costs && costs.totals.length > MOST && <p>The {MOST} dearest of {costs.totals.length}. The files have all.</p>}
      {costs && costs.all.unpriced > 0 && <p>{costs.all.unpriced} of these runs have no price.</p>}
    </>
  );
}

function titleOf(by: CostsBy): string {
  return WAYS.find(([name]) => name === by)?.[1] ?? by;
}

function Table({ totals, all, title }: { totals: CostTotal[]; all: CostTotal; title: string }) {
  const most = Math.max(...totals.map((each) => Number(each.cost)), 0);
  return (
    <div class="scrolls whole" tabIndex={0} role="region" aria-label="Costs">
      <table>
        <thead>
          <tr>
            {[title, "Runs", "Trained (h)", "Idle (h)", "Lost (h)", "Cost (USD)", "Idle (USD)", "Lost (USD)"].map((each) => (
              <th scope="col" key={each}>
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {[...totals, all].map((each, index) => (
            <tr key={index}>
              <th scope="row">{index === totals.length ? "All" : each.name || "unknown"}</th>
              <td>{each.runs}</td>
              <td>{hours(each.trained_seconds)}</td>
              <td>{hours(each.idle_seconds)}</td>
              <td>{hours(each.lost_seconds)}</td>
              <td>
                {each.cost}
                {index < totals.length && most > 0 && <Bar part={Number(each.cost) / most} />}
              </td>
              <td>{each.idle_cost}</td>
              <td>{each.lost_cost}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The figure beside it, as a length. */
function Bar({ part }: { part: number }) {
  return (
    <svg class="bar" viewBox="0 0 100 4" width="100" height="4" aria-hidden="true">
      <rect width={100 * part} height="4" fill="currentColor" />
    </svg>
  );
}

function hours(seconds: number): string {
  return (seconds / 3600).toFixed(2);
}
