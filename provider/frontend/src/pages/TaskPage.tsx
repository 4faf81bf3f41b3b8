import { useState } from "preact/hooks";
import { fetchTask } from "../model/api";
import { moment, safeLink } from "../model/format";
import { type Polled, usePolled } from "../model/poll";
import type { Status, TaskIds, TaskPage as Page } from "../model/types";
import { Controls, useChanges } from "../parts/Controls";
import { Metrics, SizeChart } from "../parts/Curves";
import { Events } from "../parts/Events";
import { Failure } from "../parts/Failure";
import { HardwareCharts } from "../parts/HardwareCharts";
import { figuresOf, Headline } from "../parts/Headline";
import { Rehearsal } from "../parts/Rehearsal";
import { Section } from "../parts/Section";
import { CostTable, LostTime } from "../parts/Spent";
import { Workers } from "../parts/Workers";

/** One training task: its newest try, or one before. */
export function TaskPage({ query }: { query: URLSearchParams }) {
  const [wantedTry, setTry] = useState<string | null>(query.get("try_number"));
  const asked = new URLSearchParams(query);
  if (wantedTry === null) asked.delete("try_number");
  else asked.set("try_number", wantedTry);
  const polled = usePolled(
    asked.toString(),
    () => fetchTask(asked),
    (page) => page.live,
  );
  const page = polled.value;
  if (page === null) {
    return (
      <main>
        <p class="empty" role="status">{polled.error ?? "Looking for the run…"}</p>
      </main>
    );
  }
  return (
    <>
      <header class="top">
        <h1>{page.run.name ?? page.run.task_id}</h1>
        <p class="where">
          {page.run.place && <span>{page.run.place}</span>}
          <Tries page={page} chosen={wantedTry} choose={setTry} />
          <Freshness polled={polled} />
        </p>
        <Links page={page} />
      </header>
      {page.status ? (
        <Shown page={page} status={page.status} refresh={polled.refresh} />
      ) : (
        <main>
          <p class="empty" role="status">{page.message ?? "There is no run of this task yet."}</p>
        </main>
      )}
    </>
  );
}

function Shown({ page, status, refresh }: { page: Page; status: Status; refresh: () => void }) {
  const { dag_id, run_id, task_id, map_index } = page.run;
  const ids: TaskIds = { dag_id, run_id, task_id, map_index };
  const changes = useChanges(ids, refresh);
  const editable = page.may_edit && page.live;
  return (
    <main>
      {page.why && <Failure why={page.why} />}
      {page.message && <p class="remark">{page.message}</p>}
      {page.hidden.includes("logs") && <p class="remark">What ranks wrote is hidden: you may not read this DAG's task logs.</p>}
      {page.hidden.includes("results") && (
        <p class="remark">Metrics, files and cost are hidden: you may not read this DAG's XComs.</p>
      )}
      <Headline status={status} figures={figuresOf(page, status)} />
      {editable && <Controls ids={ids} joinable={page.joinable} changes={changes} status={status} limits={page.limits} />}
      <Section title="World size">
        <SizeChart status={status} />
      </Section>
      <Section title="Metrics">
        <Metrics status={status} />
      </Section>
      <Section title="Workers">
        <Workers workers={status.workers} notice={editable ? changes.notice : null} />
      </Section>
      <Section title="Hardware">
        <HardwareCharts status={status} />
      </Section>
      <div class="halves">
        <Section title="Time lost">
          <LostTime status={status} />
        </Section>
        <Section title="Cost">
          <CostTable cost={page.cost} />
        </Section>
      </div>
      <Section title="Rehearsal">
        <Rehearsal status={status} limits={page.limits} />
      </Section>
      <Section title="Events">
        <Events events={status.events} />
      </Section>
    </main>
  );
}

function Tries({ page, chosen, choose }: { page: Page; chosen: string | null; choose: (tried: string) => void }) {
  if (page.run.tries.length < 2) return null;
  return (
    <label>
      Try{" "}
      <select
        value={chosen ?? String(page.run.try_number ?? "")}
        onChange={(event) => choose(event.currentTarget.value)}
      >
        {page.run.tries.map((each) => (
          <option key={each} value={String(each)}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
}

function Freshness({ polled }: { polled: Polled<Page> }) {
  const updated = polled.value?.status?.updated ?? null;
  if (polled.error !== null && polled.heard !== null) {
    return (
      <span class="stale" role="status">
        not live since {moment(new Date(polled.heard).toISOString())}: {polled.error}
      </span>
    );
  }
  if (polled.value?.live) return <span class="live">live</span>;
  return updated ? <span>as of {moment(updated)} UTC</span> : null;
}

/** Airflow's frame around this page opens no windows (sandbox without allow-popups); Airflow's own page does. */
function openOutside(event: MouseEvent): void {
  if (window.parent === window || !(event.currentTarget instanceof HTMLAnchorElement)) return;
  event.preventDefault();
  window.parent.open(event.currentTarget.href, "_blank", "noopener");
}

function Links({ page }: { page: Page }) {
  const named: [string, string | null][] = [
    ["Report", page.links.report],
    ["Log", page.links.log],
    ["Checkpoints", page.links.checkpoints],
    // A browser of Chromium's family has this viewer inside: it works where the internet is out of reach.
    ["Timeline for chrome://tracing", page.links.timeline],
    ...page.links.profiles.map((each, at): [string, string] => [`Profile ${at}`, each]),
  ];
  const links = named.filter(([, address]) => address !== null);
  if (!links.length) return null;
  return (
    <nav aria-label="Of this run">
      {links.map(([name, address]) => {
        const safe = safeLink(address);
        // A place in a store is no address that a browser can open, but one that people copy.
        return safe ? (
          <a key={name} href={safe} target="_blank" rel="noopener noreferrer" onClick={openOutside}>
            {name}
          </a>
        ) : (
          <code key={name} title={name}>
            {address}
          </code>
        );
      })}
    </nav>
  );
}
