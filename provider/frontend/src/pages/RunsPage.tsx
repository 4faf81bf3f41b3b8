import { useState } from "preact/hooks";
import { fetchRuns } from "../model/api";
import { moment, whole, words } from "../model/format";
import { usePolled } from "../model/poll";
import { shortOf } from "../model/progress";
import { Costs } from "../parts/Costs";
import { Pool } from "../parts/Pool";
import { RunLink } from "../parts/RunLink";
import type { RunRow } from "../model/types";
import { stepOf } from "../model/unknown";

const PAGE = 50;
const PHASES = ["pending", "starting", "running", "suspended", "paused", "succeeded", "failed"];
const COLUMNS = [
  ["name", "Run"],
  ["phase", "Phase"],
  ["world_size", "World size"],
  ["step", "Step"],
  ["place", "Place"],
  ["cost", "Cost"],
  ["started", "Started (UTC)"],
  ["finished", "Finished (UTC)"],
  ["updated", "Updated (UTC)"],
] as const;

/** Runs of every place. */
export function RunsPage() {
  const [wish, setWish] = useState({ phase: "", place: "", search: "", sort: "updated", descending: true, offset: 0 });
  const query = new URLSearchParams({ limit: String(PAGE) });
  for (const [name, value] of Object.entries(wish)) if (value !== "") query.set(name, String(value));
  const polled = usePolled(query.toString(), () => fetchRuns(query), () => true);
  const page = polled.value;
  const narrow = (more: Partial<typeof wish>): void => setWish({ ...wish, offset: 0, ...more });
  const last = Math.min(wish.offset + PAGE, page?.total ?? 0);
  return (
    <main>
      <h1>Elastic training runs</h1>
      <form class="filters" role="search" aria-label="Runs" onSubmit={(event) => event.preventDefault()}>
        <label>
          Phase
          <select value={wish.phase} onChange={(event) => narrow({ phase: event.currentTarget.value })}>
            <option value="">all</option>
            {PHASES.map((phase) => (
              <option key={phase} value={phase}>
                {phase}
              </option>
            ))}
          </select>
        </label>
        <label>
          Place
          <input value={wish.place} onChange={(event) => narrow({ place: event.currentTarget.value.trim() })} />
        </label>
        <label>
          Text
          <input type="search" value={wish.search} onChange={(event) => narrow({ search: event.currentTarget.value })} />
        </label>
        <output>{page ? `${page.total} ${page.total === 1 ? "run" : "runs"}` : ""}</output>
      </form>
      {polled.error && <p class="stale" role="status">{polled.error}</p>}
      {page?.unreachable.map((each) => (
        <p class="stale" role="status" key={each.place}>
          {each.place} is not reached: {each.message}
        </p>
      ))}
      {page?.incomplete && (
        <p class="stale" role="status">
          A place is not reached that you have no runs in, as far as is known: the list may be incomplete.
        </p>
      )}
      {page?.pools?.map((pool) => <Pool key={pool.name} pool={pool} after={polled.refresh} />)}
      {page && !page.total && <p class="empty">There are no such runs.</p>}
      {page && page.total > 0 && (
        <>
          <Rows rows={page.runs} wish={wish} sort={(sort, descending) => narrow({ sort, descending })} />
          <nav class="pages" aria-label="Pages">
            <button type="button" disabled={!wish.offset} onClick={() => setWish({ ...wish, offset: wish.offset - PAGE })}>
              Newer
            </button>
            <span>
              {wish.offset + 1} to {last} of {page.total}
            </span>
            <button type="button" disabled={last >= page.total} onClick={() => setWish({ ...wish, offset: last })}>
              Older
            </button>
          </nav>
        </>
      )}
      <Costs />
    </main>
  );
}

interface RowsProps {
  rows: RunRow[];
  wish: { sort: string; descending: boolean };
  sort: (by: string, descending: boolean) => void;
}

function Rows({ rows, wish, sort }: RowsProps) {
  return (
    <div class="scrolls whole" tabIndex={0} role="region" aria-label="Runs">
      <table class="runs">
        <thead>
          <tr>
            {COLUMNS.map(([name, title]) => {
              const sorted = wish.sort === name;
              const direction = wish.descending ? "descending" : "ascending";
              return (
                <th scope="col" key={name} aria-sort={sorted ? direction : "none"}>
                  <button type="button" class="sort" onClick={() => sort(name, sorted ? !wish.descending : true)}>
                    {title}
                    <span aria-hidden="true">{sorted ? (wish.descending ? " ▾" : " ▴") : ""}</span>
                  </button>
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.place} ${row.name}`}>
              <th scope="row">
                <RunLink ids={row} name={row.name} />
              </th>
              <td title={row.reason}>
                <span class={`phase ${row.phase}`}>{words(row.phase)}</span>
              </td>
              <td>
                {whole(row.world_size)} <small>asked {row.target_size}</small>
              </td>
              <td>
                {stepOf(row)} <small>{shortOf(row)}</small>
              </td>
              <td>{row.place}</td>
              <td>{row.cost === null ? "–" : `${row.cost} USD`}</td>
              <td class="time">{moment(row.started)}</td>
              <td class="time">{moment(row.finished)}</td>
              <td class="time">{moment(row.updated)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
